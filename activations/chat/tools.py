"""The tools of a session: methods of the hub that its model can call.

Each call is a separate run with the caller's principal. Errors are returned to the model as tool
results, so that it can correct its call; they never end the turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from activations.chat.message import replace_unstorable
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

__all__ = ("RESULT_CHARACTERS", "Approval", "ToolRun", "Tools", "ask_user", "match_methods")

#: Which tool calls need the approval of the user: all, those that can make changes, or none.
Approval: TypeAlias = Literal["all", "changes", "none"]

#: Maximum characters of a tool result. A longer result keeps its head and tail.
RESULT_CHARACTERS = 60_000
#: Maximum characters of the input in a request for approval.
QUESTION_CHARACTERS = 500


class _ApprovalQuestion(Confirm):
    """The question whether a tool may be called."""

    def __init__(
        self, tool: str, call_id: str, tool_input: dict[str, Any], is_destructive: bool
    ) -> None:
        text = wire.encode(tool_input).decode()
        super().__init__(f"Allow {tool} {shorten(text, QUESTION_CHARACTERS)}?")
        self._details: dict[str, Any] = {
            "tool_name": tool,
            "tool_use_id": call_id,
            "input": tool_input,
        }
        if is_destructive:  # no view may suggest to allow it
            self._details["destructive"] = True

    def details(self) -> dict[str, Any]:
        return self._details


def match_methods(hub: Plexus, patterns: Sequence[str]) -> Iterator[MethodSpec]:
    """Return the methods that match patterns. Raises InvalidParams if a pattern matches none."""
    specs = [s for s in hub.methods() if s.role == "method" and s.listed and s.kind != "follow"]
    matched: dict[str, MethodSpec] = {}
    for pattern in patterns:
        found = {spec.name: spec for spec in specs if fnmatchcase(spec.name, pattern)}
        if not found:
            raise InvalidParams(
                f"tools: no method matches {pattern!r}; list methods with plexus.schema",
                code="unknown_tool",
                data={"pattern": pattern},
            )
        matched |= found
    return iter(matched.values())


async def ask_user(
    ctx: Context,
    tool: str,
    call_id: str,
    tool_input: dict[str, Any],
    *,
    is_destructive: bool = False,
) -> Verdict:
    """Ask the caller whether a tool may be called; without an answer it is denied."""
    try:
        approved = await ctx.ask(_ApprovalQuestion(tool, call_id, tool_input, is_destructive))
    except Declined:
        approved = False
    except (DeadlineExceeded, Unsupported) as error:
        return Verdict(False, f"{tool} was not approved: {error.message}")
    return Verdict(True) if approved else Verdict(False, f"The user did not approve {tool}.")


class Tools:
    """The tools that a model can call in a turn."""

    def __init__(self, ctx: Context, patterns: Sequence[str], approve: Approval) -> None:
        self._ctx = ctx
        self._approve = approve
        # Model APIs allow no dots; the hub ensures that names stay unique without them.
        self._specs = {
            spec.name.replace(".", "_"): spec
            for spec in match_methods(ctx.plexus, patterns)
            if ctx.principal.may(spec.scope)  # a model can call only what its caller can
        }

    def definitions(self) -> list[Tool]:
        """Return the definitions of the tools for a provider."""
        return [
            Tool(name, spec.description, schema.parameters_schema(spec))
            for name, spec in self._specs.items()
        ]

    def method_name(self, name: str) -> str:
        """Return the method of a tool; the tool's name if it is unknown."""
        spec = self._specs.get(name)
        return name if spec is None else spec.name

    async def start(self, call: ToolCall) -> ToolRun | ToolResult:
        """Start a tool after any approval; return an error result if it cannot run."""
        spec = self._specs.get(call.name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            return _failed(call, f"Unknown tool {call.name}. Available tools: {known}.")
        if self._approve == "all" or (self._approve == "changes" and not spec.hints.read_only):
            is_destructive = spec.hints.destructive is True
            verdict = await ask_user(
                self._ctx, spec.name, call.id, call.input, is_destructive=is_destructive
            )
            if not verdict.allow:
                return _failed(call, verdict.message)
        ctx = self._ctx
        try:
            started = ctx.plexus.call(spec.name, call.input, ctx.principal, parent=ctx)
        except PlexusError as error:  # invalid arguments, or too many runs
            return _failed(call, _error_text(error))
        return ToolRun(call.id, started)


class ToolRun:
    """A tool call in progress, as a separate run. Always close it."""

    def __init__(self, call_id: str, call: Call) -> None:
        self._call_id = call_id
        self._call = call
        self.run_id = call.run.id

    async def result(self) -> ToolResult:
        """Wait for the end of the run and return its output."""
        text, is_error = await _collect_output(self._call)
        return ToolResult(self._call_id, text, is_error)

    def close(self) -> None:
        """Cancel the run if it is still running."""
        if self._call.fresh:
            self._call.run.cancel("the turn that called it has ended")


def _failed(call: ToolCall, message: str) -> ToolResult:
    return ToolResult(call.id, replace_unstorable(message), is_error=True)


def _error_text(error: PlexusError) -> str:
    """Return the message and all faults of an error, so that a model can correct all of them."""
    faults = error.data.get("errors") if isinstance(error.data, dict) else None
    if not isinstance(faults, list) or len(faults) < 2:
        return error.message
    return "\n".join([error.message, *(f"{each['at']}: {each['fault']}" for each in faults)])


async def _collect_output(call: Call) -> tuple[str, bool]:
    """Return the output of a run, shortened to the limit, and whether the run failed."""
    head: list[str] = []
    tail: list[str] = []
    size = kept = 0
    failed = False
    half = RESULT_CHARACTERS // 2
    async with aclosing(call.run.batches(call.after, owner=call.owned)) as batches:
        async for batch in batches:
            text = replace_unstorable("".join([event_text(event) for event in batch.events]))
            size += len(text)
            if len(head) == 0 or kept < half:
                head.append(text[: half - kept])
                text = text[half - kept :]
                kept += len(head[-1])
            tail = ["".join([*tail, text])[-half:]]
            if batch.terminal is not None:
                failed = batch.terminal.failed
    end = "".join(tail)
    omitted = size - kept - len(end)
    if omitted:
        end = f"\n[... {omitted} characters left out; full output: run://{call.run.id} ...]\n{end}"
    return "".join(head) + end or "(no output)", failed
