"""What is read from an HTTP request before its message is looked at."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from starlette.types import Scope

from mcp_view.tables.revisions import HANDSHAKES

__all__ = ("Accept", "accept_of", "headers_of", "names_stateless")

_HANDSHAKES: Final = frozenset(name.encode() for name in HANDSHAKES)


class Accept(NamedTuple):
    """What a client takes."""

    json: bool
    #: It asks for a stream.
    stream: bool
    #: It would take one, though it may not have thought of it: `*/*`.
    anything: bool


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


def names_stateless(headers: dict[bytes, bytes]) -> bool:
    """Whether the header names a revision, known or not, that has no handshake."""
    version = headers.get(b"mcp-protocol-version")
    return version is not None and version not in _HANDSHAKES
