"""Turns, by what begins them: something that is said, said otherwise, or to be answered again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from activations.arbor.model import Node
from activations.chat.attachments import attached
from activations.chat.conversation import Message, storable
from activations.chat.engine import Engine
from activations.chat.events import Answered, Place, Talk
from activations.chat.holding import hold, holder_of_run
from activations.chat.keeping import Keeping
from activations.chat.providers.provider import Used
from activations.chat.recording import Recorder
from activations.chat.sessions import find_session
from activations.chat.setup import Attachment, Begin
from activations.chat.stored import message_of
from activations.chat.turn import usage_of
from plexus import Context, InvalidParams, NotFound

__all__ = ("Talking",)


class Talking(Keeping):
    """What begins a turn."""

    async def send(
        self,
        ctx: Context,
        name: str,
        text: str,
        attachments: Sequence[Attachment],
        begin: Begin,
    ) -> AsyncGenerator[Talk, None]:
        """Say something where the session stands."""
        said = Message("user", _checked(text))
        files = await attached(ctx, attachments)
        async with aclosing(self._turn(ctx, name, [*files, said], begin)) as events:
            async for event in events:
                yield event

    async def regenerate(
        self, ctx: Context, name: str, node: str | None, begin: Begin
    ) -> AsyncGenerator[Talk, None]:
        """Have a message answered again."""
        tree, here = (await find_session(self.store, ctx, name)).head.position
        path = await self.store.path(ctx.principal.name, tree, node or here)
        kinds = [(each.id, found.kind) for each in path if (found := message_of(each)) is not None]
        said = next((id_ for id_, kind in reversed(kinds) if kind == "user"), None)
        if said is None:
            raise NotFound(f"nothing was said yet in session {name!r}", code="nothing_said")
        async with aclosing(self._turn(ctx, name, (), begin._replace(after=said))) as events:
            async for event in events:
                yield event

    async def edit(
        self, ctx: Context, name: str, node_id: str, text: str, begin: Begin
    ) -> AsyncGenerator[Talk, None]:
        """Say something else in the place of an earlier message."""
        _checked(text)
        head = (await find_session(self.store, ctx, name)).head
        node = await self.store.get_node(ctx.principal.name, head.position.tree, node_id)
        old = message_of(node)
        if old is None or old.kind not in ("user", "assistant") or node.parent is None:
            fault = "only what you or the model said can be edited"
            faults = [{"at": "node_id", "fault": fault}]
            raise InvalidParams(f"node_id: {fault}", data={"errors": faults})
        if old.kind == "assistant":
            yield await self._rewrite(ctx, name, node, text, begin)
            return
        said, begin = Message("user", text), begin._replace(after=node.parent)
        async with aclosing(self._turn(ctx, name, [said], begin)) as events:
            async for event in events:
                yield event

    def _turn(
        self, ctx: Context, name: str, messages: Sequence[Message], begin: Begin
    ) -> AsyncGenerator[Talk, None]:
        return Engine(self.providers).converse(ctx, self.store, name, messages, begin)

    async def _rewrite(
        self, ctx: Context, name: str, node: Node, text: str, begin: Begin
    ) -> Answered:
        """Put another answer beside one, and have the session stand there."""
        principal, holder = ctx.principal.name, holder_of_run(ctx.run_id)
        head = await hold(self.store, principal, name, holder, begin.when_busy)
        recording = Recorder(self.store, principal, head, holder)
        try:
            await recording.record([Message("assistant", text, {"edited": True})], node.parent)
        finally:
            await recording.close()
        assert recording.position is not None, "it is recorded"
        return Answered("edited", usage_of(Used()), Place(*recording.position))


def _checked(text: str) -> str:
    """What a person says; raises InvalidParams if that is nothing, or cannot be kept."""
    if not text.strip():
        code, fault = "empty_message", "must not be empty"
    elif storable(text) != text:
        code, fault = "bad_text", "contains a NUL or half a character"
    else:
        return text
    faults = [{"at": "message", "fault": fault}]
    raise InvalidParams(f"the message {fault}", code=code, data={"errors": faults})
