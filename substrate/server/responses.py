"""Answering HTTP with finished bytes, straight to ASGI: the hot routes need nothing more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from plexus.rpc import wire

__all__ = (
    "EVENT_STREAM",
    "BodyTooBig",
    "Headers",
    "header",
    "read_body",
    "send_bytes",
    "send_empty",
    "send_json",
    "send_unread",
    "start_stream",
    "whole_number",
)

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
#: A stream must not be kept by a cache, nor be collected by a proxy until it ends.
STREAM_HEADERS: Headers = [
    (b"content-type", EVENT_STREAM),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


#: How much, and for how long, is thrown away of a body that nobody wants.
LINGER_BYTES: Final = 4 * 1024 * 1024
LINGER_S: Final = 1.0


#: Python refuses to read numbers of thousands of digits, and no number of ours has this many.
MOST_DIGITS: Final = 18


class BodyTooBig(Exception):
    """The body is over the limit; reading stopped there."""


def header(scope: Scope, name: bytes) -> bytes:
    """The value of a header, or nothing."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def whole_number(text: str | bytes) -> int | None:
    """Return the whole number that a client has sent in a path, a query or a header; None if it
    is no such number, or one longer than any of ours."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= MOST_DIGITS else None


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, never more than the limit of it; raises BodyTooBig past that."""
    message = await receive()
    if not message.get("more_body", False):  # nearly every body comes in one piece
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise BodyTooBig
        return body
    declared = header(scope, b"content-length")
    if declared.isdigit() and (whole_number(declared) is None or int(declared) > limit):
        raise BodyTooBig
    chunks: list[bytes] = []
    size = 0
    while message["type"] != "http.disconnect":
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooBig
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    return b""


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


async def start_stream(send: Send, extra: Headers | None = None) -> None:
    """Begin a response of server-sent events."""
    headers = STREAM_HEADERS + extra if extra else STREAM_HEADERS
    await send({"type": "http.response.start", "status": 200, "headers": headers})
