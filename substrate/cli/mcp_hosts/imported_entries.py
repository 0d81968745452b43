"""Entries of other servers in the configuration files of MCP hosts, as mounts.

References to variables stay references. A value that looks like a secret becomes a reference too:
it stays where it is, in the host's file, and is never copied into ours.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from activations.gateway.mount_config import RESERVED, MountError, parse_mount
from substrate.cli.mcp_hosts.hosts import HOSTS, Host, NotEditable, is_own_entry
from substrate.run_store.secret_patterns import Secrecy, find_secrets, secrecy_of

__all__ = ("Found", "Source", "looks_secret", "read_source", "sources")

_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
#: How hosts write references: `${env:NAME}` and `${input:NAME}` of VS Code, `$NAME` of Gemini.
_VSCODE: Final = re.compile(r"\$\{(?:env|input):([^}]+)\}")
_BARE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
#: Values that are no secrets, whatever they are the value of.
_PLAIN: Final = frozenset({"true", "false", "on", "off", "yes", "no", "none"})
_NOT_NAME: Final = re.compile(r"[^a-z0-9]+")
#: Keys that mean the same in an entry and in a mount.
_SAME: Final = ("command", "args", "cwd")
_TRANSPORTS: Final = {
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "sse": "sse",
    "ws": "websocket",
    "websocket": "websocket",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A section with servers in a file of a host."""

    host: str
    scope: str
    path: Path
    #: The keys that lead to the servers.
    section: tuple[str, ...]

    @property
    def row(self) -> Host:
        return HOSTS[self.host]

    @property
    def title(self) -> str:
        return f"{self.row.title}, {self.scope} scope"


@dataclasses.dataclass
class Found:
    """An entry of a host, as a mount, or the reason why it cannot be one."""

    source: Source
    #: The name in the host's file.
    entry: str
    #: The name and the table of the mount.
    name: str = ""
    table: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: Variables that the mount refers to in place of secrets, with the secrets.
    secrets: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)


def sources(hosts: tuple[str, ...]) -> Iterator[Source]:
    """Yield the sections of these hosts, all of them by default, the most specific first."""
    for host in hosts or tuple(HOSTS):
        row = HOSTS[host]
        if host == "claude-code":
            # For this user in this folder.
            section = ("projects", str(Path.cwd()), row.section)
            yield Source(host, "local", row.files["user"](), section)
        for scope in sorted(row.files, key=("project", "user").index):
            yield Source(host, scope, row.files[scope](), (row.section,))


def read_source(source: Source, taken: Mapping[str, Any]) -> list[Found]:
    """Return the entries of a section. `taken` are the mounts that exist, by name.

    Raises OSError and NotEditable for a file that cannot be read.
    """
    try:
        text = source.path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise NotEditable("it is not UTF-8") from error
    try:
        servers: Any = source.row.syntax.read(text) if text.strip() else {}
    except ValueError as error:
        raise NotEditable(str(error)) from error
    for key in source.section:
        servers = servers.get(key) if isinstance(servers, dict) else None
    if not isinstance(servers, dict):
        return []
    names = dict(taken)
    found = []
    for name, entry in servers.items():
        each = _convert(source, name, entry, names)
        found.append(each)
        if not each.skipped:
            names[each.name] = each.table
    return found


def _convert(source: Source, name: str, entry: Any, taken: Mapping[str, Any]) -> Found:
    found = Found(source, name)
    if is_own_entry(name, entry):
        found.skipped = "it starts Substrate itself"
        return found
    if not isinstance(entry, dict):
        found.skipped = "it is not an object"
        return found
    if entry.get("disabled") is True or entry.get("enabled") is False:
        found.skipped = "it is switched off in the host"
        return found
    if "headersHelper" in entry:
        found.skipped = "it uses headersHelper, a program of the host"
        return found
    found.name = _mount_name(name)
    table = _table(entry, found)
    try:
        parse_mount(found.name, table)
    except MountError as error:
        found.skipped = str(error)
        return found
    found.table = table
    if found.name in taken:
        same = taken[found.name] == table
        found.skipped = "it is mounted already" if same else f"another {found.name} is mounted"
    return found


def _mount_name(name: str) -> str:
    """Return the name of a mount for an entry of a host."""
    text = _NOT_NAME.sub("_", name.lower()).strip("_")[:32].strip("_")
    if not text or not text[0].isalpha():
        text = f"m_{text}"[:32].strip("_")
    return f"{text}_mcp" if text in RESERVED else text


