"""Output in rows: lines of JSON, columns, tables; and runs as a person reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from plexus.rpc import wire

if TYPE_CHECKING:  # rich is imported when there is a terminal to print on
    from rich.table import Table

__all__ = (
    "COLOURS",
    "UNDER_WAY",
    "duration",
    "is_work",
    "new_table",
    "print_columns",
    "print_json_line",
    "print_runs",
    "result_of_run",
    "run_in_line",
)

Run = Mapping[str, Any]

#: The states of a run that has not ended.
UNDER_WAY: Final = ("running", "asking", "cancelling")
#: What does some work, or waits for somebody, though its namespace is about other runs.
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
    """Whether it does something of its own. Those of `plexus` and `approvals` look at other runs or
    steer them: whoever lists runs makes one."""
    method = str(run["method"])
    return not method.startswith(("plexus.", "approvals.")) or method in WORK


def result_of_run(run: Run) -> str:
    """Return the state of a run, or that its work failed: a command that ran and failed is one
    that is complete."""
    if run["state"] == "complete" and run.get("outcome") == "failed":
        return f"failed ({run['exit_code']})" if "exit_code" in run else "failed"
    return str(run["state"])


def print_runs(runs: Sequence[Run]) -> None:
    """Print a table on the terminal."""
    from rich.console import Console
    from rich.text import Text

    table = new_table()
    for title in ("Run", "Method", "State", "Started", "Took", "Items", "Begun by"):
        right = title in ("Took", "Items")
        table.add_column(title, no_wrap=True, justify="right" if right else "left")
    now_ms = time.time() * 1000
    for run in runs:
        state = result_of_run(run)
        age_ms = max(now_ms - run["started_ms"], 0)
        table.add_row(
            str(run["run"]),
            Text(str(run["method"]), style="bold"),
            Text(state, style=COLOURS.get(state.partition(" ")[0], "")),
            f"{duration(age_ms)} ago",
            duration(run.get("duration_ms", age_ms)),
            str(run["last_seq"]),
            str(run.get("parent", "")),
        )
    Console().print(table)


def run_in_line(run: Run) -> str:
    """What has become of a run, in one line."""
    at = time.strftime("%H:%M:%S")
    line = f"{at}  {run['run']:<16}  {result_of_run(run):<10}  {run['method']}"
    if "duration_ms" in run:
        line += f"  {duration(run['duration_ms'])}, {run['last_seq']} items"
    if "parent" in run:
        line += f"  (begun by {run['parent']})"
    return line


def duration(ms: float) -> str:
    """How long something took, short."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def new_table() -> Table:
    """An empty table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns, of which the last is as wide as it is."""
    *widths, _ = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *first, last in rows:
        cells = [cell.ljust(width) for cell, width in zip(first, widths, strict=True)]
        click.echo("  ".join([*cells, last]).rstrip())


def print_json_line(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(wire.encode(value).decode())
