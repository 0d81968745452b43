"""Testing an activation as its callers meet it: through a hub, in the process of the test.

    async with local(Words()) as plexus:
        events = await plexus.events("words.count", path="poem.txt")
        expect(events).types("line", "line", "complete")
        assert await plexus.call("words.longest", text="a bee") == "bee"

Parameters are validated, a run ends with exactly one terminal, and questions are asked, all as on
a server. Every wait has a deadline, so that a test fails and does not hang. This module knows no
test framework: what does not hold is an AssertionError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

from plexus.activation import Activation
from plexus.errors import Failed, PlexusError
from plexus.events import Cancelled, ErrorEvent, Event, Progress, QuestionAsked, Result, Terminal
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.calls import Call
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run

__all__ = ("Answers", "Expectation", "Local", "Stream", "expect", "local")

E = TypeVar("E", bound=Event)

#: How long a test waits for the next event.
WITHIN_S: Final = 10.0


@asynccontextmanager
async def local(
    *activations: Activation | type[Activation],
    answers: Iterable[Any] = (),
    principal: Principal = LOCAL,
    limits: Limits | None = None,
    within_s: float = WITHIN_S,
) -> AsyncIterator[Local]:
    """A hub with these activations, for as long as the block lasts; raises RegistrationError.

    `answers` are what the caller says to the questions of the runs, in their order: see `Answers`.
    One that nobody asked for is an AssertionError at the end of the block. `principal` is who
    calls; `within_s` is how long a test waits for the next event.
    """
    hub = Plexus(limits=limits)
    hub.register(PlexusActivation(hub))
    try:
        for activation in activations:
            hub.register(activation)
        given = Answers(answers)
        yield Local(hub, given, principal, within_s)
        given.check_all_used()
    finally:
        await hub.close()


class Answers:
    """What is said to the questions of runs, in the order in which they are asked.

    An answer is what a client would send: True for a Confirm, a text for an AskText, a dict for a
    Form, None to decline. A PlexusError is what the question is refused with, and a function is
    given the request and returns the answer.
    """

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = deque(answers)

    def __len__(self) -> int:
        return len(self._answers)

    def respond(self, run: Run, request: QuestionAsked) -> None:
        """Answer a question with the next; raises InvalidParams if it does not fit."""
        answer = self._answers.popleft()
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, PlexusError):
            run.refuse(request.request, answer)
        else:
            run.answer(request.request, answer)

    def check_all_used(self) -> None:
        """Raise AssertionError if there is an answer that nobody asked for."""
        if self._answers:
            raise AssertionError(f"nobody asked for these answers: {list(self._answers)!r}")


class Local:
    """A hub, and somebody who calls its methods."""

    def __init__(
        self,
        hub: Plexus,
        answers: Answers,
        principal: Principal,
        within_s: float,
        *,
        once: bool = False,
    ) -> None:
        #: The hub itself, for what is not here.
        self.hub = hub
        self._answers = answers
        self._principal = principal
        self._within_s = within_s
        #: Whether the answers are those to one call.
        self._once = once

    def stream(self, method: str, /, **params: Any) -> Stream:
        """Call a method, to be read event by event; raises what a server refuses the call with.

        Questions for which there is no answer are left to the test: `stream.answer(...)`.
        """
        call = self.hub.call(method, params, self._principal)
        return Stream(call, self._answers, self._within_s)

    async def events(self, method: str, /, **params: Any) -> list[Event]:
        """All events of a call, up to and with its terminal, whatever that is."""
        events = []
        async with self.stream(method, **params) as stream:
            async for event in stream:
                if isinstance(event, QuestionAsked) and event.request in stream.unanswered:
                    raise AssertionError(
                        f"{method} asks {event.message!r} ({event.kind}), and there is no answer: "
                        "give it to `local(..., answers=[...])` or `plexus.answering(...)`"
                    )
                events.append(event)
        if self._once:
            self._answers.check_all_used()
        return events

    async def call(self, method: str, /, **params: Any) -> Any:
        """The value of a call: what a plain method returns, else the last event of a stream.

        Raises what the call failed with, as the class of `plexus.errors` that has this code.
        """
        return _value_of((await self.events(method, **params))[-1])

    def answering(self, *answers: Any) -> Local:
        """Somebody who gives these answers to the next call, which must ask for all of them."""
        return Local(self.hub, Answers(answers), self._principal, self._within_s, once=True)


class Stream:
    """The events of one call, as they come. Leaving its block stops the run."""

    def __init__(self, call: Call, answers: Answers, within_s: float) -> None:
        #: The run itself.
        self.run = call.run
        #: The questions that wait for an answer, by number.
        self.unanswered: dict[str, QuestionAsked] = {}
        self._answers = answers
        self._within_s = within_s
        #: Whether the run began with this call, and ends with it.
        self._own = call.fresh
        self._batches = call.run.batches(call.after, owner=call.owned)
        self._ready: deque[Event] = deque()
        self._last: Event | None = None

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        if self._last is not None and self._last.terminal:
            raise StopAsyncIteration
        if not self._ready:
            await self._take()
        self._last = event = self._ready.popleft()
        if isinstance(event, QuestionAsked):
            if self._answers:
                self._answers.respond(self.run, event)
            else:
                self.unanswered[event.request] = event
        return event

    async def _take(self) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                self._ready.extend((await anext(self._batches)).events)
        except TimeoutError:
            said = "nothing" if self._last is None else repr(self._last)
            raise AssertionError(
                f"{self.run.method} said nothing for {self._within_s:g} s; its last was {said}"
            ) from None

    def answer(self, answer: Any) -> None:
        """Answer the question that has waited longest; raises InvalidParams if it does not fit."""
        if not self.unanswered:
            raise AssertionError(f"{self.run.method} asks nothing at the moment")
        request = next(iter(self.unanswered))
        self.run.answer(request, answer)
        del self.unanswered[request]

    def cancel(self, reason: str = "the test stopped it") -> None:
        """Stop the run; its terminal still comes."""
        self.run.cancel(reason)

    async def aclose(self) -> None:
        """Stop the run, if it has not ended, and wait until its `finally` blocks have run."""
        await self._batches.aclose()
        if not self._own:
            return
        self.run.cancel("the test left it")
        async with asyncio.timeout(self._within_s):
            async with aclosing(self.run.batches(self.run.log.last)) as rest:
                async for _ in rest:
                    pass


def _value_of(terminal: Event) -> Any:
    """What a run came to; raises what it failed with."""
    assert isinstance(terminal, Terminal), terminal
    if isinstance(terminal, ErrorEvent):
        known = {cls.default_code: cls for cls in PlexusError.__subclasses__()}
        cls = known.get(terminal.code, Failed)
        raise cls(terminal.message, code=terminal.code, data=terminal.data)
    if isinstance(terminal, Cancelled):
        raise Failed(terminal.as_text(), code="cancelled")
    return terminal.result if isinstance(terminal, Result) else terminal


# --- assertions -------------------------------------------------------------------------------


def expect(events: Sequence[Event]) -> Expectation:
    """Say what these events must be; what is not so is an AssertionError that shows them."""
    return Expectation(events)


class Expectation:
    """The events of a call, and what a test says of them. Assertions can be chained."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)

    @property
    def text(self) -> str:
        """All that a person would have read."""
        return "".join(event.as_text() for event in self.events)

    @property
    def questions(self) -> list[str]:
        """What was asked."""
        return [event.message for event in self.of(QuestionAsked)]

    @property
    def value(self) -> Any:
        """What the run came to; raises what it failed with."""
        return _value_of(self._last())

    def of(self, kind: type[E]) -> list[E]:
        """The events of this class."""
        return [event for event in self.events if isinstance(event, kind)]

    def types(self, *types: str) -> Expectation:
        """These are the events, by their tags, in this order."""
        found = tuple(event.type for event in self.events)
        if found == types:
            return self
        place = next(
            (n for n, pair in enumerate(zip(found, types, strict=False)) if pair[0] != pair[1]),
            min(len(found), len(types)),
        )
        return self._fail(f"expected {', '.join(types) or 'no event'}; they part at {place + 1}")

    def completes(self, **fields: Any) -> Expectation:
        """The run did its work, and its terminal has these fields with these values."""
        return self._ends("complete", fields)

    def fails(self, code: str, *, saying: str = "") -> Expectation:
        """The run failed with this code, and its message has these words in it."""
        self._ends("error", {"code": code})
        message = self.of(ErrorEvent)[-1].message
        return self if saying in message else self._fail(f"{saying!r} is not in {message!r}")

    def is_cancelled(self) -> Expectation:
        """The run was stopped."""
        return self._ends("cancelled", {})

    def progresses(self, to: float | None = None) -> Expectation:
        """Progress was made and never lost, up to this if it is given."""
        done = [event.done for event in self.of(Progress)]
        if not done:
            return self._fail("expected progress, and there is none")
        if done != sorted(done):
            return self._fail(f"progress went back: {done}")
        return self if to is None or done[-1] == to else self._fail(f"progress ends at {done[-1]}")

    def _ends(self, type_: str, fields: dict[str, Any]) -> Expectation:
        last = self._last()
        if last.type != type_:
            return self._fail(f"expected the end to be {type_!r}, not {last.type!r}")
        for name, wanted in fields.items():
            if not hasattr(last, name):
                return self._fail(f"{type(last).__name__} has no field {name!r}")
            if getattr(last, name) != wanted:
                return self._fail(f"{name} is {getattr(last, name)!r} and not {wanted!r}")
        return self

    def _last(self) -> Event:
        if not self.events or not self.events[-1].terminal:
            self._fail("expected a terminal at the end")
        return self.events[-1]

    def _fail(self, why: str) -> Expectation:
        lines = [f"  {number}. {event!r}" for number, event in enumerate(self.events, 1)]
        raise AssertionError("\n".join([why, "the events are:", *(lines or ["  none"])]))
