"""A server that runs out of descriptors, and a server whose clock jumps."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import OpenHub
from hub_calls import quiet
from leaving import Leaving
from mcp_network import body_of
from network import Server
from raw_peer import RawPeer, call_of, limited

from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.token_bucket import TokenBucket

ECHO = call_of("demo.echo", ["x"])
DESCRIPTORS = 96


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Limit the descriptors of processes that are started in this block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server() -> Iterator[Server]:
    with few_descriptors():
        context = limited("--log-level", "info", header_s=60)
        running = context.__enter__()
    try:
        yield running
    finally:
        context.__exit__(None, None, None)


def descriptors_of(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def waits(peer: RawPeer) -> bool:
    """Return whether nothing is received for a moment."""
    peer.sock.settimeout(0.5)
    try:
        peer.sock.recv(1)
    except TimeoutError:
        return True
    finally:
        peer.sock.settimeout(15)
    return False


def test_accepting_pauses_when_few_descriptors_are_left_and_resumes(
    server: Server,
) -> None:
    first = RawPeer(server.port)
    assert "result" in first.answer(ECHO)
    waiting = [RawPeer(server.port) for _ in range(DESCRIPTORS)]
    last = waiting[-1]
    last.post(ECHO)
    assert waits(last)
    assert descriptors_of(server) < DESCRIPTORS - 8
    # Open connections continue, and there are descriptors for their work.
    done = first.answer(call_of("bash.execute", {"command": "ls | cat | wc -l"}))
    assert done["result"]["terminal"]["exit_code"] == 0
    for peer in waiting[: DESCRIPTORS // 2]:
        peer.sock.close()
    assert last.response()[0] == 200
    for peer in waiting[DESCRIPTORS // 2 : -1]:
        assert "result" in peer.answer(ECHO)
        peer.sock.close()
    last.sock.close()
    first.sock.close()


def test_accepting_survives_without_any_free_descriptor(server: Server) -> None:
    first = RawPeer(server.port)
    assert "result" in first.answer(ECHO)
    pid = server.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors_of(server), hard))
    with RawPeer(server.port) as late:
        late.post(ECHO)
        assert waits(late)
        assert "result" in first.answer(ECHO)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
        assert late.response()[0] == 200
    first.sock.close()
    assert body_of(server.request("POST", "/rpc", ECHO))["result"]["terminal"]["result"] == "x"


# --- the clock -------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("jump_s", [86400.0, -86400.0])
async def test_nothing_expires_or_is_delayed_when_the_wall_clock_jumps(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    hub = open_hub(Leaving(), limits=Limits(run_s=60.0, finished_s=60.0, orphan_s=60.0))
    ended = hub.call("leaving.open").run
    running = hub.call("leaving.delegate", {"after_s": 1.0}).run
    await quiet()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
    bucket = TokenBucket(1, 0.001, time.monotonic())
    assert bucket.take(time.monotonic()) == 0
    async with asyncio.timeout(10):
        while running.terminal is None:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
    assert running.terminal.type == "complete"
    assert hub.runs.find(ended.id, LOCAL) is ended
    assert bucket.take(time.monotonic()) > 0
