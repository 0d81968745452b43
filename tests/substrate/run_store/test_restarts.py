"""Runs that move: claimed when their process is lost, handed over when it stops in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import ENGINES, new_database
from hub_calls import WAIT_S, follow, local
from store_hubs import StoreHub, wait_until

from plexus import Activation, Context, Principal, method
from plexus.errors import Failed, PlexusError
from plexus.events import Cancelled, Content, ErrorEvent, Event, Gap, Restarted
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.stored_run import StoredRun
from plexus.storage.engine import Transaction
from substrate.run_store import leases, recorder
from substrate.run_store.flush import Flush
from substrate.run_store.leases import end_orphans, other_processes, release_runs
from substrate.security.authentication import Access
from substrate.security.page_sessions import SessionFile
from substrate.security.tokens import TokenFile

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

OpenStore = Callable[..., Awaitable[StoreHub]]


class Steps(Activation):
    """Counts, and continues where it was."""

    namespace = "steps"
    version = "1.0.0"

    @method(restart="from_checkpoint")
    async def count(self, to: int, *, stops: int = 1, ctx: Context) -> AsyncIterator[Content]:
        """Count to a number; wait in the middle, until it was restarted often enough."""
        for number in range((ctx.restored or 0) + 1, to + 1):
            yield Content(text=f"{number} ")
            await ctx.checkpoint(number)
            if number == to // 2 + ctx.epoch and ctx.epoch < stops:
                await asyncio.Event().wait()

    @method(restart="from_start")
    async def again(self, text: str, *, ctx: Context) -> AsyncIterator[Content]:
        """Do everything again."""
        yield Content(text=f"{text} {ctx.epoch} {ctx.restored} ")
        if ctx.epoch == 0:
            await asyncio.Event().wait()

    @method(restart="from_start")
    async def nested(self, ctx: Context) -> None:
        """Call a method that can be restarted."""
        await ctx.call("steps.again", text="inner")

    @method(restart="from_start")
    async def scopes(self, *, caller: Principal, ctx: Context) -> str:
        """Return the scopes of the caller."""
        if ctx.epoch == 0:
            await asyncio.Event().wait()
        return "all" if caller.scopes is None else " ".join(sorted(caller.scopes))


class Other(Activation):
    """Has methods that other processes lack, or declare in another way."""

    namespace = "other"
    version = "1.0.0"

    @method(restart="from_start")
    async def wait(self) -> None:
        """Wait until it is stopped."""
        await asyncio.Event().wait()


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def opened(database: str) -> AsyncIterator[OpenStore]:
    """Open hubs on one database, and close them at the end."""
    hubs: list[StoreHub] = []

    async def make(
        *activations: Activation | type[Activation], project: str = "/project", **limits: Any
    ) -> StoreHub:
        chosen = activations or (Steps,)
        hub = await StoreHub.open(database, *chosen, limits=Limits(**limits), project=project)
        hubs.append(hub)
        return hub

    yield make
    for each in hubs:
        await each.close()


async def started(
    hub: StoreHub, method_name: str, params: dict[str, Any] | None = None, items: int = 1
) -> LocalRun:
    """Start a run that has written its row and this many items."""
    run = local(hub.hub.call(method_name, params, LOCAL).run)
    await wait_until(lambda: run.log.last >= items)
    await hub.store.flushed()
    return run


async def lose(lost: StoreHub, witness: StoreHub) -> None:
    """Release or end the runs of a process as if it had ended, and wake the others.

    The process notices nothing more, as if it were stopped. Otherwise it restarts its own runs if
    the others are slower.
    """
    if lost.store._unsubscribe is not None:  # noqa: SLF001 - there is no other way to stop it
        lost.store._unsubscribe()  # noqa: SLF001
    lost.store.reader.on_signal = lambda: None  # type: ignore[method-assign] # also by its timers
    # What it is reading could show it the released run when it no longer executes it.
    if (checking := lost.store.reader._checking) is not None:  # noqa: SLF001 - as above
        await asyncio.wait([checking], timeout=WAIT_S)

    def work(tx: Transaction) -> int:
        dead = next(
            each
            for each in other_processes(tx, witness.store.process)
            if each.id == lost.store.process
        )
        return end_orphans(tx, dead, dead.host, lambda _method, _outcome: 1000)

    assert await witness.store.engine.write(work) == 1


async def loaded(hub: StoreHub, run: Run) -> StoredRun:
    found = await hub.store.loaded.load(run.id)
    assert found is not None
    return found


def executing(run: Run, *hubs: StoreHub) -> list[StoreHub]:
    return [hub for hub in hubs if run.id in [each.id for each in hub.hub.runs.running()]]


def texts(events: list[Event]) -> str:
    return "".join(each.as_text() for each in events if isinstance(each, Content))


def only_terminal(events: list[Event]) -> Event:
    assert [event for event in events if event.terminal] == events[-1:]
    return events[-1]


async def test_a_lost_run_continues_from_its_checkpoint_in_one_sequence(opened: OpenStore) -> None:
    one, two, three = await opened(), await opened(), await opened(Other)
    run = await started(one, "steps.count", {"to": 6}, items=3)
    copy = await loaded(three, run)
    following = asyncio.ensure_future(follow(copy))
    await lose(one, three)
    two.store.on_signal()
    events = await following
    assert texts(events) == "1 2 3 4 5 6 "
    assert [event.type for event in events] == [
        *["content"] * 3,
        "restarted",
        *["content"] * 3,
        "complete",
    ]
    assert [event.epoch for event in events if isinstance(event, Restarted)] == [1]
    record = (await loaded(three, run)).record
    assert (record.outcome, record.epoch, record.last_seq) == ("succeeded", 1, 8)
    assert record.process is not None
    assert record.process["id"] == two.store.process


async def test_a_lost_run_is_restarted_from_its_start_if_it_declares_that(
    opened: OpenStore,
) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "steps.again", {"text": "x"})
    copy = await loaded(two, run)
    following = asyncio.ensure_future(follow(copy))
    await lose(one, two)
    two.store.on_signal()
    assert texts(await following) == "x 0 None x 1 None "


async def test_exactly_one_of_three_processes_restarts_a_lost_run(opened: OpenStore) -> None:
    one, *others = [await opened() for _ in range(4)]
    run = await started(one, "steps.count", {"to": 4, "stops": 2}, items=2)
    await lose(one, others[0])
    for each in others:
        each.store.on_signal()
    await wait_until(lambda: executing(run, *others))
    for each in others:
        await each.store.restarts.claim(each.store.engine)
    assert len(executing(run, *others)) == 1


async def test_a_run_that_was_cancelled_before_the_loss_is_not_restarted(
    opened: OpenStore,
) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "steps.again", {"text": "x"})
    copy = await loaded(two, run)
    following = asyncio.ensure_future(follow(copy))

    def request_cancel(tx: Transaction) -> int:
        return tx.run("UPDATE runs SET cancel_requested = 1 WHERE id = ?", (run.id,))

    await two.store.engine.write(request_cancel)
    await lose(one, two)
    two.store.on_signal()
    assert isinstance(only_terminal(await following), Cancelled)


async def test_a_run_that_is_cancelled_while_it_waits_is_not_restarted(opened: OpenStore) -> None:
    one, two = await opened(Steps, Other), await opened()
    run = await started(one, "other.wait", items=0)
    copy = await loaded(two, run)
    following = asyncio.ensure_future(follow(copy))
    await lose(one, two)
    async with asyncio.timeout(WAIT_S):
        assert await copy.stop("enough") is True
    assert isinstance(only_terminal(await following), Cancelled)


async def test_a_run_whose_method_no_other_process_has_ends_with_owner_lost(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "UNOWNED_S", 0.3)
    one, two = await opened(Steps, Other), await opened()
    run = await started(one, "other.wait", items=0)
    copy = await loaded(two, run)
    following = asyncio.ensure_future(follow(copy))
    await lose(one, two)
    two.store.on_signal()
    terminal = only_terminal(await following)
    assert isinstance(terminal, ErrorEvent)
    assert terminal.code == "owner_lost"


async def test_an_unclaimed_run_ends_when_the_next_process_opens_the_store(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "UNOWNED_S", 0.0)
    one, two = await opened(Steps, Other), await opened(Other)
    run = await started(one, "steps.again", {"text": "x"})
    await lose(one, two)
    await two.close()
    three = await opened()
    terminal = only_terminal(await follow(await loaded(three, run)))
    assert isinstance(terminal, ErrorEvent)
    assert terminal.code == "owner_lost"


async def test_a_run_is_claimed_by_a_process_of_its_project_only(opened: OpenStore) -> None:
    one, two = await opened(), await opened(project="/another")
    run = await started(one, "steps.again", {"text": "x"})
    await lose(one, two)
    await two.store.restarts.claim(two.store.engine)
    claims_all = two.store.loaded._scope.project is None  # noqa: SLF001 - PostgreSQL is shared
    assert bool(executing(run, two)) == claims_all


async def test_the_late_owner_of_a_restarted_run_cannot_write_and_stops(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "steps.count", {"to": 4, "stops": 2}, items=2)
    await lose(one, two)
    two.store.on_signal()
    await wait_until(lambda: executing(run, two))
    await one.store.lease.renew()  # as its timer does
    await wait_until(lambda: run.terminal is not None)
    await one.store.flushed()
    await wait_until(lambda: two.hub.runs.find(run.id, LOCAL).log.last == 4)
    await two.store.flushed()
    assert executing(run, one, two) == [two]
    events = (await loaded(one, run)).log.events
    assert [event.type for event in events] == ["content", "content", "restarted", "content"]
    assert isinstance(await one.hub.runs.fetch(run.id, LOCAL), StoredRun)


async def test_a_checkpoint_of_the_late_owner_raises_in_its_method(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "steps.count", {"to": 4, "stops": 2}, items=2)
    await lose(one, two)
    two.store.on_signal()
    await wait_until(lambda: executing(run, two))
    with pytest.raises(Failed) as raised:
        await one.store.recorder.checkpoint(run, b"99")
    assert raised.value.code == "owner_lost"


async def test_a_run_is_restarted_twice(opened: OpenStore) -> None:
    one, watcher = await opened(), await opened(Other)
    run = await started(one, "steps.count", {"to": 6, "stops": 2}, items=3)
    following = asyncio.ensure_future(follow(await loaded(watcher, run)))
    await lose(one, watcher)
    two = await opened()
    await wait_until(lambda: executing(run, two))
    again = two.hub.runs.find(run.id, LOCAL)
    await wait_until(lambda: again.log.last == 5)
    await two.store.flushed()
    await lose(two, watcher)
    await opened()
    events = await following
    assert texts(events) == "1 2 3 4 5 6 "
    assert [event.epoch for event in events if isinstance(event, Restarted)] == [1, 2]
    assert not any(isinstance(event, Gap) for event in events)


async def test_a_reader_in_the_process_that_restarts_a_run_sees_one_sequence(
    opened: OpenStore,
) -> None:
    one, two = await opened(), await opened()
    run = await started(one, "steps.count", {"to": 6}, items=3)
    following = asyncio.ensure_future(follow(await loaded(two, run)))
    await lose(one, two)
    two.store.on_signal()
    assert texts(await following) == "1 2 3 4 5 6 "
    found = await two.hub.runs.fetch(run.id, LOCAL)
    assert isinstance(found, LocalRun)
    assert texts(await follow(found)) == "1 2 3 4 5 6 "
    assert [each.id for each in two.hub.runs.list_for(LOCAL)].count(run.id) == 1


async def test_a_restarted_run_can_be_stopped_from_a_third_process(opened: OpenStore) -> None:
    one, two, three = await opened(), await opened(), await opened(Other)
    run = await started(one, "steps.count", {"to": 4, "stops": 2}, items=2)
    copy = await loaded(three, run)
    following = asyncio.ensure_future(follow(copy))
    await lose(one, three)
    two.store.on_signal()
    await wait_until(lambda: executing(run, two))
    async with asyncio.timeout(WAIT_S):
        assert await copy.stop("enough") is True
    assert isinstance(only_terminal(await following), Cancelled)


async def test_a_checkpoint_that_cannot_be_stored_raises_in_the_method(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await opened()
    run = await started(one, "steps.count", {"to": 4}, items=2)

    async def refuse(_work: object) -> None:
        raise Failed("The disk is full.", code="storage_full")

    monkeypatch.setattr(recorder, "CHECKPOINT_S", 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(one.store.engine, "write", refuse)
        with pytest.raises(PlexusError, match="disk is full") as raised:
            await one.store.recorder.checkpoint(run, b"3")
    assert raised.value.code == "checkpoint_not_stored"


async def test_a_restarted_run_keeps_the_scopes_of_its_caller(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    caller = Principal("alice", frozenset({"steps", "more"}))
    run = one.hub.call("steps.scopes", {}, caller).run
    await one.store.flushed()
    await lose(one, two)
    two.store.on_signal()
    await wait_until(lambda: two.hub.runs.counts()["complete"])
    found = await two.hub.runs.fetch(run.id, caller)
    assert found.terminal is not None
    assert found.terminal.as_text() == "more steps"


@pytest.fixture(params=["token", "session"])
async def credential(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[Principal, Callable[[], None]]]:
    """Return a principal by a credential of the files, and what revokes that credential."""
    tokens, sessions = TokenFile(), SessionFile()
    secret = tokens.add("restarted", frozenset({"steps"}), principal="alice")
    access = Access("own", tokens, sessions, port=1)
    authenticated = await access.authenticate({b"authorization": b"Bearer " + secret.encode()})
    if request.param == "session":
        page, _ = await access.create_session(authenticated)
        authenticated = await access.authenticate({b"authorization": b"Bearer " + page.encode()})

    def revoke() -> None:
        if request.param == "session":
            sessions.end(authenticated.digest)
        else:
            tokens.revoke("restarted")

    yield authenticated.principal, revoke
    tokens.revoke("restarted")


async def test_a_restarted_run_is_cancelled_when_its_credential_is_revoked(
    opened: OpenStore, credential: tuple[Principal, Callable[[], None]]
) -> None:
    one, two = await opened(), await opened()
    caller, revoke = credential
    run = one.hub.call("steps.count", {"to": 4, "stops": 2}, caller).run
    own = two.hub.call("steps.again", {"text": "x"}, LOCAL).run
    await wait_until(lambda: run.log.last >= 2)
    await one.store.flushed()
    await lose(one, two)
    two.store.on_signal()
    await wait_until(lambda: executing(run, two))
    again = two.hub.runs.find(run.id, caller)
    await wait_until(lambda: again.log.last == 4)
    revoke()
    await wait_until(lambda: again.terminal is not None, 4.0)
    assert isinstance(again.terminal, Cancelled)
    assert own.terminal is None


async def test_a_lost_run_with_a_revoked_credential_is_not_restarted(
    opened: OpenStore, credential: tuple[Principal, Callable[[], None]]
) -> None:
    one, two = await opened(), await opened()
    caller, revoke = credential
    run = one.hub.call("steps.again", {"text": "x"}, caller).run
    await wait_until(lambda: run.log.last >= 1)
    await one.store.flushed()
    copy = await loaded(two, run)
    following = asyncio.ensure_future(follow(copy))
    revoke()
    await lose(one, two)
    two.store.on_signal()
    events = await following
    terminal = only_terminal(events)
    assert isinstance(terminal, ErrorEvent)
    assert (terminal.code, "no longer valid" in terminal.message) == ("owner_lost", True)
    assert not any(isinstance(event, Restarted) for event in events)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("steps.again", {"text": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"}),
        ("steps.again", {"text": "x" * 100_000}),
    ],
    ids=["a key in its arguments", "long arguments"],
)
async def test_a_run_whose_arguments_are_not_stored_exactly_is_not_restarted(
    opened: OpenStore, name: str, params: dict[str, Any]
) -> None:
    one, two = await opened(), await opened()
    run = await started(one, name, params)
    assert run.recorder is None
    copy = await loaded(two, run)
    await lose(one, two)
    terminal = only_terminal(await follow(await loaded(two, copy)))
    assert isinstance(terminal, ErrorEvent)
    assert terminal.code == "owner_lost"


async def test_a_nested_run_is_restarted_by_its_caller_only(opened: OpenStore) -> None:
    one = await opened()
    one.hub.call("steps.nested", {}, LOCAL)
    await wait_until(lambda: len(one.hub.runs.running()) == 2)
    recorded = {local(run).method: local(run).recorder for run in one.hub.runs.running()}
    assert recorded["steps.nested"] is one.store.recorder
    assert recorded["steps.again"] is None


async def test_a_process_that_stops_in_order_hands_its_runs_over(opened: OpenStore) -> None:
    one, two, three = await opened(), await opened(), await opened(Other)
    run = await started(one, "steps.count", {"to": 6}, items=3)
    following = asyncio.ensure_future(follow(await loaded(three, run)))
    here = asyncio.ensure_future(follow(run))
    await one.hub.drain(0)
    await one.store.hand_over()
    events = await following
    assert texts(events) == "1 2 3 4 5 6 "
    assert isinstance(only_terminal(events), Event)
    assert [event.epoch for event in events if isinstance(event, Restarted)] == [1]
    assert not executing(run, one)
    moved = only_terminal(await here)
    assert isinstance(moved, ErrorEvent)
    assert moved.code == "moved"
    assert two.hub.runs.find(run.id, LOCAL).terminal is not None


async def test_a_late_refusal_of_its_old_items_does_not_stop_a_run_that_was_restarted_here(
    opened: OpenStore,
) -> None:
    one = await opened()
    run = await started(one, "steps.count", {"to": 4, "stops": 2}, items=2)
    old = one.store.recorder.active[run.id]
    late = Flush(0.0)
    late.update(old, 0, None, None, None, None, None)

    def release(tx: Transaction) -> list[int]:
        return release_runs(tx, one.store.process, [(run.id, 0)])

    assert await one.store.engine.write(release) == [run.id]
    await wait_until(lambda: one.store.recorder.active.get(run.id) not in (None, old))
    again = one.store.recorder.active[run.id]
    one.store.recorder.on_flushed(late, {run.id})  # its result arrives late
    assert not again.fenced
    assert again.run.cancel_reason is None
