"""`substrate doctor`: problems are reported with their fixes."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import add_plugin, lines, run, server, terminal, without_colours

from plexus.version import __version__
from substrate.cli.mcp_hosts.hosts import HOSTS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home folder without configured hosts, store and lock files."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(folder / variable.lower()))
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def run_doctor(project: Path, *flags: str, **variables: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the doctor. Returns the exit code and the results."""
    done = run(*flags, "doctor", "--json", cwd=project, **variables)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, lines(done.stdout)


def results_of(findings: list[dict[str, Any]], check: str) -> list[tuple[str, str]]:
    """Return level and message, with the next step, of the results of a check."""
    return [
        (each["level"], f"{each['message']}. {each['next']}")
        for each in findings
        if each["check"] == check
    ]


def test_a_fresh_machine_has_no_problems(tmp_path: Path) -> None:
    code, findings = run_doctor(tmp_path)
    assert code == 0, findings
    assert {each["level"] for each in findings} <= {"ok", "optional", "warning"}
    # What is not set up and not needed is neither good nor bad.
    optional = {each["check"] for each in findings if each["level"] == "optional"}
    assert optional >= {"trust", "chat", "claude-code"}
    checks = {each["check"] for each in findings}
    assert checks >= {
        *("python", "uvloop", "open files", "sandbox", "server", "lock files", "data", "store"),
        *("plugins", "project", "chat"),
        *("claude-code", "claude-desktop", "codex", "gemini", "vscode"),
    }


def test_on_a_terminal_every_line_starts_with_its_level(tmp_path: Path) -> None:
    with terminal("doctor", cwd=tmp_path) as screen:
        code, text = screen.end()
    assert code == 0
    first, *_, last = without_colours(text).splitlines()
    assert first.startswith("OK       python")
    assert last.startswith("0 problems, ")


def test_a_running_server_is_checked(tmp_path: Path) -> None:
    with server(tmp_path) as port:
        code, findings = run_doctor(tmp_path, "--port", port)
        assert code == 0, findings
        [(level, message), (_, activations)] = results_of(findings, "server")
        assert (level, __version__ in message) == ("ok", True)
        assert "activations are healthy" in activations
        assert results_of(findings, "token") == [("ok", "accepted by the server. ")]
        assert results_of(findings, "lock files")[-1][1].startswith("1 of running servers")
        wrong_code, wrong = run_doctor(tmp_path, "--port", port, "--token", "wrong")
        assert wrong_code == 1
        [(level, message)] = results_of(wrong, "token")
        assert level == "problem"
        assert "substrate --token TOKEN doctor" in message


def test_another_program_on_the_port_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, findings = run_doctor(tmp_path, "--port", str(other.getsockname()[1]))
    assert code == 1
    [(level, message)] = results_of(findings, "server")
    assert level == "problem"
    assert "another program listens on port" in message
    assert "use another port" in message


def test_a_stale_lock_file_is_reported_once(tmp_path: Path, home: Path) -> None:
    folder = home / "xdg_state_home" / "substrate" / "servers"
    folder.mkdir(parents=True, mode=0o700)
    with subprocess.Popen(["true"]) as gone:
        pid = gone.pid
    entry = {"port": 1, "authToken": "x", "pid": pid, "startTime": 1}
    (folder / "1.json").write_text(json.dumps(entry))
    (folder / "2.json").write_text("no lock file")
    folder.chmod(0o755)
    code, findings = run_doctor(tmp_path)
    assert code == 1
    message = [f"{level}: {text}" for level, text in results_of(findings, "lock files")]
    assert message[0].startswith(f"problem: other users can read {folder}")
    assert message[1].startswith("warning: removed the stale lock file of a server on port 1")
    assert message[2] == f"warning: {folder}/2.json is not a lock file. rm {folder}/2.json"
    assert not (folder / "1.json").exists()
    folder.chmod(0o700)
    (folder / "2.json").unlink()
    assert run_doctor(tmp_path)[0] == 0


