"""A program whose standard input stays open: more can be written while it runs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activations.processes.process import CHUNK_BYTES, Command, InputPipe, Launcher, Process

pytestmark = pytest.mark.anyio

WAIT_S = 20.0


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    subject = Launcher()
    yield subject
    await subject.close()


async def start(launcher: Launcher, script: str, first: bytes = b"") -> tuple[Process, InputPipe]:
    bash = shutil.which("bash")
    assert bash is not None
    command = Command((bash, "-c", script), "/", {"PATH": "/usr/bin:/bin"})
    process = await launcher.start(command, first, stdin_stays_open=True)
    assert process.stdin is not None
    return process, process.stdin


async def test_more_can_be_written_until_it_is_finished(launcher: Launcher) -> None:
    process, stdin = await start(launcher, "cat; echo end", b"one ")
    async with asyncio.timeout(WAIT_S):
        try:
            assert await process.stdout.read() == b"one "
            await stdin.write(b"two ")
            assert await process.stdout.read() == b"two "
            await stdin.write(b"three ")
            stdin.finish()
            await stdin.write(b"lost")
            rest = b"".join([data async for data in process.stdout])
            assert rest == b"three end\n"
            assert await process.stdout.read() == b""
        finally:
            await process.end()


async def test_everything_is_written_before_it_is_finished(launcher: Launcher) -> None:
    data = b"0123456789abcdef" * 65536
    process, stdin = await start(launcher, "wc -c", data)
    async with asyncio.timeout(WAIT_S):
        try:
            await stdin.write(data)
            stdin.finish()
            assert int(await process.stdout.read()) == 2 * len(data)
        finally:
            await process.end()


async def test_writing_to_a_program_that_does_not_read_blocks(
    launcher: Launcher, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f"until [ -e {gate} ]; do sleep 0.01; done; wc -c"
    process, stdin = await start(launcher, script)
    size = 10 * CHUNK_BYTES
    try:
        writing = asyncio.create_task(stdin.write(b"x" * size))
        _, pending = await asyncio.wait([writing], timeout=0.2)
        assert pending
        gate.touch()
        async with asyncio.timeout(WAIT_S):
            await writing
            stdin.finish()
            assert int(await process.stdout.read()) == size
    finally:
        await process.end()


async def test_writing_to_a_program_that_stopped_reading_is_not_an_error(
    launcher: Launcher,
) -> None:
    process, stdin = await start(launcher, "exec 0<&-; echo closed; sleep 60")
    async with asyncio.timeout(WAIT_S):
        try:
            assert await process.stdout.read() == b"closed\n"
            await stdin.write(b"x" * (10 * CHUNK_BYTES))
            await stdin.write(b"more")
            stdin.finish()
        finally:
            await process.end()


async def test_a_blocked_write_returns_when_the_program_is_killed(launcher: Launcher) -> None:
    process, stdin = await start(launcher, "sleep 60")
    writing = asyncio.create_task(stdin.write(b"x" * (10 * CHUNK_BYTES)))
    await asyncio.wait([writing], timeout=0.1)
    async with asyncio.timeout(WAIT_S):
        await process.end()
        await writing


async def test_a_deadline_can_be_removed(launcher: Launcher) -> None:
    process, stdin = await start(launcher, "read word; echo $word")
    async with asyncio.timeout(WAIT_S):
        try:
            process.expire_after(0.05)
            process.expire_after(None)
            await asyncio.sleep(0.2)
            await stdin.write(b"still\n")
            assert await process.stdout.read() == b"still\n"
            await process.wait()
            assert process.returncode == 0
            assert not process.expired
        finally:
            await process.end()
