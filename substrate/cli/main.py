"""The root command.

Every start of `substrate --stdio` imports this module, so the import must stay cheap: subcommands,
the HTTP server and rich are imported by name on first use.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from msgspec.structs import replace

from plexus.errors import PlexusError
from plexus.registry.lazy import resolve
from plexus.version import __version__
from substrate.cli.numbers import Number, WholeNumber
from substrate.garbage import exempt_start
from substrate.settings import (
    DEFAULTS,
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
    type_of_setting,
    variable_of,
)
from substrate.standard_streams import open_missing_descriptors
from substrate.telemetry.logging import announce, set_up_logging

__all__ = (
    "FILES",
    "SERVES",
    "Program",
    "cli",
    "files_of",
    "loaded_of",
    "main",
    "may_ask",
    "program_of",
    "script_of",
    "server_entry",
    "setting_flags",
    "setting_option",
    "settings_of",
    "start",
)

F = TypeVar("F", bound=Callable[..., Any])

#: Import path of every subcommand's click command, by name.
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
    "help": "substrate.cli.commands.help:show_help",
    "ide": "substrate.cli.commands.ide:ide",
    "import": "substrate.cli.commands.import_server:import_server",
    "list": "substrate.cli.commands.list:list_methods",
    "mcp": "substrate.cli.commands.mcp:mcp",
    "mount": "substrate.cli.commands.mount:mount",
    "new": "substrate.cli.commands.new:new",
    "open": "substrate.cli.commands.open:open_page",
    "replay": "substrate.cli.commands.show:replay",
    "respond": "substrate.cli.commands.respond:respond",
    "runs": "substrate.cli.commands.runs:runs",
    "schema": "substrate.cli.commands.schema:schema",
    "serve": "substrate.cli.commands.serve:serve",
    "show": "substrate.cli.commands.show:show",
    "tasks": "substrate.cli.commands.tasks:tasks",
    "token": "substrate.cli.commands.token:token",
    "trust": "substrate.cli.commands.trust:trust",
    "watch": "substrate.cli.commands.runs:watch",
}

#: The commands in the order of the help text, by what they are for. A test compares the two.
SECTIONS = {
    "Serve": ("serve", "open", "ide", "dev", "doctor", "config"),
    "Call methods": ("list", "call", "schema", "chat", "tasks"),
    "Follow runs": ("runs", "show", "attach", "watch", "replay", "respond", "cancel"),
    "Write activations": ("new", "check", "codegen", "import"),
    "Set up": ("mcp", "mount", "token", "trust", "arbor", "completion", "help"),
}
#: Root flags that also apply to commands. `serve --help` shows all the others.
COMMAND_FLAGS = frozenset(
    (
        "port",
        "bind",
        "token",
        "activation",
        "trust",
        "only",
        "without",
        "bash_sandbox",
        "database",
        "version",
    )
)
#: Commands that read nothing from the project folder.
IGNORES_FOLDER = frozenset({"completion", "help", "mcp", "new", "trust"})
#: The command whose flags are those of the root command, which it starts when it has read them.
SERVE = "serve"
#: Exit code of a command that Ctrl-C has ended.
INTERRUPTED = 130
#: Key in `ctx.meta` that is set by that command.
SERVES = "substrate.cli.main.serves"
#: Commands that report on the project folder and therefore never ask whether to trust it.
REPORTS = frozenset({"config", "doctor"})
#: Decides whether to trust the project folder. Imported only if the folder has files to trust.
TRUST_REVIEW = "substrate.security.folder_trust.decision:files_at_start"
#: Imported only with the setting `run_in`.
SERVE_FRONT = "substrate.front.process:serve_front"
#: Key in `ctx.meta` of the arguments after the subcommand's name.
REST = "substrate.cli.main.rest"
#: Keys in `ctx.meta` of the project files and of the loaded settings, for subcommands.
FILES = "substrate.cli.main.files"
LOADED = "substrate.cli.main.loaded"


#: Where the Python program that runs the command line stays for subcommands, if one does.
PROGRAM = "substrate.cli.main.program"


class Program(NamedTuple):
    """A Python program that serves its own activations by this command line."""

    activations: tuple[Any, ...]
    #: What starts the program, as in `python tools.py`.
    command: tuple[str, ...]


def program_of(ctx: click.Context) -> Program | None:
    """Return the program that runs this command line; None if it is `substrate` itself."""
    program: Program | None = ctx.meta.get(PROGRAM)
    return program


def script_of(ctx: click.Context) -> str | None:
    """Return the path of the Python script that runs this command line, if one does."""
    program = program_of(ctx)
    script = "" if program is None else program.command[-1]
    return script if script.endswith(".py") else None


class LazyGroup(click.Group):
    """Group that imports a command on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first, then the flags that apply to them."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(ctx, name)) for name in names])
        options = [each for each in self.get_params(ctx) if each.name in COMMAND_FLAGS]
        records = [option.get_help_record(ctx) for option in options]
        with formatter.section("Options before a command"):
            formatter.write_dl([record for record in records if record is not None])

    def _summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit=80)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = resolve(COMMANDS[cmd_name])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[REST] = args[1:]  # click does not pass these to the root command
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            nearest = difflib.get_close_matches(args[0], COMMANDS, n=1)
            advice = f"Did you mean {nearest[0]!r}?" if nearest else self._advice(args[0])
            message = f"Unknown command {args[0]!r}. {advice}"
            raise click.UsageError(message, ctx) from error

    @staticmethod
    def _advice(word: str) -> str:
        if re.fullmatch(r"\w+(?:\.\w+)+", word):
            return f"Call a method with `substrate call {word}`."
        return "`substrate help` lists the commands."

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C ends it without a message, a full disk with one."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except click.Abort as error:  # of a prompt, at Ctrl-C or Ctrl-D
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
        except PlexusError as error:
            raise click.ClickException(f"{error.message} ({error.code})") from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader of a pipe has left, which needs no message
            discard_output()
            named = f": {error.filename}" if error.filename else ""
            raise click.ClickException(f"{error.strerror or error}{named}") from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags. An unknown one may be an option of a command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            owners = [name for name in sorted(COMMANDS) if self._has_option(ctx, name, error)]
            if not owners:
                raise
            *others, last = [f"`substrate {name} {error.option_name}`" for name in owners]
            named = f"{', '.join(others)} or {last}" if others else last
            raise click.UsageError(
                f"{error.option_name} is an option of a command and follows its name: {named}.", ctx
            ) from error

    def _has_option(self, ctx: click.Context, name: str, error: click.NoSuchOption) -> bool:
        command = self.get_command(ctx, name)
        assert command is not None, "it is one of the commands"
        return any(error.option_name in option.opts for option in command.params)


