"""After many calls, connections and cancellations a server uses no more resources than before.

LOAD_CALLS sets the number of calls. The memory bound is tight in the long form (100000) only,
because a new process is still filling its caches.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from load_clients import (
    CALLS,
    KINDS,
    LONG,
    PATIENCE_S,
    TIMEOUT_S,
    Http,
    calling,
    loaded_server,
    state,
)
from mcp_network import ENVELOPE, SSE, request, stateless_headers
from network import Server
from websockets.asyncio.client import connect

from substrate.run_store.store import MAINTENANCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

#: The allowed growth of the process.
GROWTH = 1.05 if LONG else 1.15
CLIENTS = 12
AT_ONCE = 5
SETTLE_S = 20.0
CONNECTIONS = 200


async def calls(server: Server, count: int) -> None:
    """Send a number of calls over every kind of connection."""
    callers = [KINDS[number % len(KINDS)](server, None) for number in range(CLIENTS)]
    async with calling(callers):
        for first in range(0, count // CLIENTS, AT_ONCE):
            numbers = list(range(first, first + AT_ONCE))
            params = [{"nonce": "x" * 200} for _ in numbers]
            await asyncio.gather(*(caller.call(numbers, params) for caller in callers))


async def left_in_the_middle(server: Server, count: int) -> None:
    """Start a number of endless calls, and end each by a disconnect or a cancellation."""
    for number in range(count):
        match number % 4:
            case 0:
                await _hang_up(server, "/rpc", request("load.wait"), {"Accept": SSE})
            case 1:
                wanted = {"name": "load.wait", "arguments": {}, "_meta": ENVELOPE}
                headers = stateless_headers("tools/call", "load.wait")
                await _hang_up(server, "/mcp", request("tools/call", wanted), headers)
            case 2:
                await _socket(server, politely=True)
            case _:
                await _socket(server, politely=False)


async def _hang_up(server: Server, path: str, message: object, headers: dict[str, str]) -> None:
    http = Http(server)
    await http.send(path, message, headers)
    if path == "/rpc":
        await http.first_bytes()
    await http.close()


async def _socket(server: Server, *, politely: bool) -> None:
    async with asyncio.timeout(PATIENCE_S), connect(server.ws, compression=None) as socket:
        await socket.send(json.dumps(request("load.wait")))
        run = json.loads(await socket.recv())["result"]
        await socket.recv()
        if politely:
            await socket.send(json.dumps(request("plexus.unsubscribe", [run], 2)))
            assert json.loads(await socket.recv())["result"] is True
        else:
            socket.transport.abort()


async def settled(server: Server, wanted: dict[str, float] | None = None) -> dict[str, float]:
    """Return the statistics of the server once no call is in progress."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        held = await asyncio.to_thread(state, server)
        as_before = wanted is None or all(
            held[what] <= wanted[what] for what in ("tasks", "descriptors")
        )
        if held["runs"] == 1 and as_before:
            return held
        assert time.monotonic() < deadline, f"{held} instead of {wanted}"
        await asyncio.sleep(0.2)


async def test_calls_connections_and_cancellations_leak_nothing() -> None:
    with loaded_server(orphan_s=1) as server:
        # Enough to fill every cache and the retained runs.
        await calls(server, max(CALLS // 2, 2000))
        await left_in_the_middle(server, 100)
        # The background work of the run store opens files of its own.
        await asyncio.sleep(MAINTENANCE_S + 1)
        before = await settled(server)
        await calls(server, CALLS)
        await left_in_the_middle(server, max(CALLS // 10, 200))
        after = await settled(server, before)
    print(f"before {before}\nafter  {after}")  # noqa: T201 - shown with -s
    assert after["tasks"] <= before["tasks"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["resident"] <= before["resident"] * GROWTH


async def test_connections_are_freed_without_garbage_collection() -> None:
    with loaded_server(orphan_s=0.2) as server:
        # Enough to fill the retained runs.
        await calls(server, 600)
        await left_in_the_middle(server, 300)
        await settled(server)
        before = await asyncio.to_thread(objects, server)
        await left_in_the_middle(server, CONNECTIONS)
        async with asyncio.timeout(SETTLE_S):
            left = CONNECTIONS + 1
            while left > CONNECTIONS:
                left = await asyncio.to_thread(objects, server) - before
                await asyncio.sleep(0.2)
    print(f"{left / CONNECTIONS:.2f} objects a connection")  # noqa: T201 - the figure, with -s


def objects(server: Server) -> int:
    with server.call("load.objects") as response:
        return int(json.loads(response.read())["result"]["terminal"]["result"])
