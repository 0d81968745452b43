"""`substrate mcp`: add this server to an MCP host.

Every change to a host's configuration is shown and confirmed first. If a file cannot be edited
safely, it is left unchanged and the user gets a snippet to paste.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

from plexus.registry.plugins import is_file_name
from plexus.rpc import wire
from substrate.cli.main import program_of
from substrate.cli.mcp_hosts.config_file import ConfigFile, FileChanged
from substrate.cli.mcp_hosts.hosts import (
    HOSTS,
    Entry,
    Host,
    NotEditable,
    add_entry,
    find_entry,
    merge_entry,
    own_command,
)
from substrate.cli.terminal.display import coloured, stdin_is_terminal
from substrate.cli.terminal.tables import print_json_line
from substrate.security.folder_trust.decision import ask, can_prompt, decide
from substrate.settings import files_to_trust

__all__ = ("mcp",)

#: Timeout of a host's own command, which starts a runtime and rewrites a file.
COMMAND_S = 60.0
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclasses.dataclass(frozen=True, slots=True)
class Consent:
    """Whether a displayed change may be applied."""

    yes: bool
    dry_run: bool
    #: Whether only the outcome is printed, as a line of JSON.
    as_json: bool = False

    def confirm(self, question: str) -> bool:
        """Ask the user unless a flag decides. Exits the command if the answer is no."""
        if self.dry_run or self.yes:
            return not self.dry_run
        if self.as_json or not stdin_is_terminal():
            requires = "--json asks nothing" if self.as_json else "confirmation requires a terminal"
            raise click.ClickException(f"Nothing was changed: {requires}. Run it again with --yes.")
        if click.confirm(question):
            return True
        click.echo("Nothing was changed.")
        raise click.exceptions.Exit(1)

    def echo(self, text: str) -> None:
        """Print a line for people."""
        if not self.as_json:
            click.echo(text)


@dataclasses.dataclass(frozen=True, slots=True)
class Installation:
    """An entry and the file it belongs to."""

    host: Host
    path: Path
    name: str
    entry: Entry

    def install_in_file(self, consent: Consent) -> None:
        """Edit the host's file."""
        try:
            file = ConfigFile(self.path)
            changed = add_entry(self.host, _text_of(file), self.name, self.entry)
        except NotEditable as error:
            self._print_snippet(f"{self.path} was not changed: {error}.")
        except OSError as error:
            self._print_snippet(f"Cannot read {self.path}: {error.strerror}.")
        if file.former is not None and changed == file.text():
            self._report_unchanged(consent)
            return
        _show(file, changed, consent)
        if not consent.confirm(f"Write {self.path}?"):
            self._report_outcome(consent, changed=False, would_change=True)
            return
        try:
            file.replace(changed)
        except FileChanged:
            raise click.ClickException(
                f"{self.path} was changed by another program in the meantime. Nothing was written. "
                "Run the command again."
            ) from None
        except OSError as error:
            self._print_snippet(
                f"{error.filename or self.path} cannot be written: {error.strerror}."
            )
        consent.echo(f"Wrote {self.path}.")
        if file.former is not None:
            consent.echo(f"Saved the previous version as {file.backup}.")
        consent.echo(self.host.next_step)
        self._report_outcome(consent, changed=True, would_change=True)

    def install_with_commands(self, consent: Consent) -> None:
        """Use the host's own commands."""
        former = None
        try:
            file = ConfigFile(self.path)
            changed = add_entry(self.host, _text_of(file), self.name, self.entry)
            former = find_entry(self.host, file.text(), self.name)
        except (NotEditable, OSError):
            pass  # the host's command reports what is wrong with the file
        updated = merge_entry(former, self.entry)
        if former is not None:
            if updated == former:
                self._report_unchanged(consent)
                return
            _show(file, changed, consent)
        assert self.host.commands is not None
        commands = self.host.commands(self.name, updated, former)
        consent.echo("Commands to run:")
        for command in commands:
            consent.echo(f"  {shlex.join(command)}")
        if not consent.confirm("Run them?"):
            self._report_outcome(consent, changed=False, would_change=True)
            return
        for number, command in enumerate(commands):
            error = _run(command)
            if error is not None:
                removed = wire.encode(former).decode()
                lost = f"\nThe previous entry was: {removed}" if number else ""
                self._print_snippet(f"{shlex.join(command)} {error}{lost}")
        consent.echo(f"Added {self.name} to {self.host.title}.")
        consent.echo(self.host.next_step)
        self._report_outcome(consent, changed=True, would_change=True)

    def _report_unchanged(self, consent: Consent) -> None:
        consent.echo(f"{self.path} already contains this entry for {self.name}. Nothing to do.")
        self._report_outcome(consent, changed=False, would_change=False)

    def _report_outcome(self, consent: Consent, *, changed: bool, would_change: bool) -> None:
        """Print the outcome as a line of JSON, if requested. `would_change` is for a dry run."""
        if consent.as_json:
            outcome = {"name": self.name, "file": str(self.path), "entry": self.entry}
            print_json_line(outcome | {"changed": changed, "would_change": would_change})

    def _print_snippet(self, reason: str) -> NoReturn:
        """Print the reason and a snippet to paste, and exit."""
        click.echo(f"Error: {reason}\nTo add it manually, put this into {self.path}:", err=True)
        click.echo(self.host.snippet(self.name, self.entry), nl=False)
        raise click.exceptions.Exit(1)


