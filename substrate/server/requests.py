"""Reading an HTTP request, straight from ASGI: headers, what the client accepts, and the body."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from starlette.types import Receive, Scope

__all__ = (
    "Accept",
    "BodyTooBig",
    "accept_of",
    "header",
    "headers_of",
    "read_body",
    "whole_number",
)

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
