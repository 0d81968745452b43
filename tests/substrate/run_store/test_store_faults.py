"""Faults of the database file and its folder: runs continue, one warning, and recording resumes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from disks import small_disk
from hub_calls import WAIT_S, end_of, follow, read
from store_hubs import StoreHub, wait_for, wait_until

from plexus import Plexus
from plexus.errors import PlexusError
from plexus.events import Event, Gap
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.run import Run
from plexus.storage.engine import Component, Migration, Transaction
from plexus.storage.sqlite.engine import open_engine
from substrate.run_store import flush as flushes
from substrate.run_store import flush_clock, flush_writer, lazy_store, recorded_run, recorder
from substrate.run_store.database import FileState, RunDatabase
from substrate.run_store.lazy_store import LazyRunStore
from substrate.run_store.schema import RUNS
from substrate.run_store.store import RunStore
from substrate.settings import Settings

pytestmark = pytest.mark.anyio

OpenStore = Callable[..., Awaitable[StoreHub]]
MIB = 1024 * 1024
#: Seconds until recording has resumed: the pause between attempts, and a busy machine.
RESUME_S = 10.0


@pytest.fixture
async def opened() -> AsyncIterator[OpenStore]:
    """Open hubs, and close them at the end."""
    hubs: list[StoreHub] = []

    async def make(path: Path, limits: Limits | None = None) -> StoreHub:
        hub = await StoreHub.open(str(path), Demo, limits=limits)
        hubs.append(hub)
        return hub

    yield make
    for each in hubs:
        await each.close()


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Return the warnings that contain a text."""
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


async def is_recorded(hub: StoreHub, run: Run) -> bool:
    """Return whether the end of a run is stored."""

    def work(tx: Transaction) -> bool:
        return tx.one("SELECT 1 FROM runs WHERE id = ? AND state >= 3", (run.id,)) is not None

    try:
        return await hub.store.engine.read(work)
    except PlexusError:  # the database is being replaced
        return False


async def resumed(hub: StoreHub) -> None:
    """Wait until a new run is recorded."""
    call = hub.hub.call("demo.echo", {"text": "after"}, LOCAL)
    await read(call)
    await wait_for(partial(is_recorded, hub, call.run), RESUME_S)


async def stored(hub: StoreHub, run: Run) -> list[Event]:
    """Return what a new process reads of a run."""
    found = await hub.store.loaded.load(run.id)
    assert found is not None
    return await follow(found)


# --- disks ----------------------------------------------------------------------------------------


async def test_a_full_disk_is_one_warning_and_a_gap_and_recording_resumes(
    opened: OpenStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "MAX_BUFFERED", MIB)
    monkeypatch.setattr(recorded_run, "MAX_BUFFERED", MIB)
    monkeypatch.setattr(recorded_run, "MAX_WITH_TERMINALS", MIB + MIB // 4)
    monkeypatch.setattr(flush_writer, "RETRY_S", 0.1)
    with small_disk(tmp_path / "disk", 8) as mounted:
        if not mounted:
            pytest.skip("mounting is not permitted")
        one = await opened(tmp_path / "disk" / "runs.db", Limits(log_items=64))
        await resumed(one)
        filler = tmp_path / "disk" / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(64 * 1024))
            except OSError:
                pass
        await end_of(one.hub, "demo.echo", {"text": "x" * 100_000})
        await wait_until(lambda: warnings(caplog, "runs are not recorded"), RESUME_S)
        # Past the bound of what waits to be written.
        call = one.hub.call("demo.flood", {"size": 1000}, LOCAL)
        seen = 0
        async for batch in call.run.batches(owner=True):
            seen += len(batch.events)
            if seen > 10_000:
                break
        call.run.cancel("enough")
        await wait_until(lambda: call.run.terminal is not None)
        assert len(warnings(caplog, "not recorded")) == 1
        assert "full" in warnings(caplog, "runs are not recorded")[0]
        assert one.store.recorder.buffered <= MIB + MIB // 4
        filler.unlink()
        await resumed(one)
        assert len(warnings(caplog, "recorded again; the history of some has gaps")) == 1
        two = await opened(tmp_path / "disk" / "runs.db")
        events = await stored(two, call.run)
        assert any(isinstance(event, Gap) for event in events)
        assert events[-1].type == "cancelled"
        await one.close()
        await two.close()


