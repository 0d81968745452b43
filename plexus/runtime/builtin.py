"""The hub's own methods: an ordinary activation in the namespace `plexus`.

`unsubscribe` belongs to a connection, so a view with subscriptions handles it itself; it is
declared here for its schema, and raises an error for all other callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from annotated_types import Ge, Le

from plexus.activation import Activation, ResourceInfo, completer, method, resource
from plexus.context import Context
from plexus.errors import InvalidParams, NotFound, PlexusError
from plexus.events import ErrorEvent
from plexus.principal import READ, Principal
from plexus.registry.lean_schema import lean_schema
from plexus.registry.method_search import MethodIndex, search_text
from plexus.registry.roles import complete
from plexus.registry.schema import parameters_schema, without_none
from plexus.registry.signature import MethodSpec
from plexus.rpc.replies import AnswerBuffer
from plexus.runtime.calls import Call
from plexus.runtime.changes import Change
from plexus.runtime.history import HistoryMethods
from plexus.runtime.hub import Plexus
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.run_items import MAX_ITEMS, read_range
from plexus.runtime.run_watch import RunsChanged, refresh_runs, watch_runs
from plexus.runtime.transcript import transcript

__all__ = ("PlexusActivation",)

#: Maximum number of methods that a search ranks before those without permission are removed.
MAX_RANKED_METHODS = 100
#: Maximum number of runs that are listed as resources. Older ones can be read by number.
MAX_LISTED_RUNS = 100


class PlexusActivation(HistoryMethods, Activation):
    """The server itself: list methods and runs; follow, answer and stop runs."""

    namespace = "plexus"
    audience = "client"
    version = "1.0.0"

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub
        #: Of all methods; None until it is used, and after the methods have changed.
        self._index: MethodIndex | None = None
        hub.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        if change.kind == "methods":
            self._index = None

    @method(title="Describe methods", read_only=True, open_world=False, control=True)
    async def schema(self, namespace: str | None = None, *, ctx: Context) -> dict[str, Any]:
        """Describe all activations, with the JSON Schemas of the methods that you may call.

        Args:
            namespace: Describe only this activation, such as "bash" or "solar.earth".
        """
        whole = self._hub.schema(ctx.principal)
        return whole if namespace is None else _find(whole["activations"], namespace)

    @method(title="Get the schema hash", read_only=True, open_world=False, control=True)
    async def hash(self, *, ctx: Context) -> str:
        """Return the SHA-256 of the schema, which changes if and only if the schema does."""
        text: str = self._hub.schema(ctx.principal)["hash"]
        return text

    # Methods that follow a run or call another method need only the scope "read": they reach only
    # the caller's own runs, and the hub checks the scope of the called method.

    @method(title="Find methods", read_only=True, open_world=False, control=True, audience="model")
    async def search(
        self, query: str, limit: Annotated[int, Ge(1), Le(20)] = 5, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """Find methods by words; returns names, descriptions and parameter schemas.

        Use it when no listed tool fits, then call a method with plexus.call.

        Args:
            query: What the method should do, as in "rename a chat session".
            limit: Maximum number of methods, 1 to 20.
        """
        if self._index is None:
            texts = [search_text(spec) for spec in self._hub.methods() if spec.listed]
            # Indexing thousands of methods takes tenths of a second.
            self._index = await asyncio.to_thread(MethodIndex, texts)
        found = []
        for name in self._index.search(query, MAX_RANKED_METHODS):
            spec = self._hub.find_method(name)
            if spec is not None and ctx.principal.may(spec.scope):
                found.append(_found(spec))
            if len(found) >= limit:
                break
        return found

    @method(title="Call a method", deadline_s=None, scope=READ, destructive=True, audience="model")
    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, ctx: Context
    ) -> dict[str, Any]:
        """Call any method and return its run, events and terminal as one value.

        Use it for methods that are not listed as tools. Output past the server's limit keeps its
        head and tail and is marked `truncated`.

        Args:
            method: Name of the method, such as "bash.execute".
            params: Parameters of the method by name.
        """
        call = await self._hub.call_loaded(method, params, ctx.principal, ctx)
        try:
            return await _buffered(call, self._hub.limits.answer_bytes)
        finally:
            if call.fresh:
                call.run.cancel("the caller stopped reading")

    @method(title="List runs", read_only=True, open_world=False, control=True, audience="model")
    async def runs(
        self,
        state: str | None = None,
        limit: int = 100,
        system: bool = False,
        *,
        ctx: Context,
    ) -> list[dict[str, Any]]:
        """List your runs, newest first: those in progress and those that ended recently.

        A run of another process has a `process`, which identifies that process.

        Args:
            state: Only runs in this state: running, asking, cancelling, complete, error, cancelled.
            limit: Maximum number of runs.
            system: Include calls that only watch or control the server.
        """
        await refresh_runs(self._hub.runs)
        runs = self._hub.runs.list_for(ctx.principal, system=system)
        chosen = [run for run in runs if state is None or run.state == state]
        return [run.describe() for run in chosen[: max(limit, 0)]]

    @method(title="Watch runs", listed=False, deadline_s=None, read_only=True, open_world=False)
    async def watch(
        self, interval_s: float = 0.5, system: bool = False, *, ctx: Context
    ) -> AsyncIterator[RunsChanged]:
        """Stream a snapshot of your runs, then every start, update and end.

        Args:
            interval_s: Minimum time between two events in seconds, from 0.1 to 60.
            system: Include calls that only watch or control the server. They have `system: true`.
        """
        async with aclosing(
            watch_runs(self._hub.runs, ctx.principal, ctx.run_id, interval_s, system=system)
        ) as changes:
            async for event in changes:
                yield event

    @method(title="Follow a run", follows=True, read_only=True, open_world=False, scope=READ)
    def attach(self, run: int, after: int = 0, *, principal: Principal) -> tuple[Run, int]:
        """Follow one of your runs: replay its items after a given one, then stream new ones.

        Use it to read a run that continues in the background or was started by another client.

        Args:
            run: Number of the run.
            after: Number of the last item that you have.
        """
        return self._hub.runs.find(run, principal), after

    @method(
        title="Read items of a run",
        listed=False,
        read_only=True,
        open_world=False,
        scope=READ,
        control=True,
    )
    async def items(
        self,
        run: int,
        after: Annotated[int, Ge(0)] = 0,
        limit: Annotated[int, Ge(1), Le(MAX_ITEMS)] = 2000,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Return a range of the items of one of your runs, without waiting for new ones.

        The result has `items`, each with `seq`, `time_ms` and `event`, and `last_seq` and `ended`
        of the run. It has at most 1 MiB of events, but at least one item if there is one.

        Args:
            run: Number of the run.
            after: Number of the last item that you have.
            limit: Maximum number of items, 1 to 10000.
        """
        return await read_range(await self._hub.runs.fetch(run, ctx.principal), after, limit)

    @method(
        title="Stop a run",
        destructive=True,
        idempotent=True,
        open_world=False,
        scope=READ,
        control=True,
        audience="model",
    )
    async def cancel(self, run: int, reason: str | None = None, *, ctx: Context) -> bool:
        """Stop one of your runs. Returns whether it was still running.

        Args:
            run: Number of the run.
            reason: Reason to show in the run's terminal.
        """
        found = await self._hub.fetch_run_to_control(run, ctx.principal)
        return await found.stop(reason or "cancelled by request")

    @method(title="Answer a run's question", scope=READ, control=True, audience="model")
    async def respond(self, run: int, request: str, answer: Any, *, ctx: Context) -> bool:
        """Answer the question that a run asks, by the numbers in its `request` event.

        Args:
            run: Number of the run.
            request: Number of the question, from its `request` event.
            answer: A value that matches the schema of the question, or null to decline.
        """
        found = await self._hub.fetch_run_to_control(run, ctx.principal)
        await found.respond(request, answer, ctx.client)
        return True

    # The next two are requests of other processes, whose clients follow a run of this one.

    @method(title="Keep a run", listed=False, idempotent=True, scope=READ, control=True)
    async def keep(self, run: int, for_s: float, *, ctx: Context) -> bool:
        """Retain one of your runs after its end. Raises `busy` if too many are retained.

        Args:
            run: Number of the run.
            for_s: Retention in seconds, up to the limit of the server.
        """
        found = self._local_run(run, ctx.principal)
        self._hub.runs.keep(found, min(max(for_s, 0.0), self._hub.limits.finished_s))
        return True

    @method(title="Release a run", listed=False, idempotent=True, scope=READ, control=True)
    async def release(self, run: int, *, ctx: Context) -> bool:
        """Continue one of your runs without waiting for its disconnected owner.

        Returns whether it waited.

        Args:
            run: Number of the run.
        """
        return self._local_run(run, ctx.principal).release_owner()

    def _local_run(self, run: int, principal: Principal) -> LocalRun:
        """Return a run of this process to control. Raises NotFound and Denied."""
        found = self._hub.find_run_to_control(run, principal)
        if not isinstance(found, LocalRun):
            raise NotFound(f"Run {run} is not a run of this process.")
        return found

    @method(title="End a subscription", listed=False, scope=READ, control=True)
    async def unsubscribe(self, subscription: int) -> bool:
        """End a subscription of this connection, and its run if this connection started it.

        A run that was started with `_on_disconnect: "keep"` continues.

        Args:
            subscription: Number of the subscription, from the response to the call.
        """
        raise InvalidParams(
            f"This client has no subscription {subscription}. Stop a run with plexus.cancel."
        )

    # --- resources, prompts and suggestions ---------------------------------------------------

    @method(
        name="resources",
        title="List resources",
        listed=False,
        read_only=True,
        open_world=False,
        control=True,
    )
    async def list_resources(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """List the resources that you can read, sorted by URI.

        Args:
            after: Only resources after this URI.
            limit: Maximum number of resources.
        """
        listed = await self._hub.list_resources(ctx.principal, after, max(limit, 0))
        return [without_none(entry) for entry in listed]

    @method(
        name="prompts",
        title="List prompts",
        listed=False,
        read_only=True,
        open_world=False,
        control=True,
    )
    async def list_prompts(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """List the available prompts, sorted by name.

        Args:
            after: Only prompts after this name.
            limit: Maximum number of prompts.
        """
        listed = await self._hub.list_prompts(ctx.principal, after, max(limit, 0))
        return [without_none(entry) for entry in listed]

    @method(title="Suggest values", listed=False, read_only=True, open_world=False, control=True)
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
            method: Name of the method, such as "bash.execute".
            argument: Name of the argument.
            value: Text typed so far.
            given: Other arguments that are already set.
        """
        spec = self._hub.resolve(method, ctx.principal)
        self._hub.check_scope(spec, ctx.principal)
        return await complete(spec, argument, value, given or {}, ctx.principal)

    @resource("run://{run}{?after}", name="run", title="Read the output of a run", control=True)
    async def transcript(self, run: int, after: int = 0, *, ctx: Context) -> str:
        """Return the output of one of your runs so far, as text.

        Args:
            run: Number of the run.
            after: Number of the item to start after.
        """
        return await transcript(await self._hub.runs.fetch(run, ctx.principal), after)

    @completer("transcript", "run")
    async def suggest_runs(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """Return the numbers of the caller's runs, newest first."""
        numbers = (str(run.id) for run in self._shown_runs(principal))
        return [number for number in numbers if number.startswith(value)]

    async def resources(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[ResourceInfo]:
        """Return the caller's runs as resources."""
        newest = self._shown_runs(principal)[:MAX_LISTED_RUNS]
        listed = [
            ResourceInfo(f"run://{run.id}", f"{run.method} ({run.state})", mime_type="text/plain")
            for run in newest
        ]
        return sorted(each for each in listed if after is None or each.uri > after)[:limit]

    def _shown_runs(self, principal: Principal) -> list[Run]:
        """Return the runs that did work; inspecting the server or a resource is not work."""
        own = f"{self.namespace}."
        inspections = {
            spec.name
            for spec in self._hub.methods()
            if spec.name.startswith(own) or spec.role != "method"
        }
        return [run for run in self._hub.runs.list_for(principal) if run.method not in inspections]


def _found(spec: MethodSpec) -> dict[str, Any]:
    """Return the entry of a method in the result of `plexus.search`."""
    found: dict[str, Any] = {"name": spec.name, "description": spec.description}
    if spec.hints.read_only is not None:
        found["read_only"] = spec.hints.read_only
    return found | {"params": lean_schema(parameters_schema(spec))}


def _find(activations: list[dict[str, Any]], namespace: str) -> dict[str, Any]:
    for described in activations:
        if described["namespace"] == namespace:
            return described
        if namespace.startswith(described["namespace"] + "."):
            return _find(described.get("children", []), namespace)
    raise NotFound(f"Unknown activation {namespace!r}.")


async def _buffered(call: Call, limit: int) -> dict[str, Any]:
    """Return all items of a run as one value, marked if some did not fit.

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
