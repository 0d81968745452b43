"""Queries that create and change tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from activations.tasks.model import (
    DESCRIPTION_BYTES,
    KEY_BYTES,
    NORMAL,
    NOTE_BYTES,
    NOTES,
    OPEN,
    PROJECT_BYTES,
    REASON_BYTES,
    TASKS,
    Caller,
    Process,
    Task,
)
from activations.tasks.queries import claims
from activations.tasks.queries.links import add_link, blockers_of
from activations.tasks.queries.rows import (
    COLUMNS,
    TaskRow,
    check_acceptance,
    check_labels,
    check_text,
    database_ms,
    decode,
    find,
    new_id,
    record,
    shown,
)
from plexus.errors import Failed, InvalidParams, TooBig
from plexus.storage import Transaction

__all__ = ("NewTask", "Patch", "close", "create", "delete", "insert", "update")


class NewTask(NamedTuple):
    """A task to create."""

    description: str
    kind: str = "task"
    priority: int = NORMAL
    labels: Sequence[str] = ()
    acceptance: Sequence[str] = ()
    parent: str | None = None
    blocked_by: Sequence[str] = ()
    key: str | None = None


class Patch(NamedTuple):
    """The changes of an update; None leaves a field as it is."""

    status: str | None = None
    description: str | None = None
    kind: str | None = None
    priority: int | None = None
    labels: Sequence[str] | None = None
    acceptance: Sequence[str] | None = None
    met: Sequence[int] | None = None
    note: str | None = None


def create(tx: Transaction, caller: Caller, project: str, new: NewTask) -> Task:
    """Create a task. A call with the key of an existing one returns that one.

    Raises InvalidParams, TooBig, NotFound for a task it is linked to, and Failed (`key_used`).
    """
    check_text(new.description, "The description", DESCRIPTION_BYTES)
    check_text(project, "The project", PROJECT_BYTES)
    if new.key is not None:
        check_text(new.key, "The key", KEY_BYTES)
        found = tx.one(
            f"SELECT {COLUMNS} FROM tasks WHERE principal = ? AND project = ? AND create_key = ?",
            (caller.principal, project, new.key),
        )
        if found is not None:
            row = TaskRow(*found)
            if row.description != new.description:
                raise Failed(
                    f"The key {new.key!r} is that of {row.id}, which has another description. Use "
                    "a new key for a new task.",
                    code="key_used",
                    data={"task": row.id},
                )
            return shown(row)
    labels, acceptance = check_labels(new.labels), check_acceptance(new.acceptance)
    others = [("blocks", find(tx, caller.principal, each)) for each in new.blocked_by]
    if new.parent is not None:
        others.append(("parent", find(tx, caller.principal, new.parent)))
    count = tx.one(
        "SELECT COUNT(*) FROM tasks WHERE principal = ? AND status <> 'deleted'",
        (caller.principal,),
    )
    if count is not None and count[0] >= TASKS:
        raise TooBig(
            f"You have {TASKS} tasks, the limit. Delete old ones with tasks.delete.",
            data={"limit": TASKS},
        )
    row = insert(
        tx,
        caller,
        project,
        description=new.description,
        kind=new.kind,
        priority=new.priority,
        labels=labels,
        acceptance=acceptance,
        create_key=new.key,
    )
    for kind, other in others:
        add_link(tx, caller.name, other, kind, row)
    task = shown(row)
    blockers = blockers_of(tx, [row.n])
    if blockers:
        task["blocked_by"] = blockers[row.n]
    return task


def insert(tx: Transaction, caller: Caller, project: str, **columns: Any) -> TaskRow:
    """Insert a pending task, unless the columns say otherwise, and record that."""
    now = database_ms(tx)
    number = tx.one("UPDATE task_numbers SET value = value + 1 RETURNING value")
    assert number is not None, "the table has one row"
    identifier = columns.pop("id", None) or _unused_id(tx)
    values = {
        "n": number[0],
        "id": identifier,
        "principal": caller.principal,
        "project": project,
        "status": "pending",
        "creator": caller.name,
        "created_ms": now,
        "updated_ms": now,
        "seq": number[0],
        **columns,
    }
    tx.run(
        f"INSERT INTO tasks ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
        tuple(values.values()),
    )
    record(tx, now, number[0], "created", caller.name)
    return find(tx, caller.principal, identifier)


def _unused_id(tx: Transaction) -> str:
    for _ in range(16):
        found = new_id()
        if tx.one("SELECT 1 FROM tasks WHERE id = ?", (found,)) is None:
            return found
    raise Failed("No unused task id was found. Retry.", code="storage")


def update(
    tx: Transaction, caller: Caller, process: Process, task: str, patch: Patch, *, force: bool
) -> Task:
    """Change a task, claim or release it, reopen it, or add a note.

    Raises Busy (`claimed`) if the status of a task of another holder is changed without `force`.
    """
    row = find(tx, caller.principal, task)
    columns, details = _changed_columns(row, patch)
    if patch.note is not None:
        check_text(patch.note, "The note", NOTE_BYTES)
        count = tx.one("SELECT COUNT(*) FROM task_notes WHERE task = ?", (row.n,))
        if count is not None and count[0] >= NOTES:
            raise TooBig(f"{row.id} has {NOTES} notes, the limit.", data={"limit": NOTES})
    if patch.status == "in_progress":
        row = claims.claim(tx, caller, process, row, force=force)
    elif patch.status == "pending":
        row = _to_pending(tx, caller, process, row, force=force)
    now = database_ms(tx)
    if columns:
        names = ", ".join(f"{name} = ?" for name in columns)
        tx.run(f"UPDATE tasks SET {names} WHERE n = ?", (*columns.values(), row.n))
        record(tx, now, row.n, "updated", caller.name, details)
    if patch.note is not None:
        seq = record(tx, now, row.n, "noted", caller.name)
        tx.run(
            "INSERT INTO task_notes (n, task, author, content, at_ms) VALUES (?, ?, ?, ?, ?)",
            (seq, row.n, caller.name, patch.note, now),
        )
    return shown(find(tx, caller.principal, row.id))


def _changed_columns(row: TaskRow, patch: Patch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns that an update changes, and their former values for the history."""
    wanted: dict[str, Any] = {}
    if patch.description is not None:
        wanted["description"] = check_text(patch.description, "The description", DESCRIPTION_BYTES)
    if patch.kind is not None:
        wanted["kind"] = patch.kind
    if patch.priority is not None:
        wanted["priority"] = patch.priority
    if patch.labels is not None:
        wanted["labels"] = check_labels(patch.labels)
    if patch.acceptance is not None or patch.met is not None:
        former = decode(row.acceptance) or []
        texts = patch.acceptance
        if texts is None:
            texts = [each["text"] for each in former]
        met = patch.met
        if met is None:
            kept = {each["text"] for each in former if each["met"]}
            met = [number for number, text in enumerate(texts, 1) if text in kept]
        wanted["acceptance"] = check_acceptance(texts, met)
    columns = {name: value for name, value in wanted.items() if value != getattr(row, name)}
    return columns, {_FIELDS.get(name, name): _former(row, name) for name in columns}


