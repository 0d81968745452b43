"""The query that imports tasks from exported lines.

An import adds what is missing and changes nothing that exists: an old file cannot undo work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from activations.tasks.model import (
    CLOSED,
    DESCRIPTION_BYTES,
    IMPORT_LINES,
    KINDS,
    LINK_KINDS,
    NORMAL,
    NOTE_BYTES,
    NOTES,
    REASON_BYTES,
    REFS,
    TASKS,
    Caller,
)
from activations.tasks.queries.links import add_link, add_ref
from activations.tasks.queries.rows import (
    TaskRow,
    check_acceptance,
    check_labels,
    check_text,
    database_ms,
    find,
    is_id,
    record,
)
from activations.tasks.queries.tasks import insert
from plexus.errors import InvalidParams, PlexusError, TooBig
from plexus.storage import Transaction

__all__ = ("import_tasks",)

#: The fields of a line that are read, and their types. Others are ignored.
FIELDS: Final[dict[str, type]] = {
    "id": str,
    "description": str,
    "status": str,
    "type": str,
    "priority": int,
    "labels": list,
    "acceptance": list,
    "reason": str,
    "created_ms": int,
    "closed_ms": int,
    "notes": list,
    "links": list,
    "refs": list,
}


def import_tasks(
    tx: Transaction, caller: Caller, project: str, lines: Sequence[Any]
) -> dict[str, int]:
    """Import tasks. Returns how many were imported, and how many existed.

    Raises InvalidParams, which names the line, and then imports nothing.
    """
    if len(lines) > IMPORT_LINES:
        raise TooBig(
            f"The import has {len(lines)} lines, more than {IMPORT_LINES}.",
            data={"limit": IMPORT_LINES},
        )
    count = tx.one("SELECT COUNT(*) FROM tasks WHERE principal = ?", (caller.principal,))
    if count is not None and count[0] + len(lines) > TASKS:
        raise TooBig(f"You would have more than {TASKS} tasks.", data={"limit": TASKS})
    imported: list[tuple[int, dict[str, Any], TaskRow]] = []
    existing = 0
    names: set[str] = set()
    for number, line in enumerate(lines, 1):
        try:
            fields = _checked(line)
            if fields["id"] in names:
                raise InvalidParams(f"the id {fields['id']} occurs twice")
            names.add(fields["id"])
            taken = tx.one("SELECT principal FROM tasks WHERE id = ?", (fields["id"],))
            if taken is None:
                imported.append((number, fields, _insert(tx, caller, project, fields)))
            elif taken[0] == caller.principal:
                existing += 1
            else:
                raise InvalidParams(f"the id {fields['id']} is in use")
        except PlexusError as error:
            raise _at_line(number, error) from error
    for number, fields, row in imported:
        try:
            _add_links(tx, caller, row, fields, names)
        except PlexusError as error:
            raise _at_line(number, error) from error
    return {"imported": len(imported), "existing": existing}


def _at_line(number: int, error: PlexusError) -> InvalidParams:
    return InvalidParams(
        f"Line {number}: {error.message} Nothing was imported.",
        code="bad_import",
        data={"line": number},
    )


def _checked(line: Any) -> dict[str, Any]:
    """Return the fields of a line. Raises InvalidParams."""
    if not isinstance(line, dict):
        raise InvalidParams("not an object")
    fields = {name: line[name] for name in FIELDS if line.get(name) is not None}
    for name, value in fields.items():
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise InvalidParams(f"{name} must be a {FIELDS[name].__name__}")
    if not is_id(fields.get("id", "")):
        raise InvalidParams("the id is missing or invalid")
    if "description" not in fields:
        raise InvalidParams("the description is missing")
    if fields.setdefault("status", "pending") not in ("pending", "in_progress", *CLOSED):
        raise InvalidParams(f"unknown status {fields['status'][:40]!r}")
    if fields.setdefault("type", "task") not in KINDS:
        raise InvalidParams(f"unknown type {fields['type'][:40]!r}")
    if not 0 <= fields.setdefault("priority", NORMAL) <= 4:
        raise InvalidParams(f"the priority {fields['priority']} is not 0 to 4")
    for name in ("created_ms", "closed_ms"):
        if not 0 <= fields.get(name, 0) < 2**53:
            raise InvalidParams(f"{name} is not a time")
    return fields


def _insert(tx: Transaction, caller: Caller, project: str, fields: dict[str, Any]) -> TaskRow:
    now = database_ms(tx)
    labels = fields.get("labels", [])
    criteria = fields.get("acceptance", [])
    if not all(isinstance(each, str) for each in labels):
        raise InvalidParams("labels must be texts")
    if not all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in criteria):
        raise InvalidParams("acceptance must be objects with a text")
    met = [number for number, each in enumerate(criteria, 1) if each.get("met") is True]
    status = fields["status"] if fields["status"] in CLOSED else "pending"
    reason = fields.get("reason")
    row = insert(
        tx,
        caller,
        project,
        id=fields["id"],
        description=check_text(fields["description"], "The description", DESCRIPTION_BYTES),
        status=status,
        kind=fields["type"],
        priority=fields["priority"],
        labels=check_labels(labels),
        acceptance=check_acceptance([each["text"] for each in criteria], met),
        reason=None if reason is None else check_text(reason, "The reason", REASON_BYTES),
        created_ms=fields.get("created_ms", now),
        closed_ms=fields.get("closed_ms", now) if status in CLOSED else None,
    )
    notes = fields.get("notes", [])
    if len(notes) > NOTES:
        raise TooBig(f"more than {NOTES} notes")
    for note in notes:
        if not isinstance(note, dict) or not isinstance(note.get("text"), str):
            raise InvalidParams("notes must be objects with a text")
        author = note.get("author")
        at_ms = note.get("at_ms")
        tx.run(
            "INSERT INTO task_notes (n, task, author, content, at_ms) VALUES (?, ?, ?, ?, ?)",
            (
                record(tx, now, row.n, "noted", caller.name),
                row.n,
                author[:200].replace("\0", "") if isinstance(author, str) else caller.name,
                check_text(note["text"], "A note", NOTE_BYTES),
                at_ms if isinstance(at_ms, int) and 0 <= at_ms < 2**53 else now,
            ),
        )
    return row


def _add_links(
    tx: Transaction, caller: Caller, row: TaskRow, fields: dict[str, Any], names: set[str]
) -> None:
    """Add the links of an imported task. Those to tasks that do not exist are left out."""
    for each in fields.get("links", []):
        if not isinstance(each, dict) or each.get("kind") not in LINK_KINDS:
            raise InvalidParams("a link must have kind, source and target")
        ends = [str(each.get(name)) for name in ("source", "target")]
        if row.id not in ends or not all(map(is_id, ends)):
            raise InvalidParams("a link must name this task and another by their ids")
        if all(end in names or _exists(tx, caller, end) for end in ends):
            source, target = (find(tx, caller.principal, end) for end in ends)
            add_link(tx, caller.name, source, each["kind"], target)
    refs = fields.get("refs", [])
    if len(refs) > REFS:
        raise TooBig(f"more than {REFS} references")
    for each in refs:
        if not isinstance(each, dict) or not isinstance(each.get("uri"), str):
            raise InvalidParams("a reference must have a URI")
        add_ref(tx, caller.name, row, "run" if each.get("kind") == "run" else "diff", each["uri"])


def _exists(tx: Transaction, caller: Caller, task: str) -> bool:
    return bool(
        tx.one(
            "SELECT 1 FROM tasks WHERE id = ? AND principal = ? AND status <> 'deleted'",
            (task, caller.principal),
        )
    )
