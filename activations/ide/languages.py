"""Languages of files by their names, with the identifiers that editors use."""

from __future__ import annotations

from typing import Final

__all__ = ("language_of",)

_BY_SUFFIX: Final = {
    **dict.fromkeys(("py", "pyi", "pyw"), "python"),
    **dict.fromkeys(("js", "mjs", "cjs"), "javascript"),
    "jsx": "javascriptreact",
    **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
    "tsx": "typescriptreact",
    **dict.fromkeys(("json", "webmanifest"), "json"),
    "jsonc": "jsonc",
    **dict.fromkeys(("md", "markdown"), "markdown"),
    **dict.fromkeys(("html", "htm"), "html"),
    **dict.fromkeys(("sh", "bash", "zsh"), "shellscript"),
    **dict.fromkeys(("yml", "yaml"), "yaml"),
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cc", "cpp", "cxx", "hpp", "hh"), "cpp"),
    **dict.fromkeys(("kt", "kts"), "kotlin"),
    **{each: each for each in ("css", "scss", "less", "toml", "xml", "sql", "go", "java", "lua")},
    **{each: each for each in ("php", "swift", "dart", "diff", "ini", "r", "vue", "svelte")},
    "rs": "rust",
    "rb": "ruby",
    "cs": "csharp",
    "svg": "xml",
    "rst": "restructuredtext",
    "pl": "perl",
    "ps1": "powershell",
}
_BY_NAME: Final = {
    "dockerfile": "dockerfile",
    "containerfile": "dockerfile",
    "makefile": "makefile",
    ".gitignore": "ignore",
    ".bashrc": "shellscript",
}


def language_of(path: str) -> str:
    """Return the language of a file; `plaintext` if it is unknown."""
    name = path.rpartition("/")[2].lower()
    known = _BY_NAME.get(name)
    return known or _BY_SUFFIX.get(name.rpartition(".")[2], "plaintext")
