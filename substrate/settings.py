"""Every setting of the program, in one frozen value, with the origin of each.

Flags override `SUBSTRATE_*` variables, which override `substrate.toml` in the project folder, which
overrides the defaults here. A setting is described by its field alone: the type, the default, the
bounds in the metadata and the comment above it, which `substrate config` prints. Values are parsed
here, by the rules of pydantic's lax mode: importing pydantic would double the time of a cold start.

This module never opens `substrate.toml`. Its text is passed in `ProjectFiles`, which is empty
unless the folder is trusted (`substrate.security.folder_trust`).
"""

import math
import operator
import os
import re
import stat
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from plexus.registry.lazy import resolve
from plexus.registry.selection import check_patterns
from substrate.server.limits import ServerLimits

__all__ = (
    "ACTIVATIONS_FOLDER",
    "DEFAULTS",
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
    "parse_setting",
    "parse_value",
    "read_settings",
    "setting_names",
    "type_of_setting",
    "variable_of",
)

PREFIX = "SUBSTRATE_"
#: The separator between `LIMITS` and the name of a limit in a variable.
NESTED = "__"
FILE = "substrate.toml"
#: The variable with the token that commands send. Not a setting: settings are printed and stored.
TOKEN = "SUBSTRATE_TOKEN"
#: The folder of the operator's plugin files. Read before all other settings, because it decides
#: which files need trust.
FOLDER_VARIABLE = "SUBSTRATE_ACTIVATIONS_FOLDER"
#: The default of the setting `activations_folder`.
ACTIVATIONS_FOLDER: Final = "activations.d"
#: The mode of the placeholders of the sandbox (`protected_paths`), which imports too much here.
PLACEHOLDER_MODE = 0o1500
#: The table of mounts in the file, which is not a setting.
MOUNTS = "mounts"
COMPARISONS = {"ge": operator.ge, "le": operator.le, "gt": operator.gt}
WHOLE_NUMBER = r"\s*([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?\s*"
#: Settings whose values are patterns of methods.
PATTERNS = frozenset({"only", "without", "mcp_tools"})
#: Settings whose values are rules, and the parser of each. Imported only if one is set.
RULES = {
    "record_methods": "substrate.run_store.policy:parse_record_rule",
    "history_methods": "substrate.run_store.policy:parse_history_rule",
    "ide_checkers": "activations.ide.checkers:parse_checker",
    "ide_formatters": "activations.ide.formatter:parse_formatter",
}
BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


