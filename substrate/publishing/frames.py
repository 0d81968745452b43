"""What the two ends of the channel say to each other.

A frame is one WebSocket message: a line of JSON, which has a `kind`, and after it lines that are
JSON already, so that the bytes of an event are neither read nor written again on the way.

| from the process | what follows in lines |
|---|---|
| `hello` process, pid, start_time, project | |
| `known` runs | there are these, and no others; what was wanted of them is forgotten |
| `runs` | a description of each run that is new or has changed |
| `items` run, first | consecutive items |
| `piece` run, seq, last | a part of one item that is too large for a frame |
| `asked` run, asked_ms | the `request` that is open |
| `settled` run, request | |
| `lost` run | it is wanted, but no longer known |
| `reply` id | the terminal of what was called |
| `bye` | |

| from the server | |
|---|---|
| `welcome` frame_bytes | the largest frame it takes |
| `want` run, after, bytes | send items, so many bytes of them or, with null, all |
| `enough` run | |
| `call` id, method, params | one of `CALLS` |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("CALLS", "PATH", "frame", "read_frame")

#: Where the server takes them.
PATH: Final = "/publish"
#: What the server may have a process call.
CALLS: Final = frozenset({"plexus.cancel", "plexus.respond", "approvals.respond"})
#: An answer may be as deep as whatever asks for it wants.
HEADER: Final = Limits()


def frame(kind: str, lines: Sequence[bytes] = (), **fields: Any) -> bytes:
    """A frame of this kind."""
    return b"\n".join([wire.encode({"kind": kind, **fields}), *lines])


def read_frame(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The first line of a frame and the rest; raises ValueError and TooBig."""
    head, _, rest = data.partition(b"\n")
    header = wire.decode_value(head, HEADER)
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ValueError("a frame begins with an object that has a kind")  # noqa: TRY004
    return header, rest
