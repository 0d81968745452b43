"""The hub's own methods: an ordinary activation called `plexus`.

`unsubscribe` belongs to a connection, so a view that has subscriptions answers it itself; here
it is declared, so that it has a schema, and says so to everybody else.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from plexus.activation import Activation, method
from plexus.context import Context
from plexus.errors import InvalidParams, NotFound, PlexusError, TooBig
from plexus.events import Error, Terminal
from plexus.hub import Call, Plexus
from plexus.principal import Principal
from plexus.run import Run

__all__ = ("PlexusItself",)


class PlexusItself(Activation):
    """The server itself: what it offers, what runs, and how to follow, answer and stop a run."""

    namespace = "plexus"
    version = "1.0.0"

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub

    @method
    async def schema(self, namespace: str | None = None) -> dict[str, Any]:
        """Describe every activation with the JSON Schemas of its methods.

        Args:
            namespace: Describe only this activation, as in "bash" or "solar.earth".
        """
        whole = self._hub.described()
        return whole if namespace is None else _find(whole["activations"], namespace)

    @method
    async def hash(self) -> str:
        """The SHA-256 of the schema: it changes when, and only when, the schema does."""
        return self._hub.hash

    @method(deadline_s=None)
    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, ctx: Context
    ) -> dict[str, Any]:
        """Call a method and give everything at once: its run, its events and its terminal.

        Args:
            method: The method's name, as in "bash.execute".
            params: The method's parameters by name.
        """
        call = self._hub.call(method, params, ctx.principal, parent=ctx.run_id)
        try:
            return await _buffered(call, self._hub.limits.answer_bytes)
        finally:
            if call.fresh:
                call.run.cancel("its caller left")

    @method
    async def runs(
        self, state: str | None = None, limit: int = 100, *, ctx: Context
    ) -> list[dict[str, Any]]:
        """List your runs, the newest first: those under way and those that ended lately.

        Args:
            state: Only runs in this state, as in "running" or "error".
            limit: At most so many.
        """
        runs = self._hub.runs.of(ctx.principal)
        chosen = [run for run in runs if state is None or run.state == state]
        return [run.described() for run in chosen[: max(limit, 0)]]

    @method(follows=True)
    def attach(self, run: int, after: int = 0, *, principal: Principal) -> tuple[Run, int]:
        """Follow a run of yours: the items after a given one, then live ones to the end.

        Args:
            run: The run's number, which is what the call that began it was answered with.
            after: The number of the last item that you have; 0 for all of them.
        """
        return self._hub.runs.find(run, principal), after

    @method
    async def cancel(self, run: int, reason: str | None = None, *, ctx: Context) -> bool:
        """Stop a run of yours. True if it was still running.

        Args:
            run: The run's number.
            reason: What the run's terminal shall say.
        """
        found = self._hub.runs.find(run, ctx.principal)
        was_running = found.terminal is None
        found.cancel(reason or "cancelled by request")
        return was_running

    @method
    async def respond(self, run: int, request: str, answer: Any, *, ctx: Context) -> bool:
        """Answer what a run of yours asks.

        Args:
            run: The run's number.
            request: The request's number, as its `request` event has it.
            answer: What fits the request's schema, or null to decline.
        """
        self._hub.runs.find(run, ctx.principal).answer(request, answer)
        return True

    @method
    async def unsubscribe(self, subscription: int) -> bool:
        """End a subscription of this connection, and its run if this connection began it.

        Args:
            subscription: The number that the call was answered with.
        """
        raise InvalidParams(
            f"this client holds no subscription {subscription}; plexus.cancel stops a run"
        )


def _find(activations: list[dict[str, Any]], namespace: str) -> dict[str, Any]:
    for described in activations:
        if described["namespace"] == namespace:
            return described
        if namespace.startswith(described["namespace"] + "."):
            return _find(described.get("children", []), namespace)
    raise NotFound(f"there is no activation {namespace}")


async def _buffered(call: Call, limit: int) -> dict[str, Any]:
    """Everything a run says, in one value; a failed run raises and carries it as `data`."""
    run = call.run
    events: list[Any] = []
    size = 0
    terminal: Terminal | None = None
    async with aclosing(run.batches(call.after, owner=call.owned)) as batches:
        async for batch in batches:
            size += batch.size
            if size > limit:
                raise TooBig(
                    f"the answer is over the limit of {limit} bytes; "
                    "call the method itself to get it as a stream",
                    data={"limit": limit, "run": run.id},
                )
            terminal = batch.terminal
            events += batch.events[:-1] if terminal else batch.events
    answer = {"run": run.id, "events": events, "terminal": terminal}
    if isinstance(terminal, Error):
        raise PlexusError(terminal.message, code=terminal.code, data=answer)
    return answer
