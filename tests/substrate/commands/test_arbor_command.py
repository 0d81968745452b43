"""`substrate arbor`: backups and drawings, on a terminal and piped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run, server, started, terminal, without_colours

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def call(project: Path, method: str, *options: str, **params: Any) -> Any:
    """Call a method on the database of this project. Returns its result."""
    called = run(
        *("--database", "trees.db", "call", *options, "--json", f"arbor.{method}"),
        *("--params", json.dumps(params)),
        cwd=project,
    )
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout.splitlines()[-1])["result"]


@pytest.fixture
def tree(project: Path) -> str:
    """Create a tree with one branch. Returns its id."""
    made = call(project, "tree_create", metadata={"title": "Notes"})
    nodes = [{"content": "one"}, {"content": "two"}]
    call(project, "node_append", tree_id=made["tree_id"], nodes=nodes)
    return str(made["tree_id"])


DRAWING = "Notes\n├── one\n└── two\n"


def test_a_tree_is_drawn_as_plain_text_into_a_pipe(project: Path, tree: str) -> None:
    drawn = run("--database", "trees.db", "arbor", "tree", tree, cwd=project)
    assert (drawn.returncode, drawn.stdout) == (0, DRAWING)
    short = run("--database", "trees.db", "arbor", "tree", tree, "--limit", "2", cwd=project)
    assert short.stdout == "Notes\n├── one\n└── … 1 more\n"


def test_as_json_a_tree_is_a_line_followed_by_its_nodes(project: Path, tree: str) -> None:
    command = ("--database", "trees.db", "arbor", "tree", tree, "--json")
    done = run(*command, cwd=project)
    assert done.returncode == 0, done.stderr
    first, root, *nodes = map(json.loads, done.stdout.splitlines())
    assert (first["tree_id"], first["root"]) == (tree, root["node_id"])
    assert [node["content"] for node in nodes] == ["one", "two"]
    refused = run(*command, "--limit", "1", cwd=project)
    assert (refused.returncode, refused.stdout) == (2, "")
    unknown = run(*command[:4], "unknown", "--json", cwd=project)
    assert (unknown.returncode, unknown.stdout) == (1, "")


def test_a_tree_is_drawn_in_colour_on_a_terminal(project: Path, tree: str) -> None:
    with terminal("--database", "trees.db", "arbor", "tree", tree, "--ids", cwd=project) as drawn:
        code, text = drawn.end()
    assert code == 0
    assert "\x1b[" in text
    lines = without_colours(text).splitlines()
    assert [line.split("  ")[0] for line in lines] == DRAWING.splitlines()


def test_an_unknown_tree_is_an_error(project: Path, tree: str) -> None:
    drawn = run("--database", "trees.db", "arbor", "tree", tree[:-1] + "!", cwd=project)
    assert drawn.returncode == 1
    assert "Unknown tree" in drawn.stderr
    assert drawn.stdout == ""


def test_a_backup_is_a_complete_store(project: Path, tree: str) -> None:
    made = run("--database", "trees.db", "arbor", "backup", "copy.db", cwd=project)
    assert (made.returncode, made.stdout) == (0, "Wrote copy.db.\n")
    (project / "trees.db").unlink()
    drawn = run("--database", "copy.db", "arbor", "tree", tree, cwd=project)
    assert drawn.stdout == DRAWING


def test_a_backup_is_written_while_a_server_writes(project: Path, tree: str) -> None:
    with started("--port", "0", "--database", "trees.db", cwd=project) as process:
        process.err.wait_for(r"http://127\.0\.0\.1:(\d+)")
        made = run("--database", "trees.db", "arbor", "backup", "copy.db", cwd=project)
    assert made.returncode == 0, made.stderr
    assert run("--database", "copy.db", "arbor", "tree", tree, cwd=project).stdout == DRAWING


def test_an_existing_file_is_replaced_only_with_force(project: Path, tree: str) -> None:
    (project / "copy.db").write_text("something precious")
    refused = run("--database", "trees.db", "arbor", "backup", "copy.db", cwd=project)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert (project / "copy.db").read_text() == "something precious"
    backup = ("--database", "trees.db", "arbor", "backup", "--force", "copy.db")
    outcome = json.loads(run(*backup, "--json", cwd=project).stdout)
    copy = project / "copy.db"
    assert outcome == {"file": str(copy), "bytes": copy.stat().st_size}
    made = run("--database", "trees.db", "arbor", "backup", "--force", "copy.db", cwd=project)
    assert made.returncode == 0
    assert run("--database", "copy.db", "arbor", "tree", tree, cwd=project).stdout == DRAWING


def test_a_backup_without_a_store_is_an_error(project: Path, tmp_path: Path) -> None:
    made = run("arbor", "backup", "copy.db", cwd=project, XDG_DATA_HOME=str(tmp_path / "data"))
    assert made.returncode == 1
    assert "Nothing to back up" in made.stderr
    assert not (tmp_path / "data").exists()
    assert not (project / "copy.db").exists()


def test_a_backup_that_cannot_be_written_is_an_error(project: Path, tree: str) -> None:
    assert tree
    made = run("--database", "trees.db", "arbor", "backup", "missing/copy.db", cwd=project)
    assert made.returncode == 1
    assert made.stderr.startswith("Error: ")


def test_trees_are_stored_in_the_data_folder_by_default(project: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = run("call", "arbor.tree_create", cwd=project, XDG_DATA_HOME=str(data))
    assert made.returncode == 0, made.stderr
    assert (data / "substrate" / "arbor.db").is_file()


def test_a_server_creates_no_store_for_unrelated_calls(project: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for method in ("plexus.hash", "health.check", "plexus.resources"):
        called = run("call", method, cwd=project, XDG_DATA_HOME=str(data))
        assert called.returncode == 0, called.stderr
    assert not data.exists()


def test_a_tree_of_a_server_is_drawn_by_that_server(project: Path) -> None:
    with server(project) as port:
        made = run("--port", port, "call", "--json", "arbor.tree_create", cwd=project)
        tree = json.loads(made.stdout.splitlines()[-1])["result"]["tree_id"]
        drawn = run("--port", port, "arbor", "tree", tree, cwd=project)
    assert (drawn.returncode, drawn.stdout) == (0, "(root)\n")


@pytest.mark.parametrize("days", ["-1", "x"])
def test_retention_is_a_number_of_days(days: str, project: Path) -> None:
    refused = run("config", cwd=project, SUBSTRATE_ARBOR_SCHEDULED_DAYS=days)
    assert refused.returncode == 2
    assert "arbor_scheduled_days" in refused.stderr
