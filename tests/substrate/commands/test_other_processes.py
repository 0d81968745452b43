"""The commands about runs, for a run of a process on stdio in the same project."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import eventually, lines, started, terminal
from project_processes import Host, hosted
from terminal_server import Running, running


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "project").mkdir()
    with running(tmp_path / "project") as found:
        yield found


@contextmanager
def run_of_host(
    server: Running, method: str, state: str = "running", **params: str
) -> Iterator[tuple[Host, int]]:
    """Start a run in a process on stdio, and wait until the server lists it in this state."""
    with hosted(server.project) as host:
        host.call(method, **params)
        found: list[int] = []

        def is_listed() -> bool:
            runs = server.ask("plexus.runs", state=state)
            found[:] = [run["run"] for run in runs if run["method"] == method]
            return bool(found)

        eventually(is_listed, f"{method} is {state}")
        yield host, found[0]


def test_a_run_of_another_process_is_listed_followed_and_stopped(server: Running) -> None:
    with run_of_host(server, "bash.execute", command="echo early; sleep 3600") as (host, number):
        [listed] = [entry for entry in server.runs() if entry["run"] == number]
        assert listed["process"]["pid"] == host.process.pid
        attach = [*server.flags, "attach", str(number)]
        with started(*attach, cwd=server.project) as follower:
            follower.out.wait_for("early\n")
            stopped = server.run("cancel", str(number), "--reason", "enough")
            assert stopped.returncode == 0, stopped.stderr
            assert follower.end() == 1
            assert "enough" in follower.err.rest()
        whole = lines(server.run("attach", str(number), "--json").stdout)
        assert [event["type"] for event in whole] == ["start", "stdout", "cancelled"]


def test_runs_of_another_process_are_watched(server: Running) -> None:
    with (
        started(*server.flags, "watch", "--json", cwd=server.project) as watch,
        run_of_host(server, "asks.confirm", "asking") as (_, number),
    ):
        watch.out.wait_for(rf'"run": ?{number}.*"state": ?"asking"')
        answered = server.run("respond", f"{number}.1", "--yes")
        assert answered.returncode == 0, answered.stderr
        watch.out.wait_for(rf'"run": ?{number}.*"state": ?"complete"')


def test_a_question_of_another_process_is_prompted(server: Running) -> None:
    with run_of_host(server, "asks.twice", "asking") as (_, number):
        with terminal(*server.flags, "attach", str(number), cwd=server.project) as screen:
            screen.screen.wait_for(r"Really\?")
            screen.type("y\n")
            screen.screen.wait_for(r"Your name\?: $")
            screen.type("Ada\n")
            code, text = screen.end()
        assert code == 0
        assert re.search("name: Ada", text)


def test_the_end_of_a_process_that_was_killed_is_shown(server: Running) -> None:
    with run_of_host(server, "bash.execute", command="echo early; sleep 3600") as (host, number):
        attach = [*server.flags, "attach", str(number)]
        with started(*attach, cwd=server.project) as follower:
            follower.out.wait_for("early\n")
            host.process.kill()
            assert follower.end() == 1
            assert f"(pid {host.process.pid}) has ended" in follower.err.rest()
