"""Answering HTTP with finished bytes, straight to ASGI: the hot routes need nothing more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from starlette.types import Receive, Send

from plexus.rpc import wire

__all__ = (
    "JSON",
    "Headers",
    "send_bytes",
    "send_empty",
    "send_json",
    "send_too_big",
    "send_unread",
    "send_wrong_method",
)

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
#: How much, and for how long, is thrown away of a body that nobody wants.
LINGER_BYTES: Final = 4 * 1024 * 1024
LINGER_S: Final = 1.0


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, extra: Headers | None = None
) -> None:
    """A whole response."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send(
        {"type": "http.response.start", "status": status, "headers": headers + (extra or [])}
    )
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: Any, extra: Headers | None = None) -> None:
    """A whole response with a value as JSON."""
    await send_bytes(send, status, wire.encode(value), extra=extra)


async def send_unread(
    receive: Receive, send: Send, status: int, value: Any, extra: Headers | None = None
) -> None:
    """A whole response to a request that nobody has read, nor will. What the client still sends
    is thrown away for a moment: a connection that is closed under it would take the answer along.
    """
    body = wire.encode(value)
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await send(
        {"type": "http.response.start", "status": status, "headers": headers + (extra or [])}
    )
    await send({"type": "http.response.body", "body": body, "more_body": True})
    unread = LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while unread > 0:
                message = await receive()
                unread -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b""})


async def send_empty(send: Send, status: int) -> None:
    """A response with no body."""
    headers: Headers = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def send_too_big(send: Send, limit: int) -> None:
    """Refuse a body that is over the limit in bytes."""
    await send_json(send, 413, {"error": f"the body is over {limit} bytes", "limit": limit})


async def send_wrong_method(send: Send, *allowed: str) -> None:
    """Refuse an HTTP method, and name those that are allowed. HEAD goes without saying."""
    *first, last = [method for method in allowed if method != "HEAD"]
    words = f"{', '.join(first)} or {last}" if first else last
    extra = [(b"allow", ", ".join(allowed).encode())]
    await send_json(send, 405, {"error": f"use {words}"}, extra)