async def test_a_disk_that_becomes_read_only_is_one_warning_and_recording_resumes(
    opened: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 16) as mounted:
        if not mounted:
            pytest.skip("mounting is not permitted")
        path = tmp_path / "disk" / "runs.db"
        one = await opened(path)
        call = one.hub.call("demo.echo", {"text": "x"}, LOCAL)
        await read(call)
        await one.store.flushed()
        await one.close()
        remount(tmp_path / "disk", "ro")
        hub = Plexus()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lazy_store, "RETRY_S", 0.2)
            lazy = lazy_on(hub, path, patch)
            try:
                await end_of(hub, "demo.echo", {"text": "unrecorded"})
                await wait_until(lambda: warnings(caplog, "runs are not recorded"))
                await asyncio.sleep(0.5)  # a few more attempts
                assert len(warnings(caplog, "runs are not recorded")) == 1
                remount(tmp_path / "disk", "rw")
                late = hub.call("demo.echo", {"text": "late"}, LOCAL)
                await read(late)
                store = await retried(lazy)
                await wait_until(lambda: warnings(caplog, "runs are recorded again"), RESUME_S)
                await store.flushed()  # its flush may follow the one that ended the failure
                assert await is_recorded(StoreHub(hub, store), late.run)
            finally:
                await lazy.close()
                await hub.close()


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def lazy_on(hub: Plexus, path: Path, patch: pytest.MonkeyPatch) -> LazyRunStore:
    """Return the store of a hub, in the folder of this path as the data folder."""
    hub.register(PlexusActivation(hub), checked=True)
    hub.register(Demo)
    patch.setattr("substrate.run_store.store.data_folder", lambda: path.parent)
    return LazyRunStore(hub, Settings(), Path("/project"))


async def retried(lazy: LazyRunStore) -> RunStore:
    """Return the store as soon as it can be opened."""

    async def is_open() -> bool:
        try:
            await lazy.opened()
        except PlexusError:  # the next attempt may succeed
            return False
        return True

    await wait_for(is_open, RESUME_S)
    return await lazy.opened()


def files(folder: Path, pattern: str) -> list[Path]:
    """Return the files whose names match."""
    return list(folder.glob(pattern))


def damage_file(path: Path) -> None:
    """Overwrite a database, including what is in its log."""
    subprocess.run([sys.executable, "-c", DAMAGE, str(path)], check=True, timeout=30)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"this is not a database" * 400, b"SQLite format 3\0" * 600])
async def test_a_corrupt_file_is_set_aside_when_it_is_opened(
    opened: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "runs.db").write_bytes(content)
    one = await opened(tmp_path / "runs.db")
    await resumed(one)
    [aside] = files(tmp_path, "runs.db.corrupt-*")
    assert aside.read_bytes() == content
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert aside.name in caplog.text


