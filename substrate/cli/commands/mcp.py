"""`substrate mcp`: tell an MCP host about this server.

Nothing of a host's is changed before it was shown and agreed to, and what cannot be changed
safely is not changed: then the person gets what to paste.
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

from plexus.rpc import wire
from substrate.cli.mcp_hosts.config_file import ChangedMeanwhile, ConfigFile
from substrate.cli.mcp_hosts.hosts import (
    HOSTS,
    Entry,
    Host,
    Refused,
    add_entry,
    find_entry,
    merged,
    own_command,
)
from substrate.cli.terminal.display import coloured, stdin_is_terminal
from substrate.security.folder_trust.decision import ask, can_prompt, decide
from substrate.settings import files_to_trust

__all__ = ("mcp",)

#: How long a host's own command may take. It starts a runtime and rewrites a file.
COMMAND_S = 60.0
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclasses.dataclass(frozen=True, slots=True)
class Consent:
    """Whether a change that was shown may be made."""

    yes: bool
    dry_run: bool

    def given(self, question: str) -> bool:
        """Ask, if nothing else decides; ends the command if the answer is no."""
        if self.dry_run or self.yes:
            return not self.dry_run
        if not stdin_is_terminal():
            raise click.ClickException(
                "Nothing was changed: there is no terminal to ask on. Run it again with --yes."
            )
        if click.confirm(question):
            return True
        click.echo("Nothing was changed.")
        raise click.exceptions.Exit(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Installation:
    """An entry, and where it belongs."""

    host: Host
    path: Path
    name: str
    entry: Entry

    def in_file(self, consent: Consent) -> None:
        """Change the host's file."""
        try:
            file = ConfigFile(self.path)
            changed = add_entry(self.host, _text_of(file), self.name, self.entry)
        except Refused as error:
            self._hand_over(f"{self.path} is left alone: {error}.")
        except OSError as error:
            self._hand_over(f"{self.path} cannot be read: {error.strerror}.")
        if file.former is not None and changed == file.text():
            self._report_identical()
            return
        _show(file, changed)
        if not consent.given(f"Write {self.path}?"):
            return
        try:
            file.replace(changed)
        except ChangedMeanwhile:
            raise click.ClickException(
                f"{self.path} was changed by somebody else in the meantime, and is left as it is. "
                "Run this again."
            ) from None
        except OSError as error:
            self._hand_over(f"{error.filename or self.path} cannot be written: {error.strerror}.")
        click.echo(f"Wrote {self.path}.")
        if file.former is not None:
            click.echo(f"What it was before is in {file.backup}.")
        click.echo(self.host.next_step)

    def by_commands(self, consent: Consent) -> None:
        """Let the host's own commands do it."""
        former = None
        try:
            file = ConfigFile(self.path)
            changed = add_entry(self.host, _text_of(file), self.name, self.entry)
            former = find_entry(self.host, file.text(), self.name)
        except (Refused, OSError):
            pass  # then the host's command has to say what is wrong with the host's file
        wanted = merged(former, self.entry)
        if former is not None:
            if wanted == former:
                self._report_identical()
                return
            _show(file, changed)
        assert self.host.commands is not None
        commands = self.host.commands(self.name, wanted, former)
        click.echo("To be run:")
        for command in commands:
            click.echo(f"  {shlex.join(command)}")
        if not consent.given("Run this?"):
            return
        for number, command in enumerate(commands):
            fault = _run(command)
            if fault is not None:
                lost = f"\nThe former entry was: {wire.encode(former).decode()}" if number else ""
                self._hand_over(f"{shlex.join(command)} {fault}{lost}")
        click.echo(f"{self.host.title} has {self.name} now.")
        click.echo(self.host.next_step)

    def _report_identical(self) -> None:
        click.echo(f"{self.path} has {self.name} already, just like this: nothing to do.")

    def _hand_over(self, reason: str) -> NoReturn:
        """Leave it to the person, with all that is needed."""
        click.echo(f"Error: {reason}\nTo do it yourself, put this into {self.path}:", err=True)
        click.echo(self.host.snippet(self.name, self.entry), nl=False)
        raise click.exceptions.Exit(1)


# --- the command line ------------------------------------------------------------------------


def _checked_name(_: click.Context, __: click.Parameter, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise click.BadParameter("a name is made of letters, digits, '-' and '_'.")
    return name


def _checked_flags(
    ctx: click.Context, _: click.Parameter, flags: tuple[str, ...]
) -> tuple[str, ...]:
    """Flags that the server would refuse are refused now: inside a host nobody sees why."""
    root = ctx.find_root()
    for option in root.command.params:
        source = root.get_parameter_source(option.name or "")
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"Flags for the server go to the end: {ctx.command_path} ... -- {option.opts[0]}",
                ctx,
            )
    click.Command("substrate", params=root.command.params).make_context("substrate", list(flags))
    return flags


