"""Limits of HTTP, WebSocket and authentication, in addition to those of the core."""

from __future__ import annotations

from typing import Self

from plexus.limits import Limits

__all__ = ("ServerLimits",)

KIB = 1024


class ServerLimits(Limits, frozen=True):
    """The limits in force in a server. Sizes are in bytes, times in seconds."""

    #: Header of one HTTP request. The largest tokens, those of OAuth, are a few KiB.
    #: Past it: HTTP 431, and the connection is closed.
    header_bytes: int = 64 * KIB
    #: Time for the header of an HTTP request to arrive, for the first byte on a new connection, for
    #: a WebSocket handshake, and for the reply to a close frame. A client that sends single bytes
    #: would otherwise occupy a file descriptor indefinitely.
    #: Past it: HTTP 408, and the connection is closed.
    header_s: float = 10.0
    #: Time for the body of an HTTP request to arrive.
    #: Past it: HTTP 408, and the connection is closed.
    body_s: float = 60.0
    #: Open connections of all principals together. Each costs a file descriptor and up to 20 KB.
    #: Past it: the oldest unauthenticated connection is closed; if there is none, the new one gets
    #: HTTP 503 and is closed.
    connections: int = 512
    #: Burst size of the rate limit: requests that an idle client on another machine may send at
    #: the same time.
    #: Past it: -32003 with `retry_after_s`; over HTTP also 429.
    rate_burst: int = 1000
    #: Sustained requests per second of a client on another machine.
    #: Past it: -32003 with `retry_after_s`; over HTTP also 429.
    rate_per_s: float = 100.0
    #: Browser sessions of one principal: a few browsers on a few devices.
    #: Past it: a new session ends the least recently used one of the same principal.
    sessions_per_principal: int = 32
    #: Browser sessions of all principals together. They are stored in one file that every server
    #: reads.
    #: Past it: a new session ends another one of the same principal; if there is none, HTTP 429.
    sessions: int = 1024
    #: Maximum lifetime of a browser session. It limits how long a copied session can be used.
    #: Past it: HTTP 401, and the page asks for a token.
    session_s: float = 30 * 24 * 3600.0
    #: Lifetime of a browser session without requests. An abandoned session expires soon; one that
    #: is used every week does not.
    #: Past it: HTTP 401, and the page asks for a token.
    session_idle_s: float = 7 * 24 * 3600.0
    #: Unused tickets of one credential. A page needs one for each connection that it opens.
    #: Past it: HTTP 429 with the limit.
    tickets_per_credential: int = 64
    #: Unused tickets of all credentials together. Each costs about 1 KB of memory.
    #: Past it: HTTP 429 with the limit.
    tickets: int = 4096
    #: Lifetime of a ticket. A page uses it immediately; it is short because URLs are kept in logs.
    #: Past it: HTTP 401; a WebSocket is closed with 1008.
    ticket_s: float = 30.0
    #: Time without output on a stream. Proxies close idle streams after 30 to 60 s.
    #: Past it: a keep-alive comment is sent.
    keep_alive_s: float = 15.0
    #: Interval of WebSocket pings, and time to answer one. The system drops a connection that does
    #: not acknowledge data for twice as long, so a dead peer is detected after three times this.
    #: Past it: the connection is closed.
    ping_s: float = 20.0
    #: Time for running calls to finish when the server is stopped. Service managers kill a process
    #: after 30 s or more.
    #: Past it: the remaining calls are cancelled.
    drain_s: float = 30.0

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Return the limits of a server whose hub has these.

        Transports use their defaults if the hub has only the limits of the core.
        """
        return limits if isinstance(limits, cls) else cls(**limits.as_dict())
