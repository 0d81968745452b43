"""Commands of documents, run on a terminal as a reader would run them."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ("Terminal", "fixed")

WAIT_S = 60.0

#: Output that varies between runs, and its replacement.
VARYING = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\r+\n"), "\n"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"#token=\S+"), "#token=TOKEN"),
    (re.compile(r"passed in [\d.]+s"), "passed in N s"),
)


def fixed(text: str) -> str:
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text


class Terminal:
    """A command on a separate terminal."""

    def __init__(self, command: str, cwd: Path, environment: Mapping[str, str]) -> None:
        self._fd, theirs = os.openpty()
        self._child = subprocess.Popen(
            ["bash", "-c", command],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._data = b""
        self._read = 0

    @property
    def text(self) -> str:
        return fixed(self._data.decode())

    def wait_for(self, expected: str) -> None:
        """Wait until the output continues with a text."""
        end = time.monotonic() + WAIT_S
        while (place := self.text.find(expected, self._read)) < 0:
            assert self._more(end), f"{expected!r} is missing: {self.text[self._read :]!r}"
        self._read = place + len(expected)

    def rest(self) -> tuple[int, str]:
        """Return the exit code and the whole output."""
        end = time.monotonic() + WAIT_S
        while self._more(end):
            pass
        return self._child.wait(max(end - time.monotonic(), 0.1)), self.text

    def _more(self, end: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(end - time.monotonic(), 0))
        if not ready:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other end is closed
            return False
        self._data += data
        return bool(data)

    def close(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(10)
        os.close(self._fd)