# --- the command line ------------------------------------------------------------------------


def _checked_name(_: click.Context, __: click.Parameter, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise click.BadParameter("a name consists of letters, digits, '-' and '_'.")
    return name


def _checked_flags(
    ctx: click.Context, _: click.Parameter, flags: tuple[str, ...]
) -> tuple[str, ...]:
    """Reject flags that the server would reject, because a host would hide the error."""
    root = ctx.find_root()
    for option in root.command.params:
        source = root.get_parameter_source(option.name or "")
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"Put flags for the server at the end: {ctx.command_path} ... -- {option.opts[0]}",
                ctx,
            )
    click.Command("substrate", params=root.command.params).make_context("substrate", list(flags))
    return flags


def entry_parameters() -> list[click.Parameter]:
    """Return the parameters that describe an entry."""
    return [
        click.Argument(["host"], type=click.Choice(list(HOSTS)), metavar="HOST"),
        click.Argument(
            ["flags"],
            nargs=-1,
            type=click.UNPROCESSED,
            metavar="[-- FLAGS]",
            callback=_checked_flags,
        ),
        click.Option(
            ["--name"],
            default="substrate",
            show_default=True,
            callback=_checked_name,
            help="Name of this server in the host.",
        ),
        click.Option(
            ["--scope"],
            type=click.Choice(["user", "project"]),
            help="user: for you in every folder. project: for all users of this folder.  "
            "[default: user; project for vscode]",
        ),
        click.Option(
            ["--activation"],
            multiple=True,
            metavar="FILE|MODULE:NAME",
            help="Serve this activation too. The entry contains the full path of a file. "
            "Repeatable.",
        ),
        click.Option(
            ["--background"],
            is_flag=True,
            help="Execute runs in a server of the project, so that they outlive the host.",
        ),
    ]


@click.group(short_help="Add this server to an MCP host.")
def mcp() -> None:
    """Add this server to an MCP host, such as Claude Code or VS Code."""


