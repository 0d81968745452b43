"""Conversion between values and rows: validation, encoding, lookup and decoding."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from activations.tasks.model import (
    ACCEPTANCE_BYTES,
    ACCEPTANCE_ITEMS,
    CHANGES_KEPT,
    ID_PREFIX,
    LABEL_CHARACTERS,
    LABELS,
    LOST_LIMIT,
    NORMAL,
    Task,
)
from plexus.errors import InvalidParams, NotFound, TooBig
from plexus.limits import Limits
from plexus.rpc.wire import decode_value, encode
from plexus.storage import Transaction

__all__ = (
    "COLUMNS",
    "TaskRow",
    "check_acceptance",
    "check_labels",
    "check_text",
    "database_ms",
    "decode",
    "encode_value",
    "find",
    "is_id",
    "new_id",
    "not_found",
    "record",
    "short",
    "shown",
)

#: Digits of ids: base 32 without letters that people confuse.
DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
ID_DIGITS: Final = 8
ID: Final = re.compile(f"{ID_PREFIX}[{DIGITS}]{{{ID_DIGITS}}}")
#: The beginning of an id, with or without its prefix, as people type it.
ID_START: Final = re.compile(f"(?:{ID_PREFIX})?([{DIGITS}]{{3,{ID_DIGITS}}})")
LABEL: Final = re.compile(r"[\w.:/+-]+")
#: Maximum characters of a description in a list.
SHORT_CHARACTERS: Final = 200
#: Limits for decoding stored values.
STORED_LIMITS: Final = Limits()

COLUMNS: Final = (
    "n, id, project, status, description, kind, priority, labels, acceptance, reason, creator,"
    " created_ms, updated_ms, closed_ms, seq, holder, lease, lease_ref, lease_process, lease_until,"
    " claimed_ms, lost"
)


class TaskRow(NamedTuple):
    """The columns of a task, in the order of `COLUMNS`."""

    n: int
    id: str
    project: str
    status: str
    description: str
    kind: str
    priority: int
    labels: str
    acceptance: str | None
    reason: str | None
    creator: str
    created_ms: int
    updated_ms: int
    closed_ms: int | None
    seq: int
    holder: str | None
    lease: str | None
    lease_ref: str | None
    lease_process: int | None
    lease_until: int | None
    claimed_ms: int | None
    lost: int

    @property
    def label_list(self) -> list[str]:
        """The labels."""
        return self.labels.strip(",").split(",") if self.labels else []


# --- validation and encoding ----------------------------------------------------------------------


def check_text(text: str, what: str, limit: int) -> str:
    """Return a text that both databases store unchanged. Raises InvalidParams or TooBig."""
    if not text.strip():
        raise InvalidParams(f"{what} must not be blank.", code="bad_text")
    if "\0" in text:
        raise InvalidParams(f"{what} must not contain a NUL character.", code="bad_text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidParams(f"{what} contains an unpaired surrogate.", code="bad_text") from error
    if size > limit:
        raise TooBig(f"{what} has {size} bytes, more than {limit}.", data={"limit": limit})
    return text


def check_labels(labels: Sequence[str]) -> str:
    """Return the labels as they are stored: lower case, sorted, between commas."""
    if len(labels) > LABELS:
        raise TooBig(f"{len(labels)} labels are more than {LABELS}.", data={"limit": LABELS})
    for label in labels:
        if not LABEL.fullmatch(label) or len(label) > LABEL_CHARACTERS:
            raise InvalidParams(
                f"Invalid label {label[:80]!r}. Use 1 to {LABEL_CHARACTERS} letters, digits and"
                " any of . : / + - _",
                code="bad_label",
            )
    found = sorted({label.lower() for label in labels})
    return f",{','.join(found)}," if found else ""


def check_acceptance(criteria: Sequence[str], met: Sequence[int] = ()) -> str | None:
    """Return acceptance criteria as they are stored; `met` has the numbers of those that are met.

    They are counted from 1.
    """
    if len(criteria) > ACCEPTANCE_ITEMS:
        raise TooBig(
            f"{len(criteria)} acceptance criteria are more than {ACCEPTANCE_ITEMS}.",
            data={"limit": ACCEPTANCE_ITEMS},
        )
    for number in met:
        if not 1 <= number <= len(criteria):
            raise InvalidParams(
                f"There is no acceptance criterion {number}; the task has {len(criteria)}.",
                code="bad_criterion",
            )
    if not criteria:
        return None
    entries = [
        {"text": check_text(each, f"Criterion {number}", ACCEPTANCE_BYTES), "met": number in met}
        for number, each in enumerate(criteria, 1)
    ]
    return encode_value(entries)


def encode_value(value: Any) -> str:
    """Encode a JSON value for a column."""
    return encode(value).decode()


def decode(text: str | None) -> Any:
    """Decode the result of `encode_value`."""
    return None if text is None else decode_value(text.encode(), STORED_LIMITS)


# --- lookup ---------------------------------------------------------------------------------------


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return ID.fullmatch(text) is not None


def new_id() -> str:
    """Return a random id."""
    return ID_PREFIX + "".join(DIGITS[byte & 31] for byte in os.urandom(ID_DIGITS))


def not_found(task: str) -> NotFound:
    """Return the error for a task that is missing or not visible."""
    name = task[:64]
    data = {"task": name, "next": "List tasks with tasks.list_tasks."}
    return NotFound(f"error: task not found: {name}", data=data)


def find(tx: Transaction, principal: str, task: str) -> TaskRow:
    """Return a task of this principal by its id, or by the beginning of it. Raises NotFound."""
    found = ID_START.fullmatch(task)
    if found is None:
        raise not_found(task)
    start = ID_PREFIX + found[1]
    rows = tx.all(
        f"SELECT {COLUMNS} FROM tasks WHERE id >= ? AND id < ? AND principal = ?"
        " AND status <> 'deleted' ORDER BY id LIMIT 3",
        (start, start + "~", principal),
    )
    if not rows:
        raise not_found(task)
    if len(rows) > 1:
        names = ", ".join(row[1] for row in rows)
        raise InvalidParams(f"{task} is the beginning of several ids: {names}.", code="ambiguous")
    return TaskRow(*rows[0])


# --- changes --------------------------------------------------------------------------------------


def record(tx: Transaction, now: int, task: int, kind: str, actor: str, details: Any = None) -> int:
    """Record a change of a task. Returns its number, which becomes that of the task."""
    row = tx.one("UPDATE task_numbers SET value = value + 1 RETURNING value")
    assert row is not None, "the table has one row"
    seq: int = row[0]
    tx.run(
        "INSERT INTO task_changes (seq, task, kind, actor, at_ms, details)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (seq, task, kind, actor, now, None if details is None else encode_value(details)),
    )
    tx.run("UPDATE tasks SET seq = ?, updated_ms = ? WHERE n = ?", (seq, now, task))
    if seq % 64 == 0:  # not at every change, because it reads many rows
        tx.run(
            "DELETE FROM task_changes WHERE task = ? AND seq <= (SELECT seq FROM task_changes"
            " WHERE task = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            (task, task, CHANGES_KEPT),
        )
    return seq


def database_ms(tx: Transaction) -> int:
    """Return the time of the database, in milliseconds since the epoch."""
    if tx.dialect == "sqlite":
        return time.time_ns() // 1_000_000
    row = tx.one("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")
    assert row is not None, "this query returns a row"
    return int(row[0])


# --- decoding -------------------------------------------------------------------------------------


def shown(row: TaskRow) -> Task:
    """Return a task as callers see it: fields with their default value are absent."""
    task: Task = {"id": row.id, "description": row.description, "status": row.status}
    if row.priority != NORMAL:
        task["priority"] = row.priority
    if row.kind != "task":
        task["type"] = row.kind
    if row.labels:
        task["labels"] = row.label_list
    if row.acceptance is not None:
        task["acceptance"] = decode(row.acceptance)
    if row.holder is not None and row.status == "in_progress":
        task["holder"] = row.holder
    if row.status == "pending" and row.lost >= LOST_LIMIT:
        task["stuck"] = True
    if row.reason is not None:
        task["reason"] = row.reason
    return task


def short(row: TaskRow) -> Task:
    """Return a task as lists show it."""
    task = shown(row)
    task.pop("acceptance", None)
    task.pop("reason", None)
    if len(row.description) > SHORT_CHARACTERS:
        task["description"] = row.description[: SHORT_CHARACTERS - 1] + "…"
    return task
