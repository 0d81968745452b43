"""Queries that read tasks: one, a list, what has changed, and the history."""

from __future__ import annotations

from typing import Any

from activations.tasks.model import Filter, Task
from activations.tasks.queries.claims import IS_READY
from activations.tasks.queries.links import blockers_of, links_of, refs_of
from activations.tasks.queries.rows import COLUMNS, TaskRow, decode, find, short, shown
from plexus.storage import Transaction

__all__ = (
    "changed",
    "closed",
    "condition",
    "counts",
    "export_page",
    "get",
    "history",
    "last_change",
    "list_tasks",
    "projects",
    "with_blockers",
)

LISTED = {
    "open": "status IN ('pending', 'in_progress')",
    "ready": IS_READY,
    "blocked": f"status = 'pending' AND NOT ({IS_READY})",
    "in_progress": "status = 'in_progress'",
    "closed": "status IN ('done', 'cancelled')",
    "all": "status <> 'deleted'",
}


def condition(principal: str, chosen: Filter) -> tuple[str, list[Any]]:
    """Return the condition for a filter, and its parameters."""
    parts: list[str] = ["tasks.principal = ?", LISTED[chosen.listed]]
    params: list[Any] = [principal]
    if chosen.project is not None:
        parts.append("tasks.project = ?")
        params.append(chosen.project)
    if chosen.label is not None:
        parts.append("tasks.labels LIKE ? ESCAPE '!'")
        params.append(f"%,{_escaped(chosen.label.lower())},%")
    if chosen.text is not None:
        parts.append("LOWER(tasks.description) LIKE ? ESCAPE '!'")
        params.append(f"%{_escaped(chosen.text.lower())}%")
    return " AND ".join(parts), params


def _escaped(text: str) -> str:
    """Escape the wildcards of LIKE, and drop what no stored text contains."""
    for mark in "!%_":
        text = text.replace(mark, f"!{mark}")
    return text.replace("\0", "").encode(errors="ignore").decode()


def list_tasks(
    tx: Transaction, principal: str, chosen: Filter, after: str | None, limit: int
) -> tuple[list[Task], str | None, int]:
    """Return a page of tasks, the id of the last one if there are more, and how many there are.

    The most urgent are first, the oldest first among equals.
    """
    where, params = condition(principal, chosen)
    total = tx.one(f"SELECT COUNT(*) FROM tasks WHERE {where}", params)
    assert total is not None, "this query returns a row"
    if after is not None:
        last = find(tx, principal, after)
        where += " AND (tasks.priority > ? OR (tasks.priority = ? AND tasks.n > ?))"
        params += [last.priority, last.priority, last.n]
    rows = [
        TaskRow(*row)
        for row in tx.all(
            f"SELECT {COLUMNS} FROM tasks WHERE {where} ORDER BY priority, n LIMIT ?",
            (*params, limit + 1),
        )
    ]
    page = with_blockers(tx, rows[:limit])
    return page, page[-1]["id"] if len(rows) > limit else None, total[0]


def with_blockers(tx: Transaction, rows: list[TaskRow]) -> list[Task]:
    """Return tasks as lists show them, each pending one with its open blockers."""
    blockers = blockers_of(tx, [row.n for row in rows if row.status == "pending"])
    page = []
    for row in rows:
        task = short(row)
        if row.n in blockers:
            task["blocked_by"] = blockers[row.n]
        page.append(task)
    return page


def get(tx: Transaction, principal: str, task: str) -> Task:
    """Return everything about a task."""
    row = find(tx, principal, task)
    found = shown(row)
    found["project"] = row.project
    blockers = blockers_of(tx, [row.n]) if row.status == "pending" else {}
    if blockers:
        found["blocked_by"] = blockers[row.n]
    links = links_of(tx, row.n)
    if links:
        found["links"] = [each._asdict() for each in links]
    if refs := refs_of(tx, row.n):
        found["refs"] = refs
    notes = tx.all(
        "SELECT author, content, at_ms FROM task_notes WHERE task = ? ORDER BY n", (row.n,)
    )
    if notes:
        found["notes"] = [
            {"author": author, "text": text, "at_ms": at} for author, text, at in notes
        ]
    if row.lost:
        found["lost"] = row.lost
    for name in ("creator", "created_ms", "updated_ms", "claimed_ms", "closed_ms", "seq"):
        if getattr(row, name) is not None:
            found[name] = getattr(row, name)
    return found


