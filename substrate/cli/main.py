"""The root of the command line.

Importing this module must stay cheap, because every start of `substrate --stdio` does it: a
subcommand, the HTTP server and rich are imported only when they are asked for, by name.
"""

from __future__ import annotations

import dataclasses
import gc
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from plexus.registry.lazy import resolve
from plexus.version import __version__
from substrate.settings import (
    FILE,
    TOKEN,
    Loaded,
    ProjectFiles,
    Settings,
    SettingsError,
    did_you_mean,
    files_to_trust,
    read_settings,
    setting_names,
    variable_of,
)
from substrate.telemetry.logging import announce, set_up_logging

__all__ = (
    "FILES",
    "cli",
    "files_of",
    "given_flags",
    "loaded_of",
    "main",
    "may_ask",
    "server_entry",
    "setting_option",
    "settings_of",
)

F = TypeVar("F", bound=Callable[..., Any])

#: The types of the settings. Root flags with these names are settings; the others are about one
#: start.
HINTS = typing.get_type_hints(Settings)

#: Subcommands by name, each a click command in a module of its own.
COMMANDS = {
    "arbor": "substrate.cli.commands.arbor:arbor",
    "attach": "substrate.cli.commands.runs:attach",
    "call": "substrate.cli.commands.call:call",
    "cancel": "substrate.cli.commands.runs:cancel",
    "chat": "substrate.cli.commands.chat:chat",
    "check": "substrate.cli.commands.check:check",
    "codegen": "substrate.cli.commands.codegen:codegen",
    "completion": "substrate.cli.commands.completion:completion",
    "config": "substrate.cli.commands.config:config",
    "dev": "substrate.cli.commands.dev:dev",
    "doctor": "substrate.cli.commands.doctor:doctor",
    "list": "substrate.cli.commands.list:list_methods",
    "mcp": "substrate.cli.commands.mcp:mcp",
    "new": "substrate.cli.commands.new:new",
    "respond": "substrate.cli.commands.respond:respond",
    "runs": "substrate.cli.commands.runs:runs",
    "schema": "substrate.cli.commands.schema:schema",
    "token": "substrate.cli.commands.token:token",
    "trust": "substrate.cli.commands.trust:trust",
    "watch": "substrate.cli.commands.runs:watch",
}

#: Commands that use nothing of the project folder.
WITHOUT_FOLDER = frozenset({"completion", "mcp", "new", "trust"})
#: Commands that report on the folder, and so do not ask about it.
REPORTS = frozenset({"config", "doctor"})
#: Decides about the folder; imported only if there is something to decide.
START = "substrate.security.folder_trust.decision:files_at_start"
#: Where the words after the name of a subcommand stay for the root command.
REST = "substrate.cli.main.rest"
#: Where the files of the folder, and what the settings were read from, stay for subcommands.
FILES = "substrate.cli.main.files"
LOADED = "substrate.cli.main.loaded"


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = resolve(COMMANDS[cmd_name])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[REST] = args[1:]  # click hides it from the root command
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            nearest = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if nearest:
                message = f"{error.message} Did you mean {nearest[0]!r}?"
                raise click.UsageError(message, ctx) from error
            raise


