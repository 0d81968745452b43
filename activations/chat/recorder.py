"""What a turn stores: messages as nodes, and pieces of what is not finished yet.

`StoreRecorder` writes to the store; `Recorder` takes its place for a turn that leaves no trace. A
write that has begun is completed even if the turn is cancelled meanwhile: it is then known what is
stored, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from activations.arbor.model import Head, Position
from activations.arbor.store import Store
from activations.chat.lease import RENEW_S, WhenBusy, acquire, complete, lease_owner
from activations.chat.message import Draft, Message, node_of
from plexus import Context
from plexus.errors import PlexusError

__all__ = ("Recorder", "StoreRecorder")

#: How long pieces are gathered: what is lost at most when the machine loses its power.
GATHER_S = 0.2


class Recorder:
    """Records nothing: for a turn that leaves no trace."""

    #: Where the session stands; None if nothing is recorded.
    position: Position | None = None

    def __init__(self) -> None:
        #: The answer that is being written.
        self.draft = Draft()

    def draft_changed(self) -> None:
        """Have the draft stored soon; raises if it can no longer be stored."""

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:  # noqa: ARG002 - it is stored nowhere
        """Add these messages to the session, in the place of the draft."""
        self.draft = Draft()
        return list(messages)

    async def close(self) -> None:
        """End the turn."""


class StoreRecorder(Recorder):
    """Records the messages of a turn that owns its session, and renews the lease."""

    def __init__(self, store: Store, principal: str, head: Head, owner: str) -> None:
        super().__init__()
        self.head = head
        self.position = head.position
        self._store = store
        self._principal = principal
        self._owner = owner
        self._failure: PlexusError | None = None
        self._changed = asyncio.Event()
        #: A piece must not be written after the messages that it is a piece of.
        self._writing = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew())

    @classmethod
    async def acquire(
        cls, store: Store, ctx: Context, name: str, when_busy: WhenBusy
    ) -> StoreRecorder:
        """Acquire a session for this run; raises Busy."""
        principal, owner = ctx.principal.name, lease_owner(ctx.run_id)
        return cls(store, principal, await acquire(store, principal, name, owner, when_busy), owner)

    def draft_changed(self) -> None:
        """Have the draft stored soon; raises the error that kept it from being stored."""
        if self._failure is not None:
            raise self._failure
        if not self._changed.is_set():
            self._changed.set()

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:
        """Add these messages below the head, or below `parent`, and move the head there."""
        return await complete(self._record(messages, parent))

    async def _record(self, messages: Sequence[Message], parent: str | None) -> list[Message]:
        async with self._writing:
            head, nodes = await self._store.advance(
                self._principal,
                self.head.id,
                self._owner,
                [node_of(message) for message in messages],
                parent,
            )
            self.draft = Draft()
            self.position = head.position
        return [
            message._replace(node=node.id) for message, node in zip(messages, nodes, strict=True)
        ]

    async def close(self) -> None:
        """Release the session."""
        self._renewing.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._renewing
        finally:
            await complete(self._store.release_head(self._principal, self.head.id, self._owner))

    async def _renew(self) -> None:
        """Store what has come, and renew the lease now and then."""
        while self._failure is None:
            try:
                async with asyncio.timeout(RENEW_S):
                    await self._changed.wait()
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                async with self._writing:
                    piece = self.draft.take_piece()
                    await self._store.renew_head(self._principal, self.head.id, self._owner, piece)
            except PlexusError as error:
                self._failure = error
