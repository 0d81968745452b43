"""HTTP connections with bounds: uvicorn's protocol, and what it leaves open.

uvicorn waits forever for a header, a body, and a peer that does not read; it accepts any number of
connections and headers of any size, and it does not answer a WebSocket upgrade that the WebSocket
library cannot parse. All of that is bounded here, below the app: every request is answered, or its
connection is closed at a deadline, and `shutdown` works in every state.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Literal, NamedTuple, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from plexus.rpc import wire
from substrate.server.limits import ServerLimits
from substrate.server.listener import OpenConnections
from substrate.server.peers import StuckPeer
from substrate.server.websocket import WebSocketProtocol
from substrate.telemetry.refusals import OnRefused

__all__ = ("HttpProtocol", "LimitedConfig")

logger = logging.getLogger("substrate.server.connections")

#: How long a connection that is refused stays open, so that the answer is not lost: closing with
#: bytes unread would tell the system to throw it away.
LINGER_S: Final = 1.0
END_OF_HEADER: Final = b"\r\n\r\n"
#: What each status means here, for those who count.
WORDS: Final = {400: "malformed", 408: "slow", 431: "header", 503: "connections"}


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings, with the limits for its connections."""

    def __init__(
        self,
        app: Any,
        limits: ServerLimits,
        on_refused: OnRefused | None = None,
        connections: OpenConnections | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=limits.message_bytes,
            ws_ping_interval=limits.ping_s,
            ws_ping_timeout=limits.ping_s,
            **options,
        )
        self.limits = limits
        self.on_refused = on_refused
        if connections is None:
            connections = OpenConnections(limits.connections)
        self.connections = connections


class _Refusal(NamedTuple):
    """An answer in place of the app's."""

    status: int
    reason: str
    limit: float | None = None


