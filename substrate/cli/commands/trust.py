"""`substrate trust`: trust the code and settings of a folder."""

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
from substrate.settings import ACTIVATIONS_FOLDER, FILE, files_to_trust

__all__ = ("trust",)


@click.command(short_help="Trust the code and settings of a folder.")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--always", is_flag=True, help="Also trust all future changes. For folders that you write."
)
@click.option("--list", "lists", is_flag=True, help="List the trusted folders.")
@click.option("--revoke", is_flag=True, help="Stop trusting the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as lines of JSON.")
def trust(*, folder: Path | None, always: bool, lists: bool, revoke: bool, as_json: bool) -> None:
    """Trust the current version of substrate.toml and activations.d in FOLDER, or in this folder.

    The files run with your permissions: read them, and the printed summary, before you rely on
    them. If any of them changes, none is loaded until you trust the folder again. Subfolders are
    not covered.
    """
    if always + lists + revoke > 1:
        raise click.UsageError("--always, --list and --revoke cannot be used together.")
    if lists and folder is not None:
        raise click.UsageError("--list lists every folder. Omit FOLDER.")
    target = real_folder(folder or Path.cwd())
    try:
        if lists:
            _list(as_json=as_json)
        elif revoke:
            _revoke(target, as_json=as_json)
        elif not target.is_dir():
            raise click.UsageError(f"{folder} is not a folder.")
        elif always:
            _trust_always(target, as_json=as_json)
        else:
            _trust_now(target, as_json=as_json)
    except RecordError as error:
        raise click.ClickException(escape_controls(str(error))) from error


def _trust_now(folder: Path, *, as_json: bool) -> None:
    shown = escape_controls(str(folder))
    if not files_to_trust(folder):
        if as_json:
            print_json_line({"folder": str(folder), "trusted": False, "files": []})
            return
        click.echo(
            f"{shown} has no {FILE} and no {ACTIVATIONS_FOLDER}, so there is nothing to "
            "trust. If you are going to create them, use --always."
        )
        return
    try:
        contents = read_contents(folder)
    except Unreadable as error:
        raise click.ClickException(
            f"{escape_controls(str(error))}. Nothing was trusted. Remove the file or shorten it."
        ) from error
    for line in () if as_json else format_contents(contents):
        click.echo(line)
    if (reason := unsafe_reason(folder)) is not None:
        click.echo(f"Note: {escape_controls(reason)}. Changed files will not be loaded.", err=True)
    digests = contents.digests()
    write_record(folder, digests, contents.replaces())
    if as_json:
        print_json_line(
            {"folder": str(folder), "trusted": True, "always": False, "files": sorted(digests)}
        )
        return
    click.echo(f"Trusted the current version of these files in {shown}.")


def _trust_always(folder: Path, *, as_json: bool) -> None:
    if (reason := unsafe_reason(folder)) is not None:
        raise click.ClickException(
            f"{escape_controls(reason)}, so this folder cannot be trusted always. Restrict it to "
            "your user, or omit --always to trust the current version of the files."
        )
    write_record(folder, None)
    if as_json:
        print_json_line({"folder": str(folder), "trusted": True, "always": True})
        return
    click.echo(
        f"Trusted {escape_controls(str(folder))} always: its {FILE} and "
        f"{ACTIVATIONS_FOLDER} are loaded, including future changes. "
        "`substrate trust --revoke` undoes this."
    )


def _revoke(folder: Path, *, as_json: bool) -> None:
    shown = escape_controls(str(folder))
    if not remove_record(folder):
        raise click.ClickException(
            f"{shown} is not trusted. `substrate trust --list` lists the trusted folders."
        )
    if as_json:
        print_json_line({"folder": str(folder), "trusted": False})
        return
    click.echo(f"{shown} is no longer trusted. A running server keeps what it has loaded.")


def _list(*, as_json: bool) -> None:
    records, errors = list_records()
    for record in records:
        if as_json:
            print_json_line(_fields(record))
        else:
            click.echo(_line(record))
    for error in errors:
        click.echo(f"Warning: {escape_controls(error)}", err=True)
    if not records and not as_json:
        click.echo("No trusted folders. `substrate trust` trusts the current folder.", err=True)


def _fields(record: Record) -> dict[str, object]:
    return {
        "folder": record.folder,
        "always": record.always,
        "files": sorted(record.files),
        "since_ms": int(record.since_s * 1000),
        "exists": Path(record.folder).is_dir(),
    }


def _line(record: Record) -> str:
    how = "always" if record.always else f"{len(record.files)} files at their trusted version"
    since = datetime.fromtimestamp(record.since_s).astimezone().strftime("%Y-%m-%d %H:%M")
    gone = "" if Path(record.folder).is_dir() else "  (missing)"
    return f"{escape_controls(record.folder)}  {how}  since {since}{gone}"