def _table(entry: dict[str, Any], found: Found) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key in _SAME:
        if entry.get(key):
            table[key] = _references(entry[key], found)
    if "args" in table:
        words = ["", *table["args"]]
        table["args"] = [
            _without_secret(found, before.lstrip("-") if before.startswith("-") else "", each)
            for before, each in pairwise(words)
        ]
    address = entry.get("httpUrl") or entry.get("url")
    if address and "command" not in table:
        table["url"] = _without_secret(found, "url", _references(address, found))
        kind = _TRANSPORTS.get(str(entry.get("type", "")))
        if kind is None and table["url"] != address:
            kind = "http"  # the address is a variable
        if kind is None and found.source.host == "gemini":
            kind = "http" if "httpUrl" in entry else "sse"
        if kind is not None:
            table["transport"] = kind
    env = {**_texts(entry.get("env")), **{name: f"${{{name}}}" for name in _names(entry)}}
    if env:
        table["env"] = {
            name: _without_secret(found, name, _references(value, found))
            for name, value in env.items()
        }
    headers = _headers(entry, found)
    if headers:
        table["headers"] = headers
    client = _oauth_client(entry, found)
    if client and "url" in table:
        table["oauth"] = client
    _add_options(table, entry)
    return table


def _oauth_client(entry: dict[str, Any], found: Found) -> dict[str, str]:
    """Return how the host identifies itself at the sign-in, if it is registered there."""
    given = entry.get("oauth")
    if not isinstance(given, dict):
        return {}
    client = {
        ours: _without_secret(found, ours, _references(given[key], found))
        for key, ours in (("clientId", "client_id"), ("clientSecret", "client_secret"))
        if isinstance(given.get(key), str)
    }
    scopes = given.get("scopes")
    if isinstance(scopes, list) and scopes:
        client["scope"] = " ".join(str(each) for each in scopes)
    return client


def _headers(entry: dict[str, Any], found: Found) -> dict[str, str]:
    headers = {**_texts(entry.get("headers")), **_texts(entry.get("http_headers"))}
    written = {
        name: _without_secret(found, name, _references(value, found))
        for name, value in headers.items()
    }
    for name, variable in _texts(entry.get("env_http_headers")).items():
        written[name] = f"${{{variable}}}"
    token = entry.get("bearer_token_env_var")
    if isinstance(token, str):
        written["Authorization"] = f"Bearer ${{{token}}}"
    return written


def _add_options(table: dict[str, Any], entry: dict[str, Any]) -> None:
    for key, factor in (("timeout", 0.001), ("tool_timeout_sec", 1.0)):
        if type(entry.get(key)) in (int, float) and entry[key] > 0:
            table["timeout_s"] = float(entry[key]) * factor
    if entry.get("alwaysLoad") is True:
        table["expose"] = "all"
    for key, ours in (
        ("includeTools", "allow"),
        ("enabled_tools", "allow"),
        ("excludeTools", "deny"),
        ("disabled_tools", "deny"),
    ):
        if isinstance(entry.get(key), list) and entry[key]:
            table[ours] = [str(each) for each in entry[key]]


def _texts(value: Any) -> dict[str, str]:
    """Return the members of an object as texts: hosts accept numbers and booleans too."""
    if not isinstance(value, dict):
        return {}
    return {
        str(name): str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in value.items()
        if each is not None
    }


def _names(entry: dict[str, Any]) -> list[str]:
    """Return the variables that Codex passes on by name."""
    names = entry.get("env_vars")
    return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []


def _references(value: Any, found: Found) -> Any:
    """Return a value with references to variables as we write them."""
    if isinstance(value, list):
        return [_references(each, found) for each in value]
    if not isinstance(value, str):
        return str(value)
    host = found.source.host
    if host == "vscode":
        value = value.replace("${workspaceFolder}", str(Path.cwd()))
        value = value.replace("${userHome}", str(Path.home()))
        return _VSCODE.sub(lambda name: f"${{{_variable(name[1])}}}", value)
    if host == "gemini":
        return _BARE.sub(r"${\1}", value)
    return value


def _variable(text: str) -> str:
    name = re.sub(r"\W+", "_", text).strip("_").upper()
    return name if name[:1].isalpha() else f"INPUT_{name}"


def looks_secret(name: str, value: str) -> bool:
    """Whether a value is a secret, by its name or by its form. A reference is none."""
    rest = _REFERENCE.sub("", value).removeprefix("Bearer").removeprefix("Basic").strip()
    if not rest:
        return False
    if secrecy_of(name) >= Secrecy.UNLESS_PLAIN and not _REFERENCE.search(value):
        return rest.lower() not in _PLAIN and not rest.isdigit()
    return any(True for _ in find_secrets(f"{name} {rest}"))


def _without_secret(found: Found, name: str, value: str) -> str:
    """Return the value, or a reference to a variable if it is a secret."""
    if not looks_secret(name, value):
        return value
    variable = _variable(f"{found.name}_{name or 'argument'}")
    if os.environ.get(_variable(name)) == value:
        variable = _variable(name)
    found.secrets[variable] = value
    found.notes.append(f"set {variable} in the environment of Substrate")
    return f"${{{variable}}}"
