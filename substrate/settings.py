"""Every setting of the program, in one frozen value, and where each came from.

Flags win over `SUBSTRATE_*` variables, which win over `substrate.toml` in the project folder,
which wins over the defaults here. A setting is described by its field alone: the type, the default,
the bounds in the metadata and the comment above it. Values are parsed here, by the rules of
pydantic's lax mode: importing pydantic would cost as much as the rest of a cold start.

This module never opens `substrate.toml`: its text comes with `ProjectFiles`, which hold nothing
unless the folder is trusted (`substrate.security.folder_trust`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import os
import re
import stat
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from substrate.server.limits import ServerLimits

__all__ = (
    "FILE",
    "FOLDER_VARIABLE",
    "PREFIX",
    "TOKEN",
    "Loaded",
    "ProjectFiles",
    "Settings",
    "SettingsError",
    "Skipped",
    "allowed",
    "did_you_mean",
    "files_to_trust",
    "is_there",
    "operator_folder",
    "parse_value",
    "read_settings",
    "setting_names",
    "variable_of",
)

PREFIX = "SUBSTRATE_"
#: What stands between `limits` and the name of a limit in a variable.
NESTED = "__"
FILE = "substrate.toml"
#: The token that commands send: no setting, because settings are shown and written to files.
TOKEN = "SUBSTRATE_TOKEN"
#: The operator's own folder of plugin files. It is read before any other setting, because it
#: decides what has to be trusted.
FOLDER_VARIABLE = "SUBSTRATE_ACTIVATIONS_FOLDER"
#: The mode of the placeholders of `activations.bash.protected_paths`, which imports too much here.
PLACEHOLDER_MODE = 0o1500
COMPARISONS = {"ge": operator.ge, "le": operator.le, "gt": operator.gt}
WHOLE_NUMBER = r"\s*([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?\s*"
BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What can be set, with the defaults. Bounds stand in the metadata, in pydantic's words."""

    #: The port of the server on 127.0.0.1; 0 for any that is free.
    port: int = dataclasses.field(default=4444, metadata={"ge": 0, "le": 65535})
    #: The address that the server listens on. One that other machines reach needs `hosts`.
    bind: str = "127.0.0.1"
    #: Who may call over HTTP and WebSocket: whoever has a token, or every program that reaches the
    #: server; the latter on this machine only.
    auth: Literal["token", "off"] = "token"
    #: Names that the server is called by besides those of this machine, as in `example.org` or
    #: `example.org:8443`.
    hosts: tuple[str, ...] = ()
    #: Web pages elsewhere that may call the server, as in `https://example.org`; they need a token
    #: all the same.
    origins: tuple[str, ...] = ()
    #: Whose OAuth tokens are taken too, as in `https://login.example.org`; empty for nobody's.
    oauth_issuer: str = ""
    #: What this server is called in those tokens; empty for the address of its `/mcp`.
    oauth_audience: str = ""
    #: Whether clients on this machine have a rate too; those elsewhere always do. Behind a proxy
    #: on this machine everybody is one.
    rate_local: Literal["off", "on"] = "off"
    #: Activations to load: `module:Class`, `module`, or the path of a Python file.
    activation: tuple[str, ...] = ()
    #: The folder of plugin files, relative to the project folder.
    activations_folder: str = "activations.d"
    #: How bash commands are confined: not at all, to the project folder, or without network too.
    bash_sandbox: Literal["off", "workspace", "strict"] = "off"
    #: Where trees are kept: a file, `sqlite:///path`, or `postgresql://...`; empty for a file in
    #: the user's data folder.
    database: str = ""
    #: After how many days a tree that nobody holds is archived, and can no longer be claimed.
    arbor_scheduled_days: float = dataclasses.field(default=7.0, metadata={"ge": 0})
    #: After how many more days an archived tree is removed for good.
    arbor_archived_days: float = dataclasses.field(default=30.0, metadata={"ge": 0})
    #: The model that answers in a chat session that names none, as in `anthropic:...`.
    chat_model: str = "echo:echo"
    #: Servers that speak OpenAI's protocol, as in `ollama=http://127.0.0.1:11434/v1`: their models
    #: are called `ollama:...`, and their keys are read from `OLLAMA_API_KEY`.
    chat_endpoints: tuple[str, ...] = ()
    #: How Claude Code is started for its sessions.
    chat_claude_command: str = "claude"
    #: Whether sessions of Claude Code run although `bash_sandbox` confines commands. Its own tools
    #: are not confined by it.
    chat_claude_unconfined: bool = False
    #: After how many seconds of silence a model is given up.
    chat_silent_s: float = dataclasses.field(default=120.0, metadata={"ge": 1})
    #: How many seconds runs may go on after the input of `--stdio` has ended.
    eof_grace_s: float = dataclasses.field(default=2.0, metadata={"ge": 0})
    #: Whether `--stdio` starts a server beside it, if the project has none, so that its runs can be
    #: watched in a browser.
    watch: bool = False
    #: After how many seconds without any connection the server ends; 0 for never.
    idle_exit_s: float = dataclasses.field(default=0.0, metadata={"ge": 0})
    #: How tools are called over MCP: some hosts refuse dots.
    mcp_tool_names: Literal["dot", "underscore", "dash"] = "dot"
    #: Who is sent progress over MCP: clients that asked for it, or all.
    mcp_progress: Literal["asked", "always"] = "asked"
    #: How many progress notifications a second one call may cause; 0 for one an event.
    mcp_progress_rate: float = dataclasses.field(default=20.0, metadata={"ge": 0})
    #: Maximum characters in an MCP result. Longer output keeps its head and tail and links to the
    #: full log. Claude Code moves results above 50,000 characters to a file unless a tool declares
    #: more, which every tool does if this is set higher.
    mcp_result_chars: int = dataclasses.field(default=48_000, metadata={"ge": 1000})
    #: How many entries a page of an MCP list holds.
    mcp_page_size: int = dataclasses.field(default=1000, metadata={"ge": 1})
    #: After how many seconds an MCP response stream is ended, so that the client comes back for
    #: the rest (2025-11-25); 0 for never.
    mcp_stream_s: float = dataclasses.field(default=0.0, metadata={"ge": 0})
    #: What is logged to stderr; from `info` on, a line for each run that ends.
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    #: What a line of the log is: text for a person, or JSON for a program.
    log_format: Literal["text", "json"] = "text"
    #: Whether the line about a run shows its arguments, whatever they hold.
    log_arguments: bool = False
    #: The bounds on everything; in the environment `SUBSTRATE_LIMITS__RUN_S` and so on.
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)


