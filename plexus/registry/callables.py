"""Every kind of function that an author may write, adapted to the two that the pump runs.

The pump runs an async stream of events, or a coroutine with one value. An async generator, a
coroutine and a function that returns an async iterator are that already and are called directly.
The others are wrapped once, at registration:

- a plain function and a plain generator run in a worker thread;
- a function without a return annotation may return a value or an iterator, which only its call
  shows;
- a method with dependencies opens them before it runs and closes them after it has ended.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from plexus.events import Result
from plexus.registry.dependencies import Dependency
from plexus.runtime.threads import ThreadIterator
from plexus.values import result_of

if TYPE_CHECKING:  # a context arrives with each call
    from plexus.context import Context

__all__ = ("CONTEXT", "MISSING", "Adapted", "adapt", "is_async_stream", "is_stream", "is_streamed")

#: The argument that adapters receive the context in; authors cannot use the name.
CONTEXT: Final = "_context"
_ASYNC_STREAMS: Final = (AsyncIterator, AsyncGenerator, AsyncIterable)
_STREAMS: Final = (Iterator, Generator, Iterable)
_AWAITABLES: Final = (Awaitable, Coroutine)

Kind = Literal["stream", "plain"]
MISSING: Final = inspect.Parameter.empty


class Adapted(NamedTuple):
    """A function as the pump runs it."""

    function: Callable[..., Any]
    kind: Kind
    #: The argument that the context is passed in; None if the function needs none.
    context_name: str | None


def is_async_stream(hint: Any) -> bool:
    """Whether a return type is an async iterator, with or without the type of its items."""
    return hint in _ASYNC_STREAMS or typing.get_origin(hint) in _ASYNC_STREAMS


def is_stream(hint: Any) -> bool:
    """Whether a return type is an iterator of either kind."""
    return is_async_stream(hint) or hint in _STREAMS or typing.get_origin(hint) in _STREAMS


def is_streamed(function: Callable[..., Any], returns: Any) -> bool:
    """Whether a function certainly streams, by what it is or by its return annotation."""
    generates = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
    return generates or (returns is not MISSING and is_stream(returns))


def adapt(
    bound: Callable[..., Any],
    returns: Any,
    context_name: str | None,
    dependencies: dict[str, Dependency],
) -> Adapted:
    """Return what the pump calls for a function of any kind.

    `returns` is the return annotation, or `MISSING`; `context_name` is the argument in which the
    function itself takes a context.
    """
    function = inspect.unwrap(bound)
    adapted = _adapt_kind(bound, function, returns, context_name)
    if not dependencies:
        return adapted
    name = adapted.context_name or CONTEXT
    wrap = _stream_with_dependencies if adapted.kind == "stream" else _call_with_dependencies
    passes = adapted.context_name is not None
    return Adapted(partial(wrap, adapted.function, name, passes, dependencies), adapted.kind, name)


def _adapt_kind(
    bound: Callable[..., Any], function: Callable[..., Any], returns: Any, context_name: str | None
) -> Adapted:
    passes = context_name is not None
    name = context_name or CONTEXT
    if inspect.isasyncgenfunction(function):
        return Adapted(bound, "stream", context_name)
    if inspect.isgeneratorfunction(function):
        return Adapted(partial(_iterate_in_thread, bound, name, passes), "stream", name)
    is_coroutine = asyncio.iscoroutinefunction(function)
    if is_async_stream(returns):
        return Adapted(bound, "stream", context_name)
    if returns is MISSING or (is_coroutine and is_stream(returns)):
        run = partial(_run_any, bound, name, passes, is_coroutine)
        return Adapted(run, "stream", name)
    if is_coroutine or typing.get_origin(returns) in _AWAITABLES:
        return Adapted(bound, "plain", context_name)
    if is_stream(returns):
        return Adapted(partial(_iterate_in_thread, bound, name, passes), "stream", name)
    return Adapted(partial(_call_in_thread, bound, name, passes), "plain", name)


def _context(arguments: dict[str, Any], name: str, passes: bool) -> Context:
    """Return the context of a call, and remove it if the function does not take one itself."""
    context: Context = arguments[name] if passes else arguments.pop(name)
    return context


async def _call_in_thread(
    function: Callable[..., Any], name: str, passes: bool, /, **arguments: Any
) -> Any:
    threads = _context(arguments, name, passes).plexus.threads
    return await threads.call(function, **arguments)


def _iterate_in_thread(
    function: Callable[..., Any], name: str, passes: bool, /, **arguments: Any
) -> ThreadIterator:
    threads = _context(arguments, name, passes).plexus.threads
    return ThreadIterator(threads, partial(function, **arguments))


async def _run_any(
    function: Callable[..., Any], name: str, passes: bool, is_coroutine: bool, /, **arguments: Any
) -> AsyncIterator[Any]:
    """Run a function whose return type is unknown: stream an iterator, or end with the value."""
    threads = _context(arguments, name, passes).plexus.threads
    value = function(**arguments) if is_coroutine else await threads.call(function, **arguments)
    if isinstance(value, Awaitable):
        value = await value
    if isinstance(value, Iterator):
        value = ThreadIterator(threads, partial(_same, value))
    if not isinstance(value, AsyncIterator):
        yield Result(result_of(value))
        return
    try:
        async for item in value:
            yield item
    finally:
        close = getattr(value, "aclose", None)
        if close is not None:
            await close()


def _same(value: Iterable[Any]) -> Iterable[Any]:
    return value


async def _call_with_dependencies(
    function: Callable[..., Any],
    name: str,
    passes: bool,
    dependencies: dict[str, Dependency],
    /,
    **arguments: Any,
) -> Any:
    context = _context(arguments, name, passes)
    async with AsyncExitStack() as stack:
        arguments |= await _open_all(dependencies, context, stack)
        return await function(**arguments)


async def _stream_with_dependencies(
    function: Callable[..., Any],
    name: str,
    passes: bool,
    dependencies: dict[str, Dependency],
    /,
    **arguments: Any,
) -> AsyncIterator[Any]:
    context = _context(arguments, name, passes)
    async with AsyncExitStack() as stack:
        arguments |= await _open_all(dependencies, context, stack)
        made = function(**arguments)
        stream = aiter(await made if isinstance(made, Awaitable) else made)
        if hasattr(stream, "aclose"):
            await stack.enter_async_context(aclosing(stream))
        async for item in stream:
            yield item


async def _open_all(
    dependencies: dict[str, Dependency], context: Context, stack: AsyncExitStack
) -> dict[str, Any]:
    opened: dict[Callable[..., Any], Any] = {}
    return {
        name: await dependency.open(context, stack, opened)
        for name, dependency in dependencies.items()
    }
