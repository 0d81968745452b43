"""`substrate runs` and `substrate cancel`: list and cancel the runs of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import lines, run, terminal, without_colours
from terminal_server import Running, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("project")) as found:
        yield found


def test_active_runs_are_listed_newest_first_and_ended_runs_on_request(
    server: Running,
) -> None:
    with (
        server.called("bash.execute", "sleep 100") as (_, older),
        server.called("bash.execute", "sleep 100") as (_, newer),
    ):
        listed = server.runs()[:2]
        assert [entry["run"] for entry in listed] == [newer, older]
        assert {entry["state"] for entry in listed} == {"running"}
        assert server.run("cancel", str(newer)).returncode == 0
        assert newer in [entry["run"] for entry in server.runs("--state", "cancelled")]
    everything = server.runs("--system")
    started = [entry["started_ms"] for entry in everything]
    assert started == sorted(started, reverse=True)
    # The listing itself is a call of the server, which is shown only with --system.
    assert "plexus.runs" in {entry["method"] for entry in everything}
    for flags in ([], ["--all"], ["--state", "complete"]):
        assert "plexus.runs" not in {entry["method"] for entry in server.runs(*flags)}


def test_on_a_terminal_it_is_a_table_or_json_on_request(server: Running) -> None:
    with server.called("bash.execute", "sleep 100") as (_, number):
        with terminal(*server.flags, "runs", cwd=server.project) as screen:
            code, text = screen.end()
        assert code == 0
        header, row, *_ = without_colours(text).splitlines()
        assert header.split() == ["Run", "Method", "Arguments", "Outcome", "Started", "Took"]
        short, *rest = row.split()
        assert str(number).startswith(short)
        assert len(short) >= 6
        assert rest[:4] == ["bash.execute", "sleep", "100", "running"]
        piped = server.run("runs").stdout
        assert piped.splitlines()[1].split()[:5] == [short, *rest[:4]]
        assert "\x1b" not in piped
        with terminal(*server.flags, "runs", "--json", cwd=server.project) as screen:
            assert json.loads(screen.end()[1].splitlines()[0])["run"] == number


def test_a_command_that_failed_is_listed_as_failed_with_its_exit_code(server: Running) -> None:
    with server.called("bash.execute", "sleep 1; exit 7") as (process, number):
        assert process.end() == 1
    with server.called("bash.execute", "sleep 1") as (process, fine):
        assert process.end() == 0
    listed = {entry["run"]: entry for entry in server.runs("--all")}
    assert (listed[number]["outcome"], listed[number]["exit_code"]) == ("failed", 7)
    assert (listed[fine]["outcome"], listed[fine]["exit_code"]) == ("succeeded", 0)
    with terminal(*server.flags, "runs", "--all", cwd=server.project) as screen:
        rows = without_colours(screen.end()[1]).splitlines()
    [row] = [row for row in rows if row[:6] == str(number)[:6]]
    assert "sleep 1; exit 7  failed (exit 7)" in row


def test_a_narrow_terminal_cuts_only_the_arguments(server: Running) -> None:
    script = "sleep 1; echo a long command line with many words; exit 3"
    with server.called("bash.execute", script) as (process, number):
        assert process.end() == 1
    with terminal(*server.flags, "runs", cwd=server.project, COLUMNS="80") as screen:
        _, text = screen.end()
    rows = without_colours(text).splitlines()
    [row] = [row for row in rows if row[:6] == str(number)[:6]]
    assert "  bash.execute  sleep 1; echo" in row
    assert "…  failed (exit 3)  " in row
    assert max(map(len, rows)) <= 80


def test_an_empty_list_prints_a_message(server: Running) -> None:
    with terminal(*server.flags, "runs", "--state", "asking", cwd=server.project) as screen:
        assert "No runs found." in screen.end()[1]
    assert server.runs("--state", "asking") == []


def test_a_run_is_cancelled_with_the_given_reason(server: Running) -> None:
    with server.called("bash.execute", "sleep 100") as (process, number):
        stopped = server.run("cancel", str(number), "--reason", "enough")
        assert stopped.stdout == f"Run {number} is being cancelled.\n"
        assert process.end() == 1
        assert lines(process.out.rest())[-1] == {"type": "cancelled", "reason": "enough"}
        again = server.run("cancel", str(number), "--json")
        assert lines(again.stdout) == [{"run": number, "was_running": False}]


def test_an_unknown_run_cannot_be_cancelled(server: Running) -> None:
    refused = server.run("cancel", "77")
    assert refused.returncode == 1
    assert "Unknown run 77." in refused.stderr
    assert f"`substrate {' '.join(server.flags)} runs`" in refused.stderr
    assert server.run("cancel", "seventy").returncode == 2


@pytest.mark.parametrize("command", [["attach", "1"], ["cancel", "1"], ["watch", "1"]])
def test_without_a_server_an_unknown_run_is_an_error(command: list[str], tmp_path: Path) -> None:
    refused = run(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "Unknown run 1." in refused.stderr


@pytest.mark.parametrize("command", [["runs"], ["respond", "--json"]])
def test_without_a_server_and_runs_nothing_is_listed(command: list[str], tmp_path: Path) -> None:
    listed = run(*command, cwd=tmp_path)
    assert (listed.returncode, listed.stdout) == (0, "")
