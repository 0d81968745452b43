"""A bare HTTP server in this process, whose behaviour a test writes. Every wait has a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ("Answer", "HttpRequest", "HttpUpstream", "initialized", "json_answer", "listening")

CLOSE_S = 5.0


@dataclasses.dataclass(frozen=True)
class HttpRequest:
    """A request that arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def form(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(self.body.decode()).items()}

    @property
    def message(self) -> dict[str, Any]:
        return dict(json.loads(self.body)) if self.body else {"method": ""}


@dataclasses.dataclass(frozen=True)
class Answer:
    """A response. With `length` the body may be cut short, or continue without an end."""

    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    #: Waited for before the connection is closed.
    hold: asyncio.Event | None = None


Handler = Callable[[HttpRequest], Awaitable[Answer]]


class HttpUpstream:
    """The server, with what it has received."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[HttpRequest] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            pairs = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            request = HttpRequest(method, target, headers, body)
            self.requests.append(request)
            answer = await self.handler(request)
            length = len(answer.body) if answer.length is None else answer.length
            lines = [f"HTTP/1.1 {answer.status} X", "Connection: close"]
            if length >= 0:
                lines.append(f"Content-Length: {length}")
            lines += [f"{name}: {value}" for name, value in answer.headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
            await writer.drain()
            if answer.hold is not None:
                await answer.hold.wait()
        writer.close()


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[HttpUpstream]:
    """Serve on a free port of this machine."""
    upstream = HttpUpstream(handler)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    fields = {"Content-Type": "application/json"} | headers
    return Answer(status, fields, json.dumps(value).encode())


def initialized(request: HttpRequest, **headers: str) -> Answer | None:
    """Answer the handshake; None for anything else."""
    if request.method != "POST":
        return Answer(405)
    message = request.message
    if message["method"] == "server/discover":
        error = {"code": -32601, "message": "unknown"}
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "error": error}, 400)
    if message["method"] == "initialize":
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bare", "version": "1"},
        }
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return json_answer(reply, 200, **headers)
    if "id" not in message:
        return Answer(202)
    return None
