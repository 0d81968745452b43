"""Conversion between values and rows: validation, encoding, lookup and decoding."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

from activations.arbor.model import (
    CONTENT_BYTES,
    HANDLE_BYTES,
    METADATA_BYTES,
    PAGE_BYTES,
    PAGE_ITEMS,
    Handle,
    NewNode,
    Node,
)
from plexus.errors import Failed, InvalidParams, NotFound, TooBig
from plexus.limits import Limits
from plexus.rpc.wire import decode_value, encode
from plexus.storage import Row, Transaction

__all__ = (
    "NODE",
    "NODES",
    "NUMBER_MAX",
    "STORED_LIMITS",
    "Body",
    "TreeRow",
    "check_number",
    "check_page_size",
    "check_text",
    "decode_metadata",
    "decode_node",
    "encode_body",
    "encode_metadata",
    "find_node",
    "find_tree",
    "find_writable",
    "is_id",
    "new_ids",
    "read_page",
    "record_changes",
    "reserve_numbers",
)

#: The largest integer that both databases store.
NUMBER_MAX: Final = 2**63 - 1

#: Limits for decoding stored values, which may have been written under larger limits.
STORED_LIMITS: Final = Limits(
    message_containers=1_000_000, message_members=1_000_000, message_values=1_000_000
)

#: The columns of a node for `decode_node`, and their tables.
NODE: Final = (
    "nodes.n, nodes.id, above.id, nodes.position, nodes.content, nodes.handle, nodes.metadata,"
    " nodes.created_ms, nodes.replaces, nodes.replaced_by"
)
NODES: Final = "nodes LEFT JOIN nodes AS above ON above.n = nodes.parent"


# --- validation and encoding ---------------------------------------------------------------------


def check_text(text: str, what: str, limit: int) -> str:
    """Return a text that both databases store unchanged. Raises InvalidParams or TooBig."""
    if "\0" in text:
        raise InvalidParams(f"{what} must not contain a NUL character.", code="bad_text")
    # Most texts are far below the limit with any encoding, and need not be encoded.
    if len(text) * 4 > limit or not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidParams(
                f"{what} contains an unpaired surrogate.", code="bad_text"
            ) from error
        if size > limit:
            raise TooBig(f"{what} has {size} bytes, more than {limit}.", data={"limit": limit})
    return text


def encode_metadata(value: Any, what: str = "The metadata") -> str | None:
    """Encode a JSON value, None as None. Raises InvalidParams or TooBig."""
    if value is None:
        return None
    try:
        data = encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidParams(f"{what} cannot be encoded as JSON: {error}") from error
    if len(data) > METADATA_BYTES:
        raise TooBig(
            f"{what} has {len(data)} bytes, more than {METADATA_BYTES}.",
            data={"limit": METADATA_BYTES},
        )
    decode_value(data, STORED_LIMITS)  # refuse what could not be decoded later
    return data.decode()


def check_number(value: int, what: str) -> int:
    """Return a number that both databases store. Raises InvalidParams."""
    if not 0 <= value <= NUMBER_MAX:
        raise InvalidParams(f"{what} must be between 0 and {NUMBER_MAX}, not {value}.")
    return value


def check_page_size(limit: int) -> int:
    """Return the size of a page. Raises InvalidParams."""
    if not 1 <= limit <= PAGE_ITEMS:
        raise InvalidParams(
            f"Invalid page size {limit}. Use 1 to {PAGE_ITEMS}.",
            data={"limit": PAGE_ITEMS, "given": limit},
        )
    return limit


#: The stored form of content, handle and metadata of a new node.
Body = tuple[str | None, str | None, str | None]


def encode_body(item: NewNode) -> Body:
    """Encode the body of a new node. Raises InvalidParams or TooBig."""
    content, handle = item.content, item.handle
    if (content is None) is (handle is None):
        raise InvalidParams("Pass either content or handle for a node.")
    return (
        None if content is None else check_text(content, "The content", CONTENT_BYTES),
        None if handle is None else check_text(str(handle), "The handle", HANDLE_BYTES),
        encode_metadata(item.metadata),
    )


# --- lookup --------------------------------------------------------------------------------------


class TreeRow:
    """The columns of a tree that operations on its nodes need."""

    __slots__ = ("id", "n", "root", "state")

    def __init__(self, id_: str, n: int, root: int, state: str) -> None:
        self.id = id_
        self.n = n
        self.root = root
        self.state = state


def is_id(text: str) -> bool:
    """Return whether a text can be an id, so that other texts are not looked up."""
    return len(text) == 36 and text.isascii() and "\0" not in text


def find_tree(tx: Transaction, principal: str, tree: str) -> TreeRow:
    """Return a tree of this principal, in any state. Raises NotFound."""
    row = None
    if is_id(tree):
        row = tx.one(
            "SELECT n, root, state FROM trees WHERE id = ? AND principal = ? AND state <> 'gone'",
            (tree, principal),
        )
    if row is None:
        raise NotFound(
            f"Unknown tree {tree[:64]!r}. List your trees with arbor.tree_list.",
            data={"tree": tree[:64]},
        )
    return TreeRow(tree, *row)


def find_writable(tx: Transaction, principal: str, tree: str) -> TreeRow:
    """Return a tree of this principal that is not archived. Raises NotFound or Failed."""
    found = find_tree(tx, principal, tree)
    if found.state == "archived":
        raise Failed(
            f"Tree {tree} is archived and read-only.", code="archived", data={"tree": tree}
        )
    return found


def find_node(tx: Transaction, tree: TreeRow, node: str, columns: str = "n") -> Row:
    """Return columns of a node of this tree. Raises NotFound, also for nodes of other trees."""
    row = None
    if is_id(node):
        row = tx.one(
            f"SELECT {columns} FROM nodes WHERE id = ? AND tree = ? AND deleted_ms IS NULL",
            (node, tree.n),
        )
    if row is None:
        raise NotFound(
            f"Unknown node {node[:64]!r} in tree {tree.id}. See its nodes with arbor.tree_render.",
            data={"tree": tree.id, "node": node[:64]},
        )
    return row


# --- decoding ------------------------------------------------------------------------------------


def decode_metadata(text: str | None) -> Any:
    """Decode the result of `encode_metadata`."""
    return None if text is None else decode_value(text.encode(), STORED_LIMITS)


def decode_node(tree: str, row: Row) -> Node:
    """Return a node from the columns `NODE`."""
    n, id_, parent, position, content, handle, metadata, created_ms, replaces, replaced_by = row
    return Node(
        n,
        id_,
        tree,
        parent,
        position,
        content,
        handle if handle is None else Handle.parse(handle),
        metadata if metadata is None else decode_metadata(metadata),
        created_ms,
        replaces,
        replaced_by,
    )


def read_page(tree: str, rows: Iterable[Row]) -> list[Node]:
    """Return the nodes of a page, which ends early when its text is large."""
    return list(_until_large(tree, rows))


def _until_large(tree: str, rows: Iterable[Row]) -> Iterator[Node]:
    left = PAGE_BYTES
    for row in rows:
        yield decode_node(tree, row)
        left -= len(row[4] or row[5] or "")
        if left <= 0:
            return


# --- numbers, ids and the record of changes ------------------------------------------------------


def reserve_numbers(tx: Transaction, count: int) -> int:
    """Reserve consecutive unused numbers. Returns the first."""
    row = tx.one("UPDATE numbers SET value = value + ? RETURNING value", (count,))
    assert row is not None
    last: int = row[0]
    return last - count + 1


def new_ids(count: int) -> list[str]:
    """Return random ids in the format of UUID version 4."""
    digits = os.urandom(16 * count).hex()
    ids = []
    for start in range(0, 32 * count, 32):
        d = digits[start : start + 32]
        variant = "89ab"[int(d[16], 16) & 3]
        ids.append(f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{variant}{d[17:20]}-{d[20:]}")
    return ids


def record_changes(
    tx: Transaction,
    tree: int,
    now: int,
    first: int,
    changes: list[tuple[str, str | None]],
) -> None:
    """Record changes of a tree, each a kind and a node, numbered from `first`."""
    rows = [(number, tree, kind, node, now) for number, (kind, node) in enumerate(changes, first)]
    sql = "INSERT INTO changes (seq, tree, kind, node, at_ms) VALUES (?, ?, ?, ?, ?)"
    if len(rows) == 1:
        tx.run(sql, rows[0])
    else:
        tx.many(sql, rows)
    tx.run(
        "UPDATE trees SET seq = ?, updated_ms = ? WHERE n = ?", (first + len(rows) - 1, now, tree)
    )
