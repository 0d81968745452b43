"""Events of `bash.execute`, and the decoding of two pipes into events.

Output is split into chunks that end between characters. Bytes that are not UTF-8 stay visible as
`\\\\xff`. Both pipes share one budget; when it is spent, nothing more is read.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterable, AsyncIterator, Callable

from plexus import Complete, Event

__all__ = ("Budget", "Exit", "Start", "Stderr", "Stdout", "Truncated", "read_output")

#: Maximum characters in one event: an undecodable byte becomes four of them.
EVENT_CHARS = 64 * 1024


class Start(Event):
    """The command has started."""

    pid: int

    def as_line(self) -> str:
        return f"Started as process {self.pid}"


class Stdout(Event):
    """A chunk of the command's standard output, not necessarily a line."""

    data: str

    def as_text(self) -> str:
        return self.data


class Stderr(Event):
    """A chunk of the command's standard error, not necessarily a line."""

    data: str

    def as_text(self) -> str:
        return self.data


class Truncated(Event):
    """The command exceeded its output limit: the rest is lost and the command was killed."""

    limit_bytes: int

    def as_text(self) -> str:
        return f"\n[output cut at {self.limit_bytes} bytes; the command was killed]\n"


class Exit(Complete):
    """How the command ended. After a signal n, the exit code is 128 + n, as in a shell."""

    exit_code: int
    duration_ms: int
    truncated: bool
    signal: str | None = None

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    def as_line(self) -> str:
        cause = f" ({self.signal})" if self.signal else ""
        return f"Exit code {self.exit_code}{cause} after {self.duration_ms} ms"


class Budget:
    """Number of bytes that may still be delivered.

    Calls `on_exceeded` once when more are written.
    """

    def __init__(self, limit: int, on_exceeded: Callable[[], None]) -> None:
        self.exceeded = False
        self._left = limit
        self._on_exceeded = on_exceeded

    def take(self, data: bytes) -> bytes:
        """Return the part of the data that is within the budget."""
        kept = data[: self._left]
        self._left -= len(kept)
        if len(kept) < len(data) and not self.exceeded:
            self.exceeded = True
            self._on_exceeded()
        return kept


async def read_output(
    pipe: AsyncIterable[bytes], event: type[Stdout] | type[Stderr], budget: Budget
) -> AsyncIterator[Stdout | Stderr]:
    """Yield the events of one pipe until it ends or the budget is spent."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    async for data in pipe:
        text = decoder.decode(budget.take(data))
        for begin in range(0, len(text), EVENT_CHARS):
            yield event(data=text[begin : begin + EVENT_CHARS])
        if budget.exceeded:
            return  # without flushing the decoder: truncation may have split a character
    if tail := decoder.decode(b"", final=True):
        yield event(data=tail)
