"""Queries of trees: create, read and list them, their references, and their changes.

A tree is active as long as it has references. A tree that is created in several transactions
belongs to a staging principal, without references, until it is complete: if its creator dies, it is
purged like any other tree without references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from activations.arbor.model import (
    OWNER_BYTES,
    STATES,
    ChangeRow,
    Counts,
    NewNode,
    Refs,
    State,
    Tree,
)
from activations.arbor.queries.rows import (
    check_number,
    check_page_size,
    check_text,
    decode_metadata,
    encode_body,
    encode_metadata,
    find_tree,
    find_writable,
    new_ids,
    record_changes,
    reserve_numbers,
)
from plexus.errors import Failed, InvalidParams
from plexus.storage import Row, Transaction

__all__ = (
    "adopt",
    "claim",
    "counts",
    "create",
    "delete",
    "discard",
    "get",
    "get_refs",
    "last_number",
    "list_all_changes",
    "list_changes",
    "list_trees",
    "oldest_change",
    "release",
    "update_metadata",
)

TREE: Final = (
    "trees.n, trees.id, root.id, trees.metadata, trees.owner, trees.state, trees.created_ms,"
    " trees.updated_ms, trees.scheduled_ms, trees.archived_ms, trees.seq"
)
TREES: Final = "trees JOIN nodes AS root ON root.n = trees.root"

CHANGE: Final = (
    "SELECT changes.seq, trees.principal, trees.id, changes.kind, changes.node, changes.at_ms"
    " FROM changes JOIN trees ON trees.n = changes.tree"
)

#: Maximum number of references per call, far from where sums would overflow.
COUNT_MAX: Final = 2**31 - 1


def create(
    tx: Transaction, now: int, principal: str, owner: str, metadata: Any, root: NewNode
) -> Tree:
    """Create a tree with its root and its first reference."""
    check_text(principal, "The principal", OWNER_BYTES)
    check_text(owner, "The owner", OWNER_BYTES)
    text = encode_metadata(metadata)
    body = encode_body(root)
    tree_id, root_id = new_ids(2)
    n = reserve_numbers(tx, 2)
    tx.run(
        "INSERT INTO trees"
        " (n, id, principal, owner, state, root, metadata, created_ms, updated_ms, seq)"
        " VALUES (?, ?, ?, ?, 'active', ?, ?, ?, ?, ?)",
        (n, tree_id, principal, owner, n + 1, text, now, now, n + 1),
    )
    tx.run("INSERT INTO tree_refs (tree, owner, count) VALUES (?, ?, 1)", (n, owner))
    tx.run(
        "INSERT INTO nodes (n, id, tree, position, content, handle, metadata, created_ms)"
        " VALUES (?, ?, ?, 0, ?, ?, ?, ?)",
        (n + 1, root_id, n, *body, now),
    )
    record_changes(tx, n, now, n, [("tree_created", None), ("node_created", root_id)])
    return get(tx, principal, tree_id)


def get(tx: Transaction, principal: str, tree: str) -> Tree:
    """Return a tree. Raises NotFound."""
    n = find_tree(tx, principal, tree).n
    row = tx.one(f"SELECT {TREE} FROM {TREES} WHERE trees.n = ?", (n,))
    assert row is not None
    return _decode_tree(row, get_refs(tx, n))


def get_refs(tx: Transaction, tree: int) -> Refs:
    """Return the references of a tree."""
    owners: dict[str, int] = dict(
        tx.all("SELECT owner, count FROM tree_refs WHERE tree = ?", (tree,))
    )
    return Refs(sum(owners.values()), owners)


def list_trees(
    tx: Transaction, principal: str, state: State | None, after: str, limit: int
) -> list[Tree]:
    """Return a page of trees in this state, by id. None: active or scheduled for deletion."""
    if state is not None and state not in STATES:
        raise InvalidParams(f"Unknown state {state!r}. Use one of {', '.join(STATES)}.")
    check_text(after, "The cursor", OWNER_BYTES)
    states = (state,) if state is not None else ("active", "scheduled_delete")
    marks = ", ".join("?" * len(states))
    rows = tx.all(
        f"SELECT {TREE} FROM {TREES}"
        f" WHERE trees.principal = ? AND trees.id > ? AND trees.state IN ({marks})"
        " ORDER BY trees.id LIMIT ?",
        (principal, after, *states, check_page_size(limit)),
    )
    refs = _refs_of_page(tx, principal, rows)
    return [_decode_tree(row, refs.get(row[0], Refs(0, {}))) for row in rows]


def _refs_of_page(tx: Transaction, principal: str, page: Sequence[Row]) -> dict[int, Refs]:
    if not page:
        return {}
    found: dict[int, dict[str, int]] = {}
    for tree, owner, count in tx.all(
        "SELECT tree_refs.tree, tree_refs.owner, tree_refs.count"
        " FROM trees JOIN tree_refs ON tree_refs.tree = trees.n"
        " WHERE trees.principal = ? AND trees.id >= ? AND trees.id <= ?",
        (principal, page[0][1], page[-1][1]),
    ):
        found.setdefault(tree, {})[owner] = count
    return {tree: Refs(sum(owners.values()), owners) for tree, owners in found.items()}


def _decode_tree(row: Row, refs: Refs) -> Tree:
    _, id_, root, metadata, owner, state, *rest = row
    return Tree(id_, root, decode_metadata(metadata), owner, state, refs, *rest)


def update_metadata(tx: Transaction, now: int, principal: str, tree: str, metadata: Any) -> Tree:
    """Replace the metadata of a tree."""
    text = encode_metadata(metadata)
    found = find_writable(tx, principal, tree)
    tx.run("UPDATE trees SET metadata = ? WHERE n = ?", (text, found.n))
    record_changes(tx, found.n, now, reserve_numbers(tx, 1), [("tree_updated", None)])
    return get(tx, principal, tree)


# --- references -----------------------------------------------------------------------------------


def _check_references(owner: str, count: int) -> None:
    check_text(owner, "The owner", OWNER_BYTES)
    if not 1 <= count <= COUNT_MAX:
        raise InvalidParams(f"Invalid count {count}. Use 1 to {COUNT_MAX}.", data={"given": count})


def claim(tx: Transaction, now: int, principal: str, tree: str, owner: str, count: int) -> Refs:
    """Add references of an owner. Makes a scheduled tree active."""
    _check_references(owner, count)
    found = find_writable(tx, principal, tree)
    tx.run(
        "INSERT INTO tree_refs (tree, owner, count) VALUES (?, ?, ?)"
        " ON CONFLICT (tree, owner) DO UPDATE SET count = tree_refs.count + excluded.count",
        (found.n, owner, count),
    )
    if found.state != "active":
        tx.run("UPDATE trees SET state = 'active', scheduled_ms = NULL WHERE n = ?", (found.n,))
    record_changes(tx, found.n, now, reserve_numbers(tx, 1), [("tree_claimed", None)])
    return get_refs(tx, found.n)


def release(tx: Transaction, now: int, principal: str, tree: str, owner: str, count: int) -> Refs:
    """Remove references of an owner. Removing the last one schedules the tree for deletion.

    Raises Failed (`over_release`).
    """
    _check_references(owner, count)
    found = find_writable(tx, principal, tree)
    refs = get_refs(tx, found.n)
    owned = refs.owners.get(owner, 0)
    if count > owned:
        raise Failed(
            f"Owner {owner!r} has {owned} references and cannot release {count}.",
            code="over_release",
            data={"owner": owner, "held": owned, "count": count},
        )
    if count == owned:
        tx.run("DELETE FROM tree_refs WHERE tree = ? AND owner = ?", (found.n, owner))
    else:
        tx.run(
            "UPDATE tree_refs SET count = count - ? WHERE tree = ? AND owner = ?",
            (count, found.n, owner),
        )
    changes: list[tuple[str, str | None]] = [("tree_released", None)]
    if count == refs.total:
        _schedule(tx, found.n, now)
        changes.append(("tree_scheduled", None))
    record_changes(tx, found.n, now, reserve_numbers(tx, len(changes)), changes)
    return get_refs(tx, found.n)


def delete(tx: Transaction, now: int, principal: str, tree: str) -> Tree:
    """Remove all references and schedule the tree for deletion."""
    found = find_writable(tx, principal, tree)
    if found.state == "active":
        tx.run("DELETE FROM tree_refs WHERE tree = ?", (found.n,))
        _schedule(tx, found.n, now)
        record_changes(tx, found.n, now, reserve_numbers(tx, 1), [("tree_scheduled", None)])
    return get(tx, principal, tree)


def _schedule(tx: Transaction, tree: int, now: int) -> None:
    tx.run("UPDATE trees SET state = 'scheduled_delete', scheduled_ms = ? WHERE n = ?", (now, tree))


# --- staged trees ---------------------------------------------------------------------------------


def adopt(tx: Transaction, now: int, staging: str, tree: str, principal: str, owner: str) -> Tree:
    """Transfer a complete tree from the staging principal, with one reference."""
    check_text(principal, "The principal", OWNER_BYTES)
    check_text(owner, "The owner", OWNER_BYTES)
    found = find_tree(tx, staging, tree)
    tx.run(
        "UPDATE trees SET principal = ?, owner = ?, state = 'active', scheduled_ms = NULL"
        " WHERE n = ?",
        (principal, owner, found.n),
    )
    tx.run("INSERT INTO tree_refs (tree, owner, count) VALUES (?, ?, 1)", (found.n, owner))
    record_changes(tx, found.n, now, reserve_numbers(tx, 1), [("tree_claimed", None)])
    return get(tx, principal, tree)


def discard(tx: Transaction, staging: str, tree: str) -> None:
    """Mark an incomplete tree as gone. The next purge removes its nodes."""
    found = find_tree(tx, staging, tree)
    tx.run("DELETE FROM tree_refs WHERE tree = ?", (found.n,))
    tx.run("UPDATE trees SET state = 'gone', metadata = NULL WHERE n = ?", (found.n,))


# --- changes --------------------------------------------------------------------------------------


def list_changes(
    tx: Transaction, principal: str, tree: str, after: int, limit: int
) -> list[ChangeRow]:
    """Return a page of changes of a tree. Raises Failed (`expired`) if some were purged."""
    found = find_tree(tx, principal, tree)
    forgotten = _oldest_change(tx, found.n)
    if check_number(after, "`after`") < forgotten:
        raise Failed(
            f"Changes up to {forgotten} were purged. Read the tree again and watch from its `seq`.",
            code="expired",
            data={"oldest": forgotten},
        )
    rows = tx.all(
        f"{CHANGE} WHERE changes.tree = ? AND changes.seq > ? ORDER BY changes.seq LIMIT ?",
        (found.n, after, check_page_size(limit)),
    )
    return [ChangeRow(*row) for row in rows]


def oldest_change(tx: Transaction, principal: str, tree: str) -> int:
    """Return the lowest number after which a tree's changes can be read."""
    return _oldest_change(tx, find_tree(tx, principal, tree).n)


def _oldest_change(tx: Transaction, tree: int) -> int:
    row = tx.one("SELECT forgotten FROM trees WHERE n = ?", (tree,))
    assert row is not None
    number: int = row[0]
    return number


def list_all_changes(tx: Transaction, after: int, limit: int) -> list[ChangeRow]:
    """Return a page of changes of all existing trees."""
    rows = tx.all(
        f"{CHANGE} WHERE changes.seq > ? ORDER BY changes.seq LIMIT ?",
        (check_number(after, "`after`"), check_page_size(limit)),
    )
    return [ChangeRow(*row) for row in rows]


def counts(tx: Transaction) -> Counts:
    """Return totals. Deleted nodes that are not purged yet are included: they use space."""
    row = tx.one(
        "SELECT (SELECT count(*) FROM trees WHERE state <> 'gone'),"
        " (SELECT count(*) FROM nodes), (SELECT value FROM numbers)"
    )
    assert row is not None
    return Counts(*row)


def last_number(tx: Transaction) -> int:
    """Return the last assigned number. No change has a higher one."""
    row = tx.one("SELECT value FROM numbers")
    assert row is not None, "created by the first migration"
    number: int = row[0]
    return number
