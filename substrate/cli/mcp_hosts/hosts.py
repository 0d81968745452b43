"""The MCP hosts that are known here: where each keeps its servers, and how an entry looks.

A host is a row in a table. What is done with the rows is the same for all of them.
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
    "Refused",
    "add_entry",
    "config_folder",
    "entry_fault",
    "entry_summary",
    "find_entries",
    "find_entry",
    "is_own_entry",
    "merged",
    "own_command",
)

Entry = dict[str, Any]


class Refused(Exception):
    """A file is written in a way in which it cannot be changed safely; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One host."""

    title: str
    #: Its file in each scope that it has; the first scope is the one that is meant by default.
    files: Mapping[str, Callable[[], Path]]
    #: What a person does next.
    next_step: str
    #: The key that its servers are under.
    section: str = "mcpServers"
    syntax: ModuleType = json_text
    #: What every entry says besides the command.
    constants: tuple[tuple[str, str], ...] = ()
    #: Flags for us: some hosts refuse names of tools with a dot in them.
    flags: tuple[str, ...] = ()
    #: The host's own program, and the commands of it that put an entry into the user's file, in
    #: place of a former one if there is one. That is better than changing a file that the host
    #: keeps writing to.
    program: str = ""
    commands: Callable[[str, Entry, Entry | None], list[list[str]]] | None = None

    def entry(self, command: Sequence[str], arguments: Sequence[str]) -> Entry:
        """What the host is told about us."""
        program, *first = command
        args = [*first, "--stdio", "--mcp", *self.flags, *arguments]
        return {**dict(self.constants), "command": program, "args": args}

    def snippet(self, name: str, entry: Entry) -> str:
        """A file that holds this entry only, for a person to paste."""
        text: str = self.syntax.snippet(self.section, name, entry)
        return text


# --- where files are -------------------------------------------------------------------------


def _home(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _project(*parts: str) -> Callable[[], Path]:
    return lambda: Path(*parts)


def _config(*parts: str) -> Callable[[], Path]:
    return lambda: config_folder(sys.platform, os.environ).joinpath(*parts)


def _variable(name: str, default: str, file: str) -> Callable[[], Path]:
    """A file in the folder that a variable names, or else in one under the home folder."""
    return lambda: Path(os.environ.get(name) or Path.home() / default) / file


def config_folder(platform: str, variables: Mapping[str, str]) -> Path:
    """Where programs with windows keep their configuration on this platform."""
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if platform == "win32":
        return Path(variables.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    return Path(variables.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _claude(name: str, entry: Entry, former: Entry | None) -> list[list[str]]:
    """Claude Code adds what is new to it only; an entry with all that a person has put into it
    is added as JSON."""
    scope = ["--scope", "user", name]
    if former is None:
        return [["claude", "mcp", "add", *scope, "--", entry["command"], *entry["args"]]]
    return [
        ["claude", "mcp", "remove", *scope],
        ["claude", "mcp", "add-json", *scope, wire.encode(entry).decode()],
    ]


#: For the hosts that refuse a dot in the name of a tool.
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
        "Quit Claude Desktop and start it again.",
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
            "user": _home(".gemini", "settings.json"),
            "project": _project(".gemini", "settings.json"),
        },
        "Start Gemini CLI; /mcp shows the server.",
    ),
}


# --- entries ---------------------------------------------------------------------------------


def own_command(*, shared: bool) -> list[str]:
    """How this program is started: the path of its executable, as it was called.

    Links are not followed: what they lead to goes away at an update sooner than they do. In a
    file that is shared with others it is the bare name, if that means the same executable here.
    """
    called = sys.argv[0] if Path(sys.argv[0]).stem == "substrate" else ""
    beside = str(Path(sys.executable).with_name("substrate"))
    on_path = shutil.which("substrate")
    found = shutil.which(called) or shutil.which(beside) or on_path
    if found is None:
        # -P: a host starts it in any folder, whose modules must not be imported in place of ours.
        return [sys.executable, "-P", "-m", "substrate"]
    if shared and on_path is not None and Path(on_path).samefile(found):
        return ["substrate"]
    return [str(Path(found).absolute())]


def merged(former: Any, entry: Entry) -> Entry:
    """The entry, with what a person has added to the former one: variables, a timeout.

    An entry without a command is about a server elsewhere; nothing of that fits to ours.
    """
    if isinstance(former, dict) and "command" in former:
        return {**former, **entry}
    return entry


def find_entries(host: Host, text: str) -> dict[str, Any]:
    """Everything that the text of a host's file has by name; raises Refused."""
    servers = _read(host, text).get(host.section)
    return servers if isinstance(servers, dict) else {}


