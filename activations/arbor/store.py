"""The store: every operation on trees as one coroutine, over whichever engine is open. Those on
heads are in `head_store`.

Each operation is one function of `queries`, run as one work of the engine: it happens as a whole
or not at all. Whose tree it is decides what is there: another principal's is not found.

Lists are paged: a page begins after the `n` (of trees: the `id`) of the last one seen, and holds
at most `limit`. A page of nodes also ends early when it has grown large, so **only an empty page
is the end**.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from activations.arbor.head_store import HeadStore
from activations.arbor.model import (
    ChangeRow,
    Counts,
    DrawnNode,
    Handle,
    Hit,
    NamedNode,
    NewNode,
    Node,
    NodeStub,
    Purged,
    Refs,
    Retention,
    State,
    Tree,
)
from activations.arbor.purge import PurgeTask, purge_all
from activations.arbor.queries import changes, nodes, reads, search, trees
from activations.arbor.schema import ARBOR
from plexus.storage import Engine, open_engine

__all__ = ("Store", "open_store")

#: How often the purge looks for what is due.
PURGE_EVERY_S: Final = 3600.0


def _now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000


async def open_store(
    database: str,
    retention: Retention = Retention(),  # noqa: B008 - a tuple of numbers
    *,
    clock: Callable[[], int] = _now_ms,
    purge_every_s: float | None = PURGE_EVERY_S,
) -> Store:
    """Open the store, migrate it, and begin to purge it.

    `database` is a path, `sqlite:///path` or `postgresql://...`. With
    `purge_every_s` None nothing is purged by itself.
    """
    engine = await open_engine(database, ARBOR)
    store = Store(engine, retention, clock)
    if purge_every_s is not None:
        store.begin_purging(purge_every_s)
    return store


class Store(HeadStore):
    """A store that is open. Bound to the loop that it was opened on."""

    def __init__(
        self, engine: Engine, retention: Retention, clock: Callable[[], int] = _now_ms
    ) -> None:
        super().__init__(engine, clock)
        self._retention = retention
        self._purging: PurgeTask | None = None

    # --- trees -----------------------------------------------------------------------------------

    async def create_tree(
        self, principal: str, owner: str, metadata: Any = None, root: NewNode | None = None
    ) -> Tree:
        """Make a tree with one reference, and a root that is an empty text unless it is given."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: trees.create(tx, now, principal, owner, metadata, root or NewNode(""))
        )

    async def get_tree(self, principal: str, tree: str) -> Tree:
        return await self._engine.read(lambda tx: trees.get(tx, principal, tree))

    async def list_trees(
        self, principal: str, state: State | None, after: str | None, limit: int
    ) -> list[Tree]:
        """Those in this state, by id; None: those that are active or scheduled."""
        return await self._engine.read(
            lambda tx: trees.listed(tx, principal, state, after or "", limit)
        )

    async def update_metadata(self, principal: str, tree: str, metadata: Any) -> Tree:
        """Put this in the place of the metadata."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: trees.update_metadata(tx, now, principal, tree, metadata)
        )

    async def claim(self, principal: str, tree: str, owner: str, count: int = 1) -> Refs:
        """Add references of this owner; a scheduled tree becomes active again."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: trees.claim(tx, now, principal, tree, owner, count)
        )

    async def release(self, principal: str, tree: str, owner: str, count: int = 1) -> Refs:
        """Take references of this owner back; the last one schedules the tree."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: trees.release(tx, now, principal, tree, owner, count)
        )

    async def delete_tree(self, principal: str, tree: str) -> Tree:
        """Drop every reference, so that the tree is scheduled at once."""
        now = self._clock()
        return await self._engine.write(lambda tx: trees.drop(tx, now, principal, tree))

    # --- nodes -----------------------------------------------------------------------------------

    async def append(
        self, principal: str, tree: str, parent: str | None, items: Sequence[NewNode]
    ) -> list[Node]:
        """Add all of the nodes, or none; `parent` None is the root."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: nodes.append(tx, now, principal, tree, parent, items)
        )

    async def edit(
        self,
        principal: str,
        tree: str,
        node: str,
        content: str | None = None,
        handle: Handle | None = None,
        metadata: Any = None,
    ) -> Node:
        """Add a version in the same place that takes over from this one, without its children."""
        now = self._clock()
        item = NewNode(content, handle, metadata)
        return await self._engine.write(lambda tx: nodes.edit(tx, now, principal, tree, node, item))

    async def move(
        self, principal: str, tree: str, node: str, parent: str, index: int | None = None
    ) -> Node:
        """Put a node with all below it under another parent, before the child at `index` there;
        None: last."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: nodes.move(tx, now, principal, tree, node, parent, index)
        )

    async def delete_node(self, principal: str, tree: str, node: str) -> int:
        """Delete a node with all below it; returns how many that were."""
        now = self._clock()
        return await self._engine.write(lambda tx: nodes.delete(tx, now, principal, tree, node))

    async def get_node(self, principal: str, tree: str, node: str) -> Node:
        return await self._engine.read(lambda tx: reads.get(tx, principal, tree, node))

    async def parent(self, principal: str, tree: str, node: str) -> Node | None:
        """The node above; None for the root."""
        return await self._engine.read(lambda tx: reads.parent(tx, principal, tree, node))

    async def children(
        self, principal: str, tree: str, node: str, after: int | None, limit: int
    ) -> list[Node]:
        """The nodes right below, in order, replaced ones too. `after` is the `n` of a child."""
        return await self._engine.read(
            lambda tx: reads.children(tx, principal, tree, node, after, limit)
        )

    async def path(self, principal: str, tree: str, node: str) -> list[Node]:
        """From the root to this node."""
        return await self._engine.read(lambda tx: reads.path(tx, principal, tree, node))

    async def up(self, principal: str, tree: str, node: str, limit: int) -> list[Node]:
        """The last `limit` nodes of the way from the root to this node, in that order."""
        return await self._engine.read(lambda tx: reads.up(tx, principal, tree, node, limit))

    async def path_stubs(self, principal: str, tree: str, node: str) -> list[NodeStub]:
        """From the root to this node, without what the nodes hold."""
        return await self._engine.read(lambda tx: reads.path_stubs(tx, principal, tree, node))

    async def leaves(self, principal: str, tree: str, after: int | None, limit: int) -> list[Node]:
        """The nodes with nothing below them, but for replaced ones, in order of insertion."""
        return await self._engine.read(
            lambda tx: reads.leaves(tx, principal, tree, after or 0, limit)
        )

    async def walk(self, principal: str, tree: str, after: int | None, limit: int) -> list[Node]:
        """Every node, in order of insertion: a moved one may come before its parent."""
        return await self._engine.read(
            lambda tx: reads.walk(tx, principal, tree, after or 0, limit)
        )

    async def structure(
        self, principal: str, tree: str, after: int | None, limit: int
    ) -> list[NodeStub]:
        """As `walk`, without what the nodes hold."""
        return await self._engine.read(
            lambda tx: reads.structure(tx, principal, tree, after or 0, limit)
        )

    async def search(
        self, principal: str, text: str, tree: str | None, before: int | None, limit: int
    ) -> list[Hit]:
        """The nodes that hold every word, newest first, in one tree or in all; a page begins
        before the `n` of the last node seen."""
        while await self._engine.read(search.is_behind):
            await self._engine.write(search.catch_up)
        return await self._engine.read(
            lambda tx: search.find(tx, principal, text, tree, before, limit)
        )

    # --- what drawing, listing and importing need ------------------------------------------------

    async def below(
        self, principal: str, tree: str, node: str, depth: int, limit: int
    ) -> list[DrawnNode]:
        """A node and what is below it, level by level, until there are enough; siblings in
        order."""
        return await self._engine.read(
            lambda tx: reads.below(tx, principal, tree, node, depth, limit)
        )

    async def addressed(self, principal: str, tree: str, node: str, limit: int) -> list[NamedNode]:
        """The nodes of all trees by the ids of tree and node; a page begins after these two."""
        return await self._engine.read(lambda tx: reads.addressed(tx, principal, tree, node, limit))

    async def last_change(self) -> int:
        """A number after which there is no change yet."""
        return await self._engine.read(changes.last_number)

    async def adopt(self, stage: str, tree: str, principal: str, owner: str) -> Tree:
        """Give a tree that was made under another name to its principal, at once and whole."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: trees.adopt(tx, now, stage, tree, principal, owner)
        )

    async def discard(self, stage: str, tree: str) -> None:
        """Be rid of a tree that was being made under another name."""
        await self._engine.write(lambda tx: trees.discard(tx, stage, tree))

    # --- changes ---------------------------------------------------------------------------------

    async def changes(self, principal: str, tree: str, after: int, limit: int) -> list[ChangeRow]:
        """What happened to a tree after this number; `expired` if some of that is forgotten."""
        return await self._engine.read(
            lambda tx: changes.of_tree(tx, principal, tree, after, limit)
        )

    async def oldest_change(self, principal: str, tree: str) -> int:
        """The lowest number that `changes` can still begin after."""
        return await self._engine.read(lambda tx: changes.oldest(tx, principal, tree))

    async def all_changes(self, after: int, limit: int) -> list[ChangeRow]:
        """Return the changes of all trees of all principals, for a publisher."""
        return await self._engine.read(lambda tx: changes.of_all(tx, after, limit))

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after commits, of this process or another. Returns a function that
        unsubscribes."""
        return self._engine.subscribe(listener)

    # --- the whole -------------------------------------------------------------------------------

    async def counts(self) -> Counts:
        """How much there is; `seq` is the number of the last change."""
        return await self._engine.read(changes.counts)

    async def purge(self, now: int | None = None) -> Purged:
        """Archive, remove and forget what is due; several processes may do so at once."""
        return await purge_all(self._engine, self._retention, self._clock() if now is None else now)

    def begin_purging(self, every_s: float) -> None:
        """Purge now and then, until the store is closed."""
        self._purging = PurgeTask(self.purge, every_s)

    async def check(self) -> None:
        """Check the disk and the files. Raises Failed if they are damaged or nearly full."""
        await self._engine.check()

    async def backup(self, path: Path) -> None:
        """Write a copy of the store, as it is at one moment, while others write."""
        await self._engine.backup(path)

    async def close(self) -> None:
        """Finish what waits, and close the database. May be called twice."""
        if self._purging is not None:
            await self._purging.stop()
            self._purging = None
        await self._engine.close()