# A structure and not a dataclass, with evaluated annotations: creating the class and reading the
# types of its fields would take 3 % of a start.
class Settings(msgspec.Struct, frozen=True):
    """All settings with their defaults and bounds."""

    #: TCP port of the server. 0 selects a free port.
    port: Annotated[int, Meta(ge=0, le=65535)] = 4444
    #: Address to listen on. An address that other machines can reach also requires `hosts`.
    bind: str = "127.0.0.1"
    #: Authentication over HTTP and WebSocket. `token` requires a token from every client; `off`
    #: accepts every client, and is allowed on a loopback address only.
    auth: Literal["token", "off"] = "token"
    #: Additional host names that clients use for this server, for example `example.org` or
    #: `example.org:8443`. Requests with any other Host header are refused.
    hosts: tuple[str, ...] = ()
    #: Origins of web pages that may call the server, for example `https://example.org`. They still
    #: need a token.
    origins: tuple[str, ...] = ()
    #: Issuer whose OAuth tokens are accepted in addition to the server's own tokens, for example
    #: `https://login.example.org`. Empty disables OAuth.
    oauth_issuer: str = ""
    #: Audience that OAuth tokens must name. Empty selects the URL of this server's `/mcp`.
    oauth_audience: str = ""
    #: Whether the rate limit also applies to clients on this machine; it always applies to others.
    #: Behind a reverse proxy on this machine all clients share one rate.
    rate_local: Literal["off", "on"] = "off"
    #: Additional activations to load: `module:Class`, `module`, or the path of a Python file.
    activation: tuple[str, ...] = ()
    #: Folder of plugin files, relative to the project folder.
    activations_folder: str = ACTIVATIONS_FOLDER
    #: Offer only these methods and namespaces, and the server's own: patterns such as `bash` or
    #: `arbor.tree_*`. Activations that are not offered are not imported.
    only: tuple[str, ...] = ()
    #: Switch these methods and namespaces off, for example `chat` or `arbor.tree_delete`.
    without: tuple[str, ...] = ()
    #: File with your mounts, the MCP servers whose tools are offered here. Empty selects
    #: `mounts.toml` in your configuration folder; `off` mounts no server.
    mounts_file: str = ""
    #: Sandbox for shell commands. `off` has no sandbox, `workspace` allows writes to the project
    #: folder only, `strict` also blocks the network.
    bash_sandbox: Literal["off", "workspace", "strict"] = "off"
    #: Database of trees and conversations: a file path, `sqlite:///path` or `postgresql://...`.
    #: Empty selects a SQLite file in the user's data folder.
    database: str = ""
    #: What is recorded of every run. `all` records its call (without secrets) and its output,
    #: `metadata` only when, by which client and with which outcome it ran, `off` nothing.
    record: Literal["all", "metadata", "off"] = "all"
    #: Methods of which less is recorded, as `pattern=mode`, for example `bash.*=metadata`. The
    #: first matching pattern applies; it cannot record more than `record` or the method allows.
    record_methods: tuple[str, ...] = ()
    #: Days until a finished run is deleted. Pinned runs are kept.
    history_days: Annotated[float, Meta(ge=0, le=36500)] = 7.0
    #: Maximum bytes of all recorded runs together. The oldest finished runs are deleted first.
    history_bytes: Annotated[int, Meta(ge=0)] = 1_000_000_000
    #: Other days for some methods or outcomes, as `pattern=days` or `pattern@outcome=days`, for
    #: example `*@failed=30` or `health.*=1`. The first match applies. Outcomes are
    #: `succeeded`, `failed` and `cancelled`.
    history_methods: tuple[str, ...] = ()
    #: Days until a tree without owners is archived. An archived tree can no longer be claimed.
    arbor_scheduled_days: Annotated[float, Meta(ge=0)] = 7.0
    #: Days until an archived tree is deleted permanently.
    arbor_archived_days: Annotated[float, Meta(ge=0)] = 30.0
    #: Default model for chat sessions, as `provider:model`, for example `anthropic:...`.
    chat_model: str = "echo:echo"
    #: Additional servers with an OpenAI-compatible API, as `name=URL`. With
    #: `ollama=http://127.0.0.1:11434/v1`, for example, models are named `ollama:...` and the key is
    #: read from `OLLAMA_API_KEY`.
    chat_endpoints: tuple[str, ...] = ()
    #: Command that starts Claude Code.
    chat_claude_command: str = "claude"
    #: Whether to allow Claude Code sessions while `bash_sandbox` is on. The sandbox does not apply
    #: to the tools of Claude Code itself.
    chat_claude_unconfined: bool = False
    #: Seconds without output after which a model request times out.
    chat_silent_s: Annotated[float, Meta(ge=1)] = 120.0
    #: Folders with templates, in addition to the built-in ones. Relative to the project folder.
    templates_path: tuple[str, ...] = ()
    #: Seconds that running calls may take to finish after the input of `--stdio` has ended.
    eof_grace_s: Annotated[float, Meta(ge=0)] = 2.0
    #: Whether `--stdio` also starts a server for the project, unless one is running. You can then
    #: watch the runs in a browser.
    watch: bool = False
    #: Where `--stdio` executes runs. `process` ends them with the process; `server` executes them
    #: in a server of the project, which is started if none is running, so that they can continue
    #: after the MCP host has closed.
    run_in: Literal["process", "server"] = "process"
    #: Whether runs of `run_in = "server"` continue when the MCP host closes or is killed. A method
    #: can decide otherwise for its own runs.
    on_disconnect: Literal["keep", "cancel"] = "keep"
    #: Seconds without connections and runs after which the server stops. 0 disables this.
    idle_exit_s: Annotated[float, Meta(ge=0)] = 0.0
    #: Whether programs such as Claude Code can connect to the editor in the page (`claude --ide`).
    #: Claude Code connects automatically only if exactly one editor is running for the folder.
    ide: Literal["off", "on"] = "off"
    #: Lock files of the editor. `claude` writes the one that Claude Code reads; `seed` also writes
    #: `.claude-code/<port>.json` in the project folder, for clients that look there.
    ide_lock: Literal["claude", "seed"] = "claude"
    #: Checkers of the editor: any of `ruff`, `mypy`, `tsc`, `eslint` and `analysis`. Empty uses all
    #: that are installed and configured in the project.
    ide_checkers: tuple[str, ...] = ()
    #: Formatters of the editor by file type, for example `py,pyi=ruff format -`. The command reads
    #: the text from standard input; `{file}` is its path. They come before the known ones.
    ide_formatters: tuple[str, ...] = ()
    #: Tools that MCP lists: `standard` (those meant for models), `all`, or patterns. Tools that are
    #: not listed can still be called by name.
    mcp_tools: tuple[str, ...] = ("standard",)
    #: Methods that the MCP tool `plexus.call` calls. `safe` excludes methods that can delete,
    #: overwrite or run commands; `all` calls every method.
    plexus_call: Literal["safe", "all"] = "safe"
    #: Separator in MCP tool names. Some hosts refuse dots.
    mcp_tool_names: Literal["dot", "underscore", "dash"] = "dot"
    #: When to send MCP progress: `asked` sends it only to clients that requested it, `always` to
    #: all.
    mcp_progress: Literal["asked", "always"] = "asked"
    #: Maximum progress notifications per second and call. 0 sends one for every event.
    mcp_progress_rate: Annotated[float, Meta(ge=0)] = 20.0
    #: Maximum characters in an MCP result. Longer output keeps its head and tail and links to the
    #: full log. Claude Code moves results above 50,000 characters to a file unless the tool
    #: declares a higher limit; every tool does so if this is set higher.
    mcp_result_chars: Annotated[int, Meta(ge=1000)] = 48_000
    #: Maximum entries per page of an MCP list.
    mcp_page_size: Annotated[int, Meta(ge=1)] = 1000
    #: Seconds after which the server closes an MCP response stream, so that the client reconnects
    #: and resumes (revision 2025-11-25). 0 disables this.
    mcp_stream_s: Annotated[float, Meta(ge=0)] = 0.0
    #: Minimum level of log lines on stderr. `info` and `debug` include one line for each run that
    #: ends.
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    #: Format of log lines: `text` for people, `json` for programs.
    log_format: Literal["text", "json"] = "text"
    #: Whether log lines of runs include the arguments, which may contain secrets.
    log_arguments: bool = False
    #: All limits. Set one in the environment as `SUBSTRATE_LIMITS__RUN_S`, for example.
    limits: ServerLimits = msgspec.field(default_factory=ServerLimits)


