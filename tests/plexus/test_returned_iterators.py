"""Methods that return an async iterator: each is driven as an async generator is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any, Self

import pytest
from conftest import OpenHub
from hub_calls import call, end_of, happened, read, settled, until

from plexus import Activation, Complete, Content, Context, Event, Failed, Log, method
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

BEFORE = Content(text="before")
#: Deadlines short enough for a test; the clock that serves them ticks every quarter of a second.
QUICK = Limits(cancel_s=0.3, run_s=0.3)


class Counted(Complete):
    """A terminal with something to say."""

    words: str


class Words:
    """An async iterator that is no generator; `aclose` is noted."""

    def __init__(self, events: list[Event], closed: list[str]) -> None:
        self._events = iter(events)
        self._closed = closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        for event in self._events:
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed.append("closed")


class Unclosable:
    """An async iterator without `aclose`."""

    def __init__(self) -> None:
        self.left = 2

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Content:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return Content(text=str(self.left))


class Listed:
    """An async iterable: each use creates an iterator."""

    async def __aiter__(self) -> AsyncGenerator[Content, None]:
        yield BEFORE


class Returning(Activation):
    """Returns iterators."""

    namespace = "returning"
    version = "1.0.0"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cleaned = asyncio.Event()
        self.closed: list[str] = []

    async def _count(self, to: int) -> AsyncGenerator[Content, None]:
        for number in range(to):
            yield Content(text=str(number))

    async def _hang(self) -> AsyncGenerator[Content, None]:
        yield BEFORE
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned.set()

    async def _end(self) -> AsyncGenerator[Content | Counted, None]:
        try:
            yield BEFORE
            yield Counted(words="all")
            yield Content(text="after")
        finally:
            self.cleaned.set()

    @method
    def plain(self, to: int = 3) -> AsyncIterator[Content]:
        """Return a generator from a plain function."""
        return self._count(to)

    @method
    async def awaited(self, to: int = 3, *, ctx: Context) -> AsyncIterator[Content]:
        """Return a generator from a coroutine, after some work."""
        await ctx.log("info", "prepared")
        return self._count(to)

    @method
    def hangs(self) -> AsyncIterator[Content]:
        """Return a generator that waits indefinitely."""
        return self._hang()

    @method
    async def never_returns(self) -> AsyncIterator[Content]:
        """Wait indefinitely before returning an iterator."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned.set()
        return self._count(1)

    @method
    def ends(self) -> AsyncGenerator[Content | Counted, None]:
        """Return a generator that yields a terminal and would continue."""
        return self._end()

    @method
    def object(self, terminal: bool = False) -> AsyncIterator[Content | Counted]:
        """Return an iterator that is no generator."""
        return Words([BEFORE, Counted(words="all")] if terminal else [BEFORE], self.closed)

    @method
    def wrong_event(self) -> AsyncIterator[Content]:
        """Return an iterator over an undeclared value."""
        return Words([5], self.closed)  # type: ignore[list-item]

    @method
    def unclosable(self) -> AsyncIterator[Content]:
        """Return an iterator that cannot be closed."""
        return Unclosable()

    @method
    def iterable(self) -> AsyncIterable[Content]:
        """Return an async iterable."""
        return Listed()

    @method
    async def refuses(self, *, awaits: bool = False) -> AsyncIterator[Content]:
        """Raise before returning an iterator."""
        if awaits:
            await asyncio.sleep(0)
        raise Failed("no such planet", code="no_planet")

    @method
    def refuses_plainly(self) -> AsyncIterator[Content]:
        """Raise from a plain function."""
        raise Failed("no such planet", code="no_planet")

    @method
    async def nothing(self) -> AsyncIterator[Content]:
        """Return nothing."""
        return None  # type: ignore[return-value]

    @method
    def a_list(self) -> AsyncIterator[Content]:
        """Return a synchronous iterable."""
        return [BEFORE]  # type: ignore[return-value]


NUMBERS = [Content(text="0"), Content(text="1"), Content(text="2")]


@pytest.mark.parametrize("name", ["plain", "awaited"])
async def test_the_events_of_a_returned_generator_are_those_of_the_run(
    name: str, open_hub: OpenHub
) -> None:
    events = await call(open_hub(Returning), f"returning.{name}")
    assert [event for event in events if not isinstance(event, Log)] == [*NUMBERS, Complete()]


