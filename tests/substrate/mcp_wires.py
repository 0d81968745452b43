"""Client transports of MCP, written by hand: stdio, WebSocket, HTTP+SSE and Streamable HTTP.

A wire sends and receives whole messages as text. It knows nothing of their meaning beyond what the
transport requires.
"""

from __future__ import annotations

import http.client
import json
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from child_processes import clean_environment
from mcp_network import BOTH, JSON, SSE, Event, read_events
from network import ANSWER_S, REPOSITORY
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

__all__ = ("PairWire", "SocketWire", "StdioWire", "StreamableWire", "Wire")

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
#: Which parameter `Mcp-Name` repeats.
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED_BY |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


class Wire:
    """Base of all wires: threads put each message of the server into one queue."""

    def __init__(self) -> None:
        self._arrived: queue.Queue[str | bytes | None] = queue.Queue()
        self._readers: list[threading.Thread] = []

    def send(self, text: str) -> None:
        """Send one message."""
        raise NotImplementedError

    def receive(self) -> Any:
        """Return the next message of the server, decoded."""
        try:
            text = self._arrived.get(timeout=ANSWER_S)
        except queue.Empty:
            raise AssertionError(f"no message within {ANSWER_S:g} s") from None
        assert text is not None, "the server closed the connection"
        return json.loads(text)

    def rest(self) -> list[Any]:
        """Return the messages that were received and not yet read."""
        arrived = [self._arrived.get() for _ in range(self._arrived.qsize())]
        return [json.loads(text) for text in arrived if text is not None]

    def cancel(self, request_id: Any) -> None:
        """Cancel a request with a notification."""
        params = {"requestId": request_id, "reason": "changed my mind"}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self.send(json.dumps(message))

    def close(self) -> None:
        """Close the connection. Raises AssertionError if a stream does not end with it."""
        for reader in self._readers:
            reader.join(ANSWER_S)
            assert not reader.is_alive(), "a stream did not end"

    def _start(self, read: Callable[..., None], *arguments: Any) -> None:
        reader = threading.Thread(target=read, args=arguments, daemon=True)
        self._readers.append(reader)
        reader.start()


class StdioWire(Wire):
    """One message per line, to and from a process."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._start(self._read)

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._arrived.put(line)
        self._arrived.put(None)

    def end_input(self) -> int:
        """Close the input of the process, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(ANSWER_S)

    def close(self) -> None:
        try:
            assert self.end_input() == 0
        finally:
            self.process.kill()
            self.process.wait(ANSWER_S)
        super().close()


class SocketWire(Wire):
    """One message per text frame."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._closing = ExitStack()
        opening = connect(f"ws://127.0.0.1:{port}/mcp", subprotocols=[Subprotocol("mcp")])
        self._socket = self._closing.enter_context(opening)
        assert self._socket.subprotocol == "mcp"
        self._start(self._read)

    def send(self, text: str) -> None:
        self._socket.send(text)

    def _read(self) -> None:
        with suppress(ConnectionClosed):
            for text in self._socket:
                assert isinstance(text, str), "not a text frame"
                self._arrived.put(text)
        self._arrived.put(None)

    def close(self) -> None:
        self._closing.close()
        super().close()


class Response:
    """A request on a separate connection, and its response."""

    def __init__(
        self, port: int, verb: str, path: str, headers: dict[str, str], body: str | None = None
    ) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
        connection.connect()
        self._socket: socket.socket = connection.sock
        data = None if body is None else body.encode()
        connection.request(verb, path, data, {"Connection": "close"} | headers)
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = self._response.headers

    @property
    def is_stream(self) -> bool:
        return (self.headers["Content-Type"] or "").startswith(SSE)

    def read(self) -> bytes:
        """Return the body of a response that is not a stream."""
        with self._response:
            return self._response.read()

    def events(self) -> Iterator[Event]:
        """Yield the events until the stream ends or is cut."""
        self._socket.settimeout(None)  # a stream may be silent; the reader cuts it off
        with self._response, suppress(OSError, http.client.HTTPException):
            yield from read_events(self._response)

    def cut(self) -> None:
        """Break the connection."""
        with suppress(OSError):  # already closed
            self._socket.shutdown(socket.SHUT_RDWR)


class PairWire(Wire):
    """HTTP+SSE: messages are posted to the URL in the first event, and arrive in the stream."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        #: The HTTP status of the last posted message.
        self.status = 0
        self._stream = Response(port, "GET", "/sse", {"Accept": SSE})
        assert self._stream.status == 200
        events = self._stream.events()
        first = next(events)
        assert first.name == "endpoint"
        self._endpoint = first.data
        self._start(self._read, events)

    def send(self, text: str) -> None:
        response = Response(self._port, "POST", self._endpoint, {"Content-Type": JSON}, text)
        self.status, body = response.status, response.read()
        if self.status != 202:
            self._arrived.put(body)

    def _read(self, events: Iterator[Event]) -> None:
        for event in events:
            assert event.name == "message"
            self._arrived.put(event.data)
        self._arrived.put(None)

    def close(self) -> None:
        self._stream.cut()
        super().close()