#: All settings with their defaults.
DEFAULTS: Final = Settings()


class SettingsError(Exception):
    """Invalid value of a setting. The message names the origin, the setting and what is allowed."""


class Loaded(msgspec.Struct, frozen=True):
    """The settings in force, with their origins."""

    settings: Settings
    #: The origin of each setting that is not a default: `flag`, the variable, or the file. Limits
    #: are named `limits.run_s` and so on.
    origins: dict[str, str]
    #: Variables with our prefix that are not settings.
    unknown: list[str]


class Skipped(msgspec.Struct, frozen=True):
    """Files of the project folder that were not loaded, and what to do about it.

    `message` and `next` contain no text from the folder, because models read them.
    """

    #: `untrusted`, `changed`, `unsafe`, `unreadable` or `record_unreadable`.
    code: str
    message: str
    next: str
    #: The folder.
    folder: str
    #: The affected files, or the reason. Bounded in length, without control characters.
    details: tuple[str, ...] = ()


class ProjectFiles(msgspec.Struct, frozen=True):
    """Everything that is loaded from the project folder. Empty unless the folder is trusted."""

    #: The content of `substrate.toml`.
    settings: bytes | None = None
    #: The folder whose plugin files are loaded from disk without verification.
    folder: Path | None = None
    #: The verified content of Python files by path, loaded instead of the files on disk.
    sources: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    #: The paths in `sources` that are plugin files themselves.
    plugins: tuple[str, ...] = ()
    #: Whether the folder is trusted with any content: permanently, or for this start.
    live: bool = False
    #: Whether the folder is trusted for this start only.
    once: bool = False
    #: Whether `activation` was set by `substrate.toml`.
    names_activations: bool = False
    skipped: Skipped | None = None
    #: Activations of the Python program that runs the command line. The built-in ones are then off.
    activations: tuple[Any, ...] = ()
    #: The command that starts this program, as in `python tools.py`. Empty for `substrate` itself.
    command: tuple[str, ...] = ()
    #: The namespaces and extended classes of trusted plugins that were skipped.
    replaced: tuple[str, ...] = ()


