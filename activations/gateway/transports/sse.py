"""HTTP+SSE, the transport of the oldest revision: one stream from the server, POSTs to it.

The first event names the address of the POSTs, which must have the origin of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from activations.gateway.transports.http_client import HttpClient, is_event_stream
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.transport import SessionLimits
from mcp_view.client.effects import Send
from mcp_view.client.errors import BadMessage, Lost, UpstreamError
from mcp_view.client.event_stream import EventStreamParser
from mcp_view.client.options import Server

if TYPE_CHECKING:
    from activations.gateway.transports.oauth import OAuth

__all__ = ("SseTransport",)

#: Timeout of one POST, which is answered before its request is.
POST_S: Final = 30.0


class SseTransport:
    """One server with the transport of 2024."""

    is_http = False
    restarts = False
    stderr = ""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: OAuth | None = None,
        limits: SessionLimits | None = None,
    ) -> None:
        self._auth = auth
        self._limits = SessionLimits() if limits is None else limits
        self._http = HttpClient(url, headers, auth, self._limits)
        self._endpoint = ""
        self._outbox: deque[Send] = deque()
        self._wakeup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._session: UpstreamSession | None = None

    @property
    def is_signing_in(self) -> bool:
        """Whether a token is being obtained."""
        return self._auth is not None and self._auth.is_busy

    async def connect(self, session: UpstreamSession) -> None:
        """Open the stream and wait for the address. Raises UpstreamError."""
        self._session = session
        await self._http.open()
        loop = asyncio.get_running_loop()
        named: asyncio.Future[None] = loop.create_future()
        self._tasks = [
            loop.create_task(self._read(session, named)),
            loop.create_task(self._write(session)),
        ]
        await named

    def send(self, message: Send) -> None:
        """Send a message after those before it."""
        self._outbox.append(message)
        self._wakeup.set()
        if self._session is not None and len(self._outbox) > self._limits.requests:
            waiting = self._limits.requests
            self._session.lost(Lost(f"The server does not accept requests: {waiting} wait."))

    def abort(self, request_id: int) -> None:
        """Do nothing: all requests share the stream."""

    def opened(self, server: Server) -> None:
        """Do nothing: the stream is open."""

    async def close(self) -> None:
        """Close the stream, which ends the session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._http.close()

    async def _read(self, session: UpstreamSession, named: asyncio.Future[None]) -> None:
        try:
            headers = {"Accept": "text/event-stream"}
            async with self._http.stream("GET", self._http.url, headers) as response:
                if not response.is_success:
                    error, _ = await self._http.failure(response)
                    raise error
                if not is_event_stream(response):
                    raise BadMessage(f"{self._http.url} is no stream of server-sent events.")
                parser = EventStreamParser(session.client.options.limits.message_bytes)
                async with contextlib.aclosing(self._http.chunks(response)) as chunks:
                    async for chunk in chunks:
                        for event in parser.feed(chunk):
                            if event.name == "endpoint":
                                self._endpoint = self._address(event.data)
                                if not named.done():
                                    named.set_result(None)
                            elif event.data and event.name in ("", "message"):
                                session.received(event.data)
                        session.flush()
            raise Lost("The server closed the stream.")
        except UpstreamError as error:
            if not named.done():
                named.set_exception(error)
            else:
                session.lost(error)

    def _address(self, data: bytes) -> str:
        """Return the address of the POSTs. Raises BadMessage if it has another origin."""
        address = urljoin(self._http.url, data.decode(errors="replace").strip())
        ours, theirs = urlsplit(self._http.url), urlsplit(address)
        if (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc):
            raise BadMessage(f"The server names an address of another origin: {address[:200]}")
        return address

    async def _write(self, session: UpstreamSession) -> None:
        while True:
            while self._outbox:
                message = self._outbox.popleft()
                try:
                    async with asyncio.timeout(POST_S):
                        await self._post(message)
                except TimeoutError:
                    error = Lost(f"The server did not accept {message.method} in time.")
                    session.request_failed(message.id, error)
                except UpstreamError as error:
                    session.request_failed(message.id, error)
            self._wakeup.clear()
            await self._wakeup.wait()

    async def _post(self, message: Send) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._http.stream("POST", self._endpoint, headers, message.data) as response:
            if not response.is_success:
                error, _ = await self._http.failure(response)
                raise error