def setting_option(
    flag: str, text: str, *, name: str = "", metavar: str | None = None, default: str = ""
) -> Callable[[F], F]:
    """Return the option for a setting, with the setting's type, bounds and default.

    `default` replaces a default value that does not explain itself in the help text.
    """
    name = name or flag.removeprefix("--").replace("-", "_")
    hint, bounds = type_of_setting(name)
    value = getattr(DEFAULTS, name)
    default = default or (f"{value:g}" if hint is float else str(value))
    with_default = f"{text}  [default: {default}]"
    if hint is bool:
        return click.option(flag, name, is_flag=True, default=None, help=text)
    if hint == tuple[str, ...]:
        return click.option(flag, name, multiple=True, metavar=metavar, help=text)
    kind: click.ParamType[Any] | None = None
    if typing.get_origin(hint) is typing.Literal:
        kind = click.Choice(typing.get_args(hint))
    elif hint in (int, float):
        ends = bounds.get("ge"), bounds.get("le")
        kind = WholeNumber(*ends) if hint is int else Number(*ends)
    return click.option(flag, name, type=kind, metavar=metavar, help=with_default)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
)
@click.version_option(__version__, prog_name="substrate")
@click.option("--stdio", is_flag=True, help="Serve newline-delimited JSON-RPC on stdin and stdout.")
@click.option("--mcp", is_flag=True, help="With --stdio: serve MCP instead, for MCP hosts.")
@setting_option(
    "--watch", "With --stdio: also start an HTTP server, to watch the runs in a browser."
)
@click.option(
    "--background",
    "run_in",
    flag_value="server",
    default=None,
    help="With --stdio: execute runs in a server of the project, so that they outlive the host.",
)
@click.option(
    "--ide",
    "ide",
    flag_value="on",
    default=None,
    help="Let Claude Code connect to the editor in the page (`claude --ide`).",
)
@setting_option("--port", "Port to listen on; 0 picks a free port.")
@setting_option(
    "--bind",
    "Address to listen on. An address that other machines can reach requires --allow-host.",
    metavar="ADDRESS",
)
@setting_option("--auth", "Require a token from clients. off is for loopback addresses only.")
@setting_option(
    "--allow-host",
    "Additional host name of the server, as in example.org. Repeatable.",
    name="hosts",
    metavar="NAME",
)
@setting_option(
    "--allow-origin",
    "Origin of a web page that may call the server, as in https://example.org. Repeatable.",
    name="origins",
    metavar="ORIGIN",
)
@click.option(
    "--token",
    envvar=TOKEN,
    metavar="TOKEN",
    help="Token for the server that a command connects to.  [default: from its lock file]",
)
@setting_option(
    "--activation",
    "Load an activation: module:Class, module, or the path of a Python file. Repeatable.",
    metavar="MODULE:CLASS",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Trust substrate.toml and activations.d of this folder for this start.",
)
@setting_option(
    "--only",
    "Offer only these methods or namespaces, for example bash,arbor.tree_*.",
    metavar="PATTERNS",
)
@setting_option(
    "--without", "Switch these methods or namespaces off, for example chat.", metavar="PATTERNS"
)
@setting_option("--bash-sandbox", "Run bash commands in a bubblewrap sandbox.")
@setting_option(
    "--database",
    "Database for trees and chats: a file, or postgresql://...",
    metavar="FILE|URL",
    default="a file in your data folder",
)
@setting_option(
    "--mcp-tools",
    "Tools that MCP lists: standard, all, or patterns such as bash.*.  [default: standard]",
    metavar="TOOLS",
)
@setting_option("--mcp-tool-names", "Separator in MCP tool names. Some hosts reject dots.")
@setting_option("--mcp-progress", "When to send MCP progress: if the client asked, or always.")
@setting_option(
    "--mcp-progress-rate",
    "Maximum MCP progress notifications per second and call; 0 sends one per event.",
    metavar="PER_SECOND",
)
@setting_option(
    "--eof-grace",
    "How long runs may continue after stdin of --stdio closes.",
    name="eof_grace_s",
    metavar="SECONDS",
)
@setting_option(
    "--idle-exit",
    "Stop the server after this time without connections and runs.",
    name="idle_exit_s",
    metavar="SECONDS",
    default="never",
)
@setting_option("--log-level", "Minimum level of log records on stderr.")
@setting_option("--log-format", "Format of log records on stderr.")
@click.pass_context
def cli(ctx: click.Context, /, **_: Any) -> None:
    """Tools that stream. Without a command, this is `substrate serve`.

    `substrate COMMAND --help` explains a command, and `substrate serve --help` all flags of the
    server. Every flag is also a setting: see `substrate config`.
    """
    if ctx.invoked_subcommand != SERVE:  # which adds its flags first
        start(ctx)


