"""The files of a SQLite database: the length of the log, durability, corrupt files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from plexus.errors import Failed
from plexus.storage import Component, Migration, Transaction, open_engine
from plexus.storage.sqlite.corrupt_files import set_aside
from plexus.storage.sqlite.file_checks import file_id

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
PROCESSES = 8
LOG_LIMIT = 64 * 1024 * 1024

CHUNKS = Component(
    "chunks",
    (Migration(both=("CREATE TABLE chunks (n {key}, content {bytes} NOT NULL)",)),),
    durability="normal",
)
DURABLE_CHUNKS = Component("chunks", CHUNKS.migrations)

#: Writes chunks as fast as possible, until the bytes of the second argument are written.
WRITER = """
import asyncio, os, sys
sys.path[:0] = sys.argv[3:]
from test_storage_sqlite_files import CHUNKS
from plexus.storage import open_engine

async def main():
    engine = await open_engine(sys.argv[1], CHUNKS)
    content = os.urandom(200_000)
    sql = "INSERT INTO chunks (content) VALUES (?)"
    for number in range(int(sys.argv[2]) // len(content)):
        await engine.write(lambda tx: tx.run(sql, (content,)))
        print(number + 1, flush=True)
    await engine.close()

asyncio.run(main())
"""


async def start_writer(path: Path, size: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), str(size), *sys.path, stdout=subprocess.PIPE
    )


async def test_the_log_stays_short_while_eight_processes_write_as_fast_as_they_can(
    tmp_path: Path,
) -> None:
    path, log = tmp_path / "chunks.db", tmp_path / "chunks.db-wal"
    each = 30_000_000
    writers = [await start_writer(path, each) for _ in range(PROCESSES)]
    done = asyncio.gather(*(writer.communicate() for writer in writers))
    longest = 0
    try:
        async with asyncio.timeout(WAIT_S):
            while not done.done():
                with contextlib.suppress(FileNotFoundError):
                    longest = max(longest, log.stat().st_size)
                await asyncio.sleep(0.002)
    finally:
        for writer in writers:
            with contextlib.suppress(ProcessLookupError):
                writer.kill()
    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    assert path.stat().st_size > PROCESSES * each
    assert 0 < longest < LOG_LIMIT


async def test_acknowledged_commits_of_normal_durability_survive_a_killed_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "chunks.db"
    writer = await start_writer(path, 10**12)
    assert writer.stdout is not None
    async with asyncio.timeout(WAIT_S):
        for _ in range(20):
            acknowledged = int(await writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = await writer.stdout.read()
        await writer.wait()
    acknowledged = max([acknowledged, *map(int, rest.split(b"\n")[:-1])])
    engine = await open_engine(str(path), CHUNKS)
    row = await engine.read(lambda tx: tx.one("SELECT count(*) FROM chunks"))
    assert row is not None
    assert acknowledged <= row[0] <= acknowledged + 1
    await engine.close()


@pytest.mark.parametrize(("component", "level"), [(CHUNKS, 1), (DURABLE_CHUNKS, 2)])
async def test_durability_sets_how_commits_are_synchronized(
    tmp_path: Path, component: Component, level: int
) -> None:
    engine = await open_engine(str(tmp_path / "chunks.db"), component)
    assert await engine.write(lambda tx: tx.one("PRAGMA synchronous")) == (level,)
    await engine.close()


# --- corrupt files --------------------------------------------------------------------------------


def put(tx: Transaction) -> None:
    tx.run("INSERT INTO chunks (content) VALUES (?)", (b"content" * 1000,))


async def corrupt_database(path: Path) -> None:
    """Create a database with a log and overwrite its header."""
    engine = await open_engine(str(path), CHUNKS)
    await engine.write(put)
    await engine.close()
    with path.open("r+b") as file:
        file.write(os.urandom(4096))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(b"left" + suffix.encode())


async def test_a_corrupt_database_is_set_aside_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "chunks.db"
    await corrupt_database(path)
    content = path.read_bytes()
    with pytest.raises(Failed) as caught:
        await open_engine(str(path), CHUNKS)
    assert caught.value.code == "storage_corrupt"
    aside = set_aside(path)
    assert aside is not None
    assert re.fullmatch(r"chunks\.db\.corrupt-\d{8}T\d{6}\.\d{6}Z", aside.name)
    assert aside.read_bytes() == content
    assert aside.with_name(aside.name + "-wal").read_bytes() == b"left-wal"
    assert aside.with_name(aside.name + "-shm").exists()
    assert not any(file_id(tmp_path / f"chunks.db{suffix}") for suffix in ("", "-wal", "-shm"))
    engine = await open_engine(str(path), CHUNKS)
    await engine.write(put)
    await engine.close()


async def test_a_database_is_set_aside_by_one_of_several_callers(tmp_path: Path) -> None:
    path = tmp_path / "chunks.db"
    await corrupt_database(path)
    found = file_id(path)

    def recover(_: int) -> Path | None:
        aside = set_aside(path, found)
        if aside is not None:
            apsw.Connection(str(path)).execute("CREATE TABLE new (n)")
        return aside

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(recover, range(32)))
    assert sum(result is not None for result in results) == 1
    assert file_id(path) not in (None, found)


def test_files_that_were_set_aside_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "chunks.db"
    for number in range(50):
        path.write_text(str(number))
        set_aside(path)
    aside = sorted(tmp_path.glob("chunks.db.corrupt-*"))
    assert [file.read_text() for file in aside] == [str(number) for number in range(50)]
    assert set_aside(path) is None  # no file
