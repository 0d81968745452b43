"""`substrate serve`, `open` and `help`, and what a terminal shows of a server."""

from __future__ import annotations

import json
import re
import signal
import stat
from pathlib import Path

import pytest
from command_line import run, server, started, terminal, without_colours

from plexus.private_files import state_folder
from substrate.cli.main import COMMANDS, SECTIONS

REQUEST = '{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}\n'
READY = r"http://127\.0\.0\.1:(\d+)"


def test_commands_come_first_in_the_help_and_server_flags_in_that_of_serve(tmp_path: Path) -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    root = run("--help", cwd=tmp_path).stdout
    assert root.index("  serve ") < root.index("  call ") < root.index("--port")
    assert "--mcp-progress-rate" not in root
    serve = run("serve", "--help", cwd=tmp_path).stdout
    for flag in ("--port", "--stdio", "--mcp-progress-rate", "--log-format", "--only"):
        assert flag in serve, flag
    assert "--token" not in serve


@pytest.mark.parametrize(
    "words",
    [["--stdio"], ["serve", "--stdio"], ["--log-level", "info", "serve", "--stdio"]],
)
def test_serve_takes_the_flags_of_the_bare_command(words: list[str], tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path, stdin=REQUEST)
    assert done.returncode == 0, done.stderr
    assert 1 in [json.loads(line).get("id") for line in done.stdout.splitlines()]


def test_serve_serves_and_its_flags_are_settings(tmp_path: Path) -> None:
    with started("--only", "bash", "serve", "--port", "0", "--only", "chat", cwd=tmp_path) as one:
        port = one.err.wait_for(READY)[1]
        listed = run("--port", port, "list", cwd=tmp_path).stdout
        assert "bash" in listed
        assert "chat" in listed
        assert "arbor" not in listed.partition("does not have")[0].replace("  arbor  ", "")
        one.signal(signal.SIGINT)
        assert one.end() == 0
    wrong = run("serve", "--port", "x", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "'x' is not a whole number from 0 to 65535" in wrong.stderr


@pytest.mark.parametrize("words", [["serve"], []])
def test_a_terminal_shows_a_line_for_each_run(words: list[str], tmp_path: Path) -> None:
    with terminal("--port", "0", *words, cwd=tmp_path) as screen:
        port = screen.screen.wait_for(READY)[1]
        call = ["--port", port, "call", "bash.execute"]
        assert run(*call, "exit 3", cwd=tmp_path).returncode == 1
        assert run(*call, "--env", '{"API_KEY": "hunter2"}', "true", cwd=tmp_path).returncode == 0
        screen.screen.wait_for(r"succeeded")
        screen.type("\x03")
        code, text = screen.end()
    assert code == 0
    shown = [line for line in without_colours(text).splitlines() if "bash.execute" in line]
    assert len(shown) == 2, text
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  failed \(exit 3\) +bash.execute +exit 3  [\d.]+ m?s", shown[0]
    )
    assert "hunter2" not in text
    assert "plexus.schema" not in text


def test_without_a_terminal_runs_are_not_printed(tmp_path: Path) -> None:
    with started("serve", "--port", "0", cwd=tmp_path) as process:
        port = process.err.wait_for(READY)[1]
        assert run("--port", port, "call", "bash.execute", "true", cwd=tmp_path).returncode == 0
        process.signal(signal.SIGINT)
        assert process.end() == 0
        assert "bash.execute" not in process.err.rest()


def test_the_page_is_opened_with_a_private_file_or_the_link_is_printed(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    browser.chmod(0o755)
    with server(tmp_path) as port:
        token = run("--port", port, "token", cwd=tmp_path).stdout.strip()
        shown = run("--port", port, "open", cwd=tmp_path, BROWSER=f"{browser} %s")
        assert shown.stdout == f"Opened http://127.0.0.1:{port}/ in your browser.\n"
        # Other users can see the arguments of a process.
        assert token not in opened.read_text()
        file = Path(opened.read_text().strip().removeprefix("file://"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert f"#token={token}" in file.read_text()
        printed = run(
            "--port", port, "open", cwd=tmp_path, BROWSER="", DISPLAY="", WAYLAND_DISPLAY=""
        )
        assert printed.stdout == f"http://127.0.0.1:{port}/#token={token}\n"
    assert file.is_relative_to(state_folder())
    none = run("--port", "1", "open", cwd=tmp_path)
    assert none.returncode == 1
    assert "No server runs on port 1. Start one with `substrate serve`." in none.stderr


def test_help_explains_commands_and_methods(tmp_path: Path) -> None:
    assert run("help", cwd=tmp_path).stdout == run("--help", cwd=tmp_path).stdout
    pin = run("help", "runs", "pin", cwd=tmp_path)
    assert pin.stdout == run("runs", "pin", "--help", cwd=tmp_path).stdout
    assert "--max-output-bytes" in run("help", "call", "bash.execute", cwd=tmp_path).stdout
    wrong = run("help", "nothing", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "Unknown command 'nothing'." in wrong.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "x", "chat"], "follows its name: `substrate chat --model`."),
        (["bash.execute", "ls"], "Call a method with `substrate call bash.execute`."),
        (["lst"], "Did you mean 'list'?"),
    ],
)
def test_a_misplaced_word_is_explained(words: list[str], message: str, tmp_path: Path) -> None:
    refused = run(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr
