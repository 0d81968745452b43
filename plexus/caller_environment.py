"""The working directory and the environment variables of the process that made a call.

A server that executes the runs of other processes (`substrate.front`) must start commands as those
processes would. The hub stores the caller's environment with each run, and the pump makes it
current while it steps the run, because one task steps the runs of several callers. What a run
awaits, the tasks and the worker threads that it starts, and the runs that it calls all see the same
environment.

A call without such a process, over HTTP for example, has the environment of the server. Values of
variables are secrets: they are never logged and never stored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from plexus.text import printable_name

__all__ = (
    "CALLER",
    "CallerEnvironment",
    "agent_session_of",
    "caller_directory",
    "caller_variables",
)

#: The variable with the session of the agent that started a process, and its maximum characters.
AGENT_SESSION: Final = "CLAUDE_CODE_SESSION_ID"
SESSION_CHARS: Final = 100


class CallerEnvironment:
    """The environment of a calling process."""

    __slots__ = ("agent_session", "directory", "variables")

    def __init__(self, directory: str, variables: Mapping[str, str]) -> None:
        #: The working directory, an absolute path.
        self.directory = directory
        self.variables = variables
        #: The session of the agent that started the process; empty if it is unknown.
        self.agent_session = agent_session_of(variables)

    def __repr__(self) -> str:
        """Show no values of variables."""
        return f"<CallerEnvironment {self.directory}, {len(self.variables)} variables>"


#: The environment of the caller of the current run; None for that of the server.
CALLER: Final[ContextVar[CallerEnvironment | None]] = ContextVar("caller", default=None)


def caller_directory() -> Path:
    """Return the working directory of the caller. Raises OSError if the server's is gone."""
    caller = CALLER.get()
    return Path.cwd() if caller is None else Path(caller.directory)


def caller_variables() -> Mapping[str, str]:
    """Return the environment variables of the caller."""
    caller = CALLER.get()
    return os.environ if caller is None else caller.variables


def agent_session_of(variables: Mapping[str, str]) -> str:
    """Return the session of the agent that started a process; empty if it is unknown."""
    return printable_name(variables.get(AGENT_SESSION, ""), SESSION_CHARS)
