"""The clock of the recorder: what is written at once, and what waits for more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from activations_for_tests import Demo
from hub_calls import end_of, read, register, settled
from store_hubs import StoreHub, wait_for

from activations.approvals.activation import Approvals
from plexus import Activation, Secret, method
from plexus.principal import LOCAL
from plexus.runtime.run import LocalRun
from plexus.storage.engine import Transaction
from substrate.run_store import flush_clock
from substrate.run_store.flush import Flush

pytestmark = pytest.mark.anyio

CALLS = 300


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[StoreHub]:
    opened = await StoreHub.open(str(tmp_path / "runs.db"), Demo)
    yield opened
    await opened.close()


class Flushes:
    """Counts the flushes that are written, by the numbers of their short runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        write = Flush.write

        def counted(flush: Flush, tx: Transaction, process: tuple[Any, ...]) -> Any:
            self.sizes.append(flush.runs)
            return write(flush, tx, process)

        monkeypatch.setattr(Flush, "write", counted)


async def call_many(hub: StoreHub, number: int) -> None:
    """Make short calls, one after the other."""
    for _ in range(number):
        await end_of(hub.hub, "demo.echo", {"text": "hi"})


def stored(tx: Transaction) -> list[tuple[Any, ...]]:
    return tx.all("SELECT id, started_ms, state FROM runs ORDER BY started_ms, id")


async def test_short_runs_are_written_together(
    hub: StoreHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)
    monkeypatch.setattr(flush_clock, "MIN_BURST", 1)
    await call_many(hub, 1)
    await hub.store.flushed()
    flushes = Flushes(monkeypatch)
    await call_many(hub, CALLS)
    await asyncio.sleep(4 * flush_clock.UNWATCHED_S)
    assert flushes.sizes == []
    await hub.store.flushed()
    assert sum(flushes.sizes) == CALLS
    assert len(await hub.store.engine.read(stored)) == CALLS + 1


async def test_many_short_runs_do_not_wait_for_more(
    hub: StoreHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)
    monkeypatch.setattr(flush_clock, "MIN_BURST", 1)
    monkeypatch.setattr(flush_clock, "MAX_BURST", CALLS)

    async def all_are_stored() -> bool:
        return len(await hub.store.engine.read(stored)) == CALLS + 1

    await call_many(hub, 1)
    await hub.store.flushed()
    await call_many(hub, CALLS)
    await wait_for(all_are_stored)


async def test_a_few_short_runs_are_no_burst(
    hub: StoreHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)

    async def all_are_stored() -> bool:
        return len(await hub.store.engine.read(stored)) == 4

    await call_many(hub, 1)
    await hub.store.flushed()
    await call_many(hub, 3)
    await wait_for(all_are_stored)


async def test_the_first_of_some_calls_is_written_at_once(
    hub: StoreHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)
    monkeypatch.setattr(flush_clock, "MIN_BURST", 1)

    async def is_stored() -> bool:
        return bool(await hub.store.engine.read(stored))

    await call_many(hub, 1)
    await wait_for(is_stored)


async def test_a_run_in_progress_is_stored_while_short_runs_wait(
    hub: StoreHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)
    monkeypatch.setattr(flush_clock, "MIN_BURST", 1)
    await call_many(hub, 1)
    await hub.store.flushed()
    run = hub.hub.call("demo.wait", {"seconds": 60}, LOCAL).run

    async def is_stored() -> bool:
        return any(row[0] == run.id for row in await hub.store.engine.read(stored))

    await wait_for(is_stored)
    run.cancel("the test ends")


async def test_short_runs_that_wait_are_written_when_the_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)
    monkeypatch.setattr(flush_clock, "MIN_BURST", 1)
    one = await StoreHub.open(str(tmp_path / "runs.db"), Demo)
    await call_many(one, CALLS)
    await one.close()
    two = await StoreHub.open(str(tmp_path / "runs.db"), Demo)
    assert len(await two.store.engine.read(stored)) == CALLS
    await two.close()


class Note(Activation):
    """Takes a note that is not a secret."""

    namespace = "note"
    version = "1.0.0"

    @method(read_only=True)
    async def take(self, text: str) -> str:
        """Take a note.

        Args:
            text: The note.
        """
        return text


