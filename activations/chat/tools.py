"""The tools of a session: methods of the hub that its model may call.

Each call goes through the hub as the caller's principal and is a run of its own. Whatever goes
wrong is sent to the model, which may do better: a tool never ends the turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from activations.chat.message import storable
from activations.chat.providers.provider import Tool, ToolCall, Verdict
from plexus import Confirm, Context, InvalidParams, PlexusError, ToolResult
from plexus.errors import DeadlineExceeded, Declined, Unsupported
from plexus.registry import schema
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.rpc.wire import event_text
from plexus.runtime.calls import Call
from plexus.runtime.hub import Plexus
from plexus.text import shorten

__all__ = ("RESULT_CHARACTERS", "Approval", "StartedTool", "Tools", "ask_person", "chosen_methods")

#: Before which tools a person is asked: each, those that may change something, or none.
Approval: TypeAlias = Literal["all", "changes", "none"]

#: What a model is told of a tool's answer: more than this is cut out of the middle.
RESULT_CHARACTERS = 60_000
#: How much of a tool's input stands in the question whether it may be used.
SHOWN_INPUT = 500


class _MayUse(Confirm):
    """Whether a tool may be used."""

    def __init__(self, tool: str, use: str, given: dict[str, Any]) -> None:
        text = wire.encode(given).decode()
        super().__init__(f"Allow {tool} {shorten(text, SHOWN_INPUT)}?")
        self._details = {"tool_name": tool, "tool_use_id": use, "input": given}

    def details(self) -> dict[str, Any]:
        return self._details


def chosen_methods(hub: Plexus, patterns: Sequence[str]) -> Iterator[MethodSpec]:
    """The methods that these patterns name; raises InvalidParams for one that names none."""
    specs = [s for s in hub.methods() if s.role == "method" and s.listed and s.kind != "follow"]
    chosen: dict[str, MethodSpec] = {}
    for pattern in patterns:
        found = {spec.name: spec for spec in specs if fnmatchcase(spec.name, pattern)}
        if not found:
            raise InvalidParams(
                f"tools: {pattern!r} names no method; `plexus.schema` lists them",
                code="unknown_tool",
                data={"pattern": pattern},
            )
        chosen |= found
    return iter(chosen.values())


async def ask_person(ctx: Context, tool: str, use: str, given: dict[str, Any]) -> Verdict:
    """Ask the caller whether a tool may be used; no answer is a no that says so."""
    try:
        allowed = await ctx.ask(_MayUse(tool, use, given))
    except Declined:
        allowed = False
    except (DeadlineExceeded, Unsupported) as error:
        return Verdict(False, f"{tool} was not allowed: {error.message}")
    return Verdict(True) if allowed else Verdict(False, f"The person did not allow {tool}.")


class Tools:
    """What a model may call in one turn."""

    def __init__(self, ctx: Context, patterns: Sequence[str], approve: Approval) -> None:
        self._ctx = ctx
        self._approve = approve
        # Models take no dots; the hub sees to it that no two names are the same without them.
        self._specs = {
            spec.name.replace(".", "_"): spec
            for spec in chosen_methods(ctx.plexus, patterns)
            if ctx.principal.may(spec.scope)  # a model is offered what its caller may do
        }

    def offered(self) -> list[Tool]:
        """The tools as a model sees them."""
        return [
            Tool(name, spec.description, schema.parameters_schema(spec))
            for name, spec in self._specs.items()
        ]

    def named(self, name: str) -> str:
        """A tool's name as people know it."""
        spec = self._specs.get(name)
        return name if spec is None else spec.name

    async def start(self, call: ToolCall) -> StartedTool | ToolResult:
        """Start a tool, after asking where that is needed; return the result if it cannot run."""
        spec = self._specs.get(call.name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            return _failed(call, f"There is no tool {call.name}. There are: {known}.")
        if self._approve == "all" or (self._approve == "changes" and not spec.hints.read_only):
            verdict = await ask_person(self._ctx, spec.name, call.id, call.input)
            if not verdict.allow:
                return _failed(call, verdict.message)
        ctx = self._ctx
        try:
            started = ctx.plexus.call(spec.name, call.input, ctx.principal, parent=ctx)
        except PlexusError as error:  # its arguments do not fit, or too much is under way
            return _failed(call, _in_full(error))
        return StartedTool(call.id, started)


class StartedTool:
    """A tool that runs as a run of its own; close it in any case."""

    def __init__(self, use: str, call: Call) -> None:
        self._use = use
        self._call = call
        self.run_id = call.run.id

    async def result(self) -> ToolResult:
        """Wait for the end of the run and return what it gave."""
        text, is_error = await _outcome(self._call)
        return ToolResult(self._use, text, is_error)

    def close(self) -> None:
        """Cancel the run if it still runs."""
        if self._call.fresh:
            self._call.run.cancel("its caller left")


def _failed(call: ToolCall, message: str) -> ToolResult:
    return ToolResult(call.id, storable(message), is_error=True)


def _in_full(error: PlexusError) -> str:
    """What is wrong, and where: a model can mend all of it at once."""
    faults = error.data.get("errors") if isinstance(error.data, dict) else None
    if not isinstance(faults, list) or len(faults) < 2:
        return error.message
    return "\n".join([error.message, *(f"{each['at']}: {each['fault']}" for each in faults)])


async def _outcome(call: Call) -> tuple[str, bool]:
    """What a run said, within bounds, and whether it failed."""
    head: list[str] = []
    tail: list[str] = []
    size = kept = 0
    failed = False
    half = RESULT_CHARACTERS // 2
    async with aclosing(call.run.batches(call.after, owner=call.owned)) as batches:
        async for batch in batches:
            text = storable("".join([event_text(event) for event in batch.events]))
            size += len(text)
            if len(head) == 0 or kept < half:
                head.append(text[: half - kept])
                text = text[half - kept :]
                kept += len(head[-1])
            tail = ["".join([*tail, text])[-half:]]
            if batch.terminal is not None:
                failed = batch.terminal.failed
    end = "".join(tail)
    left_out = size - kept - len(end)
    if left_out:
        end = f"\n[... {left_out} characters left out; all of it is run://{call.run.id} ...]\n{end}"
    return "".join(head) + end or "(no output)", failed
