"""The methods about whole trees: making, listing, claiming, drawing, deleting them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from activations.arbor.events import (
    NodeBatch,
    RefData,
    SkeletonBatch,
    TreeData,
    TreePage,
    stub_data,
    tree_data,
)
from activations.arbor.methods.base import (
    BATCH_NODES,
    WRITE,
    StoreActivation,
    batches,
    check_limit,
)
from activations.arbor.model import PAGE_ITEMS, Refs, State
from activations.arbor.render import Bounds, draw, resolver
from plexus import Context, method

__all__ = ("TreeMethods",)


def _list_method(
    state: State | None, title: str, summary: str
) -> Callable[..., Coroutine[Any, Any, TreePage]]:
    """Return a method that lists the trees in a state; None: active and scheduled ones."""

    async def list_trees(
        self: TreeMethods, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> TreePage:
        check_limit(limit)
        store = await self.store()
        found = await store.list_trees(ctx.principal.name, state, after, min(limit + 1, PAGE_ITEMS))
        more = len(found) > limit or len(found) == PAGE_ITEMS
        return TreePage(
            [tree_data(tree) for tree in found[:limit]], found[limit - 1].id if more else None
        )

    list_trees.__doc__ = f"""{summary}

    Args:
        after: The `next` of the page before.
        limit: At most so many, up to 1000.
    """
    return method(title=title, read_only=True, open_world=False)(list_trees)


class TreeMethods(StoreActivation):
    """Whole trees."""

    @method(title="Create a tree", destructive=False, open_world=False, scope=WRITE)
    async def tree_create(
        self,
        metadata: dict[str, Any] | None = None,
        owner_id: str | None = None,
        *,
        ctx: Context,
    ) -> TreeData:
        """Make a tree with an empty root, held by one reference of its owner.

        Args:
            metadata: Anything to be kept with the tree; `title` is shown where it is drawn.
            owner_id: Who holds it; you, if left out.
        """
        store = await self.store()
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        return tree_data(await store.create_tree(principal, owner, metadata))

    @method(title="Read a tree", read_only=True, open_world=False)
    async def tree_get(self, tree_id: str, *, ctx: Context) -> AsyncIterator[TreeData | NodeBatch]:
        """Give a tree and then all of its nodes, in the order in which they were made.

        A node that was moved may come before its parent.

        Args:
            tree_id: The tree.
        """
        store = await self.store()
        principal = ctx.principal.name
        yield tree_data(await store.get_tree(principal, tree_id))
        after = None
        while nodes := await store.walk(principal, tree_id, after, PAGE_ITEMS):
            after = nodes[-1].n
            for batch in batches(nodes):
                yield NodeBatch(batch)

    @method(title="Read the shape of a tree", read_only=True, open_world=False)
    async def tree_get_skeleton(
        self, tree_id: str, *, ctx: Context
    ) -> AsyncIterator[TreeData | SkeletonBatch]:
        """Give a tree and then where each of its nodes stands, without what they hold.

        Args:
            tree_id: The tree.
        """
        store = await self.store()
        principal = ctx.principal.name
        yield tree_data(await store.get_tree(principal, tree_id))
        after = None
        while stubs := await store.structure(principal, tree_id, after, PAGE_ITEMS):
            after = stubs[-1].n
            for start in range(0, len(stubs), BATCH_NODES):
                yield SkeletonBatch([stub_data(b) for b in stubs[start : start + BATCH_NODES]])

    tree_list = _list_method(
        None,
        "List trees",
        "List your trees by their ids: those that are active, and those scheduled for deletion.",
    )
    tree_list_scheduled = _list_method(
        "scheduled_delete",
        "List trees scheduled for deletion",
        "List your trees that nobody holds; claiming one keeps it.",
    )
    tree_list_archived = _list_method(
        "archived",
        "List archived trees",
        "List your trees that are archived: they can be read, and will be removed.",
    )

    @method(
        title="Change a tree's metadata",
        destructive=True,
        idempotent=True,
        open_world=False,
        scope=WRITE,
    )
    async def tree_update_metadata(
        self, tree_id: str, metadata: dict[str, Any] | None, *, ctx: Context
    ) -> TreeData:
        """Put new metadata in the place of a tree's old.

        Args:
            tree_id: The tree.
            metadata: All of the new metadata; null for none.
        """
        store = await self.store()
        return tree_data(await store.update_metadata(ctx.principal.name, tree_id, metadata))

    @method(title="Claim a tree", destructive=False, open_world=False, scope=WRITE)
    async def tree_claim(
        self, tree_id: str, owner_id: str | None = None, count: int = 1, *, ctx: Context
    ) -> RefData:
        """Hold a tree, so that it is not deleted. One that is scheduled for deletion is kept.

        Args:
            tree_id: The tree.
            owner_id: Who holds it; you, if left out.
            count: How many references are added.
        """
        store = await self.store()
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        return _refs(tree_id, owner, await store.claim(principal, tree_id, owner, count))

    @method(title="Release a tree", destructive=True, open_world=False, scope=WRITE)
    async def tree_release(
        self, tree_id: str, owner_id: str | None = None, count: int = 1, *, ctx: Context
    ) -> RefData:
        """Hold a tree no longer. When nobody does, it is scheduled for deletion.

        Args:
            tree_id: The tree.
            owner_id: Who held it; you, if left out.
            count: How many references are taken back.
        """
        store = await self.store()
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        return _refs(tree_id, owner, await store.release(principal, tree_id, owner, count))

    @method(title="Delete a tree", destructive=True, idempotent=True, open_world=False, scope=WRITE)
    async def tree_delete(self, tree_id: str, *, ctx: Context) -> TreeData:
        """Schedule a tree for deletion, whoever holds it. Until it is archived, a claim keeps it.

        Args:
            tree_id: The tree.
        """
        store = await self.store()
        return tree_data(await store.delete_tree(ctx.principal.name, tree_id))

    @method(title="Draw a tree", read_only=True, open_world=False)
    async def tree_render(
        self,
        tree_id: str,
        node_id: str | None = None,
        depth: int = 1000,
        limit: int = 200,
        width: int = 60,
        ids: bool = False,
        *,
        ctx: Context,
    ) -> str:
        """Draw a tree as text. A node that is an only child stands right below its parent.

        Args:
            tree_id: The tree.
            node_id: Draw this node and what is below it; the root, if left out.
            depth: How many levels are drawn below the first.
            limit: How many nodes are drawn at most, up to 1000.
            width: How many columns each node's text may take, from 10 to 1000.
            ids: Whether each node's id is drawn beside it.
        """
        bounds = Bounds.validated(depth, limit, width)
        store = await self.store()
        principal = ctx.principal.name
        tree = await store.get_tree(principal, tree_id)
        nodes = await store.subtree(principal, tree_id, node_id or tree.root, bounds.depth, limit)
        return await draw(tree, nodes, bounds, resolver(ctx), ids=ids)


def _refs(tree: str, owner: str, refs: Refs) -> RefData:
    state: State = "active" if refs.total else "scheduled_delete"
    return RefData(tree, owner, refs.owners.get(owner, 0), refs.total, state)
