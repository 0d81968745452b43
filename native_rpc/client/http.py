"""The HTTP transport: each call is a separate connection with a stream of server-sent events.

Rules:
- A call is one `POST /rpc`. When its stream breaks, the same request is sent again with the number
  of the last received item, if the call has a key that makes this safe.
- A slow consumer blocks its own stream only.
- Closing a stream does not stop its run, because its caller may reconnect. Abandoning a call
  therefore sends `plexus.cancel`.
- Only the `data` of an event is used, because the client counts items itself; comments, ids, names
  and retry times are ignored.
- `h11` is imported at the first request, because other transports do not need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

import anyio
from anyio.abc import ByteStream

from native_rpc.client.limits import (
    READ_BYTES,
    READING,
    USER_AGENT,
    ClientLimits,
    Signal,
    UnreadCounter,
)
from native_rpc.client.session import Exchange, Session
from native_rpc.client.transport import retry_delays
from native_rpc.errors import ConnectionLost, ProtocolError, error_of_reply
from plexus.errors import Busy, Denied, PlexusError, TooBig
from plexus.rpc import wire

if TYPE_CHECKING:
    import h11

__all__ = ("EventStreamReader", "HttpTransport")

OK = 200
#: The exception for a status without a JSON-RPC error.
STATUSES: dict[int, type[PlexusError]] = {
    401: Denied,
    403: Denied,
    413: TooBig,
    429: Busy,
    502: ConnectionLost,
    503: ConnectionLost,
    504: ConnectionLost,
}


class HttpTransport:
    """Sends calls to one URL."""

    def __init__(
        self,
        url: SplitResult,
        headers: Mapping[str, str],
        limits: ClientLimits,
        *,
        resumable: bool,
    ) -> None:
        self._url = url
        self._own_headers = headers
        self.limits = limits
        self.resumable = resumable
        self._pending: deque[Exchange] = deque()
        self._wakeup = Signal()
        #: The calls in progress, with the cancel scope of each task.
        self._scopes: dict[Exchange, anyio.CancelScope] = {}
        self._closed = False

    # --- for calls ----------------------------------------------------------------------------

    def unread(self) -> UnreadCounter:
        return UnreadCounter(self.limits)

    def start(self, exchange: Exchange) -> None:
        if self._closed:
            exchange.fail(ConnectionLost("The client was closed."))
            return
        exchange.sent_at = anyio.current_time()
        self._pending.append(exchange)
        self._wakeup.notify()

    def abandon(self, exchange: Exchange) -> None:
        exchange.abandon()
        # Before the server has sent the number of the run, it cannot be cancelled.
        if exchange.run is not None and exchange in self._scopes:
            self._scopes[exchange].cancel()

    # --- for the client -----------------------------------------------------------------------

    async def open(self) -> None:
        stream = await self._connect()
        await stream.aclose()

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                while not self._pending:
                    await self._wakeup.wait()
                exchange = self._pending.popleft()
                if not exchange.done:
                    self._scopes[exchange] = anyio.CancelScope()
                    tasks.start_soon(self._handle, exchange)

    async def close(self) -> None:
        self._closed = True
        for exchange in [*self._pending, *self._scopes]:
            exchange.fail(ConnectionLost("The client was closed."))
            self.abandon(exchange)
        with anyio.move_on_after(self.limits.close_s):
            while self._scopes:
                await self._wakeup.wait()

    # --- one call -----------------------------------------------------------------------------

    async def _handle(self, exchange: Exchange) -> None:
        try:
            with self._scopes[exchange]:
                await self._complete(exchange)
            run = exchange.subscription or exchange.run
            if run is not None and exchange.terminal is None and not exchange.follows:
                await self._cancel_run(run)
        finally:
            del self._scopes[exchange]
            self._wakeup.notify()

    async def _complete(self, exchange: Exchange) -> None:
        """Read the call to its end, over as many connections as necessary."""
        delays = self._retry_delays()
        while True:
            before = exchange.run, exchange.seq
            try:
                await self._attempt(exchange)
            except ConnectionLost as error:
                lost = error
            except PlexusError as error:
                exchange.fail(error)
                return
            else:
                return
            exchange.sent_at = None
            if (exchange.run, exchange.seq) != before:
                delays = self._retry_delays()  # there was progress, so the retry time restarts
            delay = next(delays, None)
            if delay is None or not exchange.resumable:
                exchange.fail(lost)
            if exchange.done:
                return
            await anyio.sleep(delay or 0.0)

    def _retry_delays(self) -> Iterator[float]:
        return retry_delays(self.limits.reconnect_s) if self.resumable else iter(())

    async def _cancel_run(self, run: int) -> None:
        """Cancel an abandoned run. If that fails, the server cancels it after a timeout."""
        params = {"run": run, "reason": "closed by the caller"}
        with anyio.move_on_after(self.limits.close_s), suppress(PlexusError):
            await self._attempt(Exchange("plexus.cancel", params, self.unread()))

    async def _attempt(self, exchange: Exchange) -> None:
        """Send one request and read its answer. Raises ConnectionLost if it is incomplete."""
        session = Session()
        body = session.start(exchange, self.limits.request_bytes)
        if body is None:
            return
        exchange.sent_at = anyio.current_time()
        response = HttpResponse(await self._connect(), self._url.netloc.rpartition("@")[2])
        try:
            with _deadline(self.limits.reply_s, "did not answer"):
                await response.request(self._target(), self._headers(), body)
            if response.content_type == "text/event-stream" and response.status == OK:
                await self._read_stream(session, exchange, response)
            else:
                await self._read_once(session, response)
        finally:
            await response.close()

    async def _read_stream(
        self, session: Session, exchange: Exchange, response: HttpResponse
    ) -> None:
        reader = EventStreamReader(READING.message_bytes)
        while not session.idle:
            await exchange.unread.wait_for_capacity()
            with _deadline(self.limits.silence_s, "sent nothing"):
                chunk = await response.read()
            if not chunk:
                raise ConnectionLost("The stream ended before the run.")
            for data in reader.feed(chunk):
                _receive(session, data)

    async def _read_once(self, session: Session, response: HttpResponse) -> None:
        """Read an answer without a stream: the refusal of the call or of the HTTP request."""
        body = bytearray()
        with _deadline(self.limits.reply_s, "did not complete its answer"):
            while chunk := await response.read():
                body += chunk
                if len(body) > READING.message_bytes:
                    raise ProtocolError(f"The answer exceeds {READING.message_bytes} bytes.")
        message = wire.decode(body, READING)
        if isinstance(message, wire.Response) and message.error is not None:
            if message.id is None:  # the server could not parse the request
                raise error_of_reply(message.error)
            session.receive(message, len(body))
        if not session.idle:
            text = bytes(body[:200]).decode(errors="replace")
            kind = STATUSES.get(response.status, ProtocolError)
            raise kind(f"{self._url.geturl()} answered with HTTP {response.status}: {text}")

    # --- one request --------------------------------------------------------------------------

    async def _connect(self) -> ByteStream:
        url = self._url
        host = url.hostname or ""  # never empty: the target was validated
        try:
            with anyio.fail_after(self.limits.connect_s):
                if url.scheme == "https":
                    return await anyio.connect_tcp(host, url.port or 443, tls=True)
                return await anyio.connect_tcp(host, url.port or 80)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "timed out"
            raise ConnectionLost(f"Cannot connect to {url.geturl()}: {reason}") from error

    def _target(self) -> str:
        return self._url.path + (f"?{self._url.query}" if self._url.query else "")

    def _headers(self) -> list[tuple[str, str]]:
        return [
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            *self._own_headers.items(),
        ]


class HttpResponse:
    """One request and its response on a separate connection."""

    def __init__(self, stream: ByteStream, host: str) -> None:
        import h11

        self._h11 = h11
        self._stream = stream
        self._host = host
        self._connection = h11.Connection(h11.CLIENT)
        self.status = 0
        self.content_type = ""

    async def request(self, target: str, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send the request and read the head of the response. Raises ConnectionLost."""
        own = [
            ("Host", self._host),
            ("User-Agent", USER_AGENT),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        request = self._h11.Request(method="POST", target=target, headers=own + headers)
        send = self._connection.send
        data = (send(request) or b"") + (send(self._h11.Data(data=body)) or b"")
        data += send(self._h11.EndOfMessage()) or b""
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost("The server closed the connection.") from error
        head = await self._next()
        while isinstance(head, self._h11.InformationalResponse):
            head = await self._next()
        if not isinstance(head, self._h11.Response):
            raise ProtocolError(f"The server sent no HTTP response: {head!r}")
        self.status = head.status_code
        for name, value in head.headers:
            if name == b"content-type":
                self.content_type = value.decode("latin-1").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """Return the next part of the body, empty at its end. Raises ConnectionLost."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, self._h11.Data) else b""

    async def close(self) -> None:
        """Close the connection immediately."""
        await anyio.aclose_forcefully(self._stream)

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        connection = self._connection
        try:
            while (event := connection.next_event()) is self._h11.NEED_DATA:
                try:
                    connection.receive_data(await self._stream.receive(READ_BYTES))
                except anyio.EndOfStream:
                    connection.receive_data(b"")
        except (
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            self._h11.RemoteProtocolError,
        ) as error:
            raise ConnectionLost(f"The connection was lost: {error}") from error
        return event


class EventStreamReader:
    """Parses server-sent events, sans-IO.

    Lines end with LF, CR or CRLF, however the bytes are chunked. The buffer for an incomplete event
    is bounded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that a chunk completes. Raises ProtocolError."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.endswith(b"\r"):
            self._after_cr = True
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            if self._rest:
                self._rest += line
                self._line(bytes(self._rest), events)
                self._rest.clear()
            else:
                self._line(line, events)
        self._rest += rest
        if self._size + len(self._rest) > self._max_bytes:
            raise ProtocolError(f"An event is over the limit of {self._max_bytes} bytes.")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
                self._size = 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)


@contextmanager
def _deadline(limit_s: float, what: str) -> Iterator[None]:
    """Raise ConnectionLost if the block exceeds this time."""
    try:
        with anyio.fail_after(limit_s):
            yield
    except TimeoutError as error:
        raise ConnectionLost(f"The server {what} for {limit_s:g} s.") from error


def _receive(session: Session, data: bytes) -> None:
    decoded = wire.decode(data, READING)
    for message in decoded if isinstance(decoded, list) else (decoded,):
        # The returned message, an unsubscribe, cannot be sent on this connection. The call is done
        # then, and `_handle` cancels its run.
        session.receive(message, len(data))
