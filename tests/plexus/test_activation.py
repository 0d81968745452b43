"""Registration: errors of an author are reported with class, method and argument."""

from __future__ import annotations

import functools
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
from conftest import OpenHub
from hub_calls import end_of

from plexus import (
    Activation,
    Complete,
    Content,
    Context,
    Event,
    Plexus,
    PlexusError,
    Principal,
    method,
)
from plexus.activation import Hints, MethodMark, MethodOptions
from plexus.errors import RegistrationError
from plexus.events import Result

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

Function = Callable[..., Any]


def activation(function: Function | None = None, **attributes: Any) -> type[Activation]:
    """Return a class named Sample with one method, or with none."""
    body: dict[str, Any] = {"__doc__": "A sample.", "namespace": "sample", "version": "1.0.0"}
    if function is not None:
        body[function.__name__] = method(function)
    return type("Sample", (Activation,), body | attributes)


def refusal(cls: type[Activation]) -> str:
    with pytest.raises(RegistrationError) as caught:
        Plexus().register(cls)
    return caught.value.message


async def fine(self: Any) -> str:  # noqa: ARG001
    """Say that all is well."""
    return "fine"


# --- the class -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["namespace", "version"])
@pytest.mark.parametrize("value", [None, 5])
def test_a_class_needs_a_namespace_and_a_version(attribute: str, value: Any) -> None:
    message = refusal(activation(fine, **{attribute: value}))
    assert "Sample" in message
    assert attribute in message


@pytest.mark.parametrize("namespace", ["", "Sample", "1a", "a-b", "a.b", "a b", "ä", "_a"])
def test_a_namespace_is_lower_case_letters_digits_and_underscores(namespace: str) -> None:
    message = refusal(activation(fine, namespace=namespace))
    assert "Sample" in message
    assert repr(namespace) in message


@pytest.mark.parametrize("doc", [None, "", "  "])
def test_a_class_may_have_no_docstring(doc: str | None) -> None:
    hub = Plexus()
    hub.register(activation(fine, __doc__=doc))
    assert next(hub.nodes()).description == ""


def test_the_version_is_optional() -> None:
    hub = Plexus()
    hub.register(activation(fine, version=""))
    assert next(hub.nodes()).version == "0"


def test_a_class_needs_a_method_or_a_child() -> None:
    message = refusal(activation())
    assert "Sample" in message
    assert "no method" in message


def test_a_class_that_cannot_be_instantiated_is_refused_with_the_reason() -> None:
    def init(self: Any) -> None:  # noqa: ARG001
        raise RuntimeError("no database")

    message = refusal(activation(fine, __init__=init))
    assert "Sample" in message
    assert "no database" in message


def test_a_class_that_is_not_an_activation_is_refused() -> None:
    with pytest.raises(RegistrationError, match="int"):
        Plexus().register(int)  # type: ignore[arg-type]


def test_an_error_in_a_child_is_found_too() -> None:
    child = type("Child", (Activation,), {"namespace": "child", "version": "1", "__doc__": "A."})
    message = refusal(activation(fine, children=(child,)))
    assert "Child" in message


# --- the method ----------------------------------------------------------------------------------


def yield_without_stream() -> Function:
    async def broken(self: Any) -> Content:  # type: ignore[misc]  # noqa: ARG001
        """Yield."""
        yield Content(text="")

    return broken


def hidden_type() -> Function:
    async def broken(self: Any, amount: Decimal) -> str:  # noqa: ARG001
        """Take a type that is imported for type checking only."""
        return ""

    return broken


def misspelt_type() -> Function:
    async def broken(self: Any, amount: typing.Nope) -> str:  # type: ignore[name-defined]  # noqa: ARG001
        """Take an undefined type."""
        return ""

    return broken


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (yield_without_stream, "AsyncIterator"),
        (hidden_type, "Decimal"),
        (misspelt_type, "Nope"),
    ],
)
def test_a_method_that_is_written_wrongly_is_named_with_its_class(
    make: Callable[[], Function], word: str
) -> None:
    message = refusal(activation(make()))
    assert "Sample.broken" in message
    assert word in message


