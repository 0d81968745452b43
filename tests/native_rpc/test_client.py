"""The client against the real server, over every transport."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from child_processes import is_alive
from servers import PATIENT, Server, command, consume, eventually, numbers, play, serving

from native_rpc.client import Client, ClientLimits, ConnectionLost, Item, RunCancelled, connect
from plexus.errors import (
    Busy,
    Denied,
    Failed,
    InvalidParams,
    NotFound,
    PlexusError,
    TooBig,
    UnknownMethod,
)

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(params=["stdio", "ws", "http"])
def target(request: pytest.FixtureRequest, server: Server) -> str | list[str]:
    if request.param == "stdio":
        return command("--stdio")
    return f"{request.param}://127.0.0.1:{server.port}"


# --- results ----------------------------------------------------------------------------------


def test_a_loop_yields_every_event_and_the_terminal_last(target: str | list[str]) -> None:
    async def scenario() -> list[Any]:
        async with connect(target) as plexus:
            return [event async for event in plexus.bash.execute(command="echo out; echo err >&2")]

    events = play(scenario)
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[0].type == "start"
    assert sorted(event["data"] for event in events[1:3]) == ["err\n", "out\n"]
    assert (events[3].type, events[3].exit_code, events[3].terminal) == ("complete", 0, True)


def test_awaiting_returns_the_result_or_the_terminal(target: str | list[str]) -> None:
    async def scenario() -> tuple[Any, Any, Any]:
        async with connect(target) as plexus:
            call = plexus.bash.execute(command="exit 3")
            return await plexus.health.check(), await call, await call

    report, end, again = play(scenario)
    assert report["status"] == "healthy"
    assert (end.type, end.exit_code) == ("complete", 3)
    assert again is end


def test_names_nest_and_parameters_may_be_positional(target: str | list[str]) -> None:
    async def scenario() -> tuple[Any, list[int]]:
        async with connect(target) as plexus:
            who = await plexus.count.luna.info()
            items = [event async for event in plexus.count.up(3)]
            items += [event async for event in plexus.call("count.up", [2])]
            return who, numbers(items)

    assert play(scenario) == ("the moon", [1, 2, 3, 1, 2])


def test_a_long_stream_arrives_complete_and_in_order(target: str | list[str]) -> None:
    async def scenario() -> list[Any]:
        async with connect(target) as plexus:
            return [event async for event in plexus.count.up(to=20_000)]

    events = play(scenario)
    assert [event.seq for event in events] == list(range(1, 20_002))
    assert numbers(events) == list(range(1, 20_001))


def test_a_terminal_of_ten_megabytes_arrives(target: str | list[str]) -> None:
    async def scenario() -> int:
        async with connect(target) as plexus:
            params = {"method": "count.up", "params": {"to": 10, "size": 900_000}}
            return len((await plexus.call("plexus.call", params))["events"])

    assert play(scenario) == 10


def test_items_have_times_on_request(target: str | list[str]) -> None:
    async def scenario() -> list[list[int | None]]:
        async with connect(target) as plexus:
            asked = [item.time_ms async for item in plexus.count.up(to=3, pause_ms=20, _times=True)]
            return [asked, [item.time_ms async for item in plexus.count.up(to=3)]]

    before_ms = time.time() * 1000
    asked, unasked = play(scenario)
    times = [at for at in asked if at is not None]
    assert len(times) == len(asked) == 4
    assert times == sorted(times)
    assert times[2] - times[0] >= 30
    assert before_ms - 5000 < times[0] < time.time() * 1000 + 5000
    assert set(unasked) == {None}


def test_calls_at_the_same_time_get_their_own_events(target: str | list[str]) -> None:
    async def count(plexus: Client, to: int) -> list[int]:
        return numbers([event async for event in plexus.count.up(to=to, pause_ms=1)])

    async def scenario() -> list[list[int]]:
        async with connect(target) as plexus:
            return await asyncio.gather(*(count(plexus, to) for to in range(30)))

    assert play(scenario) == [list(range(1, to + 1)) for to in range(30)]


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"), [("not_found", NotFound), ("my_own_word", Failed), ("busy", Busy)]
)
def test_a_run_that_fails_raises_its_error_after_its_events(
    target: str | list[str], code: str, kind: type[PlexusError]
) -> None:
    seen: list[str] = []

    async def scenario() -> None:
        async with connect(target) as plexus:
            await consume(plexus.count.fail(code=code), lambda event: seen.append(event.text))

    with pytest.raises(PlexusError) as raised:
        play(scenario)
    assert seen == ["before"]
    assert type(raised.value) is kind
    assert (raised.value.code, raised.value.message) == (code, "it broke")
    assert raised.value.data == {"at": 1}


@pytest.mark.parametrize(
    ("method", "params", "kind"),
    [
        ("bash.exekute", {}, UnknownMethod),
        ("bash.execute", {}, InvalidParams),
        ("bash.execute", ["echo", "too", "many", "a", "b", "c", "d", "e"], InvalidParams),
        ("bash.execute", {"command": object()}, InvalidParams),
        ("bash.execute", {"command": "x" * 2_000_000}, TooBig),
        ("plexus.attach", {"run": 1}, NotFound),
        ("plexus.cancel", {"run": 1}, NotFound),
    ],
)
def test_a_refused_call_raises_the_matching_error(
    target: str | list[str], method: str, params: Any, kind: type[PlexusError]
) -> None:
    async def scenario() -> None:
        async with connect(target, limits=PATIENT) as plexus:
            await plexus.call(method, params)

    with pytest.raises(PlexusError) as raised:
        play(scenario)
    assert type(raised.value) is kind


def test_entering_a_refused_call_raises_too(target: str | list[str]) -> None:
    async def scenario() -> None:
        async with connect(target) as plexus, plexus.no.such():
            raise AssertionError

    with pytest.raises(UnknownMethod):
        play(scenario)


def test_a_call_above_the_limit_is_refused_and_the_others_continue(server: Server) -> None:
    async def scenario() -> int:
        async with connect(f"ws://127.0.0.1:{server.port}") as plexus:
            calls = [plexus.count.up(to=1, pause_ms=60_000) for _ in range(128)]
            for call in calls:
                await call.__aenter__()
            with pytest.raises(Busy):
                await plexus.count.up(to=1)
            await plexus.health.check()  # control calls have their own limit
            calls[0].close()
            await plexus.count.up(to=1)
            return len([call for call in calls if call.terminal is None])

    assert play(scenario) == 128


def test_an_error_in_the_block_is_raised_unchanged(target: str | list[str]) -> None:
    async def scenario() -> None:
        async with connect(target) as plexus, plexus.count.up(to=9, pause_ms=1000):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        play(scenario)


# --- closing ----------------------------------------------------------------------------------


async def leave_by_break(plexus: Client) -> int:
    async for event in plexus.bash.execute(command="sleep 1000"):
        pid = event.pid
        break
    return int(pid)


async def leave_by_exception(plexus: Client) -> int:
    pids: list[int] = []

    def fail(event: Item) -> None:
        pids.append(event.pid)
        raise LookupError

    with pytest.raises(LookupError) as raised:
        await consume(plexus.bash.execute(command="sleep 1000"), fail)
    assert await eventually(lambda: not is_alive(pids[0]), 3)  # while the traceback is alive
    assert raised.tb is not None
    return pids[0]


async def leave_by_cancellation(plexus: Client) -> int:
    pids: list[int] = []
    started = asyncio.Event()

    async def work() -> None:
        async for event in plexus.bash.execute(command="sleep 1000"):
            pids.append(event.pid)
            started.set()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return pids[0]


async def leave_by_cancelled_await(plexus: Client) -> int:
    async def work(path: Path) -> None:
        await plexus.bash.execute(command=f"echo $$ > {path}; exec sleep 1000")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pid"
        task = asyncio.create_task(work(path))
        assert await eventually(lambda: path.exists() and path.read_text().endswith("\n"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return int(path.read_text())


async def leave_by_block(plexus: Client) -> int:
    async with plexus.bash.execute(command="sleep 1000") as call:
        async for event in call:
            pid = event.pid
            break
        await plexus.health.check()
        assert is_alive(pid)  # in the block a loop may end and the run continues
    return int(pid)


async def leave_by_aclosing(plexus: Client) -> int:
    async with aclosing(aiter(plexus.bash.execute(command="sleep 1000"))) as events:
        return int((await anext(events)).pid)


LEAVING = (
    leave_by_break,
    leave_by_exception,
    leave_by_cancellation,
    leave_by_cancelled_await,
    leave_by_block,
    leave_by_aclosing,
)


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: str(leave.__name__))
def test_closing_a_call_cancels_its_run(
    target: str | list[str], leave: Callable[[Client], Any]
) -> None:
    async def scenario() -> bool:
        async with connect(target) as plexus:
            pid = await leave(plexus)
            return await eventually(lambda: not is_alive(pid), 3)

    assert play(scenario)


def test_closing_the_client_cancels_open_calls(target: str | list[str]) -> None:
    async def scenario() -> tuple[bool, BaseException | None]:
        pids: list[int] = []
        started = asyncio.Event()

        async def work(plexus: Client) -> None:
            async for event in plexus.bash.execute(command="sleep 1000"):
                pids.append(event.pid)
                started.set()

        async with connect(target) as plexus:
            task = asyncio.create_task(work(plexus))
            await started.wait()
        await asyncio.wait([task])
        return await eventually(lambda: not is_alive(pids[0]), 3), task.exception()

    gone, error = play(scenario)
    assert gone
    assert isinstance(error, ConnectionLost)
    assert "closed" in str(error)


def test_a_call_closed_before_its_reply_does_not_continue(target: str | list[str]) -> None:
    async def scenario() -> list[Any]:
        async with connect(target) as plexus:
            call = plexus.count.up(to=7, pause_ms=60_000)
            call.start()
            await asyncio.sleep(0)
            call.close()
            await plexus.health.check()
            for _ in range(500):
                runs = [run for run in await plexus.runs() if run["method"] == "count.up"]
                if not runs or runs[0]["state"] == "cancelled":
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError(runs)
            return [event async for event in call]

    assert play(scenario) == []


def test_a_call_that_is_never_used_is_never_sent(target: str | list[str]) -> None:
    async def scenario() -> list[str]:
        async with connect(target) as plexus:
            before = {run["run"] for run in await plexus.runs()}
            plexus.bash.execute(command="true")
            aiter(plexus.bash.execute(command="true"))
            return [run["method"] for run in await plexus.runs() if run["run"] not in before]

    assert play(scenario) == []


# --- runs -------------------------------------------------------------------------------------


def test_a_cancelled_call_gets_its_terminal(target: str | list[str]) -> None:
    async def scenario() -> tuple[bool, bool]:
        async with connect(target) as plexus, plexus.count.up(to=9, pause_ms=60_000) as call:
            assert call.run is not None
            was_running = await call.cancel("enough")
            with pytest.raises(RunCancelled, match="enough"):
                await call
            assert call.terminal is not None
            return was_running, await call.cancel()

    assert play(scenario) == (True, False)


def test_a_run_can_be_cancelled_by_its_number(target: str | list[str]) -> None:
    async def scenario() -> tuple[bool, bool]:
        async with connect(target) as plexus, plexus.count.up(to=9, pause_ms=60_000) as call:
            first = await plexus.cancel(call.run or 0, "by number")
            with pytest.raises(RunCancelled, match="by number"):
                await call
            return first, await plexus.cancel(call.run or 0)

    assert play(scenario) == (True, False)


def test_a_run_can_be_attached_from_any_item_without_stopping_it(
    target: str | list[str],
) -> None:
    async def scenario() -> tuple[list[int], list[int], list[int]]:
        async with connect(target) as plexus, plexus.count.up(to=30, pause_ms=10) as call:
            assert call.run is not None
            async for event in plexus.attach(call.run):
                if event.seq == 3:
                    break
            own = [event async for event in call]
            whole = [event async for event in plexus.attach(call.run)]
            rest = [event async for event in plexus.attach(call.run, after=28)]
            return numbers(own), numbers(whole), [event.seq for event in rest]

    assert play(scenario) == (list(range(1, 31)), list(range(1, 31)), [29, 30, 31])


def test_a_question_is_answered_with_respond(target: str | list[str]) -> None:
    async def scenario() -> Any:
        async with connect(target) as plexus, plexus.count.confirm() as call:
            async for event in call:
                if event.type == "request":
                    assert event.message == "Continue?"
                    with pytest.raises(InvalidParams):
                        await plexus.respond(call.run or 0, event.request, "perhaps")
                    assert await plexus.respond(call.run or 0, event.request, True)
            return await call

    assert play(scenario) is True


def test_the_server_describes_itself(target: str | list[str]) -> None:
    async def scenario() -> tuple[Any, str, str, str]:
        async with connect(target) as plexus:
            whole, part = await plexus.schema(), await plexus.schema("count.luna")
            return whole["hash"], await plexus.hash(), await plexus.plexus.hash(), part["namespace"]

    first, second, third, namespace = play(scenario)
    assert first == second == third
    assert namespace == "count.luna"


# --- slow programs ----------------------------------------------------------------------------


def test_unread_items_are_limited_and_none_is_lost(target: str | list[str]) -> None:
    limits = ClientLimits(unread_items=100)

    async def scenario() -> tuple[int, list[int]]:
        async with (
            connect(target, limits=limits) as plexus,
            plexus.count.up(to=30_000, size=100) as call,
        ):
            unread = call._exchange.unread  # noqa: SLF001 - the limit itself is tested
            assert await eventually(lambda: unread.full)
            await asyncio.sleep(0.2)
            most = unread.items
            return most, [event.seq async for event in call]

    most, seqs = play(scenario)
    # One read of up to 64 KiB is always processed completely.
    assert 100 <= most <= 100 + 65536 // 150
    assert seqs == list(range(1, 30_002))


def test_a_client_with_many_unread_items_closes_immediately(target: str | list[str]) -> None:
    async def scenario() -> None:
        async with connect(target, limits=replace(PATIENT, unread_items=50)) as plexus:
            call = plexus.count.up(to=100_000, size=1000)
            call.start()
            assert await eventually(lambda: call._exchange.unread.full)  # noqa: SLF001

    play(scenario)


def test_over_http_an_unread_call_blocks_no_other(server: Server) -> None:
    limits = ClientLimits(unread_items=10)

    async def scenario() -> Any:
        async with (
            connect(f"http://127.0.0.1:{server.port}", limits=limits) as plexus,
            plexus.count.up(to=30_000) as call,
        ):
            assert await eventually(lambda: call._exchange.unread.full)  # noqa: SLF001
            return await plexus.health.check()

    assert play(scenario)["status"] == "healthy"


# --- targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["", "bash", "ftp://127.0.0.1", "ws://", "stdio:", []])
def test_an_invalid_target_is_refused_immediately(target: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"target|command"):
        connect(target)


@pytest.mark.parametrize(
    "target", ["ws://127.0.0.1:1", "http://127.0.0.1:1", ["/no/such/command"], "stdio:/no/such"]
)
def test_without_a_server_entering_fails_immediately(target: str | list[str]) -> None:
    async def scenario() -> None:
        async with connect(target):
            raise AssertionError

    with pytest.raises(ConnectionLost, match=r"Cannot (connect|start)"):
        play(scenario)


def test_a_client_must_be_entered_once_and_before_it_is_used(server: Server) -> None:
    async def scenario() -> None:
        client = connect(f"ws://127.0.0.1:{server.port}")
        with pytest.raises(RuntimeError, match="Enter the client first"):
            client.call("health.check")
        async with client:
            with pytest.raises(RuntimeError, match="entered only once"):
                await client.__aenter__()
        with pytest.raises(ConnectionLost, match="closed"):
            await client.health.check()
        with pytest.raises(TypeError, match="not both"):
            client.count.up(1, pause_ms=1)

    play(scenario)


def test_an_unknown_path_differs_from_a_refused_call(server: Server) -> None:
    async def over_ws() -> None:
        async with connect(f"ws://127.0.0.1:{server.port}/nowhere"):
            raise AssertionError

    async def over_http() -> None:
        async with connect(f"http://127.0.0.1:{server.port}/nowhere") as plexus:
            await plexus.health.check()

    with pytest.raises(PlexusError, match="HTTP 40"):
        play(over_ws)
    with pytest.raises(PlexusError, match="HTTP 404"):
        play(over_http)


def test_a_server_with_another_token_denies() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}", token="wrong"):
                raise AssertionError

    with pytest.raises(Denied, match="HTTP 401"):
        play(scenario)


def test_a_call_has_a_repr() -> None:
    async def scenario() -> str:
        async with connect("stdio:cat") as plexus:
            return repr(plexus.a.b())

    assert play(scenario) == "<Call of a.b, run None>"
