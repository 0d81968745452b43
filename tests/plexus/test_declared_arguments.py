"""Arguments and hints are read from a function as `inspect` and `typing` read them, only faster."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Generic, TypeVar

import pytest
from annotated_types import Ge

from plexus import Content, Context
from plexus.registry.declared_arguments import arguments_of, hints_of

T = TypeVar("T")


class Box(Generic[T]):
    def method(self, one: int, two: Box[str] | None = None, *, three: str = "3") -> T: ...  # type: ignore[empty-body]

    @classmethod
    def of_class(cls, one: T) -> Box[T]: ...  # type: ignore[empty-body]

    @staticmethod
    def static(one: int = 1) -> None: ...


def nothing() -> None: ...
def plain(one: int, two: str = "2", /, three: float = 3.0) -> bool: ...  # type: ignore[empty-body]
def named(*, one: int, two: Any = None) -> list[int]: ...  # type: ignore[empty-body]
def several(one: int, *rest: str, two: int = 2, **others: float) -> Content: ...  # type: ignore[empty-body]
def rich(one: Annotated[int, Ge(1)], two: dict[str, int] | None, three: Any) -> Any: ...
async def stream(ctx: Context, to: int = 3) -> AsyncIterator[Content]:
    yield Content(text=f"{ctx.run_id} {to}")


def bare(one, two=2): ...  # type: ignore[no-untyped-def]
def evaluated(one, two): ...  # type: ignore[no-untyped-def]


evaluated.__annotations__ = {"one": int, "two": "str | None", "return": None}


@functools.wraps(named)
def wrapper(*args: Any, **kwargs: Any) -> Any: ...


def signed(*args: Any) -> Any: ...


signed.__signature__ = inspect.signature(named)  # type: ignore[attr-defined]

FUNCTIONS = (
    nothing,
    plain,
    named,
    several,
    rich,
    stream,
    bare,
    evaluated,
    wrapper,
    signed,
    Box.method,
    Box[int]().method,
    Box.of_class,
    Box.static,
    functools.partial(named, one=1),
    functools.partial(plain, 1),
    Box,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_are_those_of_the_signature(function: Callable[..., Any]) -> None:
    expected = inspect.signature(function).parameters.values()
    assert arguments_of(function) == [(each.name, each.kind, each.default) for each in expected]


@pytest.mark.parametrize("function", [each for each in FUNCTIONS if inspect.isfunction(each)])
def test_hints_are_those_of_typing_with_extras(function: Callable[..., Any]) -> None:
    assert hints_of(function) == typing.get_type_hints(function, include_extras=True)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [("Missing", NameError), ("1 +", SyntaxError), ("Generic", TypeError)],
)
def test_what_is_no_hint_raises_what_typing_raises(hint: Any, expected: type[Exception]) -> None:
    def function(one: int) -> None: ...

    function.__annotations__["one"] = hint
    for read in (hints_of, functools.partial(typing.get_type_hints, include_extras=True)):
        with pytest.raises(expected):
            read(function)


def test_a_name_of_the_module_comes_before_a_builtin() -> None:
    scope: dict[str, Any] = {}
    exec("class int: pass\ndef function(one: 'int') -> 'str': ...", scope)
    assert hints_of(scope["function"]) == {"one": scope["int"], "return": str}
