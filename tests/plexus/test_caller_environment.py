"""The environment of a caller reaches its own runs, and no others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from plexus import Activation, Context, Plexus, method
from plexus.caller_environment import (
    CallerEnvironment,
    caller_directory,
    caller_variables,
)
from plexus.events import Result

pytestmark = pytest.mark.anyio

OpenHub = Callable[..., Plexus]


class Who(Activation):
    """Reports the caller."""

    namespace = "who"
    version = "1.0.0"

    @method
    async def direct(self) -> str:
        """Return the caller."""
        return caller_variables().get("WHO", "the server")

    @method
    async def later(self) -> AsyncIterator[str]:
        """Return the caller before and after other runs had their turn."""
        yield caller_variables().get("WHO", "the server")
        await asyncio.sleep(0.01)
        yield caller_variables().get("WHO", "the server")

    @method
    def threaded(self) -> str:
        """Return the caller, in a worker thread."""
        return caller_variables().get("WHO", "the server")

    @method
    async def nested(self, *, ctx: Context) -> str:
        """Return the caller, as a run of this run sees it."""
        assert ctx.caller is None or ctx.caller.variables["WHO"] == caller_variables()["WHO"]
        return str(await ctx.call("who.direct"))


async def outcome(hub: Plexus, name: str, caller: CallerEnvironment | None) -> list[str]:
    """Start a run without waiting, so that runs of several callers are submitted together."""
    run = hub.call(f"who.{name}", caller=caller).run
    events = [event async for batch in run.batches() for event in batch.events]
    texts = [event.result if isinstance(event, Result) else event.as_text() for event in events]
    return [str(text) for text in texts if text]


@pytest.mark.parametrize("name", ["direct", "later", "threaded", "nested"])
async def test_runs_that_one_task_steps_have_the_environments_of_their_own_callers(
    open_hub: OpenHub, name: str
) -> None:
    hub = open_hub(Who)
    one, two = (CallerEnvironment("/", {"WHO": who}) for who in ("one", "two"))
    callers = [one, two, None] * 10
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*(outcome(hub, name, caller) for caller in callers))
    for caller, texts in zip(callers, outcomes, strict=True):
        assert set(texts) == {"the server" if caller is None else caller.variables["WHO"]}


async def test_without_a_calling_process_the_environment_is_that_of_the_server() -> None:
    assert caller_variables() is os.environ
    assert caller_directory() == Path.cwd()


async def test_the_values_of_variables_are_not_shown() -> None:
    shown = repr(CallerEnvironment("/work", {"TOKEN": "hunter2"}))
    assert "hunter2" not in shown
    assert "/work" in shown
