"""Listeners are notified of the questions of all runs: when they open and when they close."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import OTHER, quiet, read, settled, until

from plexus import (
    Activation,
    AskText,
    Confirm,
    Context,
    Declined,
    InvalidParams,
    Plexus,
    Select,
    method,
)
from plexus.limits import Limits
from plexus.runtime.calls import Call
from plexus.runtime.run import Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Asking(Activation):
    """Asks."""

    namespace = "asking"
    version = "1.0.0"

    @method
    async def one(self, timeout_s: float | None = None, *, ctx: Context) -> bool:
        """Ask one question."""
        return await ctx.ask(Confirm("Sure?"), timeout_s=timeout_s)

    @method
    async def three(self, *, ctx: Context) -> dict[str, Any]:
        """Ask three questions together."""
        questions = {"a": AskText("A?"), "b": AskText("B?"), "c": Select("C?", ["x", "y"])}
        return await ctx.ask_all(questions)

    @method
    async def through(self, *, ctx: Context) -> Any:
        """Have another method ask."""
        return await ctx.call("asking.one")

    @method
    async def never(self) -> str:
        """Ask no question."""
        return ""

    @method
    async def much(self, *, ctx: Context) -> bool:
        """Ask more than fits."""
        return await ctx.ask(Confirm("x" * 10_000))

    @method
    async def stubborn(self, *, ctx: Context) -> bool:
        """Ask again when stopped."""
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.ask(Confirm("Sure?"))
        return await ctx.ask(Confirm("Really?"))


class Listener:
    """Records notifications: the method, the question, and whether it is open."""

    def __init__(self, hub: Plexus) -> None:
        self.events: list[tuple[str, str, bool]] = []
        self.stop = hub.questions.on_change(self._changed)

    def _changed(self, run: Run, request: str, is_open: bool) -> None:
        assert (request in (run.questions or ())) is is_open
        self.events.append((run.method, request, is_open))


OPENED, CLOSED = ("asking.one", "1", True), ("asking.one", "1", False)


async def asked(hub: Plexus, name: str = "asking.one", *params: Any) -> Call:
    begun = hub.call(name, list(params))
    await until(lambda: bool(begun.run.questions))
    return begun


@pytest.mark.parametrize("answer", [True, False, None])
async def test_listeners_are_notified_when_a_question_opens_and_is_answered_or_declined(
    answer: Any, open_hub: OpenHub
) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = await asked(hub)
    assert listener.events == [OPENED]
    begun.run.answer("1", answer)
    assert listener.events == [OPENED, CLOSED]
    await read(begun)
    assert listener.events == [OPENED, CLOSED]


async def test_a_question_that_is_refused_is_closed(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = await asked(hub)
    begun.run.refuse("1", Declined("no"))
    assert listener.events == [OPENED, CLOSED]
    await read(begun)
    assert listener.events == [OPENED, CLOSED]


async def test_an_unanswered_question_is_closed(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    [*_, end] = await read(await asked(hub, "asking.one", 0.05))
    assert getattr(end, "code", None) == "no_answer"
    assert listener.events == [OPENED, CLOSED]


async def test_a_question_of_a_run_that_is_cancelled_is_closed(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = await asked(hub)
    begun.run.cancel("enough")
    await settled(begun.run)
    await quiet()
    assert listener.events == [OPENED, CLOSED]


async def test_a_question_of_a_run_that_is_abandoned_is_closed(open_hub: OpenHub) -> None:
    hub = open_hub(Asking, limits=Limits(cancel_s=0.05))
    listener = Listener(hub)
    begun = await asked(hub, "asking.stubborn")
    begun.run.cancel("enough")
    await settled(begun.run)
    name = "asking.stubborn"
    assert listener.events == [
        (name, "1", True),
        (name, "1", False),
        (name, "2", True),
        (name, "2", False),
    ]


async def test_of_several_questions_each_is_closed_when_it_is_answered(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = await asked(hub, "asking.three")
    begun.run.answer("2", "b")
    name = "asking.three"
    opened = [(name, number, True) for number in "123"]
    assert listener.events == [*opened, (name, "2", False)]
    begun.run.answer("3", None)  # which takes the first one back
    await read(begun)
    assert listener.events == [*opened, *((name, number, False) for number in "231")]


async def test_a_question_of_a_nested_call_belongs_to_the_outermost_run(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = await asked(hub, "asking.through")
    begun.run.answer("1", True)
    await read(begun)
    assert listener.events == [("asking.through", "1", True), ("asking.through", "1", False)]


async def test_an_invalid_answer_leaves_the_question_open(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = await asked(hub)
    with pytest.raises(InvalidParams):
        begun.run.answer("1", "yes")
    assert listener.events == [OPENED]


async def test_a_question_that_cannot_be_asked_is_never_open(open_hub: OpenHub) -> None:
    hub = open_hub(Asking, limits=Limits(event_bytes=1000))
    listener = Listener(hub)
    [end] = await read(hub.call("asking.much"))
    assert getattr(end, "code", None) == "too_big"
    assert listener.events == []


async def test_a_run_without_questions_notifies_no_listener(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    await read(hub.call("asking.never"))
    assert listener.events == []


async def test_all_listeners_are_notified_until_they_unsubscribe(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    first, second = Listener(hub), Listener(hub)
    begun = await asked(hub)
    first.stop()
    begun.run.answer("1", True)
    assert first.events == [OPENED]
    assert second.events == [OPENED, CLOSED]


async def test_listeners_are_notified_of_the_runs_of_all_principals(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    listener = Listener(hub)
    begun = hub.call("asking.one", None, OTHER)
    await until(lambda: listener.events == [OPENED])
    begun.run.answer("1", True)


async def test_an_open_question_has_its_event_and_time(open_hub: OpenHub) -> None:
    begun = await asked(open_hub(Asking))
    assert begun.run.questions is not None
    entry = begun.run.questions["1"]
    assert entry.question.kind == entry.event.kind == "confirm"
    assert (entry.event.request, entry.event.message) == ("1", "Sure?")
    assert begun.run.started_at <= entry.asked_at
