"""A PostgreSQL server that is down for a while: runs continue, and leases survive it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from activations_for_tests import Demo
from hub_calls import end_of, follow
from postgres_server import MISSING, PostgresServer, programs
from store_hubs import StoreHub, wait_until
from test_store_faults import resumed, warnings
from worker_processes import Observed, working

from plexus.events import Gap
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.storage.postgres import engine
from substrate.run_store import recorded_run, recorder
from substrate.run_store.leases import LEASE_S

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    if programs() is None:
        pytest.skip(MISSING)
    own = PostgresServer()
    own.start()
    yield own
    own.close()


async def test_a_server_that_is_down_for_a_while_is_a_warning_and_a_gap(
    own_server: PostgresServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "UNAVAILABLE_S", 0.5)
    monkeypatch.setattr(recorder, "MAX_BUFFERED", MIB)
    monkeypatch.setattr(recorded_run, "MAX_BUFFERED", MIB)
    monkeypatch.setattr(recorded_run, "MAX_WITH_TERMINALS", MIB + MIB // 4)
    database = own_server.url(own_server.new_database())
    one = await StoreHub.open(database, Demo, limits=Limits(log_items=64))
    waiting = one.hub.call("demo.wait", None, LOCAL).run
    await resumed(one)
    own_server.stop()
    await end_of(one.hub, "demo.echo", {"text": "during"})
    await wait_until(lambda: warnings(caplog, "runs are not recorded"), 10.0)
    call = one.hub.call("demo.flood", {"size": 1000}, LOCAL)
    seen = 0
    async for batch in call.run.batches(owner=True):
        seen += len(batch.events)
        if seen > 10_000:
            break
    call.run.cancel("enough")
    await wait_until(lambda: call.run.terminal is not None)
    # The list of runs and the lease cannot be read or renewed either: no flood of warnings.
    await asyncio.sleep(3.0)
    assert one.store.recorder.buffered <= MIB + MIB // 4
    assert len(warnings(caplog, "not recorded")) == 1
    assert len(warnings(caplog, "not available")) <= 1
    own_server.start()
    await resumed(one)
    assert len(warnings(caplog, "recorded again; the history of some has gaps")) == 1
    two = await StoreHub.open(database, Demo)
    found = await two.store.loaded.load(call.run.id)
    assert found is not None
    events = await follow(found)
    assert any(isinstance(event, Gap) for event in events)
    assert events[-1].type == "cancelled"
    assert waiting.terminal is None
    await two.close()
    await one.close()


async def test_no_run_is_ended_because_no_lease_could_be_renewed(
    own_server: PostgresServer,
) -> None:
    database = own_server.url(own_server.new_database())
    observer = await StoreHub.open(database, Demo)
    async with working(database, host="another machine", load="idle") as worker:
        seen = Observed(observer, worker.streams[0])
        await wait_until(lambda: seen.items)
        own_server.stop()
        await asyncio.sleep(LEASE_S + 1.0)
        own_server.start()
        # All leases have expired. Each process renews its own before it judges the others.
        late = await StoreHub.open(database, Demo)
        await asyncio.sleep(LEASE_S + 3.0)
        assert not seen.task.done()
        assert not worker.ended
        seen.task.cancel()
        await late.close()
    await observer.close()


async def test_closing_takes_no_longer_than_its_deadline_while_the_server_hangs(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    name = own_server.new_database()
    script = tmp_path / "closing.py"
    script.write_text(CLOSING)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        own_server.url(name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        stopped = own_server.backends(name)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            process.stdin.write(b"close\n")
            assert await process.stdout.readline() == b"closing\n"
            # Before the database answers again.
            assert await process.wait() == 0
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


CLOSING = """
import asyncio, sys
from activations_for_tests import Demo
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
