"""Runs that outlive the real Claude Code CLI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from claude_cli import KEY, private_environment, run_claude, start_claude
from conformance.node import NotInstalled, claude_code
from model_api import model_api
from project_servers import eventually, kill_servers, servers

#: npm may have to fetch the CLI first.
pytestmark = pytest.mark.timeout(400)

BASH = "mcp__substrate__bash_execute"
RUN_IN_SERVER = {"SUBSTRATE_RUN_IN": "server"}


@pytest.fixture(autouse=True)
def _own_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    try:
        claude_code()
    except NotInstalled as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    kill_servers()


def start_server(folder: Path, api: str) -> None:
    """Start the server with a front that ends: Claude Code does not wait for slow servers."""
    home = folder / "home"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-m", "substrate", "--stdio", "--mcp", "--background"],
        cwd=folder,
        env=private_environment(home, api, KEY),
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )


def test_a_tool_works_through_a_front(tmp_path: Path) -> None:
    with model_api(BASH, {"command": "echo $PWD"}) as model:
        start_server(tmp_path, model.url)
        assert run_claude(tmp_path, model.url, BASH, **RUN_IN_SERVER).strip() == "done"
        [[block]] = model.results
        assert block["text"].strip() == str(tmp_path)
    assert len(servers()) == 1


def test_a_command_continues_after_claude_code_was_killed(tmp_path: Path) -> None:
    gate, over = tmp_path / "gate", tmp_path / "over"
    command = f"touch {tmp_path}/begun; while [ ! -e {gate} ]; do sleep 0.02; done; touch {over}"
    with model_api(BASH, {"command": command}) as model:
        start_server(tmp_path, model.url)
        process = start_claude(tmp_path, model.url, BASH, **RUN_IN_SERVER)
        try:
            eventually((tmp_path / "begun").exists, "the command runs", 60)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)
    assert not over.exists()
    gate.touch()
    eventually(over.exists, "the command continues")