def test_a_store_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "trees.db"
    made = run("--database", str(file), "chat", "--new", "-m", "x", cwd=tmp_path)
    assert made.returncode == 0
    code, findings = run_doctor(tmp_path, "--database", str(file))
    assert code == 0
    [(level, message)] = results_of(findings, "store")
    assert level == "ok"
    assert str(file) in message
    assert "schema " in message
    assert message.endswith("MiB. ")
    with sqlite3.connect(file) as newer:
        newer.execute("PRAGMA user_version = 999")
    newer.close()
    code, findings = run_doctor(tmp_path, "--database", str(file))
    assert code == 1
    [(level, message)] = results_of(findings, "store")
    assert level == "problem"
    assert "cannot open the database" in message


def test_a_broken_plugin_is_a_problem(tmp_path: Path) -> None:
    broken = add_plugin(tmp_path, "broken", "def (")
    code, findings = run_doctor(tmp_path)
    assert code == 1
    [(level, message)] = results_of(findings, "plugins")
    assert level == "problem"
    assert f"{broken} was skipped: SyntaxError" in message


def test_every_mount_is_reported_without_starting_its_server(tmp_path: Path, home: Path) -> None:
    assert results_of(run_doctor(tmp_path)[1], "mounts") == [
        ("optional", "no servers are mounted. substrate mount import")
    ]
    mount = ("mount", "add", "--no-check")
    assert run(*mount, "new", "--", sys.executable, cwd=tmp_path).returncode == 0
    assert run(*mount, "gone", "--", "/nowhere/server", cwd=tmp_path).returncode == 0
    assert run(*mount, "remote", "https://${NOHOST}/mcp", cwd=tmp_path).returncode == 0
    code, findings = run_doctor(tmp_path)
    assert code == 1
    found = dict(text.split(" ", 1) for _, text in results_of(findings, "mounts"))
    assert found == {
        "new": "was never listed. substrate mount refresh new",
        "gone": "starts '/nowhere/server', which is not a program on PATH. "
        "Install it, or change the mount.",
        "remote": "needs variables that are not set: NOHOST. Set them where the server starts.",
    }
    (home / "xdg_config_home" / "substrate" / "mounts.toml").write_text("[mounts.x]\nnothing = 1\n")
    [(level, message)] = results_of(run_doctor(tmp_path)[1], "mounts")
    assert (level, "x is not mounted: " in message) == ("problem", True)


def test_a_configured_sandbox_must_be_installed(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    code, findings = run_doctor(tmp_path, "--bash-sandbox", "strict", PATH=str(empty))
    assert code == 1
    assert results_of(findings, "sandbox")[0][0] == "problem"
    assert "Install bubblewrap" in results_of(findings, "sandbox")[0][1]


def test_only_the_default_model_has_to_be_ready(tmp_path: Path) -> None:
    keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"), "")
    code, findings = run_doctor(tmp_path, SUBSTRATE_CHAT_MODEL="anthropic:claude-x", **keys)
    assert code == 1
    problems = [text for level, text in results_of(findings, "chat") if level == "problem"]
    assert len(problems) == 1
    assert problems[0].startswith("the default model anthropic:claude-x is not ready. ")
    assert "ANTHROPIC_API_KEY" in problems[0] or "pip install" in problems[0]


def test_few_open_files_are_a_warning(tmp_path: Path) -> None:
    limited = subprocess.run(
        ["bash", "-c", f"ulimit -n 256; exec {sys.executable} -m substrate doctor --json"],
        cwd=tmp_path,
        env=os.environ | {"SUBSTRATE_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    [(level, message)] = results_of(lines(limited.stdout), "open files")
    assert (level, limited.returncode) == ("warning", 0)
    assert "ulimit -n" in message


# --- hosts ----------------------------------------------------------------------------------------


def claude(home: Path, entry: Any) -> None:
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"substrate": entry}}))


