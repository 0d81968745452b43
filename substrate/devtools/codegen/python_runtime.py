"""What every generated Python client has in common.

All that stands below the line of dashes is copied into each. It is a module so that it is checked
like any other.
"""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar, cast

from native_rpc import client as native

__all__ = ("OMITTED", "Call", "Connected", "Events", "ReturnedEvent", "ValueCall", "only_given")

#: A client has types of its own in place of it.
RunEvent: TypeAlias = dict[str, Any]

# --- How it works: nothing below depends on the schema. -------------------------------------------

EventT = TypeVar("EventT")
ValueT = TypeVar("ValueT")

#: Stands for an argument that is not sent, so that the server's own default holds.
OMITTED: Any = object()


class ReturnedEvent(TypedDict, Generic[ValueT]):
    """The last event of a method that returns a value."""

    type: Literal["complete"]
    result: ValueT


def only_given(params: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are sent."""
    return {name: value for name, value in params.items() if value is not OMITTED}


class Events(Generic[EventT]):
    """The events of one loop over a call; dropping it, as `break` does, stops the run."""

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
    """One call of one method: to loop over with `async for`, to await, or to enter.

    Awaiting it gives its last event. Nothing is sent before it is used, and it runs once. Leaving
    the loop stops the run; inside `async with` a loop may be left and entered again, and leaving
    the block stops it. A run that failed raises a PlexusError.
    """

    def __init__(self, client: native.Client, method: str, params: dict[str, Any]) -> None:
        self._client = client
        self._call = client.call(method, params)

    @property
    def run(self) -> int | None:
        """The run's number, once the server has said it."""
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
        """Answer what the run asks, by the `request` of its event; None declines."""
        if self.run is None:
            raise RuntimeError("a run that has not begun asks nothing")
        await self._client.respond(self.run, request, answer)

    async def cancel(self, reason: str | None = None) -> bool:
        """Stop the run and let its end come, which raises RunCancelled; True if it still ran."""
        return await self._call.cancel(reason)

    async def _value(self) -> ValueT:
        await self._call
        return cast("ValueT", dict(self._call.terminal or {}))


class ValueCall(Call["RunEvent | ReturnedEvent[ValueT]", ValueT]):
    """A call of a method that returns a value; awaiting it gives that."""

    async def _value(self) -> ValueT:
        return cast("ValueT", await self._call)


class Connected:
    """A server, to be entered with `async with`."""

    def __init__(self, client: native.Client) -> None:
        #: The client underneath, also for methods that this module does not know.
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
