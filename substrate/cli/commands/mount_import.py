"""`substrate mount import`: take over the servers that MCP hosts have configured.

What would be taken is shown first. With `--replace`, the host's file then has one entry, which
starts this program, and its former content is kept next to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from activations.gateway.mount_file import SECTION
from plexus.text import escape_controls
from substrate.cli.main import settings_of
from substrate.cli.mcp_hosts import toml_text
from substrate.cli.mcp_hosts.config_file import ConfigFile, FileChanged
from substrate.cli.mcp_hosts.hosts import HOSTS, NotEditable, own_command
from substrate.cli.mcp_hosts.imported_entries import Found, Source, read_source, sources
from substrate.cli.mount_document import MountDocument, mount_path
from substrate.cli.terminal.display import coloured, stdin_is_terminal
from substrate.cli.terminal.tables import print_json_line
from substrate.settings import FILE

__all__ = ("import_mounts",)

#: The name of our entry in a host's file.
OWN_NAME = "substrate"


@click.command("import", short_help="Mount the servers of your MCP hosts.")
@click.argument("hosts", nargs=-1, type=click.Choice(list(HOSTS)), metavar="[HOST]...")
@click.option(
    "--to",
    "to",
    type=click.Choice(["user", "project"]),
    help=f"Write to your own file, or to {FILE} of this folder.  [default: as in the host]",
)
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="NAME",
    help="Import only the entry with this name. Repeatable.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the imported entries of the host's file by one for Substrate. Keeps a backup.",
)
@click.option("-y", "--yes", is_flag=True, help="Import without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be imported, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a line of JSON.")
@click.pass_context
def import_mounts(ctx: click.Context, /, hosts: tuple[str, ...], **options: Any) -> None:
    """Mount the servers that HOST has configured, by default those of all hosts.

    HOST is claude-code, claude-desktop, codex, vscode or gemini. Secrets stay where they are: a
    mount refers to a variable instead.
    """
    settings = settings_of(ctx)
    documents: dict[Path, MountDocument] = {}
    found: list[Found] = []
    for source in sources(hosts):
        path = mount_path(settings, options["to"] or _scope_of(source))
        document = documents.setdefault(path, MountDocument(path))
        found += _take(source, document, options["only"])
    taken = [each for each in found if not each.skipped]
    for each in found:
        _print(each, as_json=options["as_json"])
    if not taken and not options["replace"]:
        click.echo("There is nothing to mount.", err=True)
        return
    if options["dry_run"] or not _confirmed(options, len(taken)):
        return
    for document in documents.values():
        if document.text != (document.file.former or b"").decode():
            document.save()
            _echo(options, f"Wrote {document.path}.")
    if options["replace"]:
        for source in dict.fromkeys(each.source for each in found):
            _replace(source, [each for each in found if each.source == source], options)
    if any(document.path.name == FILE for document in documents.values()) and taken:
        _echo(options, f"If {FILE} has changed, review it with `substrate trust`.")
    _echo(options, "List their tools with `substrate mount refresh`.")


def _scope_of(source: Source) -> str:
    return "project" if source.scope == "project" else "user"


def _take(source: Source, document: MountDocument, only: tuple[str, ...]) -> list[Found]:
    """Add the entries of a section to the text of a file, unsaved."""
    try:
        found = read_source(source, document.tables)
    except (NotEditable, OSError) as error:
        click.echo(f"Note: {source.path} cannot be read: {error}.", err=True)
        return []
    chosen = [each for each in found if not only or each.entry in only]
    for each in chosen:
        if not each.skipped:
            document.put(each.name, each.table)
    return chosen


def _print(each: Found, *, as_json: bool) -> None:
    where = f"{each.source.title} ({each.source.path})"
    if as_json:
        fields = {"entry": each.entry, "source": where, "skipped": each.skipped or None}
        taken = {"name": each.name, "mount": each.table, "variables": sorted(each.secrets)}
        print_json_line(fields | ({} if each.skipped else taken))
        return
    name = escape_controls(each.entry)
    if each.skipped:
        click.echo(f"skip {name} of {where}: {escape_controls(each.skipped)}.")
        return
    click.echo(f"take {name} of {where}:")
    for line in toml_text.snippet(SECTION, each.name, each.table).splitlines():
        click.echo(coloured(f"  {escape_controls(line)}", "green"))
    for note in each.notes:
        click.echo(f"  Note: {note}.")


def _confirmed(options: dict[str, Any], count: int) -> bool:
    if options["yes"]:
        return True
    if options["as_json"] or not stdin_is_terminal():
        raise click.ClickException("Nothing was changed. Run it again with --yes.")
    return click.confirm(f"Mount {count} servers?")


def _echo(options: dict[str, Any], text: str) -> None:
    if not options["as_json"]:
        click.echo(text)


def _replace(source: Source, found: list[Found], options: dict[str, Any]) -> None:
    """Leave our own entry and those that were skipped in a section of a host's file.

    The secrets of the taken entries move into the environment of our entry.
    """
    taken = {each.entry for each in found if not each.skipped or "mounted already" in each.skipped}
    if not taken:
        return
    try:
        file = ConfigFile(source.path)
        text = file.text()
        servers: Any = source.row.syntax.read(text)
        for key in source.section:
            servers = servers[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{source.path} was not changed: {error}.") from error
    command = own_command(shared=source.scope == "project")
    own = servers.get(OWN_NAME)
    entry = dict(own) if isinstance(own, dict) else source.row.entry(command, [])
    secrets = {name: value for each in found for name, value in each.secrets.items()}
    if secrets:
        former = entry.get("env")
        entry["env"] = (former if isinstance(former, dict) else {}) | secrets
    kept = {name: each for name, each in servers.items() if name not in taken}
    changed = _replaced_text(source, text, servers, kept | {OWN_NAME: entry})
    for line in [] if options["as_json"] else file.diff(changed):
        # The values of variables are secrets.
        click.echo(
            line if not any(value in line for value in secrets.values()) else line[:1] + " ..."
        )
    try:
        file.replace(changed)
    except FileChanged:
        raise click.ClickException(
            f"{source.path} was changed by another program in the meantime and was not replaced."
        ) from None
    except OSError as error:
        raise click.ClickException(f"Cannot write {source.path}: {error.strerror}.") from error
    _echo(options, f"Wrote {source.path}. Saved the previous version as {file.backup}.")
    _echo(options, source.row.next_step)


def _replaced_text(
    source: Source, text: str, servers: dict[str, Any], wanted: dict[str, Any]
) -> str:
    """Return the text of a host's file with these servers. Raises ClickException."""
    syntax = source.row.syntax
    if syntax is toml_text:
        changed = text
        for name in servers:
            if name not in wanted:
                changed = toml_text.remove(changed, (*source.section, name))
        if servers.get(OWN_NAME) != wanted[OWN_NAME]:
            changed = toml_text.remove(changed, (*source.section, OWN_NAME))
            changed = toml_text.put(changed, (*source.section, OWN_NAME), wanted[OWN_NAME])
    else:
        changed = syntax.put(text, source.section, wanted)
    again: Any = syntax.read(changed)
    for key in source.section:
        again = again.get(key)
    if again != wanted:
        raise click.ClickException(
            f"{source.path} is written in a form that cannot be edited safely. It was not changed."
        )
    return str(changed)
