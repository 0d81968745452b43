"""arbor: a durable store of trees, for conversations, notes and other branching data.

Guarantees:
- Acknowledged changes are durable; failed operations leave nothing behind.
- A tree belongs to the principal that created it. To all others it does not exist.
- Nodes are immutable. An edit creates a new version at the same position, linked to the old one.
- A tree is kept while it has references. Then it is scheduled for deletion, archived and removed.
- Large results are streamed; lists are paginated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from heapq import merge

from activations.arbor.events import Changed, change_data
from activations.arbor.feed import follow
from activations.arbor.methods.nodes import NodeMethods
from activations.arbor.methods.transfer import TransferMethods
from activations.arbor.methods.trees import TreeMethods
from activations.arbor.model import (
    NODE_TEMPLATE,
    PAGE_ITEMS,
    PLAIN,
    TREE_TEMPLATE,
    NodeInfo,
    Tree,
    media_type,
    node_uri,
    title_of,
    tree_uri,
)
from activations.arbor.render import Bounds, draw, preview, resolver
from plexus import Context, Principal, Resource, ResourceInfo, completer, method, resource
from plexus.storage.sqlite.file_checks import check_disk

__all__ = ("Arbor",)

#: How much of a tree its resource shows.
TREE_BOUNDS = Bounds(depth=1000, limit=500, width=100)
#: Maximum width of the name of a resource, in columns.
NAME_COLUMNS = 60
#: Maximum number of suggested values.
MAX_SUGGESTIONS = 100
#: Longer than any id. Cursors from clients are truncated to this.
MAX_ID_CHARACTERS = 64
#: The characters of ids.
ID_CHARACTERS = frozenset("0123456789abcdef-")


class Arbor(TreeMethods, NodeMethods, TransferMethods):
    """Durable trees of text nodes: notes, outlines, conversations."""

    namespace = "arbor"
    audience = "client"
    version = "1.0.0"

    @method(title="Watch a tree", deadline_s=None, read_only=True, open_world=False)
    async def watch(self, tree_id: str, after: int = 0, *, ctx: Context) -> AsyncIterator[Changed]:
        """Stream the changes of a tree, past and new, until cancelled.

        Includes changes by other processes.

        Args:
            tree_id: Id of the tree.
            after: `seq` of the last change you have, to resume without gaps; the tree's `seq` for
                new changes only.
        """
        store = await self.store()
        async with aclosing(follow(store, ctx.principal.name, tree_id, after)) as changes:
            async for change in changes:
                yield change_data(change)

    async def check_health(self) -> str:
        """Report the location of the store and the number of trees and nodes.

        Does not open a store that does not exist yet. Raises Failed if the store is unhealthy.
        """
        if self.is_empty():
            await asyncio.to_thread(check_disk, self.path())
            return "no data stored yet"
        store = await self.store()
        await store.check()
        counts = await store.counts()
        return f"{self.location()}, {counts.trees} trees, {counts.nodes} nodes"

    # --- resources --------------------------------------------------------------------------------

    @resource(TREE_TEMPLATE, name="tree", title="Tree as text")
    async def read_tree(self, tree: str, *, ctx: Context) -> str:
        """A drawing of a tree as text.

        Args:
            tree: Id of the tree.
        """
        store = await self.store()
        principal = ctx.principal.name
        found = await store.get_tree(principal, tree)
        nodes = await store.subtree(
            principal, tree, found.root, TREE_BOUNDS.depth, TREE_BOUNDS.limit
        )
        return await draw(found, nodes, TREE_BOUNDS, resolver(ctx))

    @resource(NODE_TEMPLATE, name="node", title="Content of a node")
    async def read_node(self, tree: str, node: str, *, ctx: Context) -> Resource:
        """The text of a node, or the resolved text of its handle.

        Args:
            tree: Id of the tree.
            node: Id of the node.
        """
        store = await self.store()
        found = await store.get_node(ctx.principal.name, tree, node)
        text = found.content
        if found.handle is not None:
            [resolved] = await resolver(ctx)([found.handle])
            text = resolved or str(found.handle)
        kind = media_type(found.metadata) or PLAIN
        return Resource(node_uri(tree, node), None, kind, text)

    async def resources(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[ResourceInfo]:
        """Return a page of trees and nodes, without those that are archived."""
        found: list[ResourceInfo] = []
        full = not self.is_empty()
        while full and len(found) < limit:
            page, full = await self._page(principal.name, after, min(limit, PAGE_ITEMS))
            found += page
            after = found[-1].uri if found else after
        return found[:limit]

    async def _page(
        self, principal: str, after: str | None, limit: int
    ) -> tuple[list[ResourceInfo], bool]:
        """Return trees and nodes after this URI, and whether there may be more."""
        store = await self.store()
        tree, node = _cursor(after)
        trees = [_tree_entry(t) for t in await store.list_trees(principal, None, tree, limit)]
        nodes = [_node_entry(n) for n in await store.list_by_id(principal, tree, node, limit)]
        # If one list was truncated, the other must not continue past its end.
        ends = [entries[-1].uri for entries in (trees, nodes) if len(entries) == limit]
        return [e for e in merge(trees, nodes) if not ends or e.uri <= min(ends)], bool(ends)

    @completer("read_tree", "tree")
    @completer("read_node", "tree")
    async def suggest_trees(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """Return ids of trees that start with this prefix."""
        if self.is_empty() or not ID_CHARACTERS.issuperset(value):
            return []
        store = await self.store()
        # Sorts immediately before every id with this prefix.
        before = f"{value[:-1]}{chr(ord(value[-1]) - 1)}~" if value else ""
        found = await store.list_trees(principal.name, None, before, MAX_SUGGESTIONS)
        return [tree.id for tree in found if tree.id.startswith(value)]

    @completer("read_node", "node")
    async def suggest_nodes(
        self, value: str, given: dict[str, str], principal: Principal
    ) -> list[str]:
        """Return ids of nodes of the given tree that start with this prefix."""
        tree = given.get("tree", "")
        if self.is_empty() or not tree or not ID_CHARACTERS.issuperset(tree + value):
            return []
        store = await self.store()
        found = await store.list_by_id(principal.name, tree, value, MAX_SUGGESTIONS)
        return [each.node for each in found if each.tree == tree and each.node.startswith(value)]


def _cursor(after: str | None) -> tuple[str, str]:
    """Parse a cursor to the ids of tree and node after which a page starts."""
    start = tree_uri("")
    if after is None or after <= start:
        return "", ""
    if not after.startswith(start):
        return "\uffff", ""  # sorts after every id
    # A client can send any text: truncate it to the length of an id, and at a NUL, which databases
    # do not accept.
    tree, _, rest = after.removeprefix(start).partition("\0")[0].partition("/")
    return tree[:MAX_ID_CHARACTERS], rest.removeprefix("node/")[:MAX_ID_CHARACTERS]


def _tree_entry(tree: Tree) -> ResourceInfo:
    name = title_of(tree.metadata)
    return ResourceInfo(
        tree_uri(tree.id),
        preview(name, NAME_COLUMNS) if name else f"tree {tree.id[:8]}",
        description=None if tree.state == "active" else "Scheduled for deletion",
        mime_type=PLAIN,
    )


def _node_entry(node: NodeInfo) -> ResourceInfo:
    name = preview(node.text, NAME_COLUMNS) or f"node {node.node[:8]}"
    return ResourceInfo(
        node_uri(node.tree, node.node), name, mime_type=media_type(node.metadata) or PLAIN
    )
