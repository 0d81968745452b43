"""Between values and rows: what is checked before it is stored, and what is made of a row."""

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

#: The largest number that both databases hold.
NUMBER_MAX: Final = 2**63 - 1

#: What is stored was bounded when it came, perhaps by larger limits than those of today.
STORED_LIMITS: Final = Limits(
    message_containers=1_000_000, message_members=1_000_000, message_values=1_000_000
)

#: The columns of a node, as `node_of` takes them, and where they come from.
NODE: Final = (
    "nodes.n, nodes.id, above.id, nodes.position, nodes.content, nodes.handle, nodes.metadata,"
    " nodes.created_ms, nodes.replaces, nodes.replaced_by"
)
NODES: Final = "nodes LEFT JOIN nodes AS above ON above.n = nodes.parent"


# --- what comes in -------------------------------------------------------------------------------


def check_text(text: str, what: str, limit: int) -> str:
    """A text that both databases hold and give back as it is."""
    if "\0" in text:
        raise InvalidParams(f"{what} contains a NUL character", code="bad_text")
    # Most texts are far below the limit whatever their characters are, and need no counting.
    if len(text) * 4 > limit or not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidParams(f"{what} contains half a character", code="bad_text") from error
        if size > limit:
            raise TooBig(f"{what} is larger than {limit} bytes", data={"limit": limit})
    return text


def encode_metadata(value: Any, what: str = "the metadata") -> str | None:
    """Any JSON value as text; nothing is nothing."""
    if value is None:
        return None
    try:
        data = encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidParams(f"{what} has no JSON form: {error}") from error
    if len(data) > METADATA_BYTES:
        raise TooBig(
            f"{what} is larger than {METADATA_BYTES} bytes", data={"limit": METADATA_BYTES}
        )
    decode_value(data, STORED_LIMITS)  # what could not be read again is refused now
    return data.decode()


def check_number(value: int, what: str) -> int:
    """A number that both databases hold."""
    if not 0 <= value <= NUMBER_MAX:
        raise InvalidParams(f"{what} must be between 0 and {NUMBER_MAX}")
    return value


def check_page_size(limit: int) -> int:
    """How many things to put on a page."""
    if not 1 <= limit <= PAGE_ITEMS:
        raise InvalidParams(
            f"a page holds 1 to {PAGE_ITEMS} of them", data={"limit": PAGE_ITEMS, "given": limit}
        )
    return limit


#: The content, handle and metadata of a new node, as they are stored.
Body = tuple[str | None, str | None, str | None]


def encode_body(item: NewNode) -> Body:
    """What a new node holds; raises if it may not be stored."""
    content, handle = item.content, item.handle
    if (content is None) is (handle is None):
        raise InvalidParams("a node has either content or a handle")
    return (
        None if content is None else check_text(content, "the content", CONTENT_BYTES),
        None if handle is None else check_text(str(handle), "the handle", HANDLE_BYTES),
        encode_metadata(item.metadata),
    )


# --- what is there -------------------------------------------------------------------------------


class TreeRow:
    """The part of a tree that operations on its nodes need."""

    __slots__ = ("id", "n", "root", "state")

    def __init__(self, id_: str, n: int, root: int, state: str) -> None:
        self.id = id_
        self.n = n
        self.root = root
        self.state = state


def is_id(text: str) -> bool:
    """Whether this may be the id of anything; what may not is not looked for."""
    return len(text) == 36 and text.isascii() and "\0" not in text


def find_tree(tx: Transaction, principal: str, tree: str) -> TreeRow:
    """A tree of this principal's, in whatever state."""
    row = None
    if is_id(tree):
        row = tx.one(
            "SELECT n, root, state FROM trees WHERE id = ? AND principal = ? AND state <> 'gone'",
            (tree, principal),
        )
    if row is None:
        raise NotFound(f"there is no tree {tree[:64]!r}", data={"tree": tree[:64]})
    return TreeRow(tree, *row)


def find_writable(tx: Transaction, principal: str, tree: str) -> TreeRow:
    """A tree of this principal's that may be changed."""
    found = find_tree(tx, principal, tree)
    if found.state == "archived":
        raise Failed(
            f"tree {tree} is archived: it can only be read", code="archived", data={"tree": tree}
        )
    return found


def find_node(tx: Transaction, tree: TreeRow, node: str, columns: str = "n") -> Row:
    """These columns of a node of this tree; one of another tree is not there."""
    row = None
    if is_id(node):
        row = tx.one(
            f"SELECT {columns} FROM nodes WHERE id = ? AND tree = ? AND deleted_ms IS NULL",
            (node, tree.n),
        )
    if row is None:
        raise NotFound(
            f"there is no node {node[:64]!r} in tree {tree.id}",
            data={"tree": tree.id, "node": node[:64]},
        )
    return row


# --- what comes out ------------------------------------------------------------------------------


def decode_metadata(text: str | None) -> Any:
    """The value of what `encode_metadata` wrote."""
    return None if text is None else decode_value(text.encode(), STORED_LIMITS)


def decode_node(tree: str, row: Row) -> Node:
    """A node from the columns `NODE`."""
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
    """The nodes of a page, which ends early when it has become large."""
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
    """Reserve this many unused numbers. Returns the first."""
    row = tx.one("UPDATE numbers SET value = value + ? RETURNING value", (count,))
    assert row is not None
    last: int = row[0]
    return last - count + 1


def new_ids(count: int) -> list[str]:
    """So many random ids, in the form of version 4."""
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
    """Write down what happens to a tree: a kind and a node each, numbered from `first` on."""
    rows = [(number, tree, kind, node, now) for number, (kind, node) in enumerate(changes, first)]
    sql = "INSERT INTO changes (seq, tree, kind, node, at_ms) VALUES (?, ?, ?, ?, ?)"
    if len(rows) == 1:
        tx.run(sql, rows[0])
    else:
        tx.many(sql, rows)
    tx.run(
        "UPDATE trees SET seq = ?, updated_ms = ? WHERE n = ?", (first + len(rows) - 1, now, tree)
    )
