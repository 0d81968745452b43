"""What a turn leaves behind: messages as nodes, and pieces of what is not finished yet.

`Recorder` writes to the store; `NoRecorder` stands in its place for a turn that leaves no trace.
A write that has begun is seen through even if the turn is cancelled meanwhile: it is then known
what is stored, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from activations.arbor.model import Head, Position
from activations.chat.conversation import Message
from activations.chat.draft import Draft
from activations.chat.holding import RENEW_S
from activations.chat.shielding import seen_through
from activations.chat.stored import node_of
from plexus.errors import PlexusError

if TYPE_CHECKING:  # a store is imported when it is opened
    from activations.arbor.store import Store

__all__ = ("NoRecorder", "Recorder", "Recording")

#: How long pieces are gathered: what is lost at most when the machine's plug is pulled.
GATHER_S = 0.2


class Recording(Protocol):
    """Where the messages of a turn go."""

    #: The answer that is being written.
    draft: Draft
    #: Where the session stands; None if nothing is recorded.
    position: Position | None

    def touched(self) -> None:
        """The draft has grown; raises if it can no longer be kept."""

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:
        """Add these messages to the session, in the place of the draft."""

    async def close(self) -> None:
        """The turn is over."""


class NoRecorder:
    """Records nothing."""

    position: Position | None = None

    def __init__(self) -> None:
        self.draft = Draft()

    def touched(self) -> None:
        """Nothing is kept of it."""

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:  # noqa: ARG002 - it is nowhere
        """The messages as they are."""
        self.draft = Draft()
        return list(messages)

    async def close(self) -> None:
        """There is nothing to let go of."""


class Recorder:
    """Records the messages of a turn that holds its session."""

    def __init__(self, store: Store, principal: str, head: Head, holder: str) -> None:
        self.draft = Draft()
        self.position: Position | None = head.position
        self._store = store
        self._principal = principal
        self._head = head.id
        self._holder = holder
        self._failure: PlexusError | None = None
        self._grown = asyncio.Event()
        #: A piece must not be written after the messages that it is a piece of.
        self._writing = asyncio.Lock()
        self._keeping = asyncio.create_task(self._keep())

    def touched(self) -> None:
        """Have the draft kept soon; raises what kept it from being kept."""
        if self._failure is not None:
            raise self._failure
        if not self._grown.is_set():
            self._grown.set()

    async def record(self, messages: Sequence[Message], parent: str | None = None) -> list[Message]:
        """Add these messages below the head, or below `parent`, and move the head there."""
        return await seen_through(self._record(messages, parent))

    async def _record(self, messages: Sequence[Message], parent: str | None) -> list[Message]:
        async with self._writing:
            head, nodes = await self._store.advance(
                self._principal,
                self._head,
                self._holder,
                [node_of(message) for message in messages],
                parent,
            )
            self.draft = Draft()
            self.position = head.position
        return [
            message._replace(node=node.id) for message, node in zip(messages, nodes, strict=True)
        ]

    async def close(self) -> None:
        """Let go of the session."""
        self._keeping.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._keeping
        finally:
            await seen_through(self._store.release_head(self._principal, self._head, self._holder))

    async def _keep(self) -> None:
        """Keep what has come, and say now and then that somebody is at work here."""
        while self._failure is None:
            try:
                async with asyncio.timeout(RENEW_S):
                    await self._grown.wait()
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
            self._grown.clear()
            try:
                async with self._writing:
                    piece = self.draft.take_piece()
                    await self._store.renew_head(self._principal, self._head, self._holder, piece)
            except PlexusError as error:
                self._failure = error
