"""An answered request leaves no objects that only the garbage collector could free.

Such objects accumulate until the next collection: the process grows by tens of megabytes that it
never releases, and every collection blocks the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mcp_network import BOTH, JSON, SSE, request, stateless, stateless_headers
from starlette.types import Message, Scope

from mcp_view.server import McpOptions
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Activation, Content, Plexus, method
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.builtin import PlexusActivation
from substrate.driver import Connection
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access
from substrate.server.app import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PORT = 4444
REQUESTS = 50
#: Objects that asyncio or a test may leave once, but not once per request.
ONCE = 20


class Small(Activation):
    """Small methods."""

    namespace = "small"
    version = "1.0.0"

    @method
    async def echo(self, text: str) -> str:
        """Return the text after one loop iteration."""
        await asyncio.sleep(0)
        return text

    @method
    async def wait(self) -> Content:
        """Wait until cancelled."""
        await asyncio.Event().wait()
        return Content(text="never")


@contextmanager
def garbage() -> Iterator[list[Any]]:
    """Yield a list that receives the objects that only the garbage collector could free."""
    found: list[Any] = []
    for _ in range(3):  # finalizers of objects of earlier tests create garbage
        gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def named(found: list[Any]) -> Counter[str]:
    return Counter(type(each).__qualname__ for each in found)


def open_hub() -> Plexus:
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    hub.register(Small())
    return hub


async def posted(app: Any, path: str, message: Any, headers: dict[str, str], hang_up: bool) -> None:
    """Send one request, and read the response or disconnect immediately."""
    body = [json.dumps(message).encode()]
    over = asyncio.Event()

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        if not hang_up:
            await over.wait()
        return {"type": "http.disconnect"}

    async def send(said: Message) -> None:
        if said["type"] == "http.response.body" and not said.get("more_body"):
            over.set()

    given = {"Host": f"127.0.0.1:{PORT}", "Content-Type": JSON} | headers
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    await app(scope, receive, send)


ECHO = request("small.echo", {"text": "x"})
WAIT = request("small.wait")
TOOL = stateless("tools/call", {"name": "small.echo", "arguments": {"text": "x"}})
TOOL_WAIT = stateless("tools/call", {"name": "small.wait", "arguments": {}})
#: Kinds of requests: the path, the message, the headers, and whether the client disconnects.
WAYS: dict[str, tuple[str, Any, dict[str, str], bool]] = {
    "json": ("/rpc", ECHO, {"Accept": JSON}, False),
    "stream": ("/rpc", ECHO, {"Accept": SSE}, False),
    "refused": ("/rpc", request("no.such"), {"Accept": JSON}, False),
    "given up": ("/rpc", WAIT, {"Accept": JSON}, True),
    "mcp": ("/mcp", TOOL, stateless_headers("tools/call", "small.echo"), False),
    "mcp json": (
        "/mcp",
        TOOL,
        stateless_headers("tools/call", "small.echo") | {"Accept": JSON},
        False,
    ),
    "mcp given up": ("/mcp", TOOL_WAIT, stateless_headers("tools/call", "small.wait"), True),
    "mcp refused": ("/mcp", request("tools/list"), {"Accept": BOTH}, False),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_over_http_leaves_no_garbage(way: str) -> None:
    hub = open_hub()
    app = build_app(hub, PORT, make_mcp_server(hub, McpOptions()), Access.open())
    for _ in range(hub.limits.finished_runs + 20):  # enough to evict retained runs too
        await posted(app, *WAYS[way])
    await hub.runs.wait_idle(5)
    with garbage() as found:
        for _ in range(REQUESTS):
            await posted(app, *WAYS[way])
        await hub.runs.wait_idle(5)
    await hub.close()
    assert len(found) < ONCE, named(found)


async def test_calls_of_a_connection_leave_no_garbage() -> None:
    hub = open_hub()
    message = wire.decode(json.dumps(ECHO).encode(), hub.limits)

    async def one() -> None:
        view = NativeConnection(MESSAGES, hub.limits, hub.new_id)
        connection = Connection(hub, view, LOCAL)
        connection.receive(message)
        while not view.idle or connection.collect():
            await connection.ready(0.1)
            connection.collect()
        connection.lost()

    for _ in range(hub.limits.finished_runs + 20):
        await one()
    with garbage() as found:
        for _ in range(REQUESTS):
            await one()
    await hub.close()
    assert len(found) < ONCE, named(found)
