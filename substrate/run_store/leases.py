"""Leases: which process executes which runs, and what happens to the runs of a dead process.

On one machine a process is dead when its pid and start time are gone. A stopped process, or one
whose machine slept, is alive. A process of another machine is dead when its lease has expired by
the clock of the database, so a wrong clock of one machine does no harm.

The runs of a dead process end with the error `owner_lost`, or wait for a process that restarts
them. Both happen with a higher epoch: what the previous process may still write is refused.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from plexus.events import Cancelled, ErrorEvent, Terminal
from plexus.process_identity import is_running
from plexus.rpc import wire
from plexus.storage.engine import Transaction
from substrate.run_store.chunks import encode_chunk
from substrate.run_store.schema import ENDED, STATE_NUMBERS

__all__ = (
    "LEASE_S",
    "RENEW_S",
    "UNOWNED",
    "Identity",
    "Kept",
    "Process",
    "ProcessMonitor",
    "database_ms",
    "end_orphans",
    "end_ownerless",
    "end_run",
    "is_watched",
    "other_processes",
    "release_process",
    "release_runs",
    "renew_lease",
)

#: Seconds that a lease is valid, and between its renewals.
LEASE_S: Final = 5.0
RENEW_S: Final = 1.5
#: The process of runs that wait for a process that restarts them.
UNOWNED: Final = 0
#: Seconds that a run waits for a process that restarts it.
UNOWNED_S: Final = 10.0
#: Maximum number of processes that are watched by a descriptor; others are polled.
MAX_DESCRIPTORS: Final = 256
#: Seconds between checks of processes without a descriptor.
POLL_S: Final = 0.5

#: The host, the pid, the start time, the project and the version of a process.
Identity: TypeAlias = tuple[str, int, int | None, str, str]
#: Returns for a method and an outcome how long a run is stored, in milliseconds.
Kept: TypeAlias = Callable[[str, str], int]


class Process(NamedTuple):
    """A process with a lease."""

    id: int
    host: str
    pid: int
    start_ticks: int | None
    #: Seconds until its lease expires, by the clock of the database; negative if it has expired.
    left_s: float

    @property
    def expired(self) -> bool:
        """Whether its lease has expired."""
        return self.left_s < 0

    def is_dead(self, host: str) -> bool:
        """Return whether it has ended, as seen from this host."""
        if self.host == host:
            return not is_running(self.pid, self.start_ticks)
        return self.expired


def database_ms(tx: Transaction) -> int:
    """Return the time of the database, in milliseconds since the epoch."""
    if tx.dialect == "sqlite":
        return time.time_ns() // 1_000_000
    row = tx.one("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")
    assert row is not None, "this query returns a row"
    return int(row[0])


def renew_lease(
    tx: Transaction,
    process: int,
    identity: Identity,
    *,
    watching: bool,
) -> bool:
    """Write the row of a process.

    Returns whether it had one. If not, others may have ended or taken over its runs.
    """
    until = database_ms(tx) + round(LEASE_S * 1000)
    if tx.run(
        "UPDATE processes SET watching = ?, lease_until = ? WHERE id = ?",
        (int(watching), until, process),
    ):
        return True
    tx.run(
        "INSERT INTO processes (id, host, pid, start_ticks, project, version, watching,"
        " lease_until) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (process, *identity, int(watching), until),
    )
    return False


def release_process(tx: Transaction, process: int) -> None:
    """Remove the row of a process.

    If it has runs in progress, the row stays, and others end those runs when the process has ended.
    """
    tx.run(
        "DELETE FROM processes WHERE id = ? AND NOT EXISTS"
        f" (SELECT 1 FROM runs WHERE process = ? AND state < {ENDED})",
        (process, process),
    )
    # An answer stays until its requester has read it: the call may have ended this process.
    tx.run(
        "DELETE FROM run_requests WHERE requester = ? OR (process = ? AND result IS NULL)",
        (process, process),
    )


def other_processes(tx: Transaction, process: int) -> list[Process]:
    """Return all processes with a lease except this one."""
    now = _expiry_ms(tx)
    rows = tx.all(
        "SELECT id, host, pid, start_ticks, lease_until FROM processes WHERE id <> ?", (process,)
    )
    return [
        Process(number, host, pid, ticks, (until - now) / 1000)
        for number, host, pid, ticks, until in rows
    ]


def _expiry_ms(tx: Transaction) -> int:
    """Return the time before which leases have expired.

    While the database was down, no process could renew its lease. Leases count as valid until all
    had the time to renew them.
    """
    now = database_ms(tx)
    if tx.dialect == "sqlite":
        return now
    row = tx.one("SELECT CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000 AS BIGINT)")
    assert row is not None, "this query returns a row"
    return now if now - row[0] > round(LEASE_S * 1000) else 0


def is_watched(tx: Transaction, process: int) -> bool:
    """Return whether another process watches runs."""
    row = tx.one(
        "SELECT 1 FROM processes WHERE watching = 1 AND id <> ? AND lease_until > ? LIMIT 1",
        (process, database_ms(tx)),
    )
    return row is not None


# --- the runs of dead processes -------------------------------------------------------------------


def end_orphans(tx: Transaction, dead: Process, host: str, kept: Kept) -> int:
    """End the runs of a dead process, or release those that can be restarted.

    Returns the number of runs. Does nothing if the process has renewed its lease meanwhile. `kept`
    returns how long a run is stored.
    """
    if dead.host != host:
        row = tx.one("SELECT lease_until FROM processes WHERE id = ?", (dead.id,))
        if row is not None and row[0] >= _expiry_ms(tx):
            return 0
    rows = tx.all(
        "SELECT id, method, last_seq, epoch, restart, cancel_requested FROM runs"
        f" WHERE process = ? AND state < {ENDED}",
        (dead.id,),
    )
    lost = ErrorEvent("owner_lost", f"The process of this run (pid {dead.pid}) has ended.")
    for run, method, last_seq, epoch, restart, cancel_requested in rows:
        if restart != "never" and not cancel_requested:
            _release(tx, run, epoch)
        else:
            terminal = Cancelled("cancelled by request") if cancel_requested else lost
            end_run(tx, run, last_seq, epoch, terminal, partial(kept, method))
    release_process(tx, dead.id)
    return len(rows)


def end_ownerless(tx: Transaction, kept: Kept) -> int:
    """End runs whose process has no row. Returns their number.

    A process that continues after another one has ended its runs may record new ones before it
    renews its lease.
    """
    rows = tx.all(
        "SELECT id, method, last_seq, epoch FROM runs"
        f" WHERE state < {ENDED} AND process <> ? AND process NOT IN (SELECT id FROM processes)",
        (UNOWNED,),
    )
    lost = ErrorEvent("owner_lost", "The process of this run has ended.")
    for run, method, last_seq, epoch in rows:
        end_run(tx, run, last_seq, epoch, lost, partial(kept, method))
    return len(rows)


def release_runs(tx: Transaction, process: int, runs: Iterable[tuple[int, int]]) -> list[int]:
    """Release runs of this process, given with their epochs, so that another restarts them.

    Returns those that were released.
    """
    return [
        run
        for run, epoch in runs
        if tx.one(
            f"SELECT 1 FROM runs WHERE id = ? AND epoch = ? AND process = ? AND state < {ENDED}",
            (run, epoch, process),
        )
        and _release(tx, run, epoch)
    ]


def _release(tx: Transaction, run: int, epoch: int) -> bool:
    tx.run("DELETE FROM run_questions WHERE run = ?", (run,))
    return bool(
        tx.run(
            "UPDATE runs SET process = ?, epoch = ?, state = 0, kept_until = ? WHERE id = ?",
            (UNOWNED, epoch + 1, database_ms(tx) + round(UNOWNED_S * 1000), run),
        )
    )


def end_run(
    tx: Transaction,
    run: int,
    last_seq: int,
    epoch: int,
    terminal: Terminal,
    kept_ms: Callable[[str], int],
) -> None:
    """End a run in place of its process, with a higher epoch. `kept_ms` is by the outcome."""
    now = database_ms(tx)
    codec, content = encode_chunk([(0, now)], [wire.encode_event(terminal)])
    tx.run("DELETE FROM run_questions WHERE run = ?", (run,))
    tx.run(
        "INSERT INTO run_chunks (run, from_seq, to_seq, epoch, codec, content)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (run, last_seq + 1, last_seq + 1, epoch + 1, codec, content),
    )
    outcome = "cancelled" if isinstance(terminal, Cancelled) else "failed"
    tx.run(
        "UPDATE runs SET state = ?, outcome = ?, epoch = ?, last_seq = ?, ended_ms = ?,"
        " kept_until = ? WHERE id = ?",
        (
            STATE_NUMBERS[terminal.type],
            outcome,
            epoch + 1,
            last_seq + 1,
            now,
            now + kept_ms(outcome),
            run,
        ),
    )


# --- processes of this machine --------------------------------------------------------------------


class ProcessMonitor:
    """Reports when one of the known processes of this machine ends."""

    def __init__(self, host: str, on_death: Callable[[Process], None]) -> None:
        self._host = host
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[int, int] = {}
        self._polled: dict[int, Process] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, processes: Iterable[Process]) -> None:
        """Watch these processes in addition. Those of other machines are ignored."""
        for process in processes:
            known = process.id in self._descriptors or process.id in self._polled
            if process.host != self._host or known:
                continue
            if process.is_dead(self._host):
                self._on_death(process)
                continue
            descriptor = self._open(process)
            if descriptor is None:
                self._polled[process.id] = process
            else:
                self._descriptors[process.id] = descriptor
                self._loop.add_reader(descriptor, self._on_end, process)
        if self._polled and self._timer is None:
            self._timer = self._loop.call_later(POLL_S, self._poll)

    def _open(self, process: Process) -> int | None:
        """Return a descriptor of a process; None if the system has none for it."""
        open_descriptor: Any = getattr(os, "pidfd_open", None)  # Linux only
        if open_descriptor is None or len(self._descriptors) >= MAX_DESCRIPTORS:
            return None
        try:
            descriptor: int = open_descriptor(process.pid)
        except OSError:
            return None
        if process.is_dead(self._host):  # the pid was reused before the descriptor was opened
            os.close(descriptor)
            return None
        return descriptor

    def _on_end(self, process: Process) -> None:
        descriptor = self._descriptors.pop(process.id)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._on_death(process)

    def _poll(self) -> None:
        self._timer = None
        for process in list(self._polled.values()):
            if process.is_dead(self._host):
                del self._polled[process.id]
                self._on_death(process)
        if self._polled:
            self._timer = self._loop.call_later(POLL_S, self._poll)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        for descriptor in self._descriptors.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._descriptors.clear()
        self._polled.clear()