def test_an_installed_entry_is_ok(tmp_path: Path) -> None:
    for host in ("claude-desktop", "codex", "gemini", "vscode"):
        assert run("mcp", "install", host, "--yes", cwd=tmp_path).returncode == 0
    code, findings = run_doctor(tmp_path)
    assert code == 0, findings
    for host in ("claude-desktop", "codex", "gemini", "vscode"):
        [(level, message)] = results_of(findings, host)
        assert level == "ok"
        assert "substrate in " in message
    assert "no entry in Claude Code" in results_of(findings, "claude-code")[0][1]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "/nowhere/substrate", "args": ["--stdio", "--mcp"]}, "which does not exist"),
        (
            {"command": sys.executable, "args": ["-m", "substrate", "--stdio"]},
            "the flags --mcp",
        ),
        ({"env": {}}, "neither a command nor a url"),
        ("text", "is not an object"),
    ],
)
def test_an_entry_that_cannot_work_is_a_problem(
    entry: Any, expected: str, tmp_path: Path, home: Path
) -> None:
    claude(home, entry)
    code, findings = run_doctor(tmp_path)
    assert code == 1
    [(level, message)] = results_of(findings, "claude-code")
    assert level == "problem"
    assert expected in message
    assert message.endswith("substrate mcp install claude-code")


def test_entries_with_a_url_or_another_name_are_recognised(tmp_path: Path, home: Path) -> None:
    claude(home, {"type": "http", "url": "http://127.0.0.1:4444/mcp"})
    flags = ["-m", "substrate", "--stdio", "--mcp"]
    others = {"mine": {"command": sys.executable, "args": flags}, "theirs": {"command": "x"}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": others}))
    code, findings = run_doctor(tmp_path)
    assert code == 0, findings
    [server, mine] = results_of(findings, "claude-code")
    assert "connects to the server at http://127.0.0.1:4444/mcp" in server[1]
    assert mine[1].startswith("mine in .mcp.json")


def test_names_with_dots_are_a_problem_where_they_are_rejected(tmp_path: Path) -> None:
    file = HOSTS["claude-desktop"].files["user"]()
    file.parent.mkdir(parents=True)
    entry = {"command": sys.executable, "args": ["-m", "substrate", "--stdio", "--mcp"]}
    text = json.dumps({"mcpServers": {"substrate": entry}})
    file.write_text(text)
    code, findings = run_doctor(tmp_path)
    assert code == 1
    assert (
        "names with dots, which Claude Desktop rejects"
        in results_of(findings, "claude-desktop")[0][1]
    )
    file.write_text(text.replace('"--mcp"', '"--mcp", "--mcp-tool-names=dash"'))
    assert run_doctor(tmp_path)[0] == 0


def test_names_with_dots_are_fine_in_codex(tmp_path: Path, home: Path) -> None:
    folder = home / ".codex"
    folder.mkdir()
    arguments = ["-m", "substrate", "--stdio", "--mcp"]
    text = (
        f'[mcp_servers.substrate]\ncommand = "{sys.executable}"\nargs = {json.dumps(arguments)}\n'
    )
    (folder / "config.toml").write_text(text)
    code, findings = run_doctor(tmp_path)
    assert code == 0, findings


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, home: Path) -> None:
    (home / ".claude.json").write_text("{")
    code, findings = run_doctor(tmp_path)
    assert code == 1
    assert "cannot read " in results_of(findings, "claude-code")[0][1]


def test_the_history_is_reported_without_opening_it(tmp_path: Path, home: Path) -> None:
    file = home / "xdg_data_home" / "substrate" / "runs.db"
    [(level, message)] = results_of(run_doctor(tmp_path)[1], "history")
    assert level == "ok"
    assert message.startswith(f"record is all, in {file}, empty; kept for 7 days and up to 954 MiB")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"no database" * 100_000)
    code, findings = run_doctor(tmp_path)
    [(level, message)] = results_of(findings, "history")
    assert (code, level) == (1, "problem")
    assert message.startswith(f"{file} is not a readable SQLite database")
    file.write_bytes(b"SQLite format 3\0" + b"no database" * 100_000)
    file.with_name("runs.db-wal").write_bytes(b"x" * 1024 * 1024)
    variables = {"SUBSTRATE_RECORD": "metadata", "SUBSTRATE_HISTORY_METHODS": "*@failed=30"}
    [(level, message)] = results_of(run_doctor(tmp_path, **variables)[1], "history")
    assert level == "ok"
    assert f"record is metadata, in {file}, 2.0 MiB; " in message
    assert message.endswith("; rules for methods: 1. ")
    assert results_of(run_doctor(tmp_path, SUBSTRATE_RECORD="off")[1], "history") == [
        ("ok", "runs are not recorded (record is off). ")
    ]
