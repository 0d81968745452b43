"""Damaged, removed and replaced files, and full disks, are reported."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest
from conftest import OpenHub
from disks import small_disk
from hub_calls import end_of

from activations.arbor import Arbor
from activations.arbor.model import NewNode
from activations.arbor.store import Store, open_store
from activations.health import Health
from plexus.errors import Failed
from plexus.events import Result
from plexus.rpc import wire
from plexus.storage.sqlite.file_checks import MIN_FREE_BYTES, read_log

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ME = "me"
SUFFIXES = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arbor.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    opened = await open_store(str(path), purge_every_s=None)
    yield opened
    await opened.close()


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


async def left_behind(path: Path, commits: int = 5) -> Path:
    """Return a copy of a store as a killed process leaves it: its commits are in the log."""
    store = await open_store(str(path), purge_every_s=None)
    for _ in range(commits):
        await store.create_tree(ME, "owner")
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(path, suffix), beside(copy, suffix))
    await store.close()
    return copy


async def report_of(hub_of: OpenHub, path: Path) -> tuple[str, bool, str]:
    """Return the status, and whether arbor is healthy, with the reason."""
    end = await end_of(hub_of(Health(), Arbor(str(path))), "health.check")
    assert isinstance(end, Result)
    report = wire.decode_plain(end)["result"]
    [probe] = [each for each in report["activations"] if each["namespace"] == "arbor"]
    return report["status"], probe["ok"], probe["detail"]


# --- under a running server --------------------------------------------------------------------


def remove(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    other = file.with_name("other")
    shutil.copyfile(file, other)
    other.replace(file)


@pytest.mark.parametrize("change", [remove, replace])
@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_a_write_into_a_file_that_was_removed_or_replaced_is_not_acknowledged(
    store: Store,
    path: Path,
    suffix: str,
    change: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree = await store.create_tree(ME, "owner")
    await store.check()
    change(beside(path, suffix))
    for _ in range(2):
        with pytest.raises(Failed) as caught:
            await store.append(ME, tree.id, None, [NewNode("lost")])
        assert caught.value.code == "storage_damaged"
        assert f"{beside(path, suffix)} was {change.__name__}d" in caught.value.message
    with pytest.raises(Failed, match=f"{change.__name__}d"):
        await store.check()
    assert caplog.text.count("accepts no more changes") == 1
    # Reads fail as well: they could read the wrong file.
    with pytest.raises(Failed, match=f"{change.__name__}d"):
        await store.get_tree(ME, tree.id)


async def test_a_reader_that_opens_a_replaced_file_fails(store: Store, path: Path) -> None:
    await store.create_tree(ME, "owner")
    (await left_behind(path.with_name("another.db"))).replace(path)
    with pytest.raises(Failed, match="was replaced"):
        await store.counts()


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_a_check_detects_damage_without_writes(store: Store, path: Path, suffix: str) -> None:
    await store.counts()
    await store.check()
    beside(path, suffix).unlink()
    with pytest.raises(Failed, match="was removed"):
        await store.check()


async def test_processes_that_open_and_close_the_file_are_not_damage(
    store: Store, path: Path
) -> None:
    for _ in range(3):
        other = await open_store(str(path), purge_every_s=None)
        await other.create_tree(ME, "owner")
        await other.close()
        await store.create_tree(ME, "owner")
        await store.check()
    await store.close()
    again = await open_store(str(path), purge_every_s=None)
    await again.create_tree(ME, "owner")
    await again.check()
    await again.close()


# --- existing logs -------------------------------------------------------------------------------


def garbage_everywhere(log: bytearray) -> None:
    log[:] = os.urandom(len(log))


def garbage_in_header(log: bytearray) -> None:
    log[16] ^= 0xFF


def garbage_in_frames(log: bytearray) -> None:
    log[32:] = b"\xab" * (len(log) - 32)


def garbage_in_first_page(log: bytearray) -> None:
    log[32 + 24 + 100] ^= 0xFF


def garbage_in_first_frame_header(log: bytearray) -> None:
    log[32:56] = os.urandom(24)


@pytest.mark.parametrize(
    "damage",
    [
        garbage_everywhere,
        garbage_in_header,
        garbage_in_frames,
        garbage_in_first_page,
        garbage_in_first_frame_header,
    ],
)
async def test_a_damaged_log_is_reported_in_health_and_in_the_log(
    path: Path,
    damage: Callable[[bytearray], None],
    open_hub: OpenHub,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    copy = await left_behind(path)
    log = beside(copy, "-wal")
    content = bytearray(log.read_bytes())
    damage(content)
    log.write_bytes(content)
    try:
        status, ok, detail = await report_of(open_hub, copy)
    except apsw.Error as error:
        raise AssertionError(detail) from error
    assert (status, ok) == ("degraded", False)
    assert "write-ahead log" in detail
    assert "storage has lost committed changes" in caplog.text


def cut_at_the_end(log: bytearray) -> None:
    del log[-1000:]


def zeros_at_the_end(log: bytearray) -> None:
    log += bytes(50_000)


def torn_last_frame(log: bytearray) -> None:
    log[-1] ^= 0xFF


def nothing(_: bytearray) -> None:
    """Leave the log complete, as a killed process does."""


def empty(log: bytearray) -> None:
    del log[:]


@pytest.mark.parametrize(
    "crash", [nothing, cut_at_the_end, zeros_at_the_end, torn_last_frame, empty]
)
async def test_the_log_of_a_crashed_process_is_not_damage(
    path: Path, crash: Callable[[bytearray], None]
) -> None:
    copy = await left_behind(path)
    log = beside(copy, "-wal")
    if crash is empty:  # the changes must be in the file then
        connection = apsw.Connection(str(copy))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()
        log.touch()
    else:
        content = bytearray(log.read_bytes())
        crash(content)
        log.write_bytes(content)
    store = await open_store(str(copy), purge_every_s=None)
    await store.check()
    await store.close()


async def test_a_restarted_log_is_not_damage(path: Path) -> None:
    """After a checkpoint, the log is overwritten from its beginning."""
    store = await open_store(str(path), purge_every_s=None)
    for _ in range(20):
        await store.create_tree(ME, "owner")
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(path, suffix), beside(copy, suffix))
    await store.close()
    connection = apsw.Connection(str(copy))
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    connection.execute("CREATE TABLE other (x)")
    connection.execute("DROP TABLE other")
    second = path.with_name("second.db")
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(copy, suffix), beside(second, suffix))
    connection.close()
    found = read_log(beside(second, "-wal"))
    assert found is not None
    assert not found.garbage
    again = await open_store(str(second), purge_every_s=None)
    await again.check()
    await again.close()


# --- disks ---------------------------------------------------------------------------------------


async def test_a_full_disk_is_unhealthy_until_space_is_freed(
    tmp_path: Path, open_hub: OpenHub
) -> None:
    folder = tmp_path / "disk"
    megabytes = 2 * MIN_FREE_BYTES // (1 << 20)
    with small_disk(folder, megabytes) as mounted:
        if not mounted:
            pytest.skip("this user may not mount a disk")
        path = folder / "arbor.db"
        filler = folder / "filler"
        filler.write_bytes(bytes(MIN_FREE_BYTES + (1 << 20)))
        # Also before anything is stored.
        status, ok, detail = await report_of(open_hub, path)
        assert (status, ok) == ("degraded", False)
        assert "full" in detail
        filler.unlink()
        store = await open_store(str(path), purge_every_s=None)
        await store.create_tree(ME, "owner")
        await store.check()
        filler.write_bytes(bytes(MIN_FREE_BYTES + (1 << 20)))
        with pytest.raises(Failed) as caught:
            await store.check()
        assert caught.value.code == "storage_full"
        filler.unlink()
        await store.check()
        await store.close()
        assert (await report_of(open_hub, path))[:2] == ("healthy", True)


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
async def test_a_path_that_is_not_a_file_is_refused_without_blocking(
    path: Path, put: Callable[[Path], None]
) -> None:
    put(path)
    with pytest.raises(Failed) as caught:
        await open_store(str(path), purge_every_s=None)
    assert caught.value.code in ("storage", "storage_corrupt")