class StreamableWire(Wire):
    """Streamable HTTP: each message is a POST, answered with JSON or a stream.

    A handshake creates a session and a standing stream, and a stream that ends too early is
    resumed. Without a handshake the headers repeat fields of the message.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        #: Headers of every message once a session exists.
        self._session: dict[str, str] = {}
        self._primes = False
        #: Streams of requests without a handshake, which are cancelled by disconnecting.
        self._streams: dict[Any, Response] = {}
        #: Cancelled requests.
        self._left: set[Any] = set()

    def send(self, text: str) -> None:
        message = _decoded(text)
        named = _routing(message)
        headers = {"Accept": BOTH, "Content-Type": JSON} | (named or self._session)
        response = Response(self._port, "POST", "/mcp", headers, text)
        if response.is_stream:
            if named:
                self._streams[message.get("id")] = response
            self._start(self._read, response, _ids_of(message))
            return
        body = response.read()
        if "Mcp-Session-Id" in response.headers:
            self._begin(response.headers["Mcp-Session-Id"], json.loads(body))
        if body:
            self._arrived.put(body)
        elif message.get("method") == "notifications/initialized":
            standing = Response(self._port, "GET", "/mcp", {"Accept": SSE} | self._session)
            assert standing.status == 200
            self._start(self._read, standing, [])

    def _begin(self, session: str, answer: Any) -> None:
        """Start a session; only newer revisions have a version header."""
        revision = answer["result"]["protocolVersion"]
        self._session = {"Mcp-Session-Id": session}
        if revision >= "2025-06-18":
            self._session["MCP-Protocol-Version"] = revision
        self._primes = revision == "2025-11-25"

    def _read(self, response: Response, waiting: list[Any]) -> None:
        """Read a stream and its resumptions until these requests are answered."""
        last = None
        while True:
            for event in response.events():
                last = event.id or last
                if event.data:
                    self._arrived.put(event.data)
                    answered = _ids_of(json.loads(event.data), answers=True)
                    waiting = [number for number in waiting if number not in answered]
            if not self._primes or last is None or not set(waiting) - self._left:
                return
            headers = {"Accept": SSE, "Last-Event-ID": last} | self._session
            response = Response(self._port, "GET", "/mcp", headers)
            if response.status != 200:
                response.read()
                return  # the session has ended

    def cancel(self, request_id: Any) -> None:
        self._left.add(request_id)
        stream = self._streams.pop(request_id, None)
        if stream is None:
            super().cancel(request_id)
        else:
            stream.cut()

    def close(self) -> None:
        if self._session:
            ended = Response(self._port, "DELETE", "/mcp", self._session)
            assert (ended.status, ended.read()) == (204, b"")
        for stream in self._streams.values():
            stream.cut()
        super().close()


def _decoded(text: str) -> Any:
    """Return the message, or an empty one if the text is not JSON."""
    try:
        message = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return {"batch": message} if isinstance(message, list) else message


def _ids_of(message: Any, *, answers: bool = False) -> list[Any]:
    """Return the ids of the requests in a message, or of the responses."""
    messages = message if isinstance(message, list) else message.get("batch", [message])
    return [each["id"] for each in messages if "id" in each and ("method" in each) != answers]


def _routing(message: dict[str, Any]) -> dict[str, str]:
    """Return the headers that repeat fields of a stateless message; none for other messages."""
    params = message.get("params")
    if not isinstance(params, dict) or PROTOCOL_VERSION not in params.get("_meta", {}):
        return {}
    version = params["_meta"][PROTOCOL_VERSION]
    method = message["method"]
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": method}
    return headers | ({"Mcp-Name": params[NAMED_BY[method]]} if method in NAMED_BY else {})
