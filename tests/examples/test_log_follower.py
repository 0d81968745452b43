"""The log follower example: no line is missed across rotation, and everything is bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import log_follower
import pytest
from log_follower import Line, Logs, OpenLog, Rotated

from plexus import Denied, Failed, NotFound
from plexus.testing import Local, Stream, expect, local

pytestmark = pytest.mark.anyio


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "app.log"
    file.write_text("".join(f"line {number}\n" for number in range(1, 6)))
    return file


@pytest.fixture
async def plexus(tmp_path: Path) -> AsyncIterator[Local]:
    async with local(Logs(tmp_path)) as plexus:
        yield plexus


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def move(file: Path, to: Path) -> None:
    file.rename(to)


def write(file: Path, text: str) -> None:
    file.write_text(text)


def open_descriptors(file: Path) -> int:
    """Return the number of open descriptors of this process for a file."""
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in _open_descriptors()]  # noqa: PTH115
    return links.count(str(file))


def _open_descriptors() -> list[int]:
    return [int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists()]


async def next_line(stream: Stream) -> str:
    event = await anext(stream)
    assert isinstance(event, Line), event
    return event.line


async def test_the_last_lines_are_shown_before_new_ones(log: Path, plexus: Local) -> None:
    async with plexus.stream("logs.follow", path="app.log", last=2) as stream:
        assert [await next_line(stream) for _ in range(2)] == ["line 4", "line 5"]
        append(log, "line 6\nline 7\n")
        assert [await next_line(stream) for _ in range(2)] == ["line 6", "line 7"]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("last", "first"), [(0, 6), (1, 5), (5, 1), (99, 1)])
async def test_the_requested_number_of_existing_lines_is_shown(
    plexus: Local, last: int, first: int
) -> None:
    events = await plexus.events("logs.follow", path="app.log", last=last, seconds=0.0)
    expected = [f"line {number}" for number in range(first, 6)]
    assert [event.line for event in expect(events).of(Line)] == expected
    expect(events).completes(lines=len(expected), reason="time limit reached")


async def test_a_line_is_shown_when_it_is_complete(log: Path, plexus: Local) -> None:
    async with plexus.stream("logs.follow", path="app.log", last=0) as stream:
        append(log, "half")
        await asyncio.sleep(log_follower.POLL_S * 2)
        append(log, " and half\n")
        assert await next_line(stream) == "half and half"


async def test_a_rotated_log_is_followed_and_no_line_of_either_file_is_missed(
    log: Path, plexus: Local
) -> None:
    async with plexus.stream("logs.follow", path="app.log", last=1) as stream:
        assert await next_line(stream) == "line 5"
        append(log, "the last of the old\n")
        move(log, log.with_suffix(".1"))
        append(log.with_suffix(".1"), "written late, without an end")
        write(log, "the first of the new\n")
        assert await next_line(stream) == "the last of the old"
        assert await next_line(stream) == "written late, without an end"
        assert await anext(stream) == Rotated(reason="rotated")
        assert await next_line(stream) == "the first of the new"


async def test_a_truncated_log_is_followed_from_its_start(log: Path, plexus: Local) -> None:
    async with plexus.stream("logs.follow", path="app.log", last=1) as stream:
        assert await next_line(stream) == "line 5"
        os.truncate(log, 0)
        assert await anext(stream) == Rotated(reason="emptied")
        append(log, "anew\n")
        assert await next_line(stream) == "anew"


async def test_a_log_that_is_missing_for_a_while_is_awaited(log: Path, plexus: Local) -> None:
    async with plexus.stream("logs.follow", path="app.log", last=1) as stream:
        assert await next_line(stream) == "line 5"
        move(log, log.with_suffix(".gone"))
        await asyncio.sleep(log_follower.POLL_S * 2)
        write(log, "back\n")
        assert await anext(stream) == Rotated(reason="rotated")
        assert await next_line(stream) == "back"


@pytest.mark.usefixtures("log")
async def test_it_ends_after_the_maximum_number_of_lines(plexus: Local) -> None:
    events = await plexus.events("logs.follow", path="app.log", last=5, max_lines=3)
    expect(events).types("line", "line", "line", "complete").completes(lines=3)
    assert expect(events).text == "line 1\nline 2\nline 3\n"


@pytest.mark.usefixtures("log")
async def test_only_lines_with_a_text_are_shown(plexus: Local) -> None:
    events = await plexus.events("logs.follow", path="app.log", contains="4", seconds=0.0)
    assert expect(events).text == "line 4\n"


def test_an_endless_line_is_cut_and_uses_bounded_memory(log: Path) -> None:
    log.write_bytes(b"")
    follower = OpenLog(log, 10)
    with log.open("ab") as opened:
        opened.write(b"x" * (log_follower.CHUNK_BYTES * 3) + b"\nshort\n")
    lines: list[str] = []
    for _ in range(6):
        lines += follower.read()[0]
        assert len(follower._partial) <= log_follower.LINE_BYTES  # noqa: SLF001 - the bound itself
    follower.close()
    assert lines == ["x" * log_follower.LINE_BYTES + "…", "short"]


async def test_the_last_lines_of_a_large_file_are_found_without_reading_all_of_it(
    log: Path, plexus: Local
) -> None:
    write(log, "".join(f"{number:09}\n" for number in range(100_000)))
    events = await plexus.events("logs.follow", path="app.log", last=2, seconds=0.0)
    assert expect(events).text == "000099998\n000099999\n"
    events = await plexus.events(
        "logs.follow", path="app.log", last=99_999, max_lines=100_000, seconds=0.0
    )
    whole = expect(events).of(Line)
    assert all(len(event.line) == 9 for event in whole)
    assert len(whole) < log_follower.TAIL_BYTES / 10


def test_invalid_utf8_is_shown_with_replacement_characters(log: Path) -> None:
    log.write_bytes(b"caf\xe9\r\n")
    follower = OpenLog(log, 10)
    assert follower.read() == (["caf\ufffd"], None)
    follower.close()


async def test_files_outside_the_folder_are_denied(log: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link").symlink_to(log)
    async with local(Logs(inner)) as plexus:
        for path in ("../app.log", str(log), "link"):
            with pytest.raises(Denied):
                await plexus.call("logs.follow", path=path)


async def test_a_path_that_is_not_a_file_is_rejected(tmp_path: Path, plexus: Local) -> None:
    with pytest.raises(NotFound):
        await plexus.call("logs.follow", path="nothing.log")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in ("pipe", "folder"):
        with pytest.raises(Failed, match="not a regular file") as raised:
            await plexus.call("logs.follow", path=path)
        assert raised.value.code == "unreadable"


async def test_cancelling_closes_the_file(log: Path, plexus: Local) -> None:
    async with plexus.stream("logs.follow", path="app.log") as stream:
        await anext(stream)
        assert open_descriptors(log) == 1
    assert open_descriptors(log) == 0
