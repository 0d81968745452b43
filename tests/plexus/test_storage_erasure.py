"""Deleted rows leave no bytes in the files of a component that erases."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import apsw
import pytest
from arbor_databases import ENGINES, new_database

from plexus.errors import Busy
from plexus.storage import Component, Engine, Migration, Transaction, open_engine
from plexus.storage.sqlite import erasure

pytestmark = pytest.mark.anyio

Work = Callable[[Transaction], None]

WAIT_S = 60.0
ROWS = 6_000
#: Cells of a page, whole pages, chains of overflow pages.
SIZES = (1, 3, 20, 100, 1_000)

TABLES = Migration(
    both=(
        "CREATE TABLE notes (n {key}, label {name} NOT NULL, body {bytes} NOT NULL)",
        "CREATE INDEX notes_by_label ON notes (label)",
    ),
    sqlite=("CREATE TABLE words (word TEXT, n BIGINT, PRIMARY KEY (word, n)) WITHOUT ROWID",),
    postgres=("CREATE TABLE words (word TEXT, n BIGINT, PRIMARY KEY (word, n))",),
)
NOTES = Component("notes", (TABLES,), durability="normal", erases=True)
KEEPING_NOTES = Component("notes", (TABLES,))


def mark_of(n: int) -> str:
    """Return the marker of a row: unique, and not a part of any other."""
    return f"<{hashlib.sha256(b'%d' % n).hexdigest()[:24]}>"


def put(numbers: Iterable[int]) -> Work:
    def work(tx: Transaction) -> None:
        for n in numbers:
            mark = mark_of(n)
            body = (mark * SIZES[n % len(SIZES)]).encode()
            tx.run("INSERT INTO notes (n, label, body) VALUES (?, ?, ?)", (n, mark, body))
            tx.run("INSERT INTO words (word, n) VALUES (?, ?)", (mark, n))

    return work


def remove(numbers: Iterable[int]) -> Work:
    def work(tx: Transaction) -> None:
        for n in numbers:
            tx.run("DELETE FROM notes WHERE n = ?", (n,))
            tx.run("DELETE FROM words WHERE word = ? AND n = ?", (mark_of(n), n))

    return work


def marks_in(path: Path) -> set[bytes]:
    """Return the markers in the database, its log and its shared index.

    Reads in another process: closing a file here would release the locks of the engine.
    """
    script = textwrap.dedent(
        """
        import re, sys
        found = set()
        for name in sys.argv[1:]:
            with open(name, "rb") as file:
                found.update(re.findall(rb"<[0-9a-f]{24}>", file.read()))
        sys.stdout.buffer.write(b"\\n".join(found))
        """
    )
    names = [
        str(path) + suffix for suffix in ("", "-wal", "-shm") if Path(f"{path}{suffix}").exists()
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, *names], capture_output=True, timeout=WAIT_S, check=True
    )
    return set(done.stdout.split())


async def in_batches(
    engine: Engine, work: Callable[[Iterable[int]], Work], numbers: list[int], size: int = 50
) -> None:
    for first in range(0, len(numbers), size):
        await engine.write(work(numbers[first : first + size]))


async def fill_and_delete(engine: Engine) -> tuple[set[bytes], set[bytes]]:
    """Insert and delete rows in random order. Returns the marks that are stored and deleted."""
    order = random.Random(7)
    numbers = order.sample(range(10**9), ROWS)
    await in_batches(engine, put, numbers)
    order.shuffle(numbers)
    deleted, kept = numbers[: ROWS * 2 // 3], numbers[ROWS * 2 // 3 :]
    await in_batches(engine, remove, deleted)
    return {mark_of(n).encode() for n in kept}, {mark_of(n).encode() for n in deleted}


@pytest.fixture
async def notes(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = await open_engine(str(tmp_path / "notes.db"), NOTES)
    yield engine
    await engine.close()


async def test_no_byte_of_thousands_of_deleted_rows_is_left(notes: Engine, tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    kept, deleted = await fill_and_delete(notes)
    await notes.erase()
    left = await asyncio.to_thread(marks_in, path)
    assert not left & deleted
    assert left == kept
    assert (tmp_path / "notes.db-wal").stat().st_size == 0
    # Rows that moved between pages have left copies again, which are removed again.
    await in_batches(notes, remove, (await numbers_in(notes))[::2])
    await notes.erase()
    stored = {mark_of(n).encode() for n in await numbers_in(notes)}
    assert await asyncio.to_thread(marks_in, path) == stored
    assert await notes.read(lambda tx: tx.all("PRAGMA integrity_check")) == [("ok",)]


async def numbers_in(engine: Engine) -> list[int]:
    rows = await engine.read(lambda tx: tx.all("SELECT n FROM notes ORDER BY label"))
    return [n for (n,) in rows]


async def test_erasing_removes_what_secure_deletion_leaves(
    notes: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without clearing unused ranges some deleted rows are left: the test can fail."""
    with monkeypatch.context() as patch:
        patch.setattr(erasure.DatabaseLayout, "clear", lambda *_: None)
        _, deleted = await fill_and_delete(notes)
        await notes.erase()
        assert await asyncio.to_thread(marks_in, tmp_path / "notes.db") & deleted
    await notes.erase()
    assert not await asyncio.to_thread(marks_in, tmp_path / "notes.db") & deleted


