"""Admission after the guard: refuses while stopping, over the connection limit and over the rate.

A client on this machine has no rate limit unless it is configured. A batch is admitted like one
request, and then charged for each of its messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable
from functools import wraps
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_view.errors import code_of as mcp_code_of
from mcp_view.revisions import LATEST_HANDSHAKE
from native_rpc.errors import code_of
from plexus.errors import Busy
from plexus.rpc import wire
from plexus.runtime.hub import STOPPING, Plexus
from plexus.token_bucket import TokenBucket
from substrate.security.exposure import is_local
from substrate.server.asgi import JSON, Headers
from substrate.server.limits import ServerLimits
from substrate.server.listener import Client, OpenConnections
from substrate.telemetry.refusals import OnRefused, address_of

__all__ = ("MAX_BUCKETS", "Admission", "Buckets")

RATE_EXCEEDED: Final = -32003
RATE: Final = "rate limit exceeded"
#: Routes whose clients expect the error codes of MCP.
MCP_ROUTES: Final = frozenset({"/mcp", "/sse", "/messages"})
#: Maximum number of clients with a bucket. The least recently used one is evicted, and starts again
#: with a full bucket.
MAX_BUCKETS: Final = 4096


class Admission:
    """ASGI middleware that admits requests, or answers them before their bodies are read."""

    def __init__(
        self,
        app: ASGIApp,
        hub: Plexus,
        *,
        rate_local: bool = False,
        on_refused: OnRefused | None = None,
        connections: OpenConnections | None = None,
    ) -> None:
        self._app = app
        self._hub = hub
        self._connections = connections
        self._limits = limits = ServerLimits.of(hub.limits)
        self._rate_local = rate_local
        self._on_refused = on_refused
        self._buckets = Buckets(limits.rate_burst, limits.rate_per_s)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on, or refuse it.

        Returns the coroutine that does, because one around it would stay as long as a stream.
        """
        if self._hub.draining:
            self._report(scope, "stopping", 503)
            body = wire.encode_error(None, _stopping_code(scope["path"]), STOPPING)
            closing = [(b"retry-after", b"5"), (b"connection", b"close")]
            return _respond(scope, send, 503, body, closing)
        busy = self._identify(scope)
        if busy is not None:
            self._report(scope, "connections", 503)
            body = wire.encode_error(None, code_of(busy.code), busy.message, busy.data)
            closing = [(b"retry-after", b"1"), (b"connection", b"close")]
            return _respond(scope, send, 503, body, closing)
        client = scope.get("client")
        if client is None or self._is_unlimited(client):
            return self._app(scope, receive, send)
        principal = scope.get("principal")
        now = time.monotonic()
        bucket = self._buckets.get("" if principal is None else principal.name, client[0], now)
        wait_s = bucket.take(now)
        if wait_s:
            self._report(scope, "rate", 429)
            retry = [(b"retry-after", b"%d" % math.ceil(wait_s))]
            return _respond(scope, send, 429, self._refusal(None, wait_s), retry)
        if scope["type"] == "websocket":
            return self._app(scope, self._limit_messages(scope, bucket, receive, send), send)
        return self._app(scope, self._count_batch(bucket, receive), send)

    def admits(self, scope: Scope) -> bool:
        """Return whether a request is admitted, whatever is in its body."""
        client = scope["client"]
        return (
            not self._hub.draining
            and self._identify(scope) is None
            and (client is None or self._is_unlimited(client))
        )

    def _identify(self, scope: Scope) -> Busy | None:
        """Assign the connection to its principal. Returns an error if its share is used up."""
        client, principal = scope.get("client"), scope.get("principal")
        if self._connections is None or client is None or principal is None:
            return None
        return self._connections.identify(client, principal.name)

    def _is_unlimited(self, client: Client) -> bool:
        """Return whether no rate limit applies to a client."""
        return not self._rate_local and is_local(client[0])

    def _report(self, scope: Scope, word: str, status: int | None) -> None:
        if self._on_refused is not None:
            self._on_refused(word, address_of(scope), status)

    def _refusal(self, request_id: wire.Id, wait_s: float) -> bytes:
        data = {"limit": self._limits.rate_per_s, "retry_after_s": round(wait_s, 3)}
        return wire.encode_error(request_id, RATE_EXCEEDED, RATE, data)

    def _count_batch(self, bucket: TokenBucket, receive: Receive) -> Receive:
        """Wrap `receive`: charge the bucket for each message of a batch."""
        parts: list[bytes] = []

        @wraps(receive)
        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                part: bytes = message.get("body", b"")
                if parts or part.lstrip()[:1] == b"[":
                    parts.append(part)
                    if not message.get("more_body", False):
                        bucket.charge(self._more_than_one(b"".join(parts)))
                        parts.clear()
            return message

        return received

    def _more_than_one(self, data: bytes) -> int:
        messages = wire.decode(data, self._limits)
        return len(messages) - 1 if isinstance(messages, list) else 0

    def _limit_messages(
        self, scope: Scope, bucket: TokenBucket, receive: Receive, send: Send
    ) -> Receive:
        """Wrap `receive`: answer messages over the rate here instead of passing them on."""

        @wraps(receive)
        async def received() -> Message:
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                text = message.get("text")
                data: bytes = message["bytes"] if text is None else text.encode()
                wait_s = bucket.take(time.monotonic())
                if not wait_s:
                    if data.lstrip()[:1] == b"[":
                        bucket.charge(self._more_than_one(data))
                    return message
                self._report(scope, "rate", None)
                decoded = wire.decode(data, self._limits)
                if _starts_no_work(decoded):
                    return message
                refusal = self._refused(decoded, wait_s)
                if refusal is not None:
                    await send({"type": "websocket.send", "text": refusal.decode()})

        return received

    def _refused(self, message: wire.Message | list[wire.Message], wait_s: float) -> bytes | None:
        """Return the response to messages over the rate; None for those that expect no response."""
        if isinstance(message, list):
            answers = [self._refused(entry, wait_s) for entry in message]
            present = [answer for answer in answers if answer is not None]
            return wire.encode_batch(present) if present else None
        if isinstance(message, wire.Notification | wire.Response):
            return None
        return self._refusal(message.id, wait_s)


class Buckets:
    """Token buckets by principal and address, in bounded memory."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        #: The least recently used bucket comes first.
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, principal: str, address: str, now: float) -> TokenBucket:
        """Return the bucket of this client."""
        key = (principal, address)
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = TokenBucket(self._burst, self._per_s, now)
        self._buckets[key] = bucket
        return bucket


def _stopping_code(path: str) -> int:
    """Return the error code for "the server is stopping" in the protocol of this route."""
    if path in MCP_ROUTES:
        return mcp_code_of("stopping", LATEST_HANDSHAKE)  # the same in every revision
    return code_of("stopping")


def _starts_no_work(message: wire.Message | list[wire.Message]) -> bool:
    """Return whether it is a response, or a notification such as a cancellation.

    Refusing these would not reduce the load.
    """
    if isinstance(message, wire.Notification):
        return message.method.startswith("notifications/")
    return isinstance(message, wire.Response)


async def _respond(scope: Scope, send: Send, status: int, body: bytes, extra: Headers) -> None:
    """Send a whole response, also to a WebSocket upgrade."""
    prefix = "websocket.http" if scope["type"] == "websocket" else "http"
    headers: list[Any] = [
        (b"content-type", JSON),
        (b"content-length", b"%d" % len(body)),
        *extra,
    ]
    await send({"type": f"{prefix}.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body})
