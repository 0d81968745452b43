"""The guarantees of `plexus.testing` for tests of activations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plexus import (
    Activation,
    AskText,
    Complete,
    Confirm,
    Content,
    Context,
    Denied,
    Event,
    Failed,
    InvalidParams,
    NotFound,
    Principal,
    Progress,
    Start,
    method,
)
from plexus.errors import RegistrationError, UnknownMethod, Unsupported
from plexus.events import Cancelled, ErrorEvent, QuestionAsked, Result
from plexus.testing import expect, local

pytestmark = pytest.mark.anyio


class Counted(Complete):
    """How far it came."""

    total: int


class Sample(Activation):
    """Something to test."""

    namespace = "sample"
    version = "1.0.0"

    def __init__(self) -> None:
        self.cleaned: list[str] = []

    @method(read_only=True)
    async def count(self, to: int) -> AsyncIterator[Start | Content | Progress | Counted]:
        """Count."""
        yield Start()
        for number in range(1, to + 1):
            yield Content(text=f"{number} ")
            yield Progress(done=number, total=to)
        yield Counted(total=to)

    @method
    async def double(self, number: int) -> int:
        """Double."""
        return 2 * number

    @method
    async def fail(self, code: str) -> AsyncIterator[Content]:
        """Fail."""
        yield Content(text="so far")
        if code == "not_found":
            raise NotFound("it is not there", data={"name": "it"})
        if code == "bug":
            raise RuntimeError("secret")
        raise Failed("no", code=code)

    @method
    async def ask(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask twice."""
        if await ctx.ask(Confirm("Go on?")):
            yield Content(text=await ctx.ask(AskText("Where?")))

    @method
    async def hang(self) -> AsyncIterator[Content]:
        """Yield one word, and wait indefinitely."""
        try:
            yield Content(text="one")
            await asyncio.Event().wait()
        finally:
            self.cleaned.append("hang")


class Wrong(Activation):
    """Has no method."""

    namespace = "wrong"
    version = "1.0.0"


# --- calling ---------------------------------------------------------------------------------


async def test_a_plain_method_returns_its_value() -> None:
    async with local(Sample()) as plexus:
        assert await plexus.call("sample.double", number=4) == 8


async def test_a_stream_returns_its_terminal() -> None:
    async with local(Sample) as plexus:  # a class does as well
        assert await plexus.call("sample.count", to=2) == Counted(total=2)


async def test_parameters_are_checked_as_they_are_on_a_server() -> None:
    async with local(Sample()) as plexus:
        with pytest.raises(InvalidParams):
            await plexus.call("sample.double", number="4")
        with pytest.raises(UnknownMethod):
            await plexus.call("sample.duble", number=4)
        with pytest.raises(InvalidParams):
            plexus.stream("sample.double")


async def test_scopes_are_checked_as_they_are_on_a_server() -> None:
    reader = Principal("reader", frozenset({"read"}))
    async with local(Sample(), principal=reader) as plexus:
        assert len(await plexus.events("sample.count", to=1)) == 4
        with pytest.raises(Denied):
            await plexus.call("sample.double", number=4)


async def test_the_error_of_a_method_is_raised_by_call_as_the_same_class() -> None:
    async with local(Sample()) as plexus:
        with pytest.raises(NotFound, match="it is not there") as raised:
            await plexus.call("sample.fail", code="not_found")
        assert raised.value.data == {"name": "it"}
        with pytest.raises(Failed) as other:
            await plexus.call("sample.fail", code="odd")
        assert other.value.code == "odd"


async def test_a_failure_is_an_event_like_any_other_in_events() -> None:
    async with local(Sample()) as plexus:
        events = await plexus.events("sample.fail", code="odd")
    expect(events).types("content", "error").fails("odd", saying="no")


async def test_a_wrong_activation_is_refused_when_the_block_is_entered() -> None:
    with pytest.raises(RegistrationError, match="no method"):
        async with local(Wrong):
            pytest.fail("it was registered")


async def test_several_activations_share_a_hub() -> None:
    class Other(Activation):
        """Calls the first."""

        namespace = "other"
        version = "1.0.0"

        @method
        async def twice(self, *, ctx: Context) -> Any:
            """Double four by way of the other."""
            return await ctx.call("sample.double", number=4)

    async with local(Sample(), Other) as plexus:
        assert await plexus.call("other.twice") == 8
        assert "other.twice" in [spec.name for spec in plexus.hub.methods()]


# --- streaming -------------------------------------------------------------------------------


async def test_events_come_one_by_one_and_the_terminal_is_the_last() -> None:
    async with local(Sample()) as plexus:
        found = [event.type async for event in plexus.stream("sample.count", to=2)]
    assert found == ["start", "content", "progress", "content", "progress", "complete"]


async def test_leaving_the_block_of_a_stream_stops_the_run_and_waits_for_its_cleanup() -> None:
    sample = Sample()
    async with local(sample) as plexus:
        async with plexus.stream("sample.hang") as stream:
            assert await anext(stream) == Content(text="one")
            assert sample.cleaned == []
        assert sample.cleaned == ["hang"]
        assert stream.run.terminal is not None
        assert stream.run.terminal.type == "cancelled"


async def test_a_cancelled_stream_still_returns_its_terminal() -> None:
    async with local(Sample()) as plexus, plexus.stream("sample.hang") as stream:
        await anext(stream)
        stream.cancel("enough")
        assert [event async for event in stream] == [Cancelled(reason="enough")]


