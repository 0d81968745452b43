"""Which runs were deleted, for the other processes of the store: they may have them in memory.

One row has the number of all deletions and the runs of the newest ones. A process compares the
number with the one that it has seen, which is all that most reads of the store need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from plexus.errors import PlexusError
from plexus.rpc import wire
from plexus.runtime.stored_events import READING
from plexus.storage.engine import Transaction

__all__ = ("Deletions", "add_deletions", "read_deletions")

#: The name of the row in `run_maintenance`. Its time is the number of deletions.
ROW: Final = "deleted"
#: Maximum number of runs in the row.
MAX_RUNS: Final = 1000


class Deletions(NamedTuple):
    """The deletions since those that were seen."""

    #: The number of all deletions.
    number: int
    runs: list[int]
    #: Whether these are all; otherwise there were too many for the row.
    is_complete: bool = True


def add_deletions(tx: Transaction, runs: Sequence[int]) -> None:
    """Record that these runs were deleted."""
    if not runs:
        return
    number, known = _read(tx)
    value = wire.encode([*known, *runs][-MAX_RUNS:]).decode()
    tx.run(
        "INSERT INTO run_maintenance (name, value, until_ms) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value, until_ms = excluded.until_ms",
        (ROW, value, number + len(runs)),
    )


def read_deletions(tx: Transaction, seen: int | None) -> Deletions:
    """Return the deletions since this number; none if no deletion was seen before."""
    row = tx.one("SELECT until_ms FROM run_maintenance WHERE name = ?", (ROW,))
    number = 0 if row is None else int(row[0])
    if seen is None or number == seen:
        return Deletions(number, [])
    _, runs = _read(tx)
    new = number - seen
    # A smaller number is that of another database, which has replaced a damaged one.
    return Deletions(number, runs[-new:] if new > 0 else runs, 0 < new <= len(runs))


def _read(tx: Transaction) -> tuple[int, list[int]]:
    row = tx.one("SELECT until_ms, value FROM run_maintenance WHERE name = ?", (ROW,))
    if row is None:
        return 0, []
    try:
        runs = wire.decode_value(row[1].encode(), READING)
    except (ValueError, PlexusError):
        runs = None
    is_valid = isinstance(runs, list) and all(isinstance(run, int) for run in runs)
    return int(row[0]), runs if is_valid else []
