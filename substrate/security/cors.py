"""What browsers ask before a page of another origin may call, and what they are told.

Only for the origins that the settings list; without any, none of this is ever sent. There are no
cookies: such a page sends a token, or a session, in the Authorization header, and opens a WebSocket
or an EventSource with a ticket. A page of our own origin needs no permission.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Send

from substrate.server.asgi import Headers

__all__ = ("is_preflight", "send_preflight", "with_origin")

METHODS: Final = b"GET, POST, DELETE"
#: How long a browser may remember what it was told, in seconds.
REMEMBER_S: Final = b"600"
#: The names of headers, as a browser lists them. Which ones there are depends on the tools.
LIST: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1024}")
#: What a page may read besides the usual.
EXPOSED: Final = b"mcp-session-id, retry-after, www-authenticate"


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks what it may send."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


async def send_preflight(send: Send, origin: bytes, headers: Mapping[bytes, bytes]) -> None:
    """Tell a browser what pages of this origin may send."""
    answer: Headers = [
        *_allowed(origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", REMEMBER_S),
    ]
    wanted = headers.get(b"access-control-request-headers")
    if wanted is not None and LIST.fullmatch(wanted):
        answer.append((b"access-control-allow-headers", wanted))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})


def with_origin(send: Send, origin: bytes) -> Send:
    """Have every answer say that pages of this origin may read it."""
    extra = [*_allowed(origin), (b"access-control-expose-headers", EXPOSED)]

    async def send_allowed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_allowed


def _allowed(origin: bytes) -> Headers:
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
