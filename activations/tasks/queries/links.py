"""Queries of links between tasks, and of references to runs and diffs."""

from __future__ import annotations

import re
from typing import Any, Final

from activations.tasks.model import LINK_KINDS, LINKS, REFS, URI_BYTES, TaskLink
from activations.tasks.queries.rows import TaskRow, check_text, database_ms, find, record
from plexus.errors import Failed, InvalidParams, TooBig
from plexus.storage import Transaction

__all__ = ("add_link", "add_ref", "blockers_of", "link", "links_of", "refs_of", "unlink")

#: The kinds whose links must not lead back to where they began.
ACYCLIC: Final = ("blocks", "parent", "discovered_from")
#: References: the URI of a run, and of anything that shows a change.
RUN: Final = re.compile(r"run://[1-9]\d{0,15}")
URI: Final = re.compile(r"[a-z][a-z0-9+.-]{1,30}:\S+")


def link(
    tx: Transaction, principal: str, actor: str, task: str, kind: str, target: str
) -> list[TaskRow]:
    """Link a task to another, or to a run or a diff. Returns the tasks that have changed.

    Raises NotFound, InvalidParams, TooBig, and Failed (`cycle`).
    """
    row = find(tx, principal, task)
    if kind not in LINK_KINDS:
        add_ref(tx, actor, row, kind, target)
        return [row]
    other = find(tx, principal, target)
    return [row, other] if add_link(tx, actor, row, kind, other) else []


def add_link(tx: Transaction, actor: str, source: TaskRow, kind: str, target: TaskRow) -> bool:
    """Link two tasks. Returns whether the link is new."""
    if kind == "related" and source.n > target.n:  # it has no direction, so it is stored once
        source, target = target, source
    if source.n == target.n:
        raise Failed(f"{source.id} cannot be linked to itself.", code="cycle")
    exists = tx.one(
        "SELECT 1 FROM task_links WHERE source = ? AND target = ? AND kind = ?",
        (source.n, target.n, kind),
    )
    if exists:
        return False
    if kind in ACYCLIC and _reaches(tx, target.n, source.n, kind):
        raise Failed(
            f"{source.id} {kind} {target.id} would be a cycle: {target.id} already leads to"
            f" {source.id} by links of this kind.",
            code="cycle",
            data={"kind": kind, "from": source.id, "to": target.id},
        )
    if kind == "parent":
        other = tx.one(
            "SELECT tasks.id FROM task_links JOIN tasks ON tasks.n = task_links.source"
            " WHERE task_links.target = ? AND task_links.kind = 'parent'",
            (target.n,),
        )
        if other is not None:
            raise Failed(
                f"{target.id} already has the parent {other[0]}. Remove that link first.",
                code="has_parent",
                data={"parent": other[0]},
            )
    for each in (source, target):
        row = tx.one(
            "SELECT COUNT(*) FROM task_links WHERE source = ? OR target = ?", (each.n, each.n)
        )
        if row is not None and row[0] >= LINKS:
            raise TooBig(f"{each.id} has {LINKS} links, the limit.", data={"limit": LINKS})
    tx.run(
        "INSERT INTO task_links (source, target, kind) VALUES (?, ?, ?)",
        (source.n, target.n, kind),
    )
    _record(tx, actor, "linked", source, kind, target)
    return True


def _reaches(tx: Transaction, start: int, goal: int, kind: str) -> bool:
    """Return whether links of a kind lead from one task to another."""
    row = tx.one(
        "WITH RECURSIVE reached (n) AS (SELECT CAST(? AS BIGINT) UNION"
        " SELECT task_links.target FROM task_links JOIN reached ON task_links.source = reached.n"
        " WHERE task_links.kind = ?) SELECT 1 FROM reached WHERE n = ? LIMIT 1",
        (start, kind, goal),
    )
    return row is not None


def _record(
    tx: Transaction, actor: str, change: str, source: TaskRow, kind: str, target: TaskRow
) -> None:
    details = {"kind": kind, "from": source.id, "to": target.id}
    now = database_ms(tx)
    for each in (source, target):
        record(tx, now, each.n, change, actor, details)


