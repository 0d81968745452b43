"""The part that all generated Python clients have in common.

Everything below the line of dashes is copied into each. It is a module so that it is type-checked
and linted like any other.
"""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar, cast

from native_rpc import client as native

__all__ = ("OMITTED", "Call", "Connected", "Events", "ReturnedEvent", "ValueCall", "drop_omitted")

#: A generated client has its own type instead.
RunEvent: TypeAlias = dict[str, Any]

# --- Runtime: nothing below depends on the schema. ------------------------------------------------

EventT = TypeVar("EventT")
ValueT = TypeVar("ValueT")

#: Marks an argument that is not sent, so that the server's default applies.
OMITTED: Any = object()


class ReturnedEvent(TypedDict, Generic[ValueT]):
    """The terminal event of a method that returns a value."""

    type: Literal["complete"]
    result: ValueT


def drop_omitted(params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are sent."""
    return {name: value for name, value in params.items() if value is not OMITTED}


class Events(Generic[EventT]):
    """The events of one loop over a call.

    Leaving the loop early, as `break` does, cancels the run.
    """

    def __init__(self, items: native.Items) -> None:
        self._items = items

    def __aiter__(self) -> Events[EventT]:
        return self

    async def __anext__(self) -> EventT:
        return cast("EventT", dict(await self._items.__anext__()))

    async def aclose(self) -> None:
        """End the loop now."""
        await self._items.aclose()


class Call(Generic[EventT, ValueT]):
    """One call of a method: iterate with `async for`, await it, or use it with `async with`.

    Awaiting it returns its terminal event. Nothing is sent before it is used, and it runs once.
    Leaving the loop cancels the run; inside `async with` a loop may be left and entered again, and
    leaving the block cancels it. A failed run raises a PlexusError.
    """

    def __init__(self, client: native.Client, method: str, params: dict[str, Any]) -> None:
        self._client = client
        self._call = client.call(method, params)

    @property
    def run(self) -> int | None:
        """The run's number, once the server has sent it."""
        return self._call.run

    def __aiter__(self) -> Events[EventT]:
        return Events(self._call.__aiter__())

    def __await__(self) -> Generator[Any, None, ValueT]:
        return self._value().__await__()

    async def __aenter__(self) -> Call[EventT, ValueT]:
        await self._call.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._call.__aexit__(kind, error, trace)

    async def respond(self, request: str, answer: Any) -> None:
        """Answer a question of the run, by the `request` of its event. None declines."""
        if self.run is None:
            raise RuntimeError("the run has not started, so it has no open question")
        await self._client.respond(self.run, request, answer)

    async def cancel(self, reason: str | None = None) -> bool:
        """Cancel the run; reading it then raises RunCancelled. True if it was still running."""
        return await self._call.cancel(reason)

    async def _value(self) -> ValueT:
        await self._call
        return cast("ValueT", dict(self._call.terminal or {}))


class ValueCall(Call["RunEvent | ReturnedEvent[ValueT]", ValueT]):
    """A call of a method that returns a value. Awaiting it returns that value."""

    async def _value(self) -> ValueT:
        return cast("ValueT", await self._call)


class Connected:
    """A connection to a server, to use with `async with`."""

    def __init__(self, client: native.Client) -> None:
        #: The underlying client, also for methods that this module does not contain.
        self.client = client

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.__aexit__(kind, error, trace)
