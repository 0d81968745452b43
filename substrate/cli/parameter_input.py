"""Values of parameters that come from stdin or a file.

`-` stands for the text on stdin, `@FILE` for the text of a file, and `@@` for a literal `@`. If
stdin is not a terminal, it also fills an optional parameter named `stdin`, so that a command in a
pipe works as in a shell. Input is limited by the size of a message, because a call is one message.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Final

import click

from substrate.cli.terminal.display import stdin_is_terminal

__all__ = ("STDIN_PARAMETER", "ParameterInput")

#: Name of the parameter that stdin fills if it is not a terminal.
STDIN_PARAMETER: Final = "stdin"
FROM_STDIN: Final = "-"
FROM_FILE: Final = "@"
#: Seconds without the end of stdin until a notice explains what the command waits for.
NOTICE_S: Final = 2.0
BLOCK: Final = 64 * 1024
MIB: Final = 1024 * 1024


class ParameterInput:
    """Reader of stdin and files for one call."""

    def __init__(self, limit: int) -> None:
        """Set the maximum number of bytes of one value."""
        self._limit = limit
        #: The parameter that has read stdin.
        self._reader: str | None = None

    @property
    def has_stdin(self) -> bool:
        """Whether stdin is redirected and no parameter has read it."""
        return self._reader is None and sys.stdin is not None and not stdin_is_terminal()

    def resolve(self, text: str, parameter: str) -> str:
        """Return the text that a value stands for. Raises ValueError."""
        if text == FROM_STDIN:
            return self.read_stdin(parameter)
        if text.startswith(FROM_FILE * 2):
            return text[1:]
        if text.startswith(FROM_FILE):
            return self._read_file(text[1:])
        return text

    def read_stdin(self, parameter: str) -> str:
        """Return all text on stdin. Raises ValueError."""
        if self._reader is not None:
            raise ValueError(f"{self._reader} has already read stdin.")
        self._reader = parameter
        if sys.stdin is None:
            raise ValueError("stdin is closed.")
        if stdin_is_terminal():
            click.echo(f"Type the value of {parameter}, then press Ctrl-D.", err=True)
        try:
            fd = sys.stdin.fileno()
        except (OSError, ValueError):  # replaced by the program that runs the command
            return self._decode(sys.stdin.read(self._limit + 1).encode(), "stdin")
        try:
            data = self._read_all(fd, parameter)
        except OSError as error:
            raise ValueError(f"stdin cannot be read: {error.strerror}.") from None
        return self._decode(data, "stdin")

    def _read_all(self, fd: int, parameter: str) -> bytes:
        """Read to the end, or one byte more than the limit."""
        data = bytearray()
        is_quiet = stdin_is_terminal()
        while len(data) <= self._limit:
            if not is_quiet and not select.select([fd], [], [], NOTICE_S)[0]:
                is_quiet = True
                click.echo(
                    f"Waiting for the end of stdin, which is the value of {parameter}. Use "
                    "`< /dev/null` to call the method without it.",
                    err=True,
                )
            part = os.read(fd, BLOCK)
            if not part:
                break
            data += part
        return bytes(data)

    def _read_file(self, name: str) -> str:
        try:
            with Path(name).open("rb") as file:
                data = file.read(self._limit + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(
                f"cannot read {name!r}: {reason}. Write @@ for a text that begins with @."
            ) from None
        return self._decode(data, name)

    def _decode(self, data: bytes, source: str) -> str:
        if len(data) > self._limit:
            raise ValueError(
                f"{source} has more than {self._limit / MIB:g} MiB, the limit of one call. Pass "
                "the path of a file to a method that reads files."
            )
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{source} is not UTF-8 text.") from None
