"""One turn: from a user's message to the end of the answer, with the tools on the way.

The order of things is the promise: the message is stored before the model is asked, what the
model says is forwarded as it comes, and what there is of an answer is stored whatever happens to
the rest of it. One body serves every way to begin a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from activations.chat.conversation import Message, Status, storable
from activations.chat.events import Answered, Place, Talk, Thinking, ToolStart, Usage
from activations.chat.providers.provider import (
    Ask,
    Called,
    Calling,
    Delta,
    Finished,
    Provider,
    Text,
    Thought,
    Used,
    Verdict,
    Waiting,
)
from activations.chat.recording import Recording
from activations.chat.setup import Setup
from activations.chat.tools import Tools, ask_person, shortened
from plexus import Content, Context, PlexusError, ToolResult, ToolUse
from plexus.rpc import wire

__all__ = ("MAX_TURNS", "Turn", "usage_of")

#: The longest piece of an answer that makes an event: every character may take six bytes there.
PART_CHARACTERS = 100_000
#: How often a model may be asked in one turn if the caller does not say.
MAX_TURNS = 50


class Turn:
    """A turn that has everything it needs; iterate over `events` once."""

    def __init__(
        self,
        ctx: Context,
        setup: Setup,
        provider: Provider,
        tools: Tools,
        recording: Recording,
        messages: Sequence[Message],
        *,
        max_turns: int | None,
        ephemeral: bool = False,
        branching: bool = False,
        spent: Used = Used(),  # noqa: B008 - a tuple of numbers
    ) -> None:
        self._ctx = ctx
        self._setup = setup
        self._provider = provider
        self._recording = recording
        self._messages = list(messages)
        self._max_turns = max_turns
        self._ephemeral = ephemeral
        self._branching = branching
        self._tools = tools
        #: What the rounds before this one cost, and what this one has cost so far.
        self._spent = spent
        self._used = Used()
        self._callings: list[Calling] = []
        self._finished = Finished("end_turn")

    async def events(self) -> AsyncGenerator[Talk, None]:
        """Ask the model, run what it asks for, and ask again, until it is done."""
        status: Status = "error"
        failure: PlexusError | None = None
        try:
            rounds = self._max_turns or MAX_TURNS
            while True:
                async with aclosing(self._round()) as events:
                    async for event in events:
                        yield event
                rounds -= 1
                if not self._callings or self._provider.runs_tools:
                    reason = self._finished.stop_reason
                    break
                if not rounds:
                    reason = "max_turns"
                    break
                async with aclosing(self._run_tools()) as results:
                    async for result in results:
                        yield result
            status = "complete"
        except PlexusError as error:
            failure = error
            raise
        except (asyncio.CancelledError, GeneratorExit):
            status = "cancelled"
            raise
        finally:
            if status != "complete":
                await self._keep_partial(status, failure)
        place = self._recording.position
        yield Answered(reason, usage_of(self._spent), None if place is None else Place(*place))

    # --- a round ------------------------------------------------------------------------------

    async def _round(self) -> AsyncGenerator[Talk, None]:
        self._callings = []
        self._used = Used()
        self._finished = Finished("end_turn")
        async with aclosing(self._provider.answer(self._ask())) as deltas:
            async for delta in deltas:
                for part in _parts(delta):
                    event = self._taken(part)
                    if event is not None:
                        yield event
                if isinstance(delta, Waiting):
                    await self._ctx.log("warning", f"{delta.reason}; waits {delta.seconds:g} s")
                elif isinstance(delta, Called):
                    # What a tool did cannot be undone: it is stored at once.
                    await self._record(self._recording.draft.messages())
        self._spent = _sum(self._spent, self._used)
        await self._record(self._last_of_round())
        yield usage_of(self._used)

    def _ask(self) -> Ask:
        setup = self._setup
        return Ask(
            model=setup.model.partition(":")[2],
            messages=self._messages,
            approve=self._may_use,
            system_prompt=setup.system_prompt,
            tools=() if self._provider.runs_tools else self._tools.offered(),
            max_tokens=setup.max_tokens,
            temperature=setup.temperature,
            thinking=setup.thinking,
            ephemeral=self._ephemeral,
            max_turns=self._max_turns,
            working_dir=setup.working_dir,
            allowed_tools=setup.allowed_tools,
            branching=self._branching,
        )

    def _taken(self, delta: Delta) -> Talk | None:
        """Write down what has come; returns what is told of it."""
        draft = self._recording.draft
        event: Talk | None = None
        if isinstance(delta, Text):
            text = storable(delta.text)
            draft.add("assistant", text)
            event = Content(text) if text else None
        elif isinstance(delta, Thought):
            text = storable(delta.text)
            draft.add("thinking", text, {"model": self._setup.model, **(delta.meta or {})})
            event = Thinking(text) if text else None
        elif isinstance(delta, Calling):
            name = self._tools.named(delta.name)
            given = storable(wire.encode(delta.input).decode())
            meta = {"model": self._setup.model, **(delta.meta or {})}
            draft.begin("tool_use", given, {**meta, "tool_name": name, "tool_use_id": delta.id})
            self._callings.append(delta)
            event = ToolUse(name, delta.id, delta.input)
        elif isinstance(delta, Called):
            output = storable(delta.output)
            meta = {"tool_use_id": delta.id, "is_error": delta.is_error}
            draft.begin("tool_result", output, meta)
            event = ToolResult(delta.id, output, delta.is_error)
        elif isinstance(delta, Used):
            self._used = delta
            return None
        elif isinstance(delta, Finished):
            self._finished = delta
            return None
        else:
            return None
        self._recording.touched()
        return event

    def _last_of_round(self) -> list[Message]:
        """The messages of the round; the last says what is known of the whole."""
        messages = self._recording.draft.messages() or [Message("assistant", "")]
        meta = {
            **messages[-1].meta,
            "model": self._setup.model,
            "stop_reason": self._finished.stop_reason,
            "usage": _known(self._used),
        }
        if self._finished.memory is not None:
            meta["memory"] = dict(self._finished.memory)
        return [*messages[:-1], messages[-1]._replace(meta=meta)]

    async def _record(self, messages: Sequence[Message]) -> None:
        self._messages += await self._recording.record(messages)

    async def _keep_partial(self, status: Status, failure: PlexusError | None) -> None:
        """Store what there is of an answer that did not come to its end, and say so on it."""
        try:
            messages = self._recording.draft.messages()
            if not messages:
                return
            mark: dict[str, Any] = {"model": self._setup.model, "status": status}
            if failure is not None:
                mark["error"] = {"code": failure.code, "message": failure.message[:1000]}
            marked = [each._replace(meta={**each.meta, "status": status}) for each in messages]
            last = marked[-1]
            await self._record([*marked[:-1], last._replace(meta={**last.meta, **mark})])
        finally:
            if failure is not None and self._recording.position is not None:
                tree, node = self._recording.position
                data = failure.data if isinstance(failure.data, dict) else {}
                failure.data = {**data, "position": {"tree_id": tree, "node_id": node}}

    # --- tools --------------------------------------------------------------------------------

    async def _run_tools(self) -> AsyncGenerator[Talk, None]:
        for calling in self._callings:
            run: int | None = None
            async with aclosing(self._tools.use(calling)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, ToolStart):
                        run = event.run
                    else:
                        await self._record([self._result(calling, event, run)])

    def _result(self, calling: Calling, event: ToolResult, run: int | None) -> Message:
        meta = {
            "tool_use_id": calling.id,
            "tool_name": self._tools.named(calling.name),
            "is_error": event.is_error,
        }
        return Message("tool_result", event.output, meta if run is None else {**meta, "run": run})

    async def _may_use(self, tool: str, use: str, given: dict[str, Any]) -> Verdict:
        """What a provider that runs tools itself asks before it does."""
        if self._setup.approve == "none":
            return Verdict(True)
        return await ask_person(self._ctx, tool, use, given)


def _parts(delta: Delta) -> Iterator[Delta]:
    """A delta in parts that each make an event; nearly every one is such a part itself."""
    if isinstance(delta, Text | Thought) and len(delta.text) > PART_CHARACTERS:
        for start in range(0, len(delta.text), PART_CHARACTERS):
            yield delta._replace(text=delta.text[start : start + PART_CHARACTERS])
    elif isinstance(delta, Called):
        yield delta._replace(output=shortened(delta.output))
    else:
        yield delta


def _sum(one: Used, other: Used) -> Used:
    costs = [each.cost_usd for each in (one, other) if each.cost_usd is not None]
    return Used(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cache_read_tokens + other.cache_read_tokens,
        one.cache_write_tokens + other.cache_write_tokens,
        sum(costs) if costs else None,
    )


def _known(used: Used) -> dict[str, Any]:
    return {name: value for name, value in used._asdict().items() if value}


def usage_of(used: Used) -> Usage:
    """What was used, as callers see it."""
    return Usage(
        used.input_tokens,
        used.output_tokens,
        used.cache_read_tokens or None,
        used.cache_write_tokens or None,
        used.cost_usd,
    )