class SettingsError(Exception):
    """A setting has a value that it cannot have; the message says which, where and what it can."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The settings in force, and what is known about them."""

    settings: Settings
    #: Where each setting that is not left at its default comes from: `flag`, the variable, or
    #: the file. Limits are named as in `limits.run_s`.
    origins: dict[str, str]
    #: Variables that begin like ours and set nothing.
    unknown: list[str]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Files of the project folder that were left out, and what to do about it.

    `message` and `next` hold no text of the folder's: a model reads them.
    """

    #: `untrusted`, `changed`, `unsafe`, `unreadable` or `record_unreadable`.
    code: str
    message: str
    next: str
    #: The folder.
    folder: str
    #: The files it is about, or the reason; of bounded length, without control characters.
    details: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ProjectFiles:
    """What a start takes from the project folder: nothing, unless the folder is trusted."""

    #: The content of `substrate.toml`.
    settings: bytes | None = None
    #: The folder whose plugin files are loaded from disk, whatever they hold.
    folder: Path | None = None
    #: The verified content of Python files, by path; loaded in place of what is on disk.
    sources: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    #: Those of them that are plugin files of their own.
    plugins: tuple[str, ...] = ()
    #: Whether the folder is trusted whatever it holds: always, or for this start.
    live: bool = False
    #: Whether that is for this start only.
    once: bool = False
    #: Whether `activation` was set by `substrate.toml`.
    names_activations: bool = False
    skipped: Skipped | None = None
    #: The namespaces, and the classes extended, of trusted plugins that were skipped.
    replaced: tuple[str, ...] = ()


def operator_folder() -> Path | None:
    """The folder of plugin files outside of any project that the environment names."""
    named = Path(os.environ.get(FOLDER_VARIABLE, ""))
    return named if named.is_absolute() else None


def files_to_trust(project: Path) -> list[str]:
    """What the project folder has that needs trust; nothing is opened."""
    named = os.environ.get(FOLDER_VARIABLE) or Settings.activations_folder
    wanted = [FILE] if operator_folder() else [FILE, named]
    return [name for name in wanted if is_there(project / name)]


def is_there(path: Path) -> bool:
    """Whether there is something of the project at a path, rather than the empty folder that keeps
    a confined command from creating it. There is nothing to load from that."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not (stat.S_ISDIR(mode) and stat.S_IMODE(mode) == PLACEHOLDER_MODE)


def read_settings(flags: Mapping[str, Any], content: bytes | None = None) -> Loaded:
    """Settings from flags, variables and the content of `substrate.toml`, with their origins.

    A flag that is None was not given. Raises SettingsError.
    """
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    by_flag = dict.fromkeys(given, "flag")
    known = {variable_of(name): name for name in setting_names()}
    variables = sorted(name for name in os.environ if name.startswith(PREFIX))
    unknown = [name for name in variables if name not in known and name != TOKEN]
    in_file = {} if content is None else _read_file(content)
    in_variables = {known[name]: os.environ[name] for name in variables if name in known}
    texts: dict[str, Any] = {**in_file, **in_variables}
    origins = dict.fromkeys(in_file, FILE) | {name: variable_of(name) for name in in_variables}
    values = {
        name: _parse_setting(name, value, origins[name], is_text=name in in_variables)
        for name, value in texts.items()
    }
    limits = {name.partition(".")[2]: values.pop(name) for name in [*values] if "." in name}
    if limits:
        values["limits"] = ServerLimits(**limits)
    return Loaded(Settings(**values | given), origins | by_flag, unknown)


