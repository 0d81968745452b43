"""`substrate schema`: description of parameters, events and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import COUNT, add_plugin, run, server, terminal, without_colours


def test_with_json_it_is_the_json_schema_on_one_line(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)

    whole, namespace, method = (
        json.loads(run("schema", "--json", *name, cwd=tmp_path).stdout)
        for name in ([], ["count"], ["count.up"])
    )

    assert {entry["namespace"] for entry in whole["activations"]} >= {"bash", "count", "plexus"}
    assert namespace["description"] == "Counts, out loud."
    assert namespace["methods"] == [method]
    assert method["params"]["properties"]["to"]["type"] == "integer"


def test_the_legacy_name_with_underscores_is_accepted(tmp_path: Path) -> None:
    assert (
        json.loads(run("schema", "--json", "bash_execute", cwd=tmp_path).stdout)["name"]
        == "bash.execute"
    )


@pytest.mark.parametrize(
    ("name", "meant"), [("bash.exec", "bash.execute"), ("bsh", "bash"), ("execute", "bash.execute")]
)
def test_an_unknown_name_gets_a_suggestion(name: str, meant: str, tmp_path: Path) -> None:
    failed = run("schema", name, cwd=tmp_path)

    assert failed.returncode == 2
    assert failed.stdout == ""
    assert f"Did you mean {meant}" in failed.stderr


def test_on_a_terminal_parameters_and_events_are_explained(tmp_path: Path) -> None:
    with terminal("schema", "bash.execute", cwd=tmp_path) as screen:
        code, text = screen.end()
    seen = " ".join(without_colours(text).split())
    assert code == 0
    assert "command text Command line or script, such as" in seen
    assert "timeout_s number or null" in seen
    assert "(default 600.0)" in seen
    assert "stdout A chunk of the command's standard output" in seen
    assert "exit_code: integer" in seen


def test_on_a_terminal_json_is_available_on_request(tmp_path: Path) -> None:
    with terminal("schema", "plexus.hash", "--json", cwd=tmp_path) as screen:
        _, text = screen.end()
    assert json.loads(text)["result"] == {"type": "string"}


def test_a_server_describes_what_it_has(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with server(tmp_path) as port:
        described = run("--port", port, "schema", "--json", "count.up", cwd=elsewhere)
    assert json.loads(described.stdout)["name"] == "count.up"
