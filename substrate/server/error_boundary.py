"""The outermost layer of the HTTP app: an exception in a route is answered and logged.

The peer gets a JSON 500 with the reference under which the log has the traceback, and nothing else
of the exception. A WebSocket is closed with 1011. A response that has begun cannot become another
one: returning before its end makes the HTTP server close the connection.
"""

from __future__ import annotations

import contextlib
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from plexus.defects import report
from plexus.errors import PlexusError
from substrate.server.responses import send_unread

__all__ = ("ErrorBoundary",)

#: The WebSocket close code for an unexpected condition in the server.
INTERNAL_ERROR: Final = 1011


class ErrorBoundary:
    """Answers what raises inside an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer it if that raises."""
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except ClientDisconnected:
            raise  # raised by `send` for a peer that is gone; uvicorn ignores it
        except Exception as error:  # noqa: BLE001 - every request is answered, whatever raised
            # The path is not part of the text: it may hold what only the client should see.
            failed = report(f"a request ({scope['type']})", error)
            # The peer may be gone, or its connection broken: then there is nothing to answer.
            with contextlib.suppress(Exception):
                await _answer(scope, receive, send, failed, started=started)


async def _answer(
    scope: Scope, receive: Receive, send: Send, failed: PlexusError, *, started: bool
) -> None:
    if scope["type"] == "websocket":
        if not started:
            # Accepted first: a close code reaches the client in no other way.
            await send({"type": "websocket.accept"})
        await send(
            {"type": "websocket.close", "code": INTERNAL_ERROR, "reason": failed.message[:120]}
        )
    elif not started:
        await send_unread(receive, send, 500, {"error": failed.message, "data": failed.data})
