"""Errors that describing or calling a method would raise are found at registration."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, GetCoreSchemaHandler, PlainSerializer

from plexus import Activation, Content, Event, Message, Plexus, ToolUse, method
from plexus.errors import RegistrationError
from plexus.rpc import wire

TooLarge: Any = Literal.__getitem__(2**64)
EXTRA: Any = {"lock": threading}
CURE = "use types that pydantic supports"


class Strange:
    """Something that has no schema."""


class Explosive:
    """Raises while it is described."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> Any:
        raise RuntimeError("no schema of mine")


class Holder(BaseModel):
    """Has a JSON schema in no mode."""

    call: Callable[[], int]


class Odd(Event):
    """An event with a field that has no schema."""

    thing: Strange


class Lost(Event):
    """An event with a type that is not there."""

    thing: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Fine(Event):
    """An event of types that are not plain."""

    things: list[Holding]


@dataclasses.dataclass
class Holding:
    """Something that has a schema."""

    name: str


Function = Callable[..., Any]


def sample(function: Function, **marks: Any) -> type[Activation]:
    function.__name__ = "act"
    members = {"__doc__": "A sample.", "namespace": "sample", "version": "1.0.0"}
    return type("Sample", (Activation,), members | {"act": method(**marks)(function)})


def refusal(activation: type[Activation]) -> str:
    hub = Plexus()
    with pytest.raises(RegistrationError) as refused:
        hub.register(activation)
    assert hub.methods() == []
    return refused.value.message


async def strange(self: Any, thing: Strange) -> str:  # noqa: ARG001
    """Take it."""
    return ""


async def explosive(self: Any, thing: list[Explosive]) -> str:  # noqa: ARG001
    """Take it."""
    return ""


async def callable_argument(self: Any, thing: Callable[[], int]) -> str:  # noqa: ARG001
    """Take it."""
    return ""


async def nan_default(self: Any, thing: float = float("nan")) -> str:  # noqa: ARG001
    """Take it."""
    return ""


async def nested_nan(self: Any, thing: list[float] = [1.0, float("inf")]) -> str:  # noqa: ARG001, B006
    """Take it."""
    return ""


async def formless_default(self: Any, thing: Any = object()) -> str:  # noqa: ARG001, B008
    """Take it."""
    return ""


async def dots(self: Any, thing: int = ...) -> str:  # type: ignore[assignment]  # noqa: ARG001
    """Take it."""
    return ""


async def large_default(self: Any, thing: int = 2**64) -> str:  # noqa: ARG001
    """Take it."""
    return ""


async def large_literal(self: Any, thing: TooLarge) -> str:  # noqa: ARG001
    """Take it."""
    return ""


async def odd_extra(
    self: Any,  # noqa: ARG001
    thing: Annotated[int, Field(json_schema_extra=EXTRA)],  # noqa: ARG001
) -> str:
    """Take it."""
    return ""


async def surrogate(self: Any, thing: str = "\ud800") -> str:  # noqa: ARG001
    """Take it."""
    return ""


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (strange, CURE),
        (explosive, "no schema of mine"),
        (callable_argument, CURE),
        (nan_default, "its default is nan; JSON cannot represent it"),
        (nested_nan, "its default[1] is inf; JSON cannot represent it"),
        (formless_default, "its default is of the type object"),
        (dots, "its default is of the type ellipsis"),
        (large_default, "is an integer of 65 bits"),
        (large_literal, "is an integer of 65 bits"),
        (odd_extra, "<class 'module'>"),
        (surrogate, "surrogate"),
    ],
)
def test_an_argument_that_could_not_be_shown_is_refused_by_its_name(
    function: Function, fault: str
) -> None:
    message = refusal(sample(function))
    assert message.startswith("Sample.act: argument 'thing'")
    assert fault in message


async def strange_result(self: Any) -> Strange:
    """Give it."""
    raise NotImplementedError


async def holder_result(self: Any) -> list[Holder]:
    """Give it."""
    raise NotImplementedError


async def typeless_result(
    self: Any,
) -> Annotated[int, PlainSerializer(lambda value: value, return_type=Strange)]:
    """Give it."""
    raise NotImplementedError


async def odd_event(self: Any) -> AsyncIterator[Content | Odd]:  # noqa: ARG001
    """Yield it."""
    yield Content("")


async def lost_event(self: Any) -> AsyncIterator[Lost]:  # noqa: ARG001
    """Yield it."""
    yield Lost(1)


@pytest.mark.parametrize(
    ("function", "subject"),
    [
        (strange_result, "its result has no schema"),
        (holder_result, "its result has no schema"),
        (typeless_result, "its result has no schema"),
        (odd_event, "the event Odd: field 'thing' has no schema"),
        (lost_event, "the event Lost: the type 'Nowhere' cannot be found; import it"),
    ],
)
def test_a_result_or_event_that_could_not_be_shown_is_refused_by_its_name(
    function: Function, subject: str
) -> None:
    message = refusal(sample(function))
    assert message.startswith("Sample.act: ")
    assert subject in message


async def act(self: Any, word: str = "") -> str:  # noqa: ARG001
    """Do it."""
    return ""


@pytest.mark.parametrize(
    ("marks", "fault"),
    [
        ({"schema": {"type": "object", "lock": threading}}, "the given schema.lock"),
        ({"schema": {"type": "object", "default": float("nan")}}, "given schema.default is nan"),
        ({"schema": {"type": "object", "properties": ["word"]}}, '"properties"'),
        ({"schema": {"type": "object", "properties": {"word": True}}}, '"properties"'),
        ({"title": 5}, "5 must be a str"),
        ({"title": "\ud800"}, "its title and docstring"),
        ({"read_only": object()}, "its hints"),
    ],
)
def test_a_mark_that_could_not_be_shown_is_refused(marks: dict[str, Any], fault: str) -> None:
    message = refusal(sample(act, **marks))
    assert message.startswith("Sample.act: ")
    assert fault in message


def test_a_docstring_that_could_not_be_sent_is_refused() -> None:
    activation = sample(act)
    activation.__doc__ = "Half \udc00."
    message = refusal(activation)
    assert message.startswith("Sample: its version and docstring")


def test_a_child_is_checked_with_its_parent() -> None:
    child = sample(strange)
    members = {"namespace": "parent", "version": "1", "children": [child], "__doc__": "A parent."}
    assert "argument 'thing'" in refusal(type("Parent", (Activation,), members))


async def many(
    self: Any,  # noqa: ARG001
    things: list[Holding],
    by: dict[int, str],  # noqa: ARG001
) -> AsyncIterator[Fine | Message | ToolUse]:
    """Yield a valid event."""
    yield Fine(things)


def test_what_passes_can_be_described_and_encoded() -> None:
    hub = Plexus()
    hub.register(sample(many))
    wire.encode_canonical(hub.schema())
