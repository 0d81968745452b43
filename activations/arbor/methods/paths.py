"""The methods about the paths to nodes, and about finding nodes by their text."""

from __future__ import annotations

from collections.abc import AsyncIterator

from activations.arbor.events import (
    Found,
    Handles,
    Hits,
    Leaves,
    NodeBatch,
    NodeHandle,
    handle_data,
    hit_data,
)
from activations.arbor.methods.base import StoreActivation, batches, check_limit, may_go_on
from activations.arbor.model import check_range
from plexus import Context, method

__all__ = ("PathMethods",)

#: Hits of one query, and of one search.
HITS = 100
MOST_HITS = 10_000


class PathMethods(StoreActivation):
    """Paths to nodes, and search."""

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
        last = leaves[-1].n if may_go_on(leaves, limit) else None
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
    ) -> AsyncIterator[Hits | Found]:
        """Find the nodes whose text holds all of these words, the newest first.

        Args:
            text: The words. Upper and lower case are the same; punctuation does not count.
            tree_id: Search only this tree; all of yours, if left out.
            before: The `next` of the search before, to go on there.
            limit: At most so many, up to 10000.
        """
        check_range("limit", limit, 1, MOST_HITS)
        store = await self.store()
        principal = ctx.principal.name
        count = 0
        while count < limit:
            most = min(limit - count, HITS)
            hits = await store.search(principal, text, tree_id, before, most)
            if not hits:
                yield Found(count)
                return
            yield Hits([hit_data(hit) for hit in hits])
            count += len(hits)
            before = hits[-1].node.n
        yield Found(count, before)
