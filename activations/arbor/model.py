"""The data model of arbor: trees, nodes, handles and heads, their states, URIs and limits.

The types are named tuples, because a page contains a thousand of them. This module depends on no
database, event loop or wire format.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from annotated_types import Ge, Le

from plexus.errors import InvalidParams

__all__ = (
    "APPEND_ITEMS",
    "CONTENT_BYTES",
    "HANDLE_BYTES",
    "HEAD_KINDS",
    "METADATA_BYTES",
    "NAME_BYTES",
    "NODE_TEMPLATE",
    "OWNER_BYTES",
    "PAGE_BYTES",
    "PAGE_ITEMS",
    "PLAIN",
    "QUERY_BYTES",
    "STATES",
    "TREE_TEMPLATE",
    "UNCHANGED",
    "ChangeKind",
    "ChangeRow",
    "Counts",
    "DrawnNode",
    "Handle",
    "Head",
    "Hit",
    "NewNode",
    "Node",
    "NodeInfo",
    "NodeStub",
    "PageSize",
    "Position",
    "PurgeResult",
    "Refs",
    "Retention",
    "State",
    "Tree",
    "media_type",
    "node_uri",
    "title_of",
    "tree_uri",
)

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_S: Final = 24 * 3600

#: Maximum size of a node's text, as UTF-8. Longer content belongs in a file, behind a handle.
CONTENT_BYTES: Final = 4 * MIB
#: Maximum size of the metadata of a tree or node, and of the data of a head, as JSON.
METADATA_BYTES: Final = 64 * KIB
#: Maximum size of a handle in its text form.
HANDLE_BYTES: Final = 16 * KIB
#: Maximum size of an owner's name.
OWNER_BYTES: Final = 1 * KIB
#: Maximum size of the name of a head, and of its space.
NAME_BYTES: Final = 256
#: Maximum size of a search query.
QUERY_BYTES: Final = 4 * KIB
#: Maximum number of nodes in one append: one transaction, which blocks other writers.
APPEND_ITEMS: Final = 10_000
#: Maximum number of items on a page.
PAGE_ITEMS: Final = 1_000
#: The parameter `limit` of a method that returns a page.
PageSize: TypeAlias = Annotated[int, Ge(1), Le(PAGE_ITEMS)]
#: A page ends early after this many characters of text, so that memory stays bounded.
PAGE_BYTES: Final = 8 * MIB

#: A tree with references is active. Without references it is scheduled for deletion and can still
#: be claimed, later archived and read-only, and finally removed.
State: TypeAlias = Literal["active", "scheduled_delete", "archived"]
STATES: Final[tuple[State, ...]] = ("active", "scheduled_delete", "archived")

ChangeKind: TypeAlias = Literal[
    "tree_created",
    "tree_updated",
    "tree_claimed",
    "tree_released",
    "tree_scheduled",
    "tree_archived",
    "node_created",
    "node_edited",
    "node_moved",
    "node_deleted",
    "head_created",
    "head_moved",
    "head_renamed",
    "head_deleted",
]
#: Changes of heads. The node of such a change is the new position of the head; the node itself is
#: unchanged.
HEAD_KINDS: Final[frozenset[ChangeKind]] = frozenset(
    ("head_created", "head_moved", "head_renamed", "head_deleted")
)

#: Passed instead of new data of a head to leave the data unchanged. (None is valid data.)
UNCHANGED: Final[object] = object()


_RESERVED = re.compile("[%:@]")
_ESCAPE = re.compile("%(25|3A|40)?")


def _escape(text: str) -> str:
    return _RESERVED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        if found[1] is None:
            raise InvalidParams(
                f"Invalid escape in the handle part {text[:200]!r}. Use %25, %3A or %40.",
                code="bad_handle",
                data={"at": text},
            )
        return chr(int(found[1], 16))

    return _ESCAPE.sub(plain, text)


class Handle(NamedTuple):
    """A reference to data of a plugin. Opaque to arbor.

    The text form is `plugin@version::method:meta:meta`. `%`, `:` and `@` within a part are escaped
    as `%25`, `%3A` and `%40`, so every value round-trips.
    """

    plugin: str
    version: str
    method: str
    meta: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{_escape(self.plugin)}@{_escape(self.version)}::{_escape(self.method)}"
        return "".join([head, *(f":{_escape(each)}" for each in self.meta)])

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parse the text form. Raises InvalidParams (`bad_handle`)."""
        plugin, at, rest = text.partition("@")
        version, *parts = rest.split(":")
        if not at or "@" in rest or ":" in plugin or len(parts) < 2 or parts[0]:
            raise InvalidParams(
                f"Invalid handle {text[:200]!r}. Use plugin@version::method:meta:...",
                code="bad_handle",
                data={"handle": text[:200]},
            )
        method, *meta = (_unescape(part) for part in parts[1:])
        return cls(_unescape(plugin), _unescape(version), method, tuple(meta))


