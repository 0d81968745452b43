"""The hub's own methods: an ordinary activation called `plexus`.

`unsubscribe` belongs to a connection, so a view that has subscriptions answers it itself; here
it is declared, so that it has a schema, and says so to everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from plexus.activation import Activation, PromptInfo, ResourceInfo, completer, method, resource
from plexus.context import Context
from plexus.errors import InvalidParams, NotFound, PlexusError
from plexus.events import ErrorEvent, Event
from plexus.principal import READ, Principal
from plexus.registry.roles import complete
from plexus.rpc import wire
from plexus.rpc.replies import AnswerBuffer
from plexus.runtime.calls import Call
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from plexus.runtime.runs import Runs

__all__ = ("RUNS_PER_EVENT", "PlexusActivation", "RunsChanged", "transcript", "watch_runs")

#: How many runs are listed as resources. Older ones can still be read by their numbers.
NEWEST_RUNS = 100
#: How seldom and how often it may look, in seconds.
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0
#: How many runs one event tells of.
RUNS_PER_EVENT = 500
#: About how many characters of a transcript make a page: what a client shows, or gives to a
#: model, at once.
PAGE_CHARACTERS = 200_000


class RunsChanged(Event):
    """Runs that are new or have changed, as `plexus.runs` describes them, and the numbers of those
    that are no longer kept."""

    runs: list[dict[str, Any]]
    gone: list[int]

    def as_text(self) -> str:
        return "".join(f"{run['run']} {run['method']} {run['state']}\n" for run in self.runs)


class PlexusActivation(Activation):
    """The server itself: what it offers, what runs, and how to follow, answer and stop a run."""

    namespace = "plexus"
    version = "1.0.0"

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub

    @method(read_only=True, open_world=False, control=True)
    async def schema(self, namespace: str | None = None, *, ctx: Context) -> dict[str, Any]:
        """Describe every activation with the JSON Schemas of its methods that you may call.

        Args:
            namespace: Describe only this activation, as in "bash" or "solar.earth".
        """
        whole = self._hub.schema(ctx.principal)
        return whole if namespace is None else _find(whole["activations"], namespace)

    @method(read_only=True, open_world=False, control=True)
    async def hash(self, *, ctx: Context) -> str:
        """The SHA-256 of the schema: it changes when, and only when, the schema does."""
        text: str = self._hub.schema(ctx.principal)["hash"]
        return text

    # What follows a run, and what asks for another method, is no scope of its own: it reaches
    # only what is the caller's, and the hub looks at the method that is meant.

    @method(deadline_s=None, scope=READ)
    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, ctx: Context
    ) -> dict[str, Any]:
        """Call a method and return its run, events and terminal in one value.

        Output past the server's limit keeps its head and tail and is marked `truncated`.

        Args:
            method: The method's name, as in "bash.execute".
            params: The method's parameters by name.
        """
        call = self._hub.call(method, params, ctx.principal, parent=ctx)
        try:
            return await _buffered(call, self._hub.limits.answer_bytes)
        finally:
            if call.fresh:
                call.run.cancel("its caller left")

    @method(read_only=True, open_world=False, control=True)
    async def runs(
        self, state: str | None = None, limit: int = 100, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """List your runs, the newest first: those under way and those that ended lately.

        One that is in another process has a `process`, which says in which.

        Args:
            state: Only runs in this state, as in "running" or "error".
            limit: At most so many.
        """
        runs = self._hub.runs.list_for(ctx.principal)
        chosen = [run for run in runs if state is None or run.state == state]
        return [run.describe() for run in chosen[: max(limit, 0)]]

    @method(listed=False, deadline_s=None, read_only=True, open_world=False)
    async def watch(self, interval_s: float = 0.5, *, ctx: Context) -> AsyncIterator[RunsChanged]:
        """Tell of all your runs, then of each that begins, says something or ends.

        Args:
            interval_s: Seconds from one look to the next, from 0.1 to 60.
        """
        async with aclosing(
            watch_runs(self._hub.runs, ctx.principal, ctx.run_id, interval_s)
        ) as told:
            async for event in told:
                yield event

    @method(follows=True, read_only=True, open_world=False, scope=READ)
    def attach(self, run: int, after: int = 0, *, principal: Principal) -> tuple[Run, int]:
        """Follow a run of yours: the items after a given one, then live ones to the end.

        Args:
            run: The run's number, which is what the call that began it was answered with.
            after: The number of the last item that you have; 0 for all of them.
        """
        return self._hub.runs.find(run, principal), after

    @method(destructive=True, idempotent=True, open_world=False, scope=READ, control=True)
    async def cancel(self, run: int, reason: str | None = None, *, ctx: Context) -> bool:
        """Stop a run of yours. True if it was still running.

        Args:
            run: The run's number.
            reason: What the run's terminal shall say.
        """
        found = self._hub.find_run_to_control(run, ctx.principal)
        return await found.stop(reason or "cancelled by request")

    @method(scope=READ, control=True)
    async def respond(self, run: int, request: str, answer: Any, *, ctx: Context) -> bool:
        """Answer what a run of yours asks.

        Args:
            run: The run's number.
            request: The request's number, as its `request` event has it.
            answer: What fits the request's schema, or null to decline.
        """
        await self._hub.find_run_to_control(run, ctx.principal).respond(request, answer)
        return True

    @method(listed=False, scope=READ, control=True)
    async def unsubscribe(self, subscription: int) -> bool:
        """End a subscription of this connection, and its run if this connection began it.

        Args:
            subscription: The number that the call was answered with.
        """
        raise InvalidParams(
            f"this client holds no subscription {subscription}; plexus.cancel stops a run"
        )

    # --- resources, prompts and suggestions ---------------------------------------------------

    @method(name="resources", listed=False, read_only=True, open_world=False, control=True)
    async def list_resources(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """List what can be read by its address, in the order of the addresses.

        Args:
            after: Only what comes after this address.
            limit: At most so many.
        """
        listed = await self._hub.list_resources(ctx.principal, after, max(limit, 0))
        return [_without_none(entry) for entry in listed]

    @method(name="prompts", listed=False, read_only=True, open_world=False, control=True)
    async def list_prompts(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """List the prompts there are, in the order of their names.

        Args:
            after: Only what comes after this name.
            limit: At most so many.
        """
        listed = await self._hub.list_prompts(ctx.principal, after, max(limit, 0))
        return [_without_none(entry) for entry in listed]

    @method(listed=False, read_only=True, open_world=False, control=True)
    async def complete(
        self,
        method: str,
        argument: str,
        value: str,
        given: dict[str, str] | None = None,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Suggest values for an argument of a method.

        Args:
            method: The method's name, as in "bash.execute".
            argument: The argument's name.
            value: What of it is there already.
            given: Other arguments that are there already.
        """
        spec = self._hub.resolve(method, ctx.principal)
        self._hub.check_scope(spec, ctx.principal)
        return await complete(spec, argument, value, given or {}, ctx.principal)

    @resource("run://{run}{?after}", name="run", title="What a run said", control=True)
    async def transcript(self, run: int, after: int = 0, *, ctx: Context) -> str:
        """What a run of yours has said so far, as text.

        Args:
            run: The run's number.
            after: The number of the item to begin after.
        """
        return transcript(self._hub.runs.find(run, ctx.principal), after)

    @completer("transcript", "run")
    async def suggest_runs(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The numbers of the caller's runs, the newest first."""
        numbers = (str(run.id) for run in self._shown_runs(principal))
        return [number for number in numbers if number.startswith(value)]

    async def resources(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[ResourceInfo]:
        """The caller's runs, by what they said."""
        newest = self._shown_runs(principal)[:NEWEST_RUNS]
        listed = [
            ResourceInfo(f"run://{run.id}", f"{run.method} ({run.state})", mime_type="text/plain")
            for run in newest
        ]
        return sorted(each for each in listed if after is None or each.uri > after)[:limit]

    def _shown_runs(self, principal: Principal) -> list[Run]:
        """The runs that did some work: looking at the server, or at a resource, is none."""
        own = f"{self.namespace}."
        looks = {
            spec.name
            for spec in self._hub.methods()
            if spec.name.startswith(own) or spec.role != "method"
        }
        return [run for run in self._hub.runs.list_for(principal) if run.method not in looks]


def _without_none(entry: ResourceInfo | PromptInfo) -> dict[str, Any]:
    """The fields in which something is said."""
    return {name: field for name, field in entry._asdict().items() if field is not None}


def _find(activations: list[dict[str, Any]], namespace: str) -> dict[str, Any]:
    for described in activations:
        if described["namespace"] == namespace:
            return described
        if namespace.startswith(described["namespace"] + "."):
            return _find(described.get("children", []), namespace)
    raise NotFound(f"there is no activation {namespace}")


async def _buffered(call: Call, limit: int) -> dict[str, Any]:
    """Return all items of a run in one value, marked if some did not fit.

    Raises PlexusError for a failed run, with the same value as its `data`.
    """
    run = call.run
    buffer = AnswerBuffer(limit)
    async with aclosing(run.batches(call.after, owner=call.owned)) as batches:
        async for batch in batches:
            buffer.add(batch)
    *events, terminal = buffer.items()[0]
    answer = {"run": run.id, "events": events, "terminal": terminal}
    if buffer.truncated:
        answer["truncated"] = True
    if isinstance(terminal, ErrorEvent):
        raise PlexusError(terminal.message, code=terminal.code, data=answer)
    return answer


async def watch_runs(
    runs: Runs, principal: Principal, own: int, interval_s: float
) -> AsyncGenerator[RunsChanged, None]:
    """All runs of a principal save this one, then what changes, without an end."""
    known: dict[int, dict[str, Any]] = {}
    first = True
    while True:
        listed = {run.id: run.describe() for run in runs.list_for(principal) if run.id != own}
        changed = [said for number, said in listed.items() if known.get(number) != said]
        gone = [number for number in known if number not in listed]
        known = listed
        if first or changed or gone:
            yield RunsChanged(changed[:RUNS_PER_EVENT], gone)
        for start in range(RUNS_PER_EVENT, len(changed), RUNS_PER_EVENT):
            yield RunsChanged(changed[start : start + RUNS_PER_EVENT], [])
        first = False
        await asyncio.sleep(min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S))


def transcript(run: Run, after: int = 0) -> str:
    """The text of the items after this one; a last line says where more is to be had."""
    log = run.log
    seq = min(max(after, 0), log.last)
    text = ""
    if seq + 1 < log.first:
        text = f"[items {seq + 1} to {log.first - 1} are no longer kept]\n"
        seq = log.first - 1
    pieces = [text]
    size = 0
    for number, event in log.numbered(seq):
        piece = wire.event_text(event)
        if size and size + len(piece) > PAGE_CHARACTERS:
            break
        # How a run ended is a line of its own.
        if event.terminal and piece and size and not pieces[-1].endswith("\n"):
            piece = f"\n{piece}"
        if piece:
            pieces.append(piece)
        size += len(piece)
        seq = number
    text = "".join(pieces)
    more = "continues" if seq < log.last else "still running" if run.terminal is None else None
    if more is None:
        return text
    newline = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{newline}[{more}: run://{run.id}?after={seq}]"
