"""Commands that attack their guard and their supervisor do not escape and harm no other call."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_calls import (
    LOOPS,
    Call,
    Gate,
    Watch,
    calling,
    collect,
    is_alive,
    play,
    stdout,
)

from activations.bash import Bash
from plexus import Failed
from plexus.errors import DeadlineExceeded

LIFE_S = 100
#: Maximum time for a call to end on a busy machine.
WITHIN_S = 30

#: Children that are hard to find again, each of which writes its pid; then the command's own.
CHILDREN = rf"""
sleep {LIFE_S} & echo $!
setsid sleep {LIFE_S} & echo $!
env -i setsid sleep {LIFE_S} & echo $!
setsid bash -c 'sleep {LIFE_S} > /dev/null & echo $!'
echo $$
"""
COUNT = 5

#: Who is attacked, as words of the shell.
SUPERVISOR = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
TARGETS = {
    "guard": "$PPID",
    "supervisor": SUPERVISOR,
    "both": f"$PPID {SUPERVISOR}",
    "both from above": f"{SUPERVISOR} $PPID",
}
#: Every child of the supervisor: the guards of all calls.
GUARDS = f"$(S={SUPERVISOR}; cat /proc/$S/task/$S/children)"

PR_GET_CHILD_SUBREAPER = 37


def attack(number: str, targets: str) -> str:
    """Return script lines that send a signal to these and then report it."""
    return f"\nTARGETS=({targets})\nkill -{number} ${{TARGETS[@]}}\necho attacked\n"


def wait() -> str:
    return f"sleep {LIFE_S}\n"


def gone(pids: list[int]) -> bool:
    """Return whether none of them runs.

    A process that is dead but not reaped does nothing any more.
    """
    return not any(is_alive(pid) and state_of(pid) != "Z" for pid in pids)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def own_children() -> set[int]:
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture(scope="module", autouse=True)
def loops_are_warm() -> None:
    """Let each kind of loop open what it keeps open for the life of the process."""
    for loop in LOOPS:
        play(well, loop=loop)


@pytest.fixture(autouse=True)
def nothing_is_left(loops_are_warm: None) -> Iterator[None]:  # noqa: ARG001 - it must be first
    """After each test the server must have the same children and descriptors as before."""
    children, descriptors = own_children(), len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert own_children() <= children
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


async def well(bash: Bash) -> None:
    """Check that commands can be run."""
    async with asyncio.timeout(WITHIN_S):
        assert stdout(await collect(bash, "echo well")) == "well\n"


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("number", ["STOP", "KILL"])
def test_a_cancelled_command_that_attacked_its_helpers_is_ended(
    number: str, targets: str, loop: str
) -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, CHILDREN + attack(number, TARGETS[targets]) + wait()) as stream:
            call = Call(stream)
            # A guard that is killed immediately may end its command before all output is written.
            with contextlib.suppress(Failed):
                await call.words(COUNT + 1)
            pids = [int(word) for word in call.text.split() if word.isdigit()]
            await asyncio.wait_for(stream.aclose(), WITHIN_S)
        assert len(pids) == COUNT
        assert gone(pids)
        await well(bash)

    play(scenario, loop=loop)


@pytest.mark.parametrize("targets", TARGETS)
def test_a_timeout_ends_a_command_that_stopped_its_helpers(targets: str) -> None:
    async def scenario(bash: Bash) -> None:
        script = CHILDREN + attack("STOP", TARGETS[targets]) + wait()
        async with calling(bash, script, timeout_s=1) as stream:
            call = Call(stream)
            pids = [int(pid) for pid in (await call.words(COUNT))[:COUNT]]
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(call.rest(), WITHIN_S)
        assert gone(pids)
        await well(bash)

    play(scenario)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("number", ["STOP", "KILL"])
def test_a_command_that_ends_after_attacking_its_helpers_leaves_nothing(
    number: str, targets: str
) -> None:
    async def scenario(bash: Bash) -> None:
        script = CHILDREN + attack(number, TARGETS[targets])
        async with calling(bash, script, timeout_s=None) as stream:
            call = Call(stream)
            with contextlib.suppress(Failed):
                await asyncio.wait_for(call.rest(), WITHIN_S)
            pids = [int(word) for word in call.text.split() if word.isdigit()]
        assert len(pids) == COUNT
        assert gone(pids)
        await well(bash)

    play(scenario)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("number", ["STOP", "KILL"])
def test_the_server_shuts_down_after_an_attack(number: str, targets: str) -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, CHILDREN + attack(number, TARGETS[targets]) + wait()) as stream:
            call = Call(stream)
            with contextlib.suppress(Failed):
                await call.words(COUNT + 1)
            pids = [int(word) for word in call.text.split() if word.isdigit()]
            await asyncio.wait_for(bash.close(), WITHIN_S)
            assert len(pids) == COUNT
            assert gone(pids)

    play(scenario)


@pytest.mark.parametrize("number", ["STOP", "KILL"])
def test_other_calls_continue_when_their_supervisor_is_attacked(number: str, gate: Gate) -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, CHILDREN + gate.wait + "echo done") as other_stream:
            other = Call(other_stream)
            pids = await other.pids(COUNT)
            await collect(bash, attack(number, SUPERVISOR))
            await well(bash)
            assert not gone(pids)
            gate.open()
            await asyncio.wait_for(other.rest(), WITHIN_S)
            assert other.text.endswith("done\n")
        assert gone(pids)

    play(scenario)


@pytest.mark.parametrize("number", ["STOP", "KILL"])
def test_other_calls_end_with_an_error_when_all_helpers_are_attacked(number: str) -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, CHILDREN + wait(), timeout_s=None) as other_stream:
            other = Call(other_stream)
            pids = await other.pids(COUNT)
            # Repeatedly: a guard that was stopped once is continued, and its call continues.
            script = f"END=$((SECONDS + 6)); T=({GUARDS} {SUPERVISOR})\n"
            script += f"while ((SECONDS < END)); do kill -{number} ${{T[@]}}; done"
            attacker = asyncio.create_task(collect(bash, f"({script}) 2>/dev/null"))
            with pytest.raises(Failed) as caught:
                await asyncio.wait_for(other.rest(), WITHIN_S)
            assert caught.value.code == "lost"
            assert gone(pids)
            with pytest.raises(Failed):
                await asyncio.wait_for(attacker, WITHIN_S)
        await well(bash)

    play(scenario)


def test_a_guard_that_is_stopped_once_is_continued_and_its_command_reported() -> None:
    async def scenario(bash: Bash) -> str:
        script = "kill -STOP $PPID; echo still here"
        return stdout(await asyncio.wait_for(collect(bash, script, timeout_s=None), 10))

    assert play(scenario) == "still here\n"


#: Stops its guard and its supervisor whenever they wake, from a separate session.
STOPPER = f"""
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
end = time.monotonic() + {LIFE_S}
targets = [int(pid) for pid in sys.argv[1:]]
while time.monotonic() < end:
    for pid in targets:
        try:
            os.kill(pid, signal.SIGSTOP)
        except OSError:
            pass
