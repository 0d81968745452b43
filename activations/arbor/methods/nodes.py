"""The methods about nodes: adding, reading, editing, moving, deleting and searching them, and the
paths to them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from activations.arbor.events import (
    Appended,
    Created,
    Deleted,
    Found,
    Handles,
    Leaves,
    NodeBatch,
    NodeData,
    NodeHandle,
    NodePage,
    NodeResult,
    Parent,
    PathIds,
    SearchHits,
    full_node_data,
    handle_data,
    node_data,
    search_hit,
)
from activations.arbor.methods.base import (
    WRITE,
    StoreActivation,
    batches,
    check_limit,
    may_have_more,
    node_page,
)
from activations.arbor.model import PAGE_ITEMS, Handle, NewNode, check_range, media_type, node_uri
from plexus import Context, InvalidParams, Resource, method

__all__ = ("Item", "NodeMethods", "parse_handle")

#: The longest content, in characters, that is given a second time as a resource.
EMBEDDED_CHARACTERS = 100_000
#: Hits of one query, and of one search.
HITS_PER_BATCH = 100
MAX_HITS = 10_000


@dataclasses.dataclass(frozen=True)
class Item:
    """A node to be added. It has either content or a handle."""

    #: Its text.
    content: str | None = None
    #: What a plugin keeps elsewhere, as in `plugin@version::method:meta`.
    handle: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    #: The id of a node, or the index of an earlier item of the same list.
    parent: str | int | None = None


class NodeMethods(StoreActivation):
    """Nodes, the paths to them, and search."""

    @method(title="Add a text", destructive=False, open_world=False, scope=WRITE)
    async def node_create_text(
        self,
        tree_id: str,
        content: str,
        parent: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        ctx: Context,
    ) -> Created:
        """Add a node that holds a text, as the last child of its parent.

        Args:
            tree_id: The tree.
            content: The text.
            parent: The node to add it to; the root, if left out.
            metadata: Anything to be kept with it; `media_type` says what kind of text it is.
        """
        return await self._create(ctx, tree_id, parent, NewNode(content, metadata=metadata))

    @method(title="Add a handle", destructive=False, open_world=False, scope=WRITE)
    async def node_create_external(
        self,
        tree_id: str,
        handle: str | dict[str, Any],
        parent: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        ctx: Context,
    ) -> Created:
        """Add a node that stands for something that a plugin keeps, as the last child.

        Args:
            tree_id: The tree.
            handle: `plugin@version::method:meta:...`, where %, : and @ inside a part are written
                %25, %3A and %40; or an object with plugin, version, method and meta, a list of
                texts.
            parent: The node to add it to; the root, if left out.
            metadata: Anything to be kept with it.
        """
        item = NewNode(handle=parse_handle(handle), metadata=metadata)
        return await self._create(ctx, tree_id, parent, item)

    @method(title="Add many nodes", destructive=False, open_world=False, scope=WRITE)
    async def node_append(
        self, tree_id: str, nodes: list[Item], parent: str | None = None, *, ctx: Context
    ) -> Appended:
        """Add many nodes at once: all of them, or none.

        Args:
            tree_id: The tree.
            nodes: The nodes. Each has content or a handle, and may name its parent: the id of a
                node, or the index, from 0, of an earlier one of these.
            parent: The node to add those to that name none; the root, if left out.
        """
        items = [
            NewNode(
                item.content,
                None if item.handle is None else parse_handle(item.handle),
                item.metadata,
                item.parent,
            )
            for item in nodes
        ]
        store = await self.store()
        made = await store.append(ctx.principal.name, tree_id, parent, items)
        return Appended(tree_id, [node.id for node in made])

    @method(title="Read a node", read_only=True, open_world=False)
    async def node_get(
        self, tree_id: str, node_id: str, *, ctx: Context
    ) -> AsyncIterator[Resource | NodeResult]:
        """Give a node with all that it holds; a text that has a media type as a resource too.

        Args:
            tree_id: The tree.
            node_id: The node.
        """
        store = await self.store()
        node = await store.get_node(ctx.principal.name, tree_id, node_id)
        kind = media_type(node.metadata)
        # A text of a kind of its own is shown as that kind by clients that can.
        if (
            node.content is not None
            and kind is not None
            and len(node.content) <= EMBEDDED_CHARACTERS
        ):
            yield Resource(node_uri(tree_id, node_id), None, kind, node.content)
        yield NodeResult(full_node_data(node))

    @method(title="List a node's children", read_only=True, open_world=False)
    async def node_get_children(
        self,
        tree_id: str,
        node_id: str,
        after: int | None = None,
        limit: int = 100,
        *,
        ctx: Context,
    ) -> NodePage:
        """List the children of a node in their order, earlier versions too.

        Args:
            tree_id: The tree.
            node_id: The node.
            after: The `next` of the page before.
            limit: At most so many, up to 1000.
        """
        most = min(check_limit(limit) + 1, PAGE_ITEMS)
        store = await self.store()
        found = await store.children(ctx.principal.name, tree_id, node_id, after, most)
        return node_page(tree_id, found, limit)

    @method(title="Find a node's parent", read_only=True, open_world=False)
    async def node_get_parent(self, tree_id: str, node_id: str, *, ctx: Context) -> Parent:
        """Give the parent of a node.

        Args:
            tree_id: The tree.
            node_id: The node.
        """
        store = await self.store()
        parent = await store.parent(ctx.principal.name, tree_id, node_id)
        return Parent(tree_id, node_id, None if parent is None else node_data(parent))

    @method(title="Find the way to a node", read_only=True, open_world=False)
    async def node_get_path(self, tree_id: str, node_id: str, *, ctx: Context) -> PathIds:
        """Give the ids of all nodes from the root to a node.

        Args:
            tree_id: The tree.
            node_id: The node.
        """
        store = await self.store()
        stubs = await store.path_stubs(ctx.principal.name, tree_id, node_id)
        return PathIds(tree_id, [stub.id for stub in stubs])

    @method(title="Edit a node", destructive=False, open_world=False, scope=WRITE)
    async def node_edit(
        self,
        tree_id: str,
        node_id: str,
        content: str | None = None,
        handle: str | dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        ctx: Context,
    ) -> Created:
        """Make a new version of a node, in the same place. The old one stays, with its children.

        Args:
            tree_id: The tree.
            node_id: The node.
            content: The new text.
            handle: The new handle; a node has either content or a handle.
            metadata: The new metadata.
        """
        new = None if handle is None else parse_handle(handle)
        store = await self.store()
        node = await store.edit(ctx.principal.name, tree_id, node_id, content, new, metadata)
        return Created(tree_id, node.id, node.parent, node.replaces)

    @method(title="Move a node", destructive=True, idempotent=True, open_world=False, scope=WRITE)
    async def node_move(
        self,
        tree_id: str,
        node_id: str,
        parent: str,
        position: int | None = None,
        *,
        ctx: Context,
    ) -> NodeData:
        """Move a node, with all that is below it, to another place in its tree.

        Args:
            tree_id: The tree.
            node_id: The node.
            parent: The node that it is to be a child of.
            position: How many children are to stand before it; it becomes the last, if left out.
        """
        store = await self.store()
        moved = await store.move(ctx.principal.name, tree_id, node_id, parent, position)
        return node_data(moved)

    @method(title="Delete a node", destructive=True, open_world=False, scope=WRITE)
    async def node_delete(self, tree_id: str, node_id: str, *, ctx: Context) -> Deleted:
        """Delete a node and all that is below it.

        Args:
            tree_id: The tree.
            node_id: The node.
        """
        store = await self.store()
        count = await store.delete_node(ctx.principal.name, tree_id, node_id)
        return Deleted(tree_id, node_id, count)

    @method(title="List the ends of all branches", read_only=True, open_world=False)
    async def context_list_leaves(
        self, tree_id: str, after: int | None = None, limit: int = 100, *, ctx: Context
    ) -> Leaves:
        """List the nodes of a tree that have no children, in the order they were made.

        Args:
            tree_id: The tree.
            after: The `next` of the page before.
            limit: At most so many, up to 1000.
        """
        check_limit(limit)
        store = await self.store()
        leaves = await store.leaves(ctx.principal.name, tree_id, after, limit)
        last = leaves[-1].n if may_have_more(leaves, limit) else None
        return Leaves(tree_id, [leaf.id for leaf in leaves], last)

    @method(title="Read the way to a node", read_only=True, open_world=False)
    async def context_get_path(
        self, tree_id: str, node_id: str, *, ctx: Context
    ) -> AsyncIterator[NodeBatch]:
        """Give all nodes from the root to a node, with what they hold.

        Args:
            tree_id: The tree.
            node_id: The node.
        """
        store = await self.store()
        for batch in batches(await store.path(ctx.principal.name, tree_id, node_id)):
            yield NodeBatch(batch)

    @method(title="List the handles on the way to a node", read_only=True, open_world=False)
    async def context_get_handles(self, tree_id: str, node_id: str, *, ctx: Context) -> Handles:
        """Give the handles of all nodes from the root to a node that have one.

        Args:
            tree_id: The tree.
            node_id: The node.
        """
        store = await self.store()
        path = await store.path(ctx.principal.name, tree_id, node_id)
        return Handles(
            tree_id,
            node_id,
            [NodeHandle(n.id, handle_data(n.handle)) for n in path if n.handle is not None],
        )

    @method(title="Search texts", read_only=True, open_world=False)
    async def search(
        self,
        text: str,
        tree_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
        *,
        ctx: Context,
    ) -> AsyncIterator[SearchHits | Found]:
        """Find the nodes whose text holds all of these words, the newest first.

        Args:
            text: The words. Upper and lower case are the same; punctuation does not count.
            tree_id: Search only this tree; all of yours, if left out.
            before: The `next` of the search before, to go on there.
            limit: At most so many, up to 10000.
        """
        check_range("limit", limit, 1, MAX_HITS)
        store = await self.store()
        principal = ctx.principal.name
        count = 0
        while count < limit:
            most = min(limit - count, HITS_PER_BATCH)
            hits = await store.search(principal, text, tree_id, before, most)
            if not hits:
                yield Found(count)
                return
            yield SearchHits([search_hit(hit) for hit in hits])
            count += len(hits)
            before = hits[-1].node.n
        yield Found(count, before)

    async def _create(self, ctx: Context, tree: str, parent: str | None, item: NewNode) -> Created:
        store = await self.store()
        [node] = await store.append(ctx.principal.name, tree, parent, [item])
        return Created(tree, node.id, node.parent)


def parse_handle(given: str | dict[str, Any]) -> Handle:
    """A handle from its text or its parts; raises InvalidParams with the code `bad_handle`."""
    if isinstance(given, str):
        return Handle.parse(given)
    meta = given.get("meta", [])
    parts = [given.get(name) for name in ("plugin", "version", "method")]
    texts = [*parts, *meta] if isinstance(meta, list) else [None]
    known = {"plugin", "version", "method", "meta"}
    # What arbor gives has more: it can be given back as it is.
    if not all(isinstance(text, str) for text in texts) or given.keys() - known - {"text", "type"}:
        raise InvalidParams(
            "a handle has a plugin, a version and a method, which are texts, and may have meta, "
            "a list of texts",
            code="bad_handle",
        )
    plugin, version, name = parts
    return Handle(str(plugin), str(version), str(name), tuple(meta))
