"""What a method may know of its own call, and ask for, while it runs.

A method that declares an argument of type `Context` is given one. It holds no transport: every
view offers the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from plexus.asking import Question
from plexus.errors import DeadlineExceeded, Declined, Failed
from plexus.events import Cancelled, Error, Event, Log, Result, Terminal
from plexus.principal import Principal

if TYPE_CHECKING:  # the hub makes contexts; here it is only named
    from plexus.hub import Plexus
    from plexus.run import Run

__all__ = ("Context", "SubCall")

A = TypeVar("A")
Level = Literal["debug", "info", "notice", "warning", "error", "critical"]


class Context:
    """The call that a method is serving."""

    __slots__ = ("_run", "plexus")

    def __init__(self, plexus: Plexus, run: Run) -> None:
        #: The hub, for methods that look at the server itself.
        self.plexus = plexus
        self._run = run

    @property
    def principal(self) -> Principal:
        """Who is calling."""
        return self._run.principal

    @property
    def run_id(self) -> int:
        """The number of this run."""
        return self._run.id

    async def log(self, level: Level, message: str) -> None:
        """Tell the caller something about the work, beside its result."""
        self._run.append(Log(level=level, message=message))
        await self._run.room()

    def call(self, method: str, /, **params: Any) -> SubCall:
        """Call another method as the same principal: `async for` its events, or await its value.

        The call is a run of its own; it is cancelled when this one leaves it.
        """
        return SubCall(self.plexus, self._run, method, params)

    async def ask(self, question: Question[A], *, timeout_s: float | None = None) -> A:
        """Ask the caller and wait for the answer.

        Raises Declined if the person says no to the question as such, and DeadlineExceeded if
        nobody answers in time.
        """
        limit = self.plexus.limits.answer_s if timeout_s is None else timeout_s
        request, future = self._run.ask(question, limit)
        try:
            answer: A | None = await asyncio.wait_for(future, limit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"nobody answered within {limit:g} s: {question.message}",
                code="no_answer",
                data={"limit_s": limit, "request": request},
            ) from None
        finally:
            self._run.forget_question(request)
        if answer is None:
            raise Declined(f"declined: {question.message}")
        return answer


class SubCall:
    """A call from inside a run. Await it for its value, or iterate over its events."""

    def __init__(self, plexus: Plexus, parent: Run, method: str, params: dict[str, Any]) -> None:
        self._plexus = plexus
        self._parent = parent
        self._method = method
        self._params = params

    async def __aiter__(self) -> AsyncGenerator[Event]:
        call = self._plexus.call(
            self._method, self._params, self._parent.principal, parent=self._parent.id
        )
        try:
            async with aclosing(call.run.batches(call.after, owner=call.fresh)) as batches:
                async for batch in batches:
                    for event in batch.events:
                        yield event
        finally:
            if call.fresh:
                call.run.cancel("its caller left")

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value().__await__()

    async def _value(self) -> Any:
        async with aclosing(self.__aiter__()) as events:
            async for event in events:
                if isinstance(event, Terminal):
                    return value_of(event)
        raise Failed(f"{self._method} ended without a terminal")


def value_of(terminal: Terminal) -> Any:
    """What a terminal carries; raises what it failed with."""
    if isinstance(terminal, Error):
        raise Failed(terminal.message, code=terminal.code, data=terminal.data)
    if isinstance(terminal, Cancelled):
        raise Failed(terminal.as_text(), code="cancelled")
    return terminal.result if isinstance(terminal, Result) else terminal
