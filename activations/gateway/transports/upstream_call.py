"""A request to another server in progress: its items, its deadline and its result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from mcp_view.client.call import ClientCall
from mcp_view.client.errors import Late
from mcp_view.client.items import CallItem, Question

if TYPE_CHECKING:  # it creates this
    from activations.gateway.transports.session import UpstreamSession

__all__ = ("UpstreamCall",)


class UpstreamCall:
    """A request in progress. Iterate over the batches of its items, then read `result`.

    Leaving `async with` cancels it if it has not ended.
    """

    __slots__ = ("_call", "_deadline", "_limit_s", "_session", "_waiter", "on_wake")

    def __init__(self, session: UpstreamSession, call: ClientCall, limit_s: float) -> None:
        self._session = session
        self._call = call
        self._limit_s = limit_s
        self._waiter: asyncio.Future[None] | None = None
        #: Called instead of waking a reader, if there is none.
        self.on_wake: Callable[[], None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if not call.is_done and limit_s != math.inf:
            self._deadline = asyncio.get_running_loop().call_later(limit_s, self._expire)

    @property
    def is_done(self) -> bool:
        """Whether the call has ended."""
        return self._call.is_done

    @property
    def only_result(self) -> dict[str, Any] | None:
        """The result of a call that has ended with it and with no unread items."""
        return None if self._call.items else self._call.result

    @property
    def dropped(self) -> int:
        """Items that were dropped because they were not read in time."""
        return self._call.dropped

    @property
    def result(self) -> dict[str, Any]:
        """The result, after the loop. Raises UpstreamError."""
        if self._call.error is not None:
            raise self._call.error
        if self._call.result is None:
            raise RuntimeError("The call has not ended.")
        return self._call.result

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the call at the server. Idempotent."""
        if not self._call.is_done:
            self._session.client.cancel(self._call, reason)
            self._session.flush()

    def answer(self, question: Question, result: dict[str, Any]) -> None:
        """Answer a question with a result of MCP."""
        self._session.answer(question, result)

    def refuse(self, question: Question, reason: str) -> None:
        """Refuse to answer a question."""
        self._session.refuse(question, reason)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[CallItem]:
        call = self._call
        while True:
            items = call.take()
            if items:
                return items
            if call.is_done:
                if call.error is not None:
                    raise call.error
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def wait(self) -> dict[str, Any]:
        """Return the result, and refuse questions. Raises UpstreamError."""
        try:
            async for items in self:
                for item in items:
                    if isinstance(item, Question):
                        self.refuse(item, "Questions cannot be answered here.")
        finally:
            self.cancel()
        return self.result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def wake(self) -> None:
        """Continue the reader. The session calls this."""
        if self._call.is_done and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self.on_wake is not None:
            self.on_wake()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _expire(self) -> None:
        call = self._call
        if not call.is_done:
            late = Late(
                f"{call.method}: no result within {self._limit_s:g} s.",
                data={"limit_s": self._limit_s},
            )
            self._session.client.cancel(call, "timeout")
            call.error = late
            self._session.flush()