def operator_folder() -> Path | None:
    """Return the plugin folder outside of any project that the environment names, if any."""
    named = Path(os.environ.get(FOLDER_VARIABLE, ""))
    return named if named.is_absolute() else None


def files_to_trust(project: Path) -> list[str]:
    """Return the names of files in the project folder that need trust. Opens no file."""
    named = os.environ.get(FOLDER_VARIABLE) or ACTIVATIONS_FOLDER
    names = [FILE] if operator_folder() else [FILE, named]
    return [name for name in names if is_there(project / name)]


def is_there(path: Path) -> bool:
    """Whether a path of the project exists.

    The empty placeholder folder that prevents a sandboxed command from creating the path does not
    count.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not (stat.S_ISDIR(mode) and stat.S_IMODE(mode) == PLACEHOLDER_MODE)


def read_settings(flags: Mapping[str, Any], content: bytes | None = None) -> Loaded:
    """Read settings from flags, variables and the content of `substrate.toml`.

    Flags that are None or empty are ignored. Raises SettingsError.
    """
    given = {
        name: _patterns(name, value, "flag") if name in PATTERNS else value
        for name, value in flags.items()
        if value not in (None, ())
    }
    by_flag = dict.fromkeys(given, "flag")
    known = {variable_of(name): name for name in setting_names()}
    variables = sorted(name for name in os.environ if name.startswith(PREFIX))
    unknown = [name for name in variables if name not in known and name != TOKEN]
    in_file = {} if content is None else _read_file(content)
    in_variables = {known[name]: os.environ[name] for name in variables if name in known}
    texts: dict[str, Any] = {**in_file, **in_variables}
    origins = dict.fromkeys(in_file, FILE) | {name: variable_of(name) for name in in_variables}
    values = {
        name: parse_setting(name, value, origins[name], is_text=name in in_variables)
        for name, value in texts.items()
    }
    limits = {name.partition(".")[2]: values.pop(name) for name in [*values] if "." in name}
    if limits:
        values["limits"] = ServerLimits(**limits)
    loaded = Loaded(Settings(**values | given), origins | by_flag, unknown)
    if not all(name.strip() for name in loaded.settings.activation):
        raise SettingsError(
            f"{loaded.origins['activation']}: activation cannot be an empty text. "
            "Allowed: module:Class, module, or the path of a Python file."
        )
    return loaded


def setting_names() -> list[str]:
    """Return the names of all settings, limits as `limits.run_s` and so on."""
    names = [name for name in Settings.__struct_fields__ if name != "limits"]
    return names + [f"limits.{name}" for name in ServerLimits.__struct_fields__]


def allowed(name: str) -> str:
    """Return a phrase that describes the allowed values of a setting."""
    hint, bounds = type_of_setting(name)
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


def type_of_setting(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the type of a setting and its bounds, as `ge`, `le` and `gt`."""
    owner, _, limit = name.rpartition(".")
    if owner:
        # A limit of zero would refuse everything.
        return type(getattr(DEFAULTS.limits, limit)), {"gt": 0}
    hint: Any = Settings.__annotations__[name]
    if typing.get_origin(hint) is not Annotated:
        return hint, {}
    kind, meta = typing.get_args(hint)
    bounds = {bound: getattr(meta, bound) for bound in COMPARISONS}
    return kind, {bound: value for bound, value in bounds.items() if value is not None}


