"""The channel to the server, and the streams that code writes to."""

from __future__ import annotations

import io
import json
import os
import threading
import time

TYPE_CHECKING = False  # `typing` would add to the start
if TYPE_CHECKING:
    from typing import Any

__all__ = ("Output", "Reports")

#: Seconds for which small writes are joined, and characters that are not joined with more.
JOIN_S = 0.02
JOIN_CHARACTERS = 16 * 1024
#: Maximum characters of a report, which must fit into an event of the server.
REPORT_CHARACTERS = 64 * 1024


class Reports:
    """The channel to the server. An interrupt waits until a report is complete."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        #: Whether code is executed, which can be interrupted.
        self.is_interruptible = False
        self._lock = threading.RLock()
        self._main = threading.main_thread()
        #: Whether the main thread is sending, and whether it was interrupted meanwhile.
        self._is_sending = False
        self._is_interrupted = False

    def send(self, **report: Any) -> None:
        data = memoryview(json.dumps(report).encode() + b"\n")
        with self.complete():
            while data:
                data = data[os.write(self.fd, data) :]

    def complete(self) -> _Complete:
        """Return a context manager in which the main thread is not interrupted."""
        return _Complete(self)

    def on_interrupt(self, _signal: int, _frame: Any) -> None:
        if not self.is_interruptible:
            return
        if self._is_sending:
            self._is_interrupted = True
        else:
            raise KeyboardInterrupt


class _Complete:
    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._is_outer = False

    def __enter__(self) -> None:
        reports = self._reports
        if threading.current_thread() is reports._main and not reports._is_sending:
            self._is_outer = reports._is_sending = True
        reports._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        reports = self._reports
        reports._lock.release()
        if self._is_outer:
            reports._is_sending = False
            if reports._is_interrupted:
                reports._is_interrupted = False
                if reports.is_interruptible:
                    raise KeyboardInterrupt


class Output(io.TextIOBase):
    """A text stream whose content is reported."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, reports: Reports, name: str, fd: int, wake: threading.Event) -> None:
        self.name = name
        self._reports = reports
        self._fd = fd
        self._wake = wake
        self._parts: list[str] = []
        self._size = 0
        self._reported = 0.0
        #: Whether this process is a forked child, which writes to the descriptor.
        self.is_forked = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    @property
    def buffer(self) -> Any:
        return _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self.is_forked:
            os.write(self._fd, text.encode(errors="backslashreplace"))
            return len(text)
        self._parts.append(text)
        self._size += len(text)
        # What comes after a pause is shown immediately, and the rest of a burst together.
        is_due = self._size >= JOIN_CHARACTERS or (
            "\n" in text and time.monotonic() - self._reported > JOIN_S
        )
        if is_due:
            self.flush()
        elif not self._wake.is_set():
            self._wake.set()
        return len(text)

    def discard(self) -> None:
        """Forget what was not reported yet."""
        self._parts.clear()

    def flush(self) -> None:
        if self.is_forked:
            return
        with self._reports.complete():
            self._report()

    def _report(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        self._reported = time.monotonic()
        text = "".join(parts)
        for begin in range(0, len(text), REPORT_CHARACTERS):
            part = text[begin : begin + REPORT_CHARACTERS]
            self._reports.send(op=self.name, text=part.encode(errors="backslashreplace").decode())


class _Bytes(io.RawIOBase):
    """The binary side of an output, for programs that write to `sys.stdout.buffer`."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._output.write(data.decode(errors="backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._output.flush()