async def test_a_method_that_returns_an_iterator_is_described_as_a_stream(
    open_hub: OpenHub,
) -> None:
    end = await end_of(open_hub(Returning), "plexus.schema", ["returning"])
    assert isinstance(end, Result)
    for described in end.result["methods"]:
        assert described["streaming"] is True
        assert "content" in repr(described["events"])


async def test_a_returned_generator_that_is_cancelled_is_closed(open_hub: OpenHub) -> None:
    returning = Returning()
    made = open_hub(returning).call("returning.hangs")
    await happened(returning.started)
    made.run.cancel("enough")
    assert await read(made) == [BEFORE, Cancelled("enough")]
    assert returning.cleaned.is_set()


async def test_a_coroutine_that_is_cancelled_before_it_returns_ends_the_run(
    open_hub: OpenHub,
) -> None:
    returning = Returning()
    hub = open_hub(returning)
    made = hub.call("returning.never_returns")
    await happened(returning.started)
    made.run.cancel("enough")
    assert await read(made) == [Cancelled("enough")]
    assert returning.cleaned.is_set()
    await until(lambda: not hub.pump.tasks)


@pytest.mark.parametrize("name", ["hangs", "never_returns"])
async def test_a_deadline_ends_it_with_an_error_that_names_it(name: str, open_hub: OpenHub) -> None:
    returning = Returning()
    end = await end_of(open_hub(returning, limits=QUICK), f"returning.{name}")
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.data) == ("deadline", {"limit_s": 0.3})
    assert returning.cleaned.is_set()


async def test_a_terminal_ends_a_returned_generator_and_closes_it(open_hub: OpenHub) -> None:
    returning = Returning()
    assert await call(open_hub(returning), "returning.ends") == [BEFORE, Counted(words="all")]
    assert returning.cleaned.is_set()


@pytest.mark.parametrize(("terminal", "end"), [(False, Complete()), (True, Counted(words="all"))])
async def test_an_iterator_that_is_no_generator_is_closed_once_at_its_end(
    terminal: bool, end: Event, open_hub: OpenHub
) -> None:
    returning = Returning()
    events = await call(open_hub(returning), "returning.object", {"terminal": terminal})
    assert events == [BEFORE, end]
    assert returning.closed == ["closed"]


async def test_an_iterator_that_yields_an_undeclared_value_is_closed(open_hub: OpenHub) -> None:
    returning = Returning()
    end = await end_of(open_hub(returning), "returning.wrong_event")
    assert isinstance(end, ErrorEvent)
    assert end.code == "invalid_event"
    assert "yielded int, but declares Content" in end.message
    assert returning.closed == ["closed"]


async def test_an_iterator_need_not_have_aclose(open_hub: OpenHub) -> None:
    events = await call(open_hub(Returning), "returning.unclosable")
    assert events == [Content(text="1"), Content(text="0"), Complete()]


async def test_an_async_iterable_is_iterated_over(open_hub: OpenHub) -> None:
    assert await call(open_hub(Returning), "returning.iterable") == [BEFORE, Complete()]


@pytest.mark.parametrize(
    ("name", "params"),
    [("refuses", {}), ("refuses", {"awaits": True}), ("refuses_plainly", {})],
)
async def test_an_error_before_there_is_an_iterator_is_the_terminal(
    name: str, params: dict[str, bool], open_hub: OpenHub
) -> None:
    events = await call(open_hub(Returning), f"returning.{name}", params)
    assert events == [ErrorEvent("no_planet", "no such planet")]


@pytest.mark.parametrize(("name", "kind"), [("nothing", "NoneType"), ("a_list", "list")])
async def test_a_result_that_is_not_an_async_iterator_is_a_logged_defect(
    name: str, kind: str, open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    hub = open_hub(Returning)
    end = await end_of(hub, f"returning.{name}")
    assert isinstance(end, ErrorEvent)
    assert end.code == "internal"
    assert f"returned {kind}, not an async iterator" in caplog.text
    assert await settled(hub.call("returning.plain", {"to": 0}).run) == Complete()
