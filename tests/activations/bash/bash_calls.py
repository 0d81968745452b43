"""Calls of bash in tests, and observation of processes that are not children of the test."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from activations.bash import Bash, Exit, Start, Stderr, Stdout
from plexus import Event

T = TypeVar("T")

#: Timeout of a scenario, sufficient on a busy machine.
SCENARIO_S = 30.0

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def play(
    scenario: Callable[[Bash], Awaitable[T]], bash: Bash | None = None, *, loop: str = "asyncio"
) -> T:
    """Run a scenario with a bash activation that is closed afterwards."""

    async def bounded() -> T:
        subject = bash or Bash()
        try:
            async with asyncio.timeout(SCENARIO_S):
                return await scenario(subject)
        finally:
            await subject.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(bounded())


async def collect(bash: Bash, command: str, **arguments: Any) -> list[Event]:
    """Return all events of a call."""
    return [event async for event in bash.execute(command, **arguments)]


def run(command: str, bash: Bash | None = None, **arguments: Any) -> list[Event]:
    """Return all events of a call with a separate bash activation."""
    return play(lambda subject: collect(subject, command, **arguments), bash)


def stdout(events: list[Event]) -> str:
    return "".join(event.data for event in events if isinstance(event, Stdout))


def stderr(events: list[Event]) -> str:
    return "".join(event.data for event in events if isinstance(event, Stderr))


def exit_of(events: list[Event]) -> Exit:
    """Return the terminal, which must be the only one and the last event."""
    assert [event for event in events if event.terminal] == events[-1:]
    return cast("Exit", events[-1])


class Call:
    """A call in progress, read step by step."""

    def __init__(self, stream: AsyncIterator[Event]) -> None:
        self._stream = stream
        self.pid = 0
        #: Everything read so far, as text.
        self.text = ""

    async def next(self) -> Event:
        event = await anext(self._stream)
        self.text += event.as_text()
        if isinstance(event, Start):
            self.pid = event.pid
        return event

    async def words(self, count: int) -> list[str]:
        """Read until the output has `count` complete words."""
        while len(self.text.split()) < count or not self.text.endswith("\n"):
            await self.next()
        return self.text.split()

    async def rest(self) -> None:
        """Read to the end."""
        with suppress(StopAsyncIteration):
            while True:
                await self.next()

    async def pids(self, count: int) -> list[int]:
        return [int(word) for word in await self.words(count)]


def calling(bash: Bash, command: str, **arguments: Any) -> aclosing[Any]:
    """Return the generator of a call, which is closed at the end of the block."""
    return aclosing(cast("Any", bash.execute(command, **arguments)))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Gate:
    """A point in a script that waits for the test. Each can be passed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        os.mkfifo(path)
        #: The line of the script that waits.
        self.wait = f"\nread < {path}\n"

    def open(self) -> None:
        """Let the script continue, once it has reached the gate."""
        with self._path.open("w") as fifo:
            fifo.write("\n")


async def end_of(pid: int) -> None:
    """Wait until this process has ended, without blocking the loop."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


class Watch:
    """Waits for the end of processes, without polling and safe from reused pids."""

    def __init__(self, pids: list[int]) -> None:
        self._fds = [os.pidfd_open(pid) for pid in pids]

    def all_end_within(self, seconds: float) -> bool:
        try:
            return all(select.select([fd], [], [], seconds)[0] for fd in self._fds)
        finally:
            for fd in self._fds:
                os.close(fd)
