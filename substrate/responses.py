"""Answering HTTP with finished bytes, straight to ASGI: the hot routes need nothing more."""

from __future__ import annotations

from typing import Any

from starlette.types import Receive, Scope, Send

from plexus import wire

__all__ = (
    "EVENT_STREAM",
    "BodyTooBig",
    "Headers",
    "header",
    "read_body",
    "send_bytes",
    "send_empty",
    "send_json",
    "start_stream",
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


class BodyTooBig(Exception):
    """The body is over the limit; reading stopped there."""


def header(scope: Scope, name: bytes) -> bytes:
    """The value of a header, or nothing."""
    return next((value for key, value in scope["headers"] if key == name), b"")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, never more than the limit of it; raises BodyTooBig past that."""
    message = await receive()
    if not message.get("more_body", False):  # nearly every body comes in one piece
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise BodyTooBig
        return body
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared) > limit:
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


async def send_empty(send: Send, status: int) -> None:
    """A response with no body."""
    headers: Headers = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def start_stream(send: Send, extra: Headers | None = None) -> None:
    """Begin a response of server-sent events."""
    headers = STREAM_HEADERS + extra if extra else STREAM_HEADERS
    await send({"type": "http.response.start", "status": 200, "headers": headers})
