"""The run store: what one process records, another reads, follows, stops and answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from hub_calls import OTHER, WAIT_S, end_of, follow, local, read
from store_hubs import StoreHub, wait_until

from plexus.errors import InvalidParams, NotFound
from plexus.events import Cancelled, Content, ErrorEvent, Event, Gap
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.runtime.run import Run
from plexus.runtime.stored_run import StoredRun
from plexus.storage.engine import Transaction
from substrate.run_store.leases import end_orphans, other_processes
from substrate.run_store.queries import Request

pytestmark = pytest.mark.anyio

OpenStore = Callable[..., Awaitable[StoreHub]]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def opened(database: str) -> AsyncIterator[OpenStore]:
    """Open hubs on one database, and close them at the end."""
    hubs: list[StoreHub] = []

    async def make(limits: Limits | None = None, project: str = "/project") -> StoreHub:
        hub = await StoreHub.open(database, Demo, limits=limits, project=project)
        hubs.append(hub)
        return hub

    yield make
    for each in hubs:
        await each.close()


async def started(hub: StoreHub, method: str, params: object = None) -> Run:
    """Start a run whose row is written."""
    call = hub.hub.call(method, params, LOCAL)  # type: ignore[arg-type]  # as sent on the wire
    await hub.store.flushed()
    return call.run


async def fetched(hub: StoreHub, run: Run) -> StoredRun:
    """Return the run of another hub."""
    found = await hub.hub.runs.fetch(run.id, LOCAL)
    assert isinstance(found, StoredRun)
    return found


def texts(events: list[Event]) -> str:
    return "".join(each.as_text() for each in events)


async def test_a_finished_run_is_read_by_another_process(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    events = await read(one.hub.call("demo.count", {"to": 5}, LOCAL))
    await one.store.flushed()
    run = next(run for run in one.hub.runs.list_for(LOCAL) if run.method == "demo.count")
    copy = await fetched(two, run)
    assert [event.type for event in await follow(copy)] == [event.type for event in events]
    described = copy.describe()
    assert described["outcome"] == "succeeded"
    assert described["summary"]
    assert described["last_seq"] == 7


@pytest.mark.parametrize("after", [0, 1, 3, 6])
async def test_a_finished_run_is_read_from_any_item(opened: OpenStore, after: int) -> None:
    one, two = await opened(), await opened()
    call = one.hub.call("demo.count", {"to": 5}, LOCAL)
    events = await read(call)
    await one.store.flushed()
    assert [e.type for e in await follow(await fetched(two, call.run), after)] == [
        e.type for e in events[after:]
    ]


async def test_a_run_is_followed_live_and_its_end_is_seen(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.wait", {"seconds": 0.2})
    copy = await fetched(two, run)
    assert copy.state == "running"
    assert texts(await follow(copy)) == "waitingwaited"
    assert copy.state == "complete"


async def test_a_run_is_stopped_from_another_process(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.wait")
    copy = await fetched(two, run)
    async with asyncio.timeout(WAIT_S):
        assert await copy.stop("enough") is True
    terminal = (await follow(copy))[-1]
    assert isinstance(terminal, Cancelled)
    assert terminal.reason == "enough"
    assert run.terminal is not None


async def test_a_call_for_another_process_is_made_once_however_late_a_read_of_the_store_arrives(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.wait")
    copy = await fetched(two, run)
    store, loop = one.store, asyncio.get_running_loop()
    read_again, answered = asyncio.Event(), threading.Event()
    made: list[int] = []
    reader = store.reader
    read_news, make_call = reader._read_news, store.requests._call  # noqa: SLF001 - as it is read

    def read_late(tx: Transaction, *, with_list: bool) -> object:
        news = read_news(tx, with_list=with_list)
        if news.requests and made:
            loop.call_soon_threadsafe(read_again.set)
            answered.wait(WAIT_S)
        return news

    async def call_late(request: Request) -> bytes:
        made.append(request.id)
        store.on_signal()
        await read_again.wait()
        return await make_call(request)

    monkeypatch.setattr(reader, "_read_news", read_late)
    monkeypatch.setattr(store.requests, "_call", call_late)
    async with asyncio.timeout(WAIT_S):
        assert await copy.stop("enough") is True
    answered.set()
    await wait_until(lambda: reader._checking is None)  # noqa: SLF001 - its read has arrived
    assert len(made) == 1


async def test_a_question_is_answered_from_another_process(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.delete")
    await wait_until(lambda: run.questions)
    await one.store.flushed()
    copy = await fetched(two, run)
    assert copy.questions is not None
    assert list(copy.questions) == ["1"]
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(InvalidParams):
            await copy.respond("1", "not a boolean")
        await copy.respond("1", False)
        assert texts(await follow(run)) == "kept"
        assert texts(await follow(copy)) == "kept"


async def test_an_answered_question_is_closed_everywhere(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.delete")
    await wait_until(lambda: run.questions)
    copy = await fetched(two, run)
    await wait_until(lambda: copy.questions or asyncio.ensure_future(two.store.loaded.load(run.id)))
    changes: list[tuple[str, bool]] = []
    two.hub.questions.on_change(lambda _run, request, is_open: changes.append((request, is_open)))
    following = asyncio.ensure_future(follow(copy))
    await asyncio.sleep(0)
    local(run).answer("1", False)
    await following
    assert ("1", False) in changes


async def test_a_run_of_another_principal_is_not_found(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.wait")
    with pytest.raises(NotFound) as other:
        await two.hub.runs.fetch(run.id, OTHER)
    with pytest.raises(NotFound) as missing:
        await two.hub.runs.fetch(run.id + 1, OTHER)
    assert str(run.id) in other.value.message
    assert other.value.message.replace(str(run.id), "") == missing.value.message.replace(
        str(run.id + 1), ""
    )


async def test_a_run_that_has_left_the_memory_is_read_from_the_store(opened: OpenStore) -> None:
    one = await opened(Limits(finished_runs=1))
    call = one.hub.call("demo.count", {"to": 3}, LOCAL)
    await read(call)
    for _ in range(3):
        await end_of(one.hub, "demo.echo", {"text": "x"})
    await one.store.flushed()
    found = await one.hub.runs.fetch(call.run.id, LOCAL)
    assert isinstance(found, StoredRun)
    assert texts(await follow(found)) == "1 2 3 "


async def test_items_that_the_log_has_dropped_are_read_from_the_store(opened: OpenStore) -> None:
    one = await opened(Limits(log_items=64))
    call = one.hub.call("demo.count", {"to": 5000}, LOCAL)
    await read(call)
    assert call.run.log.first > 1
    events = await follow(call.run)
    assert not any(isinstance(event, Gap) for event in events)
    assert texts(events) == "".join(f"{n} " for n in range(1, 5001))


async def test_the_list_has_the_runs_of_the_project_only(opened: OpenStore) -> None:
    one, two, three = await opened(), await opened(), await opened(project="/another")
    run = await started(one, "demo.wait")
    for each in (two, three):
        await each.store.loaded.refresh()
    assert [each.id for each in two.hub.runs.list_active(LOCAL)] == [run.id]
    # A shared server shows all runs of a principal.
    shared = three.store.engine.__class__.__name__ == "PostgresEngine"
    assert [each.id for each in three.hub.runs.list_active(LOCAL)] == ([run.id] if shared else [])


async def test_a_watcher_is_called_when_a_run_of_another_process_starts(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    called = asyncio.Event()
    with two.store.loaded.watch(called.set):
        run = await started(one, "demo.wait")
        async with asyncio.timeout(WAIT_S):
            while run.id not in [each.id for each in two.store.loaded.all()]:
                await called.wait()
                called.clear()


async def test_the_runs_of_a_dead_process_end_with_owner_lost(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.wait")
    copy = await fetched(two, run)
    following = asyncio.ensure_future(follow(copy))
    await _declare_dead(one, two)
    terminal = (await following)[-1]
    assert isinstance(terminal, ErrorEvent)
    assert terminal.code == "owner_lost"


async def test_the_late_owner_of_a_lost_run_cannot_write_and_stops(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "demo.wait")
    await _declare_dead(one, two)
    one.store.recorder.mark_changed(run.id)
    await wait_until(lambda: run.terminal is not None)
    await one.store.flushed()
    events = await follow(await fetched(two, run))
    assert [event.type for event in events if event.terminal] == ["error"]


async def _declare_dead(one: StoreHub, two: StoreHub) -> None:
    """End the runs of a process as if it had ended."""

    def work(tx: Transaction) -> int:
        dead = next(
            each for each in other_processes(tx, two.store.process) if each.id == one.store.process
        )
        return end_orphans(tx, dead, dead.host, lambda _method, _outcome: 1000)

    assert await two.store.engine.write(work) == 1
    two.store.on_signal()


async def test_nothing_is_lost_of_a_burst_that_another_process_follows(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    call = one.hub.call("demo.count", {"to": 20_000}, LOCAL)
    reading = asyncio.ensure_future(read(call))
    await one.store.flushed()
    copy = await fetched(two, call.run)
    events = await follow(copy)
    await reading
    assert not any(isinstance(event, Gap) for event in events)
    assert sum(isinstance(event, Content) for event in events) == 20_000
