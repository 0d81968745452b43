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

from activations.arbor.events import Changed, change_data
from activations.arbor.feed import follow
from activations.arbor.methods.nodes import NodeMethods
from activations.arbor.methods.paths import PathMethods
from activations.arbor.methods.resources import ResourceMethods
from activations.arbor.methods.transfer import TransferMethods
from activations.arbor.methods.trees import TreeMethods
from plexus import Context, method
from plexus.storage.sqlite.file_checks import check_disk

__all__ = ("Arbor",)


class Arbor(TreeMethods, NodeMethods, PathMethods, TransferMethods, ResourceMethods):
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
        return f"{self.place()}, {counts.trees} trees, {counts.nodes} nodes"