class SecretNote(Activation):
    """Takes a note that is a secret."""

    namespace = "note"
    version = "2.0.0"

    @method(read_only=True)
    async def take(self, text: Annotated[str, Secret()]) -> str:
        """Take a note.

        Args:
            text: The note.
        """
        return text


def arguments(tx: Transaction) -> list[Any]:
    return [row[0] for row in tx.all("SELECT arguments FROM runs ORDER BY started_ms, id")]


async def test_a_method_that_replaces_another_is_recorded_with_its_own_secrets(
    hub: StoreHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_clock, "BURST_S", 60.0)
    register(hub.hub, Note)
    await end_of(hub.hub, "note.take", {"text": "milk"})
    await hub.store.flushed()
    await end_of(hub.hub, "note.take", {"text": "eggs"})  # not written when it is replaced
    await asyncio.sleep(0.002)
    register(hub.hub, SecretNote)
    await end_of(hub.hub, "note.take", {"text": "plum"})
    await hub.store.flushed()
    found = await hub.store.engine.read(arguments)
    assert found == ['{"text":"milk"}', '{"text":"eggs"}', '{"text":"[redacted]"}']


async def test_what_the_page_only_looked_up_is_recorded_when_it_is_called(hub: StoreHub) -> None:
    register(hub.hub, Note)
    call = partial(hub.hub.call, "note.take", client="page", lookups=True)
    await settled(call({"text": "shown", "_lookup": True}).run)
    await settled(call({"text": "taken"}).run)
    await settled(call({"text": "shown again", "_lookup": True}).run)
    await hub.store.flushed()
    assert await hub.store.engine.read(arguments) == ['{"text":"taken"}']


async def test_rows_are_stored_in_the_order_of_their_start(hub: StoreHub) -> None:
    # Rows in the order of their random numbers would change a page of the file each.
    await call_many(hub, CALLS)
    await hub.store.flushed()
    rows = await hub.store.engine.read(
        lambda tx: tx.all("SELECT started_ms FROM runs ORDER BY rowid")
    )
    assert rows == sorted(rows)
    assert len(rows) == CALLS


async def test_a_recorder_that_fails_affects_no_run(
    hub: StoreHub, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        """A recorder with a defect."""

        def on_start(self, run: LocalRun, arguments: Mapping[str, Any]) -> None:
            raise RuntimeError(f"{run.id} starts with {len(arguments)} arguments")

        def on_end(self, run: LocalRun) -> None:
            raise RuntimeError(f"{run.id} ends")

        def describe(self, run: LocalRun) -> tuple[str, str]:
            raise NotImplementedError

        async def checkpoint(self, run: LocalRun, value: bytes) -> None:
            raise NotImplementedError

    hub.hub.runs.record_with(Failing())
    with caplog.at_level(logging.ERROR):
        events = await read(hub.hub.call("demo.count", {"to": 2}, LOCAL))
    hub.hub.runs.record_with(None)
    assert events[-1].type == "complete"
    assert caplog.text.count("is not recorded") == 2


async def test_the_input_of_a_tool_that_waits_for_permission_is_redacted(tmp_path: Path) -> None:
    hub = await StoreHub.open(str(tmp_path / "runs.db"), Approvals)
    tool_input = {"command": "TOKEN=hunter2 ./deploy", "env": {"API_KEY": "hunter2"}}
    run = hub.hub.call("approvals.permit", {"tool_name": "Bash", "input": tool_input}, LOCAL).run

    async def questions() -> list[tuple[Any, ...]]:
        sql = "SELECT event FROM run_questions WHERE run = ?"
        return await hub.store.engine.read(lambda tx: tx.all(sql, (run.id,)))

    async def is_stored() -> bool:
        return bool(await questions())

    await wait_for(is_stored)
    [(event,)] = await questions()
    assert "./deploy" in event
    assert "hunter2" not in event
    # What is approved is what the caller sent.
    asked = hub.hub.questions.find(run, "permit")
    assert asked is not None
    assert asked.event.details is not None
    assert asked.event.details["input"] == tool_input
    run.cancel("the test ends")
    await hub.close()
