"""Child processes of tests: their environment, and whether a process has ended."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("clean_environment", "is_alive", "limit_settings")


#: The variable with the session of an agent.
AGENT_SESSION = "CLAUDE_CODE_SESSION_ID"


def clean_environment(**variables: str) -> dict[str, str]:
    """Return the environment without settings of this program, with the given variables.

    The session of an agent that runs the tests is not part of it either.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if "SUBSTRATE" not in name and name != AGENT_SESSION
    }
    return kept | variables


def limit_settings(**limits: float) -> dict[str, str]:
    """Return the environment variables that set these limits of a server."""
    return {f"SUBSTRATE_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