class Position(NamedTuple):
    """A position in a tree."""

    tree: str
    node: str


class Refs(NamedTuple):
    """The reference counts of a tree, total and by owner."""

    total: int
    owners: dict[str, int]


class Tree(NamedTuple):
    """A tree, without its nodes. Times are in milliseconds."""

    id: str
    root: str
    metadata: Any
    owner: str
    state: State
    refs: Refs
    created_ms: int
    updated_ms: int
    scheduled_ms: int | None
    archived_ms: int | None
    #: The number of the last change. Watching after this number yields only new changes.
    seq: int


class Node(NamedTuple):
    """A node: text, or a handle to external data. Immutable except for its position.

    `n` is the insertion number, which is also the cursor of lists of nodes.
    """

    n: int
    id: str
    tree: str
    parent: str | None
    #: The sort key among siblings, with gaps.
    position: int
    content: str | None
    handle: Handle | None
    metadata: Any
    created_ms: int
    #: The previous and the next version.
    replaces: str | None
    replaced_by: str | None


class NodeStub(NamedTuple):
    """A node without its content."""

    n: int
    id: str
    parent: str | None
    position: int
    external: bool
    replaced: bool


class DrawnNode(NamedTuple):
    """A node in a drawing: the beginning of its text, and the number of its children."""

    n: int
    id: str
    #: The number of its parent; None for the first node of the drawing.
    parent: int | None
    text: str | None
    handle: Handle | None
    replaced: bool
    children: int


class NodeInfo(NamedTuple):
    """A node in a list of resources: the beginning of its text, or its handle."""

    tree: str
    node: str
    text: str
    metadata: Any


class NewNode(NamedTuple):
    """A node to add, with either content or a handle."""

    content: str | None = None
    handle: Handle | None = None
    metadata: Any = None
    #: The index of an earlier item of the same list, or the id of a node. None: the default parent.
    parent: int | str | None = None
    #: The sort key among siblings. None: last.
    position: int | None = None
    #: The version that it replaces: the index of an earlier item, or the id of a node.
    replaces: int | str | None = None


class Head(NamedTuple):
    """A named pointer to a node, with data of its creator: the current end of a conversation.

    Names are unique within a space, so that plugins can choose names independently. A head keeps
    its tree alive by its own reference. A holder works on a head under a lease, which it renews
    regularly.
    """

    id: str
    space: str
    name: str
    position: Position
    data: Any
    created_ms: int
    #: When the head was last moved or renamed, or its data was updated.
    updated_ms: int
    #: The holder of the lease, and when the lease was last renewed.
    holder: str | None
    held_ms: int | None


class Hit(NamedTuple):
    """A search result: a node, and the part of its text around the first match."""

    node: Node
    excerpt: str


class ChangeRow(NamedTuple):
    """A change of a tree. `seq` increases with every change, across all trees."""

    seq: int
    principal: str
    tree: str
    kind: ChangeKind
    node: str | None
    at_ms: int


class PurgeResult(NamedTuple):
    """The number of items that a purge has processed."""

    archived: int = 0
    removed: int = 0
    nodes: int = 0
    changes: int = 0


class Counts(NamedTuple):
    """Totals over all principals."""

    trees: int
    nodes: int
    seq: int


class Retention(NamedTuple):
    """Retention periods, in seconds."""

    #: From the last release until a tree is archived. Also the retention of deleted nodes.
    scheduled_s: float = 7 * DAY_S
    #: From archiving until removal.
    archived_s: float = 30 * DAY_S
    #: Retention of changes, which limits how late a watch can be resumed.
    changes_s: float = 30 * DAY_S


# --- resources ------------------------------------------------------------------------------------

TREE_TEMPLATE = "arbor://tree/{tree}"
NODE_TEMPLATE = "arbor://tree/{tree}/node/{node}"
PLAIN = "text/plain"


def tree_uri(tree: str) -> str:
    """Return the URI of a tree."""
    return f"arbor://tree/{tree}"


def node_uri(tree: str, node: str) -> str:
    """Return the URI of a node."""
    return f"arbor://tree/{tree}/node/{node}"


def media_type(metadata: Any) -> str | None:
    """Return the media type in a node's metadata, if any."""
    kind = metadata.get("media_type") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) and kind else None


def title_of(metadata: Any) -> str | None:
    """Return the title in the metadata of a tree or node, if any."""
    title = metadata.get("title") if isinstance(metadata, dict) else None
    return title if isinstance(title, str) and title else None
