"""Lines that a person types, with editing and a history where Python has readline."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from plexus.private_files import open_private, state_folder
from substrate.security.private_files import make_private

__all__ = ("LineEditor",)

#: How many lines are remembered.
REMEMBERED: Final = 1000
#: What a line ends with that goes on in the next.
CONTINUED: Final = "\\"


class LineEditor:
    """The person's line. One at a time: readline belongs to the process."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words` are completed with Tab at the beginning of a line."""
        self._words = words
        self._readline: ModuleType | None = None
        self._on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self._on_terminal:
            with contextlib.suppress(ImportError):  # some Pythons are built without it
                self._readline = importlib.import_module("readline")
        if self._readline is not None:
            self._readline.set_completer(self._complete)
            self._readline.set_completer_delims("")
            self._readline.parse_and_bind("tab: complete")
            self._readline.set_history_length(REMEMBERED)
            with contextlib.suppress(OSError):
                self._readline.read_history_file(str(self._file))

    @property
    def _file(self) -> Path:
        return state_folder() / "chat_history"

    def read(self, prompt: str, text: str = "") -> str:
        """What the person types, with this text there to begin with where that can be.

        A line that ends with a backslash goes on in the next. Raises EOFError at Ctrl-D and
        KeyboardInterrupt at Ctrl-C.
        """
        lines = [self._line(prompt, text)]
        while lines[-1].endswith(CONTINUED):
            lines[-1] = lines[-1].removesuffix(CONTINUED)
            lines.append(self._line("... ", ""))
        return "\n".join(lines)

    def close(self) -> None:
        """Keep the history, for its owner alone."""
        if self._readline is None:
            return
        with contextlib.suppress(OSError):
            make_private(self._file.parent)
            os.close(open_private(self._file, os.O_WRONLY))
            self._readline.write_history_file(str(self._file))
            self._file.chmod(0o600)

    def _line(self, prompt: str, text: str) -> str:
        if not self._on_terminal:
            sys.stderr.write(prompt)
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")
        if self._readline is None:
            return input(prompt)
        insert: Callable[[str], None] = self._readline.insert_text
        self._readline.set_startup_hook(lambda: insert(text) if text else None)
        try:
            return input(_bold(prompt))
        finally:
            self._readline.set_startup_hook(None)

    def _complete(self, text: str, state: int) -> str | None:
        fitting = [word for word in self._words if word.startswith(text)]
        return fitting[state] if text and state < len(fitting) else None


def _bold(prompt: str) -> str:
    """A prompt that stands out; readline is told which characters take no room."""
    if os.environ.get("NO_COLOR"):
        return prompt
    return f"\001\033[1m\002{prompt}\001\033[0m\002"
