"""Listeners of runs: which notifications they get, and that they affect nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hub_calls import OTHER, call, end_of

from plexus import Activation, Context, Failed, Plexus, PlexusError, Principal, method
from plexus.events import Result
from plexus.principal import LOCAL
from plexus.runtime.run import Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Steps(Activation):
    """Calls and fails."""

    namespace = "steps"
    version = "1.0.0"

    @method
    async def one(self, text: str = "x") -> str:
        """Say it again."""
        return text

    @method
    async def two(self, *, ctx: Context) -> str:
        """Have another do it."""
        return str(await ctx.call("steps.one", text="inner"))

    @method
    async def fail(self) -> str:
        """Fail."""
        raise Failed("no", code="no_luck")


@pytest.fixture
def hub() -> Plexus:
    hub = Plexus()
    hub.register(Steps())
    return hub


async def test_listeners_are_notified_of_every_start_and_end_in_order(hub: Plexus) -> None:
    told: list[tuple[str, str, Any]] = []

    def began(run: Run, arguments: Mapping[str, Any], trace: Mapping[str, str] | None) -> None:
        assert run.terminal is None
        told.append(("began", run.method, (dict(arguments), trace)))

    def ended(run: Run) -> None:
        assert run.terminal is not None
        assert run.ended_at is not None
        assert run.log.total == sum(map(len, run.log.payloads))  # all of it is counted by then
        told.append(("ended", run.method, run.terminal.type))

    hub.runs.on_start(began)
    hub.runs.on_end(ended)
    await call(hub, "steps.two")
    await call(hub, "steps.fail")
    assert told == [
        ("began", "steps.two", ({}, None)),
        ("began", "steps.one", ({"text": "inner"}, None)),
        ("ended", "steps.one", "complete"),
        ("ended", "steps.two", "complete"),
        ("began", "steps.fail", ({}, None)),
        ("ended", "steps.fail", "error"),
    ]


async def test_a_nested_run_has_a_parent_and_no_trace_context(
    hub: Plexus,
) -> None:
    begun: dict[str, tuple[Run, Mapping[str, str] | None]] = {}
    hub.runs.on_start(lambda run, _, trace: begun.update({run.method: (run, trace)}))
    given = {"traceparent": "00-1-2-01"}
    run = hub.call("steps.two", trace=given).run
    assert await hub.runs.wait_idle(5)
    assert begun["steps.two"] == (run, given)
    inner, trace = begun["steps.one"]
    assert (inner.parent, trace) == (run.id, None)


async def test_a_refused_call_starts_and_ends_no_run(hub: Plexus) -> None:
    told: list[Run] = []
    hub.runs.on_start(lambda run, *_: told.append(run))
    hub.runs.on_end(told.append)
    for name, params in (("no.such", {}), ("steps.one", {"text": 1})):
        with pytest.raises(PlexusError):
            hub.call(name, params)
    assert told == []


async def test_listeners_are_notified_of_refused_calls(hub: Plexus) -> None:
    told: list[tuple[str, Principal, PlexusError]] = []
    stop = hub.runs.on_refused(lambda *news: told.append(news))
    error = Failed("no")
    hub.runs.notify_refused("a.b", OTHER, error)
    stop()
    hub.runs.notify_refused("a.b", LOCAL, error)
    assert told == [("a.b", OTHER, error)]


async def test_an_unsubscribed_listener_is_not_notified(hub: Plexus) -> None:
    told: list[Run] = []
    stops = [hub.runs.on_start(lambda run, *_: told.append(run)), hub.runs.on_end(told.append)]
    await call(hub, "steps.one")
    for stop in stops:
        stop()
    await call(hub, "steps.one")
    assert len(told) == 2


async def test_a_failing_listener_affects_neither_the_run_nor_other_listeners(
    hub: Plexus, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise TypeError("watching went wrong")

    told: list[Run] = []
    hub.runs.on_start(fail)
    hub.runs.on_end(fail)
    hub.runs.on_end(told.append)
    terminal = await end_of(hub, "steps.one", {"text": "y"})
    assert isinstance(terminal, Result)
    assert terminal.result == "y"
    assert [run.method for run in told] == ["steps.one"]
    assert caplog.text.count("a listener of runs failed") == 2


async def test_a_listener_may_unsubscribe_while_it_is_notified(hub: Plexus) -> None:
    told: list[str] = []

    def once(_: Run) -> None:
        told.append("once")
        stop()

    stop = hub.runs.on_end(once)
    hub.runs.on_end(lambda _: told.append("always"))
    await call(hub, "steps.one")
    await call(hub, "steps.one")
    assert told == ["once", "always", "always"]