_FIELDS = {"kind": "type"}


def _former(row: TaskRow, column: str) -> Any:
    if column == "acceptance":
        return decode(row.acceptance)
    return row.label_list if column == "labels" else getattr(row, column)


def _to_pending(
    tx: Transaction, caller: Caller, process: Process, row: TaskRow, *, force: bool
) -> TaskRow:
    """Release a task, reopen a closed one, or offer a stuck one again."""
    _check_holder(tx, caller, process, row, force=force)
    kind = "reopened" if row.status not in OPEN else "released"
    if row.status == "pending" and not row.lost:
        return row
    tx.run("UPDATE tasks SET closed_ms = NULL, reason = NULL WHERE n = ?", (row.n,))
    claims.free(tx, row.n, lost=0)
    now = database_ms(tx)
    record(tx, now, row.n, kind, caller.name)
    for n, _ in _waiting(tx, row.n) if kind == "reopened" else ():
        record(tx, now, n, "blocked", caller.name, {"by": row.id})
    return find(tx, caller.principal, row.id)


def _check_holder(
    tx: Transaction, caller: Caller, process: Process, row: TaskRow, *, force: bool
) -> None:
    """Raise Busy (`claimed`) if another caller holds a task."""
    if row.status == "in_progress" and not force and not claims.holds(row, caller, process):
        raise claims.refusal(tx, row)