@pytest.mark.parametrize("name", ["Upper", "_private", "ümlaut"])
def test_a_method_name_begins_with_a_lower_case_letter(name: str) -> None:
    async def function(self: Any) -> str:  # noqa: ARG001
        """Answer."""
        return ""

    function.__name__ = name
    message = refusal(activation(function))
    assert f"Sample.{name}" in message


# --- the arguments -------------------------------------------------------------------------------


def starred() -> Function:
    async def broken(self: Any, *amount: int) -> str:  # noqa: ARG001
        """Take any number."""
        return ""

    return broken


def double_starred() -> Function:
    async def broken(self: Any, **amount: int) -> str:  # noqa: ARG001
        """Take any names."""
        return ""

    return broken


def positional_only() -> Function:
    async def broken(self: Any, amount: int, /) -> str:  # noqa: ARG001
        """Take it by position."""
        return ""

    return broken


def described_but_not_there() -> Function:
    async def broken(self: Any, size: int) -> str:  # noqa: ARG001
        """Take something.

        Args:
            size: How much.
            amount: Not there.
        """
        return ""

    return broken


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (starred, "schema"),
        (double_starred, "schema"),
        (positional_only, "positional-only"),
        (described_but_not_there, "not an argument"),
    ],
)
def test_an_argument_that_is_written_wrongly_is_named_with_method_and_class(
    make: Callable[[], Function], word: str
) -> None:
    message = refusal(activation(make()))
    assert "Sample.broken" in message
    assert "'amount'" in message
    assert word in message


def test_a_reserved_name_is_refused() -> None:
    async def broken(self: Any, _run: str) -> str:  # noqa: ARG001
        """Take a reserved argument."""
        return ""

    message = refusal(activation(broken))
    assert "Sample.broken" in message
    assert "'_run'" in message


class Opaque:
    """A type without a schema."""


async def test_an_argument_without_a_schema_does_not_take_the_others_down(
    open_hub: OpenHub,
) -> None:
    async def broken(self: Any, amount: Opaque) -> str:  # noqa: ARG001
        """Take an argument without a schema."""
        return ""

    hub = open_hub()
    try:
        hub.register(activation(broken))
    except RegistrationError as error:
        assert "Sample.broken" in error.message  # noqa: PT017
        assert "amount" in error.message  # noqa: PT017
    else:
        with pytest.raises(PlexusError):
            hub.call("sample.broken", {"amount": 1})
    described = hub.schema()  # the whole schema
    assert described["activations"][0]["namespace"] == "plexus"


async def test_a_result_without_a_schema_does_not_take_the_others_down(open_hub: OpenHub) -> None:
    async def broken(self: Any) -> Opaque:  # noqa: ARG001
        """Return a value without a schema."""
        return Opaque()

    hub = open_hub()
    try:
        hub.register(activation(broken))
    except RegistrationError as error:
        assert "Sample.broken" in error.message  # noqa: PT017
    assert hub.schema()["activations"][0]["namespace"] == "plexus"


class OpaqueEvent(Event):
    """An event without a schema."""

    thing: Opaque


async def test_an_event_without_a_schema_does_not_take_the_others_down(open_hub: OpenHub) -> None:
    async def broken(self: Any) -> AsyncIterator[OpaqueEvent]:  # noqa: ARG001
        """Yield an event without a schema."""
        yield OpaqueEvent(Opaque())

    hub = open_hub()
    try:
        hub.register(activation(broken))
    except RegistrationError as error:
        assert "Sample.broken" in error.message  # noqa: PT017
    assert hub.schema()["activations"][0]["namespace"] == "plexus"


async def test_a_method_that_declares_a_principal_receives_it_or_is_refused(
    open_hub: OpenHub,
) -> None:
    async def who(self: Any, principal: Principal) -> str:  # noqa: ARG001
        """Say who calls."""
        return principal.name

    hub = open_hub()
    try:
        hub.register(activation(who))
    except RegistrationError as error:
        assert "'principal'" in error.message  # noqa: PT017
    else:
        assert await end_of(hub, "sample.who") == Result("local")


# --- what is right -------------------------------------------------------------------------------


async def iterable(self: Any) -> AsyncIterable[Content]:  # noqa: ARG001
    """Stream."""
    yield Content(text="a")


