"""Lost connections: no item is lost or repeated, and nothing runs twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from child_processes import is_alive
from servers import Server, consume, eventually, numbers, play, proxied, serving

from native_rpc.client import ClientLimits, ConnectionLost, Item, connect, pipes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(params=["ws", "http"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: Where to cut, in bytes sent by the server: in the head of the response, in the reply, inside
#: items, and repeatedly.
CUTS = [
    [300],
    [400, 350],
    [501, 777, 1234],
    [2000],
    [5003, 403, 4001],
    [350 + 97 * i for i in range(8)],
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_every_item_arrives_once_wherever_the_connection_is_cut(
    server: Server, scheme: str, cuts: list[int], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    async def scenario() -> tuple[list[Any], int]:
        # The first connection over HTTP only checks that the server is reachable.
        spared = [10**9] if scheme == "http" else []
        async with (
            proxied(server.port, spared + cuts) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}") as plexus,
        ):
            call = plexus.count.up(to=200, pause_ms=1, mark=str(mark))
            return [event async for event in call], proxy.connections

    events, connections = play(scenario)
    assert [event.seq for event in events] == list(range(1, 202))
    assert numbers(events) == list(range(1, 201))
    assert mark.read_text() == "begun\n"
    assert connections > len(cuts)


def test_many_concurrent_calls_all_resume(server: Server, scheme: str) -> None:
    async def scenario() -> list[list[int]]:
        async with (
            proxied(server.port) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}") as plexus,
        ):

            async def count(to: int) -> list[int]:
                return numbers([event async for event in plexus.count.up(to=to, pause_ms=5)])

            async def cut() -> None:
                for _ in range(4):
                    await asyncio.sleep(0.1)
                    proxy.cut()

            *counts, _ = await asyncio.gather(*(count(to) for to in range(60, 90)), cut())
            return [one for one in counts if one is not None]

    assert play(scenario) == [list(range(1, to + 1)) for to in range(60, 90)]


def test_a_call_whose_reply_is_lost_runs_once(server: Server, scheme: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def scenario() -> list[Any]:
        async with (
            proxied(server.port) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}") as plexus,
        ):

            async def cut() -> None:
                assert await eventually(mark.exists)
                proxy.cut()

            cutting = asyncio.create_task(cut())
            events = [e async for e in plexus.count.up(to=3, pause_ms=100, mark=str(mark))]
            await cutting
            return events

    assert numbers(play(scenario)) == [1, 2, 3]
    assert mark.read_text() == "begun\n"


def test_an_attached_run_resumes_too(server: Server, scheme: str) -> None:
    async def scenario() -> tuple[list[int], list[int]]:
        async with (
            connect(f"ws://127.0.0.1:{server.port}") as owner,
            owner.count.up(to=100, pause_ms=5) as call,
            proxied(server.port) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}") as watcher,
        ):
            assert call.run is not None
            seqs = []
            async for event in watcher.attach(call.run):
                seqs.append(event.seq)
                if event.seq in (10, 50):
                    proxy.cut()
            return seqs, numbers([event async for event in call])

    assert play(scenario) == (list(range(1, 102)), list(range(1, 101)))


def test_a_connection_lost_while_idle_does_not_affect_the_next_call(
    server: Server, scheme: str
) -> None:
    async def scenario() -> Any:
        async with (
            proxied(server.port) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}") as plexus,
        ):
            await plexus.health.check()
            proxy.cut()
            await asyncio.sleep(0.1)
            return await plexus.call("health.check", [])

    assert play(scenario)["status"] == "healthy"


def test_positional_parameters_cannot_be_resumed(server: Server, scheme: str) -> None:
    async def scenario() -> list[int]:
        seqs: list[int] = []
        async with (
            proxied(server.port) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}") as plexus,
        ):

            def cut_once(event: Item) -> None:
                seqs.append(event.seq)
                if event.seq == 10:
                    proxy.cut()

            with pytest.raises(ConnectionLost):
                await consume(plexus.count.up(100, 5.0), cut_once)
            await plexus.health.check()  # the client continues
        return seqs

    seqs = play(scenario)
    assert seqs == list(range(1, len(seqs) + 1))
    assert 10 <= len(seqs) < 101


@pytest.mark.parametrize("reconnect_s", [0.0, 0.5])
def test_reconnecting_to_an_unavailable_server_times_out(
    server: Server, scheme: str, reconnect_s: float
) -> None:
    async def scenario() -> float:
        async with (
            proxied(server.port) as proxy,
            connect(f"{scheme}://127.0.0.1:{proxy.port}", reconnect_s=reconnect_s) as plexus,
        ):
            lost = []

            def cut_for_good(_: Item) -> None:
                lost.append(time.monotonic())
                proxy.down = True
                proxy.cut()

            with pytest.raises(ConnectionLost):
                await consume(plexus.count.up(to=1000, pause_ms=5), cut_for_good)
            took = time.monotonic() - lost[0]
            if reconnect_s:  # the client works again when the server does
                proxy.down = False
                await plexus.health.check()
            return took

    # The limit of the scenario is the time for which a client reconnects by default.
    assert play(scenario) >= reconnect_s * 0.9


def test_a_call_closed_while_disconnected_is_cancelled_by_the_server(
    scheme: str, tmp_path: Path
) -> None:
    async def scenario(server: Server) -> bool:
        async with proxied(server.port) as proxy:
            target = f"{scheme}://127.0.0.1:{proxy.port}"
            async with connect(target, reconnect_s=0.5) as plexus:
                async for event in plexus.bash.execute(command="sleep 1000"):
                    pid = event.pid
                    proxy.down = True
                    proxy.cut()
                    break
        return await eventually(lambda: not is_alive(pid))

    # The server cannot be notified, so it waits for the caller to reconnect.
    with serving(tmp_path, {"SUBSTRATE_LIMITS__ORPHAN_S": "0.5"}) as server:
        assert play(lambda: scenario(server))


def test_a_server_that_stops_responding_is_detected(
    server: Server, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "PING_S", 0.2)

    async def scenario() -> list[int]:
        async with (
            proxied(server.port) as proxy,
            connect(
                f"{scheme}://127.0.0.1:{proxy.port}", limits=ClientLimits(silence_s=0.4)
            ) as plexus,
        ):
            seqs = []
            async for event in plexus.count.up(to=60, pause_ms=10):
                seqs.append(event.seq)
                if event.seq == 20:
                    proxy.mute()
            return seqs

    assert play(scenario) == list(range(1, 62))


def test_a_run_lost_by_a_restart_is_not_confused_with_another(scheme: str, tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        servers = [Server(tmp_path)]
        port = servers[0].port
        seqs: list[int] = []

        def restart(event: Item) -> None:
            seqs.append(event.seq)
            if event.seq == 10:
                servers.pop().stop(kill=True)
                servers.append(Server(tmp_path, port))

        try:
            async with connect(f"{scheme}://127.0.0.1:{port}") as plexus:
                with pytest.raises(ConnectionLost, match="no longer has run"):
                    await consume(plexus.count.up(to=10_000, pause_ms=5), restart)
                await plexus.health.check()
        finally:
            servers.pop().stop()
        return seqs

    seqs = play(scenario)
    assert seqs == list(range(1, len(seqs) + 1))