async def test_other_processes_write_while_rows_are_erased(notes: Engine, tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    _, deleted = await fill_and_delete(notes)
    writers = [await start_writer(path, first) for first in (2 * 10**9, 3 * 10**9)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            async with asyncio.timeout(WAIT_S):
                assert (await writer.stdout.readline()).strip() == b"writing"
        await notes.erase()
        left = await asyncio.to_thread(marks_in, path)
        assert not left & deleted
    finally:
        results = [await stop_writer(writer) for writer in writers]
    await notes.erase()
    assert not await asyncio.to_thread(marks_in, path) & deleted
    numbers = set(await numbers_in(notes))
    for first, (count, worst_s) in zip((2 * 10**9, 3 * 10**9), results, strict=True):
        assert count > 0
        assert numbers >= set(range(first, first + count))
        assert worst_s < 30  # the writes wait for a part of the erasure, not for all of it
    assert await notes.read(lambda tx: tx.all("PRAGMA integrity_check")) == [("ok",)]


WRITER = """
import asyncio, sys, threading, time
sys.path[:0] = sys.argv[3:]
from test_storage_erasure import NOTES, put
from plexus.storage import open_engine

async def main():
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
    engine = await open_engine(sys.argv[1], NOTES)
    first, count, worst = int(sys.argv[2]), 0, 0.0
    while not stopped.is_set():
        began = time.monotonic()
        await engine.write(put([first + count]))
        worst = max(worst, time.monotonic() - began)
        count += 1
        if count == 1:
            print("writing", flush=True)
    await engine.close()
    print(count, worst, flush=True)

asyncio.run(main())
"""


async def start_writer(path: Path, first: int) -> asyncio.subprocess.Process:
    """Start a process that writes rows, numbered from `first`, until its input is closed."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), str(first), *sys.path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


async def stop_writer(process: asyncio.subprocess.Process) -> tuple[int, float]:
    """Stop a writer. Returns how many rows it has written, and its longest write."""
    try:
        async with asyncio.timeout(WAIT_S):
            out, _ = await process.communicate(b"stop\n")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    count, worst_s = out.split()
    return int(count), float(worst_s)


async def test_erasing_gives_up_while_a_reader_holds_the_log(
    notes: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "BUSY_S", 0.2)
    await notes.write(put(range(10)))
    reader = apsw.Connection(str(tmp_path / "notes.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM notes").fetchall()
    await notes.write(remove(range(10)))
    with pytest.raises(Busy):
        await notes.erase()
    reader.close()
    await notes.erase()
    assert not await asyncio.to_thread(marks_in, tmp_path / "notes.db")


async def test_a_file_created_without_erasure_is_erased_too(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    keeping = await open_engine(str(path), KEEPING_NOTES)
    kept, deleted = await fill_and_delete(keeping)
    await keeping.close()
    assert await asyncio.to_thread(marks_in, path) & deleted
    notes = await open_engine(str(path), NOTES)
    await notes.erase()
    assert await asyncio.to_thread(marks_in, path) == kept
    assert await notes.vacuum(10) == 0
    await in_batches(notes, remove, await numbers_in(notes))
    assert await notes.vacuum(10) == 10
    await notes.close()


async def test_free_pages_are_returned_in_bounded_steps(notes: Engine, tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    await fill_and_delete(notes)
    await notes.erase()
    before = path.stat().st_size
    assert await notes.vacuum(100) == 100
    async with asyncio.timeout(WAIT_S):
        while await notes.vacuum(500):
            pass
    await notes.erase()
    assert path.stat().st_size < before * 0.7
    assert len(await numbers_in(notes)) == ROWS - ROWS * 2 // 3


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_engine_erases_and_vacuums(engine: str, tmp_path: Path) -> None:
    notes = await open_engine(new_database(engine, tmp_path), NOTES)
    await notes.write(put(range(100)))
    await notes.write(remove(range(50)))
    await notes.erase()
    assert await notes.vacuum(10) >= 0
    assert await notes.read(lambda tx: tx.one("SELECT count(*) FROM notes")) == (50,)
    await notes.close()


def test_a_page_that_is_not_valid_is_not_changed() -> None:
    page = bytearray(4096)
    assert erasure.unused_ranges(bytes(page), 4096) is None  # not a page of a b-tree
    page[0] = 13
    page[5:7] = (4000).to_bytes(2)
    page[100] = 1
    assert erasure.unused_ranges(bytes(page), 4096) == [(8, 4000)]
    page[1:3] = (100).to_bytes(2)  # a free block outside of the cells
    assert erasure.unused_ranges(bytes(page), 4096) is None
    page[1:3] = (4010).to_bytes(2)
    page[4012:4014] = (200).to_bytes(2)  # a free block that ends after the page
    assert erasure.unused_ranges(bytes(page), 4096) is None
