"""The store: every operation on trees and heads as one coroutine, over whichever engine is open.

Each operation is one function of `queries`, run as one work of the engine: it happens as a whole
or not at all. Whose tree it is decides what is there: another principal's is not found.
A head is identified by its name in a space; a holder uses its id, which stays when the head is
renamed.

Lists are paged: a page begins after the `n` (of trees: the `id`) of the last one seen, and holds
at most `limit`. A page of nodes also ends early when it has grown large, so **only an empty page
is the end**.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from activations.arbor.model import (
    UNCHANGED,
    ChangeRow,
    Counts,
    DrawnNode,
    Handle,
    Head,
    Hit,
    NewNode,
    Node,
    NodeInfo,
    NodeStub,
    PurgeResult,
    Refs,
    Retention,
    State,
    Tree,
)
from activations.arbor.purge import PurgeTask, purge_all
from activations.arbor.queries import heads, leases, nodes, reads, search, trees
from activations.arbor.schema import ARBOR
from plexus.storage import Engine, Transaction, open_engine

__all__ = ("Store", "open_store")

P = ParamSpec("P")
T = TypeVar("T")

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
        store.start_purging(purge_every_s)
    return store


class Store:
    """A store that is open. Bound to the loop that it was opened on."""

    def __init__(
        self, engine: Engine, retention: Retention, clock: Callable[[], int] = _now_ms
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._retention = retention
        self._purge_task: PurgeTask | None = None

    def _read(
        self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run a query that reads."""
        return self._engine.read(lambda tx: query(tx, *args, **kwargs))

    def _write(
        self,
        query: Callable[Concatenate[Transaction, int, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """Run a query that writes, with the time of this call."""
        now = self._clock()
        return self._engine.write(lambda tx: query(tx, now, *args, **kwargs))

    # --- trees -----------------------------------------------------------------------------------

    async def create_tree(
        self, principal: str, owner: str, metadata: Any = None, root: NewNode | None = None
    ) -> Tree:
        """Make a tree with one reference, and a root that is an empty text unless it is given."""
        return await self._write(trees.create, principal, owner, metadata, root or NewNode(""))

    async def get_tree(self, principal: str, tree: str) -> Tree:
        return await self._read(trees.get, principal, tree)

    async def list_trees(
        self, principal: str, state: State | None, after: str | None, limit: int
    ) -> list[Tree]:
        """Those in this state, by id; None: those that are active or scheduled."""
        return await self._read(trees.list_trees, principal, state, after or "", limit)

    async def update_metadata(self, principal: str, tree: str, metadata: Any) -> Tree:
        """Put this in the place of the metadata."""
        return await self._write(trees.update_metadata, principal, tree, metadata)

    async def claim(self, principal: str, tree: str, owner: str, count: int = 1) -> Refs:
        """Add references of this owner; a scheduled tree becomes active again."""
        return await self._write(trees.claim, principal, tree, owner, count)

    async def release(self, principal: str, tree: str, owner: str, count: int = 1) -> Refs:
        """Take references of this owner back; the last one schedules the tree."""
        return await self._write(trees.release, principal, tree, owner, count)

    async def delete_tree(self, principal: str, tree: str) -> Tree:
        """Drop every reference, so that the tree is scheduled at once."""
        return await self._write(trees.delete, principal, tree)

    # --- nodes -----------------------------------------------------------------------------------

    async def append(
        self, principal: str, tree: str, parent: str | None, items: Sequence[NewNode]
    ) -> list[Node]:
        """Add all of the nodes, or none; `parent` None is the root."""
        return await self._write(nodes.append, principal, tree, parent, items)

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
        item = NewNode(content, handle, metadata)
        return await self._write(nodes.edit, principal, tree, node, item)

    async def move(
        self, principal: str, tree: str, node: str, parent: str, index: int | None = None
    ) -> Node:
        """Put a node with all below it under another parent, before the child at `index` there;
        None: last."""
        return await self._write(nodes.move, principal, tree, node, parent, index)

    async def delete_node(self, principal: str, tree: str, node: str) -> int:
        """Delete a node with all below it; returns how many that were."""
        return await self._write(nodes.delete, principal, tree, node)

    async def get_node(self, principal: str, tree: str, node: str) -> Node:
        return await self._read(reads.get, principal, tree, node)

    async def parent(self, principal: str, tree: str, node: str) -> Node | None:
        """The node above; None for the root."""
        return await self._read(reads.parent, principal, tree, node)

    async def children(
        self, principal: str, tree: str, node: str, after: int | None, limit: int
    ) -> list[Node]:
        """The nodes right below, in order, replaced ones too. `after` is the `n` of a child."""
        return await self._read(reads.children, principal, tree, node, after, limit)

    async def path(self, principal: str, tree: str, node: str) -> list[Node]:
        """From the root to this node."""
        return await self._read(reads.path, principal, tree, node)

    async def path_tail(self, principal: str, tree: str, node: str, limit: int) -> list[Node]:
        """The last `limit` nodes of the way from the root to this node, in that order."""
        return await self._read(reads.path_tail, principal, tree, node, limit)

    async def path_stubs(self, principal: str, tree: str, node: str) -> list[NodeStub]:
        """From the root to this node, without what the nodes hold."""
        return await self._read(reads.path_stubs, principal, tree, node)

    async def leaves(self, principal: str, tree: str, after: int | None, limit: int) -> list[Node]:
        """The nodes with nothing below them, but for replaced ones, in order of insertion."""
        return await self._read(reads.leaves, principal, tree, after or 0, limit)

    async def walk(self, principal: str, tree: str, after: int | None, limit: int) -> list[Node]:
        """Every node, in order of insertion: a moved one may come before its parent."""
        return await self._read(reads.walk, principal, tree, after or 0, limit)

    async def structure(
        self, principal: str, tree: str, after: int | None, limit: int
    ) -> list[NodeStub]:
        """As `walk`, without what the nodes hold."""
        return await self._read(reads.structure, principal, tree, after or 0, limit)

    async def search(
        self, principal: str, text: str, tree: str | None, before: int | None, limit: int
    ) -> list[Hit]:
        """The nodes that hold every word, newest first, in one tree or in all; a page begins
        before the `n` of the last node seen."""
        while await self._engine.read(search.is_stale):
            await self._engine.write(search.index_batch)
        return await self._read(search.find, principal, text, tree, before, limit)

    # --- what drawing, listing and importing need ------------------------------------------------

    async def subtree(
        self, principal: str, tree: str, node: str, depth: int, limit: int
    ) -> list[DrawnNode]:
        """A node and what is below it, level by level, until there are enough; siblings in
        order."""
        return await self._read(reads.subtree, principal, tree, node, depth, limit)

    async def list_by_id(self, principal: str, tree: str, node: str, limit: int) -> list[NodeInfo]:
        """The nodes of all trees by the ids of tree and node; a page begins after these two."""
        return await self._read(reads.list_by_id, principal, tree, node, limit)

    async def last_change(self) -> int:
        """A number after which there is no change yet."""
        return await self._read(trees.last_number)

    async def adopt(self, stage: str, tree: str, principal: str, owner: str) -> Tree:
        """Give a tree that was made under another name to its principal, at once and whole."""
        return await self._write(trees.adopt, stage, tree, principal, owner)

    async def discard(self, stage: str, tree: str) -> None:
        """Be rid of a tree that was being made under another name."""
        await self._engine.write(lambda tx: trees.discard(tx, stage, tree))

    # --- heads -----------------------------------------------------------------------------------

    async def create_head(
        self, principal: str, space: str, name: str, data: Any = None, metadata: Any = None
    ) -> Head:
        """Make a tree with this metadata and an empty root, and a head at the root, which holds
        it; `name_taken` if there is one of this name."""
        return await self._write(heads.create, principal, space, name, data, metadata)

    async def fork_head(
        self,
        principal: str,
        space: str,
        name: str,
        new_name: str,
        node: str | None = None,
        data: Any = UNCHANGED,
    ) -> Head:
        """Make another head of the same tree, at `node` or where the first one stands; it holds
        the tree by a reference of its own."""
        return await self._write(heads.fork, principal, space, name, new_name, node, data)

    async def get_head(self, principal: str, space: str, name: str) -> Head:
        return await self._read(heads.get, principal, space, name)

    async def list_heads(
        self, principal: str, space: str, after: str | None, limit: int, tree: str | None = None
    ) -> list[Head]:
        """Those of all trees or of one, by name; a page begins after the last name seen."""
        return await self._read(heads.list_heads, principal, space, after or "", limit, tree)

    async def rename_head(self, principal: str, space: str, name: str, new_name: str) -> Head:
        """Call it something else; `name_taken` if that is the name of another."""
        return await self._write(heads.rename, principal, space, name, new_name)

    async def update_head(self, principal: str, space: str, name: str, data: Any) -> Head:
        """Put this in the place of its data."""
        return await self._write(heads.update, principal, space, name, data)

    async def move_head(
        self, principal: str, space: str, name: str, node: str, holder: str | None = None
    ) -> Head:
        """Move it to another node of its tree; `held` if its holder is not `holder`."""
        return await self._write(heads.move, principal, space, name, node, holder)

    async def delete_head(self, principal: str, space: str, name: str) -> Head:
        """Delete it and release its tree; `held` if it has a holder."""
        return await self._write(heads.delete, principal, space, name)

    # --- leases of heads --------------------------------------------------------------------------

    async def acquire_head(
        self, principal: str, space: str, name: str, holder: str, instead_of: str | None = None
    ) -> Head:
        """Acquire the lease of a head without a holder, or whose holder `instead_of` has died;
        else `held`. The pieces of the former holder stay."""
        return await self._write(leases.acquire, principal, space, name, holder, instead_of)

    async def renew_head(
        self, principal: str, head_id: str, holder: str, piece: str | None = None
    ) -> None:
        """Renew the lease, and add a piece of what the holder has so far. This is not recorded as a
        change. `lost_hold` if the lease is not this holder's any more."""
        await self._write(leases.renew, principal, head_id, holder, piece)

    async def advance(
        self,
        principal: str,
        head_id: str,
        holder: str,
        items: Sequence[NewNode],
        parent: str | None = None,
        data: Any = UNCHANGED,
    ) -> tuple[Head, list[Node]]:
        """Add the nodes, each below the one before and the first one below `parent` or the head's
        own node; put the head onto the last one, and drop its pieces. All of it, or nothing.

        Where an item says that it belongs is not looked at. Without items the head only moves.
        `lost_hold` if the head is not the holder's any more.
        """
        return await self._write(leases.advance, principal, head_id, holder, items, parent, data)

    async def release_head(self, principal: str, head_id: str, holder: str) -> None:
        """Release the lease, and drop the pieces. Does nothing if this is not the holder."""
        await self._engine.write(lambda tx: leases.release(tx, principal, head_id, holder))

    async def pieces(self, principal: str, head_id: str) -> list[str]:
        """Return the pieces of what is not added yet, in order."""
        return await self._read(leases.pieces, principal, head_id)

    # --- changes ---------------------------------------------------------------------------------

    async def changes(self, principal: str, tree: str, after: int, limit: int) -> list[ChangeRow]:
        """What happened to a tree after this number; `expired` if some of that is forgotten."""
        return await self._read(trees.list_changes, principal, tree, after, limit)

    async def oldest_change(self, principal: str, tree: str) -> int:
        """The lowest number that `changes` can still begin after."""
        return await self._read(trees.oldest_change, principal, tree)

    async def all_changes(self, after: int, limit: int) -> list[ChangeRow]:
        """Return the changes of all trees of all principals, for a publisher."""
        return await self._read(trees.list_all_changes, after, limit)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after commits, of this process or another. Returns a function that
        unsubscribes."""
        return self._engine.subscribe(listener)

    # --- the whole -------------------------------------------------------------------------------

    async def counts(self) -> Counts:
        """How much there is; `seq` is the number of the last change."""
        return await self._read(trees.counts)

    async def purge(self, now: int | None = None) -> PurgeResult:
        """Archive, remove and forget what is due; several processes may do so at once."""
        return await purge_all(self._engine, self._retention, self._clock() if now is None else now)

    def start_purging(self, every_s: float) -> None:
        """Purge now and then, until the store is closed."""
        self._purge_task = PurgeTask(self.purge, every_s)

    async def check(self) -> None:
        """Check the disk and the files. Raises Failed if they are damaged or nearly full."""
        await self._engine.check()

    async def backup(self, path: Path) -> None:
        """Write a copy of the store, as it is at one moment, while others write."""
        await self._engine.backup(path)

    async def close(self) -> None:
        """Finish what waits, and close the database. May be called twice."""
        if self._purge_task is not None:
            await self._purge_task.stop()
            self._purge_task = None
        await self._engine.close()
