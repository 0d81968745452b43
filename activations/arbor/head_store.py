"""The store's operations on heads: names for places in trees, and leases of them.

As everywhere in the store, each operation is one transaction, and another principal's head is not
found. A head is identified by its name in a space; a holder uses its id, which stays when the head
is renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from activations.arbor.model import KEEP, Head, NewNode, Node
from activations.arbor.queries import heads, leases
from plexus.storage.engine import Engine

__all__ = ("HeadStore",)


class HeadStore:
    """The part of a store that is about heads."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock

    # --- names -----------------------------------------------------------------------------------

    async def create_head(
        self, principal: str, space: str, name: str, data: Any = None, metadata: Any = None
    ) -> Head:
        """Make a tree with this metadata and an empty root, and a head at the root, which holds
        it; `name_taken` if there is one of this name."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: heads.create(tx, now, principal, space, name, data, metadata)
        )

    async def fork_head(
        self,
        principal: str,
        space: str,
        name: str,
        new_name: str,
        node: str | None = None,
        data: Any = KEEP,
    ) -> Head:
        """Make another head of the same tree, at `node` or where the first one stands; it holds
        the tree by a reference of its own."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: heads.fork(tx, now, principal, space, name, new_name, node, data)
        )

    async def get_head(self, principal: str, space: str, name: str) -> Head:
        return await self._engine.read(lambda tx: heads.get(tx, principal, space, name))

    async def list_heads(
        self, principal: str, space: str, after: str | None, limit: int, tree: str | None = None
    ) -> list[Head]:
        """Those of all trees or of one, by name; a page begins after the last name seen."""
        return await self._engine.read(
            lambda tx: heads.listed(tx, principal, space, after or "", limit, tree)
        )

    async def rename_head(self, principal: str, space: str, name: str, new_name: str) -> Head:
        """Call it something else; `name_taken` if that is the name of another."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: heads.rename(tx, now, principal, space, name, new_name)
        )

    async def update_head(self, principal: str, space: str, name: str, data: Any) -> Head:
        """Put this in the place of its data."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: heads.update(tx, now, principal, space, name, data)
        )

    async def move_head(
        self, principal: str, space: str, name: str, node: str, holder: str | None = None
    ) -> Head:
        """Move it to another node of its tree; `held` if its holder is not `holder`."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: heads.move(tx, now, principal, space, name, node, holder)
        )

    async def delete_head(self, principal: str, space: str, name: str) -> Head:
        """Delete it and release its tree; `held` if it has a holder."""
        now = self._clock()
        return await self._engine.write(lambda tx: heads.delete(tx, now, principal, space, name))

    # --- leases ----------------------------------------------------------------------------------

    async def acquire_head(
        self, principal: str, space: str, name: str, holder: str, instead_of: str | None = None
    ) -> Head:
        """Acquire the lease of a head without a holder, or whose holder `instead_of` has died;
        else `held`. The pieces of the former holder stay."""
        now = self._clock()
        return await self._engine.write(
            lambda tx: leases.acquire(tx, now, principal, space, name, holder, instead_of)
        )

    async def renew_head(
        self, principal: str, head_id: str, holder: str, piece: str | None = None
    ) -> None:
        """Renew the lease, and add a piece of what the holder has so far. This is not recorded as a
        change. `lost_hold` if the lease is not this holder's any more."""
        now = self._clock()
        await self._engine.write(
            lambda tx: leases.renew(tx, now, principal, head_id, holder, piece)
        )

    async def advance(
        self,
        principal: str,
        head_id: str,
        holder: str,
        items: Sequence[NewNode],
        parent: str | None = None,
        data: Any = KEEP,
    ) -> tuple[Head, list[Node]]:
        """Add the nodes, each below the one before and the first one below `parent` or the head's
        own node; put the head onto the last one, and drop its pieces. All of it, or nothing.

        Where an item says that it belongs is not looked at. Without items the head only moves.
        `lost_hold` if the head is not the holder's any more.
        """
        now = self._clock()
        return await self._engine.write(
            lambda tx: leases.advance(tx, now, principal, head_id, holder, items, parent, data)
        )

    async def release_head(self, principal: str, head_id: str, holder: str) -> None:
        """Release the lease, and drop the pieces. Does nothing if this is not the holder."""
        await self._engine.write(lambda tx: leases.release(tx, principal, head_id, holder))

    async def pieces(self, principal: str, head_id: str) -> list[str]:
        """Return the pieces of what is not added yet, in order."""
        return await self._engine.read(lambda tx: leases.pieces(tx, principal, head_id))
