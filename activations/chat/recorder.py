"""Recorders: store the messages of a turn as nodes, and pieces of its draft meanwhile.

`StoreRecorder` writes to the store; `Recorder` stores nothing and serves ephemeral turns. A write
that has started completes even if the turn is cancelled meanwhile, so that it is known what is
stored and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from activations.arbor.model import Head, Position
from activations.arbor.store import Store
from activations.chat.lease import RENEW_S, WhenBusy, acquire, lease_owner, run_to_completion
from activations.chat.message import Draft, Message, node_from_message
from plexus import Context
from plexus.errors import PlexusError

__all__ = ("Recorder", "StoreRecorder")

#: Delay between a change and its write. A power failure loses at most this much of a draft.
SAVE_DELAY_S = 0.2


class Recorder:
    """Recorder of an ephemeral turn, which stores nothing."""

    #: The position of the session; None if nothing is stored.
    position: Position | None = None

    def __init__(self) -> None:
        #: The answer in progress.
        self.draft = Draft()

    def schedule_save(self) -> None:
        """Schedule a save of the draft. Raises if it can no longer be saved."""

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:  # noqa: ARG002 - nothing is stored
        """Add messages to the session and clear the draft; return them with their nodes."""
        self.draft = Draft()
        return list(messages)

    async def close(self) -> None:
        """End the turn."""


class StoreRecorder(Recorder):
    """Recorder of a turn that owns its session; it also renews the lease."""

    def __init__(self, store: Store, principal: str, head: Head, owner: str) -> None:
        super().__init__()
        self.head = head
        self.position = head.position
        self._store = store
        self._principal = principal
        self._owner = owner
        self._failure: PlexusError | None = None
        self._changed = asyncio.Event()
        #: A piece must not be written after the messages that it belongs to.
        self._write_lock = asyncio.Lock()
        self._renew_task = asyncio.create_task(self._renew())

    @classmethod
    async def acquire(
        cls, store: Store, ctx: Context, name: str, when_busy: WhenBusy
    ) -> StoreRecorder:
        """Acquire a session for the run of this context. Raises Busy."""
        principal, owner = ctx.principal.name, lease_owner(ctx.run_id)
        return cls(store, principal, await acquire(store, principal, name, owner, when_busy), owner)

    def schedule_save(self) -> None:
        """Schedule a save of the draft. Raises the error of an earlier save."""
        if self._failure is not None:
            raise self._failure
        if not self._changed.is_set():
            self._changed.set()

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:
        """Add messages below the head, or below `parent`, and move the head to the last."""
        return await run_to_completion(self._record(messages, parent))

    async def _record(self, messages: Sequence[Message], parent: str | None) -> list[Message]:
        async with self._write_lock:
            head, nodes = await self._store.advance(
                self._principal,
                self.head.id,
                self._owner,
                [node_from_message(message) for message in messages],
                parent,
            )
            self.draft = Draft()
            self.position = head.position
        return [
            message._replace(node=node.id) for message, node in zip(messages, nodes, strict=True)
        ]

    async def close(self) -> None:
        """Release the session."""
        self._renew_task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._renew_task
        finally:
            await run_to_completion(
                self._store.release_head(self._principal, self.head.id, self._owner)
            )

    async def _renew(self) -> None:
        """Save changes of the draft, and renew the lease at intervals."""
        while self._failure is None:
            try:
                async with asyncio.timeout(RENEW_S):
                    await self._changed.wait()
                await asyncio.sleep(SAVE_DELAY_S)
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                async with self._write_lock:
                    piece = self.draft.take_piece()
                    await self._store.renew_head(self._principal, self.head.id, self._owner, piece)
            except PlexusError as error:
                self._failure = error
