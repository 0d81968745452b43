"""All processes that a command starts are ended with it, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from bash_calls import (
    LOOPS,
    Call,
    Gate,
    Watch,
    calling,
    collect,
    end_of,
    exit_of,
    is_alive,
    parent_of,
    play,
    stdout,
)

from activations.bash import Bash
from activations.processes import children
from plexus import Failed
from plexus.errors import DeadlineExceeded

#: Starts children of every kind that is hard to find again, and prints the pid of each: a plain
#: one, one with its own session, one without an environment, a daemon that forked twice, and one
#: that ignores what it can.
HARD_TO_FIND = r"""
sleep 1000 & echo $!
setsid sleep 1000 & echo $!
env -i setsid sleep 1000 & echo $!
(setsid bash -c 'echo $BASHPID; exec sleep 1000' >&3 3>&- &) 3>&1
(trap '' TERM HUP INT; setsid env -i bash -c '(setsid bash -c "echo \$BASHPID; exec sleep 999" &)')
"""
COUNT = 5


def commands_that_mention(text: str) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_text(errors="replace"))
    return [command for command in commands if text in command]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def gone(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_the_generator_ends_the_whole_tree(loop: str) -> None:
    async def scenario(bash: Bash) -> list[int]:
        async with calling(bash, HARD_TO_FIND + "wait") as stream:
            call = Call(stream)
            pids = [*await call.pids(COUNT), call.pid]
            assert all(is_alive(pid) for pid in pids)
        assert gone(pids)
        return pids

    assert len(play(scenario, loop=loop)) == COUNT + 1


@pytest.mark.parametrize("loop", LOOPS)
def test_cancelling_the_task_ends_the_whole_tree(loop: str) -> None:
    async def scenario(bash: Bash) -> None:
        found: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        async def consume() -> None:
            async with calling(bash, HARD_TO_FIND + "wait") as stream:
                call = Call(stream)
                found.set_result(await call.pids(COUNT))
                await call.next()

        task = asyncio.create_task(consume())
        pids = await found
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone(pids)

    play(scenario, loop=loop)


def test_cancelling_again_and_again_does_not_leave_anything() -> None:
    async def scenario(bash: Bash) -> None:
        found: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        async def consume() -> None:
            async with calling(bash, HARD_TO_FIND + "wait") as stream:
                call = Call(stream)
                found.set_result(await call.pids(COUNT))
                await call.next()

        task = asyncio.create_task(consume())
        pids = await found
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        assert gone(pids)

    play(scenario)


def test_cancelling_while_the_command_starts_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(bash: Bash) -> None:
        await collect(bash, "true")
        for steps in range(12):
            task = asyncio.create_task(collect(bash, f"touch {tmp_path}/{steps}; sleep 1000"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not commands_that_mention(f"touch {tmp_path}/")

    play(scenario)


def test_a_deadline_ends_the_whole_tree() -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, HARD_TO_FIND + "wait", timeout_s=0.5) as stream:
            call = Call(stream)
            pids = await call.pids(COUNT)
            with pytest.raises(DeadlineExceeded):
                await call.next()
            assert gone(pids)

    play(scenario)


def test_the_cap_ends_the_whole_tree(gate: Gate) -> None:
    async def scenario(bash: Bash) -> None:
        script = HARD_TO_FIND + gate.wait + "yes"
        async with calling(bash, script, max_output_bytes=10_000) as stream:
            pids = await Call(stream).pids(COUNT)
            gate.open()
            async for event in stream:
                if event.terminal:
                    assert gone(pids)

    play(scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_background_processes_of_a_command_are_ended_before_the_terminal(
    loop: str, gate: Gate
) -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, HARD_TO_FIND + gate.wait) as stream:
            pids = await Call(stream).pids(COUNT)
            assert not gone(pids)
            gate.open()
            end = await anext(stream)
            assert gone(pids)
            assert exit_of([end]).exit_code == 0

    play(scenario, loop=loop)


def test_orphans_that_exit_do_not_accumulate() -> None:
    script = """
    for i in {1..50}; do (setsid true &); done
    while (( $(wc -w < /proc/$PPID/task/$PPID/children) > 1 )); do :; done; echo none left
    """

    async def scenario(bash: Bash) -> str:
        return stdout(await collect(bash, script, timeout_s=20))

    assert play(scenario) == "none left\n"


def test_a_chain_of_sessions_is_ended_to_its_last_link() -> None:
    # Each link is in a separate session and keeps the next alive: only generation by generation.
    link = (
        'f() { echo $BASHPID; (( $1 )) && setsid bash -c "$(declare -f f); f $(($1-1)); :"; wait; '
    )
    script = link + "sleep 1000; }; f 12"

    async def scenario(bash: Bash) -> None:
        async with calling(bash, script) as stream:
            pids = await Call(stream).pids(13)
        assert gone(pids)

    play(scenario)


def test_a_family_that_forks_without_end_is_ended() -> None:
    async def scenario(bash: Bash) -> None:
        # Two that replace each other indefinitely; a real fork bomb would only test the machine's
        # limits.
        script = "f() { echo x; f & }; f; f; sleep 1000"
        async with calling(bash, script) as stream:
            call = Call(stream)
            await call.words(50)
            guard = parent_of(call.pid)
        await end_of(guard)  # a guard ends when it has no child left, and not before

    play(scenario)


def test_the_end_of_one_call_does_not_affect_another() -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, "setsid sleep 1000 & echo $!; wait") as kept_stream:
            kept = await Call(kept_stream).pids(1)
            async with calling(bash, "setsid sleep 1000 & echo $!; wait") as ended_stream:
                ended = await Call(ended_stream).pids(1)
            assert gone(ended)
            assert not gone(kept)
        assert gone(kept)

    play(scenario)


def test_closing_bash_ends_every_command_and_the_supervisor() -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, HARD_TO_FIND + "wait") as stream:
            call = Call(stream)
            pids = [*await call.pids(COUNT), call.pid]
            guard = parent_of(call.pid)
            pids += [guard, parent_of(guard)]
            await bash.close()
            assert gone(pids)

    play(scenario)


def test_a_command_that_kills_its_guard_does_not_escape(gate: Gate) -> None:
    async def scenario(bash: Bash) -> None:
        script = HARD_TO_FIND + "echo $$;" + gate.wait + "kill -9 $PPID; sleep 1000"
        async with calling(bash, script) as stream:
            call = Call(stream)
            watch = Watch(await call.pids(COUNT + 1))
            gate.open()
            with pytest.raises(Failed) as caught:
                await call.rest()
        assert caught.value.code == "lost"
        assert watch.all_end_within(5)
        assert stdout(await collect(bash, "echo well")) == "well\n"

    play(scenario)


def test_a_killed_supervisor_is_replaced_and_running_commands_stay_guarded() -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, HARD_TO_FIND + "wait") as stream:
            call = Call(stream)
            pids = await call.pids(COUNT)
            old = parent_of(parent_of(call.pid))
            watch = Watch([old])
            os.kill(old, signal.SIGKILL)
            assert watch.all_end_within(5)
            assert stdout(await collect(bash, "echo well")) == "well\n"
            assert not gone(pids)
        assert gone(pids)

    play(scenario)


SERVER = """
import asyncio, signal, sys
from activations.bash import Bash

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where SIGINT was ignored before

