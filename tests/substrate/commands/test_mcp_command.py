"""`substrate mcp`: the server is added to hosts without damage to their files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import WAIT_S, environment, terminal, without_colours

from substrate.cli.commands import mcp as mcp_command
from substrate.cli.main import cli
from substrate.cli.mcp_hosts.config_file import ConfigFile, FileChanged
from substrate.cli.mcp_hosts.hosts import HOSTS

LAUNCHER = f"#!{sys.executable}\nfrom substrate.cli.main import main\nmain()\n"


class Machine:
    """A user's machine: a home, a project, and programs on PATH."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project, self.bin = folder / "home", folder / "project", folder / "bin"
        for each in (self.home, self.project, self.bin):
            each.mkdir()
        self.substrate = self.install("substrate", LAUNCHER)
        self.calls = folder / "calls"

    def install(self, name: str, script: str) -> Path:
        """Put a program on PATH."""
        program = self.bin / name
        program.write_text(script)
        program.chmod(0o755)
        return program

    def install_claude(self, script: str = "") -> None:
        """Install a `claude` that records its arguments, one line per call."""
        keep = f"printf '%s\\037' \"$@\" >> {self.calls}; echo >> {self.calls}"
        self.install("claude", f"#!/bin/sh\n{keep}\n{script}\n")

    def claude_calls(self) -> list[list[str]]:
        if not self.calls.exists():
            return []
        return [line.split("\x1f")[:-1] for line in self.calls.read_text().splitlines()]

    @property
    def variables(self) -> dict[str, str]:
        others = dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"), "")
        return {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin", **others}

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `substrate mcp` without a terminal."""
        return subprocess.run(
            [str(self.substrate), "mcp", *arguments],
            cwd=self.project,
            env=environment(**{**self.variables, **variables}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def entry(self, *flags: str) -> dict[str, Any]:
        return {"command": str(self.substrate), "args": ["--stdio", "--mcp", *flags]}

    def files(self) -> dict[str, str]:
        """Return all files of the home and the project."""
        found = [*self.home.rglob("*"), *self.project.rglob("*")]
        return {
            str(path.relative_to(self.home.parent)): path.read_text()
            for path in found
            if path.is_file()
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


# --- show ------------------------------------------------------------------------------------


def test_show_prints_what_to_paste_and_nothing_else(machine: Machine) -> None:
    for host in ("claude-code", "gemini"):
        shown = machine.run("show", host)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert json.loads(shown.stdout) == {"mcpServers": {"substrate": machine.entry()}}
    underscored = machine.entry("--mcp-tool-names", "underscore")
    shown = machine.run("show", "claude-desktop", "--name", "mine")
    assert json.loads(shown.stdout) == {"mcpServers": {"mine": underscored}}
    assert tomllib.loads(machine.run("show", "codex").stdout) == {
        "mcp_servers": {"substrate": machine.entry()}
    }
    shown = machine.run(
        "show", "vscode", "--scope", "user", "--", "--activation", "my.module:Class"
    )
    assert json.loads(shown.stdout) == {
        "servers": {
            "substrate": {"type": "stdio", **machine.entry("--activation", "my.module:Class")}
        }
    }
    assert machine.files() == {}


def test_an_activation_is_part_of_the_entry_with_the_full_path_of_a_file(
    machine: Machine,
) -> None:
    file = write(machine.project / "tools.py", "")
    shown = machine.run(
        "show", "gemini", "--activation", "tools.py", "--activation", "my:it", "--", "--trust"
    )
    flags = ["--activation", str(file), "--activation", "my:it", "--trust"]
    assert json.loads(shown.stdout) == {"mcpServers": {"substrate": machine.entry(*flags)}}
    unnamed = machine.run("install", "gemini", "--activation", "", "--yes")
    assert unnamed.returncode == 2
    assert "'' names nothing. Give module:Class" in unnamed.stderr
    missing = machine.run("install", "gemini", "--activation", "no.py", "--yes")
    assert missing.returncode == 2
    assert "There is no file no.py." in missing.stderr


def test_the_help_names_every_host(machine: Machine) -> None:
    for command in ("install", "show"):
        text = machine.run(command, "--help").stdout
        assert all(host in text for host in HOSTS)


# --- rejected arguments -----------------------------------------------------------------------


def test_an_unknown_host_is_rejected_with_the_known_ones(machine: Machine) -> None:
    refused = machine.run("install", "notepad", "--yes")
    assert refused.returncode == 2
    assert "'notepad' is not one of 'claude-code', 'claude-desktop'" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["codex", "--scope", "project"], "codex has no project scope. Omit --scope"),
        (["gemini", "--name", "my server"], "a name consists of letters, digits, '-' and '_'"),
        (["gemini", "--name=-x"], "a name consists of"),
        (["gemini", "--", "--activaton", "a:A"], "Did you mean '--activation'?"),
        (["gemini", "--", "--port", "many"], "'many' is not a whole number from 0 to 65535"),
        (["gemini", "now"], "unexpected extra argument (now)"),
    ],
)
def test_arguments_that_cannot_work_are_usage_errors(
    machine: Machine, arguments: list[str], message: str
) -> None:
    refused = machine.run("install", "--yes", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert machine.files() == {}


def test_server_flags_before_the_command_are_rejected() -> None:
    refused = CliRunner().invoke(cli, ["--bash-sandbox", "off", "mcp", "show", "gemini"])
    assert refused.exit_code == 2
    assert "Put flags for the server at the end" in refused.stderr


# --- files -----------------------------------------------------------------------------------


def test_a_fresh_file_is_shown_and_written(machine: Machine) -> None:
    done = machine.run("install", "claude-code", "--scope", "project", "--yes")
    assert done.returncode == 0, done.stderr
    [(name, text)] = machine.files().items()
    assert name == "project/.mcp.json"
    assert json.loads(text) == {
        "mcpServers": {"substrate": {"command": "substrate", "args": ["--stdio", "--mcp"]}}
    }
    shown = "".join(f"+{line}\n" for line in text.splitlines())
    assert done.stdout.startswith(f"--- /dev/null\n+++ .mcp.json\n@@ -0,0 +1,11 @@\n{shown}")
    assert "Wrote .mcp.json.\n" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("host", "file"),
    [
        (("claude-code",), "home/.claude.json"),
        (("claude-desktop",), "home/.config/Claude/claude_desktop_config.json"),
        (("codex",), "home/.codex/config.toml"),
        (("vscode",), "project/.vscode/mcp.json"),
        (("vscode", "--scope", "user"), "home/.config/Code/User/mcp.json"),
        (("gemini",), "home/.gemini/settings.json"),
        (("gemini", "--scope", "project"), "project/.gemini/settings.json"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the folders are those of Linux")
def test_every_host_gets_what_show_prints_in_its_file(
    machine: Machine, host: tuple[str, ...], file: str
) -> None:
    assert machine.run("install", *host, "--yes").returncode == 0
    assert machine.files() == {file: machine.run("show", *host).stdout}


def test_other_servers_keep_every_byte(machine: Machine) -> None:
    former = (
        '{\n\t"theme" : "dark",\n\t"mcpServers": {\n'
        '\t\t"db": {"command":"db","args":[ ], "env": {"TOKEN": "\\u00e9"}}\n'
        '\t},\n\t"after": 1.50\n}'
    )
    file = write(machine.home / ".gemini" / "settings.json", former)
    file.chmod(0o600)
    done = machine.run("install", "gemini", "--yes")
    assert done.returncode == 0, done.stderr
    head, tail = former.split('"\\u00e9"}}')
    text = file.read_text()
    assert text.startswith(head + '"\\u00e9"}},\n\t\t"substrate": {\n\t\t\t"command": "')
    assert text.endswith(tail)
    assert json.loads(text)["mcpServers"]["substrate"] == machine.entry()

    backup = file.with_name("settings.json.bak")
    assert backup.read_text() == former
    assert f"Saved the previous version as {backup}." in done.stdout
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert len(machine.files()) == 2, "nothing temporary is left"


def test_an_entry_of_the_same_name_is_shown_as_changed(machine: Machine) -> None:
    former = {
        "mcpServers": {"substrate": {**machine.entry(), "args": ["--old"], "env": {"A": "b"}}}
    }
    file = write(machine.home / ".gemini" / "settings.json", json.dumps(former, indent=2) + "\n")
    done = machine.run("install", "gemini", "--yes")
    assert f"--- {file}\n+++ {file}\n" in done.stdout
    assert '-        "--old"\n+        "--stdio",\n+        "--mcp"\n' in done.stdout
    wanted = {"mcpServers": {"substrate": {**machine.entry(), "env": {"A": "b"}}}}
    assert file.read_text() == json.dumps(wanted, indent=2) + "\n"


def test_an_identical_entry_is_not_changed(machine: Machine) -> None:
    for host in ("gemini", "codex", "claude-code"):
        assert machine.run("install", host, "--yes").returncode == 0
    before = machine.files()
    for host in ("gemini", "codex", "claude-code"):
        again = machine.run("install", host)
        assert again.returncode == 0
        assert "Nothing to do" in again.stdout
    assert machine.files() == before


def test_toml_keeps_every_other_byte(machine: Machine) -> None:
    former = "# mine\nmodel = \"m\" # good\r\n\n[mcp_servers.db]\ncommand = 'db'\n\n[[x]]\ny = 1"
    file = write(machine.home / ".codex" / "config.toml", former)
    done = machine.run("install", "codex", "--yes")
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(former.encode())
    assert "\\ No newline at end of file" in done.stdout
    found = tomllib.loads(file.read_text())
    assert found["mcp_servers"]["substrate"] == machine.entry()
    assert found.items() >= {"model": "m", "x": [{"y": 1}]}.items()


@pytest.mark.parametrize(
    ("host", "file", "text", "reason"),
    [
        ("vscode", "project/.vscode/mcp.json", '{\n  // mine\n  "servers": {},\n}\n', "comments"),
        (
            "gemini",
            "home/.gemini/settings.json",
            '{"mcpServers": []}',
            "servers by name",
        ),
        ("codex", "home/.codex/config.toml", "mcp_servers = { a = {} }\n", "safely"),
        ("codex", "home/.codex/config.toml", 'mcp_servers.substrate.command = "x"\n', "as a table"),
    ],
)
def test_a_file_that_cannot_be_edited_safely_is_not_changed(
    machine: Machine, host: str, file: str, text: str, reason: str
) -> None:
    write(machine.home.parent / file, text)
    refused = machine.run("install", host, "--yes")
    assert refused.returncode == 1
    assert machine.files() == {file: text}
    assert "was not changed" in refused.stderr
    assert reason in refused.stderr
    assert "To add it manually, put this into" in refused.stderr
    assert refused.stdout == machine.run("show", host).stdout


def test_a_file_that_is_not_utf8_is_not_changed(machine: Machine) -> None:
    file = machine.home / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_bytes(b'{"a": "\xff"}')
    refused = machine.run("install", "gemini", "--yes")
    assert (refused.returncode, file.read_bytes()) == (1, b'{"a": "\xff"}')
    assert "it is not UTF-8" in refused.stderr


def test_a_link_stays_and_its_target_is_changed(machine: Machine) -> None:
    file = write(machine.home / "dotfiles" / "gemini.json", "{}\n")
    link = machine.home / ".gemini" / "settings.json"
    link.parent.mkdir()
    link.symlink_to("../dotfiles/gemini.json")
    done = machine.run("install", "gemini", "--yes")
    assert done.returncode == 0, done.stderr
    assert link.readlink() == Path("../dotfiles/gemini.json")
    assert json.loads(file.read_text()) == {"mcpServers": {"substrate": machine.entry()}}
    assert file.with_name("gemini.json.bak").read_text() == "{}\n"
    assert f"{link} is a link to {file}." in done.stdout


def test_a_shared_file_has_the_path_only_if_the_name_finds_another_program(
    machine: Machine,
) -> None:
    elsewhere = machine.home.parent / "venv"
    elsewhere.mkdir()
    machine.substrate = machine.substrate.rename(elsewhere / "substrate")
    shown = machine.run("show", "vscode")
    assert json.loads(shown.stdout)["servers"]["substrate"]["command"] == str(machine.substrate)
    assert "this substrate is not on PATH" in shown.stderr


# --- consent ---------------------------------------------------------------------------------


def test_a_dry_run_only_shows(machine: Machine) -> None:
    for flags in (["--dry-run"], ["--dry-run", "--yes"]):
        shown = machine.run("install", "gemini", *flags)
        assert shown.returncode == 0
        assert '+    "substrate": {' in shown.stdout
    assert machine.files() == {}
    assert list(machine.home.iterdir()) == []


def test_as_json_only_the_outcome_is_printed(machine: Machine) -> None:
    def outcome(*flags: str) -> tuple[bool, bool]:
        done = machine.run("install", "gemini", "--json", *flags)
        found = json.loads(done.stdout)
        assert (found["name"], found["entry"]) == ("substrate", machine.entry())
        assert found["file"].endswith(".gemini/settings.json")
        return found["changed"], found["would_change"]

    refused = machine.run("install", "gemini", "--json")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Run it again with --yes." in refused.stderr
    assert outcome("--dry-run") == (False, True)
    assert machine.files() == {}
    assert outcome("--yes") == (True, True)
    assert outcome("--yes") == (False, False)


def test_without_a_terminal_nothing_is_written_without_yes(machine: Machine) -> None:
    shown = machine.run("install", "gemini")
    assert shown.returncode == 1
    assert '+    "substrate": {' in shown.stdout
    assert "Run it again with --yes." in shown.stderr
    assert machine.files() == {}


@pytest.mark.parametrize(("typed", "code", "wrote"), [("y\n", 0, True), ("\n", 1, False)])
def test_at_a_terminal_it_asks_first(machine: Machine, typed: str, code: int, wrote: bool) -> None:
    with terminal("mcp", "install", "gemini", cwd=machine.project, **machine.variables) as screen:
        shown = screen.screen.wait_for(r"Write (\S+)\? \[y/N\]: ")
        assert machine.files() == {}
        screen.type(typed)
        ended, text = screen.end()
    assert ended == code
    assert '+    "substrate": {' in without_colours(text)
    assert shown[1] == str(machine.home / ".gemini" / "settings.json")
    assert bool(machine.files()) is wrote
    assert ("Nothing was changed." in text) is not wrote


# --- failures while writing -------------------------------------------------------------------


def test_a_crash_before_the_last_step_leaves_the_old_file(machine: Machine) -> None:
    file = write(machine.home / ".gemini" / "settings.json", '{"a": 1}\n')
    crashing = """
        import os
        replace = os.replace
        def crash(source, target):
            if not str(target).endswith(".bak"):
                os._exit(9)
            replace(source, target)
        os.replace = crash
    """
    machine.install("substrate", LAUNCHER.replace("\n", "\n" + textwrap.dedent(crashing), 1))
    assert machine.run("install", "gemini", "--yes").returncode == 9
    assert file.read_text() == '{"a": 1}\n'

    machine.install("substrate", LAUNCHER)
    assert machine.run("install", "gemini", "--yes").returncode == 0
    assert json.loads(file.read_text())["a"] == 1


def test_a_folder_that_cannot_be_created_is_a_clear_error(machine: Machine) -> None:
    write(machine.home / ".gemini", "a file where a folder should be")
    refused = machine.run("install", "gemini", "--yes")
    assert refused.returncode == 1
    assert "Cannot " in refused.stderr
    assert "Not a directory" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert machine.run("show", "gemini").stdout in refused.stdout


def test_a_full_disk_leaves_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "settings.json", "{}")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = ConfigFile(path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.replace('{"a": 1}')
    assert path.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "settings.json", "{}")
    file = ConfigFile(path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for every user but the superuser
    with pytest.raises(PermissionError, match="it is read-only"):
        file.replace('{"a": 1}')
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_changed_since_it_was_shown_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    file = ConfigFile(path)
    path.write_text('{"theirs": 1}')
    with pytest.raises(FileChanged):
        file.replace("{}")
    assert path.read_text() == '{"theirs": 1}'


def test_a_concurrent_change_while_asking_is_reported(machine: Machine) -> None:
    file = write(machine.home / ".gemini" / "settings.json", "{}")
    with terminal("mcp", "install", "gemini", cwd=machine.project, **machine.variables) as screen:
        screen.screen.wait_for(r"\[y/N\]: ")
        file.write_text('{"theirs": 1}')
        screen.type("y\n")
        code, text = screen.end()
    assert code == 1
    assert "in the meantime" in text
    assert machine.files() == {"home/.gemini/settings.json": '{"theirs": 1}'}


# --- a host with its own command -------------------------------------------------------------


def test_claude_code_is_configured_by_its_own_command(machine: Machine) -> None:
    machine.install_claude()
    done = machine.run("install", "claude-code", "--yes", "--", "--activation", "a:A")
    assert done.returncode == 0, done.stderr
    server = [str(machine.substrate), "--stdio", "--mcp", "--activation", "a:A"]
    assert machine.claude_calls() == [["mcp", "add", "--scope", "user", "substrate", "--", *server]]
    assert f"  claude mcp add --scope user substrate -- {' '.join(server)}\n" in done.stdout
    assert machine.files() == {}


def test_the_command_of_claude_code_is_shown_before_it_is_run(machine: Machine) -> None:
    machine.install_claude()
    shown = machine.run("install", "claude-code")
    assert shown.returncode == 1
    assert "claude mcp add --scope user substrate -- " in shown.stdout
    assert machine.run("install", "claude-code", "--dry-run").returncode == 0
    assert machine.claude_calls() == []


def test_the_project_file_is_written_without_the_command(machine: Machine) -> None:
    machine.install_claude()
    assert machine.run("install", "claude-code", "--scope", "project", "--yes").returncode == 0
    assert machine.claude_calls() == []
    assert list(machine.files()) == ["project/.mcp.json"]


def test_an_entry_of_claude_code_keeps_the_fields_of_the_user(machine: Machine) -> None:
    machine.install_claude()
    former = {"type": "stdio", "command": "old", "args": ["--old"], "env": {"A": "b"}}
    text = json.dumps({"mcpServers": {"substrate": former}}, indent=2)
    write(machine.home / ".claude.json", text)
    done = machine.run("install", "claude-code", "--yes")
    assert done.returncode == 0, done.stderr
    removed, added = machine.claude_calls()
    assert removed == ["mcp", "remove", "--scope", "user", "substrate"]
    assert added[:-1] == ["mcp", "add-json", "--scope", "user", "substrate"]
    assert json.loads(added[-1]) == {**former, **machine.entry()}
    assert '-      "command": "old",\n' in done.stdout
    assert machine.files() == {"home/.claude.json": text}, "the file is the host's to write"


def test_an_entry_that_claude_code_has_already_needs_no_command(machine: Machine) -> None:
    machine.install_claude()
    entry = {"type": "stdio", **machine.entry(), "env": {}}
    write(machine.home / ".claude.json", json.dumps({"mcpServers": {"substrate": entry}}))
    again = machine.run("install", "claude-code")
    assert (again.returncode, machine.claude_calls()) == (0, [])
    assert "Nothing to do" in again.stdout


def test_a_command_that_fails_is_reported_with_its_output(machine: Machine) -> None:
    machine.install_claude("echo 'MCP server substrate already exists' >&2; exit 3")
    write(machine.home / ".claude.json", "// not ours to read")
    failed = machine.run("install", "claude-code", "--yes")
    assert failed.returncode == 1
    assert "failed with exit code 3:\nMCP server substrate already exists\n" in failed.stderr
    assert failed.stdout.endswith(machine.run("show", "claude-code").stdout)


def test_a_previous_entry_is_not_lost_if_the_new_one_is_rejected(machine: Machine) -> None:
    machine.install_claude('[ "$2" = remove ] || exit 1')
    former = {"command": "old", "args": []}
    write(machine.home / ".claude.json", json.dumps({"mcpServers": {"substrate": former}}))
    failed = machine.run("install", "claude-code", "--yes")
    assert failed.returncode == 1
    assert 'The previous entry was: {"command":"old","args":[]}' in failed.stderr


def test_a_command_that_does_not_end_times_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install_claude("exec sleep 30")
    monkeypatch.setattr(mcp_command, "COMMAND_S", 0.2)
    monkeypatch.chdir(machine.project)
    given_up = CliRunner().invoke(
        cli, ["mcp", "install", "claude-code", "--yes"], env=environment(**machine.variables)
    )
    assert given_up.exit_code == 1
    assert "timed out after 0.2 seconds" in given_up.stderr
