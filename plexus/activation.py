"""What an author writes: a class with methods marked `@method`.

Marking only leaves a note on the function; reading it is the registry's work. An activation
knows no transport, no view and no JSON, and can be tested with a bare `async for`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, overload

__all__ = ("Activation", "Deadline", "MethodMark", "method")

F = TypeVar("F", bound=Callable[..., Any])
#: Seconds, the server's limit, or no limit at all.
Deadline: TypeAlias = float | Literal["default"] | None


class Activation:
    """A plugin: a namespace full of methods. The docstring is its description."""

    #: The first part of every method's name: lower case letters, digits and underscores.
    namespace: ClassVar[str]
    #: The activation's own version, as in "1.0.0".
    version: ClassVar[str]
    #: Activations that live inside this one: `solar.earth.info` is `info` of a child `earth`.
    children: Sequence[Activation | type[Activation]] = ()

    async def probe(self) -> str:
        """Say in a few words how this activation is; raise if it is not well."""
        return "ok"

    async def close(self) -> None:
        """Give back what is held. Called once, when the server ends or the plugin is replaced."""


class MethodMark(NamedTuple):
    """The note that `@method` leaves on a function."""

    title: str | None
    deadline_s: Deadline
    follows: bool


MARK = "__plexus_method__"


@overload
def method(function: F, /) -> F: ...
@overload
def method(
    *,
    title: str | None = None,
    deadline_s: Deadline = "default",
    follows: bool = False,
) -> Callable[[F], F]: ...
def method(
    function: F | None = None,
    /,
    *,
    title: str | None = None,
    deadline_s: Deadline = "default",
    follows: bool = False,
) -> F | Callable[[F], F]:
    """Mark an async generator, or a coroutine that returns a value, as callable from outside.

    `title` is a short name for people. `deadline_s` replaces the server's limit on how long a
    run of this method may take; None means that it goes on until somebody stops it. `follows` is
    for methods that lead to a run which exists already, as `plexus.attach` does.
    """

    def mark(target: F) -> F:
        setattr(target, MARK, MethodMark(title, deadline_s, follows))
        return target

    return mark if function is None else mark(function)
