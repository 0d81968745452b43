"""Dependencies of a method: values that functions of the author provide for each call.

    async def database() -> AsyncIterator[Connection]:
        async with connect() as connection:
            yield connection

    @notes.method
    async def count(db: Annotated[Connection, Depends(database)]) -> int: ...

A provider is a function of any kind. A generator provides what it yields, and is resumed when the
run has ended, however it ended. A provider may itself have dependencies, a context and a
principal; within one call each provider runs once.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from plexus.errors import RegistrationError

if TYPE_CHECKING:  # a context arrives with each call
    from plexus.context import Context

__all__ = ("Dependency", "Depends", "marker_of", "read_dependency")


class Depends(NamedTuple):
    """A marker for an argument that a function provides: `Annotated[T, Depends(function)]`."""

    function: Callable[..., Any]


class Dependency(NamedTuple):
    """A provider that was read at registration, with what it needs itself."""

    function: Callable[..., Any]
    context_name: str | None
    principal_name: str | None
    inner: dict[str, Dependency]

    async def open(
        self, context: Context, stack: AsyncExitStack, opened: dict[Callable[..., Any], Any]
    ) -> Any:
        """Return the value for this call. What has to be closed later is put on the stack."""
        if self.function in opened:
            return opened[self.function]
        arguments: dict[str, Any] = {
            name: await inner.open(context, stack, opened) for name, inner in self.inner.items()
        }
        if self.context_name is not None:
            arguments[self.context_name] = context
        if self.principal_name is not None:
            arguments[self.principal_name] = context.principal
        opened[self.function] = value = await self._provide(context, stack, arguments)
        return value

    async def _provide(
        self, context: Context, stack: AsyncExitStack, arguments: dict[str, Any]
    ) -> Any:
        function = inspect.unwrap(self.function)
        if inspect.isasyncgenfunction(function):
            manager = asynccontextmanager(self.function)
            return await stack.enter_async_context(manager(**arguments))
        if asyncio.iscoroutinefunction(function):
            return await self.function(**arguments)
        threads = context.plexus.threads
        if not inspect.isgeneratorfunction(function):
            return await threads.call(self.function, **arguments)
        opened = contextmanager(self.function)(**arguments)
        value = await threads.call(opened.__enter__)

        async def close(*error: Any) -> bool | None:
            closed: bool | None = await threads.call(lambda: opened.__exit__(*error))
            return closed

        stack.push_async_exit(close)
        return value


def read_dependency(
    marker: Depends, where: str, fills: Callable[[str, dict[str, Any]], type | None]
) -> Dependency:
    """Read a provider and what it depends on.

    `fills` names the class of an argument that the server fills in, as for a method. Raises
    RegistrationError for an argument that neither the server nor a default provides.
    """
    return _read(marker, where, fills, ())


def _read(
    marker: Depends,
    where: str,
    fills: Callable[[str, dict[str, Any]], type | None],
    outer: tuple[Callable[..., Any], ...],
) -> Dependency:
    function = marker.function
    if not callable(function):
        raise RegistrationError(
            f"{where}: Depends({function!r}) needs a function, as in Depends(open_database)"
        )
    name = getattr(function, "__name__", type(function).__name__)
    if function in outer:
        raise RegistrationError(f"{where}: the dependency {name!r} depends on itself")
    where = f"{where}: dependency {name!r}"
    try:
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise RegistrationError(f"{where}: a type hint cannot be read: {error}") from error
    filled: dict[str, str] = {}
    inner: dict[str, Dependency] = {}
    for argument, parameter in inspect.signature(function).parameters.items():
        nested = marker_of(hints.get(argument), parameter.default)
        if nested is not None:
            inner[argument] = _read(nested, where, fills, (*outer, function))
            continue
        kind = fills(argument, hints)
        if kind is not None:
            filled[kind.__name__] = argument
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise RegistrationError(
                f"{where}: argument {argument!r}: give it a default, or mark it with "
                "Annotated[..., Depends(...)]; a dependency is not called with the arguments of "
                "the method"
            )
    return Dependency(function, filled.get("Context"), filled.get("Principal"), inner)


def marker_of(hint: Any, default: Any) -> Depends | None:
    """Return the marker of an argument, inside `Annotated` or as its default; None without one."""
    if isinstance(default, Depends):
        return default
    if typing.get_origin(hint) is typing.Annotated:
        return next((each for each in typing.get_args(hint)[1:] if isinstance(each, Depends)), None)
    return None
