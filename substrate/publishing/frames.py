"""The frames of the publishing channel.

A frame is one WebSocket message: a header line of JSON with a `kind`, followed by lines of encoded
JSON, so that the bytes of an event are not decoded and encoded again.

| from the process | the lines that follow |
|---|---|
| `hello` process, pid, start_time, project | |
| `known` runs | none; the complete list of runs, which resets all subscriptions |
| `runs` | the description of each new or changed run |
| `items` run, first | consecutive items |
| `piece` run, seq, last | a part of one item that is too large for a frame |
| `asked` run, asked_ms | the open `request` |
| `settled` run, request | |
| `lost` run | none; the server subscribed to a run that is no longer retained |
| `reply` id | the terminal of the call |
| `bye` | |

| from the server | |
|---|---|
| `welcome` frame_bytes | the maximum frame size |
| `want` run, after, bytes | subscribe to items, up to this many bytes, or all with null |
| `enough` run | unsubscribe |
| `call` id, method, params | one of `CALLS` |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("CALLS", "PATH", "frame", "read_frame")

#: The path of the server's WebSocket.
PATH: Final = "/publish"
#: The methods that the server may call in a process.
CALLS: Final = frozenset({"plexus.cancel", "plexus.respond", "approvals.respond"})
#: Default limits: the parameters of a call may be as deep as those of any call.
HEADER: Final = Limits()


def frame(kind: str, lines: Sequence[bytes] = (), **fields: Any) -> bytes:
    """Encode a frame."""
    return b"\n".join([wire.encode({"kind": kind, **fields}), *lines])


def read_frame(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode the header of a frame. Returns it with the rest. Raises ValueError or TooBig."""
    head, _, rest = data.partition(b"\n")
    header = wire.decode_value(head, HEADER)
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ValueError("a frame must start with an object that has a kind")  # noqa: TRY004
    return header, rest