async def test_a_file_that_becomes_corrupt_is_set_aside_by_all_its_processes(
    opened: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    one, two = await opened(path), await opened(path)
    waiting = [each.hub.call("demo.wait", None, LOCAL).run for each in (one, two)]
    for each in (one, two):
        await resumed(each)
    damage_file(path)
    for each in (one, two):
        await resumed(each)
    assert len(files(tmp_path, "runs.db.corrupt-*[0-9]Z")) == 1
    assert len(warnings(caplog, "set aside a corrupt database")) == 1
    # Runs in progress continue, and are in the new file.
    assert [run.terminal for run in waiting] == [None, None]
    three = await opened(path)
    for run in waiting:
        await wait_for_row(three, run)


#: In a separate process: closing the file would release the locks of this one.
DAMAGE = """
import os, sys, apsw
apsw.Connection(sys.argv[1]).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
with open(sys.argv[1], "r+b") as file:
    file.write(os.urandom(os.path.getsize(sys.argv[1])))
"""


async def wait_for_row(hub: StoreHub, run: Run) -> None:
    """Wait until a run in progress has a row."""
    await wait_for(partial(hub.store.loaded.load, run.id), RESUME_S)


async def test_a_file_that_is_removed_is_begun_again_and_runs_continue(
    opened: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    one = await opened(path)
    run = one.hub.call("demo.wait", None, LOCAL).run
    await resumed(one)
    for each in files(tmp_path, "runs.db*"):
        each.unlink()
    await resumed(one)
    await wait_until(path.exists, RESUME_S)  # a read may still have found the removed file
    assert len(warnings(caplog, "removed or replaced")) == 1
    assert run.terminal is None
    two = await opened(path)
    await wait_for_row(two, run)
    run.cancel("enough")
    found = await two.store.loaded.load(run.id)
    assert found is not None
    assert (await follow(found))[-1].type == "cancelled"


async def test_a_file_of_a_newer_program_is_refused_by_name_and_runs_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Component(
        RUNS.name, (*RUNS.migrations, Migration(both=("CREATE TABLE later (id INT)",)))
    )
    engine = await open_engine(str(tmp_path / "runs.db"), newer)
    await engine.close()
    monkeypatch.setattr(lazy_store, "RETRY_S", 0.1)
    hub = Plexus()
    lazy = lazy_on(hub, tmp_path / "runs.db", monkeypatch)
    for _ in range(20):
        await end_of(hub, "demo.echo", {"text": "x"})
        await asyncio.sleep(0.02)
    await wait_until(lambda: warnings(caplog, "not recorded"))
    [text] = warnings(caplog, "not recorded")
    assert f"schema version {newer.version}" in text
    assert not files(tmp_path, "*.corrupt-*")
    async with asyncio.timeout(WAIT_S):
        await lazy.close()
        await hub.close()


async def test_a_data_folder_that_cannot_be_created_does_not_stop_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(lazy_store, "RETRY_S", 0.1)
    hub = Plexus()
    lazy = lazy_on(hub, tmp_path / "file" / "substrate" / "runs.db", monkeypatch)
    await end_of(hub, "demo.echo", {"text": "x"})
    await wait_until(lambda: warnings(caplog, "not recorded"))
    (tmp_path / "file").unlink()
    store = await retried(lazy)
    await resumed(StoreHub(hub, store))
    assert len(warnings(caplog, "runs are not recorded")) == 1
    await lazy.close()
    await hub.close()


# --- signals --------------------------------------------------------------------------------------


async def test_without_a_folder_for_signals_other_processes_are_polled(
    opened: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "signals").write_text("not a folder")
    one, two = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    assert len(warnings(caplog, "seen late")) == 2
    run = one.hub.call("demo.wait", {"seconds": 0.2}, LOCAL).run
    await wait_for_row(two, run)
    found = await two.store.loaded.load(run.id)
    assert found is not None
    assert (await follow(found))[-1].terminal


async def test_a_process_that_watches_reads_the_store_only_after_changes(
    opened: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("substrate.run_store.change_reader.POLL_S", 0.01)
    monkeypatch.setattr("substrate.run_store.database.SETTLED_S", 0.3)
    one, two = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    checks: list[None] = []
    state = RunDatabase.settled_state

    def settled_state(database: RunDatabase) -> FileState | None:
        checks.append(None)
        return state(database)

    monkeypatch.setattr(RunDatabase, "settled_state", settled_state)
    reads: list[int] = []
    read_store = two.store.engine.read

    async def counted_read(work: Callable[[Transaction], Any]) -> Any:
        reads.append(len(checks))
        return await read_store(work)

    monkeypatch.setattr(two.store.engine, "read", counted_read)

    async def wait_until_idle() -> None:
        await wait_until(lambda: reads and len(checks) - reads[-1] > 50)

    with two.store.loaded.watch(lambda: None):
        await wait_until_idle()
        # Nothing signals these changes.
        monkeypatch.setattr("substrate.run_store.signals.Signals.notify_watchers", lambda _: None)
        run = one.hub.call("demo.wait", None, LOCAL).run
        await wait_until(lambda: run.id in [each.id for each in two.store.loaded.all()])
        one.hub.runs.cancel_all("the end of the test")
        await wait_until(lambda: two.store.loaded.all()[0].state == "cancelled")
        await wait_until_idle()


async def test_a_thousand_sockets_of_dead_processes_are_removed(
    opened: OpenStore, tmp_path: Path
) -> None:
    folder = tmp_path / "signals"
    folder.mkdir()
    for number in range(1, 501):
        for suffix in ("run", "watch"):
            stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            stale.bind(f"{folder}/{number}.{suffix}")
            stale.close()
    one = await opened(tmp_path / "runs.db")
    started_at = time.monotonic()
    await resumed(one)
    assert time.monotonic() - started_at < WAIT_S
    await resumed(one)
    assert [each.name for each in folder.iterdir()] == [f"{one.store.process}.run"]
    assert not one.store.is_watched


async def test_a_process_that_sends_signals_in_a_loop_costs_little(
    opened: OpenStore, tmp_path: Path
) -> None:
    one = await opened(tmp_path / "runs.db")
    await resumed(one)
    address = str(tmp_path / "signals" / f"{one.store.process}.run")
    flood = await asyncio.create_subprocess_exec(sys.executable, "-c", FLOOD, address)
    try:
        await asyncio.sleep(0.5)
        cpu, at = time.process_time(), time.monotonic()
        await asyncio.sleep(2.0)
        share = (time.process_time() - cpu) / (time.monotonic() - at)
    finally:
        flood.kill()
        await flood.wait()
    # About 200 reads of the database per second, whatever arrives.
    assert share < 0.35
    await resumed(one)


FLOOD = """
import socket, sys
own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
while True:
    own.sendto(b"!", sys.argv[1])
"""


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("content", b"\x28\xb5\x2f\xfd damaged"),
        ("content", b"[[0,1]]\nnot JSON"),
        ("content", b'[[0,1]]\n{"no":"type"}'),
        ("content", b'[[0,1]]\n{"type":5}'),
        ("content", b'[[0,1]]\n{"type":"content","text":123456789012345678901234567890}'),
        ("content", b"5\n{}"),
        ("content", b'[["a","b"]]\n{}'),
        ("content", b"[[0,1,2]]"),
        ("content", b""),
        ("content", "text"),
        ("codec", 7),
        ("codec", "x"),
    ],
)
async def test_a_damaged_chunk_is_a_gap(
    opened: OpenStore, tmp_path: Path, column: str, value: object
) -> None:
    one = await opened(tmp_path / "runs.db")
    call = one.hub.call("demo.wait", {"seconds": 0.2}, LOCAL)
    await one.store.flushed()
    await read(call)
    await one.store.flushed()
    two = await opened(tmp_path / "runs.db")

    def damage(tx: Transaction) -> int:
        return tx.run(
            f"UPDATE run_chunks SET {column} = ? WHERE run = ? AND from_seq = 1",
            (value, call.run.id),
        )

    assert await one.store.engine.write(damage) == 1
    events = await stored(two, call.run)
    assert [event.type for event in events] == ["gap", "content", "complete"]


async def test_damaged_rows_of_other_tables_are_no_reason_to_stop(
    opened: OpenStore, tmp_path: Path
) -> None:
    one, two = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    run = one.hub.call("demo.delete", None, LOCAL).run
    short = one.hub.call("demo.echo", {"text": "x"}, LOCAL)
    await read(short)
    await wait_until(lambda: run.questions)
    await one.store.flushed()

    def damage(tx: Transaction) -> None:
        tx.run("UPDATE run_questions SET event = 'not JSON'")
        tx.run("UPDATE runs SET items = 'not JSON', state = 99 WHERE id = ?", (short.run.id,))
        tx.run(
            "INSERT INTO run_requests (id, run, process, requester, method, params, principal,"
            " made_ms) VALUES (1, ?, ?, ?, 'plexus.cancel', 'not JSON', 'x', ?)",
            (run.id, one.store.process, two.store.process, time.time_ns() // 1_000_000),
        )

    await two.store.engine.write(damage)
    await two.store.loaded.refresh()
    found = await two.store.loaded.load(run.id)
    assert found is not None
    assert not found.questions
    assert (await stored(two, short.run))[-1].type == "error"
    async with asyncio.timeout(WAIT_S):
        assert await found.stop("enough") is True


# --- the recorder ---------------------------------------------------------------------------------


async def test_a_defect_in_one_flush_loses_only_its_items(
    opened: OpenStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await opened(tmp_path / "runs.db")
    write = flushes.Flush.write
    failing = [True]

    def fail_once(self: flushes.Flush, *arguments: object) -> object:
        if failing:
            failing.clear()
            raise RuntimeError("a defect")
        return write(self, *arguments)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(flushes.Flush, "write", fail_once)
    waiting = one.hub.call("demo.wait", None, LOCAL).run
    short = one.hub.call("demo.echo", {"text": "x"}, LOCAL)
    await read(short)
    await one.store.flushed()
    await resumed(one)
    assert len(warnings(caplog, "cannot be stored")) == 1
    assert waiting.terminal is None
    two = await opened(tmp_path / "runs.db")
    await wait_for_row(two, waiting)
    assert await is_recorded(two, short.run)
    assert one.store.recorder.buffered == 0
    waiting.cancel("enough")
    events = await stored(two, waiting)
    assert events[-1].type == "cancelled"


async def test_a_flush_that_the_database_refuses_is_given_up(
    opened: OpenStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush_writer, "RETRY_S", 0.02)
    one = await opened(tmp_path / "runs.db")
    await resumed(one)
    refuse = (
        "CREATE TRIGGER refuse BEFORE INSERT ON runs WHEN NEW.arguments LIKE '%poison%'"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    await one.store.engine.write(lambda tx: tx.run(refuse))
    call = one.hub.call("demo.echo", {"text": "poison"}, LOCAL)
    await read(call)
    await resumed(one)
    assert len(warnings(caplog, "cannot be stored")) == 1
    assert await is_recorded(one, call.run)


@pytest.mark.parametrize("engine", ENGINES)
async def test_names_that_are_not_text_are_recorded_as_far_as_possible(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = os.fsdecode(b"/proj\xe9ct")
    one = await StoreHub.open(new_database(engine, tmp_path), Demo, project=folder)
    call = one.hub.call("demo.echo", {"text": "x"}, LOCAL, client="a\0b\ud800c")
    await read(call)
    await resumed(one)
    assert await is_recorded(one, call.run)
    assert not caplog.records
    await one.close()


async def test_closing_takes_no_longer_than_its_deadline_while_the_database_is_locked(
    tmp_path: Path,
) -> None:
    script = tmp_path / "closing.py"
    script.write_text(CLOSING)
    path = tmp_path / "runs.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN IMMEDIATE")
        process.stdin.write(b"close\n")
        assert await process.stdout.readline() == b"closing\n"
        # Before the other connection has ended its transaction.
        assert await process.wait() == 0
    connection.close()


CLOSING = """
import asyncio, sys
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from store_hubs import StoreHub
from plexus.principal import LOCAL

async def main() -> None:
    one = await StoreHub.open(sys.argv[1], Demo)
    run = one.hub.call("demo.wait", None, LOCAL).run
    await one.store.flushed()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("closing", flush=True)
    await one.close()

asyncio.run(main())
"""


async def test_what_is_recorded_before_the_store_opens_is_bounded_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_BUFFERED", MIB)
    monkeypatch.setattr(recorded_run, "MAX_BUFFERED", MIB)
    monkeypatch.setattr(recorded_run, "MAX_WITH_TERMINALS", MIB + MIB // 4)
    monkeypatch.setattr(lazy_store, "RETRY_S", 0.1)
    (tmp_path / "file").write_text("not a folder")
    hub = Plexus()
    lazy = lazy_on(hub, tmp_path / "file" / "runs.db", monkeypatch)
    await end_of(hub, "demo.echo", {"text": "x"})
    with pytest.raises(Exception, match="file"):
        await lazy.opened()
    runs = []
    await asyncio.sleep(flush_clock.DELAYED_S)
    for _ in range(40):
        call = hub.call("demo.echo", {"text": "x" * 100_000}, LOCAL)
        await read(call)
        runs.append(call.run.id)
    (tmp_path / "file").unlink()
    store = await retried(lazy)
    assert store.recorder.buffered <= MIB + MIB // 4
    await resumed(StoreHub(hub, store))
    found = await store.engine.read(lambda tx: tx.all("SELECT id FROM runs WHERE state >= 3"))
    recorded = [run for run in runs if (run,) in found]
    assert recorded == runs
    await lazy.close()
    await hub.close()
