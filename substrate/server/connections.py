"""HTTP connections with limits: uvicorn's protocol, with deadlines and bounds that it lacks.

uvicorn waits indefinitely for a header, for a body and for a peer that does not read; it accepts
any number of connections and headers of any size, and it does not answer a WebSocket upgrade that
the WebSocket library cannot parse. This module bounds all of that below the app: every request is
answered, or its connection is closed at a deadline, and `shutdown` works in every state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from plexus.rpc import wire
from substrate.server.flow import ConnectionFlow, LeanEvent
from substrate.server.http_response import Exchange
from substrate.server.limits import ServerLimits
from substrate.server.listener import OpenConnections
from substrate.server.peers import StallTimeout
from substrate.server.websocket_protocol import WebSocketProtocol
from substrate.telemetry.refusals import OnRefused

__all__ = ("HttpProtocol", "LimitedConfig", "TakeRequest")

#: Answers a request and returns True, or returns False. Its second argument starts an app for it.
TakeRequest = Callable[[Exchange, Callable[[Exchange, ASGIApp], None]], bool]

logger = logging.getLogger("substrate.server.connections")

#: Seconds that a refused connection stays open. If it were closed with unread input, the system
#: would discard the answer.
LINGER_S: Final = 1.0
END_OF_HEADER: Final = b"\r\n\r\n"
#: The refusal reason of each status, for logs and metrics.
REASONS: Final = {400: "malformed", 408: "slow", 431: "header", 503: "connections"}
#: The scope of a connection whose newest request was passed on. Only the app needs the real one,
#: and it would otherwise stay in memory as long as a stream.
PASSED_ON: Final[Any] = {"method": ""}
#: The pipeline of a connection without queued requests, shared because a deque takes 0.7 KiB.
NO_REQUESTS: Final[deque[Any]] = deque(maxlen=0)


class LimitedConfig(uvicorn.Config):
    """uvicorn's configuration, extended by the limits of connections."""

    def __init__(
        self,
        app: Any,
        limits: ServerLimits,
        on_refused: OnRefused | None = None,
        connections: OpenConnections | None = None,
        take: TakeRequest | None = None,
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
        #: Answers some requests without the app.
        self.take = take


class _Refusal(NamedTuple):
    """An error response that is sent instead of the app's."""

    status: int
    reason: str
    limit: float | None = None


class HttpProtocol(StallTimeout, HttpToolsProtocol):
    """The protocol of one HTTP connection."""

    # The attributes of uvicorn's protocol. Python stores up to 30 attributes of an object in a
    # compact form, and the classes have more: without slots a connection takes 1.1 KiB more.
    __slots__ = (
        "access_log",
        "access_logger",
        "app",
        "app_state",
        "asgi_version",
        "client",
        "config",
        "connections",
        "cycle",
        "expect_100_continue",
        "flow",
        "headers",
        "limit_concurrency",
        "logger",
        "loop",
        "parser",
        "pipeline",
        "root_path",
        "scheme",
        "scope",
        "server",
        "server_state",
        "tasks",
        "timeout_keep_alive",
        "timeout_keep_alive_task",
        "transport",
        "url",
        "ws_protocol_class",
    )

    _deadline_timer: asyncio.TimerHandle | None = None
    #: What must be complete when the timer fires.
    _awaited: Literal["header", "body"] = "header"
    #: Size of the incomplete header so far.
    _header_bytes = 0
    #: Whether further input is ignored.
    _ignores_input = False
    #: The refusal to send once the responses to earlier requests are complete.
    _pending_refusal: _Refusal | None = None
    #: The request that the app is handling. `cycle` is the newest one, which may be queued.
    _current: RequestResponseCycle | None = None
    #: The request that nothing handles yet, until all input at hand is parsed.
    _unstarted: RequestResponseCycle | None = None

    def __init__(self, config: LimitedConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._limits = config.limits
        self._open = config.connections
        self._take = config.take
        self.write_s = config.limits.write_s
        self.pipeline = NO_REQUESTS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a header, or refuse the client if too many connections are open."""
        super().connection_made(transport)
        self.flow = ConnectionFlow(transport)
        if self.client is None or self._open.open(self.client, self):
            self._set_deadline("header")
        else:
            self._refuse_at_capacity()

    def evict(self) -> None:
        """Close this unauthenticated connection in favour of another."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._ignores_input or is_answering:
            self.transport.abort()
        else:
            self._refuse_at_capacity()

    def _refuse_at_capacity(self) -> None:
        # Not counted any more: its slow close must not keep other clients out.
        self.connections.discard(self)
        limit = self._limits.connections
        reason = (
            f"All limits.connections = {limit} connections are in use. Close one, or retry in a "
            "moment."
        )
        self._refuse(_Refusal(503, reason, limit))

    def data_received(self, data: bytes) -> None:
        """Process input, with deadlines for incomplete headers and bodies."""
        if self._ignores_input:
            return
        limit = self._limits.header_bytes
        if (self._header_bytes or len(data) > limit) and self._is_header_too_long(data):
            reason = f"The header is larger than {limit} bytes."
            self._refuse_after_responses(_Refusal(431, reason, limit))
            return
        self._parse(data)
        if self._unstarted is not None:
            self._start_newest()
        cycle = self.cycle
        # Nearly every request arrives in one piece.
        if cycle is None or cycle.more_body or "method" not in self.scope:
            self._received_part(data)
        elif self._deadline_timer is not None:
            self._set_deadline(None)

    def _parse(self, data: bytes) -> None:
        """Parse input like `HttpToolsProtocol.data_received`, but keep data after an upgrade."""
        self._unset_keepalive_if_required()
        if cast("Any", self.parser) is None:
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                if self._ignores_input:
                    return
                if self._should_upgrade():
                    self._upgrade(rest)
                    return
                data = rest  # another protocol: ignore the header, the next request follows
            except httptools.HttpParserError:
                if not self._ignores_input:  # otherwise it is in what follows a refused header
                    self._refuse_invalid()
                return
            else:
                return

    def release_parser(self) -> None:
        """Drop the parser until the client sends more than its request.

        It takes a KiB of memory, and the client of a stream only reads.
        """
        if self._deadline_timer is None:  # it has not begun to parse anything else
            self.parser = cast("Any", None)

    def on_headers_complete(self) -> None:
        """Start the request, or refuse an upgrade that cannot succeed."""
        if not self.parser.should_upgrade():
            self._start_request()
            return
        has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )
        if not self._should_upgrade() and not has_body:
            self._start_request()
            return
        # The parser treats the body of an upgrade as data of the other protocol, so the body cannot
        # be read.
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        if has_body or not is_get:
            reason = "An upgrade must be an HTTP/1.1 GET request without a body."
            self._refuse_after_responses(_Refusal(400, reason))
        elif self._is_answering():
            reason = "An upgrade must wait for the responses to earlier requests."
            self._refuse_after_responses(_Refusal(400, reason))
        else:
            super().on_headers_complete()

    def _start_request(self) -> None:
        """Start the request whose header is complete, or queue it behind an earlier one."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope = cast("dict[str, Any]", self.scope)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        scope["http_version"] = version = self.parser.get_http_version()
        is_answering = self._is_answering()
        self.cycle = Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=cast("asyncio.Event", LeanEvent()),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.scope, self.headers = PASSED_ON, []
        if is_answering:
            self.flow.pause_reading()
            if not self.pipeline:
                self.pipeline = deque()
            self.pipeline.appendleft((self.cycle, self.app))
        else:
            self._current = self._unstarted = self.cycle

    def _start_newest(self) -> None:
        """Start the request that was just received, without the app if that is possible."""
        exchange, self._unstarted = cast("Exchange", self._unstarted), None
        if self._take is None or not self._take(exchange, self._start_asgi_task):
            self._start_asgi_task(exchange, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    def _is_answering(self) -> bool:
        """Whether a request with a complete header has no complete response yet."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _is_header_too_long(self, data: bytes) -> bool:
        """Whether the header received so far exceeds the limit."""
        if self._header_bytes == 0 and self._deadline_timer is not None and self._awaited == "body":
            return False
        end = data.find(END_OF_HEADER)
        header = self._header_bytes + (len(data) if end < 0 else end)
        return header > self._limits.header_bytes

    def _has_header(self) -> bool:
        """Whether the header of the newest request is complete."""
        scope = cast("dict[str, Any] | None", self.scope)
        return scope is not None and "method" in scope

    def _received_part(self, data: bytes) -> None:
        if self._ignores_input or self.transport.is_closing():
            return
        if not self._has_header():
            # How much of the data belongs to the rest of an earlier body is unknown.
            after_body = self._deadline_timer is not None and self._awaited == "body"
            self._header_bytes += 1 if after_body else len(data)
            self._set_deadline("header")
        else:
            self._set_deadline("body")

    def _set_deadline(self, what: Literal["header", "body"] | None) -> None:
        """Start the deadline for a header or body, unless it is running; None stops it."""
        if self._deadline_timer is not None:
            if what == self._awaited:
                return
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if what != "header":
            self._header_bytes = 0
        if what is not None:
            self._awaited = what
            limit_s = self._limits.header_s if what == "header" else self._limits.body_s
            self._deadline_timer = self.loop.call_later(limit_s, self._on_deadline, limit_s)

    def _on_deadline(self, limit_s: float) -> None:
        """Refuse a request whose header or body is incomplete at its deadline."""
        self._deadline_timer = None
        refusal = _Refusal(408, f"The {self._awaited} took longer than {limit_s:g} s.", limit_s)
        if cast("Any", self.scope) is None:
            self.transport.close()  # no request to answer
        elif self._awaited == "header":
            self._refuse_after_responses(refusal)
        elif self.pipeline:
            self._set_deadline("body")  # a queued request is not read yet
        elif self.cycle.response_started:
            self.transport.close()  # answered already
        else:
            self._refuse(refusal)

    def _refuse_invalid(self) -> None:
        """Refuse input that is not valid HTTP."""
        refusal = _Refusal(400, "The request is not valid HTTP.")
        if not self._is_answering() or not self.cycle.more_body:
            self._refuse_after_responses(refusal)
        elif self.pipeline or self.cycle.response_started:
            self.transport.close()  # in a body whose request cannot be refused any more
        else:
            self._refuse(refusal)

    def _refuse_after_responses(self, refusal: _Refusal) -> None:
        """Refuse a request once all earlier ones are answered. Further input is ignored."""
        if not self._is_answering():
            self._refuse(refusal)
            return
        self._ignores_input = True
        self._set_deadline(None)
        self._pending_refusal = refusal

    def on_response_complete(self) -> None:
        """Continue with the next request, or send the pending refusal."""
        super().on_response_complete()
        if self._pending_refusal is not None and not self._is_answering():
            self._unset_keepalive_if_required()
            if not self.transport.is_closing():
                self._refuse(self._pending_refusal)

    def _refuse(self, refusal: _Refusal) -> None:
        """Send an error response instead of the app's, and ignore further input."""
        status, reason, limit = refusal
        self._ignores_input = True
        self._set_deadline(None)
        if self._is_answering():  # the app must not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        on_refused = cast("LimitedConfig", self.config).on_refused
        if on_refused is not None:
            on_refused(REASONS[status], None if self.client is None else self.client[0], status)
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

    def _upgrade(self, early_data: bytes) -> None:
        """Hand the connection over to the WebSocket protocol, with the data after the header."""
        self._ignores_input = True
        self._set_deadline(None)
        self.handle_websocket_upgrade()
        # The parser and this protocol refer to each other. Without this, both would stay in memory
        # until the next garbage collection.
        self.parser = None  # type: ignore[assignment]
        cast("WebSocketProtocol", self.transport.get_protocol()).early_data = early_data

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection, and notify the request in progress."""
        self._set_deadline(None)
        if self.client is not None:
            self._open.close(self.client)
        super().connection_lost(exc)
        running = self._current
        if running is not None and not running.response_complete:
            # uvicorn notifies only the newest request, which may be queued behind this one.
            running.disconnected = True
            running.message_event.set()
        self._current = None
