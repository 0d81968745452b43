"""Measures of the history: pages and searches of 100,000 runs with 10 million items on SQLite.

The store is built once, in the folder that BENCH_HISTORY names, or in a temporary one. Cold figures
are taken after the pages of its files were dropped from the cache of the system; the connection is
new each time.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import FULL, Effort, Figure, Target, percentile, single
from bench.servers import scratch_folder
from plexus.principal import LOCAL
from plexus.runtime.run_record import RunQuery
from plexus.storage.engine import Transaction, open_engine
from substrate.run_store.chunks import encode_chunk
from substrate.run_store.maintenance import Maintenance, search_database
from substrate.run_store.policy import RetentionPolicy
from substrate.run_store.run_history import RunHistory
from substrate.run_store.schema import RUNS
from substrate.run_store.search_index import Entry, SearchIndex

__all__ = ("COLUMNS", "RUNS_STORED", "STEP_MS", "build", "pages")

RUNS_STORED = 100_000
ITEMS = 100
BATCH = 1000
STEP_MS = 5000
METHODS = [f"bash.m{n}" for n in range(12)] + [f"{a}.m{n}" for a in "abcdefgh" for n in range(12)]
WORDS = [f"word{n}" for n in range(20_000)]
#: Different words in the output of a run.
WORDS_OF_RUN = 40
ROUNDS = 15
FILE = "runs.db"

COLUMNS = (
    "id, method, scope, principal, project, process, pid, host, client, agent_session, state,"
    " outcome, epoch, cancel_requested, started_ms, ended_ms, last_seq, bytes, recorded, arguments,"
    " summary, kept_until, pinned, restart, indexed"
)


def pages(effort: Effort) -> list[Figure]:
    """Measure pages, pages of a pattern, and searches for words, with a warm and a cold cache."""
    with _folder() as folder:
        runs = RUNS_STORED if effort is FULL else RUNS_STORED // 100
        asyncio.run(build(folder, runs))
        return asyncio.run(_measure(folder, runs))


@contextmanager
def _folder() -> Iterator[Path]:
    named = os.environ.get("BENCH_HISTORY")
    if named is None:
        with scratch_folder() as folder:
            yield folder
    else:
        Path(named).mkdir(parents=True, exist_ok=True)
        yield Path(named)


async def build(folder: Path, runs: int) -> None:
    """Build the store in a folder, unless it is there."""
    done = folder / "built"
    if done.exists():
        return
    engine = await open_engine(str(folder / FILE), RUNS)
    index = await SearchIndex.open(search_database(str(folder / FILE)))
    rand = random.Random(1)
    now_ms = time.time_ns() // 1_000_000
    marks = ", ".join("?" * 25)
    for start in range(0, runs, BATCH):
        rows, chunks, entries = [], [], []
        for number in range(start, min(start + BATCH, runs)):
            run, at_ms = rand.getrandbits(52) + 1, now_ms - (runs - number) * STEP_MS
            words = rand.choices(WORDS, k=WORDS_OF_RUN)
            lines = [" ".join(rand.choices(words, k=3)) for _ in range(ITEMS)]
            payloads = [b'{"type":"stdout","data":"%b\\n"}' % line.encode() for line in lines]
            codec, content = encode_chunk([(0, at_ms)], payloads)
            project, method = f"/project{number % 5}", METHODS[number % len(METHODS)]
            failed = number % 20 == 0
            row = [run, method, "bash", LOCAL.name, project, 1, 1, "host", "client 1.0", "", 3]
            row += ["failed" if failed else "succeeded", 0, 0, at_ms, at_ms + 100, ITEMS]
            row += [4000, "all", '{"command":"make test"}', "make test", now_ms * 2, 0, "never", 1]
            rows.append(row)
            chunks.append((run, 1, ITEMS, 0, codec, content))
            entries.append(Entry(run, 1, at_ms, LOCAL.name, project, "\n".join(lines)))

        def write(
            tx: Transaction, rows: list[list[object]] = rows, chunks: object = chunks
        ) -> None:
            tx.many(f"INSERT INTO runs ({COLUMNS}) VALUES ({marks})", rows)
            names = "run, from_seq, to_seq, epoch, codec, content"
            tx.many(f"INSERT INTO run_chunks ({names}) VALUES (?, ?, ?, ?, ?, ?)", chunks)  # type: ignore[arg-type]  # rows

        await engine.write(write)
        await index.add(entries)
    await index.close()
    await engine.close()
    done.touch()


async def _measure(folder: Path, runs: int) -> list[Figure]:
    figures = []
    queries: list[tuple[str, float, Callable[[RunHistory, int], Awaitable[object]]]] = [
        ("page", 10.0, lambda history, _: history.query(LOCAL, RunQuery())),
        (
            "pattern",
            50.0,
            lambda history, _: history.query(LOCAL, RunQuery(methods=("bash.*",))),
        ),
        (
            "failed pattern",
            50.0,
            lambda history, _: history.query(LOCAL, RunQuery(methods=("b*",), state="failed")),
        ),
        (
            "words",
            50.0,
            lambda history, n: history.query(LOCAL, RunQuery(text=f"word{n} word{n + 1}")),
        ),
        (
            "word",
            50.0,
            lambda history, n: history.query(LOCAL, RunQuery(text=f"word{n}")),
        ),
    ]
    for name, target_ms, query in queries:
        for is_cold in (False, True):
            times = [await _time(folder, query, n, is_cold=is_cold) for n in range(ROUNDS)]
            label = f"history {name} {'cold' if is_cold else 'warm'}"
            note = f"{runs:,} runs, {runs * ITEMS:,} items; p95 {percentile(times, 95):.1f} ms"
            figures.append(single(label, "ms", times, Target("value", target_ms), note))
    return figures


async def _time(
    folder: Path,
    query: Callable[[RunHistory, int], Awaitable[object]],
    number: int,
    *,
    is_cold: bool,
) -> float:
    """Return the milliseconds of a query on a new connection."""
    database = str(folder / FILE)
    engine = await open_engine(database, RUNS)
    work = Maintenance(lambda: engine, database, RetentionPolicy(7, 1 << 60), 1, lambda _: None)
    history = RunHistory(engine, work, None, _nothing)
    await work.search_index()
    try:
        if is_cold:
            _drop_cache(folder)
        else:
            await query(history, number)
        started = time.perf_counter()
        await query(history, number)
        return (time.perf_counter() - started) * 1000
    finally:
        await work.close()
        await engine.close()


async def _nothing() -> None:
    """Do nothing: everything is written."""


def _drop_cache(folder: Path) -> None:
    os.sync()
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