def setting_option(
    flag: str, text: str, *, name: str = "", metavar: str | None = None, default: str = ""
) -> Callable[[F], F]:
    """The flag of a setting. Its type, bounds and default are those of the setting; `default` is
    for one that its value does not explain."""
    name = name or flag.removeprefix("--").replace("-", "_")
    hint, field = HINTS[name], Settings.__dataclass_fields__[name]
    default = default or (f"{field.default:g}" if hint is float else str(field.default))
    shown = f"{text}  [default: {default}]"
    if hint is bool:
        return click.option(flag, name, is_flag=True, default=None, help=text)
    if hint == tuple[str, ...]:
        return click.option(flag, name, multiple=True, metavar=metavar, help=text)
    kind: click.ParamType[Any] | None = None
    if typing.get_origin(hint) is typing.Literal:
        kind = click.Choice(typing.get_args(hint))
    elif hint in (int, float):
        bounds = field.metadata.get("ge"), field.metadata.get("le")
        kind = click.IntRange(*bounds) if hint is int else click.FloatRange(*bounds)
    return click.option(flag, name, type=kind, metavar=metavar, help=shown)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
)
@click.version_option(__version__, prog_name="substrate")
@click.option("--stdio", is_flag=True, help="Speak newline-delimited JSON-RPC on stdin and stdout.")
@click.option("--mcp", is_flag=True, help="With --stdio: speak MCP, as hosts for models do.")
@setting_option(
    "--watch", "With --stdio: start a server beside it, to watch its runs in a browser."
)
@setting_option("--port", "Port to listen on.")
@setting_option(
    "--bind", "Address to listen on; one that others reach needs --allow-host.", metavar="ADDRESS"
)
@setting_option("--auth", "Whether callers need a token; off on this machine only.")
@setting_option(
    "--allow-host",
    "Another name that the server is called by. May be repeated.",
    name="hosts",
    metavar="NAME",
)
@setting_option(
    "--allow-origin",
    "A web page elsewhere that may call, as in https://example.org. May be repeated.",
    name="origins",
    metavar="ORIGIN",
)
@click.option(
    "--token",
    envvar=TOKEN,
    metavar="TOKEN",
    help="Token for the server that a command asks.  [default: the one in its lock file]",
)
@setting_option(
    "--activation",
    "Load an activation: module:Class, or a Python file. May be repeated.",
    metavar="MODULE:CLASS",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Load substrate.toml and activations.d of this folder for this start, whatever they hold.",
)
@setting_option("--bash-sandbox", "Confine bash commands with bubblewrap.")
@setting_option(
    "--database",
    "Where trees are kept: a file, or postgresql://...",
    metavar="FILE|URL",
    default="your data folder",
)
@setting_option("--mcp-tool-names", "How tools are called over MCP; some hosts refuse dots.")
@setting_option("--mcp-progress", "Whom progress is sent to over MCP.")
@setting_option(
    "--mcp-progress-rate",
    "Progress notifications a second for one call; 0 for one an event.",
    metavar="PER_SECOND",
)
@setting_option(
    "--eof-grace",
    "How long runs may go on after the input of --stdio ends.",
    name="eof_grace_s",
    metavar="SECONDS",
)
@setting_option(
    "--idle-exit",
    "End the server after so long without a connection.",
    name="idle_exit_s",
    metavar="SECONDS",
    default="never",
)
@setting_option("--log-level", "What is logged to stderr.")
@setting_option("--log-format", "Lines for a person or for a program.")
@click.pass_context
def cli(
    ctx: click.Context, /, *, stdio: bool, mcp: bool, token: str | None, trust: bool, **flags: Any
) -> None:
    """Tools that stream. With no command: serve HTTP and WebSocket on 127.0.0.1."""
    del token  # of use to commands only, which look for it themselves
    ctx.meta[FILES] = files = _project_files(ctx, trust=trust, asks=may_ask(ctx, stdio=stdio))
    try:
        loaded = read_settings(flags, files.settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    ctx.meta[FILES] = files = _with_origin(files, loaded)
    ctx.meta[LOADED] = loaded
    settings = loaded.settings
    set_up_logging(settings.log_level, settings.log_format)
    for variable in loaded.unknown:
        advice = did_you_mean(variable, map(variable_of, setting_names()))
        announce(f"{variable} is set, but is no setting{advice}", "WARNING")
    if (skipped := files.skipped) is not None and ctx.invoked_subcommand not in REPORTS:
        about = "; ".join(skipped.details)
        announce(
            f"{skipped.message} {skipped.next} ({skipped.folder}: {about})",
            "WARNING",
            code=f"folder_{skipped.code}",
        )
    ctx.obj = settings
    if ctx.invoked_subcommand is not None:
        return
    if flags["watch"] and not stdio:
        raise click.UsageError("--watch goes with --stdio; a server itself can always be watched.")
    serve = server_entry(ctx, stdio=stdio, mcp=mcp)
    tune_garbage_collector()
    serve(settings, files)


def server_entry(ctx: click.Context, *, stdio: bool, mcp: bool) -> Callable[..., None]:
    """The function that serves over the transport that these flags name; raises UsageError."""
    if mcp and not stdio:
        raise click.UsageError("--mcp goes with --stdio; over HTTP, MCP is always at /mcp.", ctx)
    entry = "substrate.server.serve:serve_http"
    if stdio:
        entry = "substrate.stdio:serve_mcp_stdio" if mcp else "substrate.stdio:serve_stdio"
    serve: Callable[..., None] = resolve(entry)
    return serve


# --- the project folder -----------------------------------------------------------------------


def files_of(ctx: click.Context) -> ProjectFiles:
    """What may be loaded from the project folder. A completion, for which the root command does
    not run, finds out without a question."""
    if FILES not in ctx.meta:
        trust = bool(ctx.find_root().params.get("trust"))
        files = _project_files(ctx, trust=trust, asks=False)
        ctx.meta[FILES] = _with_origin(files, read_settings(given_flags(ctx), files.settings))
    known: ProjectFiles = ctx.meta[FILES]
    return known


def loaded_of(ctx: click.Context) -> Loaded:
    """The settings with their origins."""
    if LOADED not in ctx.meta:
        ctx.meta[LOADED] = read_settings(given_flags(ctx), files_of(ctx).settings)
    loaded: Loaded = ctx.meta[LOADED]
    return loaded


def _project_files(ctx: click.Context, *, trust: bool, asks: bool) -> ProjectFiles:
    if ctx.invoked_subcommand in WITHOUT_FOLDER:
        return ProjectFiles()
    project = Path.cwd()
    # Nothing else is imported, opened or asked in a folder without such files. With --trust, files
    # that come later are trusted too.
    if not trust and not files_to_trust(project):
        return ProjectFiles()
    files_at_start: Callable[..., ProjectFiles] = resolve(START)
    return files_at_start(project, once=trust, may_ask=asks)


def may_ask(ctx: click.Context, *, stdio: bool) -> bool:
    """Whether this start may ask a question: what speaks a protocol, reports, or only prints help
    may not."""
    command, rest = ctx.invoked_subcommand, ctx.meta.get(REST, [])
    speaks = stdio or (command == "dev" and "--stdio" in rest)
    return not speaks and command not in REPORTS and rest[:1] not in (["-h"], ["--help"])


def _with_origin(files: ProjectFiles, loaded: Loaded) -> ProjectFiles:
    named = loaded.origins.get("activation") == FILE
    return dataclasses.replace(files, names_activations=named) if named else files


# --- settings ---------------------------------------------------------------------------------


def settings_of(ctx: click.Context) -> Settings:
    """The settings that the root command has read, or would have: a completion runs nothing."""
    settings = ctx.find_object(Settings)
    return settings or loaded_of(ctx).settings


def given_flags(ctx: click.Context) -> dict[str, Any]:
    """The flags of the root command that are settings."""
    return {name: value for name, value in ctx.find_root().params.items() if name in HINTS}


def tune_garbage_collector() -> None:
    """Leave out of every collection what was made at start, and collect less often.

    A stream makes and drops objects by the million and hardly any of them are cyclic; with the
    defaults a third of its time went into looking at them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def main() -> None:
    """Run the command line."""
    cli(prog_name="substrate")
