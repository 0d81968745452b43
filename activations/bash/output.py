"""From the bytes of two pipes to events, in pieces that end between characters.

Pure but for waiting on the pipes: it knows nothing of processes. Bytes that are not UTF-8 stay
visible as `\\\\xff`. Both pipes draw on one budget; when it is spent, nothing more is read.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterable, AsyncIterator, Callable

from activations.bash.events import Stderr, Stdout

__all__ = ("Budget", "read_output")

#: The most characters in one event: an undecodable byte becomes four of them.
EVENT_CHARS = 64 * 1024


class Budget:
    """How many bytes may still be delivered; calls `on_exceeded` once when more were written."""

    def __init__(self, limit: int, on_exceeded: Callable[[], None]) -> None:
        self.exceeded = False
        self._left = limit
        self._on_exceeded = on_exceeded

    def take(self, data: bytes) -> bytes:
        """As much of this as there is room for."""
        kept = data[: self._left]
        self._left -= len(kept)
        if len(kept) < len(data) and not self.exceeded:
            self.exceeded = True
            self._on_exceeded()
        return kept


async def read_output(
    pipe: AsyncIterable[bytes], event: type[Stdout] | type[Stderr], budget: Budget
) -> AsyncIterator[Stdout | Stderr]:
    """Read one pipe until its end or that of the budget."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    async for data in pipe:
        text = decoder.decode(budget.take(data))
        for begin in range(0, len(text), EVENT_CHARS):
            yield event(data=text[begin : begin + EVENT_CHARS])
        if budget.exceeded:
            return  # and without the rest of a character that our cut has split
    if tail := decoder.decode(b"", final=True):
        yield event(data=tail)
