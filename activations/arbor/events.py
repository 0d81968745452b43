"""What the methods of arbor give and yield.

What a plain method returns is an event too: it has a schema, is cheap to define, and leaves out
what is not there. Fields are called as parameters are, so that one answer fits the next call.
"""

from __future__ import annotations

from typing import Any, Literal

from activations.arbor.model import ChangeKind, ChangeRow, Handle, Hit, Node, NodeStub, State, Tree
from activations.arbor.render import one_line
from plexus import Complete, Event
from plexus.events import Result

__all__ = (
    "Appended",
    "Changed",
    "Created",
    "Deleted",
    "Found",
    "HandleData",
    "Handles",
    "Imported",
    "Leaves",
    "NodeBatch",
    "NodeData",
    "NodeHandle",
    "NodePage",
    "NodeResult",
    "Parent",
    "PathIds",
    "RefData",
    "SearchHit",
    "SearchHits",
    "SkeletonBatch",
    "SkeletonNode",
    "TreeData",
    "TreePage",
    "change_data",
    "full_node_data",
    "handle_data",
    "node_data",
    "search_hit",
    "stub_data",
    "tree_data",
)

#: The longest content, in characters, that stands in a batch: with every character escaped it
#: still fits into an event. What is longer is left out there, and `node_get` gives it.
BATCH_CONTENT_CHARACTERS = 100_000


class HandleData(Event, tag="handle"):
    """Something that a plugin keeps. `text` is the same in one piece."""

    plugin: str
    version: str
    method: str
    meta: list[str]
    text: str


class TreeData(Event, tag="tree"):
    """A tree, without its nodes. `seq` is the number of its last change, to watch from."""

    tree_id: str
    root: str
    owner_id: str
    state: State
    ref_count: int
    owners: dict[str, int]
    created_ms: int
    updated_ms: int
    seq: int
    metadata: dict[str, Any] | None = None
    scheduled_ms: int | None = None
    archived_ms: int | None = None


class TreePage(Event, tag="trees"):
    """Some trees. `next` is what to give as `after` for more; it is left out if there are none."""

    trees: list[TreeData]
    next: str | None = None


class RefData(Event, tag="refs"):
    """How a tree is claimed: by this owner, and in all."""

    tree_id: str
    owner_id: str
    count: int
    ref_count: int
    state: State


class NodeData(Event, tag="node"):
    """A node. It has content, or a handle of something elsewhere.

    A content that is too long for a list is left out there: `size`, its length in characters, says
    so, and `node_get` gives it.
    """

    tree_id: str
    node_id: str
    created_ms: int
    position: int
    parent: str | None = None
    content: str | None = None
    size: int | None = None
    handle: HandleData | None = None
    metadata: dict[str, Any] | None = None
    replaces: str | None = None
    replaced_by: str | None = None


class NodeResult(Result):
    """A node with all that it holds."""

    result: NodeData


class NodeBatch(Event, tag="nodes"):
    """Some more nodes."""

    nodes: list[NodeData]


class NodePage(Event, tag="page"):
    """Some nodes. `next` is what to give as `after` for more; it is left out if there are none."""

    tree_id: str
    nodes: list[NodeData]
    next: int | None = None


class SkeletonNode(Event, tag="bone"):
    """Where a node stands: its parent, and the number that its siblings are sorted by."""

    node_id: str
    position: int
    kind: Literal["text", "external"]
    parent: str | None = None
    replaced: bool | None = None


class SkeletonBatch(Event, tag="skeleton"):
    """Some more nodes, without what they hold."""

    nodes: list[SkeletonNode]


class Created(Event):
    """A node was made. `replaces` is the version that it takes the place of."""

    tree_id: str
    node_id: str
    parent: str | None = None
    replaces: str | None = None


class Appended(Event):
    """Nodes were made, all of them, in the order in which they were given."""

    tree_id: str
    node_ids: list[str]


