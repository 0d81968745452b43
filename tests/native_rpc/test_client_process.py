"""Processes as servers: their exit, and its effect on calls."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import is_alive
from servers import PATIENT, command, consume, eventually, play

from native_rpc.client import ClientLimits, ConnectionLost, Item, connect
from plexus.errors import DeadlineExceeded

#: Ignores the end of its input and SIGTERM.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
time.sleep(1000)
"""

#: Starts a child that keeps stdout open, and dies.
HAUNTED = """
import subprocess, sys
subprocess.Popen(["sleep", "5"], stdin=subprocess.DEVNULL)
sys.stdin.readline()
sys.exit(7)
"""

#: Prints invalid messages before and between messages.
CHATTY = """
import sys
print("Welcome!", flush=True)
for line in sys.stdin:
    print("working on it")
    print('{"jsonrpc":"2.0","id":1,"result":5}')
    item = '{"jsonrpc":"2.0","method":"a.b","params":{"subscription":5,"seq":%d,"result":%s}}'
    print(item % (1, '{"type":"content","text":"hi"}'))
    print("[]")
    print(item % (2, '{"type":"complete","result":42}'), flush=True)
"""


#: A server that prints its process id.
NUMBERED = ["sh", "-c", 'echo $$ > "$0"; exec "$@"']


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", script, *arguments]


def test_a_process_that_dies_ends_open_calls_and_refuses_new_ones(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    seen: list[Item] = []

    def kill(event: Item) -> None:
        seen.append(event)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)

    async def scenario() -> None:
        async with connect([*NUMBERED, str(pid_file), *command("--stdio")]) as plexus:
            with pytest.raises(ConnectionLost, match="ended with -9"):
                await consume(plexus.count.up(to=2, pause_ms=500), kill)
            with pytest.raises(ConnectionLost, match="ended with -9"):
                await plexus.health.check()

    play(scenario)
    assert [event.text for event in seen] == ["1"]


def test_a_process_exits_with_its_client(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def scenario() -> None:
        program = [*NUMBERED, str(pid_file), *command("--stdio")]
        async with connect(program, limits=PATIENT) as plexus:
            await plexus.health.check()
            assert is_alive(int(pid_file.read_text()))

    play(scenario)
    assert not is_alive(int(pid_file.read_text()))


def test_a_process_that_does_not_exit_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def scenario() -> int:
        limits = ClientLimits(close_s=0.2)
        async with connect(python(STUBBORN, str(pid_file)), limits=limits):
            assert await eventually(lambda: pid_file.exists() and bool(pid_file.read_text()))
            return int(pid_file.read_text())

    assert not is_alive(play(scenario))


def test_a_dead_process_is_detected_although_its_output_stays_open() -> None:
    async def scenario() -> None:
        async with connect(python(HAUNTED), limits=replace(PATIENT, close_s=0.2)) as plexus:
            with pytest.raises(ConnectionLost, match="ended with 7"):
                await plexus.health.check()

    play(scenario)


def test_a_server_that_never_answers_is_not_awaited_indefinitely() -> None:
    async def scenario() -> None:
        limits = ClientLimits(reply_s=0.2, close_s=0.2)
        async with connect("stdio:sleep 1000", limits=limits) as plexus:
            with pytest.raises(DeadlineExceeded, match=r"no reply within 0\.2 s"):
                await plexus.health.check()
            with pytest.raises(DeadlineExceeded):
                async for _ in plexus.health.check():
                    pass
            with pytest.raises(DeadlineExceeded):
                async with plexus.health.check():
                    pass

    play(scenario)


def test_an_invalid_message_is_ignored() -> None:
    async def scenario() -> int:
        async with connect(python(CHATTY)) as plexus:
            return int(await plexus.a.b())

    assert play(scenario) == 42
