"""`substrate runs` with filters, `show`, `replay`, and runs of other processes without a server."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import add_plugin, eventually, lines, run, started, terminal, without_colours
from terminal_server import ASKS

from substrate.cli.commands.show import format_header


def listed(project: Path, *options: str) -> list[dict[str, Any]]:
    found = run("runs", "--json", *options, cwd=project)
    assert found.returncode == 0, found.stderr
    return lines(found.stdout)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with two recorded runs: one that succeeded, and one that failed."""
    folder = tmp_path_factory.mktemp("recorded")
    coloured = (
        r"printf '\033[31mred\033[0m apple\n'; printf '\033]0;title\007'; sleep 0.4; echo end"
    )
    assert run("call", "bash.execute", coloured, cwd=folder).returncode == 0
    assert run("call", "bash.execute", "echo pear-tree; exit 3", cwd=folder).returncode == 1
    return folder


def test_recorded_runs_are_listed_without_a_server(project: Path) -> None:
    failed, succeeded = listed(project, "--since", "1h")
    assert (failed["outcome"], failed["exit_code"], succeeded["outcome"]) == (
        "failed",
        3,
        "succeeded",
    )
    assert failed["summary"] == "echo pear-tree; exit 3"
    assert [entry["run"] for entry in listed(project)] == [failed["run"], succeeded["run"]]


def test_recorded_runs_are_filtered(project: Path) -> None:
    failed, succeeded = [entry["run"] for entry in listed(project, "--since", "1h")]

    def found(*options: str) -> list[int]:
        return [entry["run"] for entry in listed(project, *options)]

    assert found("--state", "failed") == [failed]
    assert found("--method", "bash.*", "--limit", "1") == [failed]
    assert found("--method", "chat.*") == []
    assert found("--until", "1h") == []
    assert found("--search", "apple") == [succeeded]
    assert found("--search", "ear-tr") == [failed]
    assert found("--search", '"red"', "--since", "2d", "--method", "bash") == [succeeded]
    assert found("--search", "nowhere") == []


def test_runs_of_other_projects_are_listed_on_request(project: Path, tmp_path: Path) -> None:
    assert listed(tmp_path, "--since", "1h") == []
    projects = {entry["project"] for entry in listed(tmp_path, "--since", "1h", "--all-projects")}
    assert str(project) in projects


def test_invalid_filters_are_explained(project: Path) -> None:
    refused = run("runs", "--since", "soon", cwd=project)
    assert refused.returncode == 2
    assert "is not a time" in refused.stderr
    refused = run("runs", "--method", "a b", cwd=project)
    assert refused.returncode == 1
    assert "is not a pattern" in refused.stderr


def test_the_transcript_has_a_header_and_output_that_cannot_control_the_terminal(
    project: Path,
) -> None:
    number = listed(project, "--state", "succeeded")[0]["run"]
    shown = run("show", str(number), cwd=project)
    assert shown.returncode == 0
    header, _, output = shown.stdout.partition("\n\n")
    assert output == "red apple\nend\n"
    fields = dict(re.findall(r"^(\w[\w ]*?)  +(.*)$", header, re.MULTILINE))
    assert (fields["Run"], fields["Method"]) == (str(number), "bash.execute")
    assert fields["Outcome"].startswith("succeeded" if "succeeded" in header else "complete")
    assert "sleep 0.4" in header
    assert "Kept until" in fields
    with terminal("show", str(number), cwd=project) as screen:
        code, text = screen.end()
    assert code == 0
    assert "\x1b[31mred" not in text
    assert "\x1b]0;" not in text
    assert "red apple" in without_colours(text)


def test_the_transcript_as_json_is_exact(project: Path) -> None:
    number = listed(project, "--state", "succeeded")[0]["run"]
    details, *events = lines(run("show", str(number), "--json", cwd=project).stdout)
    assert details["arguments"]["command"].startswith("printf")
    assert [event["type"] for event in events][:2] == ["start", "stdout"]
    assert events[-1]["type"] == "complete"
    assert "\x1b[31mred" in "".join(event.get("data", "") for event in events)


def test_a_replay_takes_the_time_of_the_run_divided_by_the_speed(project: Path) -> None:
    number = listed(project, "--state", "succeeded")[0]["run"]
    with started("replay", str(number), "--speed", "0.5", cwd=project) as process:
        process.out.wait_for("apple")
        first = time.monotonic()
        process.out.wait_for("end")
        assert time.monotonic() - first > 0.5
        assert process.end() == 0
    assert run("replay", str(number), "--speed", "1000", cwd=project).returncode == 0
    assert run("replay", str(number), "--speed", "0", cwd=project).returncode == 2


