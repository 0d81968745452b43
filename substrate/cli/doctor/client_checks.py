"""What `substrate doctor` finds in the configurations of MCP hosts: our entries, and whether they
can work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from substrate.cli.doctor.checks import Finding
from substrate.cli.mcp_hosts.hosts import HOSTS, UNDERSCORES, Host, Refused, find_entries

__all__ = ("client_findings",)

#: The flag that says how tools are called.
NAMES: Final = UNDERSCORES[0]
#: The spelling that we use if nothing is said.
DOT: Final = "dot"


def client_findings() -> Iterator[Finding]:
    """Every host, in every file that it has."""
    for key, host in HOSTS.items():
        found = False
        for scope, place in host.files.items():
            path = place()
            install = f"substrate mcp install {key}" + (
                "" if scope == next(iter(host.files)) else f" --scope {scope}"
            )
            try:
                entries = find_entries(host, path.read_text())
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError, Refused) as error:
                yield Finding(key, "problem", f"{path} cannot be read: {error}", "Mend the file.")
                found = True
                continue
            for name, entry in entries.items():
                if _is_ours(name, entry):
                    found = True
                    yield _look(key, host, path, name, entry, install)
        if not found:
            yield Finding(
                key, "ok", f"{host.title} does not know us", f"substrate mcp install {key}"
            )


def _is_ours(name: str, entry: Any) -> bool:
    """An entry that is called like us, or starts us."""
    if not isinstance(entry, dict):
        return name == "substrate"
    words = [str(entry.get("command", "")), *map(str, _arguments(entry))]
    return name == "substrate" or any(Path(word).name == "substrate" for word in words)


def _look(key: str, host: Host, path: Path, name: str, entry: Any, install: str) -> Finding:
    """Whether an entry can work."""
    where = f"{name} in {path}"
    if not isinstance(entry, dict):
        return Finding(key, "problem", f"{where} is no entry", install)
    if "command" not in entry:
        address = entry.get("url") or entry.get("httpUrl")
        if address is None:
            return Finding(key, "problem", f"{where} has neither a command nor a url", install)
        return Finding(key, "ok", f"{where} asks the server at {address}")
    command, arguments = str(entry["command"]), [str(each) for each in _arguments(entry)]
    if shutil.which(command) is None:
        return Finding(key, "problem", f"{where} starts {command}, which is not there", install)
    missing = [flag for flag in ("--stdio", "--mcp") if flag not in arguments]
    if missing:
        return Finding(key, "problem", f"{where} does not say {' '.join(missing)}", install)
    if host.flags == UNDERSCORES and _spelling(arguments) == DOT:
        message = f"{where} gives tools names with dots, which {host.title} refuses"
        return Finding(key, "problem", message, install)
    return Finding(key, "ok", f"{where} starts {command}")


def _arguments(entry: dict[str, Any]) -> list[Any]:
    arguments = entry.get("args", [])
    return arguments if isinstance(arguments, list) else []


def _spelling(arguments: list[str]) -> str:
    """How tools are called by a server that is started so; the last flag counts."""
    spelling = DOT
    for number, word in enumerate(arguments):
        if word == NAMES and number + 1 < len(arguments):
            spelling = arguments[number + 1]
        elif word.startswith(f"{NAMES}="):
            spelling = word.partition("=")[2]
    return spelling
