"""A thousand idle clients cost little memory and no CPU time.

In the long form (LOAD_CALLS of 100000) they stay connected for ten minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from load_clients import LONG, PATIENCE_S, TIMEOUT_S, Http, loaded_server, state
from mcp_network import SSE, request
from network import Server
from websockets.asyncio.client import connect

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

LISTENERS = 1000
BYTES_EACH = 64 * 1024
#: Duration of the test, and the allowed share of CPU time of the server.
LISTEN_S = 600.0 if LONG else 2.0
BUSY = 0.05 if LONG else 0.5
AT_ONCE = 50


@asynccontextmanager
async def streams(server: Server) -> AsyncIterator[None]:
    """Open event streams, each of a waiting run."""
    listeners = [Http(server) for _ in range(LISTENERS)]

    async def listen(http: Http) -> None:
        await http.send("/rpc", request("load.wait"), {"Accept": SSE})
        heard = b""
        while b"waiting" not in heard:
            heard += await http.first_bytes()

    try:
        for first in range(0, LISTENERS, AT_ONCE):
            await asyncio.gather(*map(listen, listeners[first : first + AT_ONCE]))
        yield
    finally:
        for http in listeners:
            await http.close()


@asynccontextmanager
async def sockets(server: Server) -> AsyncIterator[None]:
    """Open WebSockets, each with one subscription."""
    async with contextlib.AsyncExitStack() as stack:

        async def listen() -> None:
            socket = await stack.enter_async_context(connect(server.ws, compression=None))
            await socket.send(json.dumps(request("load.wait")))
            async with asyncio.timeout(PATIENCE_S):
                while "waiting" not in str(await socket.recv()):
                    pass

        for _ in range(LISTENERS // AT_ONCE):
            await asyncio.gather(*(listen() for _ in range(AT_ONCE)))
        yield


@pytest.mark.parametrize("listening", [streams, sockets])
async def test_a_thousand_idle_subscriptions_cost_little(
    listening: Callable[[Server], AbstractAsyncContextManager[None]],
) -> None:
    # A single principal gets seven eighths of a pool.
    room = LISTENERS * 5 // 4
    with loaded_server(connections=room, runs_in_flight=room) as server:
        for _ in range(3):
            before = await asyncio.to_thread(state, server)
        async with listening(server):
            held = await asyncio.to_thread(state, server)
            await asyncio.sleep(LISTEN_S)
            after = await asyncio.to_thread(state, server)
            assert after["runs"] == LISTENERS + 1
    each = (after["resident"] - before["resident"]) / LISTENERS
    busy = (after["cpu_s"] - held["cpu_s"]) / LISTEN_S
    print(f"{each / 1024:.1f} KiB each, {busy:.1%} of a processor")  # noqa: T201 - figures, with -s
    assert each <= BYTES_EACH
    assert busy <= BUSY
    assert after["resident"] <= held["resident"] * 1.05
