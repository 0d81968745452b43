"""The supported MCP hosts: configuration files, and the format of a server entry.

Each host is a row of a table; the code is the same for all hosts.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from plexus.rpc import wire
from substrate.cli.mcp_hosts import json_text, toml_text

__all__ = (
    "HOSTS",
    "UNDERSCORES",
    "Entry",
    "Host",
    "NotEditable",
    "add_entry",
    "config_folder",
    "entry_error",
    "entry_summary",
    "find_entries",
    "find_entry",
    "is_own_entry",
    "merge_entry",
    "own_command",
)

Entry = dict[str, Any]


class NotEditable(Exception):
    """The file cannot be edited safely. The message contains the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """An MCP host."""

    title: str
    #: Configuration file by scope. The first scope is the default.
    files: Mapping[str, Callable[[], Path]]
    #: What the user does after the installation.
    next_step: str
    #: Key of the servers in the file.
    section: str = "mcpServers"
    syntax: ModuleType = json_text
    #: Constant fields of every entry.
    constants: tuple[tuple[str, str], ...] = ()
    #: Flags for this program. Some hosts reject tool names with dots.
    flags: tuple[str, ...] = ()
    #: The host's program, and the commands that add or replace an entry in the user's file. Using
    #: them is safer than editing a file that the host itself writes to.
    program: str = ""
    commands: Callable[[str, Entry, Entry | None], list[list[str]]] | None = None

    def entry(self, command: Sequence[str], arguments: Sequence[str]) -> Entry:
        """Return the entry for this program."""
        program, *first = command
        args = [*first, "--stdio", "--mcp", *self.flags, *arguments]
        return {**dict(self.constants), "command": program, "args": args}

    def snippet(self, name: str, entry: Entry) -> str:
        """Return the text of a file with only this entry, for pasting."""
        text: str = self.syntax.snippet(self.section, name, entry)
        return text


# --- locations -------------------------------------------------------------------------------


