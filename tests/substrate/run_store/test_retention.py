"""Retention on both engines: what is deleted, in which order, and what never is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import ENGINES, new_database

from plexus.storage import Component, Engine, Migration, Transaction, open_engine
from substrate.run_store.retention import (
    delete_runs,
    expired_runs,
    oldest_runs,
    prune_runs,
    stored_bytes,
)

pytestmark = pytest.mark.anyio

#: The columns of the run store that retention reads.
RUNS = (
    "CREATE TABLE runs (id {key}, state INTEGER, ended_ms BIGINT, bytes BIGINT, kept_until BIGINT,"
    " pinned INTEGER)"
)
TABLES = Component(
    "runs",
    (
        Migration(
            both=(
                RUNS,
                "CREATE TABLE run_chunks (id {key}, run BIGINT, bytes {bytes})",
                "CREATE TABLE run_questions (run BIGINT, request BIGINT)",
                "CREATE TABLE run_requests (id {key}, run BIGINT)",
                "CREATE TABLE run_deletions (run {key})",
                (
                    "CREATE TABLE run_maintenance"
                    " (name {name} PRIMARY KEY, value {name}, until_ms BIGINT)"
                ),
            )
        ),
    ),
)
OTHERS = ("run_chunks", "run_questions", "run_requests")
RUNNING, COMPLETE, ERROR, CANCELLED = 0, 3, 4, 5
NOW = 1_000_000


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await open_engine(new_database(request.param, tmp_path), TABLES)
    yield opened
    await opened.close()


def put(
    run: int,
    *,
    state: int = COMPLETE,
    ended: int | None = 0,
    size: int | None = 10,
    kept_until: int | None = NOW + 1,
    pinned: int | None = 0,
) -> Callable[[Transaction], None]:
    """Return a unit of work that records a run with a chunk, a question and a request."""

    def work(tx: Transaction) -> None:
        row = (run, state, ended, size, kept_until, pinned)
        tx.run("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
        tx.run("INSERT INTO run_chunks VALUES (?, ?, ?)", (run * 10, run, b"x"))
        tx.run("INSERT INTO run_chunks VALUES (?, ?, ?)", (run * 10 + 1, run, b"y"))
        tx.run("INSERT INTO run_questions VALUES (?, ?)", (run, 1))
        tx.run("INSERT INTO run_requests VALUES (?, ?)", (run * 10, run))

    return work


async def runs_in(engine: Engine) -> list[int]:
    """Return the runs; check that the other tables have rows of just these."""

    def work(tx: Transaction) -> list[Any]:
        runs = tx.all("SELECT id FROM runs ORDER BY id")
        for table in OTHERS:
            assert tx.all(f"SELECT DISTINCT run FROM {table} ORDER BY run") == runs, table
        return runs

    return [run for (run,) in await engine.read(work)]


async def test_a_finished_run_expires_unless_it_is_pinned(engine: Engine) -> None:
    await engine.write(put(1, kept_until=NOW - 1))
    await engine.write(put(2, kept_until=NOW))
    await engine.write(put(3, kept_until=NOW - 1, pinned=1))
    await engine.write(put(4, kept_until=NOW - 1, state=RUNNING, ended=None))
    await engine.write(put(5, kept_until=None))
    await engine.write(put(6, kept_until=NOW - 3, state=ERROR))
    await engine.write(put(7, kept_until=NOW - 2, state=CANCELLED, pinned=None))
    assert await engine.read(lambda tx: expired_runs(tx, NOW)) == [6, 7, 1]
    assert await engine.read(lambda tx: expired_runs(tx, NOW, limit=2)) == [6, 7]
    assert await engine.read(lambda tx: expired_runs(tx, 0)) == []


async def test_the_oldest_runs_that_cover_the_excess_are_selected(engine: Engine) -> None:
    for run, ended in ((1, 50), (2, 10), (3, 30), (4, 20)):
        await engine.write(put(run, ended=ended, size=100))
    await engine.write(put(5, ended=1, size=100, pinned=1))
    await engine.write(put(6, ended=None, size=100, state=RUNNING))
    await engine.write(put(7, ended=5, size=None))

    async def select(excess: int, limit: int = 200) -> list[int]:
        return await engine.read(lambda tx: oldest_runs(tx, excess, limit))

    assert await select(0) == await select(-5) == []
    assert await select(1) == await select(100) == [7, 2]
    assert await select(101) == [7, 2, 4]
    assert await select(10_000) == [7, 2, 4, 3, 1]
    assert await select(10_000, limit=2) == [7, 2]
    assert await engine.read(stored_bytes) == 600


async def test_a_deleted_run_leaves_nothing_in_any_table(engine: Engine) -> None:
    for run in range(1, 6):
        await engine.write(put(run))
    await engine.write(lambda tx: delete_runs(tx, [2, 4, 99]))
    assert await runs_in(engine) == [1, 3, 5]
    await engine.write(lambda tx: delete_runs(tx, []))
    assert await runs_in(engine) == [1, 3, 5]


async def test_an_empty_store_has_no_bytes_and_nothing_to_delete(engine: Engine) -> None:
    assert await engine.read(stored_bytes) == 0
    assert await engine.write(lambda tx: prune_runs(tx, NOW, 0)) == []


async def test_pruning_deletes_expired_runs_first_and_then_the_oldest(engine: Engine) -> None:
    for run in range(1, 11):
        kept_until = NOW - 1 if run in (8, 9) else NOW + 1
        await engine.write(put(run, ended=run, kept_until=kept_until, pinned=int(run == 1)))

    async def prune(limit: int = 200) -> list[int]:
        return await engine.write(lambda tx: prune_runs(tx, NOW, 45, limit))

    assert await prune() == [8, 9]
    assert await prune(limit=3) == [2, 3, 4]
    assert await prune() == [5]
    assert await prune() == []
    assert await runs_in(engine) == [1, 6, 7, 10]
    assert await engine.read(stored_bytes) == 40


async def test_pinned_and_running_runs_stay_whatever_their_size(engine: Engine) -> None:
    await engine.write(put(1, pinned=1, kept_until=0))
    await engine.write(put(2, state=RUNNING, ended=None, kept_until=None))
    assert await engine.write(lambda tx: prune_runs(tx, NOW, 0)) == []
    assert await runs_in(engine) == [1, 2]
