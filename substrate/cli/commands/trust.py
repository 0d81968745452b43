"""`substrate trust`: let a folder's own code and settings be loaded."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from plexus.text import escape_controls
from substrate.cli.terminal.tables import print_json_line
from substrate.security.folder_trust.contents import Unreadable, read_contents
from substrate.security.folder_trust.decision import format_contents, real_folder, unsafe_reason
from substrate.security.folder_trust.records import (
    Record,
    RecordError,
    list_records,
    remove_record,
    write_record,
)
from substrate.settings import FILE, Settings, files_to_trust

__all__ = ("trust",)


@click.command(short_help="Let this folder's code and settings be loaded.")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--always", is_flag=True, help="Whatever it holds, now and later: for its authors.")
@click.option("--list", "lists", is_flag=True, help="List the folders that are trusted.")
@click.option("--revoke", is_flag=True, help="Trust the folder no longer.")
@click.option("--json", "as_json", is_flag=True, help="With --list: a line of JSON for each.")
def trust(*, folder: Path | None, always: bool, lists: bool, revoke: bool, as_json: bool) -> None:
    """Trust FOLDER, or the current one, as it is now: load its substrate.toml and activations.d.

    Read what is printed, and the files, first: they run with your rights. When one of them changes,
    none is loaded until you trust the folder again. Folders inside of it are not covered.
    """
    if always + lists + revoke > 1:
        raise click.UsageError("--always, --list and --revoke exclude each other.")
    if as_json and not lists:
        raise click.UsageError("--json goes with --list.")
    if lists and folder is not None:
        raise click.UsageError("--list shows every folder: leave FOLDER out.")
    target = real_folder(folder or Path.cwd())
    try:
        if lists:
            _list(as_json=as_json)
        elif revoke:
            _revoke(target)
        elif not target.is_dir():
            raise click.UsageError(f"There is no folder {folder}.")
        elif always:
            _trust_always(target)
        else:
            _trust_now(target)
    except RecordError as error:
        raise click.ClickException(escape_controls(str(error))) from error


def _trust_now(folder: Path) -> None:
    shown = escape_controls(str(folder))
    if not files_to_trust(folder):
        click.echo(
            f"{shown} has no {FILE} and no {Settings.activations_folder}: there is nothing to "
            "trust. An author who is about to write them can use --always."
        )
        return
    try:
        contents = read_contents(folder)
    except Unreadable as error:
        raise click.ClickException(
            f"{escape_controls(str(error))}. Nothing was trusted. Remove it, or make it smaller."
        ) from error
    for line in format_contents(contents):
        click.echo(line)
    if (reason := unsafe_reason(folder)) is not None:
        click.echo(
            f"Note: {escape_controls(reason)}. What is changed will not be loaded.", err=True
        )
    write_record(folder, contents.digests(), contents.replaces())
    click.echo(f"{shown} is trusted with these files as they are now.")


def _trust_always(folder: Path) -> None:
    if (reason := unsafe_reason(folder)) is not None:
        raise click.ClickException(
            f"{escape_controls(reason)}, so this folder cannot be trusted always. Make it yours "
            "alone, or leave out --always to trust the files as they are now."
        )
    write_record(folder, None)
    click.echo(
        f"{escape_controls(str(folder))} is trusted always: its {FILE} and "
        f"{Settings.activations_folder} are loaded whatever they hold. "
        "`substrate trust --revoke` ends that."
    )


def _revoke(folder: Path) -> None:
    shown = escape_controls(str(folder))
    if not remove_record(folder):
        raise click.ClickException(
            f"{shown} is not trusted. `substrate trust --list` shows the folders that are."
        )
    click.echo(f"{shown} is no longer trusted. A server that runs keeps what it has loaded.")


def _list(*, as_json: bool) -> None:
    records, faults = list_records()
    for record in records:
        if as_json:
            print_json_line(_fields(record))
        else:
            click.echo(_line(record))
    for fault in faults:
        click.echo(f"Warning: {escape_controls(fault)}", err=True)
    if not records and not as_json:
        click.echo("No folder is trusted. `substrate trust` trusts the current one.", err=True)


def _fields(record: Record) -> dict[str, object]:
    return {
        "folder": record.folder,
        "always": record.always,
        "files": sorted(record.files),
        "since_ms": int(record.since_s * 1000),
        "exists": Path(record.folder).is_dir(),
    }


def _line(record: Record) -> str:
    how = "always" if record.always else f"{len(record.files)} files as they were"
    since = datetime.fromtimestamp(record.since_s).astimezone().strftime("%Y-%m-%d %H:%M")
    gone = "" if Path(record.folder).is_dir() else "  (there is no such folder)"
    return f"{escape_controls(record.folder)}  {how}  since {since}{gone}"
