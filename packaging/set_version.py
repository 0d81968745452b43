"""Set the version in every file that names it: `python packaging/set_version.py 0.2.0`.

`plexus/version.py` defines the version. The other files are read by registries and hosts that
cannot ask Python for it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

__all__ = ("FILES", "VERSION_FILE", "current_version", "set_version")

REPOSITORY = Path(__file__).parents[1]
VERSION_FILE = "plexus/version.py"
#: The files that name the version, and how often.
FILES = {
    VERSION_FILE: 1,
    "packaging/server.json": 3,
    "packaging/mcpb/manifest.json": 1,
    "packaging/mcpb/pyproject.toml": 3,
    "packaging/claude_plugin/.claude-plugin/plugin.json": 1,
    "docs/installing.md": 1,
}
#: Versions that PyPI and semantic versioning read alike: no suffixes.
VERSION = re.compile(r"\d+\.\d+\.\d+")


def current_version(root: Path = REPOSITORY) -> str:
    """Return the version that `plexus/version.py` defines."""
    found = re.search(r'__version__ = "(.*)"', (root / VERSION_FILE).read_text())
    if found is None:
        raise ValueError(f"{VERSION_FILE} defines no version")
    return found[1]


def set_version(new: str, root: Path = REPOSITORY) -> None:
    """Replace the version in all files. Raises ValueError before anything is written."""
    if VERSION.fullmatch(new) is None:
        raise ValueError(f"invalid version {new!r}: write it as 1.2.3")
    old = current_version(root)
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?![\w]|\.\d)")
    texts = {}
    for name, expected in FILES.items():
        texts[name], count = pattern.subn(new, (root / name).read_text())
        if count != expected:
            raise ValueError(f"{name} names {old} {count} times instead of {expected}")
    for name, text in texts.items():
        (root / name).write_text(text)


def main() -> int:
    """Set the version that the command line names."""
    parser = argparse.ArgumentParser(description="Set the version in every file that names it.")
    parser.add_argument("version", help="for example 0.2.0")
    try:
        set_version(parser.parse_args().version)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