# --- reading ----------------------------------------------------------------------------------


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.replace(".", NESTED).upper()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: a suggestion, or a full stop."""
    import difflib  # only needed for errors; keeps the cold start short

    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f". Did you mean {nearest[0]}?" if nearest else "."


def _read_file(content: bytes) -> dict[str, Any]:
    """Return the values in `substrate.toml` by setting name. Raises SettingsError."""
    import tomllib

    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise SettingsError(f"{FILE} is not valid TOML: {error}") from error
    tables.pop(MOUNTS, None)  # the gateway reads them, and reports what is wrong with one
    limits = tables.pop("limits", {})
    if not isinstance(limits, dict):
        raise SettingsError(f"{FILE}: limits must be a table. Start it with the line [limits].")
    values = tables | {f"limits.{name}": value for name, value in limits.items()}
    known = setting_names()
    for name in values:
        if name not in known:
            raise SettingsError(
                f"{FILE}: unknown setting {name!r}{did_you_mean(name, known)} "
                "List all settings with `substrate config`."
            )
    return values


def parse_setting(name: str, value: Any, origin: str, *, is_text: bool) -> Any:
    """Return the parsed value of a setting: a text, as in a variable, or a TOML value.

    Raises SettingsError with the origin of the value and with what is allowed.
    """
    hint, bounds = type_of_setting(name)
    if is_text and hint == tuple[str, ...]:  # in a variable, a list is separated by commas
        value = [*filter(None, value.split(","))]
    if name in PATTERNS:
        return _patterns(name, value, origin)
    try:
        parsed = parse_value(hint, value)
        _require(parsed, all(COMPARISONS[bound](parsed, edge) for bound, edge in bounds.items()))
    except (ValueError, OverflowError):
        message = f"{origin}: invalid value {value!r} for {name}. Allowed: {allowed(name)}."
        raise SettingsError(message) from None
    if name in RULES:
        _check_rules(name, parsed, origin)
    return parsed


def _check_rules(name: str, texts: Iterable[str], origin: str) -> None:
    """Raise SettingsError for a text that is not a rule."""
    parse_rule = resolve(RULES[name])
    for text in texts:
        try:
            parse_rule(text)
        except ValueError as error:
            raise SettingsError(f"{origin}: {name}: {error}.") from None


def _patterns(name: str, value: Any, origin: str) -> tuple[str, ...]:
    """Return a list of patterns, given as texts in which commas separate them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise SettingsError(f"{origin}: {name} cannot be {value!r}; allowed: {allowed(name)}.")
    patterns = tuple(filter(None, (part.strip() for text in texts for part in text.split(","))))
    try:
        check_patterns(patterns)
    except ValueError as error:
        raise SettingsError(f"{origin}: {name}: {error}.") from None
    return patterns


def parse_value(hint: Any, value: Any) -> Any:
    """Convert a TOML value or the text of a variable to the type of a setting.

    Raises ValueError, or OverflowError for a number that is too large for a float.
    """
    if typing.get_origin(hint) is Literal:
        return _require(value, value in typing.get_args(hint))
    if hint == tuple[str, ...]:
        return tuple(
            _require(value, isinstance(value, list) and all(isinstance(e, str) for e in value))
        )
    if hint is str:
        return _require(value, isinstance(value, str))
    if isinstance(value, str):
        return _parse_text(hint, value)
    _require(value, isinstance(value, int | float))
    if hint is float:
        number = float(value)
        return _require(number, not math.isnan(number))
    if hint is bool:
        return bool(_require(value, value in (0, 1)))
    return int(_require(value, isinstance(value, int) or value.is_integer()))


def _parse_text(hint: Any, text: str) -> Any:
    if hint is bool:
        return BOOLEANS[_require(text.lower(), text.lower() in BOOLEANS)]
    if hint is float:
        return parse_value(float, float(_require(text, text.isascii())))
    found = re.fullmatch(WHOLE_NUMBER, text)
    return int(_require(found, found is not None)[1])


def _require(value: Any, is_valid: bool) -> Any:
    if not is_valid:
        raise ValueError("wrong type or out of bounds")
    return value
