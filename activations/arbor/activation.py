"""arbor: a durable store of trees, for conversations and anything else that branches.

What it promises:
- What was acknowledged is on the disk; what was refused has left nothing behind.
- A tree belongs to the principal that made it; for everybody else it is not there.
- Nodes never change. An edit makes a new version in the same place, which points at the old one.
- A tree is kept while somebody holds it. Then it is scheduled for deletion, archived, removed.
- What is large comes as a stream, and what is listed in pages.
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

#: What a tree's resource shows of it.
TREE_BOUNDS = Bounds(depth=1000, limit=500, width=100)
#: How many columns the name of a resource takes.
NAME_COLUMNS = 60
#: How many values are suggested.
MAX_SUGGESTIONS = 100
#: More letters than an id has.
MAX_ID_CHARACTERS = 64
#: What ids are made of.
ID_CHARACTERS = frozenset("0123456789abcdef-")


class Arbor(TreeMethods, NodeMethods, TransferMethods):
    """Trees of texts that last: conversations, notes, anything that branches."""

    namespace = "arbor"
    version = "1.0.0"

    @method(title="Watch a tree", deadline_s=None, read_only=True, open_world=False)
    async def watch(self, tree_id: str, after: int = 0, *, ctx: Context) -> AsyncIterator[Changed]:
        """Tell what happened to a tree, and then what happens, until stopped.

        Changes made by other processes come too. Each has a number: watching again with the last
        one as `after` goes on from there and loses nothing.

        Args:
            tree_id: The tree.
            after: Only what came after this number; a tree's `seq` is that of its last change.
        """
        store = await self.store()
        async with aclosing(follow(store, ctx.principal.name, tree_id, after)) as changes:
            async for change in changes:
                yield change_data(change)

    async def check_health(self) -> str:
        """Say where trees are kept and how many there are; raises if the store is not well.

        A store that nobody has used or chosen is not opened for this.
        """
        if self.is_empty():
            await asyncio.to_thread(check_disk, self.path())
            return "nothing kept yet"
        store = await self.store()
        await store.check()
        counts = await store.counts()
        return f"{self.location()}, {counts.trees} trees, {counts.nodes} nodes"

    # --- resources --------------------------------------------------------------------------------

    @resource(TREE_TEMPLATE, name="tree", title="A tree, drawn")
    async def read_tree(self, tree: str, *, ctx: Context) -> str:
        """A tree, drawn as text.

        Args:
            tree: The tree's id.
        """
        store = await self.store()
        principal = ctx.principal.name
        found = await store.get_tree(principal, tree)
        nodes = await store.subtree(
            principal, tree, found.root, TREE_BOUNDS.depth, TREE_BOUNDS.limit
        )
        return await draw(found, nodes, TREE_BOUNDS, resolver(ctx))

    @resource(NODE_TEMPLATE, name="node", title="The text of a node")
    async def read_node(self, tree: str, node: str, *, ctx: Context) -> Resource:
        """What a node holds: its text, or what its handle stands for.

        Args:
            tree: The tree's id.
            node: The node's id.
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
        """The trees and nodes there are, but for those that are archived."""
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
        """Some trees and nodes after this address, and whether there may be more."""
        store = await self.store()
        tree, node = _cursor(after)
        trees = [_tree_entry(t) for t in await store.list_trees(principal, None, tree, limit)]
        nodes = [_node_entry(n) for n in await store.list_by_id(principal, tree, node, limit)]
        # Where one list was cut off, the other must not go beyond.
        ends = [entries[-1].uri for entries in (trees, nodes) if len(entries) == limit]
        return [e for e in merge(trees, nodes) if not ends or e.uri <= min(ends)], bool(ends)

    @completer("read_tree", "tree")
    @completer("read_node", "tree")
    async def suggest_trees(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The trees whose ids begin so."""
        if self.is_empty() or not ID_CHARACTERS.issuperset(value):
            return []
        store = await self.store()
        # What sorts right before everything that begins so.
        before = f"{value[:-1]}{chr(ord(value[-1]) - 1)}~" if value else ""
        found = await store.list_trees(principal.name, None, before, MAX_SUGGESTIONS)
        return [tree.id for tree in found if tree.id.startswith(value)]

    @completer("read_node", "node")
    async def suggest_nodes(
        self, value: str, given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The nodes of the tree that is given whose ids begin so."""
        tree = given.get("tree", "")
        if self.is_empty() or not tree or not ID_CHARACTERS.issuperset(tree + value):
            return []
        store = await self.store()
        found = await store.list_by_id(principal.name, tree, value, MAX_SUGGESTIONS)
        return [each.node for each in found if each.tree == tree and each.node.startswith(value)]


def _cursor(after: str | None) -> tuple[str, str]:
    """The ids of tree and node that a page begins after."""
    start = tree_uri("")
    if after is None or after <= start:
        return "", ""
    if not after.startswith(start):
        return "\uffff", ""  # after every id there is
    # Whatever a client has made up is compared as far as an id goes, and no database has a NUL.
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