def start(ctx: click.Context) -> None:
    """Load the settings of the root command; without a command, serve."""
    flags = setting_flags(ctx)
    stdio, mcp, trust = (bool(ctx.params[name]) for name in ("stdio", "mcp", "trust"))
    ctx.meta[FILES] = files = _project_files(ctx, trust=trust, asks=may_ask(ctx, stdio=stdio))
    try:
        loaded = read_settings(flags, files.settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    program = ctx.find_object(Program)
    if program is not None:
        files = replace(files, activations=program.activations, command=program.command)
    ctx.meta[PROGRAM] = program
    ctx.meta[FILES] = files = _with_origin(files, loaded)
    ctx.meta[LOADED] = loaded
    settings = loaded.settings
    set_up_logging(settings.log_level, settings.log_format)
    for variable in loaded.unknown:
        advice = did_you_mean(variable, map(variable_of, setting_names()))
        announce(f"Unknown environment variable {variable} is ignored{advice}", "WARNING")
    if (skipped := files.skipped) is not None and ctx.invoked_subcommand not in REPORTS:
        about = "; ".join(skipped.details)
        announce(
            f"{skipped.message} {skipped.next} ({skipped.folder}: {about})",
            "WARNING",
            code=f"folder_{skipped.code}",
        )
    ctx.obj = settings
    if ctx.invoked_subcommand is not None and sys.stdout is None:
        discard_output()
    if ctx.invoked_subcommand is not None and not ctx.meta.get(SERVES):
        if (stdio or mcp) and ctx.invoked_subcommand != "dev":
            flag = "--stdio" if stdio else "--mcp"
            raise click.UsageError(f"{flag} serves, so it belongs to `substrate serve` or `dev`.")
        return
    if flags["watch"] and not stdio:
        raise click.UsageError("--watch requires --stdio. An HTTP server always shows its runs.")
    if flags["ide"] and stdio:
        raise click.UsageError("--ide needs a server: start it with `substrate --ide`.")
    if flags["run_in"] and not stdio:
        raise click.UsageError("--background requires --stdio. An HTTP server keeps its own runs.")

    def serve_here() -> None:
        serve = server_entry(ctx, stdio=stdio, mcp=mcp)
        exempt_start()
        serve(settings, files)

    if stdio and settings.run_in == "server":
        serve_front: Callable[..., None] = resolve(SERVE_FRONT)
        serve_front(settings, files, "mcp" if mcp else "native", serve_here)
    else:
        serve_here()


def server_entry(ctx: click.Context, *, stdio: bool, mcp: bool) -> Callable[..., None]:
    """Return the function that serves over the selected transport. Raises UsageError."""
    if mcp and not stdio:
        raise click.UsageError("--mcp requires --stdio. Over HTTP, MCP is always at /mcp.", ctx)
    entry = "substrate.server.serve:serve_http"
    if stdio:
        entry = "substrate.stdio:serve_mcp_stdio" if mcp else "substrate.stdio:serve_stdio"
    serve: Callable[..., None] = resolve(entry)
    return serve


# --- the project folder -----------------------------------------------------------------------


def files_of(ctx: click.Context) -> ProjectFiles:
    """Return what may be loaded from the project folder.

    Shell completion does not invoke the root command, so it decides here, without a question.
    """
    if FILES not in ctx.meta:
        trust = bool(ctx.find_root().params.get("trust"))
        files = _project_files(ctx, trust=trust, asks=False)
        ctx.meta[FILES] = _with_origin(files, read_settings(setting_flags(ctx), files.settings))
    files_found: ProjectFiles = ctx.meta[FILES]
    return files_found


def loaded_of(ctx: click.Context) -> Loaded:
    """Return the settings with their origins."""
    if LOADED not in ctx.meta:
        ctx.meta[LOADED] = read_settings(setting_flags(ctx), files_of(ctx).settings)
    loaded: Loaded = ctx.meta[LOADED]
    return loaded


def _project_files(ctx: click.Context, *, trust: bool, asks: bool) -> ProjectFiles:
    if ctx.invoked_subcommand in IGNORES_FOLDER:
        return ProjectFiles()
    project = Path.cwd()
    # A folder without such files costs no import, no file access and no question. With --trust,
    # files that appear later are trusted too.
    if not trust and not files_to_trust(project):
        return ProjectFiles()
    files_at_start: Callable[..., ProjectFiles] = resolve(TRUST_REVIEW)
    return files_at_start(project, once=trust, may_ask=asks)


def may_ask(ctx: click.Context, *, stdio: bool) -> bool:
    """Return whether this start may ask the user a question.

    A protocol on stdio, a report and a help text must not be interrupted.
    """
    command, rest = ctx.invoked_subcommand, ctx.meta.get(REST, [])
    on_stdio = stdio or (command == "dev" and "--stdio" in rest)
    return not on_stdio and command not in REPORTS and rest[:1] not in (["-h"], ["--help"])


def _with_origin(files: ProjectFiles, loaded: Loaded) -> ProjectFiles:
    named = loaded.origins.get("activation") == FILE
    return replace(files, names_activations=named) if named else files


# --- settings ---------------------------------------------------------------------------------


def settings_of(ctx: click.Context) -> Settings:
    """Return the settings of the root command, which shell completion does not invoke."""
    settings = ctx.find_object(Settings)
    return settings or loaded_of(ctx).settings


def setting_flags(ctx: click.Context) -> dict[str, Any]:
    """Return the values of the root flags that set a setting: those with the name of one."""
    return {
        name: value
        for name, value in ctx.find_root().params.items()
        if name in Settings.__struct_fields__
    }


def discard_output() -> None:
    """Let stdout refer to /dev/null: it is closed, or nothing more can be written to it."""
    open_missing_descriptors()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)


def main() -> None:
    """Run the command line."""
    cli(prog_name="substrate")