class HttpProtocol(StuckPeer, HttpToolsProtocol):
    """One HTTP connection."""

    _due: asyncio.TimerHandle | None = None
    #: What has to be complete when the timer ends.
    _awaited: Literal["header", "body"] = "header"
    #: How much of a header has come that is not complete.
    _header_bytes = 0
    #: Whether nothing of what comes is looked at any more.
    _over = False
    #: What is to be answered once the responses to earlier requests are complete.
    _pending: _Refusal | None = None
    #: The request that the app works on; `cycle` is the newest one, which may be queued.
    _running: RequestResponseCycle | None = None

    def __init__(self, config: LimitedConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._limits = config.limits
        self._open = config.connections
        self.write_s = config.limits.write_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; if there are too many, it gets an error."""
        super().connection_made(transport)
        if self.client is None or self._open.open(self.client, self):
            self._await("header")
        else:
            self._refuse_for_want_of_room()

    def displace(self) -> None:
        """Close this connection, on which no client has proved who it is, for another."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._over or is_answering:
            self.transport.abort()
        else:
            self._refuse_for_want_of_room()

    def _refuse_for_want_of_room(self) -> None:
        # It does not count: no other is kept out because this one takes long to leave.
        self.connections.discard(self)
        limit = self._limits.connections
        reason = (
            f"All limits.connections = {limit} connections are in use. Close one, or try again "
            "in a moment."
        )
        self._refuse(_Refusal(503, reason, limit))

    def data_received(self, data: bytes) -> None:
        """Take what has come, and see whether it is a whole request."""
        if self._over:
            return
        if (self._header_bytes or len(data) > self._limits.header_bytes) and self._is_long(data):
            limit = self._limits.header_bytes
            self._refuse_in_turn(_Refusal(431, f"the header is over {limit} bytes", limit))
            return
        self._parse(data)
        cycle = self.cycle
        # Nearly every request comes in one piece.
        if cycle is None or cycle.more_body or "method" not in self.scope:
            self._received_part(data)
        elif self._due is not None:
            self._await(None)

    def _parse(self, data: bytes) -> None:
        """Parse what has come, as `HttpToolsProtocol.data_received` does, except that nothing that
        comes behind an upgrade is lost."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                behind = data[upgrade.args[0] :]
                if self._over:
                    return
                if self._should_upgrade():
                    self._upgrade(behind)
                    return
                data = behind  # another protocol: the header is ignored, the next request follows
            except httptools.HttpParserError:
                self._refuse_unreadable()
                return
            else:
                return

    def on_headers_complete(self) -> None:
        """Start the request, or refuse an upgrade that cannot succeed."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            return
        has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )
        if not self._should_upgrade() and not has_body:
            super().on_headers_complete()
            return
        # The parser takes the body of an upgrade for bytes of the other protocol, so it cannot
        # be read, whatever the other protocol is.
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        if has_body or not is_get:
            reason = "an upgrade must be a GET request of HTTP/1.1 without a body"
            self._refuse_in_turn(_Refusal(400, reason))
        elif self._is_answering():
            reason = "an upgrade must wait for the responses to earlier requests"
            self._refuse_in_turn(_Refusal(400, reason))
        else:
            super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _is_answering(self) -> bool:
        """Whether the response to a request with a complete header is still to come."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _is_long(self, data: bytes) -> bool:
        """Whether the header, as far as it has come, is longer than it may be."""
        if self._header_bytes == 0 and self._due is not None and self._awaited == "body":
            return False
        end = data.find(END_OF_HEADER)
        header = self._header_bytes + (len(data) if end < 0 else end)
        return header > self._limits.header_bytes

    def _has_header(self) -> bool:
        """Whether the header of the newest request is complete."""
        scope = cast("dict[str, Any] | None", self.scope)
        return scope is not None and "method" in scope

    def _received_part(self, data: bytes) -> None:
        if self._over or self.transport.is_closing():
            return
        if not self._has_header():
            # How much of it belongs to a body that was still to come is not known.
            after_body = self._due is not None and self._awaited == "body"
            self._header_bytes += 1 if after_body else len(data)
            self._await("header")
        else:
            self._await("body")

    def _await(self, what: Literal["header", "body"] | None) -> None:
        """Begin to wait for this, unless that has begun already."""
        if self._due is not None:
            if what == self._awaited:
                return
            self._due.cancel()
            self._due = None
        if what != "header":
            self._header_bytes = 0
        if what is not None:
            self._awaited = what
            limit_s = self._limits.header_s if what == "header" else self._limits.body_s
            self._due = self.loop.call_later(limit_s, self._late, limit_s)

    def _late(self, limit_s: float) -> None:
        """What was to be complete by now is not."""
        self._due = None
        refusal = _Refusal(408, f"the {self._awaited} took longer than {limit_s:g} s", limit_s)
        if cast("Any", self.scope) is None:
            self.transport.close()  # there is nothing to answer
        elif self._awaited == "header":
            self._refuse_in_turn(refusal)
        elif self.pipeline:
            self._await("body")  # nothing is read while the request waits for its turn
        elif self.cycle.response_started:
            self.transport.close()  # it is answered already
        else:
            self._refuse(refusal)

    def _refuse_unreadable(self) -> None:
        """Answer bytes that are not HTTP."""
        refusal = _Refusal(400, "the request is not valid HTTP")
        if not self._is_answering() or not self.cycle.more_body:
            self._refuse_in_turn(refusal)
        elif self.pipeline or self.cycle.response_started:
            self.transport.close()  # it is in a body whose request cannot be answered any more
        else:
            self._refuse(refusal)

    def _refuse_in_turn(self, refusal: _Refusal) -> None:
        """Answer a request that was not started once all before it are answered; read no more."""
        if not self._is_answering():
            self._refuse(refusal)
            return
        self._over = True
        self._await(None)
        self._pending = refusal

    def on_response_complete(self) -> None:
        """Go on with the next request, or with the answer to one that was refused."""
        super().on_response_complete()
        if self._pending is not None and not self._is_answering():
            self._unset_keepalive_if_required()
            if not self.transport.is_closing():
                self._refuse(self._pending)

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer in place of the app, and read no more."""
        status, reason, limit = refusal
        self._over = True
        self._await(None)
        if self._is_answering():  # the app must not answer too
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        on_refused = cast("LimitedConfig", self.config).on_refused
        if on_refused is not None:
            on_refused(WORDS[status], None if self.client is None else self.client[0], status)
        body = wire.encode({"error": reason} | ({} if limit is None else {"limit": limit}))
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"retry-after: 1\r\n" if status == 503 else b"",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _upgrade(self, early: bytes) -> None:
        """Hand the connection over to the WebSocket protocol, with what came behind the header."""
        self._over = True
        self._await(None)
        self.handle_websocket_upgrade()
        # As when a connection is lost: the two would keep each other until a collection.
        self.parser = None  # type: ignore[assignment]
        cast("WebSocketProtocol", self.transport.get_protocol()).early = early

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._await(None)
        if self.client is not None:
            self._open.close(self.client)
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn tells the newest request only, which may be queued behind this one.
            running.disconnected = True
            running.message_event.set()
        self._running = None
