"""The methods of nodes: add, read, edit, move, delete, search, and the paths to nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

from annotated_types import Ge, Le, Len

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
    preview_data,
    search_hit,
)
from activations.arbor.methods.base import (
    WRITE,
    StoreActivation,
    batches,
    may_have_more,
    node_page,
)
from activations.arbor.model import PAGE_ITEMS, Handle, NewNode, PageSize, media_type, node_uri
from plexus import Context, InvalidParams, Resource, method

__all__ = ("Item", "NodeMethods", "parse_handle")

#: Maximum length of a content that is also returned as a resource, in characters.
EMBEDDED_CHARACTERS = 100_000
#: Number of results per event, and maximum per search.
HITS_PER_BATCH = 100
MAX_HITS = 10_000
#: Maximum number of nodes and of characters of each in one call of `node_preview`.
MAX_PREVIEWS = 100
MAX_PREVIEW_CHARACTERS = 1000


@dataclasses.dataclass(frozen=True)
class Item:
    """A node to add, with either content or a handle."""

    #: The text of the node.
    content: str | None = None
    #: A reference to data of a plugin, for example `plugin@version::method:meta`.
    handle: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    #: The id of a node, or the index of an earlier item of the same list.
    parent: str | int | None = None


class NodeMethods(StoreActivation):
    """The methods of nodes, paths and search."""

    @method(
        title="Add a text node", destructive=False, open_world=False, scope=WRITE, audience="model"
    )
    async def node_create_text(
        self,
        tree_id: str,
        content: str,
        parent: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        ctx: Context,
    ) -> Created:
        """Add a text, such as a note, as the last child of its parent. Returns the new node's id.

        Args:
            tree_id: Id of the tree.
            content: The text, up to 4 MiB.
            parent: Id of the parent. Default: the root.
            metadata: Stored with the node. `media_type` is the type of the text, such as
                `text/markdown`.
        """
        return await self._create(ctx, tree_id, parent, NewNode(content, metadata=metadata))

    @method(title="Add an external node", destructive=False, open_world=False, scope=WRITE)
    async def node_create_external(
        self,
        tree_id: str,
        handle: str | dict[str, Any],
        parent: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        ctx: Context,
    ) -> Created:
        """Add a node that refers to data of a plugin, as the last child.

        Returns the new node's id. The plugin resolves the handle when the tree is drawn.

        Args:
            tree_id: Id of the tree.
            handle: `plugin@version::method:meta:...`, with %, : and @ inside a part as %25, %3A
                and %40; or an object with plugin, version, method and meta (strings).
            parent: Id of the parent. Default: the root.
            metadata: Stored with the node.
        """
        item = NewNode(handle=parse_handle(handle), metadata=metadata)
        return await self._create(ctx, tree_id, parent, item)

    @method(title="Add several nodes", destructive=False, open_world=False, scope=WRITE)
    async def node_append(
        self, tree_id: str, nodes: list[Item], parent: str | None = None, *, ctx: Context
    ) -> Appended:
        """Add several nodes or a whole subtree in one atomic call. Returns the new ids.

        Args:
            tree_id: Id of the tree.
            nodes: 1 to 10000 nodes. `parent` is the id of a node, or the index (from 0) of an
                earlier node in this list.
            parent: Parent of nodes without `parent`. Default: the root.
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
        created = await store.append(ctx.principal.name, tree_id, parent, items)
        return Appended(tree_id, [node.id for node in created])

    @method(title="Read a node", read_only=True, open_world=False)
    async def node_get(
        self, tree_id: str, node_id: str, *, ctx: Context
    ) -> AsyncIterator[Resource | NodeResult]:
        """Return a node with its full content and metadata.

        A text with a media type is also a resource.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
        """
        store = await self.store()
        node = await store.get_node(ctx.principal.name, tree_id, node_id)
        kind = media_type(node.metadata)
        # Clients can show a resource according to its media type.
        if (
            node.content is not None
            and kind is not None
            and len(node.content) <= EMBEDDED_CHARACTERS
        ):
            yield Resource(node_uri(tree_id, node_id), None, kind, node.content)
        yield NodeResult(full_node_data(node))

    @method(title="Read the beginnings of nodes", read_only=True, open_world=False)
    async def node_preview(
        self,
        tree_id: str,
        node_ids: Annotated[list[str], Len(1, MAX_PREVIEWS)],
        characters: Annotated[int, Ge(1), Le(MAX_PREVIEW_CHARACTERS)] = 200,
        *,
        ctx: Context,
    ) -> NodeBatch:
        """Return several nodes with the beginning of their texts, in any order.

        Omits unknown nodes. Use it for lists; `node_get` returns the full text.

        Args:
            tree_id: Id of the tree.
            node_ids: Ids of up to 100 nodes.
            characters: Maximum number of characters of each text, 1 to 1000.
        """
        store = await self.store()
        found = await store.previews(ctx.principal.name, tree_id, node_ids, characters)
        return NodeBatch([preview_data(node, length) for node, length in found])

    @method(title="List a node's children", read_only=True, open_world=False)
    async def node_get_children(
        self,
        tree_id: str,
        node_id: str,
        after: int | None = None,
        limit: PageSize = 100,
        *,
        ctx: Context,
    ) -> NodePage:
        """List the direct children of a node in order, with content, including replaced versions.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
            after: `next` of the previous page.
            limit: Page size.
        """
        most = min(limit + 1, PAGE_ITEMS)
        store = await self.store()
        found = await store.children(ctx.principal.name, tree_id, node_id, after, most)
        return node_page(tree_id, found, limit)

    @method(title="Read a node's parent", read_only=True, open_world=False)
    async def node_get_parent(self, tree_id: str, node_id: str, *, ctx: Context) -> Parent:
        """Return the parent of a node, with its content.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
        """
        store = await self.store()
        parent = await store.parent(ctx.principal.name, tree_id, node_id)
        return Parent(tree_id, node_id, None if parent is None else node_data(parent))

    @method(title="List the path to a node", read_only=True, open_world=False)
    async def node_get_path(self, tree_id: str, node_id: str, *, ctx: Context) -> PathIds:
        """Return the ids of all nodes from the root to a node.

        To read their contents, use `context_get_path`.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
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
        """Replace the content of a node by creating a new version at the same position.

        The old version keeps its children. Returns the id of the new version.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the latest version of the node.
            content: The new text, unless you pass a handle.
            handle: As in `node_create_external`.
            metadata: The complete new metadata.
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
        """Move a node and its subtree to another position in the same tree.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
            parent: Id of the new parent.
            position: Index among the new siblings, from 0. Default: last.
        """
        store = await self.store()
        moved = await store.move(ctx.principal.name, tree_id, node_id, parent, position)
        return node_data(moved)

    @method(title="Delete a node", destructive=True, open_world=False, scope=WRITE)
    async def node_delete(self, tree_id: str, node_id: str, *, ctx: Context) -> Deleted:
        """Delete a node and its subtree. Returns the number of deleted nodes.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
        """
        store = await self.store()
        count = await store.delete_node(ctx.principal.name, tree_id, node_id)
        return Deleted(tree_id, node_id, count)

    @method(title="List leaf nodes", read_only=True, open_world=False)
    async def context_list_leaves(
        self, tree_id: str, after: int | None = None, limit: PageSize = 100, *, ctx: Context
    ) -> Leaves:
        """List the ids of all nodes without children, in creation order.

        Args:
            tree_id: Id of the tree.
            after: `next` of the previous page.
            limit: Page size.
        """
        store = await self.store()
        leaves = await store.leaves(ctx.principal.name, tree_id, after, limit)
        last = leaves[-1].n if may_have_more(leaves, limit) else None
        return Leaves(tree_id, [leaf.id for leaf in leaves], last)

    @method(title="Read the path to a node", read_only=True, open_world=False)
    async def context_get_path(
        self, tree_id: str, node_id: str, *, ctx: Context
    ) -> AsyncIterator[NodeBatch]:
        """Stream all nodes from the root to a node, with content: the context of a node.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
        """
        store = await self.store()
        for batch in batches(await store.path(ctx.principal.name, tree_id, node_id)):
            yield NodeBatch(batch)

    @method(title="List handles on a path", read_only=True, open_world=False)
    async def context_get_handles(self, tree_id: str, node_id: str, *, ctx: Context) -> Handles:
        """Return the handles of all external nodes on the path from the root to a node.

        Args:
            tree_id: Id of the tree.
            node_id: Id of the node.
        """
        store = await self.store()
        path = await store.path(ctx.principal.name, tree_id, node_id)
        return Handles(
            tree_id,
            node_id,
            [NodeHandle(n.id, handle_data(n.handle)) for n in path if n.handle is not None],
        )

    @method(title="Search trees", read_only=True, open_world=False, audience="model")
    async def search(
        self,
        text: str,
        tree_id: str | None = None,
        before: int | None = None,
        limit: Annotated[int, Ge(1), Le(MAX_HITS)] = 100,
        *,
        ctx: Context,
    ) -> AsyncIterator[SearchHits | Found]:
        """Search the text of notes and other nodes, in one tree or in all your trees.

        Returns node ids with excerpts, newest first.

        Args:
            text: Words that a node must all contain. Case and punctuation are ignored.
            tree_id: Search only this tree.
            before: `next` of the previous page.
            limit: Maximum number of results.
        """
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


def parse_handle(value: str | dict[str, Any]) -> Handle:
    """Parse a handle from its text form or its parts. Raises InvalidParams (`bad_handle`)."""
    if isinstance(value, str):
        return Handle.parse(value)
    meta = value.get("meta", [])
    parts = [value.get(name) for name in ("plugin", "version", "method")]
    texts = [*parts, *meta] if isinstance(meta, list) else [None]
    known = {"plugin", "version", "method", "meta"}
    # Handles in results have more fields, and can be passed back unchanged.
    if not all(isinstance(text, str) for text in texts) or value.keys() - known - {"text", "type"}:
        raise InvalidParams(
            "Invalid handle. Pass an object with the strings plugin, version and method, and"
            " optionally meta, a list of strings.",
            code="bad_handle",
        )
    plugin, version, name = parts
    return Handle(str(plugin), str(version), str(name), tuple(meta))
