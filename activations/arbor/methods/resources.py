"""Trees and nodes as resources: read by their addresses, listed, and suggested."""

from __future__ import annotations

from heapq import merge

from activations.arbor.methods.base import StoreActivation
from activations.arbor.model import PAGE_ITEMS, NamedNode, Tree
from activations.arbor.render import Bounds, draw, preview, resolver
from activations.arbor.uris import (
    NODE_TEMPLATE,
    PLAIN,
    TREE_TEMPLATE,
    media_type,
    node_uri,
    title_of,
    tree_uri,
)
from plexus import Context, Principal, Resource, ResourceInfo, completer, resource

__all__ = ("ResourceMethods",)

#: What a tree's resource shows of it.
DRAWN = Bounds(depth=1000, limit=500, width=100)
#: How many columns the name of a resource takes.
NAME = 60
#: How many values are suggested.
SUGGESTED = 100
#: More letters than an id has.
COMPARED = 64
#: What ids are made of.
ID_LETTERS = frozenset("0123456789abcdef-")


class ResourceMethods(StoreActivation):
    """What can be read by its address."""

    @resource(TREE_TEMPLATE, name="tree", title="A tree, drawn")
    async def read_tree(self, tree: str, *, ctx: Context) -> str:
        """A tree, drawn as text.

        Args:
            tree: The tree's id.
        """
        store = await self.store()
        principal = ctx.principal.name
        found = await store.get_tree(principal, tree)
        branches = await store.below(principal, tree, found.root, DRAWN.depth, DRAWN.limit)
        return await draw(found, branches, DRAWN, resolver(ctx))

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
        nodes = [_node_entry(n) for n in await store.addressed(principal, tree, node, limit)]
        # Where one list was cut off, the other must not go beyond.
        ends = [entries[-1].uri for entries in (trees, nodes) if len(entries) == limit]
        return [e for e in merge(trees, nodes) if not ends or e.uri <= min(ends)], bool(ends)

    @completer("read_tree", "tree")
    @completer("read_node", "tree")
    async def suggest_trees(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The trees whose ids begin so."""
        if self.is_empty() or not ID_LETTERS.issuperset(value):
            return []
        store = await self.store()
        # What sorts right before everything that begins so.
        before = f"{value[:-1]}{chr(ord(value[-1]) - 1)}~" if value else ""
        found = await store.list_trees(principal.name, None, before, SUGGESTED)
        return [tree.id for tree in found if tree.id.startswith(value)]

    @completer("read_node", "node")
    async def suggest_nodes(
        self, value: str, given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The nodes of the tree that is given whose ids begin so."""
        tree = given.get("tree", "")
        if self.is_empty() or not tree or not ID_LETTERS.issuperset(tree + value):
            return []
        store = await self.store()
        found = await store.addressed(principal.name, tree, value, SUGGESTED)
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
    return tree[:COMPARED], rest.removeprefix("node/")[:COMPARED]


def _tree_entry(tree: Tree) -> ResourceInfo:
    name = title_of(tree.metadata)
    return ResourceInfo(
        tree_uri(tree.id),
        preview(name, NAME) if name else f"tree {tree.id[:8]}",
        description=None if tree.state == "active" else "Scheduled for deletion",
        mime_type=PLAIN,
    )


def _node_entry(node: NamedNode) -> ResourceInfo:
    name = preview(node.text, NAME) or f"node {node.node[:8]}"
    return ResourceInfo(
        node_uri(node.tree, node.node), name, mime_type=media_type(node.metadata) or PLAIN
    )
