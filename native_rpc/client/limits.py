"""Every bound of the client, in one frozen table."""

from __future__ import annotations

import dataclasses
from typing import Final

from plexus.limits import KIB, MIB, Limits

__all__ = ("READING", "READ_BYTES", "ClientLimits")

#: How much is asked of a pipe or a socket in one go.
READ_BYTES: Final = 64 * KIB

#: What may be read of a server. A terminal may have 10 MiB and an envelope around it; what it
#: is made of was bounded by the server's encoder, which stops at 253 levels.
READING: Final = Limits(
    message_bytes=16 * MIB,
    message_containers=8_000_000,
    message_members=8_000_000,
    message_values=16_000_000,
    message_depth=256,
    batch_requests=10_000,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLimits:
    """The bounds in force. Sizes are in bytes, times in seconds."""

    #: How long one attempt to connect may take.
    connect_s: float = 10.0
    #: How long the server may take to accept or refuse a call.
    reply_s: float = 30.0
    #: How long a lost connection is sought again; 0 for not at all. A server cancels a run whose
    #: caller has not come back after 10 s, so more than this helps only calls not yet begun.
    reconnect_s: float = 30.0
    #: How long a stream may be silent. A server says something every 15 s, if only a comment.
    silence_s: float = 60.0
    #: How long saying goodbye may take, and how long a process may take to end by itself.
    close_s: float = 5.0
    #: One request; a server refuses more, without saying to which request the refusal belongs.
    request_bytes: int = 1 * MIB
    #: What was read and not yet taken by the program, over all calls of one connection (over
    #: HTTP each call has its own). Past either bound nothing is read until half of it is gone.
    unread_items: int = 8192
    unread_bytes: int = 16 * MIB
