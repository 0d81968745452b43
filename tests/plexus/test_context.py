"""The context of a call: log, call other methods, and ask questions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pydantic
import pytest
from conftest import OpenHub
from hub_calls import OTHER, call, end_of, happened, quiet, read, settled, until

from plexus import (
    Activation,
    AskText,
    Complete,
    Confirm,
    Content,
    Context,
    Declined,
    Failed,
    Form,
    InvalidParams,
    Log,
    NotFound,
    OpenUrl,
    Option,
    Plexus,
    PlexusError,
    Roots,
    Sample,
    Select,
    SelectMany,
    method,
)
from plexus.errors import Unsupported
from plexus.events import Cancelled, ErrorEvent, QuestionAsked, Result
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.questions import Question
from plexus.runtime.run import Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Inner(Activation):
    """Is called by others."""

    namespace = "inner"
    version = "1.0.0"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.closed = asyncio.Event()

    @method
    async def stream(self, to: int = 2) -> AsyncIterator[Content]:
        """Stream."""
        for number in range(to):
            yield Content(text=str(number))

    @method
    async def value(self, value: int = 1, *, ctx: Context) -> list[Any]:
        """Return a value with the name of the caller."""
        return [value, ctx.principal.name]

    @method
    async def fails(self) -> str:
        """Fail."""
        raise Failed("no", code="nope", data={"a": 1})

    @method
    async def crashes(self) -> str:
        """Have a defect."""
        raise RuntimeError("secret")

    @method
    async def waits(self) -> AsyncIterator[Content]:
        """Wait until cancelled."""
        try:
            yield Content(text="here")
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


class Outer(Activation):
    """Calls others."""

    namespace = "outer"
    version = "1.0.0"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @method
    async def streams(self, target: str, *, ctx: Context) -> AsyncIterator[Content]:
        """Yield the events of another method."""
        async for event in ctx.call(target):
            self.seen.append(event)
            if isinstance(event, Content):
                yield event

    @method
    async def awaits(
        self, target: str, params: dict[str, Any] | None = None, *, ctx: Context
    ) -> Any:
        """Return the value of another method."""
        return await ctx.call(target, **(params or {}))

    @method
    async def catches(self, target: str, *, ctx: Context) -> list[Any]:
        """Return the error of another method."""
        try:
            await ctx.call(target)
        except PlexusError as error:
            return [type(error).__name__, error.code, error.message, error.data]
        return []

    @method
    async def leaves(self, *, ctx: Context) -> str:
        """Take the first item of another, and leave it."""
        async with aclosing(ctx.call("inner.waits").__aiter__()) as events:
            async for event in events:
                return event.as_text()
        return ""

    @method
    async def remarks(self, *, ctx: Context) -> int:
        """Log something."""
        await ctx.log("warning", "careful")
        return ctx.run_id


class Asker(Activation):
    """Asks the questions of the test."""

    namespace = "asker"
    version = "1.0.0"

    def __init__(self, question: Question[Any], timeout_s: float | None = None) -> None:
        self._question = question
        self._timeout_s = timeout_s

    @method
    async def ask(self, *, ctx: Context) -> Any:
        """Ask, and return the answer."""
        answer = await ctx.ask(self._question, timeout_s=self._timeout_s)
        return [type(answer).__name__, answer]

    @method
    async def catch(self, *, ctx: Context) -> str:
        """Ask, and return the error."""
        try:
            await ctx.ask(self._question, timeout_s=self._timeout_s)
        except Declined as error:
            return f"declined: {error.code}"
        return "answered"


# --- logging -------------------------------------------------------------------------------------


async def test_a_log_message_is_an_item_of_the_run(open_hub: OpenHub) -> None:
    made = open_hub(Outer).call("outer.remarks")
    events = await read(made)
    assert events == [Log(level="warning", message="careful"), Result(made.run.id)]


# --- calling -------------------------------------------------------------------------------------


async def test_the_events_of_another_method_can_be_passed_on(open_hub: OpenHub) -> None:
    outer = Outer()
    events = await call(open_hub(outer, Inner), "outer.streams", ["inner.stream"])
    assert events == [Content(text="0"), Content(text="1"), Complete()]
    assert outer.seen[-1] == Complete()


async def test_awaiting_a_call_returns_its_value(open_hub: OpenHub) -> None:
    hub = open_hub(Outer, Inner)
    end = await end_of(hub, "outer.awaits", ["inner.value", {"value": 5}])
    assert end == Result([5, "local"])


async def test_awaiting_a_stream_returns_its_terminal(open_hub: OpenHub) -> None:
    end = await end_of(open_hub(Outer, Inner), "outer.awaits", ["inner.stream"])
    assert isinstance(end, Result)
    assert end.result == Complete()


async def test_the_principal_is_passed_on(open_hub: OpenHub) -> None:
    hub = open_hub(Outer, Inner)
    [end] = await call(hub, "outer.awaits", ["inner.value"], OTHER)
    assert end == Result([1, OTHER.name])
    assert {run.method for run in hub.runs.list_for(OTHER)} == {"outer.awaits", "inner.value"}
    assert hub.runs.list_for(LOCAL) == []


async def test_a_call_is_a_run_that_names_its_parent(open_hub: OpenHub) -> None:
    hub = open_hub(Outer, Inner)
    made = hub.call("outer.awaits", ["inner.value"])
    await settled(made.run)
    [inner] = [run for run in hub.runs.list_for(LOCAL) if run.method == "inner.value"]
    assert inner.describe()["parent"] == made.run.id


@pytest.mark.parametrize(
    ("target", "kind", "code"),
    [
        ("inner.fails", "Failed", "nope"),
        ("inner.crashes", "Failed", "internal"),
        ("inner.nothing", "UnknownMethod", "unknown_method"),
    ],
)
async def test_the_error_of_another_method_can_be_caught(
    target: str, kind: str, code: str, open_hub: OpenHub
) -> None:
    end = await end_of(open_hub(Outer, Inner), "outer.catches", [target])
    assert isinstance(end, Result)
    assert end.result[:2] == [kind, code]
    assert "secret" not in str(end.result)


async def test_an_uncaught_error_of_another_method_fails_the_caller(open_hub: OpenHub) -> None:
    hub = open_hub(Outer, Inner)
    assert await end_of(hub, "outer.awaits", ["inner.fails"]) == ErrorEvent("nope", "no", {"a": 1})
    end = await end_of(hub, "outer.awaits", ["inner.value", {"value": "x"}])
    assert isinstance(end, ErrorEvent)
    assert end.code == "invalid_params"


@pytest.mark.parametrize("name", ["outer.awaits", "outer.streams"])
async def test_cancelling_a_run_cancels_what_it_called(name: str, open_hub: OpenHub) -> None:
    inner = Inner()
    hub = open_hub(Outer, inner)
    made = hub.call(name, ["inner.waits"])
    await happened(inner.started)
    made.run.cancel("enough")
    assert await settled(made.run) == Cancelled("enough")
    await happened(inner.closed)
    await until(lambda: not hub.runs.running())


async def test_cancelling_what_was_called_is_a_failure_of_the_caller(open_hub: OpenHub) -> None:
    inner = Inner()
    hub = open_hub(Outer, inner)
    made = hub.call("outer.awaits", ["inner.waits"])
    await happened(inner.started)
    [called] = [run for run in hub.runs.running() if run.method == "inner.waits"]
    called.cancel("not you")
    end = await settled(made.run)
    assert isinstance(end, ErrorEvent)
    assert end.code == "cancelled"


async def test_leaving_a_call_cancels_it(open_hub: OpenHub) -> None:
    inner = Inner()
    hub = open_hub(Outer, inner)
    assert await end_of(hub, "outer.leaves") == Result("here")
    await happened(inner.closed)


# --- asking --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Person:
    name: str
    age: int = 0


class Model(pydantic.BaseModel):
    name: str


FIELDS = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def asked(
    hub: Plexus, name: str = "asker.ask", params: Any = None
) -> tuple[Run, QuestionAsked]:
    """Begin a run and wait for its question."""
    run = hub.call(name, params).run
    await until(lambda: run.state == "asking")
    [request] = run.log.events
    assert isinstance(request, QuestionAsked)
    return run, request


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (Confirm("Sure?"), True, ["bool", True]),
        (Confirm("Sure?"), False, ["bool", False]),
        (AskText("Name?"), "", ["str", ""]),
        (AskText("Name?"), "Ada", ["str", "Ada"]),
        (Select("Which?", options=["a", "b"]), "b", ["str", "b"]),
        (Select("Which?", options=[Option("a", "An A")]), "a", ["str", "a"]),
        (SelectMany("Which?", options=["a", "b"]), [], ["list", []]),
        (SelectMany("Which?", options=["a", "b"]), ["b", "a", "b"], ["list", ["b", "a"]]),
        (Form("Who?", fields=Person), {"name": "Ada"}, ["Person", Person("Ada")]),
        (Form("Who?", fields=Model), {"name": "Ada"}, ["Model", Model(name="Ada")]),
        (Form("Who?", FIELDS), {"name": "Ada"}, ["dict", {"name": "Ada"}]),
        (OpenUrl("Sign in", "https://example.org/"), True, ["bool", True]),
    ],
)
async def test_a_valid_answer_resumes_the_run(
    question: Question[Any], answer: Any, expected: Any, open_hub: OpenHub
) -> None:
    hub = open_hub(Asker(question))
    run, request = await asked(hub)
    assert (request.kind, request.message) == (question.kind, question.message)
    assert await end_of(hub, "plexus.respond", [run.id, request.request, answer]) == Result(True)
    assert await settled(run) == Result(expected)


@pytest.mark.parametrize(
    ("question", "answers", "right"),
    [
        (Confirm("?"), ["yes", 1, 0, [], {}], True),
        (AskText("?"), [1, True, [], {}], "a"),
        (Select("?", options=["a"]), ["b", "", 1, ["a"], {}], "a"),
        (SelectMany("?", options=["a"]), ["a", ["b"], [["a"]], {}, 1], ["a"]),
        (
            Form("?", fields=Person),
            [[], "x", {}, {"name": 1}, {"name": "a", "age": "1"}],
            {"name": ""},
        ),
    ],
)
async def test_an_invalid_answer_leaves_the_question_open(
    question: Question[Any], answers: list[Any], right: Any, open_hub: OpenHub
) -> None:
    hub = open_hub(Asker(question))
    run, request = await asked(hub)
    for answer in answers:
        end = await end_of(hub, "plexus.respond", [run.id, request.request, answer])
        assert isinstance(end, ErrorEvent)
        assert end.code == "invalid_params"
        assert run.state == "asking"
    await end_of(hub, "plexus.respond", [run.id, request.request, right])
    assert isinstance(await settled(run), Result)


async def test_a_question_has_the_schema_of_its_answer(open_hub: OpenHub) -> None:
    question = Select("Which?", options=["a", Option("b", "Bee")], default="b")
    _, request = await asked(open_hub(Asker(question, timeout_s=60)))
    assert request.schema == {"type": "string", "enum": ["a", "b"]}
    assert request.options == [{"value": "a", "label": "a"}, {"value": "b", "label": "Bee"}]
    assert request.default == "b"
    assert request.timeout_s == 60


async def test_a_form_has_a_schema(open_hub: OpenHub) -> None:
    _, request = await asked(open_hub(Asker(Form("Who?", fields=Person))))
    assert request.schema["properties"].keys() == {"name", "age"}
    assert request.schema["required"] == ["name"]


async def test_null_is_declining(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")))
    run, request = await asked(hub)
    assert await end_of(hub, "plexus.respond", [run.id, request.request, None]) == Result(True)
    end = await settled(run)
    assert isinstance(end, ErrorEvent)
    assert end.code == "declined"
    run, request = await asked(hub, "asker.catch")
    await end_of(hub, "plexus.respond", [run.id, request.request, None])
    assert await settled(run) == Result("declined: declined")


async def test_a_missing_answer_fails_with_its_own_code(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?"), timeout_s=0.05))
    end = await end_of(hub, "asker.ask")
    assert isinstance(end, ErrorEvent)
    assert end.code == "no_answer"
    assert end.data == {"limit_s": 0.05, "request": "1"}


async def test_the_limits_set_how_long_a_question_stays_open(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")), limits=Limits(answer_s=0.05))
    end = await end_of(hub, "asker.ask")
    assert isinstance(end, ErrorEvent)
    assert end.data["limit_s"] == 0.05


async def test_only_the_runs_principal_can_answer(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")))
    run, request = await asked(hub)
    [end] = await call(hub, "plexus.respond", [run.id, request.request, True], OTHER)
    assert isinstance(end, ErrorEvent)
    assert end.code == "not_found"
    assert run.state == "asking"


async def test_a_question_is_answered_once(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")))
    run, request = await asked(hub)
    run.answer(request.request, True)
    with pytest.raises(NotFound):
        run.answer(request.request, False)
    assert await settled(run) == Result(["bool", True])
    with pytest.raises(NotFound):
        run.answer(request.request, True)


async def test_a_question_that_was_never_asked_is_not_found(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")))
    run, _ = await asked(hub)
    with pytest.raises(NotFound):
        run.answer("7", True)
    with pytest.raises(InvalidParams):
        run.answer("1", "yes")


async def test_a_run_that_asks_can_be_cancelled(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")))
    run, request = await asked(hub)
    run.cancel("enough")
    assert await settled(run) == Cancelled("enough")
    with pytest.raises(NotFound):
        run.answer(request.request, True)
    await quiet()


async def test_two_questions_of_one_run_have_their_own_numbers(open_hub: OpenHub) -> None:
    class Twice(Activation):
        """Ask two questions together."""

        namespace = "twice"
        version = "1.0.0"

        @method
        async def ask(self, *, ctx: Context) -> list[bool]:
            """Ask."""
            return [*await asyncio.gather(ctx.ask(Confirm("A?")), ctx.ask(Confirm("B?")))]

    run = open_hub(Twice).call("twice.ask").run
    await until(lambda: run.log.last == 2)
    run.answer("2", False)
    run.answer("1", True)
    assert await settled(run) == Result([True, False])


async def test_a_question_carries_what_a_view_needs(open_hub: OpenHub) -> None:
    _, request = await asked(open_hub(Asker(OpenUrl("Sign in", "https://example.org/"))))
    assert request.details == {"url": "https://example.org/"}
    assert request.key is None
    _, request = await asked(open_hub(Asker(Sample("Why?", max_tokens=5))))
    assert request.details == {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5}


async def test_a_question_that_is_too_large_is_not_left_open(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("x" * 2000)), limits=Limits(event_bytes=1000))
    run = hub.call("asker.ask").run
    end = await settled(run)
    assert isinstance(end, ErrorEvent)
    assert end.code == "too_big"
    assert not run.questions


# --- refusing ------------------------------------------------------------------------------------


async def test_a_question_can_be_refused_with_an_error(open_hub: OpenHub) -> None:
    hub = open_hub(Asker(Confirm("Sure?")))
    run, request = await asked(hub)
    run.refuse(request.request, Failed("the client went away", code="gone", data=1))
    assert await settled(run) == ErrorEvent("gone", "the client went away", 1)
    with pytest.raises(NotFound):
        run.refuse(request.request, Failed("again"))
    run, request = await asked(hub, "asker.catch")
    run.refuse(request.request, Declined("the client cannot show it"))
    assert await settled(run) == Result("declined: declined")


@pytest.mark.parametrize("question", [Sample("?"), Roots(), OpenUrl("?", "https://example.org/")])
async def test_a_question_that_the_caller_cannot_answer_is_refused_immediately(
    question: Question[Any], open_hub: OpenHub
) -> None:
    hub = open_hub(Asker(question))
    made = hub.call("asker.ask", question_kinds=frozenset({"form"}))
    [end] = await read(made)
    assert isinstance(end, ErrorEvent)
    assert end.code == Unsupported.default_code == "unsupported"
    assert end.data == {"kind": question.kind}
    able = hub.call("asker.ask", question_kinds=frozenset({question.kind})).run
    await until(lambda: able.state == "asking")


@pytest.mark.parametrize(
    "question",
    [
        Confirm("?"),
        AskText("?"),
        Select("?", options=["a"]),
        SelectMany("?", options=["a"]),
        Form("?", FIELDS),
    ],
)
async def test_questions_that_any_view_can_show_are_asked_of_every_caller(
    question: Question[Any], open_hub: OpenHub
) -> None:
    run = open_hub(Asker(question)).call("asker.ask", question_kinds=frozenset()).run
    await until(lambda: run.state == "asking")


class Several(Activation):
    """Asks several questions together."""

    namespace = "several"
    version = "1.0.0"

    @method
    async def ask(self, timeout_s: float | None = None, *, ctx: Context) -> dict[str, Any]:
        """Ask three things."""
        return await ctx.ask_all(
            {"sure": Confirm("Sure?"), "name": AskText("Name?"), "more": Confirm("More?")},
            timeout_s=timeout_s,
        )

    @method
    async def nothing(self, *, ctx: Context) -> dict[str, Any]:
        """Ask no question."""
        return await ctx.ask_all({})

    @method
    async def mixed(self, *, ctx: Context) -> list[Any]:
        """Ask a supported and an unsupported question."""
        can = {kind: ctx.can_ask(kind) for kind in ("form", "sample")}
        try:
            await ctx.ask_all({"a": Confirm("Sure?"), "b": Sample("Why?")})
        except Unsupported as error:
            return [can, error.data]
        return [can]

    @method
    async def keyed(self, *, ctx: Context) -> bool:
        """Ask by a key."""
        return await ctx.ask(Confirm("Sure?"), key="sure")


# --- several questions ---------------------------------------------------------------------------


async def asked_several(hub: Plexus, params: Any = None) -> Run:
    run = hub.call("several.ask", params).run
    await until(lambda: run.log.last == 3)
    return run


async def test_several_questions_are_asked_together_and_answered_in_any_order(
    open_hub: OpenHub,
) -> None:
    run = await asked_several(open_hub(Several))
    requests = [event for event in run.log.events if isinstance(event, QuestionAsked)]
    assert [(each.request, each.key) for each in requests] == [
        ("1", "sure"),
        ("2", "name"),
        ("3", "more"),
    ]
    run.answer("3", False)
    await quiet()
    run.answer("1", True)
    assert run.state == "asking"
    run.answer("2", "Ada")
    assert await settled(run) == Result({"sure": True, "name": "Ada", "more": False})


async def test_an_empty_set_of_questions_is_answered_immediately(open_hub: OpenHub) -> None:
    assert await end_of(open_hub(Several), "several.nothing") == Result({})


async def test_declining_one_of_several_withdraws_the_others(open_hub: OpenHub) -> None:
    run = await asked_several(open_hub(Several))
    run.answer("2", None)
    end = await settled(run)
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.message) == ("declined", "declined: Name?")
    with pytest.raises(NotFound):
        run.answer("1", True)


async def test_several_questions_share_one_deadline(open_hub: OpenHub) -> None:
    run = await asked_several(open_hub(Several), {"timeout_s": 0.1})
    run.answer("1", True)
    end = await settled(run)
    assert isinstance(end, ErrorEvent)
    assert end.code == "no_answer"
    assert end.data == {"limit_s": 0.1, "request": "2"}


async def test_no_question_is_asked_if_one_of_several_is_unsupported(open_hub: OpenHub) -> None:
    hub = open_hub(Several)
    events = await read(hub.call("several.mixed", question_kinds=frozenset({"form"})))
    assert events == [Result([{"form": True, "sample": False}, {"kind": "sample"}])]
    run = hub.call("several.mixed").run
    await until(lambda: run.log.last == 2)


async def test_a_question_has_the_key_that_it_was_given(open_hub: OpenHub) -> None:
    _, request = await asked(open_hub(Several), "several.keyed")
    assert request.key == "sure"


# --- asking from inside --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "levels"),
    [
        ("outer.awaits", ["asker.ask"], 1),
        ("outer.awaits", ["outer.awaits", {"target": "asker.ask"}], 2),
        ("plexus.call", ["asker.ask"], 1),
    ],
)
async def test_a_question_of_a_nested_call_goes_to_the_outermost_caller(
    name: str, params: list[Any], levels: int, open_hub: OpenHub
) -> None:
    hub = open_hub(Outer, Asker(Confirm("Sure?")))
    run, request = await asked(hub, name, params)
    assert len(hub.runs.running()) == levels + 1
    assert [each.state for each in hub.runs.running()].count("asking") == 1
    await end_of(hub, "plexus.respond", [run.id, request.request, True])
    end = await settled(run)
    assert isinstance(end, Result)
    assert "bool" in str(end.result)


async def test_a_call_inside_can_ask_what_the_outermost_caller_can_be_asked(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Outer, Asker(Sample("Why?")))
    [end] = await read(hub.call("outer.awaits", ["asker.ask"], question_kinds=frozenset()))
    assert isinstance(end, ErrorEvent)
    assert end.code == "unsupported"
    run = hub.call("outer.awaits", ["asker.ask"], question_kinds=frozenset({"sample"})).run
    await until(lambda: run.state == "asking")


async def test_leaving_a_call_that_asks_withdraws_its_question(open_hub: OpenHub) -> None:
    hub = open_hub(Outer, Asker(Confirm("Sure?")))
    run, _ = await asked(hub, "outer.catches", ["asker.ask"])
    [inner] = [each for each in hub.runs.running() if each.method == "asker.ask"]
    inner.cancel("not you")
    end = await settled(run)
    assert isinstance(end, Result)
    assert end.result[1] == "cancelled"
    assert not run.questions
