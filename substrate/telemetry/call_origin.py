"""Where a call comes from, for whoever logs and traces it: the transport, and the caller's trace.

It is a context variable, because nothing between the transport and the run has any use for it:
whoever watches runs looks here when one begins, which happens in the context of its request. A
run that another run began has that one as its origin, and nothing is to be found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # serving stdio needs none of it
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ("ORIGIN", "STDIO", "Origin", "WithOrigin")

#: Headers of a request that say which trace it belongs to.
TRACE_HEADERS: Final = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


class Origin(NamedTuple):
    """How a call came in."""

    #: `stdio`, `http` or `websocket`.
    transport: str
    #: The trace context in its headers, if any.
    trace: Mapping[str, str] | None = None


STDIO: Final = Origin("stdio")
ORIGIN: Final[ContextVar[Origin | None]] = ContextVar("origin", default=None)


class WithOrigin:
    """Around an app: whatever it does for a request is known to come from there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the origin and pass the request on. Every request has a context of its own."""
        if scope["type"] != "lifespan":
            found = {
                TRACE_HEADERS[name]: value.decode("latin-1")
                for name, value in scope["headers"]
                if name in TRACE_HEADERS
            }
            ORIGIN.set(Origin(scope["type"], found if "traceparent" in found else None))
        await self._app(scope, receive, send)