def history(tx: Transaction, principal: str, task: str, after: int, limit: int) -> list[Task]:
    """Return changes of a task after a number, the oldest first."""
    row = find(tx, principal, task)
    rows = tx.all(
        "SELECT seq, kind, actor, at_ms, details FROM task_changes WHERE task = ? AND seq > ?"
        " ORDER BY seq LIMIT ?",
        (row.n, after, limit),
    )
    return [
        {"seq": seq, "change": kind, "actor": actor, "at_ms": at_ms}
        | ({} if details is None else {"details": decode(details)})
        for seq, kind, actor, at_ms, details in rows
    ]


def changed(
    tx: Transaction, principal: str, project: str | None, after: int, limit: int
) -> list[tuple[int, int, Task]]:
    """Return the tasks that have changed after a number, in the order of their last change.

    Each with that number and the time. A task that changed often is returned once, as it is now.
    """
    where, params = "principal = ? AND seq > ?", [principal, after]
    if project is not None:
        where += " AND project = ?"
        params.append(project)
    rows = [
        TaskRow(*row)
        for row in tx.all(
            f"SELECT {COLUMNS} FROM tasks WHERE {where} ORDER BY seq LIMIT ?", (*params, limit)
        )
    ]
    tasks = with_blockers(tx, rows)
    return [(row.seq, row.updated_ms, task) for row, task in zip(rows, tasks, strict=True)]


def closed(tx: Transaction, principal: str, project: str | None, limit: int) -> list[Task]:
    """Return the tasks that were closed last, the newest first."""
    where, params = condition(principal, Filter(project, "closed"))
    rows = tx.all(
        f"SELECT {COLUMNS} FROM tasks WHERE {where} ORDER BY seq DESC LIMIT ?", (*params, limit)
    )
    return with_blockers(tx, [TaskRow(*row) for row in rows])


def last_change(tx: Transaction) -> int:
    """Return the number of the last change."""
    row = tx.one("SELECT value FROM task_numbers")
    return 0 if row is None else int(row[0])


def counts(tx: Transaction, principal: str | None, project: str | None) -> dict[str, int]:
    """Return the number of tasks by status; of one principal and project, or of all."""
    where, params = "status <> 'deleted'", []
    for column, value in (("principal", principal), ("project", project)):
        if value is not None:
            where += f" AND {column} = ?"
            params.append(value)
    rows = tx.all(f"SELECT status, COUNT(*) FROM tasks WHERE {where} GROUP BY status", params)
    return {"pending": 0, "in_progress": 0, "done": 0, "cancelled": 0} | dict(rows)


def projects(tx: Transaction, principal: str) -> list[dict[str, Any]]:
    """Return the projects with tasks, and how many of them are open."""
    rows = tx.all(
        "SELECT project, COUNT(*), SUM(CASE WHEN status IN ('pending', 'in_progress')"
        " THEN 1 ELSE 0 END) FROM tasks WHERE principal = ? AND status <> 'deleted'"
        " GROUP BY project ORDER BY project",
        (principal,),
    )
    return [{"project": name, "tasks": total, "open": int(left)} for name, total, left in rows]


def export_page(
    tx: Transaction, principal: str, project: str | None, status: str | None, after: int, limit: int
) -> list[tuple[int, Task]]:
    """Return a page of tasks with everything about them, in the order of their creation."""
    where = "principal = ? AND status <> 'deleted' AND n > ?"
    params: list[Any] = [principal, after]
    for column, value in (("project", project), ("status", status)):
        if value is not None:
            where += f" AND {column} = ?"
            params.append(value)
    rows = tx.all(f"SELECT n, id FROM tasks WHERE {where} ORDER BY n LIMIT ?", (*params, limit))
    return [(n, get(tx, principal, task)) for n, task in rows]
