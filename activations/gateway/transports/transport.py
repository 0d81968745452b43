"""What a session requires of a transport, and the limits of both."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from mcp_view.client.effects import Send
from mcp_view.client.errors import TooLarge
from mcp_view.client.options import Server
from plexus.limits import MIB

if TYPE_CHECKING:
    from activations.gateway.transports.session import UpstreamSession

__all__ = ("SessionLimits", "Transport", "too_large")


@dataclasses.dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a session. Sizes are in bytes, times in seconds."""

    #: Timeout from the start of a program, or of a connection, to the end of the handshake. What a
    #: person needs to sign in does not count.
    init_s: float = 10.0
    #: Timeout of the probe, after which the handshake begins.
    probe_s: float = 3.0
    #: Timeout to connect to a host.
    connect_s: float = 10.0
    #: Timeout of a call that names none.
    call_s: float = 3600.0
    #: Timeout for a program to exit after its input was closed, and for the last HTTP request.
    close_s: float = 1.0
    #: Messages that a program does not read. Past it, the connection is ended.
    outbox_bytes: int = 32 * MIB
    #: Concurrent HTTP requests. Others wait.
    requests: int = 256
    #: Attempts to continue a broken HTTP stream without a new message.
    resumptions: int = 5
    #: Maximum silence of a standing HTTP stream, which is then opened again.
    silence_s: float = 300.0


class Transport(Protocol):
    """One way to reach a server."""

    #: Whether each request has its own stream, with headers.
    is_http: bool

    @property
    def stderr(self) -> str:
        """The last of what a program wrote to its standard error."""

    @property
    def is_signing_in(self) -> bool:
        """Whether a sign-in is in progress, which stops the clock."""

    @property
    def restarts(self) -> bool:
        """Whether `connect` after `close` makes a fresh connection that may succeed."""

    async def connect(self, session: UpstreamSession) -> None:
        """Connect. Raises UpstreamError."""

    def send(self, message: Send) -> None:
        """Send a message, now or soon, in order."""

    def abort(self, request_id: int) -> None:
        """Close the stream of a request, if it has one."""

    def opened(self, server: Server) -> None:
        """The handshake is complete."""

    async def close(self) -> None:
        """End everything. Idempotent."""


def too_large(size: int, limit: int) -> TooLarge:
    """Return the error for a message above the limit."""
    return TooLarge(
        f"The server sent a message of {size} bytes. At most {limit} are accepted.",
        data={"limit": limit, "size": size},
    )
