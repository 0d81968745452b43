"""`substrate config`: show settings and limits with values, origins and explanations."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from substrate.cli.main import files_of, loaded_of, settings_of
from substrate.cli.schema_options import format_value
from substrate.cli.terminal.tables import new_table, print_columns, print_json_line
from substrate.server.limits import ServerLimits
from substrate.settings import FILE, Loaded, Settings, allowed, setting_names

__all__ = ("config", "field_comments", "limit_rows")

#: Separates the reason for a limit from the consequence of exceeding it.
PAST = "Past it: "


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A setting."""

    setting: str
    value: Any
    origin: str
    allowed: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit."""

    limit: str
    value: Any
    unit: str
    reason: str
    past: str

    @property
    def amount(self) -> str:
        return f"{format_value(self.value)} {self.unit}".strip()


@click.group(short_help="Show settings and limits.", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print each setting as a line of JSON.")
@click.pass_context
def config(ctx: click.Context, *, as_json: bool) -> None:
    """Show every setting with its value, origin and meaning.

    Flags take precedence over SUBSTRATE_* variables, and those over substrate.toml in this folder.
    Set a limit with the variable SUBSTRATE_LIMITS__NAME, or under [limits] in the file.
    """
    if ctx.invoked_subcommand is not None:
        return
    rows = _rows(loaded_of(ctx), ctx)
    if as_json:
        for row in rows:
            print_json_line(row)
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        _print_plain(rows)
    if (skipped := files_of(ctx).skipped) is not None:
        click.echo(f"{skipped.message} {skipped.next}", err=True)


@config.command(short_help="Show limits, their reasons and what happens when exceeded.")
@click.option("--json", "as_json", is_flag=True, help="Print each limit as a line of JSON.")
@click.pass_context
def limits(ctx: click.Context, *, as_json: bool) -> None:
    """Show every limit with its value, its reason, and what happens when it is exceeded.

    Set a limit with the variable SUBSTRATE_LIMITS__NAME, or under [limits] in substrate.toml.
    """
    rows = limit_rows(settings_of(ctx).limits)
    if as_json:
        for row in rows:
            print_json_line(row)
    elif sys.stdout.isatty():
        _print_limit_table(rows)
    else:
        _print_limits_plain(rows)


def limit_rows(in_force: ServerLimits) -> list[LimitRow]:
    """Return all limits in declaration order."""
    rows = []
    for name, text in field_comments(ServerLimits).items():
        reason, _, past = text.partition(PAST)
        rows.append(LimitRow(name, getattr(in_force, name), unit_of(name), reason.strip(), past))
    return rows


def unit_of(name: str) -> str:
    """Return the unit of a limit, derived from the suffix of its name."""
    if name.endswith("_per_s"):
        return "a second"
    if name.endswith("_s"):
        return "s"
    return "bytes" if name.endswith("_bytes") else ""


def _rows(loaded: Loaded, ctx: click.Context) -> list[Row]:
    flags = {
        option.name: option.opts[0] for option in ctx.find_root().command.params if option.name
    }
    comments = {
        **field_comments(Settings),
        **{
            f"limits.{name}": text.replace(PAST, "When exceeded: ")
            for name, text in field_comments(ServerLimits).items()
        },
    }
    rows = []
    for name in setting_names():
        value: Any = loaded.settings
        for part in name.split("."):
            value = getattr(value, part)
        origin = loaded.origins.get(name, "default")
        if origin == "flag":
            origin = flags.get(name, origin)
        rows.append(Row(name, value, origin, allowed(name), comments.get(name, "")))
    return rows


def field_comments(cls: type) -> dict[str, str]:
    """Return the `#:` comment above each field of a structure, read from the source.

    Fields of a base class come first. A field without a comment shares the comment of the field
    above. Without source code the result is empty.
    """
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner is msgspec.Struct or not issubclass(owner, msgspec.Struct):
            continue
        try:
            found |= _comments(inspect.getsource(owner))
        except (OSError, TypeError):
            continue
    return found


def _comments(source: str) -> dict[str, str]:
    """Return the comment above each field in the source of a structure."""
    found: dict[str, str] = {}
    comment: list[str] = []
    fresh = True
    for line in source.splitlines():
        if remark := re.fullmatch(r"\s+#: ?(.*)", line):
            comment = [remark[1]] if fresh else [*comment, remark[1]]
            fresh = False
        elif field := re.match(r"    (\w+): ", line):
            found[field[1]] = " ".join(comment)
            fresh = True
    return found


def _print_plain(rows: Sequence[Row]) -> None:
    print_columns([(row.setting, format_value(row.value), row.origin, row.meaning) for row in rows])


def _print_limits_plain(rows: Sequence[LimitRow]) -> None:
    print_columns(
        [(row.limit, row.amount, f"{row.reason} When exceeded: {row.past}") for row in rows]
    )


def _print_limit_table(rows: Sequence[LimitRow]) -> None:
    from rich.console import Console
    from rich.text import Text

    table = new_table()
    table.add_column("Limit", style="green", no_wrap=True)
    table.add_column("Value", no_wrap=True)
    table.add_column("Reason")
    table.add_column("When exceeded")
    for row in rows:
        table.add_row(row.limit, row.amount, Text(row.reason), Text(row.past))
    Console().print(table)


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.text import Text

    table = new_table()
    table.add_column("Setting", style="green", no_wrap=True)
    table.add_column("Value", no_wrap=True, overflow="ellipsis")
    table.add_column("From", no_wrap=True)
    table.add_column("Meaning")
    for row in rows:
        changed = row.origin != "default"
        limit = row.setting.startswith("limits.")  # every limit is a number above zero
        table.add_row(
            Text(row.setting),
            Text(format_value(row.value), style="bold yellow" if changed else ""),
            Text(row.origin, style="yellow" if changed else "dim"),
            Text.assemble(row.meaning, ("" if limit else f" ({row.allowed})", "dim")),
        )
    console = Console()
    console.print(table)
    if not any(row.origin == FILE for row in rows):
        console.print(Text(f"\nNo {FILE} in {Path.cwd()}, or it sets nothing.", style="dim"))
