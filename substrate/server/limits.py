"""The bounds of HTTP, of WebSocket and of access over them, added to those of the core."""

from __future__ import annotations

import dataclasses
from typing import Self

from plexus.limits import Limits

__all__ = ("ServerLimits",)

KIB = 1024


@dataclasses.dataclass(frozen=True)
class ServerLimits(Limits):
    """The bounds in force in a server. Sizes are in bytes, times in seconds."""

    #: The header of one HTTP request. The largest tokens, those of OAuth, are a few KiB.
    #: Past it: HTTP 431, and the connection is closed.
    header_bytes: int = 64 * KIB
    #: How long the header of an HTTP request may take to arrive, how long a new connection may be
    #: silent, and how long a WebSocket may take to open, or to answer a close frame. A client that
    #: sends a byte now and then would hold a descriptor forever.
    #: Past it: HTTP 408, and the connection is closed.
    header_s: float = 10.0
    #: How long the body of an HTTP request may take to arrive.
    #: Past it: HTTP 408, and the connection is closed.
    body_s: float = 60.0
    #: Connections that are open at the same time, shared by all principals. Each costs a descriptor
    #: and some 30 KB.
    #: Past it: the oldest connection without a credential is closed; if there is none, HTTP 503,
    #: and the new connection is closed.
    connections: int = 512
    #: Requests that a client from elsewhere may send at once, after it was silent.
    #: Past it: -32003 with `retry_after_s`; over HTTP also 429.
    rate_burst: int = 1000
    #: Requests a second that a client from elsewhere may go on to send.
    #: Past it: -32003 with `retry_after_s`; over HTTP also 429.
    rate_per_s: float = 100.0
    #: Browser sessions of one principal: a few browsers on a few devices.
    #: Past it: a new session ends the one of the same principal that was unused the longest.
    sessions_per_principal: int = 32
    #: Browser sessions of all principals together; all are in one file that every server reads.
    #: Past it: a new session ends another of the same principal; without one, HTTP 429.
    sessions: int = 1024
    #: How long a browser session lives at most, so that one that was copied ends some day.
    #: Past it: HTTP 401, and the page asks for a token.
    session_s: float = 30 * 24 * 3600.0
    #: How long a browser session lives without a request. One that is left behind on a device
    #: ends soon; one that is used each week goes on.
    #: Past it: HTTP 401, and the page asks for a token.
    session_idle_s: float = 7 * 24 * 3600.0
    #: Tickets of one credential that were issued and not used yet. A page needs one for each
    #: connection that it opens.
    #: Past it: HTTP 429 with the limit.
    tickets_per_credential: int = 64
    #: Tickets of all credentials together. Each costs about one KB of memory.
    #: Past it: HTTP 429 with the limit.
    tickets: int = 4096
    #: How long a ticket can be used. A page uses it at once; addresses are kept in logs.
    #: Past it: HTTP 401; a WebSocket is closed with 1008.
    ticket_s: float = 30.0
    #: How long a silent stream stays silent; proxies cut at 30 to 60 s.
    #: Past it: a keep-alive is written.
    keep_alive_s: float = 15.0
    #: How often a WebSocket peer is pinged, and how long it may take to answer. The system gives up
    #: on what was sent after twice that, so a dead peer is gone after three times that at most.
    #: Past it: the connection is closed.
    ping_s: float = 20.0
    #: How long calls may go on when the server is told to stop; service managers kill after 30 s
    #: and more.
    #: Past it: what is left is cancelled.
    drain_s: float = 30.0

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Return the bounds of a server whose hub has these; transports have their defaults if
        the hub was given the bounds of the core alone."""
        return limits if isinstance(limits, cls) else cls(**vars(limits))