def test_ctrl_c_ends_a_replay(project: Path) -> None:
    number = listed(project, "--state", "succeeded")[0]["run"]
    with started("replay", str(number), "--speed", "0.001", cwd=project) as process:
        process.out.wait_for("apple")
        process.signal(signal.SIGINT)
        assert process.end() == 130


def test_runs_are_pinned_and_deleted(tmp_path: Path) -> None:
    for text in ("first", "second"):
        assert run("call", "bash.execute", f"echo {text}", cwd=tmp_path).returncode == 0
    second, first = [entry["run"] for entry in listed(tmp_path, "--since", "1h")]
    assert run("runs", "pin", str(first), cwd=tmp_path).stdout == f"Run {first} is pinned.\n"
    assert "Kept until  unpinned" in run("show", str(first), cwd=tmp_path).stdout
    unpinned = run("runs", "unpin", str(first), cwd=tmp_path)
    assert unpinned.stdout == f"Run {first} is no longer pinned.\n"
    assert (
        run("runs", "delete", str(first), str(second), cwd=tmp_path).stdout == "Deleted 2 runs.\n"
    )
    assert listed(tmp_path, "--since", "1h") == []
    refused = run("runs", "delete", str(first), cwd=tmp_path)
    assert refused.returncode == 1
    assert f"Unknown run {first}." in refused.stderr
    assert run("runs", "prune", cwd=tmp_path).stdout == "Deleted 0 runs.\n"


def test_a_run_of_another_process_is_followed_and_stopped_without_a_server(tmp_path: Path) -> None:
    with started(
        "call", "--json", "--local", "bash.execute", "echo hi; sleep 100", cwd=tmp_path
    ) as process:
        process.out.wait_for("hi")
        eventually(lambda: bool(listed(tmp_path)), "the run is listed")
        [entry] = listed(tmp_path)
        number = str(entry["run"])
        assert entry["state"] == "running"
        so_far = run("show", number, cwd=tmp_path)
        assert so_far.stdout.endswith("\n\nhi\n")
        assert f"`substrate attach {number}` follows it" in so_far.stderr
        with started("attach", number, "--json", cwd=tmp_path) as follower:
            follower.out.wait_for("hi")
            stopped = run("cancel", number, "--reason", "enough", cwd=tmp_path)
            assert stopped.stdout == f"Run {number} is being cancelled.\n"
            assert follower.end() == 1
            assert lines(follower.out.rest())[-1] == {"type": "cancelled", "reason": "enough"}
        assert process.end() == 1


def test_a_question_of_another_process_is_answered_without_a_server(tmp_path: Path) -> None:
    add_plugin(tmp_path, "asks", ASKS)
    with terminal("call", "--local", "asks.confirm", cwd=tmp_path) as screen:
        screen.screen.wait_for("Really?")

        def pending() -> list[dict[str, Any]]:
            return lines(run("respond", "--json", cwd=tmp_path).stdout)

        eventually(lambda: bool(pending()), "the question is listed")
        [question] = pending()
        answered = run("respond", question["approval_id"], "--yes", cwd=tmp_path)
        assert answered.returncode == 0, answered.stderr
        code, text = screen.end()
        assert code == 0
        assert "true" in text.lower()


def test_the_header_cannot_control_the_terminal() -> None:
    details = {
        "run": 1,
        "method": "demo.echo",
        "state": "complete",
        "started_ms": 0,
        "last_seq": 1,
        "client": "evil\x1b[2J 1.0",
        "arguments": {"text": "\x1b]0;title\x07x"},
    }
    header = format_header(details)
    assert "\x1b" not in header
    assert "evil 1.0" in header
    assert json.dumps("") not in header


def test_the_runs_of_other_processes_are_watched_without_a_server(tmp_path: Path) -> None:
    with started("watch", "--json", cwd=tmp_path) as watcher:
        # The watch has begun when it shows a run that is in progress.
        with started("call", "--local", "bash.execute", "sleep 100", cwd=tmp_path) as process:
            watcher.out.wait_for('"running"')
            process.signal(signal.SIGINT)
            assert process.end() == 130
            watcher.out.wait_for('"cancelled"')
        watcher.signal(signal.SIGINT)
        assert watcher.end() == 130


def test_the_commands_of_the_document_work(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "history.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", document, re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in "".join(blocks).splitlines()]
    assert len(commands) > 15
    assert run("call", "bash.execute", "echo hello", cwd=tmp_path).returncode == 0
    [entry] = listed(tmp_path, "--since", "1h")
    # The last one, so that the others find the run.
    for program, *words in sorted(commands, key=lambda command: "delete" in command):
        assert program == "substrate"
        arguments = [str(entry["run"]) if word == "RUN" else word for word in words]
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