"""


@pytest.mark.parametrize("ending", ["cancel", "timeout", "close"])
def test_a_process_that_stops_its_helpers_whenever_they_wake_is_ended(ending: str) -> None:
    async def scenario(bash: Bash) -> None:
        script = f"{sys.executable} -c '{STOPPER}' {TARGETS['both']}; {wait()}"
        timeout_s = 1 if ending == "timeout" else None
        async with calling(bash, script, timeout_s=timeout_s) as stream:
            call = Call(stream)
            pids = [*await call.pids(1), call.pid]
            if ending == "timeout":
                with pytest.raises(DeadlineExceeded):
                    await asyncio.wait_for(call.rest(), WITHIN_S)
            elif ending == "close":
                await asyncio.wait_for(bash.close(), WITHIN_S)
            else:
                await asyncio.wait_for(stream.aclose(), WITHIN_S)
            assert gone(pids)
        await well(bash)

    play(scenario)


#: Two chains of daemons: each link makes a session, forks the next link and ends.
CHAINS = f"""
use POSIX; use Time::HiRes "time";
my $end = time + {LIFE_S} / 2;
$| = 1;
fork;
print "running\\n";
while (time < $end) {{
    my $next = fork;
    if (!defined $next) {{ next }}
    if ($next) {{ POSIX::_exit(0) }}
    POSIX::setsid();
}}
"""


@pytest.mark.parametrize("before", ["", *TARGETS])
def test_a_family_that_forks_into_new_sessions_is_ended(before: str, tmp_path: Path) -> None:
    program = tmp_path / "chains.pl"
    program.write_text(CHAINS)

    async def scenario(bash: Bash) -> None:
        deed = attack("KILL", TARGETS[before]) if before else ""
        async with calling(bash, f"perl {program} & sleep 0.2; {deed} {wait()}") as stream:
            call = Call(stream)
            with contextlib.suppress(Failed):
                await call.words(3 if before else 2)
            await asyncio.wait_for(stream.aclose(), WITHIN_S)
        assert not mentioned(str(program))
        await well(bash)

    play(scenario)


def mentioned(text: str) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_text(errors="replace"))
    return [command for command in commands if text in command]


#: Attaches to its guard as a debugger does and holds it.
TRACER = f"""
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
done = libc.ptrace(16, int(sys.argv[1]), None, None)
print(done, flush=True)
time.sleep({LIFE_S})
"""


def test_a_guard_that_is_stopped_by_a_tracer_does_not_delay_a_timeout() -> None:
    async def scenario(bash: Bash) -> None:
        script = f"{sys.executable} -c '{TRACER}' $PPID"
        async with calling(bash, script, timeout_s=1) as stream:
            call = Call(stream)
            await call.words(1)
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(call.rest(), WITHIN_S)
        assert gone([call.pid])
        await well(bash)

    play(scenario)


def test_processes_of_other_code_in_the_server_are_left_alone() -> None:
    async def scenario(bash: Bash) -> None:
        with pytest.raises(Failed):
            await collect(bash, CHILDREN + attack("KILL", TARGETS["both"]) + wait())

    with subprocess.Popen(["sleep", str(LIFE_S)], start_new_session=True) as ours:
        try:
            play(scenario)
            assert ours.poll() is None
        finally:
            ours.kill()
    assert ours.returncode == -signal.SIGKILL


def test_the_server_adopts_orphans_only_while_commands_run() -> None:
    def adopts() -> bool:
        answer = ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
        return bool(answer.value)

    async def scenario(bash: Bash) -> None:
        assert not adopts()
        async with calling(bash, wait()) as stream:
            await anext(stream)
            assert adopts()
        for _ in range(200):  # until the next inspection
            if not adopts():
                break
            await asyncio.sleep(0.05)
        assert not adopts()

    play(scenario)


#: Kills or stops every supervisor of its server that it can find, old and new, and all guards.
HUNTER = """
import os, signal, sys, time
end = time.monotonic() + 4
number = getattr(signal, sys.argv[2])
print("hunting", flush=True)
while time.monotonic() < end:
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = file.read().rpartition(")")[2].split()[1]
            if parent != sys.argv[1]:
                continue
            with open(f"/proc/{name}/cmdline") as file:
                if "activations.processes.supervisor" in file.read():
                    os.kill(int(name), number)
        except (OSError, ValueError):
            pass
