"""Streamable HTTP: each message is a POST, whose response is a message or a stream of them.

In revisions with a handshake the server may name a session, which it may forget: then the client
negotiates again. A response stream that breaks is continued with `Last-Event-ID`, and a standing
stream carries what belongs to no request. Without a handshake, closing a stream cancels its
request, and nothing is continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from activations.gateway.transports.http_client import HttpClient, is_event_stream
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.transport import SessionLimits
from mcp_view.client.effects import Send
from mcp_view.client.errors import BadMessage, Lost, Refused, Unreachable, UpstreamError
from mcp_view.client.event_stream import EventStreamParser
from mcp_view.client.options import Server
from plexus.rpc import wire

if TYPE_CHECKING:
    import httpx2

    from activations.gateway.transports.oauth import OAuth

__all__ = ("HttpTransport",)

logger = logging.getLogger(__name__)

#: The format of a session id.
SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,1024}")
#: Timeout of the POST of a notification or a response.
NOTIFICATION_S: Final = 30.0
#: Delays before a stream is continued: the default, and the longest that a server may request.
RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0
#: How long the end of a stream is awaited after its response, so that its connection can be reused.
LINGER_S: Final = 0.5
ACCEPT: Final = {"Accept": "application/json, text/event-stream"}


class _Position:
    """How far a stream was read."""

    __slots__ = ("last_id", "retry_s")

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry_s = RETRY_S


class HttpTransport:
    """One endpoint of Streamable HTTP."""

    is_http = True
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
        self._session: UpstreamSession | None = None
        self._session_id: str | None = None
        self._revision = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(self._limits.requests)
        #: The POST that ends the handshake, which others must not overtake.
        self._initialized: asyncio.Task[None] | None = None
        self._standing: asyncio.Task[None] | None = None

    @property
    def is_signing_in(self) -> bool:
        """Whether a sign-in is in progress."""
        return self._auth is not None and self._auth.is_busy

    async def connect(self, session: UpstreamSession) -> None:
        """Create the pool. Raises UpstreamError."""
        self._session = session
        await self._http.open()

    def send(self, message: Send) -> None:
        """Send a message in a separate request."""
        session = self._session
        if session is None:
            return
        if message.method == "initialize":
            self._session_id = None
            self._revision = ""
        task = asyncio.get_running_loop().create_task(self._post(session, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if message.id is not None:
            self._requests[message.id] = task
        if message.method == "notifications/initialized":
            self._initialized = task

    def abort(self, request_id: int) -> None:
        """Close the stream of a request."""
        task = self._requests.get(request_id)
        if task is not None:
            task.cancel()

    def opened(self, server: Server) -> None:
        """Open the standing stream, in revisions that have one."""
        self._revision = server.revision.name
        if self._standing is not None:
            self._standing.cancel()
            self._standing = None
        if server.revision.sessions and self._session is not None:
            loop = asyncio.get_running_loop()
            self._standing = loop.create_task(self._listen(self._session))
            self._tasks.add(self._standing)
            self._standing.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all requests, and the session at the server."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session_id is not None:
            with contextlib.suppress(UpstreamError, TimeoutError):
                async with asyncio.timeout(self._limits.close_s):
                    headers = self._session_headers()
                    async with self._http.stream("DELETE", self._http.url, headers):
                        self._session_id = None
        await self._http.close()

    # --- one message ----------------------------------------------------------------------------

    async def _post(self, session: UpstreamSession, message: Send) -> None:
        request_id = message.id
        try:
            async with self._slots:
                await self._wait_for_handshake(message)
                if request_id is None:
                    async with asyncio.timeout(NOTIFICATION_S):
                        await self._exchange(session, message)
                else:
                    await self._exchange(session, message)
        except TimeoutError:
            session.request_failed(None, Lost(f"{message.method} was not accepted in time."))
        except UpstreamError as error:
            session.request_failed(request_id, error)
        except Exception as error:
            logger.exception("A request to %s failed", self._http.url)
            session.request_failed(request_id, Lost(f"The request failed: {error!r:.200}"))
        finally:
            if request_id is not None:
                self._requests.pop(request_id, None)

    async def _wait_for_handshake(self, message: Send) -> None:
        first = self._initialized
        if first is None or first.done() or message.method in ("initialize", "server/discover"):
            return
        if first is not asyncio.current_task():
            await asyncio.wait({first}, timeout=NOTIFICATION_S)

    def _session_headers(self) -> dict[str, str]:
        headers = {}
        if self._revision:
            headers["MCP-Protocol-Version"] = self._revision
        if self._session_id is not None:
            headers["Mcp-Session-Id"] = self._session_id
        return headers

    async def _exchange(self, session: UpstreamSession, message: Send) -> None:
        session_id = self._session_id
        headers = ACCEPT | {"Content-Type": "application/json"} | dict(message.headers)
        if session_id is not None:
            headers["Mcp-Session-Id"] = session_id
        position = _Position()
        async with self._http.stream("POST", self._http.url, headers, message.data) as response:
            if response.status_code == 404 and session_id is not None:
                if session_id == self._session_id:
                    self._session_id = None
                session.session_lost(message.id)
                return
            if not response.is_success:
                await self._refused(session, message, response)
                return
            if message.method == "initialize":
                self._adopt_session(response)
            if message.id is None:
                return
            if not is_event_stream(response):
                limit = session.client.options.limits.message_bytes
                session.received(await self._http.read(response, limit), message.id)
                session.flush()
            else:
                with contextlib.suppress(Lost):
                    await self._read(session, response, message.id, position)
        if session.client.expects(message.id):
            await self._resume(session, message.id, position)

    def _adopt_session(self, response: httpx2.Response) -> None:
        given = response.headers.get("mcp-session-id")
        if given is not None and SESSION_ID.fullmatch(given) is None:
            raise BadMessage("The server sent a session id that is not visible ASCII.")
        self._session_id = given

    async def _refused(
        self, session: UpstreamSession, message: Send, response: httpx2.Response
    ) -> None:
        """Handle a status that is an error, with or without a JSON-RPC error in the body."""
        error, body = await self._http.failure(response)
        answer = wire.decode(body, session.client.options.limits) if body else None
        if isinstance(answer, wire.Response) and answer.error is not None:
            if answer.id == message.id and message.id is not None:
                session.received(body, message.id)
                session.flush()
                return
            if answer.id is None and response.status_code not in (401, 403):
                error = Refused.of(answer.error)
        if message.id is None and response.status_code in (404, 405):
            return  # a server that takes no notifications
        raise error

    # --- streams --------------------------------------------------------------------------------

    async def _read(
        self,
        session: UpstreamSession,
        response: httpx2.Response,
        request_id: int | None,
        position: _Position,
    ) -> None:
        """Read a stream to its end, or a little past the response. Raises UpstreamError."""
        parser = EventStreamParser(session.client.options.limits.message_bytes)
        silence_s = self._limits.silence_s if request_id is None else None
        async with contextlib.aclosing(self._http.chunks(response)) as chunks:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(silence_s) as deadline:
                    async for chunk in chunks:
                        for event in parser.feed(chunk):
                            if event.id is not None:
                                position.last_id = event.id
                            if event.retry_ms is not None:
                                position.retry_s = min(event.retry_ms / 1000, MAX_RETRY_S)
                            if event.data and event.name in ("", "message"):
                                session.received(event.data, request_id)
                        session.flush()
                        now = asyncio.get_running_loop().time()
                        if request_id is None:
                            deadline.reschedule(now + self._limits.silence_s)
                        elif not session.client.expects(request_id):
                            deadline.reschedule(now + LINGER_S)

    async def _resume(self, session: UpstreamSession, request_id: int, position: _Position) -> None:
        """Continue a stream that ended before its response. Raises Lost."""
        attempts = 0
        while session.client.expects(request_id):
            revision = session.client.revision
            if position.last_id is None or revision is None or not revision.sessions:
                raise Lost("The stream ended before the response.")
            if attempts >= self._limits.resumptions:
                raise Lost(f"The stream could not be continued in {attempts} attempts.")
            await asyncio.sleep(position.retry_s)
            before = position.last_id
            found = True
            with contextlib.suppress(Lost, Unreachable):
                found = await self._continue(session, request_id, position)
            if not found:
                raise Lost("The stream ended before the response, and cannot be continued.")
            attempts = 0 if position.last_id != before else attempts + 1

    async def _continue(
        self, session: UpstreamSession, request_id: int | None, position: _Position
    ) -> bool:
        """Read the standing stream, or one after an event. False if the server has none."""
        headers = {"Accept": "text/event-stream", **self._session_headers()}
        if position.last_id is not None:
            headers["Last-Event-ID"] = position.last_id
        session_id = self._session_id
        async with self._http.stream("GET", self._http.url, headers) as response:
            if response.status_code == 404 and session_id is not None and request_id is None:
                if session_id == self._session_id:
                    self._session_id = None
                    session.session_lost(None)
                return False
            if not response.is_success or not is_event_stream(response):
                return False
            await self._read(session, response, request_id, position)
            return True

    async def _listen(self, session: UpstreamSession) -> None:
        """Keep the standing stream open, until the server has none."""
        if self._initialized is not None:
            await asyncio.wait({self._initialized}, timeout=NOTIFICATION_S)
        position = _Position()
        failures = 0
        while failures < self._limits.resumptions:
            try:
                if not await self._continue(session, None, position):
                    return
                failures = 0
            except UpstreamError:
                failures += 1
            await asyncio.sleep(min(position.retry_s * 2**failures, MAX_RETRY_S))
