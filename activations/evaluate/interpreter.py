"""Chooses the Python interpreter of a session."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from plexus import InvalidParams
from plexus.caller_environment import caller_variables
from plexus.text import shorten

__all__ = ("find_interpreter",)

#: Characters of a wrong name in its error.
SHOWN_CHARACTERS = 200


def find_interpreter(given: str | None, directory: Path) -> str:
    """Return the absolute path of an interpreter, without resolving links, as venvs need it.

    `given` is a program, the folder of a virtual environment, or a name on PATH. Without it: the
    active virtual environment of the caller, that in `.venv` of the directory, `python3` on PATH,
    or the interpreter of this program. Raises InvalidParams.
    """
    variables = caller_variables()
    path = variables.get("PATH")
    if given is not None:
        return _find_given(given, directory, path)
    active = variables.get("VIRTUAL_ENV")
    for folder in ([Path(active)] if active else []) + [directory / ".venv"]:
        if os.access(program := folder / "bin" / "python", os.X_OK):
            return str(program)
    return shutil.which("python3", path=path) or sys.executable


def _find_given(given: str, directory: Path, path: str | None) -> str:
    if "\0" in given:
        raise InvalidParams.at("python", "must not contain a NUL character")
    with suppress(OSError, RuntimeError):  # a name that is too long, or `~` of an unknown user
        place = directory / Path(given).expanduser()
        for program in (place / "bin" / "python", place):
            if program.is_file() and os.access(program, os.X_OK):
                return str(program)
    if os.sep not in given and (found := shutil.which(given, path=path)) is not None:
        return found
    raise InvalidParams.at(
        "python",
        f"{shorten(given, SHOWN_CHARACTERS)!r} is neither an interpreter nor a virtual "
        "environment; give a path such as /usr/bin/python3 or .venv",
    )
