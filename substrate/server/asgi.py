"""HTTP straight on ASGI: reading requests, and answering with finished bytes."""

from __future__ import annotations

import asyncio
import contextlib
from functools import lru_cache
from typing import Any, Final, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from plexus.rpc import wire

__all__ = (
    "JSON",
    "Accept",
    "BodyTooBig",
    "Headers",
    "accept_of",
    "header",
    "headers_of",
    "read_body",
    "send_bytes",
    "send_empty",
    "send_json",
    "send_too_big",
    "send_unread",
    "send_wrong_method",
    "whole_number",
)

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
#: How much, and for how long, is thrown away of a body that nobody wants.
LINGER_BYTES: Final = 4 * 1024 * 1024
LINGER_S: Final = 1.0
#: Python refuses to read numbers of thousands of digits, and no number of ours has this many.
MOST_DIGITS: Final = 18


class BodyTooBig(Exception):
    """The body is over the limit; reading stopped there."""


class Accept(NamedTuple):
    """What a client takes."""

    json: bool
    #: It asks for a stream.
    stream: bool
    #: It would take one, though it may not have thought of it: `*/*`.
    anything: bool


def header(scope: Scope, name: bytes) -> bytes:
    """The value of a header, or nothing."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers by their names in lower case. Of several the last counts, except those that
    are one list."""
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(raw)
    if len(headers) != len(raw) and b"accept" in headers:
        headers[b"accept"] = b",".join(value for name, value in raw if name == b"accept")
    return headers


@lru_cache(maxsize=256)
def accept_of(value: bytes | None) -> Accept:
    """What the header says; without one anything is fine."""
    kinds = {b"*/*"} if value is None else {_kind(part) for part in value.split(b",")}
    anything = b"*/*" in kinds
    return Accept(
        json=anything or bool(kinds & {b"application/json", b"application/*"}),
        stream=bool(kinds & {b"text/event-stream", b"text/*"}),
        anything=anything,
    )


def _kind(part: bytes) -> bytes:
    kind, _, parameters = part.partition(b";")
    refused = parameters.replace(b" ", b"").lower() in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return b"" if refused else kind.strip().lower()


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


# --- responses --------------------------------------------------------------------------------


def _start(status: int, body: bytes, content_type: bytes, extra: Headers | None) -> Message:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if extra:
        headers += extra
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, extra: Headers | None = None
) -> None:
    """A whole response."""
    await send(_start(status, body, content_type, extra))
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
    await send(_start(status, body, JSON, extra))
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
