"""What arbor stores: trees, nodes, handles and heads, their states, addresses and limits.

Plain tuples with names, because a page holds a thousand of them.
Nothing here knows a database, a loop or a wire.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
    "Position",
    "PurgeResult",
    "Refs",
    "Retention",
    "State",
    "Tree",
    "check_range",
    "media_type",
    "node_uri",
    "title_of",
    "tree_uri",
)

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_S: Final = 24 * 3600

#: One node's text, as UTF-8. A longer one is a file, and belongs behind a handle.
CONTENT_BYTES: Final = 4 * MIB
#: The JSON of one tree's or node's metadata, and of one head's data.
METADATA_BYTES: Final = 64 * KIB
#: The text form of one handle.
HANDLE_BYTES: Final = 16 * KIB
#: The name of an owner.
OWNER_BYTES: Final = 1 * KIB
#: The name of a head, and of the space that it is in.
NAME_BYTES: Final = 256
#: What is searched for.
QUERY_BYTES: Final = 4 * KIB
#: Nodes in one append: one transaction, which others wait for.
APPEND_ITEMS: Final = 10_000
#: Things on one page of a list.
PAGE_ITEMS: Final = 1_000
#: Text on one page: it ends early after this many characters, so that memory stays bounded.
PAGE_BYTES: Final = 8 * MIB

#: A tree with references is active. Without any it is scheduled, and can still be claimed; then
#: archived, which can only be read; then it is removed.
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
#: What happens to a head. The node of such a change is where the head stands after it, and is
#: itself as it was.
HEAD_KINDS: Final[frozenset[ChangeKind]] = frozenset(
    ("head_created", "head_moved", "head_renamed", "head_deleted")
)

#: In the place of a head's new data: leave it as it is. (None is data too.)
UNCHANGED: Final[object] = object()


def check_range(name: str, value: int, least: int, most: int) -> int:
    """Return the value of a parameter. Raises InvalidParams if it is out of range."""
    if not least <= value <= most:
        raise InvalidParams.at(name, f"must be from {least} to {most}")
    return value


_RESERVED = re.compile("[%:@]")
_ESCAPE = re.compile("%(25|3A|40)?")


def _escape(text: str) -> str:
    return _RESERVED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        if found[1] is None:
            raise InvalidParams(
                "a % in a handle is followed by 25, 3A or 40", code="bad_handle", data={"at": text}
            )
        return chr(int(found[1], 16))

    return _ESCAPE.sub(plain, text)


class Handle(NamedTuple):
    """What a plugin needs to find something of its own: arbor keeps it and does not look inside.

    As text it is `plugin@version::method:meta:meta`; `%`, `:` and `@` within a part are written
    `%25`, `%3A` and `%40`, so that every value comes back as it was.
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
        """Read the text form; raises `InvalidParams` with the code `bad_handle`."""
        plugin, at, rest = text.partition("@")
        version, *parts = rest.split(":")
        if not at or "@" in rest or ":" in plugin or len(parts) < 2 or parts[0]:
            raise InvalidParams(
                "a handle is written plugin@version::method:meta:...",
                code="bad_handle",
                data={"handle": text[:200]},
            )
        method, *meta = (_unescape(part) for part in parts[1:])
        return cls(_unescape(plugin), _unescape(version), method, tuple(meta))


class Position(NamedTuple):
    """A place in a tree; the two are always given together."""

    tree: str
    node: str


class Refs(NamedTuple):
    """How often a tree is claimed, in all and by each owner."""

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
    #: The number of its last change: watching from here on shows what is new.
    seq: int


class Node(NamedTuple):
    """A node: text, or a handle of something elsewhere. It never changes, save where it stands.

    `n` is its insertion number: every list of nodes is continued after the `n` of the last one.
    """

    n: int
    id: str
    tree: str
    parent: str | None
    #: Its place among its siblings: a number to sort by, with gaps.
    position: int
    content: str | None
    handle: Handle | None
    metadata: Any
    created_ms: int
    #: The version before this one, and the one after it.
    replaces: str | None
    replaced_by: str | None


class NodeStub(NamedTuple):
    """A node of a skeleton: everything but what it holds."""

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
    #: The number of its parent; None for the node that the drawing begins with.
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
    """A node to be added: it has either content or a handle."""

    content: str | None = None
    handle: Handle | None = None
    metadata: Any = None
    #: The index of an earlier item of the same list, or the id of a node; None: the list's parent.
    parent: int | str | None = None
    #: Where it stands among its siblings; None: last.
    position: int | None = None
    #: The version that it takes the place of: an earlier item's index, or the id of a node.
    replaces: int | str | None = None


class Head(NamedTuple):
    """A name for a place in a tree, with data of whoever made it: where a conversation has got to.

    Names are of a space each, so that what one plugin calls its heads is no other's business. A
    head holds its tree by a reference of its own. Whoever is at work on it holds the head, and
    says so again now and then.
    """

    id: str
    space: str
    name: str
    position: Position
    data: Any
    created_ms: int
    #: When it was last moved, renamed, or given other data.
    updated_ms: int
    #: Who is at work on it, and when they last said so.
    holder: str | None
    held_ms: int | None


class Hit(NamedTuple):
    """A node that was searched for, with the part of its text around the first word."""

    node: Node
    excerpt: str


class ChangeRow(NamedTuple):
    """Something that happened to a tree. `seq` rises from each to the next, over all trees."""

    seq: int
    principal: str
    tree: str
    kind: ChangeKind
    node: str | None
    at_ms: int


class PurgeResult(NamedTuple):
    """What one purge did."""

    archived: int = 0
    removed: int = 0
    nodes: int = 0
    changes: int = 0


class Counts(NamedTuple):
    """How much there is, over all principals."""

    trees: int
    nodes: int
    seq: int


class Retention(NamedTuple):
    """How long things are kept, in seconds."""

    #: From the last release to being archived; also how long a deleted node is kept.
    scheduled_s: float = 7 * DAY_S
    #: From being archived to being removed.
    archived_s: float = 30 * DAY_S
    #: How far back a watch can be resumed.
    changes_s: float = 30 * DAY_S


# --- resources ------------------------------------------------------------------------------------

TREE_TEMPLATE = "arbor://tree/{tree}"
NODE_TEMPLATE = "arbor://tree/{tree}/node/{node}"
PLAIN = "text/plain"


def tree_uri(tree: str) -> str:
    """Where a tree is read."""
    return f"arbor://tree/{tree}"


def node_uri(tree: str, node: str) -> str:
    """Where a node is read."""
    return f"arbor://tree/{tree}/node/{node}"


def media_type(metadata: Any) -> str | None:
    """What a node's metadata says that its text is."""
    kind = metadata.get("media_type") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) and kind else None


def title_of(metadata: Any) -> str | None:
    """What a tree's or node's metadata says that it is called."""
    title = metadata.get("title") if isinstance(metadata, dict) else None
    return title if isinstance(title, str) and title else None
