"""Follows a log file as it grows: across rotation, and within bounds.

    substrate --activation examples/log_follower.py call logs.follow app.log --seconds 60

Only files inside one folder can be followed: that of LOGS_FOLDER, or the current one.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from plexus import Activation, Complete, Denied, Event, Failed, NotFound, method

__all__ = ("Logs",)

#: How often the file is looked at.
POLL_S = 0.2
#: How much is read in one go.
CHUNK_BYTES = 64 * 1024
#: A line that is longer is cut here; the rest of it is left out.
LINE_BYTES = 8 * 1024
#: How far back the last lines are looked for.
TAIL_BYTES = 256 * 1024


class Line(Event):
    """One line of the log, without its end."""

    line: str

    def as_text(self) -> str:
        return f"{self.line}\n"


class Rotated(Event):
    """Another file is in its place now, or it was emptied; it is followed from its beginning."""

    reason: str

    def as_line(self) -> str:
        return f"The log was {self.reason}"


class Followed(Complete):
    """How much was said, and why no more."""

    lines: int
    reason: str


class Logs(Activation):
    """Follows log files of one folder."""

    namespace = "logs"
    version = "1.0.0"
    #: Logs tell much: whoever reads them must be allowed to.
    scope = "logs"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or Path(os.environ.get("LOGS_FOLDER", "."))).resolve()

    # It ends by itself after `seconds`, so the server's own limit is not wanted.
    @method(read_only=True, open_world=False, deadline_s=None)
    async def follow(
        self,
        path: str,
        last: int = 10,
        seconds: float = 30.0,
        most: int = 1000,
        only: str | None = None,
    ) -> AsyncIterator[Line | Rotated | Followed]:
        """Show the last lines of a log, and then each new one as it is written.

        Args:
            path: The file, inside the folder of logs.
            last: How many of the lines that are there already.
            seconds: For how long to follow it.
            most: After how many lines to stop.
            only: A text: lines in which it does not occur are left out.
        """
        log = await asyncio.to_thread(OpenLog, self._inside(path), last)
        end = time.monotonic() + seconds
        said = 0
        try:
            while said < most:
                lines, rotated = await asyncio.to_thread(log.read)
                for line in lines:
                    if only is None or only in line:
                        yield Line(line=line)
                        said += 1
                        if said == most:
                            break
                if rotated:
                    yield Rotated(reason=rotated)
                elif time.monotonic() >= end:
                    break
                elif not lines:
                    await asyncio.sleep(min(POLL_S, max(end - time.monotonic(), 0)))
        finally:
            await asyncio.to_thread(log.close)
        yield Followed(lines=said, reason="enough lines" if said == most else "time is up")

    def _inside(self, path: str) -> Path:
        """The file, which must be in the folder whatever links lead where."""
        file = (self._folder / path).resolve()
        if not file.is_relative_to(self._folder):
            raise Denied(f"{path} is not inside {self._folder}")
        return file


class OpenLog:
    """A log that is read as it grows. Every method blocks, and belongs into a thread."""

    def __init__(self, path: Path, last: int) -> None:
        self._path = path
        #: Whoever stops following may do so while a thread still reads.
        self._lock = threading.Lock()
        self._file = self._open()
        self._partial = b""
        #: Whether what comes up to the next end of a line is the rest of one that was cut.
        self._cut = False
        self._go_to(last)

    def _open(self) -> IO[bytes]:
        try:
            # A pipe would be waited for; it is opened at once, and then refused.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {self._path}") from error
        except OSError as error:
            reason = f"cannot read {self._path}: {error.strerror}"
            raise Failed(reason, code="unreadable") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Failed(f"{self._path} is not a regular file", code="unreadable")
        return os.fdopen(fd, "rb", buffering=0)

    def _go_to(self, last: int) -> None:
        """Stand before so many of the last lines, as far back as is looked."""
        base = max(os.fstat(self._file.fileno()).st_size - TAIL_BYTES, 0)
        self._file.seek(base)
        tail = self._file.read(TAIL_BYTES)
        # Where lines begin, the one included that is still being written. Further back than is
        # looked, the first of them begins who knows where.
        starts = [match.end() for match in re.finditer(rb"\n", tail)]
        starts = starts if base else [0, *starts]
        back = min(max(last, 0) + 1, len(starts))
        self._file.seek(base + (starts[-back] if back else 0))

    def read(self) -> tuple[list[str], str | None]:
        """The lines that are new, and what happened to the file if it is another one now."""
        with self._lock:
            return ([], None) if self._file.closed else self._read()

    def _read(self) -> tuple[list[str], str | None]:
        data = self._file.read(CHUNK_BYTES)
        if data:
            return self._lines(data), None
        happened = self._what_happened()
        if happened is None:
            return [], None
        # Something may have been written to the old one between the two looks.
        data = self._file.read(CHUNK_BYTES)
        if data:
            return self._lines(data), None
        rest = self._flush()
        if happened == "rotated":
            self._file.close()
            self._file = self._open()
        else:
            self._file.seek(0)
        return rest, happened

    def _what_happened(self) -> str | None:
        """Whether another file has its name now, or it became shorter; None if neither, or if
        there is no file of that name at the moment."""
        here = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except OSError:
            return None
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            return "rotated"
        return "emptied" if here.st_size < self._file.tell() else None

    def _lines(self, data: bytes) -> list[str]:
        *whole, self._partial = (self._partial + data).split(b"\n")
        if self._cut and whole:
            whole, self._cut = whole[1:], False
        elif self._cut:
            self._partial = b""
        if len(self._partial) > LINE_BYTES:
            whole.append(self._partial)
            self._partial, self._cut = b"", True
        return [_text(line) for line in whole]

    def _flush(self) -> list[str]:
        """The last line, which nobody will go on with."""
        last, self._partial = self._partial, b""
        cut, self._cut = self._cut, False
        return [_text(last)] if last and not cut else []

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            self._file.close()


def _text(line: bytes) -> str:
    line = line.removesuffix(b"\r")
    cut = "…" if len(line) > LINE_BYTES else ""
    return line[:LINE_BYTES].decode(errors="replace") + cut
