"""`substrate tasks`: text for people and lines of JSON for programs, with and without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run, server, terminal, without_colours

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def tasks(project: Path, *words: str, code: int = 0, stdin: str = "") -> list[Any]:
    """Run a command. Returns its lines of JSON, or its lines of text after a failure."""
    done = run("--database", "tasks.db", "tasks", *words, "--json", cwd=project, stdin=stdin)
    assert done.returncode == code, done.stderr
    if code:
        return done.stderr.splitlines()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_task_goes_through_all_commands_as_json(project: Path, tmp_path: Path) -> None:
    [first] = tasks(project, "add", "Fix parser bug", "-t", "bug", "-p", "0", "-l", "core")
    assert first["type"] == "bug"
    [second] = tasks(project, "add", "Release", "--blocked-by", first["id"], "-a", "It builds")
    assert [task["id"] for task in tasks(project, "list")] == [first["id"], second["id"]]
    assert [task["id"] for task in tasks(project, "ready")] == [first["id"]]
    assert [task["id"] for task in tasks(project, "list", "--label", "core")] == [first["id"]]
    [claimed] = tasks(project, "claim")
    assert claimed["id"] == first["id"]
    assert claimed["holder"].startswith("substrate tasks ")
    # The claim of a person stays when the command ends.
    [shown] = tasks(project, "show", first["id"][:10])
    assert shown["status"] == "in_progress"
    [error] = tasks(project, "claim", code=1)
    assert error == "Error: No task is ready."
    assert "is blocked by" in tasks(project, "claim", second["id"], code=1)[0]
    [closed] = tasks(project, "close", first["id"], "-r", "Found it")
    assert closed["unblocked"] == [second["id"]]
    lines = tasks(project, "export", "--format", "jsonl")
    assert [line["id"] for line in lines] == [first["id"], second["id"]]
    text = run("--database", "tasks.db", "tasks", "export", cwd=project).stdout
    assert "## To do\n\n- [ ] Release (" in text
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tasks(project, "import", str(file)) == [{"imported": 0, "existing": 2}]


def test_tasks_of_another_folder_are_apart_unless_they_are_asked_for(
    project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tasks(project, "add", "Here")
    tasks(project, "add", "There", "--project", str(other))
    assert [task["description"] for task in tasks(project, "list")] == ["Here"]
    found = tasks(project, "list", "--all-projects")
    assert [task["description"] for task in found] == ["Here", "There"]
    [error] = [
        line
        for line in tasks(project, "list", "--all-projects", "--project", ".", code=2)
        if line.startswith("Error")
    ]
    assert "exclude each other" in error


def test_a_project_that_is_not_a_folder_is_refused_and_no_task_is_added(
    project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong, command in (
        (str(tmp_path / "missing"), ["add", "Lost"]),
        (str(file), ["list"]),
        ("", ["claim"]),
    ):
        done = run("--database", "tasks.db", "tasks", *command, "--project", wrong, cwd=project)
        assert done.returncode == 2
        assert f"there is no folder {wrong!r}" in done.stderr
    assert tasks(project, "list", "--all-projects") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"{", "Line 1: not valid JSON"),
        (b"", "has no lines"),
        (
            b'{"id": "task_00000001", "description": ""}',
            "Line 1: The description must not be blank",
        ),
    ],
)
def test_a_broken_file_is_refused_with_its_line(
    project: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "broken"
    file.write_bytes(content)
    assert message in "\n".join(tasks(project, "import", str(file), code=1))
    assert tasks(project, "list", "--status", "all") == []


def test_an_unknown_task_is_named(project: Path) -> None:
    [error] = tasks(project, "close", "task_xyz", code=1)
    assert error == "Error: task not found: task_xyz (not_found)"


def test_a_pipe_gets_the_text_of_a_terminal_uncut_and_without_colours(project: Path) -> None:
    description = "Fix the parser of dates " * 6
    [task] = tasks(project, "add", description.strip())
    listed = run("--database", "tasks.db", "tasks", "list", cwd=project)
    heading, row = listed.stdout.splitlines()
    assert heading.split() == ["Task", "State", "P", "Type", "Description", "Holder"]
    assert row.split() == [task["id"], "ready", "2", "task", *description.split()]
    added = run("--database", "tasks.db", "tasks", "add", "More", cwd=project)
    assert added.stdout.endswith(" ready P2 More\n")
    shown = run("--database", "tasks.db", "tasks", "show", task["id"], cwd=project)
    assert shown.stdout.startswith(f"{task['id']} ready, project ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "x", "-p", "high"), "'high' is not a whole number from 0 to 4."),
        (("list", "--limit", "0"), "'0' is not a whole number from 1 to 500."),
    ],
)
def test_a_wrong_number_is_refused_with_the_allowed_range(
    project: Path, words: tuple[str, ...], message: str
) -> None:
    assert tasks(project, *words, code=2)[-1].endswith(message)


def test_a_terminal_shows_a_table(project: Path) -> None:
    [task] = tasks(project, "add", "Fix parser bug", "-p", "0")
    with terminal("--database", "tasks.db", "tasks", "list", cwd=project) as shown:
        code, text = shown.end()
    assert code == 0
    assert "\x1b[" in text
    heading, row = without_colours(text).strip().splitlines()
    assert heading.split() == ["Task", "State", "P", "Type", "Description", "Holder"]
    assert row.split() == [task["id"], "ready", "0", "task", "Fix", "parser", "bug"]
    with terminal("--database", "tasks.db", "tasks", "show", task["id"], cwd=project) as shown:
        code, text = shown.end()
    assert code == 0
    assert "created by substrate tasks" in without_colours(text)
    with terminal("--database", "tasks.db", "tasks", "claim", cwd=project) as shown:
        _, text = shown.end()
    assert f"{task['id']} in progress P0 Fix parser bug" in without_colours(text)


def test_commands_use_a_running_server_with_the_project_of_their_own_folder(
    project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with server(other) as running:
        made = run("--port", running, "tasks", "add", "Mine", cwd=project)
        assert made.returncode == 0, made.stderr
        for folder, found in ((project, "Mine"), (other, None)):
            listed = run("--port", running, "tasks", "list", "--json", cwd=folder)
            lines = [json.loads(line)["description"] for line in listed.stdout.splitlines()]
            assert lines == ([found] if found else [])