"""


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_calls_end_while_every_supervisor_is_attacked_and_work_afterwards(number: str) -> None:
    async def one(bash: Bash) -> bool:
        try:
            await collect(bash, "true")
        except Failed:
            return False
        return True

    async def scenario(bash: Bash) -> None:
        script = f"{sys.executable} -c '{HUNTER}' {os.getpid()} {number}"
        async with calling(bash, script) as stream:
            await Call(stream).words(1)
            async with asyncio.timeout(20):
                await asyncio.gather(*(one(bash) for _ in range(5)))
        await well(bash)

    play(scenario)


@pytest.mark.parametrize("number", [n for n in range(1, 65) if n not in (32, 33)])
def test_no_signal_to_both_helpers_lets_a_command_escape(number: int) -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(
            bash, CHILDREN + attack(str(number), TARGETS["both"]) + wait()
        ) as stream:
            call = Call(stream)
            with contextlib.suppress(Failed):
                await call.words(COUNT + 1)
            pids = [int(word) for word in call.text.split() if word.isdigit()]
            await asyncio.wait_for(stream.aclose(), WITHIN_S)
        assert len(pids) == COUNT
        assert gone(pids)
        await well(bash)

    play(scenario)


#: How many calls it may take until a supervisor that was given a limit is replaced.
RECOVERY_CALLS = 200


@pytest.mark.parametrize("limit", ["nofile=3", "cpu=0", "nproc=1"])
def test_limits_that_a_command_sets_on_its_supervisor_do_not_outlive_it(limit: str) -> None:
    async def scenario(bash: Bash) -> None:
        await collect(bash, f"prlimit --pid {SUPERVISOR} --{limit}:")
        # Commands that start meanwhile inherit the limit, and may end by it.
        for _ in range(RECOVERY_CALLS):
            with contextlib.suppress(Failed, AssertionError):
                await well(bash)
                break
        else:
            await well(bash)

    play(scenario)


#: What lost its parent below it stays below it.
ADOPTER = f"""
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep({LIFE_S})
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep({LIFE_S})
"""


def test_a_command_that_adopts_orphans_itself_does_not_escape(gate: Gate) -> None:
    async def scenario(bash: Bash) -> None:
        script = f"setsid {sys.executable} -c '{ADOPTER}' & echo $$; {gate.wait}"
        async with calling(bash, script + attack("KILL", TARGETS["both"]) + wait()) as stream:
            call = Call(stream)
            pids = await call.pids(3)
            gate.open()
            with pytest.raises(Failed):
                await call.rest()
        assert gone(pids)

    play(scenario)


SERVER = """
import asyncio, sys
from activations.bash import Bash

