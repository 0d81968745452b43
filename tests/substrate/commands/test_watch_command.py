"""`substrate watch`: every run as it starts, asks and ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import lines, started, terminal
from terminal_server import Running, running

from plexus.runtime.run_watch import RUNS_PER_EVENT
from substrate.cli.commands.runs import Changes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("project")) as found:
        yield found


def test_all_runs_are_watched_as_they_start_ask_and_end(server: Running) -> None:
    with (
        server.called("asks.confirm", state="asking") as (_, asking),
        started(*server.flags, "watch", "--json", cwd=server.project) as watcher,
    ):
        watcher.out.wait_for(rf'"run":{asking},"method":"asks.confirm","state":"asking"')
        server.ask("bash.execute", command="true")
        watcher.out.wait_for(r'"method":"bash.execute","state":"complete"')
        server.ask("approvals.respond", approval_id=f"{asking}.1", approve=False)
        watcher.out.wait_for(rf'"run":{asking},"method":"asks.confirm","state":"complete"')
        watcher.signal(signal.SIGINT)
        assert watcher.end() == 130
        # Runs that only inspect other runs are not shown.
        seen = {entry["method"] for entry in lines(watcher.out.rest())}
        assert seen == {"asks.confirm", "bash.execute"}
        assert "Traceback" not in watcher.err.rest()


def test_on_a_terminal_a_change_is_a_line_with_how_to_answer(server: Running) -> None:
    with (
        server.called("asks.confirm", state="asking") as (process, number),
        terminal(*server.flags, "watch", cwd=server.project) as screen,
    ):
        screen.screen.wait_for(rf"{number} +asking +asks.confirm")
        screen.screen.wait_for(r"respond`\)")
        assert server.run("respond", f"{number}.1", "--yes").returncode == 0
        screen.screen.wait_for(rf"{number} +succeeded +asks.confirm")
        assert process.end() == 0
        server.ask("bash.execute", command="exit 3")
        screen.screen.wait_for(r"failed \(exit 3\) +bash.execute")
        screen.type("\x03")
        assert screen.end()[0] == 130


def test_a_lost_server_ends_watching(tmp_path: Path) -> None:
    with started("--port", "0", cwd=tmp_path) as process:
        port = process.err.wait_for(r"http://127\.0\.0\.1:(\d+)")[1]
        there = Running(tmp_path, port)
        call = [*there.flags, "call", "bash.execute", "sleep 100"]
        with (
            started(*call, cwd=tmp_path),
            started(*there.flags, "watch", cwd=tmp_path) as watcher,
        ):
            watcher.out.wait_for("bash.execute")
            process.signal(signal.SIGKILL)
            assert watcher.end() == 1
            assert f"Is the server on port {port} running?" in watcher.err.rest()


# --- changes --------------------------------------------------------------------------------------


def entry(number: int, state: str) -> dict[str, Any]:
    return {"run": number, "state": state, "method": "a.b"}


def test_runs_that_ended_before_are_not_reported() -> None:
    changes = Changes()
    there = [entry(2, "running"), entry(1, "complete")]
    assert list(changes.update(there, [])) == [entry(2, "running")]
    # A new item without a new state is not reported.
    assert list(changes.update([entry(2, "running") | {"last_seq": 7}], [])) == []
    assert list(changes.update([entry(2, "error")], [])) == [entry(2, "error")]


def test_the_initial_snapshot_may_span_several_events() -> None:
    changes = Changes()
    many = [entry(number, "complete") for number in range(1, RUNS_PER_EVENT + 1)]
    assert list(changes.update(many, [])) == []
    assert list(changes.update([entry(RUNS_PER_EVENT + 1, "complete")], [])) == []
    assert list(changes.update([entry(RUNS_PER_EVENT + 2, "complete")], [])) != []


def test_runs_between_two_polls_are_reported_in_start_order() -> None:
    changes = Changes()
    assert list(changes.update([], [])) == []
    news = [entry(3, "running"), entry(2, "error"), entry(1, "complete")]
    assert [each["run"] for each in changes.update(news, [])] == [1, 2, 3]


def test_an_evicted_run_with_an_unseen_end_is_reported_as_forgotten() -> None:
    changes = Changes()
    list(changes.update([entry(1, "asking"), entry(2, "complete")], []))
    assert list(changes.update([], [1, 2])) == [entry(1, "forgotten")]
    assert list(changes.update([], [1])) == []