def find_entry(host: Host, text: str, name: str) -> Any:
    """What the text of a host's file has under this name, or None; raises Refused."""
    return find_entries(host, text).get(name)


def _read(host: Host, text: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = host.syntax.read(text) if text.strip() else {}
    except ValueError as error:
        raise Refused(str(error)) from error
    return document


def add_entry(host: Host, text: str, name: str, entry: Entry) -> str:
    """The text of a host's file with this entry in it, and nothing else changed.

    Raises Refused if that cannot be done; the result has been read again and compared.
    """
    if not text.strip():
        return host.snippet(name, entry)
    syntax, section = host.syntax, host.section
    document = _read(host, text)
    servers = document.get(section, {})
    if not isinstance(servers, dict):
        raise Refused(f"{section} is there, but holds no servers by name")
    former = servers.get(name)
    wanted = merged(former, entry)
    if former == wanted:
        return text
    changed = text
    try:
        if former is None or wanted is entry:
            changed = syntax.put(changed, (section, name), entry)
        else:
            for key, value in entry.items():
                if former.get(key) != value:
                    changed = syntax.put(changed, (section, name, key), value)
    except ValueError as error:
        raise Refused(str(error)) from error
    if _read_again(host, changed) != {**document, section: {**servers, name: wanted}}:
        raise Refused(f"{section} is written there in a way that cannot be changed safely")
    return changed


def _read_again(host: Host, changed: str) -> dict[str, Any] | None:
    try:
        return _read(host, changed)
    except Refused:
        return None


# --- entries that start this program ---------------------------------------------------------


def is_own_entry(name: str, entry: Any) -> bool:
    """Whether an entry is called like us, or starts us."""
    if not isinstance(entry, dict):
        return name == "substrate"
    words = [str(entry.get("command", "")), *_arguments(entry)]
    return name == "substrate" or any(Path(word).name == "substrate" for word in words)


def entry_fault(host: Host, entry: Any) -> str | None:
    """What keeps an entry from working, as the end of a sentence about it; None if nothing does."""
    if not isinstance(entry, dict):
        return "is no entry"
    if "command" not in entry:
        return None if _address(entry) else "has neither a command nor a url"
    command, arguments = str(entry["command"]), _arguments(entry)
    if shutil.which(command) is None:
        return f"starts {command}, which is not there"
    missing = [flag for flag in ("--stdio", "--mcp") if flag not in arguments]
    if missing:
        return f"does not say {' '.join(missing)}"
    if host.flags == UNDERSCORES and _tool_names(arguments) == "dot":
        return f"gives tools names with dots, which {host.title} refuses"
    return None


def entry_summary(entry: Entry) -> str:
    """What an entry without a fault does, as the end of a sentence about it."""
    if "command" in entry:
        return f"starts {entry['command']}"
    return f"asks the server at {_address(entry)}"


def _address(entry: Entry) -> Any:
    return entry.get("url") or entry.get("httpUrl")


def _arguments(entry: Entry) -> list[str]:
    arguments = entry.get("args", [])
    return [str(each) for each in arguments] if isinstance(arguments, list) else []


def _tool_names(arguments: Sequence[str]) -> str:
    """How tools are called by a server that is started so; the last flag counts."""
    flag, spelling = UNDERSCORES[0], "dot"
    for number, word in enumerate(arguments):
        if word == flag and number + 1 < len(arguments):
            spelling = arguments[number + 1]
        elif word.startswith(f"{flag}="):
            spelling = word.partition("=")[2]
    return spelling