async def main() -> None:
    bash = Bash()
    async for event in bash.execute(sys.argv[1], timeout_s=None):
        print(event.as_text(), end="", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("targets", TARGETS)
def test_a_server_killed_while_its_helpers_are_stopped_leaves_no_process(targets: str) -> None:
    script = CHILDREN + f"echo {TARGETS['both']}" + attack("STOP", TARGETS[targets]) + wait()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, script],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        words: list[str] = []
        while "attacked" not in words:
            line = server.stdout.readline()
            assert line, "the server ended too early"
            words += line.split()
        pids = [int(word) for word in words if word.isdigit()]
        assert len(pids) == COUNT + 2
        watch = Watch(pids)
        server.kill()
        assert watch.all_end_within(10)


def test_killed_helpers_are_reported_when_all_processes_have_ended() -> None:
    async def scenario(bash: Bash) -> None:
        async with calling(bash, CHILDREN + attack("KILL", TARGETS["both"]) + wait()) as stream:
            call = Call(stream)
            with pytest.raises(Failed, match="guard of the command was killed") as caught:
                await call.rest()
            assert caught.value.code == "lost"
            assert gone([int(word) for word in call.text.split() if word.isdigit()])

    play(scenario)


#: Runs a command, prints how it ended, and stays until its input is closed.
LASTING_SERVER = """
import asyncio, sys
from activations.bash import Bash
from plexus import Failed

async def main() -> None:
    bash = Bash()
    try:
        async for event in bash.execute(sys.argv[1], timeout_s=30):
            print(event.as_text(), end="", flush=True)
    except Failed as error:
        print(error.code, flush=True)
    print("end", flush=True)
    sys.stdin.read()
    await bash.close()

asyncio.run(main())
"""


def ordinary_server(script: str) -> subprocess.Popen[str]:
    """Start a server without privileges, also if the tests run as root."""
    as_ordinary = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    return subprocess.Popen(
        [*(() if os.geteuid() else as_ordinary), sys.executable, "-c", LASTING_SERVER, script],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def words_of(server: subprocess.Popen[str]) -> list[str]:
    """Return everything that the command of this server wrote, and how it ended."""
    assert server.stdout is not None
    words: list[str] = []
    while "end" not in words:
        line = server.stdout.readline()
        assert line, "the server ended too early"
        words += line.split()
    return words


def test_without_privileges_a_command_cannot_trace_its_helpers() -> None:
    seize = "import ctypes, sys; print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0))"
    script = "".join(
        f"{sys.executable} -c '{seize}' {target}\n" for target in ("$PPID", SUPERVISOR)
    )
    with ordinary_server(script) as server:
        assert words_of(server) == ["-1", "-1", "end"]


def test_a_command_that_lowers_the_limits_of_the_server_does_not_escape() -> None:
    server_pid = f"$(cut -d ' ' -f 4 /proc/{SUPERVISOR}/stat)"
    script = CHILDREN + f"prlimit --pid {server_pid} --rttime=1000000 && echo lowered\n"
    with ordinary_server(script + attack("KILL", TARGETS["both"]) + wait()) as server:
        words = words_of(server)
        assert "lowered" in words
        assert words[-2:] == ["lost", "end"]
        assert gone([int(word) for word in words if word.isdigit()])


def test_without_privileges_a_command_cannot_remove_its_mark() -> None:
    unmark = "prlimit --rttime=unlimited --pid $$ 2>/dev/null || echo refused; ulimit -R 5\n"
    with ordinary_server(unmark + CHILDREN + attack("KILL", TARGETS["both"]) + wait()) as server:
        words = words_of(server)
        assert words[0] == "refused"
        assert words[-2:] == ["lost", "end"]
        pids = [int(word) for word in words if word.isdigit()]
        assert len(pids) == COUNT
        assert gone(pids)
