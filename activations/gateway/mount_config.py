"""The configuration of a mount: how to reach another MCP server, and which of its tools to offer.

A mount is a table of TOML, `[mounts.NAME]`. References to variables, `${VAR}` and
`${VAR:-default}`, are kept as they are written and replaced when the server is started, so that
values of secrets are in no file of ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

from activations.gateway.transports.http_hosts import is_loopback
from plexus.registry.selection import matches
from plexus.rpc import wire

__all__ = (
    "MountConfig",
    "MountError",
    "SessionScope",
    "TransportKind",
    "check_mount_name",
    "expand",
    "parse_mount",
    "unset_variables",
)

#: Who shares a session with the other server.
SessionScope: TypeAlias = Literal["connection", "principal", "shared", "call"]
TransportKind: TypeAlias = Literal["stdio", "http", "sse", "websocket"]

#: Names of mounts. They leave room for the name of a tool: hosts accept 64 characters together.
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
#: Namespaces of the program itself, which a mount must not replace.
RESERVED: Final = frozenset(
    {
        *("approvals", "arbor", "bash", "chat", "claudecode", "gateway", "health", "mounts"),
        *("analysis", "ide", "plexus", "python", "read", "tasks", "templates"),
    }
)
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
#: Maximum sessions of a mount at the same time.
MAX_SESSIONS: Final = 64
NONE: Final[Mapping[str, str]] = MappingProxyType({})


class MountError(ValueError):
    """The configuration of a mount is invalid. The message names the mount and the cure."""


class MountConfig(NamedTuple):
    """One mount. Fields that start or reach the server come first.

    No data class: to create this one took 1 ms of each start.
    """

    name: str
    #: The program and its arguments, for a server on stdio.
    command: tuple[str, ...] = ()
    #: Variables of the process, in addition to a few of ours.
    env: Mapping[str, str] = NONE
    #: The working directory of the process; empty for that of the server.
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = NONE
    transport: TransportKind = "stdio"
    #: None for the default of the transport.
    session: SessionScope | None = None
    #: Which tools are in the standard set: all, none ("search"), or those that match a pattern.
    expose: tuple[str, ...] = ("search",)
    #: Which tools `plexus.call` may call: those that declare that they do no damage, or all.
    call: Literal["safe", "all"] = "safe"
    #: Patterns of tools that are offered at all; empty for every tool.
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    #: Other names of tools, by their own names.
    rename: Mapping[str, str] = NONE
    #: Other descriptions of tools, by their own names.
    describe: Mapping[str, str] = NONE
    #: Whether a person may be asked to sign in at a server over HTTP.
    sign_in: Literal["on", "off"] = "on"
    #: How we identify ourselves to its authorization server, if we are registered there.
    oauth: Mapping[str, str] = NONE
    #: Whether changed tools are held until a person approves them.
    pin: Literal["on", "off"] = "on"
    #: Scope that a caller needs; empty for the name of the mount.
    scope: str = ""
    enabled: bool = True
    #: Maximum sessions at the same time.
    max_sessions: int = 8
    #: Seconds without a call after which a session ends; 0 for never.
    idle_s: float = 600.0
    #: Seconds after which a session is replaced by a new one, between two calls; 0 for never.
    lifetime_s: float = 0.0
    #: Seconds that a call may take; 0 for the limit of the server.
    timeout_s: float = 0.0
    #: Where it is configured, for people.
    origin: str = ""

    @property
    def session_scope(self) -> SessionScope:
        """Who shares a session: each connection has its own on stdio, each principal over HTTP."""
        if self.session is not None:
            return self.session
        return "connection" if self.transport == "stdio" else "principal"

    @property
    def signs_in(self) -> bool:
        """Whether a person may be asked to sign in: not if a header has a token, or is not safe."""
        if self.sign_in == "off" or self.transport not in ("http", "sse"):
            return False
        if any(name.lower() == "authorization" for name in self.headers):
            return False
        return not self.url.startswith("http://") or is_loopback(urlsplit(self.url).hostname or "")

    @property
    def required_scope(self) -> str:
        """Scope that a caller needs for every tool, resource and prompt of the mount."""
        return self.scope or self.name

    @property
    def fingerprint(self) -> str:
        """Identify the server by how it is reached. Values of variables and headers do not count.

        Another fingerprint is another server: its tools are pinned again.
        """
        reached = [self.name, *self.command, self.cwd, self.url, self.transport, *sorted(self.env)]
        return hashlib.sha256(wire.encode(reached)).hexdigest()[:16]

    def offers(self, tool: str) -> bool:
        """Whether a tool with this name at its server is offered."""
        if not self.allow and not self.deny:
            return True
        name = tool.lower()
        if self.allow and not matches(name, self.allow):
            return False
        return not matches(name, self.deny)

    def exposes(self, tool: str, method: str) -> bool:
        """Whether a tool is in the standard set, by its own name or by that of its method."""
        if "all" in self.expose:
            return True
        patterns = [each for each in self.expose if each != "search"]
        return matches(tool.lower(), patterns) or matches(method.partition(".")[2], patterns)

    def where(self) -> str:
        """Return how the server is reached, without values of variables or headers."""
        return " ".join(self.command) if self.command else self.url


# --- parsing ----------------------------------------------------------------------------------

#: The type of each key, as a phrase and as a check.
_TEXT: Final = "a text"
_TEXTS: Final = "a list of texts"
_TABLE: Final = "a table of texts"
#: How a token is obtained: by a person, or with a secret.
GRANTS: Final = ("authorization_code", "client_credentials")
#: Fields of the table `oauth`.
OAUTH: Final = ("client_id", "client_secret", "grant", "issuer", "metadata_url", "scope")
_OAUTH_KEYS: Final = f"a table of texts with the keys {', '.join(OAUTH)}"
_NUMBER: Final = "a number of at least 0"
_KEYS: Final[dict[str, str]] = {
    "args": _TEXTS,
    "allow": _TEXTS,
    "call": '"safe" or "all"',
    "command": _TEXT,
    "cwd": _TEXT,
    "deny": _TEXTS,
    "describe": _TABLE,
    "enabled": "true or false",
    "env": _TABLE,
    "expose": '"all", "search" or a list of patterns',
    "headers": _TABLE,
    "idle_s": _NUMBER,
    "lifetime_s": _NUMBER,
    "max_sessions": f"a whole number from 1 to {MAX_SESSIONS}",
    "oauth": _OAUTH_KEYS,
    "pin": '"on" or "off"',
    "rename": _TABLE,
    "scope": _TEXT,
    "session": '"connection", "principal", "shared" or "call"',
    "sign_in": '"on" or "off"',
    "timeout_s": _NUMBER,
    "transport": '"stdio", "http", "sse" or "websocket"',
    "url": _TEXT,
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "call": ("safe", "all"),
    "pin": ("on", "off"),
    "session": ("connection", "principal", "shared", "call"),
    "sign_in": ("on", "off"),
    "transport": ("stdio", "http", "sse", "websocket"),
}


def check_mount_name(name: str) -> None:
    """Raise MountError for a name that no mount can have."""
    if not _NAME.fullmatch(name):
        raise MountError(
            f"{name[:100]!r} cannot name a mount: use at most 32 lower case letters, digits and "
            "underscores, and begin with a letter."
        )
    if name in RESERVED:
        raise MountError(
            f"{name!r} cannot name a mount: it is a namespace of the program. Choose another name."
        )


def parse_mount(name: str, table: Any, origin: str = "") -> MountConfig:
    """Return the mount that a table describes. Raises MountError."""
    check_mount_name(name)
    if not isinstance(table, dict):
        raise MountError(f"mounts.{name} must be a table, not {table!r:.100}.")
    for key, value in table.items():
        _check(name, key, value)
    given: dict[str, Any] = dict(table)
    program, arguments = given.pop("command", ""), given.pop("args", [])
    url = given.get("url", "")
    if bool(program) == bool(url):
        raise MountError(f"mounts.{name} needs either a command or a url.")
    if arguments and not program:
        raise MountError(f"mounts.{name}: args belong to a command, not to a url.")
    kind = given.setdefault("transport", "stdio" if program else _transport_of(url))
    if (kind == "stdio") != bool(program):
        reason = "a command uses stdio" if program else "a url needs http, sse or websocket"
        raise MountError(f"mounts.{name}.transport is {kind!r}, but {reason}.")
    if isinstance(given.get("expose"), str):
        given["expose"] = [given["expose"]]
    for key in ("expose", "allow", "deny"):
        if key in given:
            given[key] = tuple(each.lower() for each in given[key])
    for key in ("idle_s", "lifetime_s", "timeout_s"):
        if key in given:
            given[key] = float(given[key])
    command = (program, *arguments) if program else ()
    return MountConfig(name, command, origin=origin, **given)


def _transport_of(url: str) -> TransportKind:
    scheme = url.partition(":")[0].lower()
    if scheme in ("ws", "wss"):
        return "websocket"
    return "sse" if url.partition("?")[0].rstrip("/").endswith("/sse") else "http"


def _check(name: str, key: str, value: Any) -> None:
    """Raise MountError for an unknown key, or for a value of the wrong type."""
    expected = _KEYS.get(key)
    if expected is None:
        raise MountError(f"mounts.{name}: unknown key {key!r}. Known: {', '.join(sorted(_KEYS))}.")
    if key in _CHOICES:
        valid = value in _CHOICES[key]
    elif key == "max_sessions":
        valid = type(value) is int and 1 <= value <= MAX_SESSIONS
    elif key == "enabled":
        valid = isinstance(value, bool)
    elif key == "expose":
        valid = value in ("all", "search") or _are_texts(value)
    elif expected == _TEXT:
        valid = isinstance(value, str) and "\0" not in value
    elif expected == _TEXTS:
        valid = _are_texts(value)
    elif expected == _TABLE:
        valid = isinstance(value, dict) and _are_texts(list(value.values()))
    elif key == "oauth":
        valid = isinstance(value, dict) and _are_texts(list(value.values()))
        valid = valid and value.keys() <= set(OAUTH)
        valid = valid and value.get("grant", GRANTS[0]) in GRANTS
    else:
        valid = type(value) in (int, float) and 0 <= value < float("inf")
    if not valid:
        raise MountError(f"mounts.{name}.{key} must be {expected}, not {value!r:.100}.")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) and "\0" not in each for each in value
    )


# --- variables --------------------------------------------------------------------------------


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}`. An unset variable without a default stays as text."""

    def value_of(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        value = variables.get(name)
        if value:
            return value
        if default is not None:
            return cast("str", default)
        return found[0] if value is None else ""

    return _VARIABLE.sub(value_of, text)


def unset_variables(config: MountConfig, variables: Mapping[str, str]) -> list[str]:
    """Return the variables that a mount refers to and that are neither set nor have a default."""
    texts = [*config.command, config.cwd, config.url, *config.env.values()]
    texts += [*config.headers.values(), *config.oauth.values()]
    named = (found for text in texts for found in _VARIABLE.finditer(text))
    missing = (found[1] for found in named if found[2] is None and found[1] not in variables)
    return list(dict.fromkeys(missing))
