"""The store: every operation on trees and heads as a coroutine, independent of the engine.

Each operation is one function of `queries`, run as one unit of work, and therefore atomic. Trees of
another principal are treated as missing. A head is identified by its name within a space; a holder
uses its id, which does not change when the head is renamed.

Lists are paginated: a page starts after the `n` (for trees: the `id`) of the last item seen and has
at most `limit` items. A page of nodes also ends early when its text is large, so **only an empty
page is the end**.
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

#: Interval between two purges.
PURGE_EVERY_S: Final = 3600.0


def _now_ms() -> int:
    """Return the current time in milliseconds."""
    return time.time_ns() // 1_000_000


async def open_store(
    database: str,
    retention: Retention = Retention(),  # noqa: B008 - a tuple of numbers
    *,
    clock: Callable[[], int] = _now_ms,
    purge_every_s: float | None = PURGE_EVERY_S,
) -> Store:
    """Open and migrate the store, and start to purge it periodically.

    `database` is a path, `sqlite:///path` or `postgresql://...`. If `purge_every_s` is None, there
    is no automatic purge.
    """
    engine = await open_engine(database, ARBOR)
    store = Store(engine, retention, clock)
    if purge_every_s is not None:
        store.start_purging(purge_every_s)
    return store


class Store:
    """An open store, bound to the event loop that it was opened on."""

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
        """Run a read query."""
        return self._engine.read(lambda tx: query(tx, *args, **kwargs))

    def _write(
        self,
        query: Callable[Concatenate[Transaction, int, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """Run a write query, with the time of this call."""
        now = self._clock()
        return self._engine.write(lambda tx: query(tx, now, *args, **kwargs))

    # --- trees -----------------------------------------------------------------------------------

    async def create_tree(
        self, principal: str, owner: str, metadata: Any = None, root: NewNode | None = None
    ) -> Tree:
        """Create a tree with one reference. The default root is an empty text."""
        return await self._write(trees.create, principal, owner, metadata, root or NewNode(""))

    async def get_tree(self, principal: str, tree: str) -> Tree:
        return await self._read(trees.get, principal, tree)

    async def list_trees(
        self, principal: str, state: State | None, after: str | None, limit: int
    ) -> list[Tree]:
        """Return a page of trees in this state, by id. None: active or scheduled for deletion."""
        return await self._read(trees.list_trees, principal, state, after or "", limit)

    async def update_metadata(self, principal: str, tree: str, metadata: Any) -> Tree:
        """Replace the metadata of a tree."""
        return await self._write(trees.update_metadata, principal, tree, metadata)

    async def claim(self, principal: str, tree: str, owner: str, count: int = 1) -> Refs:
        """Add references of an owner. A tree scheduled for deletion becomes active again."""
        return await self._write(trees.claim, principal, tree, owner, count)

    async def release(self, principal: str, tree: str, owner: str, count: int = 1) -> Refs:
        """Remove references of an owner. Removing the last one schedules the tree for deletion."""
        return await self._write(trees.release, principal, tree, owner, count)

    async def delete_tree(self, principal: str, tree: str) -> Tree:
        """Remove all references, so that the tree is scheduled for deletion immediately."""
        return await self._write(trees.delete, principal, tree)

    # --- nodes -----------------------------------------------------------------------------------

    async def append(
        self, principal: str, tree: str, parent: str | None, items: Sequence[NewNode]
    ) -> list[Node]:
        """Add nodes atomically. `parent` None is the root."""
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
        """Add a new version of a node at the same position, without its children."""
        item = NewNode(content, handle, metadata)
        return await self._write(nodes.edit, principal, tree, node, item)

    async def move(
        self, principal: str, tree: str, node: str, parent: str, index: int | None = None
    ) -> Node:
        """Move a subtree to another parent, before the child at `index`. None: last."""
        return await self._write(nodes.move, principal, tree, node, parent, index)

    async def delete_node(self, principal: str, tree: str, node: str) -> int:
        """Delete a subtree. Returns the number of deleted nodes."""
        return await self._write(nodes.delete, principal, tree, node)

    async def get_node(self, principal: str, tree: str, node: str) -> Node:
        return await self._read(reads.get, principal, tree, node)

    async def previews(
        self, principal: str, tree: str, nodes: Sequence[str], characters: int
    ) -> list[tuple[Node, int]]:
        """Return nodes with the beginning of their texts, and the full lengths, in any order."""
        return await self._read(reads.previews, principal, tree, nodes, characters)

    async def parent(self, principal: str, tree: str, node: str) -> Node | None:
        """Return the parent of a node, None for the root."""
        return await self._read(reads.parent, principal, tree, node)

    async def children(
        self, principal: str, tree: str, node: str, after: int | None, limit: int
    ) -> list[Node]:
        """Return a page of children in order, including replaced ones. `after` is a child's `n`."""
        return await self._read(reads.children, principal, tree, node, after, limit)

    async def path(self, principal: str, tree: str, node: str) -> list[Node]:
        """Return the nodes from the root to this node."""
        return await self._read(reads.path, principal, tree, node)

    async def path_tail(self, principal: str, tree: str, node: str, limit: int) -> list[Node]:
        """Return the last `limit` nodes of the path from the root to this node."""
        return await self._read(reads.path_tail, principal, tree, node, limit)

    async def path_stubs(self, principal: str, tree: str, node: str) -> list[NodeStub]:
        """Return the path from the root to this node, without contents."""
        return await self._read(reads.path_stubs, principal, tree, node)

    async def leaves(self, principal: str, tree: str, after: int | None, limit: int) -> list[Node]:
        """Return a page of nodes without children, in insertion order. Skips replaced nodes."""
        return await self._read(reads.leaves, principal, tree, after or 0, limit)

    async def walk(self, principal: str, tree: str, after: int | None, limit: int) -> list[Node]:
        """Return a page of all nodes, in insertion order. A moved node may precede its parent."""
        return await self._read(reads.walk, principal, tree, after or 0, limit)

    async def structure(
        self, principal: str, tree: str, after: int | None, limit: int
    ) -> list[NodeStub]:
        """Return a page of all nodes like `walk`, without contents."""
        return await self._read(reads.structure, principal, tree, after or 0, limit)

    async def search(
        self, principal: str, text: str, tree: str | None, before: int | None, limit: int
    ) -> list[Hit]:
        """Return a page of nodes that contain all words, newest first, in one tree or in all.

        The next page starts before the `n` of the last node.
        """
        while await self._engine.read(search.is_stale):
            await self._engine.write(search.index_batch)
        return await self._read(search.find, principal, text, tree, before, limit)

    # --- drawing, listing and importing ----------------------------------------------------------

    async def subtree(
        self, principal: str, tree: str, node: str, depth: int, limit: int
    ) -> list[DrawnNode]:
        """Return up to `limit` nodes of a subtree, level by level, with siblings in order."""
        return await self._read(reads.subtree, principal, tree, node, depth, limit)

    async def list_by_id(self, principal: str, tree: str, node: str, limit: int) -> list[NodeInfo]:
        """Return a page of the nodes of all trees, by the ids of tree and node, after these ids."""
        return await self._read(reads.list_by_id, principal, tree, node, limit)

    async def last_change(self) -> int:
        """Return the number of the latest change of any tree."""
        return await self._read(trees.last_number)

    async def adopt(self, staging: str, tree: str, principal: str, owner: str) -> Tree:
        """Transfer a completed tree from a staging principal to its principal, atomically."""
        return await self._write(trees.adopt, staging, tree, principal, owner)

    async def discard(self, staging: str, tree: str) -> None:
        """Delete an incomplete tree of a staging principal."""
        await self._engine.write(lambda tx: trees.discard(tx, staging, tree))

    # --- heads -----------------------------------------------------------------------------------

    async def create_head(
        self, principal: str, space: str, name: str, data: Any = None, metadata: Any = None
    ) -> Head:
        """Create a tree with an empty root, and a head at the root.

        Raises Failed (`name_taken`) if a head of this name exists.
        """
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
        """Create another head of the same tree, at `node` or at the position of the first head.

        The new head has its own reference to the tree.
        """
        return await self._write(heads.fork, principal, space, name, new_name, node, data)

    async def get_head(self, principal: str, space: str, name: str) -> Head:
        return await self._read(heads.get, principal, space, name)

    async def list_heads(
        self, principal: str, space: str, after: str | None, limit: int, tree: str | None = None
    ) -> list[Head]:
        """Return a page of heads by name, of all trees or of one. Starts after the last name."""
        return await self._read(heads.list_heads, principal, space, after or "", limit, tree)

    async def rename_head(self, principal: str, space: str, name: str, new_name: str) -> Head:
        """Rename a head. Raises Failed (`name_taken`) if a head of the new name exists."""
        return await self._write(heads.rename, principal, space, name, new_name)

    async def update_head(self, principal: str, space: str, name: str, data: Any) -> Head:
        """Replace the data of a head."""
        return await self._write(heads.update, principal, space, name, data)

    async def move_head(
        self, principal: str, space: str, name: str, node: str, holder: str | None = None
    ) -> Head:
        """Move a head to another node of its tree. Raises Busy (`held`) for another holder."""
        return await self._write(heads.move, principal, space, name, node, holder)

    async def delete_head(self, principal: str, space: str, name: str) -> Head:
        """Delete a head and release its tree. Raises Busy (`held`) if it has a holder."""
        return await self._write(heads.delete, principal, space, name)

    # --- leases of heads --------------------------------------------------------------------------

    async def acquire_head(
        self, principal: str, space: str, name: str, holder: str, instead_of: str | None = None
    ) -> Head:
        """Acquire the lease of a head that has no holder, or whose holder `instead_of` has died.

        Raises Busy (`held`) otherwise. The pieces of the previous holder are kept.
        """
        return await self._write(leases.acquire, principal, space, name, holder, instead_of)

    async def renew_head(
        self, principal: str, head_id: str, holder: str, piece: str | None = None
    ) -> None:
        """Renew the lease, and store a piece of the node in progress. Not recorded as a change.

        Raises Failed (`lost_hold`) if another holder has the lease.
        """
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
        """Add a chain of nodes, move the head to the last node and drop its pieces, atomically.

        The first node becomes a child of `parent`, or of the head's node. The `parent` of each item
        is ignored. Without items, only the head moves. Raises Failed (`lost_hold`) if another
        holder has the lease.
        """
        return await self._write(leases.advance, principal, head_id, holder, items, parent, data)

    async def release_head(self, principal: str, head_id: str, holder: str) -> None:
        """Release the lease and drop the pieces. Does nothing for another holder."""
        await self._engine.write(lambda tx: leases.release(tx, principal, head_id, holder))

    async def pieces(self, principal: str, head_id: str) -> list[str]:
        """Return the stored pieces of the node in progress, in order."""
        return await self._read(leases.pieces, principal, head_id)

    # --- changes ---------------------------------------------------------------------------------

    async def changes(self, principal: str, tree: str, after: int, limit: int) -> list[ChangeRow]:
        """Return a page of changes of a tree after this number.

        Raises Failed (`expired`) if some of them were purged.
        """
        return await self._read(trees.list_changes, principal, tree, after, limit)

    async def oldest_change(self, principal: str, tree: str) -> int:
        """Return the lowest number after which `changes` can start."""
        return await self._read(trees.oldest_change, principal, tree)

    async def all_changes(self, after: int, limit: int) -> list[ChangeRow]:
        """Return a page of changes of all trees of all principals."""
        return await self._read(trees.list_all_changes, after, limit)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after commits by any process. Returns a function that unsubscribes."""
        return self._engine.subscribe(listener)

    # --- maintenance -----------------------------------------------------------------------------

    async def counts(self) -> Counts:
        """Return the number of trees and nodes, and the number of the latest change."""
        return await self._read(trees.counts)

    async def purge(self, now: int | None = None) -> PurgeResult:
        """Archive and remove everything that is due. Safe to run in several processes."""
        return await purge_all(self._engine, self._retention, self._clock() if now is None else now)

    def start_purging(self, every_s: float) -> None:
        """Purge periodically until the store is closed."""
        self._purge_task = PurgeTask(self.purge, every_s)

    async def check(self) -> None:
        """Check the disk and the database files. Raises Failed on damage or if the disk is full."""
        await self._engine.check()

    async def backup(self, path: Path) -> None:
        """Write a consistent copy of the store, without blocking writers."""
        await self._engine.backup(path)

    async def close(self) -> None:
        """Finish queued operations and close the database. Idempotent."""
        if self._purge_task is not None:
            await self._purge_task.stop()
            self._purge_task = None
        await self._engine.close()
