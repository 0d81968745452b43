"""Output in rows: JSON lines, aligned columns and tables, and runs as readable text."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from plexus.rpc import wire
from plexus.text import escape_controls, shorten

if TYPE_CHECKING:  # rich is imported when a table is printed
    from rich.console import Console
    from rich.table import Table

__all__ = (
    "ACTIVE_STATES",
    "COLOURS",
    "format_age",
    "format_duration",
    "format_run",
    "new_console",
    "new_table",
    "print_columns",
    "print_json_line",
    "print_runs",
    "state_label",
)

Run = Mapping[str, Any]

#: Titles of the table of runs, and the columns that are styled or cut.
TITLES: Final = ("Run", "Method", "Arguments", "Outcome", "Started", "Took")
METHOD, ARGUMENTS, OUTCOME = 1, 2, 3
#: Maximum characters of a run's summary in a row.
SUMMARY_CHARS: Final = 60
#: Width of a table in a pipe, where nothing is cut or wrapped.
PIPE_WIDTH: Final = 10_000

#: The states of a run that has not ended.
ACTIVE_STATES: Final = ("running", "asking", "cancelling")
COLOURS: Final = {
    "running": "cyan",
    "asking": "yellow",
    "cancelling": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
}


def state_label(run: Run) -> str:
    """Return the outcome of a run, such as `failed (exit 3)`; its state if it has not ended."""
    outcome = str(run.get("outcome") or run["state"])
    # Of a failed command only: an exit code of 0 is a success.
    return f"{outcome} (exit {run['exit_code']})" if run.get("exit_code") else outcome


def print_runs(runs: Sequence[Run], numbers: Mapping[int, str]) -> None:
    """Print a table of runs with these short numbers; in a pipe, without colours and uncut."""
    rows = [TITLES, *(_row(run, numbers[run["run"]]) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        # Only the arguments are cut on a narrow terminal.
        others = sum(widths) - widths[ARGUMENTS] + 2 * (len(widths) - 1)
        room = shutil.get_terminal_size().columns - others
        widths[ARGUMENTS] = min(widths[ARGUMENTS], max(room, len(TITLES[ARGUMENTS])))
    for row in rows:
        cells = [_fit(cell, width) for cell, width in zip(row, widths, strict=True)]
        if row is TITLES:
            cells = [click.style(cell, bold=True) for cell in cells]
        else:
            cells[METHOD] = click.style(cells[METHOD], bold=True)
            colour = COLOURS.get(row[OUTCOME].partition(" ")[0])
            cells[OUTCOME] = click.style(cells[OUTCOME], fg=colour)
        line = "  ".join(cells).rstrip()
        click.echo(click.unstyle(line).rstrip() if os.environ.get("NO_COLOR") else line)


def _fit(text: str, width: int) -> str:
    """Pad a text to a width, or cut it."""
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _row(run: Run, number: str) -> tuple[str, ...]:
    age_ms = max(time.time() * 1000 - run["started_ms"], 0)
    return (
        number,
        str(run["method"]),
        shorten(escape_controls(str(run.get("summary", ""))), SUMMARY_CHARS),
        state_label(run),
        format_age(run["started_ms"]),
        format_duration(run.get("duration_ms", age_ms)),
    )


def format_run(run: Run) -> str:
    """Format the state of a run as one line."""
    at = time.strftime("%H:%M:%S")
    line = f"{at}  {run['run']:<16}  {state_label(run):<10}  {run['method']}"
    if run.get("summary"):
        line += f"  {shorten(escape_controls(str(run['summary'])), SUMMARY_CHARS)}"
    if "duration_ms" in run:
        line += f"  {format_duration(run['duration_ms'])}, {run['last_seq']} items"
    if "parent" in run:
        line += f"  (parent {run['parent']})"
    return line


def format_age(started_ms: float) -> str:
    """Format how long ago a time was, in its largest unit."""
    duration = format_duration(max(time.time() * 1000 - started_ms, 0))
    return f"{' '.join(duration.split()[:2])} ago"


def format_duration(ms: float) -> str:
    """Format a duration in a short form."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def new_console() -> Console:
    """Return a console for stdout. In a pipe, lines have any length and no colours."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


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
    try:
        raw = wire.encode(value)
    except TypeError:  # the name of a file that is not UTF-8
        raw = wire.encode(_in_unicode(value))
    click.echo(raw.decode(), file)


def _in_unicode(value: Any) -> Any:
    """Return a value in which texts that are not Unicode are escaped."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _in_unicode(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {_in_unicode(name): _in_unicode(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_unicode(each) for each in value]
    return value
