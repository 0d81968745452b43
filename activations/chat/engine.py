"""Beginning a turn: finding the session, its model and its place, and making the conversation fit.

Everything that can be wrong is found out before anything is stored. From then on the turn itself
is `turn.py`'s, and whatever happens the session is let go of.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from activations.chat.conversation import Message
from activations.chat.events import ChatStart, Place, Talk
from activations.chat.fitting import Fit, fitted, in_sight, too_long
from activations.chat.holding import hold, holder_of_run
from activations.chat.opening import ProviderSource
from activations.chat.providers.provider import Provider, Tool, Used
from activations.chat.recording import NoRecorder, Recorder, Recording
from activations.chat.sessions import Session, find_session, session_of
from activations.chat.setup import Begin
from activations.chat.stored import messages_of
from activations.chat.summarising import summarised
from activations.chat.tools import Tools
from activations.chat.turn import Turn
from plexus import Context, Denied, InvalidParams

if TYPE_CHECKING:  # a store is imported when it is opened
    from activations.arbor.store import Store

__all__ = ("Engine",)

#: The scope of whoever may run commands here: a provider that runs tools itself can do no less.
COMMANDS = "bash"


class Engine:
    """Runs the turns of all sessions."""

    def __init__(self, providers: ProviderSource) -> None:
        self._providers = providers

    async def provider_of(self, model: str, ctx: Context) -> Provider:
        """The provider of this model, if it can be asked now; raises why it cannot."""
        provider, name = self._providers.find(model)
        if provider.runs_tools and not ctx.principal.may(COMMANDS):
            raise Denied(
                f"{model} runs commands of its own, which needs the scope {COMMANDS!r}",
                data={"scope": COMMANDS},
            )
        await provider.check(name)
        return provider

    async def converse(
        self,
        ctx: Context,
        store: Store,
        name: str,
        messages: Sequence[Message],
        begin: Begin,
    ) -> AsyncGenerator[Talk, None]:
        """A whole turn of the session of this name: these messages, or none if the one that it
        begins after is to be answered again, and the answer."""
        if begin.max_turns is not None and begin.max_turns < 1:
            fault = "must be at least 1"
            faults = [{"at": "max_turns", "fault": fault}]
            raise InvalidParams(f"max_turns: {fault}", data={"errors": faults})
        session = await find_session(store, ctx, name)
        model = session.setup.model
        provider = await self.provider_of(model, ctx)
        recording: Recording
        if begin.ephemeral:
            recording = NoRecorder()
        else:
            holder = holder_of_run(ctx.run_id)
            principal = ctx.principal.name
            head = await hold(store, principal, name, holder, begin.when_busy)
            recording = Recorder(store, principal, head, holder)
            session = session_of(head)  # it may have changed while this turn waited for others
        try:
            setup = session.setup
            if setup.model != model:
                provider = await self.provider_of(setup.model, ctx)
            tools = Tools(ctx, setup.tools, setup.approve)
            talk = _Talk(ctx, store, session, provider, tools, recording, messages, begin)
            async with aclosing(talk.events()) as events:
                async for event in events:
                    yield event
        finally:
            await recording.close()


class _Talk:
    """A turn of a session that is held, if it is to be."""

    def __init__(
        self,
        ctx: Context,
        store: Store,
        session: Session,
        provider: Provider,
        tools: Tools,
        recording: Recording,
        said: Sequence[Message],
        begin: Begin,
    ) -> None:
        self._ctx = ctx
        self._store = store
        self._session = session
        self._provider = provider
        self._tools = tools
        self._recording = recording
        self._said = said
        self._begin = begin

    async def events(self) -> AsyncGenerator[Talk, None]:
        begin, (head, setup) = self._begin, self._session
        principal, tree = self._ctx.principal.name, head.position.tree
        after = begin.after or head.position.node
        path = await self._store.path(principal, tree, after)
        earlier = messages_of(path)
        fit = self._fit([*in_sight(earlier), *self._said])
        summaries, spent = await self._shortened(fit) if fit.left_out else ([], Used())
        branching = self._provider.runs_tools and await self._is_branching(tree, after, earlier)
        new = await self._recording.record([*summaries, *self._said], begin.after)
        kept = [each for each in fit.messages if each.node is not None]
        count = len(summaries)
        messages = [*new[:count], *kept, *new[count:]]
        # A summary may follow the message that it makes room for.
        said = next((each.node for each in reversed(messages) if each.kind == "user"), None)
        yield ChatStart(head.name, None if said is None else Place(tree, said))
        turn = Turn(
            self._ctx,
            setup,
            self._provider,
            self._tools,
            self._recording,
            messages,
            max_turns=begin.max_turns,
            ephemeral=begin.ephemeral,
            branching=branching,
            spent=spent,
        )
        async with aclosing(turn.events()) as events:
            async for event in events:
                yield event

    def _fit(self, messages: Sequence[Message]) -> Fit:
        """What of the conversation fits; raises if that is not all of it and nobody has chosen."""
        setup = self._session.setup
        model = setup.model.partition(":")[2]
        limit = setup.context_tokens or self._provider.context_tokens(model)
        offered: Sequence[Tool] = () if self._provider.runs_tools else self._tools.offered()
        fit = fitted(messages, setup.system_prompt, offered, limit, setup.max_tokens)
        overflow = self._begin.overflow or setup.overflow
        if fit.left_out and (overflow == "refuse" or not fit.messages):
            raise too_long(fit)
        return fit

    async def _shortened(self, fit: Fit) -> tuple[list[Message], Used]:
        """What is sent in the place of what is left out, and what that cost."""
        setup, count = self._session.setup, len(fit.left_out)
        assert fit.limit is not None, "only where there is a limit something is left out"
        if (self._begin.overflow or setup.overflow) == "drop":
            await self._ctx.log(
                "warning", f"the oldest {count} messages do not fit and are not sent"
            )
            return [], Used()
        await self._ctx.log("info", f"the oldest {count} messages do not fit: summarising them")
        text, used = await summarised(self._provider, setup.model, fit.left_out, fit.limit)
        # A summary may be the last of them; what it stands for is stood for by the new one too.
        last = fit.left_out[-1]
        through = last.meta.get("through") if last.kind == "summary" else last.node
        return [Message("summary", text, {"through": through})], used

    async def _is_branching(self, tree: str, after: str, earlier: Sequence[Message]) -> bool:
        """Whether what the provider remembers has been gone on with elsewhere."""
        principal = self._ctx.principal.name
        if await self._store.children(principal, tree, after, None, 1):
            return True
        memories = [i for i, each in enumerate(earlier) if "memory" in each.meta]
        if not memories or memories[-1] == len(earlier) - 1:
            return False
        last = memories[-1]
        node = earlier[last].node
        assert node is not None, "what is stored has a node"
        children = await self._store.children(principal, tree, node, None, 2)
        return any(child.id != earlier[last + 1].node for child in children)