class Deleted(Event):
    """A node and everything below it is gone; `count` says how many nodes that were."""

    tree_id: str
    node_id: str
    count: int


class Parent(Event):
    """The parent of a node; left out for the root."""

    tree_id: str
    node_id: str
    parent: NodeData | None = None


class PathIds(Event, tag="path"):
    """The nodes from the root to a node."""

    tree_id: str
    path: list[str]


class Leaves(Event):
    """Nodes without children: the ends of all branches. `next` is the `after` of the next page."""

    tree_id: str
    leaves: list[str]
    next: int | None = None


class NodeHandle(Event):
    """A handle, and the node that it stands in."""

    node_id: str
    handle: HandleData


class Handles(Event):
    """The handles on the way from the root to a node."""

    tree_id: str
    node_id: str
    handles: list[NodeHandle]


class SearchHit(Event, tag="hit"):
    """A node that was found, with the part of its text around what was searched for."""

    tree_id: str
    node_id: str
    excerpt: str
    created_ms: int
    parent: str | None = None


class SearchHits(Event, tag="hits"):
    """Some more of what was found."""

    hits: list[SearchHit]

    def as_text(self) -> str:
        return "".join(
            f"{hit.tree_id} {hit.node_id}  {one_line(hit.excerpt)}\n" for hit in self.hits
        )


class Found(Complete):
    """The search is over. `next` is what to give as `before` for more."""

    count: int
    next: int | None = None


class Changed(Event, tag="change"):
    """Something happened to a tree. `seq` is what to give as `after` to go on from here."""

    seq: int
    tree_id: str
    kind: ChangeKind
    at_ms: int
    node_id: str | None = None

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        return " ".join([str(self.seq), self.kind, *([self.node_id] if self.node_id else [])])


class Imported(Complete):
    """A tree was made out of an export."""

    tree_id: str
    root: str
    nodes: int


# --- from what is stored ------------------------------------------------------------------------


def handle_data(handle: Handle) -> HandleData:
    """A handle as callers see it."""
    return HandleData(handle.plugin, handle.version, handle.method, list(handle.meta), str(handle))


def tree_data(tree: Tree) -> TreeData:
    """A tree as callers see it."""
    return TreeData(
        tree.id,
        tree.root,
        tree.owner,
        tree.state,
        tree.refs.total,
        tree.refs.owners,
        tree.created_ms,
        tree.updated_ms,
        tree.seq,
        tree.metadata,
        tree.scheduled_ms,
        tree.archived_ms,
    )


def full_node_data(node: Node) -> NodeData:
    """A node as callers see it, with all of its content."""
    return _node_data(node, node.content, None)


def node_data(node: Node) -> NodeData:
    """A node as callers see it in a list: without its content if that is very long."""
    content = node.content
    if content is not None and len(content) > BATCH_CONTENT_CHARACTERS:
        return _node_data(node, None, len(content))
    return _node_data(node, content, None)


def _node_data(node: Node, content: str | None, size: int | None) -> NodeData:
    return NodeData(
        node.tree,
        node.id,
        node.created_ms,
        node.position,
        node.parent,
        content,
        size,
        None if node.handle is None else handle_data(node.handle),
        node.metadata,
        node.replaces,
        node.replaced_by,
    )


def stub_data(stub: NodeStub) -> SkeletonNode:
    """A node of a skeleton as callers see it."""
    kind: Literal["text", "external"] = "external" if stub.external else "text"
    return SkeletonNode(stub.id, stub.position, kind, stub.parent, True if stub.replaced else None)


def search_hit(hit: Hit) -> SearchHit:
    """A node that was found as callers see it."""
    node = hit.node
    return SearchHit(node.tree, node.id, hit.excerpt, node.created_ms, node.parent)


def change_data(row: ChangeRow) -> Changed:
    """A change as callers see it."""
    return Changed(row.seq, row.tree, row.kind, row.at_ms, row.node)