async def test_a_silent_method_fails_the_test_instead_of_hanging_it() -> None:
    sample = Sample()
    async with local(sample, within_s=0.2) as plexus:
        with pytest.raises(AssertionError, match=r"no event for 0\.2 s.*Content\(text='one'\)"):
            await plexus.events("sample.hang")
    assert sample.cleaned == ["hang"]


async def test_following_a_run_does_not_stop_it() -> None:
    async with local(Sample()) as plexus, plexus.stream("sample.hang") as stream:
        await anext(stream)
        async with plexus.stream("plexus.attach", run=stream.run.id) as follower:
            assert await anext(follower) == Content(text="one")
        assert stream.run.terminal is None


# --- answering -------------------------------------------------------------------------------


async def test_answers_are_used_in_the_order_of_the_questions() -> None:
    async with local(Sample(), answers=[True, "north"]) as plexus:
        events = await plexus.events("sample.ask")
    asked = expect(events).types("request", "request", "content", "complete")
    assert asked.questions == ["Go on?", "Where?"]
    assert asked.text == "north"


async def test_answers_can_be_passed_to_one_call() -> None:
    async with local(Sample()) as plexus:
        assert await plexus.answering(False).call("sample.ask") == Complete()
        events = await plexus.answering(True, lambda request: request.message).events("sample.ask")
        assert expect(events).text == "Where?"


async def test_a_question_without_an_answer_fails_the_test_and_is_named() -> None:
    async with local(Sample()) as plexus:
        with pytest.raises(AssertionError, match=r"'Go on\?' \(confirm\).*answers="):
            await plexus.call("sample.ask")
        with pytest.raises(AssertionError, match=r"'Where\?' \(prompt\)"):
            await plexus.answering(True).call("sample.ask")


async def test_an_unused_answer_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"no question was asked.*'south'"):
        async with local(Sample(), answers=[False, "south"]) as plexus:
            await plexus.events("sample.ask")
    async with local(Sample()) as plexus:
        with pytest.raises(AssertionError, match="no question was asked"):
            await plexus.answering(False, "south").call("sample.ask")


async def test_unused_answers_do_not_hide_an_error_in_the_block() -> None:
    with pytest.raises(ZeroDivisionError):
        async with local(Sample(), answers=[True]):
            raise ZeroDivisionError


async def test_none_declines_and_an_error_refuses() -> None:
    async with local(Sample()) as plexus:
        events = await plexus.answering(None).events("sample.ask")
        expect(events).fails("declined")
        events = await plexus.answering(Unsupported("cannot")).events("sample.ask")
        expect(events).fails("unsupported")


async def test_an_answer_of_the_wrong_kind_is_refused() -> None:
    async with local(Sample()) as plexus:
        with pytest.raises(InvalidParams, match="true or false"):
            await plexus.answering("yes").call("sample.ask")


async def test_a_test_can_answer_by_hand() -> None:
    async with local(Sample()) as plexus, plexus.stream("sample.ask") as stream:
        with pytest.raises(AssertionError, match="no open question"):
            stream.answer(True)
        assert isinstance(await anext(stream), QuestionAsked)
        stream.answer(True)
        assert isinstance(await anext(stream), QuestionAsked)
        stream.answer("by hand")
        assert await anext(stream) == Content(text="by hand")


# --- assertions ------------------------------------------------------------------------------

EVENTS: list[Event] = [Start(), Content(text="a"), Content(text="b"), Result(result=5)]


def test_an_expectation_that_holds_can_be_chained() -> None:
    found = expect(EVENTS).types("start", "content", "content", "complete").completes(result=5)
    assert found.text == "ab"
    assert found.value == 5
    assert found.of(Content) == [Content(text="a"), Content(text="b")]
    expect([Cancelled()]).is_cancelled()
    expect([Progress(done=1), Progress(done=2)]).progresses(to=2)


@pytest.mark.parametrize(
    ("events", "assertion", "arguments", "fault"),
    [
        (EVENTS, "types", ("start", "complete"), "difference is at 2"),
        (EVENTS, "types", ("start", "content", "content"), "difference is at 4"),
        ([], "types", ("start",), "none"),
        (EVENTS, "fails", ("odd",), "'error', not 'complete'"),
        (EVENTS[:-1], "completes", (), "a terminal at the end"),
        ([], "completes", (), "a terminal at the end"),
        ([ErrorEvent(code="a", message="m")], "fails", ("b",), "'a', not 'b'"),
        (EVENTS, "is_cancelled", (), "'cancelled', not 'complete'"),
        (EVENTS, "progresses", (), "found none"),
        ([Progress(done=2), Progress(done=1)], "progresses", (), "decreased"),
        ([Progress(done=2)], "progresses", (3,), "ends at 2"),
    ],
)
def test_an_expectation_that_does_not_hold_shows_the_events(
    events: list[Event], assertion: str, arguments: tuple[Any, ...], fault: str
) -> None:
    with pytest.raises(AssertionError, match=fault) as raised:
        getattr(expect(events), assertion)(*arguments)
    for event in events:
        assert repr(event) in str(raised.value)


def test_fields_of_a_terminal_are_compared() -> None:
    with pytest.raises(AssertionError, match="result is 5, not 6"):
        expect(EVENTS).completes(result=6)
    with pytest.raises(AssertionError, match="no field 'total'"):
        expect(EVENTS).completes(total=6)
    with pytest.raises(AssertionError, match="'maybe' is not in 'no'"):
        expect([ErrorEvent(code="a", message="no")]).fails("a", saying="maybe")
