"""Ranges of the items of a run, as one value: what `plexus.items` returns.

The items are read like those of a follower: from memory, and older ones from the run store. Their
encoded events are spliced into the value, so that nothing is parsed or encoded again.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

from plexus.rpc import wire
from plexus.runtime.run import Run

__all__ = ("MAX_ITEMS", "RANGE_BYTES", "read_range")

#: Maximum number of items in a range.
MAX_ITEMS: Final = 10_000
#: Maximum bytes of the events in a range. The first item is always included.
RANGE_BYTES: Final = 1024 * 1024


async def read_range(run: Run, after: int, limit: int) -> dict[str, Any]:
    """Return the items of a run after this number, within bounds.

    `items` is encoded JSON. Items that are no longer available are replaced by a `gap` event, which
    has the number of the last of them.
    """
    parts: list[bytes] = []
    size = 0
    async with aclosing(run.available(after)) as batches:
        async for batch in batches:
            for seq, at_ms, payload in zip(
                range(batch.first, batch.first + len(batch.payloads)),
                batch.times_ms(),
                batch.payloads,
                strict=True,
            ):
                size += len(payload)
                if len(parts) == limit or (parts and size > RANGE_BYTES):
                    return _range(run, parts)
                parts.append(b'{"seq":%d,"time_ms":%d,"event":%b}' % (seq, at_ms, payload))
    return _range(run, parts)


def _range(run: Run, parts: list[bytes]) -> dict[str, Any]:
    return {
        "items": wire.encoded(wire.encode_batch(parts)),
        "last_seq": run.last_seq,
        "ended": run.terminal is not None,
    }
