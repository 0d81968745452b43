"""The methods that say something: each is a turn, and streams the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from activations.chat.events import Talk
from activations.chat.opening import WithDesk
from activations.chat.setup import TURN_S, Attachment, Begin, Overflow, WhenBusy
from plexus import Context, method

__all__ = ("Conversing",)


class Conversing(WithDesk):
    """What is said, and the answers."""

    @method(title="Say something", deadline_s=TURN_S, destructive=False, open_world=True)
    async def send(
        self,
        session: str,
        message: str,
        attachments: list[Attachment] | None = None,
        ephemeral: bool = False,
        max_turns: int | None = None,
        when_busy: WhenBusy = "refuse",
        overflow: Overflow | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[Talk]:
        """Send a message and stream the answer.

        The message is stored before the model is asked. If the answer is cut off, by an error or
        by you, what there is of it is kept and marked.

        Args:
            session: The session's name.
            message: What you say.
            attachments: Files that belong to it: each has a text, or data (base64) and a
                mime_type, or the uri of a resource of this server; and may have a name.
            ephemeral: Whether nothing of this turn is kept.
            max_turns: How often the model may be asked in this turn; it is asked again after each
                round of tools.
            when_busy: What happens if a turn is under way: refuse, or queue this one after it.
            overflow: What happens if the conversation is longer than the model takes: refuse, drop
                the oldest turns, or summarise them; as the session says, if left out.
        """
        begin = Begin(None, ephemeral, max_turns, when_busy, overflow)
        desk = await self.desk()
        async with aclosing(desk.send(ctx, session, message, attachments or [], begin)) as events:
            async for event in events:
                yield event

    @method(title="Answer again", deadline_s=TURN_S, destructive=False, open_world=True)
    async def regenerate(
        self,
        session: str,
        node_id: str | None = None,
        max_turns: int | None = None,
        when_busy: WhenBusy = "refuse",
        overflow: Overflow | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[Talk]:
        """Have the model answer a message again, in a branch beside the answer that there is.

        Args:
            session: The session's name.
            node_id: The message of yours, or anything of its answer; the latest, if left out.
            max_turns: How often the model may be asked in this turn.
            when_busy: What happens if a turn is under way: refuse, or queue this one after it.
            overflow: What happens if the conversation is longer than the model takes.
        """
        begin = Begin(None, False, max_turns, when_busy, overflow)
        desk = await self.desk()
        async with aclosing(desk.regenerate(ctx, session, node_id, begin)) as events:
            async for event in events:
                yield event

    @method(title="Edit a message", deadline_s=TURN_S, destructive=False, open_world=True)
    async def edit(
        self,
        session: str,
        node_id: str,
        message: str,
        max_turns: int | None = None,
        when_busy: WhenBusy = "refuse",
        overflow: Overflow | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[Talk]:
        """Say something else in the place of an earlier message: a new branch begins there.

        The old message stays, with all that followed. A new message of yours is answered, with the
        attachments of the old one; an answer that you rewrite is only stored.

        Args:
            session: The session's name.
            node_id: The message: one of yours, or an answer.
            message: What is said in its place.
            max_turns: How often the model may be asked in this turn.
            when_busy: What happens if a turn is under way: refuse, or queue this one after it.
            overflow: What happens if the conversation is longer than the model takes.
        """
        begin = Begin(None, False, max_turns, when_busy, overflow)
        desk = await self.desk()
        async with aclosing(desk.edit(ctx, session, node_id, message, begin)) as events:
            async for event in events:
                yield event