def entry_parameters() -> list[click.Parameter]:
    """What describes an entry."""
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
            help="What the host calls this server.",
        ),
        click.Option(
            ["--scope"],
            type=click.Choice(["user", "project"]),
            help="For you everywhere, or for everybody who works in this folder.  "
            "[default: user; for vscode project]",
        ),
    ]


@click.group(short_help="Add this server to an MCP host.")
def mcp() -> None:
    """Add this server to an MCP host, such as Claude Code or VS Code."""


@mcp.command(
    short_help="Write the entry into a host's configuration.",
    params=[
        *entry_parameters(),
        click.Option(["-y", "--yes"], is_flag=True, help="Do not ask."),
        click.Option(["--dry-run"], is_flag=True, help="Show what would be changed, and stop."),
    ],
)
def install(
    *, host: str, flags: tuple[str, ...], name: str, scope: str | None, yes: bool, dry_run: bool
) -> None:
    """Add this server to HOST: show what would be changed, ask, and change it.

    HOST is claude-code, claude-desktop, codex, vscode or gemini. Flags for the server go to the
    end, behind two dashes:

    \b
        substrate mcp install claude-code -- --activation my.module:Class
    """
    row, scope = HOSTS[host], _scope_of(host, scope)
    installation = _installation(host, scope, name, flags)
    consent = Consent(yes, dry_run)
    if scope == "user" and row.program and shutil.which(row.program):
        installation.by_commands(consent)
    else:
        installation.in_file(consent)
    if "--trust" not in flags:
        _offer_trust(asks=not (yes or dry_run))


@mcp.command(short_help="Print the entry, to be pasted.", params=entry_parameters())
def show(*, host: str, flags: tuple[str, ...], name: str, scope: str | None) -> None:
    """Print what HOST has to be told, for you to paste.

    HOST is claude-code, claude-desktop, codex, vscode or gemini. Flags for the server go to the
    end, behind two dashes:

    \b
        substrate mcp show claude-code -- --activation my.module:Class
    """
    installation = _installation(host, _scope_of(host, scope), name, flags)
    click.echo(installation.host.snippet(name, installation.entry), nl=False)


def _offer_trust(*, asks: bool) -> None:
    """Ask whether to trust the current folder, if a server that a host starts in it would skip its
    files; without a terminal, and with --yes, only say how."""
    here = Path.cwd()
    if not files_to_trust(here):
        return
    skipped = decide(here, ask=ask if asks and can_prompt() else None, warn=click.echo).skipped
    if skipped is not None:
        click.echo(
            f"Note: in this folder the server starts without some of its files. {skipped.message} "
            f"{skipped.next}",
            err=True,
        )


def _scope_of(host: str, scope: str | None) -> str:
    scopes = list(HOSTS[host].files)
    if scope is not None and scope not in scopes:
        raise click.UsageError(f"{host} has no {scope} scope: leave --scope out.")
    return scope or scopes[0]


def _installation(host: str, scope: str, name: str, flags: tuple[str, ...]) -> Installation:
    row = HOSTS[host]
    shared = scope == "project"
    entry = row.entry(own_command(shared=shared), flags)
    if shared and Path(entry["command"]).is_absolute():
        message = (
            f"Note: this substrate is not on PATH, so the entry says where it is on this machine, "
            f"{entry['command']}. Others who share the file may have it elsewhere."
        )
        click.echo(coloured(message, "yellow"), err=True)
    return Installation(row, row.files[scope](), name, entry)


# --- what it stands on -----------------------------------------------------------------------


def _text_of(file: ConfigFile) -> str:
    try:
        return file.text()
    except UnicodeDecodeError as error:
        raise Refused("it is not UTF-8") from error


def _show(file: ConfigFile, changed: str) -> None:
    if file.target != file.path.absolute():
        click.echo(f"{file.path} leads to {file.target}.")
    for line in file.diff(changed):
        click.echo(coloured(line, COLOURS.get(line[:1])))


def _run(command: list[str]) -> str | None:
    """Run a host's command to its end; what went wrong, if anything did."""
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
        return f"has not ended within {COMMAND_S:g} seconds."
    except OSError as error:
        return f"could not be started: {error.strerror}."
    if ended.returncode == 0:
        return None
    output = ended.stdout.decode(errors="replace").strip()
    return f"failed with exit code {ended.returncode}:\n{output}"