@mcp.command(
    short_help="Add this server to a host's configuration.",
    params=[
        *entry_parameters(),
        click.Option(["-y", "--yes"], is_flag=True, help="Apply the change without asking."),
        click.Option(["--dry-run"], is_flag=True, help="Show the change without applying it."),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print the outcome as a line of JSON."
        ),
    ],
)
def install(
    *,
    host: str,
    flags: tuple[str, ...],
    name: str,
    scope: str | None,
    activation: tuple[str, ...],
    background: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add this server to HOST. The change is shown first and applied after confirmation.

    HOST is claude-code, claude-desktop, codex, vscode or gemini. Put other flags for the server at
    the end, after two dashes:

    \b
        substrate mcp install claude-code --activation tools.py -- --without bash
    """
    row, scope = HOSTS[host], _scope_of(host, scope)
    flags = (*_entry_flags(activation, background=background), *flags)
    installation = _installation(host, scope, name, flags)
    consent = Consent(yes, dry_run, as_json)
    if scope == "user" and row.program and shutil.which(row.program):
        installation.install_with_commands(consent)
    else:
        installation.install_in_file(consent)
    if "--trust" not in flags:
        _offer_trust(asks=not (yes or dry_run or as_json))


@mcp.command(short_help="Print the entry for a host.", params=entry_parameters())
def show(
    *,
    host: str,
    flags: tuple[str, ...],
    name: str,
    scope: str | None,
    activation: tuple[str, ...],
    background: bool,
) -> None:
    """Print the configuration entry for HOST, to paste it yourself.

    HOST is claude-code, claude-desktop, codex, vscode or gemini. Put other flags for the server at
    the end, after two dashes:

    \b
        substrate mcp show claude-code --activation tools.py -- --without bash
    """
    flags = (*_entry_flags(activation, background=background), *flags)
    installation = _installation(host, _scope_of(host, scope), name, flags)
    click.echo(installation.host.snippet(name, installation.entry), nl=False)


def _offer_trust(*, asks: bool) -> None:
    """Offer to trust the current folder if a server that a host starts there would skip its files.

    Without a terminal, and with --yes, only print how to do it.
    """
    here = Path.cwd()
    if not files_to_trust(here):
        return
    skipped = decide(here, ask=ask if asks and can_prompt() else None, warn=click.echo).skipped
    if skipped is not None:
        click.echo(
            f"Note: in this folder the server starts without some files. {skipped.message} "
            f"{skipped.next}",
            err=True,
        )


def _scope_of(host: str, scope: str | None) -> str:
    scopes = list(HOSTS[host].files)
    if scope is not None and scope not in scopes:
        raise click.UsageError(f"{host} has no {scope} scope. Omit --scope.")
    return scope or scopes[0]


def _entry_flags(names: tuple[str, ...], *, background: bool) -> list[str]:
    """Return the flags that load activations and decide where runs are executed.

    A host starts the server in any folder, so a file is named by its full path. Raises BadParameter
    if the file does not exist.
    """
    flags = ["--background"] if background else []
    for name in names:
        if not name.strip():
            text = f"{name!r} names nothing. Give module:Class, module, or the path of a file."
            raise click.BadParameter(text, param_hint="--activation")
        if is_file_name(name):
            if not Path(name).is_file():
                raise click.BadParameter(f"There is no file {name}.", param_hint="--activation")
            name = str(Path(name).absolute())
        flags += ["--activation", name]
    return flags


def _installation(host: str, scope: str, name: str, flags: tuple[str, ...]) -> Installation:
    row = HOSTS[host]
    shared = scope == "project"
    program = program_of(click.get_current_context())
    command = own_command(shared=shared) if program is None else list(program.command)
    entry = row.entry(command, flags)
    if program is None and shared and Path(entry["command"]).is_absolute():
        message = (
            f"Note: this substrate is not on PATH, so the entry contains its path on this machine, "
            f"{entry['command']}. The path may differ for other users of the file."
        )
        click.echo(coloured(message, "yellow"), err=True)
    return Installation(row, row.files[scope](), name, entry)


# --- files and commands ----------------------------------------------------------------------


def _text_of(file: ConfigFile) -> str:
    try:
        return file.text()
    except UnicodeDecodeError as error:
        raise NotEditable("it is not UTF-8") from error


def _show(file: ConfigFile, changed: str, consent: Consent) -> None:
    if file.target != file.path.absolute():
        consent.echo(f"{file.path} is a link to {file.target}.")
    for line in file.diff(changed):
        consent.echo(coloured(line, COLOURS.get(line[:1])))


def _run(command: list[str]) -> str | None:
    """Run a host's command. Returns an error as a predicate, or None on success."""
    program, *arguments = command
    try:
        ended = subprocess.run(
            [shutil.which(program) or program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {COMMAND_S:g} seconds."
    except OSError as error:
        return f"could not be started: {error.strerror}."
    if ended.returncode == 0:
        return None
    output = ended.stdout.decode(errors="replace").strip()
    return f"failed with exit code {ended.returncode}:\n{output}"
