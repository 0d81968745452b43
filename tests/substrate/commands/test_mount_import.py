"""`substrate mount import`: the servers of each host are taken, and no secret is copied."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import WAIT_S, environment, lines
from test_mcp_command import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
#: Each host's file, as its documentation has it.
CLAUDE_USER = {
    "numStartups": 3,
    "mcpServers": {
        "github": {
            "command": "npx",
            "args": ["-y", "github-mcp"],
            "env": {"GITHUB_TOKEN": SECRET, "LOG": "${LOG_LEVEL:-info}"},
        },
        "Docs Site": {
            "type": "http",
            "url": "https://docs.example/mcp",
            "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
            "timeout": 30000,
        },
        "substrate": {"command": "substrate", "args": ["--stdio", "--mcp"]},
    },
}
CODEX = f"""\
model = "gpt"  # a comment

[mcp_servers.memory]
command = "memory-server"
env_vars = ["MEMORY_KEY"]
tool_timeout_sec = 20
disabled_tools = ["wipe"]

[mcp_servers.remote]
url = "https://remote.example/mcp"
bearer_token_env_var = "REMOTE_TOKEN"

[mcp_servers.leaky]
command = "leaky"
args = ["--token", "{SECRET}"]
"""
GEMINI = {
    "theme": "dark",
    "mcpServers": {
        "search": {"command": "searcher", "env": {"KEY": "$SEARCH_KEY"}, "includeTools": ["find"]},
        "stream": {"httpUrl": "https://stream.example/mcp"},
        "old": {"url": "https://old.example/events"},
    },
}
VSCODE = {
    "inputs": [{"type": "promptString", "id": "api-key", "password": True}],
    "servers": {
        "api": {
            "type": "stdio",
            "command": "api",
            "args": ["${workspaceFolder}/data", "--key", "${input:api-key}"],
            "env": {"HOME_OF": "${env:USER}"},
        }
    },
}
DESKTOP = {
    "mcpServers": {
        "files": {"command": "fs", "args": ["/tmp"]},
        "off": {"command": "x", "disabled": True},
    }
}


class Importer(Machine):
    """A machine whose hosts have servers."""

    def mount(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.substrate), "mount", *arguments],
            cwd=self.project,
            env=environment(**{**self.variables, **variables}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def taken(self, host: str, *flags: str) -> dict[str, dict[str, Any]]:
        """Import from a host, and return the entries that were shown, by the host's names."""
        done = self.mount("import", host, "--yes", "--json", *flags)
        assert done.returncode == 0, done.stderr
        return {each["entry"]: each for each in lines(done.stdout)}

    @property
    def mounts_file(self) -> Path:
        return self.home / ".config" / "substrate" / "mounts.toml"

    def mounts(self) -> dict[str, Any]:
        tables: dict[str, Any] = tomllib.loads(self.mounts_file.read_text())["mounts"]
        return tables


@pytest.fixture
def machine(tmp_path: Path) -> Importer:
    return Importer(tmp_path)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return path


def test_claude_code_user_project_and_local_entries_are_taken_and_its_own_is_skipped(
    machine: Importer,
) -> None:
    local = {"projects": {str(machine.project): {"mcpServers": {"github": {"command": "local"}}}}}
    write(machine.home / ".claude.json", CLAUDE_USER | local)
    write(machine.project / ".mcp.json", {"mcpServers": {"db": {"command": "db", "cwd": "/srv"}}})
    shown = machine.mount("import", "claude-code", "--dry-run")
    assert "skip substrate of Claude Code, user scope" in shown.stdout
    assert "it starts Substrate itself" in shown.stdout
    assert not machine.mounts_file.exists()  # it only shows
    assert SECRET not in shown.stdout

    assert machine.mount("import", "claude-code").returncode == 1  # no answer was given
    assert not machine.mounts_file.exists()

    found = machine.taken("claude-code")
    assert set(machine.mounts()) == {"github", "docs_site"}
    # The local entry is taken as a whole, as in Claude Code, and the user's is reported.
    assert machine.mounts()["github"] == {"command": "local"}
    assert found["github"]["skipped"] == "another github is mounted"
    assert machine.mounts()["docs_site"] == {
        "url": "https://docs.example/mcp",
        "transport": "http",
        "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
        "timeout_s": 30.0,
    }
    project = tomllib.loads((machine.project / "substrate.toml").read_text())
    assert project["mounts"] == {"db": {"command": "db", "cwd": "/srv"}}
    again = machine.taken("claude-code")
    assert {each["skipped"] for each in again.values()} == {
        "it is mounted already",
        "another github is mounted",
        "it starts Substrate itself",
    }


