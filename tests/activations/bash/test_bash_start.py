"""Starting commands: with which input and environment, where, and what happens on failure."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bash_calls import LOOPS, collect, exit_of, play, run, stderr, stdout

from activations.bash import Bash
from plexus import Event, Failed, InvalidParams


@pytest.mark.parametrize(
    ("command", "code", "signal"),
    [
        ("true", 0, None),
        ("exit 3", 3, None),
        ("no-such-command", 127, None),
        ("kill -9 $$", 137, "SIGKILL"),
        ("kill -TERM $$", 143, "SIGTERM"),
        ("kill -40 $$", 168, "SIG40"),
        ("sh -c 'kill -9 $$'; exit $?", 137, None),
    ],
)
def test_exit_codes_and_signals_are_distinguished(
    command: str, code: int, signal: str | None
) -> None:
    end = exit_of(run(command))
    assert (end.exit_code, end.signal) == (code, signal)
    assert end.failed == (code != 0)


def test_the_duration_is_that_of_the_command() -> None:
    # The clock of `sleep` and ours may differ by a millisecond.
    assert 198 <= exit_of(run("sleep 0.2")).duration_ms < 10_000
    # The reports of a short command may arrive together.
    assert all(exit_of(run("exit")).duration_ms > 0 for _ in range(5))


def test_a_command_reads_the_text_it_is_given() -> None:
    assert stdout(run("cat", stdin="grüße\n")) == "grüße\n"


def test_a_command_without_stdin_reads_nothing_and_not_ours() -> None:
    events = run("readlink /proc/self/fd/0; cat")
    assert stdout(events) == "/dev/null\n"


def test_an_empty_stdin_ends_immediately() -> None:
    assert exit_of(run("cat", stdin="")).exit_code == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_a_large_stdin_and_a_large_output_do_not_wait_for_each_other(loop: str) -> None:
    text = "0123456789abcde\n" * 100_000
    events = play(lambda bash: collect(bash, "cat", stdin=text), loop=loop)
    assert stdout(events) == text


def test_a_command_that_does_not_read_its_stdin_is_not_blocked_by_it() -> None:
    events = run("echo no thanks; sleep 0.1", stdin="x" * 1_000_000)
    assert stdout(events) == "no thanks\n"
    assert exit_of(events).exit_code == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_a_command_that_ends_before_it_has_read_all_is_not_an_error(loop: str) -> None:
    async def scenario(bash: Bash) -> list[Event]:
        return await collect(bash, "head -c 5", stdin="hello" + "x" * 1_000_000)

    events = play(scenario, loop=loop)
    assert stdout(events) == "hello"
    assert exit_of(events).exit_code == 0


def test_a_command_runs_in_the_given_directory(tmp_path: Path) -> None:
    assert stdout(run("pwd -P", cwd=str(tmp_path))) == f"{tmp_path.resolve()}\n"


def test_a_command_runs_in_the_servers_directory_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    assert stdout(run("pwd -P")) == f"{tmp_path.resolve()}\n"
    assert stdout(run("pwd -P", cwd="below")) == f"{tmp_path.resolve()}/below\n"


def test_the_environment_is_the_servers_with_the_callers_on_top(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("SUBSTRATE_TOKEN", "secret")
    script = 'echo "$KEPT $CHANGED $NEW [$SUBSTRATE_TOKEN]"'
    events = run(script, env={"CHANGED": "after", "NEW": "a=b\nc"})
    assert stdout(events) == "kept after a=b\nc []\n"


def test_a_command_starts_with_default_signals_and_only_three_descriptors() -> None:
    # Python ignores SIGPIPE, and an ignored signal would stay ignored over exec.
    masks = stdout(run("grep -E 'SigIgn|SigBlk' /proc/self/status | awk '{print $2}'")).split()
    # Signals 32 and 33 are the C library's own; no program can set or restore them.
    assert [int(mask, 16) & ~(3 << 31) for mask in masks] == [0, 0]
    # `ls` has another one open, for the folder it reads.
    assert stdout(run("exec ls /proc/self/fd")).split() == ["0", "1", "2", "3"]


def test_a_writer_whose_reader_has_exited_gets_sigpipe() -> None:
    assert stdout(run("yes | head -n 1; echo ${PIPESTATUS[0]}")) == "y\n141\n"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_missing_directory_is_reported_before_any_event(loop: str) -> None:
    seen: list[Event] = []

    async def scenario(bash: Bash) -> None:
        async for event in bash.execute("true", cwd="/no/such/place"):
            seen.append(event)  # noqa: PERF401 - what came before the error is the point

    with pytest.raises(Failed, match="/no/such/place") as caught:
        play(scenario, loop=loop)
    assert caught.value.code == "spawn_failed"
    assert caught.value.data == {"errno": "ENOENT"}
    assert seen == []


def test_a_command_too_long_for_the_system_is_reported() -> None:
    with pytest.raises(Failed, match="too long") as caught:
        run("true " + "x" * 3_000_000)
    assert caught.value.code == "spawn_failed"
    assert caught.value.data == {"errno": "E2BIG"}


def test_a_missing_bash_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed, match="bash is not installed") as caught:
        run("true")
    assert caught.value.code == "spawn_failed"
    with pytest.raises(Failed, match="bash is not installed"):
        play(lambda bash: bash.check_health())


def test_a_bash_that_cannot_be_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bash"
    fake.write_bytes(b"\x7fnot a program")
    fake.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed, match="cannot be run") as caught:
        run("true")
    assert caught.value.data == {"errno": "ENOEXEC"}


def descriptors_until_none_is_left() -> Iterator[int]:
    with contextlib.suppress(OSError):
        while True:
            yield os.open(os.devnull, os.O_RDONLY)


def test_a_server_out_of_descriptors_reports_it_and_recovers() -> None:
    async def scenario(bash: Bash) -> str:
        await collect(bash, "true")
        hoard = list(descriptors_until_none_is_left())
        try:
            with pytest.raises(Failed) as caught:
                await collect(bash, "true")
        finally:
            for fd in hoard:
                os.close(fd)
        assert caught.value.data == {"errno": "EMFILE"}
        return stdout(await collect(bash, "echo well"))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert play(scenario) == "well\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "echo \0"},
        {"command": "echo \ud800"},
        {"command": "true", "cwd": "a\0b"},
        {"command": "true", "env": {"A": "\0"}},
        {"command": "true", "env": {"A=B": "c"}},
        {"command": "true", "env": {"": "c"}},
        {"command": "true", "stdin": "\ud800"},
        {"command": "true", "timeout_s": 0},
        {"command": "true", "timeout_s": float("nan")},
        {"command": "true", "timeout_s": float("inf")},
        {"command": "true", "max_output_bytes": -1},
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        run(**arguments)


def test_the_health_check_names_the_bash_that_is_used() -> None:
    text = play(lambda bash: bash.check_health())
    assert "bash" in text
    assert "sandbox off" in text


def test_a_bash_that_was_never_used_closes() -> None:
    async def scenario(bash: Bash) -> None:
        await bash.close()

    play(scenario)


def test_a_closed_bash_can_be_used_again() -> None:
    async def scenario(bash: Bash) -> str:
        await collect(bash, "true")
        await bash.close()
        return stdout(await collect(bash, "echo again"))

    assert play(scenario) == "again\n"


def test_stderr_of_the_shell_belongs_to_the_command() -> None:
    assert "syntax error" in stderr(run("if"))
