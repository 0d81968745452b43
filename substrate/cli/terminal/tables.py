"""Output in rows: JSON lines, aligned columns and tables, and runs as readable text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from plexus.rpc import wire

if TYPE_CHECKING:  # rich is imported when there is a terminal to print on
    from rich.table import Table

__all__ = (
    "ACTIVE_STATES",
    "COLOURS",
    "format_duration",
    "format_run",
    "is_work",
    "new_table",
    "print_columns",
    "print_json_line",
    "print_runs",
    "state_label",
)

Run = Mapping[str, Any]

#: The states of a run that has not ended.
ACTIVE_STATES: Final = ("running", "asking", "cancelling")
#: Methods that do work or wait for a person, although their namespaces control other runs.
WORK: Final = ("plexus.call", "approvals.permit")
COLOURS: Final = {
    "running": "cyan",
    "asking": "yellow",
    "cancelling": "yellow",
    "complete": "green",
    "error": "red",
    "failed": "red",
    "cancelled": "yellow",
}


def is_work(run: Run) -> bool:
    """Return whether a run does its own work.

    Methods of `plexus` and `approvals` inspect or control other runs; listing runs creates one.
    """
    method = str(run["method"])
    return not method.startswith(("plexus.", "approvals.")) or method in WORK


def state_label(run: Run) -> str:
    """Return the state of a run, or "failed": a command with a non-zero exit code is complete."""
    if run["state"] == "complete" and run.get("outcome") == "failed":
        return f"failed ({run['exit_code']})" if "exit_code" in run else "failed"
    return str(run["state"])


def print_runs(runs: Sequence[Run]) -> None:
    """Print a table of runs."""
    from rich.console import Console
    from rich.text import Text

    table = new_table()
    for title in ("Run", "Method", "State", "Started", "Took", "Items", "Parent"):
        right = title in ("Took", "Items")
        table.add_column(title, no_wrap=True, justify="right" if right else "left")
    now_ms = time.time() * 1000
    for run in runs:
        state = state_label(run)
        age_ms = max(now_ms - run["started_ms"], 0)
        table.add_row(
            str(run["run"]),
            Text(str(run["method"]), style="bold"),
            Text(state, style=COLOURS.get(state.partition(" ")[0], "")),
            f"{format_duration(age_ms)} ago",
            format_duration(run.get("duration_ms", age_ms)),
            str(run["last_seq"]),
            str(run.get("parent", "")),
        )
    Console().print(table)


def format_run(run: Run) -> str:
    """Format the state of a run as one line."""
    at = time.strftime("%H:%M:%S")
    line = f"{at}  {run['run']:<16}  {state_label(run):<10}  {run['method']}"
    if "duration_ms" in run:
        line += f"  {format_duration(run['duration_ms'])}, {run['last_seq']} items"
    if "parent" in run:
        line += f"  (parent {run['parent']})"
    return line


def format_duration(ms: float) -> str:
    """Format a duration in a short form."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def new_table() -> Table:
    """Return an empty table without borders."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns. The last column is not padded."""
    *widths, _ = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *first, last in rows:
        cells = [cell.ljust(width) for cell, width in zip(first, widths, strict=True)]
        click.echo("  ".join([*cells, last]).rstrip())


def print_json_line(value: Any, file: IO[str] | None = None) -> None:
    """Print a value as one line of JSON, to stdout if there is no file."""
    click.echo(wire.encode(value).decode(), file)