async def generator(self: Any) -> AsyncGenerator[Content | Complete, None]:  # noqa: ARG001
    """Stream."""
    yield Content(text="a")


async def optional(self: Any) -> AsyncIterator[typing.Union[Content, Complete]]:  # noqa: ARG001, UP007
    """Stream."""
    yield Content(text="a")


@pytest.mark.parametrize("function", [iterable, generator, optional])
async def test_every_annotation_of_a_stream_is_recognised(
    function: Function, open_hub: OpenHub
) -> None:
    hub = open_hub(activation(function))
    assert await end_of(hub, f"sample.{function.__name__}") == Complete()


def test_marking_a_method_leaves_it_callable_as_it_was() -> None:
    async def function() -> int:
        return 1

    assert method(function) is function
    assert method(title="T", deadline_s=5)(function) is function


async def test_an_activation_is_tested_with_a_bare_async_for() -> None:
    sample = activation(iterable)()
    stream = sample.iterable()  # type: ignore[attr-defined]
    assert [event async for event in stream] == [Content(text="a")]


class Base(Activation):
    """Something to build on."""

    namespace = "base"
    version = "1.0.0"

    @method
    async def one(self) -> str:
        """Answer."""
        return "base one"

    @method
    async def two(self) -> str:
        """Answer."""
        return "base two"


class Derived(Base):
    """Something built on it."""

    namespace = "derived"

    @method
    async def one(self) -> str:
        """Answer differently."""
        return "derived one"

    async def two(self) -> str:
        """No longer for callers."""
        return "hidden"


async def test_methods_are_inherited_replaced_and_hidden(open_hub: OpenHub) -> None:
    hub = open_hub(Derived)
    assert await end_of(hub, "derived.one") == Result("derived one")
    assert [spec.name for spec in hub.methods() if "derived" in spec.name] == ["derived.one"]


async def test_an_instance_can_be_registered_as_well_as_a_class(open_hub: OpenHub) -> None:
    hub = open_hub(Base())
    assert await end_of(hub, "base.two") == Result("base two")


def noisily(function: Function) -> Function:
    @functools.wraps(function)
    async def wrapped(*arguments: Any, **named: Any) -> Any:
        return f"!{await function(*arguments, **named)}"

    return wrapped


async def test_a_decorated_method_keeps_its_signature(open_hub: OpenHub) -> None:
    hub = open_hub(activation(noisily(fine)))
    assert await end_of(hub, "sample.fine") == Result("!fine")


async def test_the_context_is_injected_by_type_and_is_not_a_parameter(open_hub: OpenHub) -> None:
    async def who(self: Any, *, anything: Context) -> str:  # noqa: ARG001
        """Say who calls."""
        return anything.principal.name

    hub = open_hub(activation(who))
    assert hub.resolve("sample.who").parameters == ()
    assert await end_of(hub, "sample.who") == Result("local")


async def test_a_health_check_returns_ok_by_default() -> None:
    assert await Base().check_health() == "ok"
    await Base().close()


# --- names that every activation has ----------------------------------------------------------

ATTRIBUTES = sorted(
    name for name in {*dir(Activation), *Activation.__annotations__} if not name.startswith("_")
)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_method_that_would_replace_an_attribute_of_activations_is_refused(name: str) -> None:
    message = refusal(activation(**{name: method(fine)}))
    if name not in ("namespace", "version"):  # which are missed first
        assert message.startswith(f"Sample.{name}: ")
        assert f'@method(name="{name}")' in message


@pytest.mark.parametrize("name", ATTRIBUTES)
async def test_a_method_may_be_published_under_the_name_of_any_attribute(
    open_hub: OpenHub, name: str
) -> None:
    hub = open_hub(activation(do=method(name=name)(fine)))
    assert await end_of(hub, f"sample.{name}") == Result("fine")


def test_the_options_of_a_method_are_all_kept_in_its_mark() -> None:
    options = set(MethodOptions.__annotations__)
    assert options - set(MethodMark._fields) == set(Hints._fields)


def test_an_unknown_option_of_a_method_is_refused() -> None:
    with pytest.raises(TypeError, match="method\\(\\) has no option 'tittle'"):
        method(tittle="Add")  # type: ignore[call-overload]
