"""A client that reads as fast as possible does not delay fifty others.

The duration of the small calls is compared with its target in the long form only (LOAD_CALLS of
100000), because the load of the machine is unknown otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
from load_clients import CALLS, KINDS, LONG, TIMEOUT_S, calling, loaded_server, percentile, timed
from network import Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

CALLERS = 50
CALLS_EACH = max(CALLS // 3000, 1) * 10
#: A small caller is a person or a model: it pauses between calls.
PAUSE_S = 0.05
TARGET_S = 0.050
#: The allowed slowdown factor of a call during the flood, on a machine under load.
GENEROUS = 60
START_S = 10.0

#: Reads as fast as possible and discards everything. A separate process, to leave this one free.
READER = """
    import socket, sys
    body = b'{"jsonrpc":"2.0","id":1,"method":"load.flood","params":{}}'
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    sock.sendall(
        b"POST /rpc HTTP/1.1\\r\\nHost: 127.0.0.1:%b\\r\\nAccept: text/event-stream\\r\\n"
        b"Content-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n"
        % (sys.argv[1].encode(), len(body)) + body
    )
    total, said = 0, False
    while data := sock.recv(1 << 20):
        total += len(data)
        if total > 10_000_000 and not said:
            said = True
            print("flooded", flush=True)
"""


@contextlib.contextmanager
def flood(server: Server) -> Iterator[None]:
    """Run a client that reads as fast as possible for the duration of the block."""
    command = [sys.executable, "-c", textwrap.dedent(READER), str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"flooded\n"
            yield
            assert reader.poll() is None, "the flood ended"
        finally:
            reader.kill()


async def small_calls(server: Server) -> list[float]:
    """Return the duration of each small call."""
    callers = [KINDS[number % len(KINDS)](server, None) for number in range(CALLERS)]

    async def one(number: int) -> list[float]:
        taken = []
        await asyncio.sleep(PAUSE_S * number / CALLERS)
        for call in range(CALLS_EACH):
            nonce = f"{number}.{call}"
            taken.append(await timed(callers[number].call([call], [{"nonce": nonce}])))
            await asyncio.sleep(PAUSE_S)
        return taken

    async with calling(callers):
        return [each for taken in await asyncio.gather(*map(one, range(CALLERS))) for each in taken]


async def test_a_flood_leaves_the_small_calls_their_turn() -> None:
    with loaded_server() as server:
        await small_calls(server)  # warm up
        alone = await small_calls(server)
        with flood(server):
            begun = time.monotonic()
            beside = await small_calls(server)
    assert len(alone) == len(beside) == CALLERS * CALLS_EACH
    p99 = percentile(beside, 99)
    print(  # noqa: T201 - shown with -s
        f"p99 of small calls: {percentile(alone, 99) * 1000:.1f} ms alone, "
        f"{p99 * 1000:.1f} ms beside a flood of {time.monotonic() - begun:.1f} s"
    )
    assert p99 <= (TARGET_S if LONG else GENEROUS * percentile(alone, 99))
