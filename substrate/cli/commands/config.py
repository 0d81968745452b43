"""`substrate config`: every setting, its value, where that comes from and what it means; and the
limits, each with its reason and with what happens past it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from substrate.cli.main import files_of, loaded_of, settings_of
from substrate.cli.schema_options import as_written
from substrate.cli.terminal.tables import new_table, print_columns, print_json_line
from substrate.server.limits import ServerLimits
from substrate.settings import FILE, Loaded, Settings, allowed, setting_names

__all__ = ("config", "limit_rows", "meanings")

#: What stands between the reason for a limit and what happens past it.
PAST = "Past it: "


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One setting."""

    setting: str
    value: Any
    origin: str
    allowed: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit."""

    limit: str
    value: Any
    unit: str
    reason: str
    past: str

    @property
    def amount(self) -> str:
        return f"{as_written(self.value)} {self.unit}".strip()


@click.group(short_help="Show every setting and where it comes from.", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each setting.")
@click.pass_context
def config(ctx: click.Context, *, as_json: bool) -> None:
    """Show every setting with its value, where it comes from, and what it means.

    Flags win over SUBSTRATE_* variables, which win over substrate.toml in this folder. A limit is
    SUBSTRATE_LIMITS__NAME as a variable and stands under [limits] in the file.
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


@config.command(short_help="Show every limit, its reason, and what happens past it.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each limit.")
@click.pass_context
def limits(ctx: click.Context, *, as_json: bool) -> None:
    """Show every limit with its value, its reason, and what is said past it.

    SUBSTRATE_LIMITS__NAME sets one, and so does its name under [limits] in substrate.toml.
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
    """Every limit, in the order of the table."""
    rows = []
    for name, text in meanings(ServerLimits).items():
        reason, _, past = text.partition(PAST)
        rows.append(LimitRow(name, getattr(in_force, name), unit_of(name), reason.strip(), past))
    return rows


def unit_of(name: str) -> str:
    """What a limit counts, by the end of its name."""
    if name.endswith("_per_s"):
        return "a second"
    if name.endswith("_s"):
        return "s"
    return "bytes" if name.endswith("_bytes") else ""


def _rows(loaded: Loaded, ctx: click.Context) -> list[Row]:
    flags = {
        option.name: option.opts[0] for option in ctx.find_root().command.params if option.name
    }
    explained = {
        **meanings(Settings),
        **{f"limits.{name}": text for name, text in meanings(ServerLimits).items()},
    }
    rows = []
    for name in setting_names():
        value: Any = loaded.settings
        for part in name.split("."):
            value = getattr(value, part)
        origin = loaded.origins.get(name, "default")
        if origin == "flag":
            origin = flags.get(name, origin)
        rows.append(Row(name, value, origin, allowed(name), explained.get(name, "")))
    return rows


def meanings(cls: type) -> dict[str, str]:
    """What each field of a dataclass means: the `#:` comment above it, read from the source.

    The fields of a base class come first. A field without a comment shares that of the field
    above. Without the source nothing is known.
    """
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        try:
            found |= _comments(inspect.getsource(owner))
        except (OSError, TypeError):
            continue
    return found


def _comments(source: str) -> dict[str, str]:
    """The comment above each field in the source of a dataclass."""
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
    print_columns([(row.setting, as_written(row.value), row.origin, row.meaning) for row in rows])


def _print_limits_plain(rows: Sequence[LimitRow]) -> None:
    print_columns([(row.limit, row.amount, f"{row.reason} {PAST}{row.past}") for row in rows])


def _print_limit_table(rows: Sequence[LimitRow]) -> None:
    from rich.console import Console
    from rich.text import Text

    table = new_table()
    table.add_column("Limit", style="green", no_wrap=True)
    table.add_column("Value", no_wrap=True)
    table.add_column("Why")
    table.add_column("Past it")
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
        limit = row.setting.startswith("limits.")  # they are all alike: numbers above zero
        table.add_row(
            Text(row.setting),
            Text(as_written(row.value), style="bold yellow" if changed else ""),
            Text(row.origin, style="yellow" if changed else "dim"),
            Text.assemble(row.meaning, ("" if limit else f" ({row.allowed})", "dim")),
        )
    console = Console()
    console.print(table)
    if not any(row.origin == FILE for row in rows):
        console.print(
            Text(f"\nThere is no {FILE} in {Path.cwd()}, or it sets nothing.", style="dim")
        )
