"""A turn: from a user message to the end of the answer, including tool calls.

Its order is a guarantee: everything is validated before anything is stored; the message is stored
before the model is called; output is forwarded as it arrives; and a partial answer is stored
however the turn ends. The session is always released. `Turn.run` serves every kind of turn.
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
from activations.chat.message import Message, Status, messages_from_nodes, replace_unstorable
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
from activations.chat.sessions import Session, Sessions, session_from_head
from activations.chat.tools import RESULT_CHARACTERS, ToolRun, Tools, ask_user
from plexus import Content, Context, InvalidParams, PlexusError, ToolResult, ToolUse
from plexus.rpc import wire
from plexus.text import head_and_tail

__all__ = ("MAX_TURNS", "TURN_S", "Turn", "TurnOptions", "rewrite_answer")

#: Maximum duration of a turn, including tools and questions.
TURN_S: Final = 3600.0
#: Maximum characters of an event: an encoded character can have up to six bytes.
PART_CHARACTERS = 100_000
#: Maximum number of rounds in a turn, if the caller sets none.
MAX_TURNS = 50


class TurnOptions(NamedTuple):
    """Options of a turn."""

    #: The node after which it starts; None for the position of the session.
    after: str | None = None
    ephemeral: bool = False
    max_turns: int | None = None
    when_busy: WhenBusy = "refuse"
    overflow: Overflow | None = None


class Turn:
    """A turn of a session; iterate over `run()` once.

    `new_messages` are the user message and its attachments. Without them, the message that the
    turn starts after is answered again.
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
        new_messages: Sequence[Message],
        options: TurnOptions,
    ) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._ctx = ctx
        self._name = name
        self._new_messages = new_messages
        self._options = options
        #: The conversation as sent to the model.
        self._messages: list[Message] = []
        #: Whether the provider's own session was already continued in another branch.
        self._branching = False
        #: Token usage of the previous rounds, and of this round so far.
        self._total_usage = TokenUsage()
        self._round_usage = TokenUsage()
        self._calls: list[ToolCall] = []
        self._stop = Stop("end_turn")

    async def run(self) -> AsyncGenerator[TurnEvent, None]:
        """Call the model and the tools that it requests in rounds until the answer is complete."""
        await self._open()
        try:
            yield await self._prepare()
            status: Status = "error"
            failure: PlexusError | None = None
            try:
                rounds = self._options.max_turns or MAX_TURNS
                while True:
                    async with aclosing(self._provider.stream(self._request())) as deltas:
                        async for delta in deltas:
                            for part in _split(delta):
                                event = self._apply(part)
                                if event is not None:
                                    yield event
                            if isinstance(delta, Retry):
                                message = f"{delta.reason}; retrying in {delta.seconds:g} s"
                                await self._ctx.log("warning", message)
                            elif isinstance(delta, ToolOutput):
                                # A tool call cannot be undone, so store it immediately.
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
                        if isinstance(tool, ToolRun):
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
            yield Answered(reason, self._total_usage.as_event(), place)
        finally:
            await self._recorder.close()

    # --- preparation --------------------------------------------------------------------------

    async def _open(self) -> None:
        """Find the session and its provider; acquire the session unless the turn is ephemeral."""
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
        # The session may have changed while this turn was queued.
        self._session = session_from_head(recorder.head)

    async def _prepare(self) -> ChatStart:
        """Fit the conversation into the context window and store the user message."""
        ctx, options = self._ctx, self._options
        head, config = self._session
        if self._session.model != self._model:
            self._model = self._session.model
            self._provider = await self._sessions.provider(ctx, self._model)
        self._tools = Tools(ctx, config.tools or (), config.approve)
        principal, tree = ctx.principal.name, head.position.tree
        after = options.after or head.position.node
        earlier = messages_from_nodes(await self._store.path(principal, tree, after))
        fit = self._fit([*visible_messages(earlier), *self._new_messages])
        summaries = await self._handle_overflow(fit) if fit.omitted else []
        if self._provider.runs_tools:
            self._branching = await self._is_branching(tree, after, earlier)
        new = await self._recorder.record([*summaries, *self._new_messages], options.after)
        kept = [each for each in fit.messages if each.node is not None]
        count = len(summaries)
        self._messages = [*new[:count], *kept, *new[count:]]
        # A summary can follow the user message.
        user_nodes = (each.node for each in reversed(self._messages) if each.kind == "user")
        node = next(user_nodes, None)
        return ChatStart(head.name, None if node is None else Place(tree, node))

    def _fit(self, messages: Sequence[Message]) -> Fit:
        """Select the messages to send. Raises TooBig if the rest must not be omitted."""
        config = self._session.config
        limit = config.context_tokens or self._provider.context_tokens(self._model_name)
        tools = self._tool_definitions()
        fit = fit_messages(messages, config.system_prompt, tools, limit, config.max_tokens)
        if fit.omitted and (self._overflow == "refuse" or not fit.messages):
            raise context_too_long(fit)
        return fit

    async def _handle_overflow(self, fit: Fit) -> list[Message]:
        """Return the messages that replace the omitted ones."""
        count = len(fit.omitted)
        assert fit.limit is not None, "messages are omitted only if there is a limit"
        if self._overflow == "drop":
            await self._ctx.log(
                "warning", f"context exceeded, omitting the {count} oldest messages"
            )
            return []
        await self._ctx.log("info", f"context exceeded, summarising the {count} oldest messages")
        text, self._total_usage = await summarise(
            self._provider, self._model, fit.omitted, fit.limit
        )
        # If the last of them is a summary, the new one also replaces what that one replaced.
        last = fit.omitted[-1]
        through = last.meta.get("through") if last.kind == "summary" else last.node
        return [Message("summary", text, {"through": through})]

    async def _is_branching(self, tree: str, after: str, earlier: Sequence[Message]) -> bool:
        """Return whether the provider's own session was continued in another branch."""
        principal = self._ctx.principal.name
        if await self._store.children(principal, tree, after, None, 1):
            return True
        memories = [i for i, each in enumerate(earlier) if "memory" in each.meta]
        if not memories or memories[-1] == len(earlier) - 1:
            return False
        last = memories[-1]
        node = earlier[last].node
        assert node is not None, "stored messages have a node"
        children = await self._store.children(principal, tree, node, None, 2)
        return any(child.id != earlier[last + 1].node for child in children)

    @property
    def _overflow(self) -> Overflow:
        return self._options.overflow or self._session.config.overflow

    @property
    def _model_name(self) -> str:
        """The model without the provider's name."""
        return self._model.partition(":")[2]

    def _tool_definitions(self) -> Sequence[Tool]:
        """Return the tools to send; none if the provider runs its own."""
        return () if self._provider.runs_tools else self._tools.definitions()

    # --- rounds -------------------------------------------------------------------------------

    def _request(self) -> ProviderRequest:
        """Start a round and return the request to the provider."""
        self._calls = []
        self._round_usage = TokenUsage()
        self._stop = Stop("end_turn")
        config, options = self._session.config, self._options
        return ProviderRequest(
            model=self._model_name,
            messages=self._messages,
            approve=self._approve,
            system_prompt=config.system_prompt,
            tools=self._tool_definitions(),
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            thinking=config.thinking,
            ephemeral=options.ephemeral,
            max_turns=options.max_turns,
            working_dir=config.working_dir,
            allowed_tools=config.allowed_tools or (),
            branching=self._branching,
        )

    def _apply(self, delta: Delta) -> TurnEvent | None:
        """Apply a delta to the draft and return its event."""
        draft = self._recorder.draft
        event: TurnEvent | None = None
        if isinstance(delta, Text):
            text = replace_unstorable(delta.text)
            draft.add("assistant", text)
            event = Content(text) if text else None
        elif isinstance(delta, ThinkingText):
            text = replace_unstorable(delta.text)
            draft.add("thinking", text, {"model": self._model, **(delta.meta or {})})
            event = Thinking(text) if text else None
        elif isinstance(delta, ToolCall):
            name = self._tools.method_name(delta.name)
            input_text = replace_unstorable(wire.encode(delta.input).decode())
            meta = {"model": self._model, **(delta.meta or {})}
            meta |= {"tool_name": name, "tool_use_id": delta.id}
            draft.begin("tool_use", input_text, meta)
            self._calls.append(delta)
            event = ToolUse(name, delta.id, delta.input)
        elif isinstance(delta, ToolOutput):
            output = replace_unstorable(delta.output)
            meta = {"tool_use_id": delta.id, "is_error": delta.is_error}
            draft.begin("tool_result", output, meta)
            event = ToolResult(delta.id, output, delta.is_error)
        else:
            if isinstance(delta, TokenUsage):
                self._round_usage = delta
            elif isinstance(delta, Stop):
                self._stop = delta
            return None
        self._recorder.schedule_save()
        return event

    async def _end_round(self) -> Usage:
        """Store the messages of the round; the last has the metadata of the whole round."""
        self._total_usage = self._total_usage.plus(self._round_usage)
        messages = self._recorder.draft.messages() or [Message("assistant", "")]
        meta = {
            **messages[-1].meta,
            "model": self._model,
            "stop_reason": self._stop.stop_reason,
            "usage": {name: value for name, value in self._round_usage._asdict().items() if value},
        }
        if self._stop.memory is not None:
            meta["memory"] = dict(self._stop.memory)
        await self._record([*messages[:-1], messages[-1]._replace(meta=meta)])
        return self._round_usage.as_event()

    async def _record(self, messages: Sequence[Message]) -> None:
        self._messages += await self._recorder.record(messages)

    async def _store_partial(self, status: Status, failure: PlexusError | None) -> None:
        """Store a partial answer, marked with its status."""
        try:
            messages = self._recorder.draft.messages()
            if not messages:
                return
            last_meta: dict[str, Any] = {"model": self._model, "status": status}
            if failure is not None:
                last_meta["error"] = {"code": failure.code, "message": failure.message[:1000]}
            marked = [each._replace(meta={**each.meta, "status": status}) for each in messages]
            last = marked[-1]
            await self._record([*marked[:-1], last._replace(meta={**last.meta, **last_meta})])
        finally:
            if failure is not None and self._recorder.position is not None:
                tree, node = self._recorder.position
                data = failure.data if isinstance(failure.data, dict) else {}
                failure.data = {**data, "position": {"tree_id": tree, "node_id": node}}

    # --- tools --------------------------------------------------------------------------------

    def _result_message(self, call: ToolCall, result: ToolResult, run_id: int | None) -> Message:
        meta = {
            "tool_use_id": call.id,
            "tool_name": self._tools.method_name(call.name),
            "is_error": result.is_error,
        }
        if run_id is not None:
            meta["run"] = run_id
        return Message("tool_result", result.output, meta)

    async def _approve(self, tool: str, call_id: str, tool_input: dict[str, Any]) -> Verdict:
        """Ask for approval of a tool call by a provider that runs its own tools."""
        if self._session.config.approve == "none":
            return Verdict(True)
        return await ask_user(self._ctx, tool, call_id, tool_input)


async def rewrite_answer(
    sessions: Sessions, ctx: Context, name: str, text: str, parent: str, when_busy: WhenBusy
) -> AsyncGenerator[TurnEvent, None]:
    """Store a rewritten answer below `parent` and move the session to it."""
    recorder = await StoreRecorder.acquire(sessions.store, ctx, name, when_busy)
    try:
        await recorder.record([Message("assistant", text, {"edited": True})], parent)
    finally:
        await recorder.close()
    assert recorder.position is not None, "a store recorder has a position"
    yield Answered("edited", TokenUsage().as_event(), Place(*recorder.position))


def _split(delta: Delta) -> Sequence[Delta]:
    """Split a delta into parts that fit into an event each; most deltas are one part."""
    if isinstance(delta, Text | ThinkingText) and len(delta.text) > PART_CHARACTERS:
        starts = range(0, len(delta.text), PART_CHARACTERS)
        return [delta._replace(text=delta.text[at : at + PART_CHARACTERS]) for at in starts]
    if isinstance(delta, ToolOutput):
        return (delta._replace(output=head_and_tail(delta.output, RESULT_CHARACTERS)),)
    return (delta,)
