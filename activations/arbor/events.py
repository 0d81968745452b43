"""The events and results of arbor's methods.

The results of plain methods are events as well: events have a schema, are cheap to define and omit
missing values. Fields have the names of parameters, so that results can be passed to the next call.
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
    "preview_data",
    "search_hit",
    "stub_data",
    "tree_data",
)

#: Maximum length of a content in a batch, in characters: it fits into an event even if every
#: character is escaped. Longer content is omitted there; `node_get` returns it.
BATCH_CONTENT_CHARACTERS = 100_000


class HandleData(Event, tag="handle"):
    """A reference to data of a plugin. `text` is the same handle in text form."""

    plugin: str
    version: str
    method: str
    meta: list[str]
    text: str


class TreeData(Event, tag="tree"):
    """A tree without its nodes. `seq` is the number of its last change, to watch from."""

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
    """A page of trees. Pass `next` as `after` to get the next page; omitted on the last page."""

    trees: list[TreeData]
    next: str | None = None


class RefData(Event, tag="refs"):
    """The references of a tree: `count` of this owner, `ref_count` in total."""

    tree_id: str
    owner_id: str
    count: int
    ref_count: int
    state: State


class NodeData(Event, tag="node"):
    """A node, with either content or a handle to external data.

    Lists omit very long content and previews cut it; both set `size` to its length in characters.
    Read it with `node_get`.
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
    """A node with its full content."""

    result: NodeData


class NodeBatch(Event, tag="nodes"):
    """A batch of nodes."""

    nodes: list[NodeData]


class NodePage(Event, tag="page"):
    """A page of nodes. Pass `next` as `after` to get the next page; omitted on the last page."""

    tree_id: str
    nodes: list[NodeData]
    next: int | None = None


class SkeletonNode(Event, tag="bone"):
    """The position of a node: its parent, and its sort key among siblings."""

    node_id: str
    position: int
    kind: Literal["text", "external"]
    parent: str | None = None
    replaced: bool | None = None


class SkeletonBatch(Event, tag="skeleton"):
    """A batch of nodes without their content."""

    nodes: list[SkeletonNode]


class Created(Event):
    """A created node. `replaces` is the id of the previous version."""

    tree_id: str
    node_id: str
    parent: str | None = None
    replaces: str | None = None


class Appended(Event):
    """The created nodes, in the order of the request."""

    tree_id: str
    node_ids: list[str]


class Deleted(Event):
    """A deleted subtree. `count` is the number of deleted nodes."""

    tree_id: str
    node_id: str
    count: int


class Parent(Event):
    """The parent of a node. Omitted for the root."""

    tree_id: str
    node_id: str
    parent: NodeData | None = None


class PathIds(Event, tag="path"):
    """The ids of the nodes from the root to a node."""

    tree_id: str
    path: list[str]


class Leaves(Event):
    """The ids of nodes without children. Pass `next` as `after` to get the next page."""

    tree_id: str
    leaves: list[str]
    next: int | None = None


class NodeHandle(Event):
    """A handle, and the id of its node."""

    node_id: str
    handle: HandleData


class Handles(Event):
    """The handles on the path from the root to a node."""

    tree_id: str
    node_id: str
    handles: list[NodeHandle]


class SearchHit(Event, tag="hit"):
    """A node that matches a search, with the part of its text around the first match."""

    tree_id: str
    node_id: str
    excerpt: str
    created_ms: int
    parent: str | None = None


class SearchHits(Event, tag="hits"):
    """A batch of search results."""

    hits: list[SearchHit]

    def as_text(self) -> str:
        return "".join(
            f"{hit.tree_id} {hit.node_id}  {one_line(hit.excerpt)}\n" for hit in self.hits
        )


class Found(Complete):
    """End of a search. Pass `next` as `before` to continue it."""

    count: int
    next: int | None = None


class Changed(Event, tag="change"):
    """A change of a tree. Pass `seq` as `after` to resume from here."""

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
    """The tree that was created by an import."""

    tree_id: str
    root: str
    nodes: int


# --- from stored values -------------------------------------------------------------------------


def handle_data(handle: Handle) -> HandleData:
    """Return the event form of a handle."""
    return HandleData(handle.plugin, handle.version, handle.method, list(handle.meta), str(handle))


def tree_data(tree: Tree) -> TreeData:
    """Return the event form of a tree."""
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
    """Return the event form of a node, with its full content."""
    return _node_data(node, node.content, None)


def node_data(node: Node) -> NodeData:
    """Return the event form of a node for a list, without very long content."""
    content = node.content
    if content is not None and len(content) > BATCH_CONTENT_CHARACTERS:
        return _node_data(node, None, len(content))
    return _node_data(node, content, None)


def preview_data(node: Node, length: int) -> NodeData:
    """Return the event form of a node with the beginning of its text, whose full length is set."""
    cut = node.content is not None and length > len(node.content)
    return _node_data(node, node.content, length if cut else None)


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
    """Return the event form of a node without its content."""
    kind: Literal["text", "external"] = "external" if stub.external else "text"
    return SkeletonNode(stub.id, stub.position, kind, stub.parent, True if stub.replaced else None)


def search_hit(hit: Hit) -> SearchHit:
    """Return the event form of a search result."""
    node = hit.node
    return SearchHit(node.tree, node.id, hit.excerpt, node.created_ms, node.parent)


def change_data(row: ChangeRow) -> Changed:
    """Return the event form of a change."""
    return Changed(row.seq, row.tree, row.kind, row.at_ms, row.node)
