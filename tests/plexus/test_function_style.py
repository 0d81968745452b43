"""Activations written as functions: every kind of callable, every kind of value."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hub_calls import WAIT_S, until
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from plexus import (
    Activation,
    Complete,
    Content,
    Context,
    Event,
    Image,
    Log,
    Message,
    Plexus,
    Principal,
    Progress,
    Resource,
    method,
    prompt,
)
from plexus.errors import Busy, InvalidParams, NotFound, RegistrationError
from plexus.events import Cancelled, Data, ErrorEvent, Result
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.testing import local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


class Row(BaseModel):
    """A row."""

    name: str
    price: float = 0.0


@dataclasses.dataclass
class Point:
    """A point."""

    x: int
    y: int


class Shape(TypedDict):
    """A shape."""

    sides: int


def kinds() -> Activation:
    """Return an activation with one function of every kind, all of which count to `to`."""
    count = Activation("count", description="Count in many ways.")

    @count.method
    async def generator(to: int) -> AsyncIterator[int]:
        """Count."""
        for number in range(to):
            yield number

    @count.method
    def plain_generator(to: int) -> Iterator[int]:
        """Count."""
        yield from range(to)

    @count.method
    def returned(to: int) -> Iterator[int]:
        """Count."""
        return iter(range(to))

    @count.method
    def returned_async(to: int) -> AsyncIterator[int]:
        """Count."""
        return generator(to)

    @count.method
    async def awaited(to: int) -> AsyncIterator[int]:
        """Count."""
        await asyncio.sleep(0)
        return generator(to)

    @count.method
    def unannotated(to: int):  # type: ignore[no-untyped-def]
        """Count."""
        return iter(range(to))

    @count.method
    async def unannotated_async(to: int):  # type: ignore[no-untyped-def]
        """Count."""
        return generator(to)

    @count.method
    def unannotated_generator(to):  # type: ignore[no-untyped-def]
        """Count."""
        yield from range(to)

    return count


KINDS = [function.__name__ for function in kinds().functions]


@pytest.mark.parametrize("name", KINDS)
async def test_every_kind_of_stream_yields_the_same(name: str) -> None:
    async with local(kinds()) as plexus:
        events = await plexus.events(f"count.{name}", to=300)
    assert events == [*(Data(number) for number in range(300)), Complete()]


@pytest.mark.parametrize("name", KINDS)
async def test_every_kind_of_stream_is_closed_when_it_is_cancelled(name: str) -> None:
    async with local(kinds()) as plexus, plexus.stream(f"count.{name}", to=10**9) as stream:
        assert await anext(stream) == Data(0)
        stream.run.cancel("enough")
        async with asyncio.timeout(WAIT_S):
            async for event in stream:
                last = event
        assert last == Cancelled("enough")
        await until(lambda: plexus.hub.threads.counts() == (0, 0))


def values() -> Activation:
    """Return an activation with functions that return one value."""
    give = Activation("give")

    @give.method
    async def coroutine(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    @give.method
    def plain(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    @give.method
    def unannotated(a, b=2):  # type: ignore[no-untyped-def]
        """Add."""
        return a + b

    @give.method
    async def unannotated_coroutine(a, b=2):  # type: ignore[no-untyped-def]
        """Add."""
        return a + b

    return give


@pytest.mark.parametrize("name", [function.__name__ for function in values().functions])
async def test_every_kind_of_function_returns_its_value(name: str) -> None:
    async with local(values()) as plexus:
        assert await plexus.call(f"give.{name}", a=1) == 3
        with pytest.raises(InvalidParams, match="a"):
            await plexus.call(f"give.{name}", b=1)


async def test_a_plain_function_runs_in_a_worker_thread() -> None:
    where = Activation("where")
    where.method(name="am_i")(lambda: threading.get_ident())
    async with local(where) as plexus:
        assert await plexus.call("where.am_i") != threading.get_ident()


@pytest.mark.parametrize(
    ("value", "yielded", "returned"),
    [
        ("text", Content("text"), "text"),
        (5, Data(5), 5),
        (None, Data(None), None),
        (True, Data(True), True),
        ({"a": 1}, Data({"a": 1}), {"a": 1}),
        ([1, 2], Data([1, 2]), [1, 2]),
        (Path("a/b"), Data(Path("a/b")), Path("a/b")),
        (Decimal("1.5"), Data(Decimal("1.5")), Decimal("1.5")),
        (PNG, Image.of_bytes(PNG, "image/png"), Image.of_bytes(PNG, "image/png")),
        (Log("info", "x"), Log("info", "x"), Log("info", "x")),
    ],
)
async def test_every_value_has_one_form_when_it_is_yielded_and_when_it_is_returned(
    value: Any, yielded: Event, returned: Any
) -> None:
    give = Activation("give")

    @give.method
    async def one():  # type: ignore[no-untyped-def]
        """Yield the value."""
        yield value

    @give.method
    async def whole():  # type: ignore[no-untyped-def]
        """Return the value."""
        return value

    async with local(give) as plexus:
        assert await plexus.events("give.one") == [yielded, Complete()]
        assert await plexus.events("give.whole") == [Result(returned)]


async def test_declared_types_are_in_the_schema_of_events() -> None:
    give = Activation("give")

    @give.method
    async def rows() -> AsyncIterator[Row | str]:
        """Yield rows."""
        yield Row(name="a")
        yield "text"

    @give.method
    async def points() -> AsyncIterator[Point]:
        """Yield points."""
        yield Point(1, 2)

    @give.method
    async def shapes() -> AsyncIterator[Shape]:
        """Yield shapes."""
        yield {"sides": 3}

    async with local(give) as plexus:
        described = {
            each["name"]: each for each in plexus.hub.schema()["activations"][0]["methods"]
        }
        events = described["give.rows"]["events"]
        assert [each["properties"]["type"]["const"] for each in events["oneOf"]] == [
            "content",
            "data",
        ]
        assert events["$defs"]["Row"]["properties"]["name"]["type"] == "string"
        assert (await plexus.events("give.rows"))[0] == Data(Row(name="a"))
        assert (await plexus.events("give.points"))[0] == Data(Point(1, 2))
        assert (await plexus.events("give.shapes"))[0] == Data({"sides": 3})


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (AsyncIterator[int], "text", "yielded str, but declares int"),
        (AsyncIterator[Content], 5, "yielded int, but declares Content | str"),
        (AsyncIterator[Content], Image("", "x"), "yielded Image, but declares Content | str"),
        (AsyncIterator[Literal["a"]], 5, "yielded int, but declares str"),
        (AsyncIterator[list[int]], {}, "yielded dict, but declares list"),
    ],
)
async def test_a_type_that_was_not_declared_ends_the_run_with_both_names(
    declared: Any, value: Any, message: str
) -> None:
    give = Activation("give")

    async def one():  # type: ignore[no-untyped-def]
        """Yield the value."""
        yield value

    one.__annotations__["return"] = declared
    give.method(one)
    async with local(give) as plexus:
        [error] = await plexus.events("give.one")
    assert isinstance(error, ErrorEvent)
    assert error.code == "invalid_event"
    assert message in error.message


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (AsyncIterator[Content], "text"),
        (AsyncIterator[float], 5),
        (AsyncIterator[Any], object),
        (AsyncIterator[Literal["a"]], "a"),
        (AsyncIterator[bytes], PNG),
        (AsyncIterator[Content], Progress(1)),
        (AsyncIterator[Annotated[int, Field(ge=0)]], 5),
    ],
)
async def test_what_fits_the_declaration_passes(declared: Any, value: Any) -> None:
    if value is object:
        value = {"any": "thing"}
    give = Activation("give")

    async def one():  # type: ignore[no-untyped-def]
        """Yield the value."""
        yield value

    one.__annotations__["return"] = declared
    give.method(one)
    async with local(give) as plexus:
        assert (await plexus.events("give.one"))[-1] == Complete()


# --- prompts, resources, completers ---------------------------------------------------------------


async def test_prompts_resources_and_completers_are_functions_too() -> None:
    notes = Activation("notes")

    @notes.method
    async def read(name: str) -> str:
        """Read a note."""
        return f"note {name}"

    @notes.prompt
    def review(topic: str):  # type: ignore[no-untyped-def]
        """Review a topic."""
        return f"Review {topic}."

    @notes.prompt(title="Two messages")
    async def talk(topic: str) -> list[Message]:
        """Talk."""
        return [Message("user", Content(topic))]

    @notes.resource("note://{name}")
    def note(name: str):  # type: ignore[no-untyped-def]
        """A note."""
        return f"text of {name}"

    @notes.completer("read", "name")
    async def names(value: str, given: dict[str, str]) -> list[str]:
        return [f"{value}!"] if not given else []

    async with local(notes) as plexus:
        assert await plexus.call("notes.review", topic="x") == "Review x."
        assert await plexus.call("notes.note", name="a") == "text of a"
        spec, arguments = plexus.hub.find_resource("note://b")
        assert (spec.name, arguments) == ("notes.note", {"name": "b"})
        found = await plexus.call(
            "plexus.complete", method="notes.read", argument="name", value="a"
        )
        assert found["values"] == ["a!"]
        assert review("y") == "Review y."  # a decorated function is still a function


# --- context -------------------------------------------------------------------------------------


def reporting() -> Activation:
    """Return an activation whose functions report progress in every way."""
    report = Activation("report")

    @report.method
    async def coroutine(ctx: Context) -> str:
        """Report."""
        await ctx.info("begins")
        await ctx.progress(1, 2, "half")
        return "done"

    @report.method
    def plain(ctx: Context) -> str:
        """Report."""
        ctx.info("begins")
        ctx.progress(1, 2, "half")
        return "done"

    @report.method
    def by_name(ctx):  # type: ignore[no-untyped-def]
        """Report."""
        ctx.info("begins")
        ctx.progress(1, 2, "half")
        return "done"

    @report.method
    def annotated(context: Annotated[Context | None, "the call"] = None) -> str:
        """Report."""
        assert context is not None
        context.info("begins")
        context.progress(1, 2, "half")
        return "done"

    return report


@pytest.mark.parametrize("name", [function.__name__ for function in reporting().functions])
async def test_the_context_reports_from_every_kind_of_function(name: str) -> None:
    async with local(reporting()) as plexus:
        assert await plexus.events(f"report.{name}") == [
            Log("info", "begins"),
            Progress(1, 2, "half"),
            Result("done"),
        ]


async def test_reports_of_a_plain_generator_keep_their_order_among_its_values() -> None:
    steps = Activation("steps")

    @steps.method
    def run(ctx: Context) -> Iterator[int]:
        """Report between values."""
        for number in range(100):
            ctx.progress(number)
            yield number

    async with local(steps) as plexus:
        events = await plexus.events("steps.run")
    expected = [each for number in range(100) for each in (Progress(number), Data(number))]
    assert events == [*expected, Complete()]


async def test_a_cancelled_plain_function_stops_at_its_next_report() -> None:
    stopped = threading.Event()
    work = Activation("work")

    @work.method
    def endless(ctx: Context) -> None:
        """Report for ever."""
        try:
            while True:
                ctx.info("working")
                time.sleep(0.001)
        finally:
            stopped.set()

    async with local(work) as plexus, plexus.stream("work.endless") as stream:
        await anext(stream)
        stream.run.cancel("enough")
        await until(lambda: stream.run.terminal is not None)
        assert stream.run.terminal == Cancelled("enough")
        assert stopped.is_set()


async def test_a_deadline_frees_the_caller_of_a_blocked_function_and_its_thread_is_counted() -> (
    None
):
    release = threading.Event()
    work = Activation("work")

    @work.method(deadline_s=0.1)
    def block() -> None:
        """Block."""
        release.wait()

    limits = Limits(cancel_s=0.2, worker_threads=1)
    async with local(work, limits=limits) as plexus:
        [end] = await plexus.events("work.block")
        assert "abandoned" in end.as_text()
        assert plexus.hub.threads.counts() == (1, 1)
        with pytest.raises(Busy, match="all 1 worker threads are busy, 1 of them"):
            await plexus.call("work.block")
        release.set()
        await until(lambda: plexus.hub.threads.counts() == (0, 0))


async def test_an_event_of_a_thread_that_cannot_be_sent_fails_the_run() -> None:
    work = Activation("work")

    @work.method
    def shout(ctx: Context) -> None:
        """Send too much."""
        ctx.info("x" * 2_000_000)
        time.sleep(0.1)

    async with local(work) as plexus:
        [end] = await plexus.events("work.shout")
    assert isinstance(end, ErrorEvent)
    assert end.code == "too_big"


# --- registration --------------------------------------------------------------------------------


def test_a_missing_docstring_is_a_warning_that_names_the_methods(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bare = Activation("bare", description="Nothing.")

    @bare.method
    async def one() -> int:
        return 1

    @bare.method
    async def two() -> int:
        """Documented."""
        return 2

    Plexus().register(bare)
    assert "no docstring: bare.one; models choose tools by their description" in caplog.text


def test_the_version_is_that_of_the_distribution_or_zero() -> None:
    hub = Plexus()
    hub.register(kinds())
    assert next(hub.nodes()).version == "0"
    of_package = Activation("of_package")
    of_package.method(name="one")(lambda: 1)
    of_package.module = "pydantic.fields"
    hub.register(of_package)
    import pydantic

    assert {node.path: node.version for node in hub.nodes()}["of_package"] == pydantic.__version__


def test_the_docstring_of_the_module_describes_the_activation() -> None:
    hub = Plexus()
    plain = Activation("plain")
    plain.method(name="one")(lambda: 1)
    hub.register(plain)
    assert next(hub.nodes()).description == (
        "Activations written as functions: every kind of callable, every kind of value."
    )


class Classy(Activation):
    """A class."""

    namespace = "classy"


def _two_of_one_name() -> Activation:
    twice = Activation("twice")
    twice.method(name="one")(lambda: 1)
    twice.method(name="one")(lambda: 2)
    return twice


def _empty() -> Activation:
    return Activation("empty")


def _bad_namespace() -> Activation:
    bad = Activation("Bad Name")
    bad.method(name="one")(lambda: 1)
    return bad


def _bad_method() -> Activation:
    bad = Activation("bad")
    bad.method(name="One Two")(lambda: 1)
    return bad


def _kwargs() -> Activation:
    bad = Activation("bad")

    @bad.method
    async def one(**options: int) -> int:
        """Take anything."""
        return len(options)

    return bad


def _generator_of_nothing() -> Activation:
    bad = Activation("bad")

    @bad.method
    def one() -> int:  # type: ignore[misc]
        """Yield, but declare a value."""
        yield 1

    return bad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_two_of_one_name, "twice.<lambda>: another method is already named twice.one"),
        (_empty, "Activation('empty'): has no method; mark one with @empty.method"),
        (_bad_namespace, "namespace 'Bad Name' must be lower case letters"),
        (_bad_method, "a method name must be letters, digits and underscores"),
        (_kwargs, "bad.one: argument 'options': *args and **kwargs have no schema; name every"),
        (_generator_of_nothing, "bad.one: yields, so annotate it with AsyncIterator[...]"),
    ],
)
def test_what_is_wrong_is_named_with_the_cure(make: Any, message: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        Plexus().register(make())
    assert message in caught.value.message


def test_decorators_of_an_object_are_not_for_classes() -> None:
    with pytest.raises(RegistrationError, match="a class marks its methods with @method"):
        Classy().method(lambda: 1)


def test_an_activation_of_the_same_name_replaces_the_one_before() -> None:
    hub = Plexus()
    hub.register(kinds())
    other = Activation("count")
    other.method(name="other")(lambda: 1)
    hub.register(other)
    assert [spec.name for spec in hub.methods()] == ["count.other"]


# --- aliases -------------------------------------------------------------------------------------


async def test_a_method_can_be_called_by_its_alias() -> None:
    tasks = Activation("tasks")

    @tasks.method(alias="create_task")
    async def create(description: str) -> str:
        """Create a task."""
        return description

    @tasks.method(name="openDiff")
    async def open_diff() -> str:
        """Open a diff, under the name that a protocol asks for."""
        return "opened"

    async with local(tasks) as plexus:
        assert await plexus.call("create_task", description="x") == "x"
        assert await plexus.call("tasks.create", description="x") == "x"
        assert await plexus.call("tasks.openDiff") == "opened"
        plexus.hub.unregister("tasks")
        assert plexus.hub.find_method("create_task") is None


def _alias_twice() -> list[Activation]:
    first, second = Activation("first"), Activation("second")
    first.method(name="one", alias="same")(lambda: 1)
    second.method(name="two", alias="same")(lambda: 2)
    return [first, second]


def _alias_of_a_name() -> list[Activation]:
    first, second = Activation("first"), Activation("second")
    first.method(name="one")(lambda: 1)
    second.method(name="two", alias="first_one")(lambda: 2)
    return [first, second]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_alias_twice, "second.two: the alias 'same' is taken by first.one; choose another"),
        (_alias_of_a_name, "second.two: the alias 'first_one' is taken by first.one"),
    ],
)
def test_an_alias_that_is_taken_is_refused_and_changes_nothing(make: Any, message: str) -> None:
    hub = Plexus()
    first, second = make()
    hub.register(first)
    with pytest.raises(RegistrationError) as caught:
        hub.register(second)
    assert message in caught.value.message
    assert [spec.name for spec in hub.methods()] == ["first.one"]


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (
            method(alias="two words"),
            "the alias 'two words' must be letters, digits and underscores",
        ),
        (
            method(alias="two-words"),
            "the alias 'two-words' must be letters, digits and underscores",
        ),
        (prompt(alias="two words"), "'two words' must be letters, digits, dashes and underscores"),
        (prompt(alias="two-words", template="bad.{name}"), "remove alias='two-words'"),
    ],
)
def test_an_alias_is_a_name(mark: Any, message: str) -> None:
    async def one(name: str) -> str:
        return name

    bad = Activation("bad")
    bad.functions = [mark(one)]
    with pytest.raises(RegistrationError, match=message):
        Plexus().register(bad)


async def test_a_prompt_is_rendered_by_its_alias_and_listed_once() -> None:
    notes = Activation("notes")

    @notes.prompt(alias="improve-note")
    async def improve(text: str) -> str:
        """Improve a note."""
        return f"Improve: {text}"

    hub = Plexus()
    hub.register(notes)
    assert hub.find_prompt("improve-note") == hub.find_prompt("notes.improve")
    listed = await hub.list_prompts(LOCAL, None, 10)
    assert [each.name for each in listed] == ["notes.improve"]
    hub.unregister("notes")
    with pytest.raises(NotFound):
        hub.find_prompt("improve-note")


# --- parameters ----------------------------------------------------------------------------------


async def test_constraints_are_in_the_schema_and_enforced() -> None:
    check = Activation("check")

    @check.method
    async def number(
        n: Annotated[int, Field(ge=1, le=10, description="How many.")],
        rows: list[Row],
        *,
        name: Annotated[str, Field(max_length=3, pattern="^[a-z]+$")] = "abc",
    ) -> int:
        """Check."""
        return n + len(rows) + len(name)

    async with local(check) as plexus:
        assert await plexus.call("check.number", n=1, rows=[{"name": "a"}]) == 5
        for wrong in (
            {"n": 0, "rows": []},
            {"n": 1, "rows": [{}]},
            {"n": 1, "rows": [], "name": "A"},
        ):
            with pytest.raises(InvalidParams):
                await plexus.call("check.number", **wrong)
        [spec] = [each for each in plexus.hub.methods() if each.name == "check.number"]
        described = plexus.hub.schema()["activations"][0]["methods"][0]["params"]["properties"]
        assert described["n"] == {
            "type": "integer",
            "minimum": 1,
            "maximum": 10,
            "description": "How many.",
        }
        assert described["name"]["pattern"] == "^[a-z]+$"
        assert spec.names == ("n", "rows", "name")


class Stateful(Activation):
    """Class style and function style side by side."""

    namespace = "stateful"

    @method
    def plain(self, n: int) -> int:
        """Add one, in a thread."""
        return n + 1

    @method
    def many(self, n: int) -> Iterator[str]:
        """Count, in a thread."""
        for number in range(n):
            yield f"{number} "


async def test_methods_of_a_class_may_be_of_every_kind_too() -> None:
    async with local(Stateful) as plexus:
        assert await plexus.call("stateful.plain", n=1) == 2
        assert await plexus.events("stateful.many", n=2) == [
            Content("0 "),
            Content("1 "),
            Complete(),
        ]


async def test_the_principal_reaches_a_plain_function() -> None:
    who = Activation("who")

    @who.method
    def am_i(principal: Principal) -> str:
        """Say."""
        return principal.name

    @who.method
    def read() -> Resource:
        """Return a resource."""
        return Resource("note://a", content="text")

    async with local(who) as plexus:
        assert await plexus.call("who.am_i") == "local"
        assert isinstance(await plexus.call("who.read"), Resource)
