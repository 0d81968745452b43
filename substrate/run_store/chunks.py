"""Chunks: the items of one run and one flush, as one compressed value.

A chunk is a line of JSON with the times of its items, followed by one line per item. The bytes of
an event are JSON and contain no line breaks, so they are stored exactly as they were sent. The
times are pairs of an index and milliseconds since the epoch: an item has the time of the last pair
at or before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from plexus.registry.lazy import resolve
from plexus.rpc import wire
from plexus.runtime.log import StoredItems
from plexus.runtime.stored_events import READING, read_event

__all__ = ("PLAIN", "ZSTD", "decode_chunk", "decode_text", "encode_chunk", "stored_items")

#: Imported at the first chunk that needs it: a process with only short runs has none.
COMPRESSOR: Final = "zstandard:ZstdCompressor"
DECOMPRESSOR: Final = "zstandard:ZstdDecompressor"
ERROR: Final = "zstandard:ZstdError"
#: The codecs of a chunk.
PLAIN: Final = 0
ZSTD: Final = 1
#: Chunks below this size are not compressed: it would save nothing.
MIN_COMPRESSED: Final = 512
#: The fastest level. Higher ones save little of what is mostly repeated JSON keys.
LEVEL: Final = 1
#: Maximum size of a decompressed chunk: items are bounded, and so are flushes.
MAX_BYTES: Final = 64 * 1024 * 1024


def encode_chunk(marks: Sequence[tuple[int, int]], pieces: Sequence[bytes]) -> tuple[int, bytes]:
    """Return the codec and the content of a chunk. Each piece is one item, or joined items."""
    content = b"\n".join((wire.encode(marks), *pieces))
    if len(content) < MIN_COMPRESSED:
        return PLAIN, content
    return ZSTD, resolve(COMPRESSOR)(LEVEL).compress(content)


def decode_chunk(codec: int, content: bytes) -> tuple[list[list[int]], list[bytes]]:
    """Return the times and the payloads of a chunk. Raises ValueError if it is damaged."""
    if codec == ZSTD:
        try:
            content = resolve(DECOMPRESSOR)().decompress(content, max_output_size=MAX_BYTES)
        except resolve(ERROR) as error:
            raise ValueError(str(error)) from error
    elif codec != PLAIN:
        raise ValueError(f"unknown codec {codec}")
    try:
        first, *payloads = content.split(b"\n")
        marks = [[int(index), int(at_ms)] for index, at_ms in wire.decode_value(first, READING)]
    except (TypeError, OverflowError) as error:  # text, or marks that are not pairs of numbers
        raise ValueError(str(error)) from error
    return marks, payloads


def decode_text(items: str, started_ms: int, ended_ms: int) -> tuple[list[list[int]], list[bytes]]:
    """Return the times and the payloads of a short run, whose items are stored as text."""
    payloads = items.encode().split(b"\n")
    return [[0, started_ms], [len(payloads) - 1, ended_ms]], payloads


def stored_items(first: int, marks: Sequence[Sequence[int]], payloads: list[bytes]) -> StoredItems:
    """Return decoded items. Raises ValueError if one of them is not an event."""
    times: list[int] = []
    bounds = [*(index for index, _ in marks), len(payloads)]
    for (start, end), (_, at_ms) in zip(pairwise(bounds), marks, strict=True):
        times += [at_ms] * (end - start)
    return StoredItems(first, [read_event(raw) for raw in payloads], payloads, times)