def close(
    tx: Transaction,
    caller: Caller,
    process: Process,
    task: str,
    outcome: str,
    reason: str | None,
    *,
    force: bool,
) -> Task:
    """Close a task. Returns it with the tasks that are no longer blocked, and unmet criteria.

    Closing a closed task again changes nothing. Raises Busy (`claimed`).
    """
    row = find(tx, caller.principal, task)
    if reason is not None:
        check_text(reason, "The reason", REASON_BYTES)
    if row.status == outcome:
        return shown(row)
    if row.status not in OPEN:
        raise claims.refusal(tx, row)
    _check_holder(tx, caller, process, row, force=force)
    now = database_ms(tx)
    waiting = _waiting(tx, row.n)
    claims.free(tx, row.n, lost=0)
    tx.run(
        "UPDATE tasks SET status = ?, reason = ?, closed_ms = ? WHERE n = ?",
        (outcome, reason, now, row.n),
    )
    details = {"outcome": outcome} | ({} if reason is None else {"reason": reason})
    record(tx, now, row.n, "closed", caller.name, details)
    closed = shown(find(tx, caller.principal, row.id))
    ready = _unblock(tx, caller, row, waiting)
    if ready:
        closed["unblocked"] = ready
    unmet = [each["text"] for each in decode(row.acceptance) or [] if not each["met"]]
    if unmet and outcome == "done":
        closed["unmet"] = unmet
    return closed


def _waiting(tx: Transaction, task: int) -> list[tuple[int, str]]:
    """Return the pending tasks that a task blocks."""
    rows = tx.all(
        "SELECT tasks.n, tasks.id FROM task_links JOIN tasks ON tasks.n = task_links.target"
        " WHERE task_links.source = ? AND task_links.kind = 'blocks' AND tasks.status = 'pending'"
        " ORDER BY tasks.priority, tasks.n",
        (task,),
    )
    return [(n, name) for n, name in rows]


def _unblock(
    tx: Transaction, caller: Caller, row: TaskRow, waiting: list[tuple[int, str]]
) -> list[str]:
    """Record which tasks are no longer blocked, so that watchers see it. Returns their ids."""
    still = blockers_of(tx, [n for n, _ in waiting])
    ready = [(n, name) for n, name in waiting if n not in still]
    for n, _ in ready:
        record(tx, database_ms(tx), n, "unblocked", caller.name, {"by": row.id})
    return [name for _, name in ready]


def delete(tx: Transaction, caller: Caller, tasks: Sequence[str]) -> int:
    """Delete tasks with everything about them. Returns their number. Raises NotFound."""
    if not tasks:
        raise InvalidParams("Name at least one task.")
    rows = {row.n: row for row in (find(tx, caller.principal, each) for each in tasks)}
    now = database_ms(tx)
    for row in rows.values():
        waiting = _waiting(tx, row.n)
        tx.run("DELETE FROM task_links WHERE source = ? OR target = ?", (row.n, row.n))
        for table in ("task_refs", "task_notes", "task_changes"):
            tx.run(f"DELETE FROM {table} WHERE task = ?", (row.n,))
        claims.free(tx, row.n, lost=0)
        tx.run(
            "UPDATE tasks SET status = 'deleted', description = '', labels = '', acceptance = NULL,"
            " reason = NULL, create_key = NULL, creator = '' WHERE n = ?",
            (row.n,),
        )
        record(tx, now, row.n, "deleted", caller.name)
        _unblock(tx, caller, row, [each for each in waiting if each[0] not in rows])
    return len(rows)