def setting_names() -> list[str]:
    """Every setting, a limit as in `limits.run_s`."""
    names = [field.name for field in dataclasses.fields(Settings) if field.name != "limits"]
    return names + [f"limits.{field.name}" for field in dataclasses.fields(ServerLimits)]


def allowed(name: str) -> str:
    """What a setting can be, in words."""
    hint, bounds = _hint(name)
    least, most, above = (bounds.get(bound) for bound in ("ge", "le", "gt"))
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(typing.get_args(hint))
    if hint is bool:
        return "true or false"
    if hint not in (int, float):
        return "text" if hint is str else "a list of texts"
    kind = "a whole number" if hint is int else "a number"
    if most is not None:
        return f"{kind} from {least} to {most}"
    return f"{kind} above {above}" if above is not None else f"{kind} of at least {least}"


@functools.cache
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _hint(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the type of a setting, and its bounds."""
    owner, _, limit = name.rpartition(".")
    if owner:
        # A limit of zero would refuse everything.
        return _hints(ServerLimits)[limit], {"gt": 0}
    return _hints(Settings)[name], Settings.__dataclass_fields__[name].metadata


# --- reading ----------------------------------------------------------------------------------


def variable_of(name: str) -> str:
    """The variable that sets this setting."""
    return PREFIX + name.replace(".", NESTED).upper()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is wrong."""
    import difflib  # of no use to a start that has nothing to complain about

    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f". Did you mean {nearest[0]}?" if nearest else "."


def _read_file(content: bytes) -> dict[str, Any]:
    """Return what `substrate.toml` sets, by name. Raises SettingsError."""
    import tomllib

    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8, or nested too deep
        raise SettingsError(f"{FILE} is not TOML: {error}") from error
    limits = tables.pop("limits", {})
    if not isinstance(limits, dict):
        raise SettingsError(f"{FILE}: limits must be a table; begin it with [limits]")
    values = tables | {f"limits.{name}": value for name, value in limits.items()}
    known = setting_names()
    for name in values:
        if name not in known:
            raise SettingsError(
                f"{FILE} sets {name}, which does not exist{did_you_mean(name, known)} "
                "`substrate config` lists every setting."
            )
    return values


def _parse_setting(name: str, value: Any, origin: str, *, is_text: bool) -> Any:
    """Return the value of a setting. Raises SettingsError, with what is allowed."""
    hint, bounds = _hint(name)
    if is_text and hint == tuple[str, ...]:  # a variable holds a list as text with commas
        value = [*filter(None, value.split(","))]
    try:
        parsed = parse_value(hint, value)
        _checked(parsed, all(COMPARISONS[bound](parsed, edge) for bound, edge in bounds.items()))
    except (ValueError, OverflowError):
        message = f"{origin}: {name} cannot be {value!r}; allowed: {allowed(name)}."
        raise SettingsError(message) from None
    return parsed


def parse_value(hint: Any, value: Any) -> Any:
    """Convert a value of TOML, or the text of a variable, to the type of a setting.

    Raises ValueError, and OverflowError for a number that is too large for a float.
    """
    if typing.get_origin(hint) is Literal:
        return _checked(value, value in typing.get_args(hint))
    if hint == tuple[str, ...]:
        return tuple(
            _checked(value, isinstance(value, list) and all(isinstance(e, str) for e in value))
        )
    if hint is str:
        return _checked(value, isinstance(value, str))
    if isinstance(value, str):
        return _parse_text(hint, value)
    _checked(value, isinstance(value, int | float))
    if hint is float:
        number = float(value)
        return _checked(number, not math.isnan(number))
    if hint is bool:
        return bool(_checked(value, value in (0, 1)))
    return int(_checked(value, isinstance(value, int) or value.is_integer()))


def _parse_text(hint: Any, text: str) -> Any:
    if hint is bool:
        return BOOLEANS[_checked(text.lower(), text.lower() in BOOLEANS)]
    if hint is float:
        return parse_value(float, float(_checked(text, text.isascii())))
    found = re.fullmatch(WHOLE_NUMBER, text)
    return int(_checked(found, found is not None)[1])


def _checked(value: Any, is_valid: bool) -> Any:
    if not is_valid:
        raise ValueError("it has the wrong type, or is out of bounds")
    return value
