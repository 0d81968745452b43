"""HTTP directly on ASGI: parse requests, send encoded responses."""

from __future__ import annotations

import asyncio
import contextlib
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from plexus.rpc import wire
from plexus.text import printable_name

__all__ = (
    "JSON",
    "Accept",
    "BodyTooBig",
    "Headers",
    "Response",
    "client_name",
    "comes_from_page",
    "empty_response",
    "header",
    "headers_of",
    "parse_accept",
    "parse_number",
    "read_body",
    "response_of",
    "send_and_discard_body",
    "send_bytes",
    "send_empty",
    "send_json",
    "send_response",
    "send_too_big",
    "send_wrong_method",
)

#: Maximum characters of the name and version of a client, and the header that has them.
CLIENT_CHARS: Final = 100
CLIENT_HEADER: Final = b"substrate-client"

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
#: How much of an unread body is discarded, and for how long.
LINGER_BYTES: Final = 4 * 1024 * 1024
LINGER_S: Final = 1.0
#: Python refuses to parse numbers with thousands of digits. No number of ours has this many.
MAX_DIGITS: Final = 18


class BodyTooBig(Exception):
    """The body exceeds the limit. The rest was not read."""


class Accept(NamedTuple):
    """The media types that a client accepts."""

    json: bool
    #: `text/event-stream`, explicitly.
    stream: bool
    #: `*/*`, which includes streams but is often sent without that intention.
    anything: bool


def header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header, or an empty value."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def client_name(scope: Scope) -> str | None:
    """Return the name and version of a client; None if it does not send any.

    A client names itself with `?client=`, because a browser cannot add headers to a WebSocket, or
    with the header `Substrate-Client`. Otherwise the User-Agent is used. Every browser calls itself
    by the names of others, so all of them are `browser`.
    """
    given = header(scope, CLIENT_HEADER).decode("utf-8", "replace")
    if b"client=" in scope["query_string"]:
        query = parse_qs(scope["query_string"].decode("ascii", "replace"))
        given = query.get("client", [given])[-1]
    if name := printable_name(given, CLIENT_CHARS):
        return name
    agent = header(scope, b"user-agent").decode("ascii", "replace").split(" ", 1)[0]
    name = printable_name(agent, CLIENT_CHARS)
    return "browser" if name.startswith("Mozilla/") else name or None


def comes_from_page(scope: Scope) -> bool:
    """Return whether a request comes from the web page: with its session.

    Without authentication there are no sessions. Then every page of an allowed origin counts.
    """
    credential = scope["credential"]
    return bool(credential.session or (not credential.digest and header(scope, b"origin")))


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by lower-case name.

    The last of several with the same name wins, except for `accept`, which are joined.
    """
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(raw)
    if len(headers) != len(raw) and b"accept" in headers:
        headers[b"accept"] = b",".join(value for name, value in raw if name == b"accept")
    return headers


@lru_cache(maxsize=256)
def parse_accept(value: bytes | None) -> Accept:
    """Parse an Accept header. A missing header accepts anything."""
    types = {b"*/*"} if value is None else {_media_type(part) for part in value.split(b",")}
    anything = b"*/*" in types
    return Accept(
        json=anything or bool(types & {b"application/json", b"application/*"}),
        stream=bool(types & {b"text/event-stream", b"text/*"}),
        anything=anything,
    )


def _media_type(part: bytes) -> bytes:
    media_type, _, parameters = part.partition(b";")
    refused = parameters.replace(b" ", b"").lower() in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return b"" if refused else media_type.strip().lower()


def parse_number(text: str | bytes) -> int | None:
    """Parse a non-negative integer from a path, query or header.

    Returns None if the text is not a number, or has more digits than any of ours.
    """
    return int(text) if text.isdigit() and text.isascii() and len(text) <= MAX_DIGITS else None


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the body of a request. Raises BodyTooBig if it exceeds the limit."""
    message = await receive()
    if not message.get("more_body", False):  # nearly every body arrives in one piece
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise BodyTooBig
        return body
    declared = header(scope, b"content-length")
    if declared.isdigit() and (parse_number(declared) is None or int(declared) > limit):
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


class Response(NamedTuple):
    """A complete response."""

    status: int
    headers: Headers
    body: bytes


def response_of(
    status: int, body: bytes, content_type: bytes = JSON, extra: Headers | None = None
) -> Response:
    """Return a response with this body."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if extra:
        headers += extra
    return Response(status, headers, body)


def empty_response(status: int) -> Response:
    """Return a response without a body."""
    return Response(status, [] if status == 204 else [(b"content-length", b"0")], b"")


async def send_response(send: Send, response: Response) -> None:
    """Send a complete response."""
    status, headers, body = response
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, extra: Headers | None = None
) -> None:
    """Send a complete response with this body."""
    await send_response(send, response_of(status, body, content_type, extra))


async def send_json(send: Send, status: int, value: Any, extra: Headers | None = None) -> None:
    """Send a complete response with a value as JSON."""
    await send_bytes(send, status, wire.encode(value), extra=extra)


async def send_and_discard_body(
    receive: Receive, send: Send, status: int, value: Any, extra: Headers | None = None
) -> None:
    """Send a complete response to a request whose body was not read.

    The rest of the body is discarded for a short time: closing the connection while the client
    sends would discard the response.
    """
    status, headers, body = response_of(status, wire.encode(value), extra=extra)
    await send({"type": "http.response.start", "status": status, "headers": headers})
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
    """Send a response without a body."""
    await send_response(send, empty_response(status))


async def send_too_big(send: Send, limit: int) -> None:
    """Send a 413 for a body over the limit in bytes."""
    await send_json(send, 413, {"error": f"The body is larger than {limit} bytes.", "limit": limit})


async def send_wrong_method(send: Send, *allowed: str) -> None:
    """Send a 405 that lists the allowed methods; the text omits HEAD."""
    *first, last = [method for method in allowed if method != "HEAD"]
    words = f"{', '.join(first)} or {last}" if first else last
    extra = [(b"allow", ", ".join(allowed).encode())]
    await send_json(send, 405, {"error": f"Use {words}."}, extra)
