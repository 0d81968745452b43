"""CORS: preflight requests and response headers for pages of other origins.

Applies only to the origins in the settings; without any, these headers are never sent. No cookies
are used: a page sends a token or a session secret in the Authorization header, and opens a
WebSocket or an EventSource with a ticket. A page of our own origin needs no permission.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Send

from substrate.server.asgi import Headers

__all__ = ("is_preflight", "send_preflight", "with_origin")

METHODS: Final = b"GET, POST, DELETE"
#: How long a browser may cache a preflight response, in seconds.
MAX_AGE_S: Final = b"600"
#: A list of header names, as a browser sends it. Which ones are needed depends on the tools.
HEADER_LIST: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1024}")
#: Response headers that a page may read in addition to the safelisted ones.
EXPOSED: Final = b"mcp-session-id, retry-after, www-authenticate"


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether this is a CORS preflight request."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


async def send_preflight(send: Send, origin: bytes, headers: Mapping[bytes, bytes]) -> None:
    """Answer a preflight request from this origin."""
    answer: Headers = [
        *_origin_headers(origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", MAX_AGE_S),
    ]
    requested = headers.get(b"access-control-request-headers")
    if requested is not None and HEADER_LIST.fullmatch(requested):
        answer.append((b"access-control-allow-headers", requested))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})


def with_origin(send: Send, origin: bytes) -> Send:
    """Wrap `send` so that pages of this origin may read every response."""
    extra = [*_origin_headers(origin), (b"access-control-expose-headers", EXPOSED)]

    async def send_allowed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_allowed


def _origin_headers(origin: bytes) -> Headers:
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
