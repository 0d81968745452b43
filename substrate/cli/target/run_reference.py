"""Runs as people name them: by number, by the first digits of a number, or `last`.

A number has up to 16 digits, and lists show its first ones. A reference that is not a complete
number is looked up among the runs in memory and the newest recorded ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.text import shorten
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.protocol import Target, call_method, result_of
from substrate.cli.terminal.tables import format_age, state_label

__all__ = (
    "COMPLETE_DIGITS",
    "LAST",
    "MAX_IN_MEMORY",
    "MIN_DIGITS",
    "RunReference",
    "find_run",
    "latest_runs",
    "run_argument",
    "short_numbers",
)

Run = Mapping[str, Any]

#: Names the run that started last.
LAST: Final = "last"
#: Fewer digits are always a complete number: a typing error must not name another run.
MIN_DIGITS: Final = 4
#: Digits of a number in a list, unless two runs of the list share them.
SHORT_DIGITS: Final = 6
#: From this many digits on, a number is complete. Of random numbers below 2**53, about one in a
#: hundred is shorter.
COMPLETE_DIGITS: Final = 15
#: Maximum number of recorded runs among which a short number is looked up.
MAX_RECORDED: Final = 1000
#: More runs than a server keeps in memory.
MAX_IN_MEMORY: Final = 10_000
#: Maximum number of runs in an error about a short number.
MAX_CANDIDATES: Final = 10
#: Maximum characters of a summary in such an error.
SUMMARY_CHARS: Final = 40


class RunReference(click.ParamType[str]):
    """A run: its number, the first digits of it, or `last`."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the reference. Raises BadParameter."""
        text = str(value)
        if text != LAST and not re.fullmatch(r"(?a:[1-9]\d{0,18})", text):
            self.fail(
                f"{text!r} is not a run. Write its number, the first digits of it (at least "
                f"{MIN_DIGITS}), or {LAST}. `substrate runs` lists runs.",
                param,
                ctx,
            )
        return text


def run_argument(*, required: bool = True) -> click.Argument:
    """Return the argument for a run."""
    return click.Argument(
        ["run"],
        required=required,
        metavar="RUN" if required else "[RUN]",
        type=RunReference(),
        shell_complete=complete_run,
    )


def find_run(target: Target, reference: str) -> int:
    """Return the number of a run. A complete number is returned without a search.

    Raises ClickException if `last` names no run, or if several runs begin with these digits.
    """
    if reference == LAST:
        own = [run for run in latest_runs(target, 1000) if "parent" not in run]
        if not own:
            raise click.ClickException("No runs yet. Call a method with `substrate call METHOD`.")
        return int(own[0]["run"])
    if not MIN_DIGITS <= len(reference) < COMPLETE_DIGITS:
        return int(reference)
    found = [run for run in _known_runs(target) if str(run["run"]).startswith(reference)]
    if any(str(run["run"]) == reference for run in found):
        return int(reference)
    if len(found) > 1:
        raise click.ClickException(_several(reference, found))
    return int(found[0]["run"] if found else reference)


def latest_runs(target: Target, limit: int) -> list[Run]:
    """Return all active runs and the newest others of this project, newest first."""
    in_memory = call_method(target, "plexus.runs", {"limit": MAX_IN_MEMORY})
    return merge_runs(in_memory, _recorded(target, limit))


def merge_runs(in_memory: Collection[Run], recorded: Collection[Run]) -> list[Run]:
    """Return the runs of both lists, newest first. What is in memory is newer than its record."""
    runs = {run["run"]: run for run in recorded}
    for run in in_memory:
        runs[run["run"]] = {**runs.get(run["run"], {}), **run}
    return sorted(runs.values(), key=lambda run: -run["started_ms"])


def short_numbers(runs: Collection[Run]) -> dict[int, str]:
    """Return the first digits of each run's number, as many as tell these runs apart."""
    numbers = [str(run["run"]) for run in runs]
    digits = SHORT_DIGITS
    while len({number[:digits] for number in numbers}) < len(set(numbers)):
        digits += 1
    return {int(number): number[:digits] for number in numbers}


def _known_runs(target: Target) -> list[Run]:
    params = {"limit": MAX_IN_MEMORY, "system": True}
    in_memory = call_method(target, "plexus.runs", params)
    return merge_runs(in_memory, _recorded(target, MAX_RECORDED, all_projects=True))


def _recorded(target: Target, limit: int, *, all_projects: bool = False) -> list[Run]:
    """Return recorded runs; none if the target does not record."""
    params = {"limit": min(limit, MAX_RECORDED)} | ({"all_projects": True} if all_projects else {})
    try:
        found: list[Run] = target.run(result_of(target, "plexus.history", params))
    except PlexusError:
        return []
    return found


def _several(reference: str, found: Collection[Run]) -> str:
    lines = [f"{len(found)} runs begin with {reference}. Write more digits:"]
    for run in list(found)[:MAX_CANDIDATES]:
        summary = shorten(str(run.get("summary", "")), SUMMARY_CHARS)
        parts = (
            run["run"],
            run["method"],
            summary,
            state_label(run),
            format_age(run["started_ms"]),
        )
        lines.append("  ".join(["", *(str(part) for part in parts if part)]))
    return "\n".join(lines)
