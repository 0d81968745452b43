"""One turn: from a user's message to the end of the answer, with the tools on the way.

The order of things is the promise: everything that can be wrong is found before anything is
stored; the message is stored before the model is asked; what the model says is forwarded as it
comes; and what there is of an answer is stored, whatever happens to the rest of it. The session
is released in any case. One body serves every way to begin a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing
from typing import Any, Final, NamedTuple

from activations.chat.context_window import (
    Fit,
    Overflow,
    context_too_long,
    fit_messages,
    summarise,
    visible_messages,
)
from activations.chat.events import (
    Answered,
    ChatStart,
    Place,
    Thinking,
    ToolStart,
    TurnEvent,
    Usage,
)
from activations.chat.lease import WhenBusy
from activations.chat.message import Message, Status, messages_of, storable
from activations.chat.providers.provider import (
    Delta,
    Provider,
    ProviderRequest,
    Retry,
    Stop,
    Text,
    ThinkingText,
    TokenUsage,
    Tool,
    ToolCall,
    ToolOutput,
    Verdict,
)
from activations.chat.recorder import Recorder, StoreRecorder
from activations.chat.sessions import Session, Sessions, session_of
from activations.chat.tools import RESULT_CHARACTERS, StartedTool, Tools, ask_person
from plexus import Content, Context, InvalidParams, PlexusError, ToolResult, ToolUse
from plexus.rpc import wire
from plexus.text import head_and_tail

__all__ = ("MAX_TURNS", "TURN_S", "Turn", "TurnOptions", "rewrite_answer")

#: How long a turn may take, with all its tools and questions.
TURN_S: Final = 3600.0
#: The longest piece of an answer that makes an event: every character may take six bytes there.
PART_CHARACTERS = 100_000
#: How often a model is asked in one turn at most, if the caller gives no number.
MAX_TURNS = 50


class TurnOptions(NamedTuple):
    """How a turn begins."""

    #: The node after which it begins; None: where the session stands.
    after: str | None = None
    ephemeral: bool = False
    max_turns: int | None = None
    when_busy: WhenBusy = "refuse"
    overflow: Overflow | None = None


class Turn:
    """A turn of one session; iterate over `run()` once.

    `said` are the user's messages, or none if the message that it begins after is to be answered
    again.
    """

    _session: Session
    _model: str
    _provider: Provider
    _recorder: Recorder
    _tools: Tools

    def __init__(
        self,
        sessions: Sessions,
        ctx: Context,
        name: str,
        said: Sequence[Message],
        options: TurnOptions,
    ) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._ctx = ctx
        self._name = name
        self._said = said
        self._options = options
        #: The conversation as the model is given it.
        self._messages: list[Message] = []
        #: Whether the provider's own memory of the conversation was continued in another branch.
        self._branching = False
        #: The usage of the rounds before this one, and of this one so far.
        self._spent = TokenUsage()
        self._used = TokenUsage()
        self._calls: list[ToolCall] = []
        self._stop = Stop("end_turn")

    async def run(self) -> AsyncGenerator[TurnEvent, None]:
        """Ask the model, run the tools that it asks for, and ask again, until it is done."""
        await self._open()
        try:
            yield await self._begin()
            status: Status = "error"
            failure: PlexusError | None = None
            try:
                rounds = self._options.max_turns or MAX_TURNS
                while True:
                    async with aclosing(self._provider.stream(self._request())) as deltas:
                        async for delta in deltas:
                            for part in _parts(delta):
                                event = self._take(part)
                                if event is not None:
                                    yield event
                            if isinstance(delta, Retry):
                                message = f"{delta.reason}; waits {delta.seconds:g} s"
                                await self._ctx.log("warning", message)
                            elif isinstance(delta, ToolOutput):
                                # What a tool did cannot be undone: it is stored at once.
                                await self._record(self._recorder.draft.messages())
                    yield await self._end_round()
                    rounds -= 1
                    if not self._calls or self._provider.runs_tools:
                        reason = self._stop.stop_reason
                        break
                    if not rounds:
                        reason = "max_turns"
                        break
                    for call in self._calls:
                        tool = await self._tools.start(call)
                        if isinstance(tool, StartedTool):
                            with closing(tool):
                                yield ToolStart(call.id, tool.run_id)
                                result = await tool.result()
                            run_id: int | None = tool.run_id
                        else:
                            result, run_id = tool, None
                        yield result
                        await self._record([self._result_message(call, result, run_id)])
                status = "complete"
            except PlexusError as error:
                failure = error
                raise
            except (asyncio.CancelledError, GeneratorExit):
                status = "cancelled"
                raise
            finally:
                if status != "complete":
                    await self._store_partial(status, failure)
            position = self._recorder.position
            place = None if position is None else Place(*position)
            yield Answered(reason, self._spent.as_event(), place)
        finally:
            await self._recorder.close()

    # --- the beginning ------------------------------------------------------------------------

    async def _open(self) -> None:
        """Find the session and its provider, and acquire the session unless it is ephemeral."""
        ctx, options = self._ctx, self._options
        if options.max_turns is not None and options.max_turns < 1:
            raise InvalidParams.at("max_turns", "must be at least 1")
        self._session = await self._sessions.find(ctx, self._name)
        self._model = self._session.model
        self._provider = await self._sessions.provider(ctx, self._model)
        if options.ephemeral:
            self._recorder = Recorder()
            return
        recorder = await StoreRecorder.acquire(self._store, ctx, self._name, options.when_busy)
        self._recorder = recorder
        # The session may have changed while this turn waited for others.
        self._session = session_of(recorder.head)

    async def _begin(self) -> ChatStart:
        """Fit the conversation into the context window and store what was said."""
        ctx, options = self._ctx, self._options
        head, config = self._session
        if self._session.model != self._model:
            self._model = self._session.model
            self._provider = await self._sessions.provider(ctx, self._model)
        self._tools = Tools(ctx, config.tools or (), config.approve)
        principal, tree = ctx.principal.name, head.position.tree
        after = options.after or head.position.node
        earlier = messages_of(await self._store.path(principal, tree, after))
        fit = self._fit([*visible_messages(earlier), *self._said])
        summaries = await self._shorten(fit) if fit.left_out else []
        if self._provider.runs_tools:
            self._branching = await self._is_branching(tree, after, earlier)
        new = await self._recorder.record([*summaries, *self._said], options.after)
        kept = [each for each in fit.messages if each.node is not None]
        count = len(summaries)
        self._messages = [*new[:count], *kept, *new[count:]]
        # A summary may follow the message that it makes room for.
        said = (each.node for each in reversed(self._messages) if each.kind == "user")
        node = next(said, None)
        return ChatStart(head.name, None if node is None else Place(tree, node))

    def _fit(self, messages: Sequence[Message]) -> Fit:
        """Return what of the conversation fits; raises TooBig if the rest may not be left out."""
        config = self._session.config
        limit = config.context_tokens or self._provider.context_tokens(self._model_name)
        offered: Sequence[Tool] = () if self._provider.runs_tools else self._tools.offered()
        fit = fit_messages(messages, config.system_prompt, offered, limit, config.max_tokens)
        if fit.left_out and (self._overflow == "refuse" or not fit.messages):
            raise context_too_long(fit)
        return fit

    async def _shorten(self, fit: Fit) -> list[Message]:
        """Return what is sent in the place of what is left out."""
        count = len(fit.left_out)
        assert fit.limit is not None, "only where there is a limit something is left out"
        if self._overflow == "drop":
            await self._ctx.log(
                "warning", f"the oldest {count} messages do not fit and are not sent"
            )
            return []
        await self._ctx.log("info", f"the oldest {count} messages do not fit: summarising them")
        text, self._spent = await summarise(self._provider, self._model, fit.left_out, fit.limit)
        # A summary may be the last of them; what it replaces is replaced by the new one too.
        last = fit.left_out[-1]
        through = last.meta.get("through") if last.kind == "summary" else last.node
        return [Message("summary", text, {"through": through})]

    async def _is_branching(self, tree: str, after: str, earlier: Sequence[Message]) -> bool:
        """Whether what the provider remembers was continued in another branch."""
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

    @property
    def _overflow(self) -> Overflow:
        return self._options.overflow or self._session.config.overflow

    @property
    def _model_name(self) -> str:
        """The model without the provider's name."""
        return self._model.partition(":")[2]

    # --- a round ------------------------------------------------------------------------------

    def _request(self) -> ProviderRequest:
        """Begin a round: return what the provider is asked."""
        self._calls = []
        self._used = TokenUsage()
        self._stop = Stop("end_turn")
        config, options = self._session.config, self._options
        return ProviderRequest(
            model=self._model_name,
            messages=self._messages,
            approve=self._approve,
            system_prompt=config.system_prompt,
            tools=() if self._provider.runs_tools else self._tools.offered(),
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            thinking=config.thinking,
            ephemeral=options.ephemeral,
            max_turns=options.max_turns,
            working_dir=config.working_dir,
            allowed_tools=config.allowed_tools or (),
            branching=self._branching,
        )

    def _take(self, delta: Delta) -> TurnEvent | None:
        """Add what has come to the draft; return the event for it."""
        draft = self._recorder.draft
        event: TurnEvent | None = None
        if isinstance(delta, Text):
            text = storable(delta.text)
            draft.add("assistant", text)
            event = Content(text) if text else None
        elif isinstance(delta, ThinkingText):
            text = storable(delta.text)
            draft.add("thinking", text, {"model": self._model, **(delta.meta or {})})
            event = Thinking(text) if text else None
        elif isinstance(delta, ToolCall):
            name = self._tools.named(delta.name)
            given = storable(wire.encode(delta.input).decode())
            meta = {"model": self._model, **(delta.meta or {})}
            draft.begin("tool_use", given, {**meta, "tool_name": name, "tool_use_id": delta.id})
            self._calls.append(delta)
            event = ToolUse(name, delta.id, delta.input)
        elif isinstance(delta, ToolOutput):
            output = storable(delta.output)
            meta = {"tool_use_id": delta.id, "is_error": delta.is_error}
            draft.begin("tool_result", output, meta)
            event = ToolResult(delta.id, output, delta.is_error)
        else:
            if isinstance(delta, TokenUsage):
                self._used = delta
            elif isinstance(delta, Stop):
                self._stop = delta
            return None
        self._recorder.draft_changed()
        return event

    async def _end_round(self) -> Usage:
        """Store the messages of the round; the last holds what is known of the whole round."""
        self._spent = self._spent.plus(self._used)
        messages = self._recorder.draft.messages() or [Message("assistant", "")]
        meta = {
            **messages[-1].meta,
            "model": self._model,
            "stop_reason": self._stop.stop_reason,
            "usage": {name: value for name, value in self._used._asdict().items() if value},
        }
        if self._stop.memory is not None:
            meta["memory"] = dict(self._stop.memory)
        await self._record([*messages[:-1], messages[-1]._replace(meta=meta)])
        return self._used.as_event()

    async def _record(self, messages: Sequence[Message]) -> None:
        self._messages += await self._recorder.record(messages)

    async def _store_partial(self, status: Status, failure: PlexusError | None) -> None:
        """Store what there is of an answer that did not come to its end, marked as such."""
        try:
            messages = self._recorder.draft.messages()
            if not messages:
                return
            mark: dict[str, Any] = {"model": self._model, "status": status}
            if failure is not None:
                mark["error"] = {"code": failure.code, "message": failure.message[:1000]}
            marked = [each._replace(meta={**each.meta, "status": status}) for each in messages]
            last = marked[-1]
            await self._record([*marked[:-1], last._replace(meta={**last.meta, **mark})])
        finally:
            if failure is not None and self._recorder.position is not None:
                tree, node = self._recorder.position
                data = failure.data if isinstance(failure.data, dict) else {}
                failure.data = {**data, "position": {"tree_id": tree, "node_id": node}}

    # --- tools --------------------------------------------------------------------------------

    def _result_message(self, call: ToolCall, result: ToolResult, run_id: int | None) -> Message:
        meta = {
            "tool_use_id": call.id,
            "tool_name": self._tools.named(call.name),
            "is_error": result.is_error,
        }
        if run_id is not None:
            meta["run"] = run_id
        return Message("tool_result", result.output, meta)

    async def _approve(self, tool: str, use: str, given: dict[str, Any]) -> Verdict:
        """Ask for a provider that runs tools itself whether it may use one."""
        if self._session.config.approve == "none":
            return Verdict(True)
        return await ask_person(self._ctx, tool, use, given)


async def rewrite_answer(
    sessions: Sessions, ctx: Context, name: str, text: str, parent: str, when_busy: WhenBusy
) -> AsyncGenerator[TurnEvent, None]:
    """Store another answer after this node, and move the session there."""
    recorder = await StoreRecorder.acquire(sessions.store, ctx, name, when_busy)
    try:
        await recorder.record([Message("assistant", text, {"edited": True})], parent)
    finally:
        await recorder.close()
    assert recorder.position is not None, "it is recorded"
    yield Answered("edited", TokenUsage().as_event(), Place(*recorder.position))


def _parts(delta: Delta) -> Sequence[Delta]:
    """Return a delta in parts that each make an event; nearly every one is such a part itself."""
    if isinstance(delta, Text | ThinkingText) and len(delta.text) > PART_CHARACTERS:
        starts = range(0, len(delta.text), PART_CHARACTERS)
        return [delta._replace(text=delta.text[at : at + PART_CHARACTERS]) for at in starts]
    if isinstance(delta, ToolOutput):
        return (delta._replace(output=head_and_tail(delta.output, RESULT_CHARACTERS)),)
    return (delta,)
