"""Commands of git that read a repository and run none of the programs that it configures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ("git_command", "git_environment")

#: Settings that name programs, or that make a reading command write or connect.
_SAFE: Final = (
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.pager=cat"),
    *("-c", "log.showSignature=false"),
    *("-c", "log.showRoot=true"),
    *("-c", "diff.external="),
    *("-c", "core.quotePath=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "diff.ignoreSubmodules=all"),
)


def git_command(root: Path, *arguments: str) -> list[str]:
    """Return a command of git in a folder."""
    return ["git", "--no-pager", *_SAFE, "-C", str(root), *arguments]


def git_environment() -> dict[str, str]:
    """Return an environment in which git asks nothing, locks nothing and fetches nothing."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return inherited | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
    }