async def main() -> None:
    bash = Bash()
    async for event in bash.execute(sys.argv[1]):
        print(event.as_text(), end="", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_server_leaves_no_process(number: signal.Signals) -> None:
    root = Path(__file__).parents[3]
    script = HARD_TO_FIND + "echo $$ $PPID $(cut -d ' ' -f 4 /proc/$PPID/stat); wait"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), script],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        words: list[str] = []
        while len(words) < COUNT + 3:
            line = server.stdout.readline()
            assert line, "the server ended too early"
            words += line.split()
        watch = Watch([int(word) for word in words])
        server.send_signal(number)
        assert watch.all_end_within(5)
        server.wait(5)


def test_children_are_found_without_the_kernels_list_too() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in children._children_by_search(os.getpid())  # noqa: SLF001
        finally:
            child.kill()
    assert child.pid not in children._children_by_search(os.getpid())  # noqa: SLF001


@pytest.mark.parametrize("loop", LOOPS)
def test_a_hundred_concurrent_commands_keep_their_outputs_apart(loop: str) -> None:
    async def one(bash: Bash, number: int) -> None:
        script = f"echo out {number}; sleep 0.5; echo err {number} >&2; exit {number}"
        events = await collect(bash, script)
        texts = [event.as_text() for event in events if event.as_text()]
        assert texts == [f"out {number}\n", f"err {number}\n"]
        assert exit_of(events).exit_code == number

    async def scenario(bash: Bash) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(one(bash, number))

    play(scenario, loop=loop)


def test_many_calls_leave_no_descriptor_behind() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def scenario(bash: Bash) -> tuple[int, int]:
        await collect(bash, "cat", stdin="x")
        before = descriptors()
        for _ in range(20):
            await collect(bash, "cat", stdin="x")
            async with calling(bash, "sleep 1000") as stream:
                await anext(stream)
            with pytest.raises(Failed):
                await collect(bash, "true", cwd="/no/such/place")
        return before, descriptors()

    before, after = play(scenario)
    assert after == before
