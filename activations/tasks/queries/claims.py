"""Queries of claims: one holder at a time works on a task, under a lease.

A lease ends with what it depends on: the caller's connection or run, whose process releases it; the
process, which another process notices; or its time. A claim is one conditional update, so exactly
one of several callers gets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from activations.tasks.model import LOST_LIMIT, Caller, Process
from activations.tasks.queries.links import add_ref
from activations.tasks.queries.rows import COLUMNS, TaskRow, database_ms, record
from plexus.errors import Busy, Failed, TooBig
from plexus.process_identity import is_running
from plexus.storage import Transaction

__all__ = (
    "IS_READY",
    "LEASE_S",
    "TIMED_S",
    "claim",
    "claim_next",
    "dead_leases",
    "free",
    "holds",
    "live_processes",
    "refusal",
    "release_all",
    "release_dead",
    "release_of",
    "renew",
    "touch",
)

#: How long the leases of a process of another machine are valid after it was last heard of.
LEASE_S: Final = 20.0
#: How long a lease by time is valid after the last call of its holder.
TIMED_S: Final = 900.0

#: The condition of a task that can be claimed: it has no holder, and no open task blocks it.
IS_READY: Final = f"""status = 'pending' AND lost < {LOST_LIMIT} AND NOT EXISTS (
    SELECT 1 FROM task_links JOIN tasks AS blocker ON blocker.n = task_links.source
    WHERE task_links.target = tasks.n AND task_links.kind = 'blocks'
    AND blocker.status IN ('pending', 'in_progress')
)"""

_CLAIMED: Final = (
    "UPDATE tasks SET status = 'in_progress', holder = ?, lease = ?, lease_ref = ?,"
    " lease_process = ?, lease_until = ?, claimed_ms = ?"
)
_FREED: Final = (
    "status = 'pending', holder = NULL, lease = NULL, lease_ref = NULL, lease_process = NULL,"
    " lease_until = NULL, claimed_ms = NULL"
)


def claim(
    tx: Transaction, caller: Caller, process: Process, row: TaskRow, *, force: bool = False
) -> TaskRow:
    """Claim a task. Raises Busy (`claimed`) with the holder, Failed (`closed`, `blocked`).

    `force` takes a task from its holder, and one that is blocked or stuck.
    """
    now = database_ms(tx)
    if row.status == "in_progress" and holds(row, caller, process):
        return _claimed(tx, now, caller, process, row.n, "status = 'in_progress'") or row
    condition = "status IN ('pending', 'in_progress')" if force else IS_READY
    claimed = _claimed(tx, now, caller, process, row.n, condition)
    if claimed is None:
        raise refusal(tx, row)
    details = {"from": row.holder} if row.holder is not None else None
    record(tx, now, row.n, "claimed", caller.name, details)
    _refer_to_run(tx, caller, claimed)
    return claimed


def claim_next(
    tx: Transaction, caller: Caller, process: Process, where: str, params: Sequence[object]
) -> TaskRow | None:
    """Claim the most urgent ready task that meets a condition, the oldest first."""
    now = database_ms(tx)
    chosen = (
        f"n = (SELECT n FROM tasks WHERE {where} AND {IS_READY} ORDER BY priority, n LIMIT 1)"
        " AND status = 'pending'"
    )
    found = tx.one(
        f"{_CLAIMED} WHERE {chosen} RETURNING {COLUMNS}",
        (*_lease(tx, now, caller, process), *params),
    )
    if found is None:
        return None
    record(tx, now, found[0], "claimed", caller.name)
    row = TaskRow(*found)
    _refer_to_run(tx, caller, row)
    return row


def _refer_to_run(tx: Transaction, caller: Caller, row: TaskRow) -> None:
    """Refer from a claimed task to the run that holds it, unless it has too many references."""
    if caller.lease == "run":
        with contextlib.suppress(TooBig):
            add_ref(tx, caller.name, row, "run", f"run://{caller.ref}")


def _claimed(
    tx: Transaction, now: int, caller: Caller, process: Process, task: int, condition: str
) -> TaskRow | None:
    found = tx.one(
        f"{_CLAIMED} WHERE n = ? AND {condition} RETURNING {COLUMNS}",
        (*_lease(tx, now, caller, process), task),
    )
    return None if found is None else TaskRow(*found)


def _lease(
    tx: Transaction, now: int, caller: Caller, process: Process
) -> tuple[str, str, str, int | None, int | None, int]:
    """Return the columns of a lease, whose process is registered with it."""
    until = now + round(TIMED_S * 1000) if caller.lease == "time" else None
    owner = None
    if caller.lease in ("connection", "run"):
        owner = process.id
        _register(tx, now, process)
    return caller.name, caller.lease, caller.ref, owner, until, now


def _register(tx: Transaction, now: int, process: Process) -> None:
    tx.run(
        "INSERT INTO task_processes (id, host, pid, start_ticks, lease_until)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until",
        (*process, now + round(LEASE_S * 1000)),
    )


def holds(row: TaskRow, caller: Caller, process: Process) -> bool:
    """Return whether this caller holds a task."""
    owner = process.id if caller.lease in ("connection", "run") else None
    return (row.lease, row.lease_ref, row.lease_process) == (caller.lease, caller.ref, owner)


def refusal(tx: Transaction, row: TaskRow) -> Failed | Busy:
    """Return why a task cannot be claimed."""
    if row.status == "in_progress":
        return Busy(
            f"{row.id} is claimed by {row.holder}. Take another with tasks.next_task.",
            code="claimed",
            data={"task": row.id, "holder": row.holder, "claimed_ms": row.claimed_ms},
        )
    if row.status != "pending":
        return Failed(
            f"{row.id} is closed ({row.status}). Reopen it with tasks.update_task.",
            code="closed",
            data={"task": row.id, "status": row.status},
        )
    if row.lost >= LOST_LIMIT:
        return Failed(
            f"{row.id} is stuck: {row.lost} holders have left it unfinished. Read its notes, then "
            'set its status to "pending" with tasks.update_task.',
            code="stuck",
            data={"task": row.id, "lost": row.lost},
        )
    blockers = [
        each
        for (each,) in tx.all(
            "SELECT blocker.id FROM task_links JOIN tasks AS blocker"
            " ON blocker.n = task_links.source WHERE task_links.target = ? AND"
            " task_links.kind = 'blocks' AND blocker.status IN ('pending', 'in_progress')"
            " ORDER BY blocker.n LIMIT 20",
            (row.n,),
        )
    ]
    return Failed(
        f"{row.id} is blocked by {', '.join(blockers)}. Close those first.",
        code="blocked",
        data={"task": row.id, "blocked_by": blockers},
    )


# --- the end of leases ----------------------------------------------------------------------------


def free(tx: Transaction, task: int, *, lost: int) -> None:
    """Return a task to the list; `lost` is how many holders have now left it unfinished."""
    tx.run(f"UPDATE tasks SET {_FREED}, lost = ? WHERE n = ?", (lost, task))


def release_of(tx: Transaction, process: Process, lease: str, ref: str, why: str) -> int:
    """Release the claims of a connection or a run of this process. Returns their number."""
    rows = tx.all(
        "SELECT n, holder, lost FROM tasks WHERE lease_process = ? AND lease = ?"
        " AND lease_ref = ? AND status = 'in_progress'",
        (process.id, lease, ref),
    )
    return _lose(tx, [(*row, why) for row in rows])


def release_all(tx: Transaction, process: Process) -> int:
    """Release the claims of this process, which is closing. Returns their number."""
    rows = tx.all(
        "SELECT n, holder, lost FROM tasks WHERE lease_process = ? AND status = 'in_progress'",
        (process.id,),
    )
    tx.run("DELETE FROM task_processes WHERE id = ?", (process.id,))
    return _lose(tx, [(*row, "its process stopped") for row in rows])


def dead_leases(tx: Transaction, host: str) -> bool:
    """Return whether a lease has ended by time or with its process, and was not released yet."""
    now = database_ms(tx)
    if tx.one("SELECT 1 FROM tasks WHERE lease_until < ? LIMIT 1", (now,)):
        return True
    return bool(_dead(tx, now, host))


def release_dead(tx: Transaction, host: str) -> int:
    """Release all claims whose lease has ended. Returns their number."""
    now = database_ms(tx)
    lost: list[tuple[int, str, int, str]] = []
    for process in _dead(tx, now, host):
        end = "has ended" if process.host == host else "was not heard of in time"
        rows = tx.all(
            "SELECT n, holder, lost FROM tasks WHERE lease_process = ? AND status = 'in_progress'",
            (process.id,),
        )
        lost += [(*row, f"its process {process.pid} {end}") for row in rows]
        tx.run("DELETE FROM task_processes WHERE id = ?", (process.id,))
    rows = tx.all(
        "SELECT n, holder, lost FROM tasks WHERE lease_until < ? AND status = 'in_progress'", (now,)
    )
    lost += [(*row, "its lease expired") for row in rows]
    return _lose(tx, lost)


def _dead(tx: Transaction, now: int, host: str) -> list[Process]:
    """Return the registered processes that have ended, as seen from this host.

    A process of this machine is dead when its pid and start time are gone; a stopped one is alive.
    One of another machine is dead when it was not heard of in time.
    """
    return [
        process
        for process, until in _registered(tx)
        if (
            until < now
            if process.host != host
            else not is_running(process.pid, process.start_ticks)
        )
    ]


def _registered(tx: Transaction) -> list[tuple[Process, int]]:
    rows = tx.all("SELECT id, host, pid, start_ticks, lease_until FROM task_processes")
    return [(Process(*columns), until) for *columns, until in rows]


def live_processes(tx: Transaction) -> tuple[list[Process], int | None]:
    """Return the registered processes, and when the next lease by time expires."""
    row = tx.one("SELECT MIN(lease_until) FROM tasks WHERE lease_until IS NOT NULL")
    return [process for process, _ in _registered(tx)], None if row is None else row[0]


def _lose(tx: Transaction, claims: list[tuple[int, str, int, str]]) -> int:
    now = database_ms(tx)
    for task, holder, lost, why in claims:
        free(tx, task, lost=lost + 1)
        record(tx, now, task, "lost", holder, {"why": why})
    return len(claims)


def renew(tx: Transaction, process: Process) -> bool:
    """Renew the lease of this process, if it holds tasks. Returns whether it does."""
    if tx.one("SELECT 1 FROM tasks WHERE lease_process = ? LIMIT 1", (process.id,)) is None:
        tx.run("DELETE FROM task_processes WHERE id = ?", (process.id,))
        return False
    _register(tx, database_ms(tx), process)
    return True


def touch(tx: Transaction, caller: Caller) -> None:
    """Renew the leases by time of this caller: any call shows that it is alive."""
    tx.run(
        "UPDATE tasks SET lease_until = ? WHERE lease = 'time' AND lease_ref = ? AND principal = ?"
        " AND status = 'in_progress' AND lease_until IS NOT NULL",
        (database_ms(tx) + round(TIMED_S * 1000), caller.ref, caller.principal),
    )
