"""Cheap clients for load tests, one class per way to reach the server.

LOAD_CALLS  total number of calls; 100000 is the long form, in which figures are also compared with
            the targets for a machine with two cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from child_processes import limit_settings
from mcp_network import BOTH, ENVELOPE, JSON, LATEST, SSE, request, stateless_headers
from network import Server, bearer, serving
from websockets.asyncio.client import ClientConnection, connect

__all__ = (
    "CALLS",
    "KINDS",
    "LONG",
    "PATIENCE_S",
    "TIMEOUT_S",
    "Caller",
    "Http",
    "calling",
    "loaded_server",
    "percentile",
    "state",
    "timed",
)

CALLS = int(os.environ.get("LOAD_CALLS", "3000"))
LONG = CALLS >= 100_000
#: Timeout of a response, sufficient on a machine under load.
PATIENCE_S = 60.0
TIMEOUT_S = 120 + CALLS / 100
ACTIVATION = Path(__file__).parent / "load_activation.py"
TOOL = "load.echo"


@contextmanager
def loaded_server(*options: str, auth: str = "off", **limits: float) -> Iterator[Server]:
    """Start a server with the activation of these tests and with these limits.

    It does not wait for runs in progress when it is stopped.
    """
    settings = limit_settings(**{"drain_s": 0.5} | limits)
    more = ("--activation", str(ACTIVATION), *options)
    with serving(*more, settings=settings, auth=auth) as server:
        yield server


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


async def timed(work: Awaitable[Any]) -> float:
    """Return the duration in seconds."""
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


class Http:
    """A persistent connection, used for one request at a time."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self._server = server
        self._token = token
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(
        self, path: str, message: Any, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """POST a message, and return status, headers and body of the response."""
        await self.send(path, message, headers)
        assert self._reader is not None
        async with asyncio.timeout(PATIENCE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.split("\r\n")
            response_headers = {
                name.lower(): value for name, _, value in (x.partition(": ") for x in lines)
            }
            if response_headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self._chunks()])
            else:
                body = await self._reader.readexactly(
                    int(response_headers.get("content-length", "0"))
                )
        return int(status.split()[1]), response_headers, body

    async def send(self, path: str, message: Any, headers: dict[str, str]) -> None:
        """POST a message without reading the response."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._server.port, limit=2**24
            )
        body = json.dumps(message).encode()
        always = {"Host": f"127.0.0.1:{self._server.port}", "Content-Type": JSON}
        if self._token is not None:
            always |= bearer(self._token)
        lines = always | {"Content-Length": str(len(body))} | headers
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await self._writer.drain()

    async def first_bytes(self) -> bytes:
        """Return the first bytes of a response that does not end."""
        assert self._reader is not None
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.read(2**16)

    async def _chunks(self) -> AsyncIterator[bytes]:
        assert self._reader is not None
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None


def _events(body: bytes) -> list[Any]:
    """Return the messages of a body, which is JSON or an event stream."""
    if not body.startswith((b"data:", b"id:", b"event:", b":", b"retry:")):
        return [json.loads(body)]
    data = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(text) for text in data if text]


class Caller(Protocol):
    """A client that calls `load.echo`."""

    async def open(self) -> None: ...
    async def call(self, numbers: list[int], params: list[dict[str, Any]]) -> list[str]:
        """Make calls with these ids, and return their results in the same order."""

    async def close(self) -> None: ...


class Posting:
    """`POST /rpc` with a JSON response."""

    accept = JSON

    def __init__(self, server: Server, token: str | None) -> None:
        self._http = Http(server, token)

    async def open(self) -> None: ...

    async def call(self, numbers: list[int], params: list[dict[str, Any]]) -> list[str]:
        return [await self._one(*each) for each in zip(numbers, params, strict=True)]

    async def _one(self, number: int, params: dict[str, Any]) -> str:
        message = request(TOOL, params, number)
        status, _, body = await self._http.post("/rpc", message, {"Accept": self.accept})
        assert status == 200, body
        return self._answer(number, _events(body))

    def _answer(self, number: int, messages: list[Any]) -> str:
        [answer] = messages
        assert answer["id"] == number, answer
        return str(answer["result"]["terminal"]["result"])

    async def close(self) -> None:
        await self._http.close()


class Streaming(Posting):
    """`POST /rpc` with an event stream."""

    accept = SSE

    def _answer(self, number: int, messages: list[Any]) -> str:
        reply, *items = messages
        assert reply["id"] == number, reply
        assert {item["params"]["subscription"] for item in items} == {reply["result"]}
        return str(items[-1]["params"]["result"]["result"])


class McpPosting(Posting):
    """`POST /mcp` in a session."""

    def __init__(self, server: Server, token: str | None) -> None:
        super().__init__(server, token)
        self._headers: dict[str, str] = {}

    async def open(self) -> None:
        params = {
            "protocolVersion": LATEST,
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        message = request("initialize", params, 0)
        status, response_headers, body = await self._http.post("/mcp", message, {"Accept": BOTH})
        assert status == 200, body
        self._headers = {
            "Mcp-Session-Id": response_headers["mcp-session-id"],
            "MCP-Protocol-Version": LATEST,
            "Accept": BOTH,
        }
        message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await self._http.post("/mcp", message, self._headers))[0] == 202

    async def _one(self, number: int, params: dict[str, Any]) -> str:
        call = {"name": TOOL, "arguments": {k: v for k, v in params.items() if k != "_run"}}
        return await self._tool(number, call, self._headers)

    async def _tool(self, number: int, call: Any, headers: dict[str, str]) -> str:
        message = request("tools/call", call, number)
        status, _, body = await self._http.post("/mcp", message, headers)
        assert status == 200, body
        answer = _events(body)[-1]
        assert answer["id"] == number, answer
        return str(answer["result"]["content"][0]["text"])


class McpStateless(McpPosting):
    """`POST /mcp` without a session."""

    async def open(self) -> None: ...

    async def _one(self, number: int, params: dict[str, Any]) -> str:
        response_headers = {k: v for k, v in params.items() if k != "_run"}
        call = {"name": TOOL, "arguments": response_headers, "_meta": ENVELOPE}
        return await self._tool(number, call, stateless_headers("tools/call", TOOL))


class Socket:
    """A WebSocket at `/rpc`, with all calls in progress at the same time."""

    path = "/rpc"

    def __init__(self, server: Server, token: str | None) -> None:
        self._url = f"ws://127.0.0.1:{server.port}{self.path}"
        self._headers = {} if token is None else bearer(token)
        self._socket: ClientConnection | None = None

    async def open(self) -> None:
        self._socket = await connect(
            self._url, additional_headers=self._headers, compression=None, max_queue=None
        )

    async def call(self, numbers: list[int], params: list[dict[str, Any]]) -> list[str]:
        for each in zip(numbers, params, strict=True):
            await self._send(*each)
        answers = await self._answers(set(numbers))
        return [answers[number] for number in numbers]

    async def _send(self, number: int, params: dict[str, Any]) -> None:
        await self._send_json(request(TOOL, params, number))

    async def _send_json(self, message: Any) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps(message))

    async def _receive(self) -> Any:
        assert self._socket is not None
        async with asyncio.timeout(PATIENCE_S):
            return json.loads(await self._socket.recv())

    async def _answers(self, open_: set[int]) -> dict[int, str]:
        subscriptions: dict[int, int] = {}
        answers: dict[int, str] = {}
        while len(answers) < len(open_):
            message = await self._receive()
            if "id" in message:
                assert message["id"] in open_, message
                assert message["result"] not in subscriptions, message
                subscriptions[message["result"]] = message["id"]
            else:
                number = subscriptions[message["params"]["subscription"]]
                assert number not in answers, message
                answers[number] = message["params"]["result"]["result"]
        return answers

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()


class McpSocket(Socket):
    """A WebSocket at `/mcp`, without an MCP handshake."""

    path = "/mcp"

    async def _send(self, number: int, params: dict[str, Any]) -> None:
        response_headers = {k: v for k, v in params.items() if k != "_run"}
        call = {"name": TOOL, "arguments": response_headers, "_meta": ENVELOPE}
        await self._send_json(request("tools/call", call, number))

    async def _answers(self, open_: set[int]) -> dict[int, str]:
        answers: dict[int, str] = {}
        while len(answers) < len(open_):
            message = await self._receive()
            assert message["id"] in open_ - answers.keys(), message
            answers[message["id"]] = message["result"]["content"][0]["text"]
        return answers


#: Every way of calling.
KINDS: tuple[Callable[[Server, str | None], Caller], ...] = (
    Posting,
    Streaming,
    McpPosting,
    McpStateless,
    Socket,
    McpSocket,
)


@asynccontextmanager
async def calling(callers: list[Caller]) -> AsyncIterator[None]:
    """Connect these clients for the duration of the block."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(caller.open() for caller in callers))
    try:
        yield
    finally:
        await asyncio.gather(*(caller.close() for caller in callers), return_exceptions=True)


def state(server: Server) -> dict[str, float]:
    """Return the statistics of the server process."""
    with server.call("load.state") as response:
        found: dict[str, float] = json.loads(response.read())["result"]["terminal"]["result"]
    return found
