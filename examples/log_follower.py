"""Follow a log file as it grows, across rotation and within limits.

    substrate --activation examples/log_follower.py call logs.follow app.log --seconds 60

Only files inside one folder can be followed: LOGS_FOLDER, or the current folder.
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

#: Interval of polling the file.
POLL_S = 0.2
#: Maximum bytes per read.
CHUNK_BYTES = 64 * 1024
#: Maximum bytes of a line. The rest of a longer line is dropped.
LINE_BYTES = 8 * 1024
#: Maximum distance from the end of the file when searching for the last lines.
TAIL_BYTES = 256 * 1024


class Line(Event):
    """A line of the log, without its newline."""

    line: str

    def as_text(self) -> str:
        return f"{self.line}\n"


class Rotated(Event):
    """The file was replaced or truncated. It is followed from its start."""

    reason: str

    def as_line(self) -> str:
        return f"The log was {self.reason}"


class Followed(Complete):
    """Number of lines, and why following stopped."""

    lines: int
    reason: str


class Logs(Activation):
    """Follows log files in a folder."""

    namespace = "logs"
    version = "1.0.0"
    #: Logs may contain secrets, so reading them needs a separate scope.
    scope = "logs"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or Path(os.environ.get("LOGS_FOLDER", "."))).resolve()

    # No deadline for the run: it ends after `seconds`.
    @method(read_only=True, open_world=False, deadline_s=None)
    async def follow(
        self,
        path: str,
        last: int = 10,
        seconds: float = 30.0,
        max_lines: int = 1000,
        contains: str | None = None,
    ) -> AsyncIterator[Line | Rotated | Followed]:
        """Show the last lines of a log file, then each new line as it is written.

        Stops after the given time or number of lines.

        Args:
            path: Path of the file, relative to the log folder.
            last: Number of existing lines to start with.
            seconds: How long to follow the file, in seconds.
            max_lines: Maximum number of lines.
            contains: Only lines that contain this text. Default: all lines.
        """
        log = await asyncio.to_thread(OpenLog, self._inside(path), last)
        end = time.monotonic() + seconds
        count = 0
        try:
            while count < max_lines:
                lines, rotated = await asyncio.to_thread(log.read)
                for line in lines:
                    if contains is None or contains in line:
                        yield Line(line=line)
                        count += 1
                        if count == max_lines:
                            break
                if rotated:
                    yield Rotated(reason=rotated)
                elif time.monotonic() >= end:
                    break
                elif not lines:
                    await asyncio.sleep(min(POLL_S, max(end - time.monotonic(), 0)))
        finally:
            await asyncio.to_thread(log.close)
        reason = "line limit reached" if count == max_lines else "time limit reached"
        yield Followed(lines=count, reason=reason)

    def _inside(self, path: str) -> Path:
        """Return the resolved path, which must be inside the folder. Raises Denied."""
        file = (self._folder / path).resolve()
        if not file.is_relative_to(self._folder):
            raise Denied(f"{path} is not inside {self._folder}")
        return file


class OpenLog:
    """Log file that is read as it grows. Every method blocks, so call it in a thread."""

    def __init__(self, path: Path, last: int) -> None:
        self._path = path
        #: `close` may be called while a thread is reading.
        self._lock = threading.Lock()
        self._file = self._open()
        self._partial = b""
        #: Whether the bytes up to the next newline belong to a line that was cut.
        self._cut = False
        self._seek(last)

    def _open(self) -> IO[bytes]:
        try:
            # O_NONBLOCK: opening a pipe must not block; it is rejected below.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"file {self._path} does not exist") from error
        except OSError as error:
            reason = f"cannot read {self._path}: {error.strerror}"
            raise Failed(reason, code="unreadable") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Failed(f"{self._path} is not a regular file", code="unreadable")
        return os.fdopen(fd, "rb", buffering=0)

    def _seek(self, last: int) -> None:
        """Move to the start of the last lines, at most `TAIL_BYTES` before the end."""
        base = max(os.fstat(self._file.fileno()).st_size - TAIL_BYTES, 0)
        self._file.seek(base)
        tail = self._file.read(TAIL_BYTES)
        # Starts of lines, including the line that is still being written. If the tail does not
        # begin at the start of the file, the start of its first line is unknown.
        starts = [match.end() for match in re.finditer(rb"\n", tail)]
        starts = starts if base else [0, *starts]
        back = min(max(last, 0) + 1, len(starts))
        self._file.seek(base + (starts[-back] if back else 0))

    def read(self) -> tuple[list[str], str | None]:
        """Return new lines, and "rotated" or "emptied" if the file was replaced or truncated."""
        with self._lock:
            return ([], None) if self._file.closed else self._read()

    def _read(self) -> tuple[list[str], str | None]:
        data = self._file.read(CHUNK_BYTES)
        if data:
            return self._lines(data), None
        change = self._detect_change()
        if change is None:
            return [], None
        # The old file may have grown between the read and the check.
        data = self._file.read(CHUNK_BYTES)
        if data:
            return self._lines(data), None
        rest = self._flush()
        if change == "rotated":
            self._file.close()
            self._file = self._open()
        else:
            self._file.seek(0)
        return rest, change

    def _detect_change(self) -> str | None:
        """Return whether the file was replaced or truncated.

        None if neither, or if no file exists at the path at the moment.
        """
        opened = os.fstat(self._file.fileno())
        try:
            current = self._path.stat()
        except OSError:
            return None
        if (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino):
            return "rotated"
        return "emptied" if opened.st_size < self._file.tell() else None

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
        """Return the unfinished last line of the old file."""
        last, self._partial = self._partial, b""
        cut, self._cut = self._cut, False
        return [_text(last)] if last and not cut else []

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def _text(line: bytes) -> str:
    line = line.removesuffix(b"\r")
    cut = "…" if len(line) > LINE_BYTES else ""
    return line[:LINE_BYTES].decode(errors="replace") + cut