def add_ref(tx: Transaction, actor: str, task: TaskRow, kind: str, uri: str) -> None:
    """Refer from a task to a run or a diff. Repeating it changes nothing."""
    check_text(uri, "The URI", URI_BYTES)
    if kind == "run" and not RUN.fullmatch(uri):
        raise InvalidParams(
            f"Invalid run {uri[:80]!r}. Use run:// and its number, as in run://42.", code="bad_uri"
        )
    if not URI.fullmatch(uri):
        raise InvalidParams(
            f"Invalid URI {uri[:80]!r}. Use a scheme and an address, as in diff://42.",
            code="bad_uri",
        )
    if tx.one("SELECT 1 FROM task_refs WHERE task = ? AND uri = ?", (task.n, uri)):
        return
    row = tx.one("SELECT COUNT(*) FROM task_refs WHERE task = ?", (task.n,))
    if row is not None and row[0] >= REFS:
        raise TooBig(f"{task.id} has {REFS} references, the limit.", data={"limit": REFS})
    now = database_ms(tx)
    tx.run(
        "INSERT INTO task_refs (task, uri, kind, at_ms) VALUES (?, ?, ?, ?)",
        (task.n, uri, kind, now),
    )
    record(tx, now, task.n, "linked", actor, {"kind": kind, "to": uri})


def unlink(tx: Transaction, principal: str, actor: str, task: str, kind: str, target: str) -> bool:
    """Remove a link or a reference. Returns whether there was one."""
    row = find(tx, principal, task)
    if kind not in LINK_KINDS:
        check_text(target, "The URI", URI_BYTES)
        if not tx.run("DELETE FROM task_refs WHERE task = ? AND uri = ?", (row.n, target)):
            return False
        record(tx, database_ms(tx), row.n, "unlinked", actor, {"kind": kind, "to": target})
        return True
    other = find(tx, principal, target)
    source, sink = (other, row) if kind == "related" and row.n > other.n else (row, other)
    if not tx.run(
        "DELETE FROM task_links WHERE source = ? AND target = ? AND kind = ?",
        (source.n, sink.n, kind),
    ):
        return False
    _record(tx, actor, "unlinked", source, kind, sink)
    return True


# --- reading --------------------------------------------------------------------------------------


def links_of(tx: Transaction, task: int) -> list[TaskLink]:
    """Return the links of a task in both directions."""
    rows = tx.all(
        "SELECT task_links.kind, source.id, target.id FROM task_links"
        " JOIN tasks AS source ON source.n = task_links.source"
        " JOIN tasks AS target ON target.n = task_links.target"
        " WHERE task_links.source = ? OR task_links.target = ?"
        " ORDER BY task_links.kind, source.n, target.n",
        (task, task),
    )
    return [TaskLink(*row) for row in rows]


def refs_of(tx: Transaction, task: int) -> list[dict[str, Any]]:
    """Return the runs and diffs of a task, the oldest first."""
    rows = tx.all(
        "SELECT kind, uri, at_ms FROM task_refs WHERE task = ? ORDER BY at_ms, uri", (task,)
    )
    return [{"kind": kind, "uri": uri, "at_ms": at_ms} for kind, uri, at_ms in rows]


def blockers_of(tx: Transaction, tasks: list[int]) -> dict[int, list[str]]:
    """Return the open blockers of tasks, by the number of the task."""
    found: dict[int, list[str]] = {}
    if not tasks:
        return found
    marks = ", ".join("?" * len(tasks))
    rows = tx.all(
        "SELECT task_links.target, blocker.id FROM task_links"
        " JOIN tasks AS blocker ON blocker.n = task_links.source"
        f" WHERE task_links.kind = 'blocks' AND task_links.target IN ({marks})"
        " AND blocker.status IN ('pending', 'in_progress') ORDER BY blocker.n",
        tasks,
    )
    for task, blocker in rows:
        found.setdefault(task, []).append(blocker)
    return found
