"""`substrate attach`: follow a run from its start or from an item."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
from command_line import lines, started, terminal, without_colours
from terminal_server import Running, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("project")) as found:
        yield found


def test_a_run_is_shown_from_the_first_item_to_its_end(server: Running) -> None:
    gate = server.project / "gate-first"
    script = f"echo early; until [ -e {gate} ]; do sleep 0.05; done; echo late; exit 3"
    with server.called("bash.execute", script) as (process, number):
        process.out.wait_for("early")
        attach = [*server.flags, "attach", str(number)]
        with started(*attach, cwd=server.project) as follower:
            follower.out.wait_for("early\n")
            gate.touch()
            assert follower.end() == 1
            assert follower.out.rest() == "early\nlate\n"
            assert "exit code 3" in follower.err.rest()
    assert server.run("attach", str(number), "--exit-code").returncode == 3


def test_the_exit_code_of_a_killed_command_is_passed_on(server: Running) -> None:
    with server.called("bash.execute", "kill -9 $$", state="complete") as (process, number):
        assert process.end() == 1
    followed = server.run("attach", str(number), "--exit-code")
    assert (followed.returncode, followed.stderr) == (137, "exit code 137 (SIGKILL)\n")


def test_it_starts_after_the_requested_item(server: Running) -> None:
    with server.called("bash.execute", "echo hi; sleep 100") as (process, number):
        process.out.wait_for("hi")
        server.run("cancel", str(number))
        assert process.end() == 1
    whole = lines(server.run("attach", str(number), "--json").stdout)
    assert [event["type"] for event in whole] == ["start", "stdout", "cancelled"]
    assert lines(server.run("attach", str(number), "--after", "2", "--json").stdout) == whole[2:]
    # With a run, `watch` is the same.
    assert lines(server.run("watch", str(number), "--json").stdout) == whole


def test_ctrl_c_leaves_and_says_how_to_stop_the_run(server: Running) -> None:
    with server.called("bash.execute", "echo hi; sleep 100") as (_, number):
        with started(*server.flags, "attach", str(number), cwd=server.project) as follower:
            follower.out.wait_for("hi")
            follower.signal(signal.SIGINT)
            assert follower.end() == 130
            assert f"cancel {number}` stops it" in follower.err.rest()
        assert [entry["state"] for entry in server.runs() if entry["run"] == number] == ["running"]


def test_an_unknown_run_is_an_error_with_advice(server: Running) -> None:
    refused = server.run("attach", "77")
    assert refused.returncode == 1
    assert "Unknown run 77. List your runs with plexus.runs. `substrate --port" in refused.stderr


def test_pending_questions_are_prompted_and_answered_ones_are_not(server: Running) -> None:
    with server.called("asks.twice", state="asking") as (process, number):
        assert server.run("respond", f"{number}.1", "--yes").returncode == 0
        process.out.wait_for("sure: True")
        with terminal(*server.flags, "attach", str(number), cwd=server.project) as screen:
            screen.screen.wait_for(r"Your name\?: $")
            screen.type("Zoë\n")
            code, text = screen.end()
        assert code == 0
        assert "Really?" not in text
        assert without_colours(text).splitlines()[-1] == "name: Zoë"
        assert process.end() == 0


def test_the_time_of_each_item_is_that_of_the_server(server: Running) -> None:
    with server.called("bash.execute", "echo one; sleep 0.3; echo two; exit 3") as (
        process,
        number,
    ):
        assert process.end() == 1
    events = lines(server.run("attach", str(number), "--times", "--json").stdout)
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 250
    shown = server.run("attach", str(number), "--times").stdout
    assert re.fullmatch(r"(?s)\d\d:\d\d:\d\d\.\d{3} one\n\d\d:\d\d:\d\d\.\d{3} two\n.*", shown)
