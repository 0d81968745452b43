"""Prompts, resources and completers: their requirements at registration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

import pytest
from conftest import OpenHub
from hub_calls import call, end_of

from plexus import (
    Activation,
    Content,
    Context,
    Message,
    Plexus,
    Principal,
    Resource,
    completer,
    method,
    prompt,
    resource,
)
from plexus.activation import Hints
from plexus.errors import RegistrationError
from plexus.events import Result

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

Function = Callable[..., Any]


def activation(**members: Any) -> type[Activation]:
    body: dict[str, Any] = {"__doc__": "A sample.", "namespace": "sample", "version": "1.0.0"}
    return type("Sample", (Activation,), body | members)


def refusal(**members: Any) -> str:
    with pytest.raises(RegistrationError) as caught:
        Plexus().register(activation(**members))
    return caught.value.message


class Writer(Activation):
    """Writes prompts and keeps notes."""

    namespace = "writer"
    version = "1.0.0"

    @prompt
    async def greet(self, name: str, tone: Literal["warm", "cold"] | None = None) -> str:
        """Greet a person."""
        return f"Greet {name}, {tone}."

    @prompt(title="A talk")
    async def talk(self, about: Annotated[str, "what"]) -> list[Message]:
        """Talk about something."""
        return [Message("user", Content(about)), Message("assistant", Content("Go on."))]

    @prompt
    async def stream(self) -> AsyncIterator[Message]:
        """Make a prompt bit by bit."""
        yield Message("user", Content("one"))
        yield Message("user", Content("two"))

    @resource("notes://today", title="Today", mime_type="text/markdown")
    async def today(self) -> str:
        """What there is to do today."""
        return "Nothing."

    @resource("notes://{year}/{month}{?style}", name="month")
    async def month(
        self, year: int, month: str, style: Literal["text", "html"] = "text"
    ) -> Resource:
        """What there was to do in a month."""
        return Resource(f"notes://{year}/{month}", content=style)

    @resource("notes://all")
    async def every(self, *, ctx: Context) -> list[Resource]:
        """Everything there ever was."""
        return [Resource("notes://a", content=ctx.principal.name)]

    @resource("notes://live")
    async def live(self) -> AsyncIterator[Resource]:
        """Everything, bit by bit."""
        yield Resource.of_bytes("notes://x", b"\x00\xff")

    @method(
        read_only=False,
        destructive=True,
        idempotent=True,
        open_world=False,
        background="required",
        listed=False,
        name="burn",
        schema={"type": "object", "properties": {"note": {"type": "string"}}},
    )
    async def burn_it(self, note: str) -> None:
        """Burn a note."""


async def test_a_method_has_a_role(open_hub: OpenHub) -> None:
    hub = open_hub(Writer)
    roles = {spec.name: spec.role for spec in hub.methods() if spec.name.startswith("writer")}
    assert roles == {
        "writer.burn": "method",
        "writer.every": "resource",
        "writer.greet": "prompt",
        "writer.live": "resource",
        "writer.month": "resource",
        "writer.stream": "prompt",
        "writer.talk": "prompt",
        "writer.today": "resource",
    }


async def test_a_method_has_hints(open_hub: OpenHub) -> None:
    hub = open_hub(Writer)
    burn = hub.resolve("writer.burn")
    assert burn.hints == Hints(False, True, True, False)
    assert (burn.background, burn.listed) == ("required", False)
    assert burn.given_schema == {"type": "object", "properties": {"note": {"type": "string"}}}
    today = hub.resolve("writer.today")
    assert today.resource is not None
    assert today.resource._asdict() == {
        "uri": "notes://today",
        "name": "today",
        "title": "Today",
        "mime_type": "text/markdown",
    }
    assert today.hints == Hints(read_only=True)
    greet = hub.resolve("writer.greet")
    assert (greet.hints, greet.background, greet.listed) == (Hints(), "optional", True)


async def test_prompts_and_resources_are_called_like_any_method(open_hub: OpenHub) -> None:
    hub = open_hub(Writer)
    assert await end_of(hub, "writer.greet", ["Ada", "warm"]) == Result("Greet Ada, warm.")
    assert await end_of(hub, "writer.today") == Result("Nothing.")
    events = await call(hub, "writer.stream")
    assert [event.as_text() for event in events[:-1]] == ["one", "two"]
    end = await end_of(hub, "writer.month", {"year": 2024, "month": "May"})
    assert end == Result(Resource("notes://2024/May", content="text"))


def test_marking_leaves_a_function_callable_as_it_was() -> None:
    async def function() -> str:
        return ""

    assert prompt(function) is function
    assert prompt(title="T")(function) is function
    assert resource("a://b")(function) is function
    assert completer("a", "b")(function) is function


# --- prompts that are none -----------------------------------------------------------------------


def takes(hint: Any) -> Function:
    async def broken(self: Any, amount: Any) -> str:  # noqa: ARG001
        """Take something."""
        return ""

    broken.__annotations__["amount"] = hint
    return broken


def gives(hint: Any) -> Function:
    async def broken(self: Any) -> Any:
        """Return something."""

    broken.__annotations__["return"] = hint
    return broken


async def yields_content(self: Any) -> AsyncIterator[Content | Message]:  # noqa: ARG001
    """Yield something else."""
    yield Content("x")


@pytest.mark.parametrize("hint", [int, bool, list[str], str | int, Literal[1, "a"], Any])
def test_an_argument_of_a_prompt_is_text(hint: Any) -> None:
    message = refusal(broken=prompt(takes(hint)))
    assert "Sample.broken" in message
    assert "'amount'" in message
    assert "must be str" in message


@pytest.mark.parametrize("hint", [int, None, Message, list[str], list[Content], dict[str, str]])
def test_a_prompt_returns_text_or_messages(hint: Any) -> None:
    message = refusal(broken=prompt(gives(hint)))
    assert "Sample.broken" in message
    assert "list[Message]" in message


def test_a_prompt_yields_messages() -> None:
    assert "Message" in refusal(broken=prompt(yields_content))


# --- resources that are none ---------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["nothing", "a://{amount", "a://{amount}{amount}"])
def test_the_address_of_a_resource_is_understood(uri: str) -> None:
    message = refusal(broken=resource(uri)(takes(str)))
    assert "Sample.broken" in message
    assert repr(uri) in message


@pytest.mark.parametrize("uri", ["a://b", "a://{other}"])
def test_the_arguments_of_a_resource_are_in_its_address(uri: str) -> None:
    message = refusal(broken=resource(uri)(takes(str)))
    assert "Sample.broken" in message
    assert "'amount'" in message


def test_every_variable_of_a_uri_is_an_argument() -> None:
    message = refusal(broken=resource("a://{amount}/{size}")(takes(str)))
    assert "Sample.broken" in message
    assert "'size'" in message


def test_an_optional_variable_of_a_uri_has_a_default() -> None:
    message = refusal(broken=resource("a://b{?amount}")(takes(str)))
    assert "Sample.broken" in message
    assert "'amount'" in message
    assert "default" in message


@pytest.mark.parametrize("hint", [float, bool, list[str], str | int, Any])
def test_a_part_of_an_address_is_text_or_a_whole_number(hint: Any) -> None:
    message = refusal(broken=resource("a://{amount}")(takes(hint)))
    assert "Sample.broken" in message
    assert "'amount'" in message


@pytest.mark.parametrize("hint", [int, None, bytes, Content, list[str], dict[str, str]])
def test_a_resource_returns_text_or_resources(hint: Any) -> None:
    message = refusal(broken=resource("a://b")(gives(hint)))
    assert "Sample.broken" in message
    assert "list[Resource]" in message


def test_a_resource_yields_resources() -> None:
    assert "yield Resource" in refusal(broken=resource("a://b")(yields_content))


def named(name: str) -> Function:
    async def function(self: Any) -> str:  # noqa: ARG001
        """Return something."""
        return ""

    function.__name__ = name
    return function


def test_two_resources_of_one_class_have_two_addresses() -> None:
    here, there = resource("a://b")(named("here")), resource("a://b")(named("there"))
    message = refusal(here=here, there=there)
    assert "Sample" in message
    assert "sample.here" in message
    assert "sample.there" in message


def test_addresses_that_differ_only_in_the_names_of_variables_are_the_same() -> None:
    async def other(self: Any, size: str) -> str:  # noqa: ARG001
        """Return something."""
        return ""

    one, two = resource("a://{amount}")(takes(str)), resource("a://{size}")(other)
    assert "sample.two" in refusal(one=one, two=two)


async def test_two_classes_cannot_read_the_same_address(open_hub: OpenHub) -> None:
    hub = open_hub(Writer)
    other = activation(today=resource("notes://today")(named("today")))
    with pytest.raises(RegistrationError, match=r"writer\.today"):
        hub.register(other)
    assert hub.find_resource("notes://today")[0].name == "writer.today"
    hub.register(Writer)  # which takes its own place


# --- methods -------------------------------------------------------------------------------------


def test_two_methods_cannot_have_one_name() -> None:
    message = refusal(one=method(named("one")), two=method(name="one")(named("two")))
    assert "Sample.two" in message
    assert "sample.one" in message


def test_a_given_name_is_a_name_too() -> None:
    assert "Sample.one" in refusal(one=method(name="Upper")(named("one")))


@pytest.mark.parametrize("hook", ["resources", "prompts"])
def test_a_list_hook_cannot_be_replaced_by_a_method(hook: str) -> None:
    message = refusal(**{hook: method(named(hook))})
    assert f"Sample.{hook}" in message
    assert f'name="{hook}"' in message


@pytest.mark.parametrize("schema", [[], {}, {"type": "string"}])
def test_a_given_schema_is_that_of_an_object(schema: Any) -> None:
    assert "Sample.one" in refusal(one=method(schema=schema)(named("one")))


# --- completers ----------------------------------------------------------------------------------


async def suggest(self: Any, value: str, given: dict[str, str]) -> list[str]:  # noqa: ARG001
    """Suggest the text typed so far."""
    return [value]


async def for_somebody(self: Any, so_far: str, rest: dict[str, str], who: Principal) -> list[str]:  # noqa: ARG001
    """Suggest who asks."""
    return [who.name]


@pytest.mark.parametrize(
    ("target", "argument"), [("nothing", "amount"), ("greet", "nothing"), ("greet", "ctx")]
)
def test_a_completer_needs_an_existing_argument(target: str, argument: str) -> None:
    async def greet(self: Any, amount: str, ctx: Context) -> str:  # noqa: ARG001
        """Greet."""
        return ""

    message = refusal(greet=prompt(greet), suggest=completer(target, argument)(suggest_again()))
    assert "Sample.suggest" in message
    assert repr("nothing" if "nothing" in (target, argument) else "ctx") in message


def suggest_again() -> Function:
    async def again(self: Any, value: str, given: dict[str, str]) -> list[str]:
        """Suggest the text typed so far."""
        return await suggest(self, value, given)

    return again


def not_async(self: Any, value: str, given: dict[str, str]) -> list[str]:  # noqa: ARG001
    """Block."""
    return []


async def takes_too_little(self: Any, value: str) -> list[str]:  # noqa: ARG001
    """Suggest."""
    return []


async def takes_the_unknown(self: Any, value: str, given: Nope) -> list[str]:  # type: ignore[name-defined]  # noqa: ARG001, F821
    """Suggest."""
    return []


@pytest.mark.parametrize(
    ("function", "word"),
    [(not_async, "async def"), (takes_too_little, "takes"), (takes_the_unknown, "'Nope'")],
)
def test_a_completer_that_is_written_wrongly_is_named(function: Function, word: str) -> None:
    marked = completer("broken", "amount")(function)
    message = refusal(broken=method(takes(str)), suggest=marked)
    assert "Sample.suggest" in message
    assert word in message


def test_an_argument_has_one_completer() -> None:
    one = completer("broken", "amount")(suggest_again())
    two = completer("broken", "amount")(suggest_again())
    message = refusal(broken=method(takes(str)), one=one, two=two)
    assert "Sample.two" in message
    assert "'amount'" in message


async def test_one_function_may_complete_several_arguments(open_hub: OpenHub) -> None:
    both = completer("broken", "amount")(completer("other", "amount")(suggest_again()))
    broken, other = prompt(takes(str)), resource("a://{amount}")(takes(str))
    hub = open_hub(activation(broken=broken, other=other, both=both))
    assert hub.resolve("sample.broken").completers.keys() == {"amount"}
    assert hub.resolve("sample.other").completers.keys() == {"amount"}


async def test_a_completer_may_receive_the_principal(open_hub: OpenHub) -> None:
    marked = completer("broken", "amount")(for_somebody)
    hub = open_hub(activation(broken=prompt(takes(str)), suggest=marked))
    suggester = hub.resolve("sample.broken").completers["amount"]
    assert await suggester.suggest("a", {}, Principal("Ada")) == ["Ada"]
