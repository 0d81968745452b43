"""The methods of whole trees: create, read, list, claim, delete and draw."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

from annotated_types import Ge, Le

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
)
from activations.arbor.model import PAGE_ITEMS, PageSize, Refs, State
from activations.arbor.render import MAX_DEPTH, Bounds, draw, resolver
from plexus import Context, method

__all__ = ("TreeMethods",)


def _list_method(
    state: State | None, title: str, summary: str
) -> Callable[..., Coroutine[Any, Any, TreePage]]:
    """Return a method that lists the trees in a state. None: active and scheduled trees."""

    async def list_trees(
        self: TreeMethods, after: str | None = None, limit: PageSize = 100, *, ctx: Context
    ) -> TreePage:
        store = await self.store()
        found = await store.list_trees(ctx.principal.name, state, after, min(limit + 1, PAGE_ITEMS))
        more = len(found) > limit or len(found) == PAGE_ITEMS
        return TreePage(
            [tree_data(tree) for tree in found[:limit]], found[limit - 1].id if more else None
        )

    list_trees.__doc__ = f"""{summary}

    Args:
        after: `next` of the previous page.
        limit: Page size.
    """
    return method(title=title, read_only=True, open_world=False)(list_trees)


class TreeMethods(StoreActivation):
    """The methods of whole trees."""

    @method(title="Create a tree", destructive=False, open_world=False, scope=WRITE)
    async def tree_create(
        self,
        metadata: dict[str, Any] | None = None,
        owner_id: str | None = None,
        *,
        ctx: Context,
    ) -> TreeData:
        """Create a tree with an empty root node, for notes, outlines or other branching text.

        Returns the ids of the tree and its root. Add text with `node_create_text`.

        Args:
            metadata: Stored with the tree. `title` is shown in lists and drawings.
            owner_id: Owner of the first reference. Default: you.
        """
        store = await self.store()
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        return tree_data(await store.create_tree(principal, owner, metadata))

    @method(title="Read a tree", read_only=True, open_world=False)
    async def tree_get(self, tree_id: str, *, ctx: Context) -> AsyncIterator[TreeData | NodeBatch]:
        """Stream a tree and all its nodes with their content, in creation order.

        A moved node may come before its parent. For an overview, use `tree_render`.

        Args:
            tree_id: Id of the tree.
        """
        store = await self.store()
        principal = ctx.principal.name
        yield tree_data(await store.get_tree(principal, tree_id))
        after = None
        while nodes := await store.walk(principal, tree_id, after, PAGE_ITEMS):
            after = nodes[-1].n
            for batch in batches(nodes):
                yield NodeBatch(batch)

    @method(title="Read a tree's structure", read_only=True, open_world=False)
    async def tree_get_skeleton(
        self, tree_id: str, *, ctx: Context
    ) -> AsyncIterator[TreeData | SkeletonBatch]:
        """Stream a tree and the position of each node, without contents.

        Use it for the structure of a large tree.

        Args:
            tree_id: Id of the tree.
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
        "List your trees, sorted by id, with root, state and metadata.\n\n"
        "    Includes trees scheduled for deletion.",
    )
    tree_list_scheduled = _list_method(
        "scheduled_delete",
        "List trees scheduled for deletion",
        "List your trees that have no references and will be archived. Keep one with `tree_claim`.",
    )
    tree_list_archived = _list_method(
        "archived",
        "List archived trees",
        "List your archived trees. They are read-only and will be removed.",
    )

    @method(
        title="Replace a tree's metadata",
        destructive=True,
        idempotent=True,
        open_world=False,
        scope=WRITE,
    )
    async def tree_update_metadata(
        self, tree_id: str, metadata: dict[str, Any] | None, *, ctx: Context
    ) -> TreeData:
        """Replace all metadata of a tree, for example to change its title.

        Args:
            tree_id: Id of the tree.
            metadata: The complete new metadata; null removes it.
        """
        store = await self.store()
        return tree_data(await store.update_metadata(ctx.principal.name, tree_id, metadata))

    @method(title="Keep a tree", destructive=False, open_world=False, scope=WRITE)
    async def tree_claim(
        self, tree_id: str, owner_id: str | None = None, count: int = 1, *, ctx: Context
    ) -> RefData:
        """Keep a tree by adding references, or restore one that is scheduled for deletion.

        Args:
            tree_id: Id of the tree.
            owner_id: Owner of the references. Default: you.
            count: Number of references to add, 1 or more.
        """
        store = await self.store()
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        return _refs(tree_id, owner, await store.claim(principal, tree_id, owner, count))

    @method(title="Release a tree", destructive=True, open_world=False, scope=WRITE)
    async def tree_release(
        self, tree_id: str, owner_id: str | None = None, count: int = 1, *, ctx: Context
    ) -> RefData:
        """Remove references from a tree. Without references, it is scheduled for deletion.

        Args:
            tree_id: Id of the tree.
            owner_id: Owner of the references. Default: you.
            count: Number of references to remove.
        """
        store = await self.store()
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        return _refs(tree_id, owner, await store.release(principal, tree_id, owner, count))

    @method(title="Delete a tree", destructive=True, idempotent=True, open_world=False, scope=WRITE)
    async def tree_delete(self, tree_id: str, *, ctx: Context) -> TreeData:
        """Remove all references of a tree and schedule it for deletion.

        Until it is archived, `tree_claim` restores it.

        Args:
            tree_id: Id of the tree.
        """
        store = await self.store()
        return tree_data(await store.delete_tree(ctx.principal.name, tree_id))

    @method(title="Show a tree as text", read_only=True, open_world=False, audience="model")
    async def tree_render(
        self,
        tree_id: str,
        node_id: str | None = None,
        depth: Annotated[int, Ge(0), Le(MAX_DEPTH)] = 1000,
        limit: PageSize = 200,
        width: Annotated[int, Ge(10), Le(1000)] = 60,
        ids: bool = False,
        *,
        ctx: Context,
    ) -> str:
        """Draw a tree as text, one line per node, for an overview.

        Only branches are indented: an only child is directly below its parent.

        Args:
            tree_id: Id of the tree.
            node_id: Draw only the subtree of this node.
            depth: Maximum number of levels.
            limit: Maximum number of nodes.
            width: Columns per node.
            ids: Show the id of each node.
        """
        bounds = Bounds(depth, limit, width)
        store = await self.store()
        principal = ctx.principal.name
        tree = await store.get_tree(principal, tree_id)
        nodes = await store.subtree(principal, tree_id, node_id or tree.root, bounds.depth, limit)
        return await draw(tree, nodes, bounds, resolver(ctx), ids=ids)


def _refs(tree: str, owner: str, refs: Refs) -> RefData:
    state: State = "active" if refs.total else "scheduled_delete"
    return RefData(tree, owner, refs.owners.get(owner, 0), refs.total, state)