def test_secrets_stay_in_the_host_and_references_stay_references(machine: Importer) -> None:
    write(machine.home / ".claude.json", CLAUDE_USER)
    found = machine.taken("claude-code", "--only", "github")
    assert set(machine.mounts()) == {"github"}
    assert machine.mounts()["github"]["env"] == {
        "GITHUB_TOKEN": "${GITHUB_GITHUB_TOKEN}",
        "LOG": "${LOG_LEVEL:-info}",
    }
    assert found["github"]["variables"] == ["GITHUB_GITHUB_TOKEN"]
    assert SECRET not in machine.mounts_file.read_text()
    assert machine.mounts_file.stat().st_mode & 0o077 == 0


def test_codex_servers_are_taken_with_their_variables_timeouts_and_choice(
    machine: Importer,
) -> None:
    write(machine.home / ".codex" / "config.toml", CODEX)
    machine.taken("codex")
    assert machine.mounts() == {
        "memory": {
            "command": "memory-server",
            "env": {"MEMORY_KEY": "${MEMORY_KEY}"},
            "timeout_s": 20.0,
            "deny": ["wipe"],
        },
        "remote": {
            "url": "https://remote.example/mcp",
            "headers": {"Authorization": "Bearer ${REMOTE_TOKEN}"},
        },
        "leaky": {"command": "leaky", "args": ["--token", "${LEAKY_TOKEN}"]},
    }


def test_gemini_servers_are_taken_with_their_transports(machine: Importer) -> None:
    write(machine.home / ".gemini" / "settings.json", GEMINI)
    machine.taken("gemini")
    assert machine.mounts() == {
        "search": {"command": "searcher", "env": {"KEY": "${SEARCH_KEY}"}, "allow": ["find"]},
        "stream": {"url": "https://stream.example/mcp", "transport": "http"},
        "old": {"url": "https://old.example/events", "transport": "sse"},
    }


def test_vs_code_and_claude_desktop_servers_are_taken(machine: Importer) -> None:
    write(machine.home / ".config" / "Code" / "User" / "mcp.json", VSCODE)
    write(machine.home / ".config" / "Claude" / "claude_desktop_config.json", DESKTOP)
    machine.taken("vscode")
    found = machine.taken("claude-desktop")
    assert found["off"]["skipped"] == "it is switched off in the host"
    assert machine.mounts() == {
        "api": {
            "command": "api",
            "args": [f"{machine.project}/data", "--key", "${API_KEY}"],
            "env": {"HOME_OF": "${USER}"},
        },
        "files": {"command": "fs", "args": ["/tmp"]},
    }


@pytest.mark.parametrize("host", ["claude-code", "codex"])
def test_replace_leaves_one_entry_with_the_secrets_and_keeps_a_backup(
    machine: Importer, host: str
) -> None:
    if host == "codex":
        file = write(machine.home / ".codex" / "config.toml", CODEX)
        read: Any = tomllib.loads
        section = "mcp_servers"
        others: dict[str, Any] = {"model": "gpt"}
    else:
        file = write(machine.home / ".claude.json", CLAUDE_USER)
        read, section, others = json.loads, "mcpServers", {"numStartups": 3}
    before = file.read_text()
    done = machine.mount("import", host, "--yes", "--replace")
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout
    after = read(file.read_text())
    servers = after.pop(section)
    assert after == others
    assert list(servers) == ["substrate"]
    assert "--mcp" in servers["substrate"]["args"]
    # The secret was in this file, and is still only there.
    variable = "LEAKY_TOKEN" if host == "codex" else "GITHUB_GITHUB_TOKEN"
    assert servers["substrate"]["env"] == {variable: SECRET}
    if host == "codex":
        assert "# a comment" in file.read_text()
    backups = [path for path in file.parent.iterdir() if path.name.startswith(f"{file.name}.")]
    assert [path.read_text() for path in backups] == [before]
    # A second time there is nothing to take, and nothing changes.
    replaced = file.read_text()
    assert machine.mount("import", host, "--yes", "--replace").returncode == 0
    assert file.read_text() == replaced


@pytest.mark.parametrize("content", ["{", '{"mcpServers": []}', '{"mcpServers": {"a": 5}}', ""])
def test_a_damaged_file_of_a_host_is_reported_and_left_alone(
    machine: Importer, content: str
) -> None:
    file = write(machine.home / ".gemini" / "settings.json", content)
    done = machine.mount("import", "gemini", "--yes", "--replace")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text() == content
    assert not machine.mounts_file.exists()
