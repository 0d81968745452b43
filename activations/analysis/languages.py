"""The languages that are analysed, and the toolchains that select them.

Imported by the server and by the workers, so it needs only the standard library.
"""

from __future__ import annotations

import difflib
from pathlib import PurePosixPath
from typing import Final

__all__ = ("ALL", "LANGUAGES", "TOOLCHAINS", "language_of", "nearest_toolchain")

#: File name extensions by language, as lizard and the tree-sitter grammars divide them.
LANGUAGES: Final[dict[str, tuple[str, ...]]] = {
    "python": (".py",),
    "rust": (".rs",),
    "typescript": (".ts", ".mts", ".cts"),
    "tsx": (".tsx",),
    "javascript": (".js", ".mjs", ".cjs", ".jsx"),
    "go": (".go",),
    "c": (".c", ".h"),
    "cpp": (".cpp", ".cc", ".cxx", ".hpp", ".hh", ".hxx"),
    "java": (".java",),
}
ALL: Final = tuple(LANGUAGES)
_WEB: Final = ("typescript", "tsx", "javascript")
#: The languages of each toolchain.
TOOLCHAINS: Final[dict[str, tuple[str, ...]]] = {
    "auto": ALL,
    "python": ("python",),
    "python-uv": ("python",),
    "rust": ("rust",),
    "deno": _WEB,
    "node": _WEB,
    "typescript": _WEB,
    "javascript": _WEB,
    "go": ("go",),
    "c": ("c", "cpp"),
    "cpp": ("c", "cpp"),
    "java": ("java",),
}
#: What people call a toolchain that has another name here.
_SYNONYMS: Final = {
    "cargo": "rust",
    "uv": "python-uv",
    "npm": "node",
    "golang": "go",
    "c++": "cpp",
    "js": "javascript",
    "ts": "typescript",
    "jvm": "java",
}
_BY_EXTENSION: Final = {
    extension: language for language, extensions in LANGUAGES.items() for extension in extensions
}


def language_of(path: str) -> str | None:
    """Return the language of a file by its extension, None for a file that is not source code."""
    return _BY_EXTENSION.get(PurePosixPath(path).suffix.lower())


def nearest_toolchain(name: str) -> str | None:
    """Return the toolchain that an unknown name most likely means."""
    lower = name.strip().lower()
    if lower in _SYNONYMS:
        return _SYNONYMS[lower]
    found = difflib.get_close_matches(lower, [*TOOLCHAINS, *_SYNONYMS], 1, 0.5)
    return _SYNONYMS.get(found[0], found[0]) if found else None