def _in_home(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _project(*parts: str) -> Callable[[], Path]:
    return lambda: Path(*parts)


def _config(*parts: str) -> Callable[[], Path]:
    return lambda: config_folder(sys.platform, os.environ).joinpath(*parts)


def _variable(name: str, default: str, file: str) -> Callable[[], Path]:
    """Return a file in the folder named by a variable, or in a default folder of the home."""
    return lambda: Path(os.environ.get(name) or Path.home() / default) / file


def config_folder(platform: str, variables: Mapping[str, str]) -> Path:
    """Return the configuration folder of desktop applications on a platform."""
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if platform == "win32":
        return Path(variables.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    return Path(variables.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _claude(name: str, entry: Entry, former: Entry | None) -> list[list[str]]:
    """Return the commands for Claude Code.

    `claude mcp add` cannot replace an entry, so an existing entry is removed and added again as
    JSON, with the fields that the user has set.
    """
    scope = ["--scope", "user", name]
    if former is None:
        return [["claude", "mcp", "add", *scope, "--", entry["command"], *entry["args"]]]
    return [
        ["claude", "mcp", "remove", *scope],
        ["claude", "mcp", "add-json", *scope, wire.encode(entry).decode()],
    ]


#: Flags for hosts that reject dots in tool names.
UNDERSCORES = ("--mcp-tool-names", "underscore")

HOSTS = {
    "claude-code": Host(
        "Claude Code",
        {
            "user": _variable("CLAUDE_CONFIG_DIR", "", ".claude.json"),
            "project": _project(".mcp.json"),
        },
        "Start Claude Code; /mcp shows the server.",
        program="claude",
        commands=_claude,
    ),
    "claude-desktop": Host(
        "Claude Desktop",
        {"user": _config("Claude", "claude_desktop_config.json")},
        "Restart Claude Desktop.",
        flags=UNDERSCORES,
    ),
    "codex": Host(
        "Codex",
        {"user": _variable("CODEX_HOME", ".codex", "config.toml")},
        "Start Codex; /mcp shows the server.",
        section="mcp_servers",
        syntax=toml_text,
    ),
    "vscode": Host(
        "VS Code",
        {
            "project": _project(".vscode", "mcp.json"),
            "user": _config("Code", "User", "mcp.json"),
        },
        "In VS Code, run the command 'MCP: List Servers' and start the server there.",
        section="servers",
        constants=(("type", "stdio"),),
    ),
    "gemini": Host(
        "Gemini CLI",
        {
            "user": _in_home(".gemini", "settings.json"),
            "project": _project(".gemini", "settings.json"),
        },
        "Start Gemini CLI; /mcp shows the server.",
    ),
}


# --- entries ---------------------------------------------------------------------------------


def own_command(*, shared: bool) -> list[str]:
    """Return the command that starts this program: the path of its executable, as it was called.

    Links are not resolved, because an update is more likely to remove the link's target than the
    link. In a shared file the command is the bare name, if PATH finds the same executable.
    """
    called = sys.argv[0] if Path(sys.argv[0]).stem == "substrate" else ""
    same_folder = str(Path(sys.executable).with_name("substrate"))
    on_path = shutil.which("substrate")
    found = shutil.which(called) or shutil.which(same_folder) or on_path
    if found is None:
        # -P: a host starts it in any folder, whose modules must not shadow ours.
        return [sys.executable, "-P", "-m", "substrate"]
    if shared and on_path is not None and Path(on_path).samefile(found):
        return ["substrate"]
    return [str(Path(found).absolute())]


def merge_entry(former: Any, entry: Entry) -> Entry:
    """Return the entry with the fields that the user added to the former entry.

    These are variables or a timeout, for example. A former entry without a command refers to a
    remote server, so its fields do not apply.
    """
    if isinstance(former, dict) and "command" in former:
        return {**former, **entry}
    return entry


def find_entries(host: Host, text: str) -> dict[str, Any]:
    """Return all entries of a host's file by name. Raises NotEditable."""
    servers = _read(host, text).get(host.section)
    return servers if isinstance(servers, dict) else {}


def find_entry(host: Host, text: str, name: str) -> Any:
    """Return the entry with this name, or None. Raises NotEditable."""
    return find_entries(host, text).get(name)


def _read(host: Host, text: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = host.syntax.read(text) if text.strip() else {}
    except ValueError as error:
        raise NotEditable(str(error)) from error
    return document


def add_entry(host: Host, text: str, name: str, entry: Entry) -> str:
    """Return the text of a host's file with this entry, and nothing else changed.

    The result is parsed again and compared. Raises NotEditable if the edit cannot be done.
    """
    if not text.strip():
        return host.snippet(name, entry)
    syntax, section = host.syntax, host.section
    document = _read(host, text)
    servers = document.get(section, {})
    if not isinstance(servers, dict):
        raise NotEditable(f"{section} exists, but is not an object of servers by name")
    former = servers.get(name)
    updated = merge_entry(former, entry)
    if former == updated:
        return text
    changed = text
    try:
        if former is None or updated is entry:
            changed = syntax.put(changed, (section, name), entry)
        else:
            for key, value in entry.items():
                if former.get(key) != value:
                    changed = syntax.put(changed, (section, name, key), value)
    except ValueError as error:
        raise NotEditable(str(error)) from error
    if _reparse(host, changed) != {**document, section: {**servers, name: updated}}:
        raise NotEditable(f"{section} is written in a form that cannot be edited safely")
    return changed


def _reparse(host: Host, changed: str) -> dict[str, Any] | None:
    try:
        return _read(host, changed)
    except NotEditable:
        return None


# --- entries that start this program ---------------------------------------------------------


def is_own_entry(name: str, entry: Any) -> bool:
    """Return whether an entry is named after this program, or starts it."""
    if not isinstance(entry, dict):
        return name == "substrate"
    words = [str(entry.get("command", "")), *_arguments(entry)]
    return name == "substrate" or any(Path(word).name == "substrate" for word in words)


def entry_error(host: Host, entry: Any) -> str | None:
    """Return why an entry cannot work, as a predicate; None if it can."""
    if not isinstance(entry, dict):
        return "is not an object"
    if "command" not in entry:
        return None if _address(entry) else "has neither a command nor a url"
    command, arguments = str(entry["command"]), _arguments(entry)
    if shutil.which(command) is None:
        return f"starts {command}, which does not exist"
    missing = [flag for flag in ("--stdio", "--mcp") if flag not in arguments]
    if missing:
        return f"lacks the flags {' '.join(missing)}"
    if host.flags == UNDERSCORES and _tool_names(arguments) == "dot":
        return f"uses tool names with dots, which {host.title} rejects"
    return None


def entry_summary(entry: Entry) -> str:
    """Return what a valid entry does, as a predicate."""
    if "command" in entry:
        return f"starts {entry['command']}"
    return f"connects to the server at {_address(entry)}"


def _address(entry: Entry) -> Any:
    return entry.get("url") or entry.get("httpUrl")


def _arguments(entry: Entry) -> list[str]:
    arguments = entry.get("args", [])
    return [str(each) for each in arguments] if isinstance(arguments, list) else []


def _tool_names(arguments: Sequence[str]) -> str:
    """Return the separator in tool names for these flags. The last flag counts."""
    flag, separator = UNDERSCORES[0], "dot"
    for number, word in enumerate(arguments):
        if word == flag and number + 1 < len(arguments):
            separator = arguments[number + 1]
        elif word.startswith(f"{flag}="):
            separator = word.partition("=")[2]
    return separator
