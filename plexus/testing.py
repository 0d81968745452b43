"""Test an activation as its callers use it: through a hub, in the process of the test.

    async with local(Words()) as plexus:
        events = await plexus.events("words.count", path="poem.txt")
        expect(events).types("line", "line", "complete")
        assert await plexus.call("words.longest", text="a bee") == "bee"

As on a server, parameters are validated, a run ends with exactly one terminal, and questions are
asked. Every wait has a timeout, so that a test fails instead of hanging. This module depends on no
test framework: a failed expectation is an AssertionError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

from plexus.activation import Activation
from plexus.context import value_of
from plexus.errors import Failed, PlexusError
from plexus.events import ErrorEvent, Event, Progress, QuestionAnswered, QuestionAsked, Terminal
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.calls import Call
from plexus.runtime.hub import Plexus
from plexus.runtime.run import LocalRun, Run

__all__ = ("Answers", "Expectation", "Local", "Stream", "expect", "local")

E = TypeVar("E", bound=Event)

#: Timeout of a test for the next event, in seconds.
WITHIN_S: Final = 10.0


@asynccontextmanager
async def local(
    *activations: Activation | type[Activation],
    answers: Iterable[Any] = (),
    principal: Principal = LOCAL,
    limits: Limits | None = None,
    within_s: float = WITHIN_S,
) -> AsyncIterator[Local]:
    """Run a hub with these activations for the duration of the block. Raises RegistrationError.

    `answers` are the caller's answers to the questions of the runs, in their order: see `Answers`.
    An unused answer is an AssertionError at the end of the block. `principal` is the caller;
    `within_s` is the timeout for the next event in seconds.
    """
    hub = Plexus(limits=limits)
    hub.register(PlexusActivation(hub))
    try:
        for activation in activations:
            hub.register(activation)
        for path, reason in await hub.open():
            raise AssertionError(f"{path}: {reason}")
        given = Answers(answers)
        yield Local(hub, given, principal, within_s)
        given.check_all_used()
    finally:
        await hub.close()


class Answers:
    """Answers to the questions of runs, in the order in which they are asked.

    An answer is what a client would send: True for a Confirm, a string for an AskText, a dict for a
    Form, None to decline. A PlexusError refuses the question, and a function receives the request
    and returns the answer.
    """

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = deque(answers)

    def __len__(self) -> int:
        return len(self._answers)

    def respond(self, run: Run, request: QuestionAsked) -> None:
        """Answer a question with the next answer. Raises InvalidParams if it is invalid."""
        answer = self._answers.popleft()
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, PlexusError):
            run.refuse(request.request, answer)
        else:
            run.answer(request.request, answer)

    def check_all_used(self) -> None:
        """Raise AssertionError if an answer was not used."""
        if self._answers:
            raise AssertionError(
                f"no question was asked for these answers: {list(self._answers)!r}"
            )


class Local:
    """A hub, and a caller of its methods."""

    def __init__(
        self,
        hub: Plexus,
        answers: Answers,
        principal: Principal,
        within_s: float,
        *,
        once: bool = False,
    ) -> None:
        #: The hub itself, for everything else.
        self.hub = hub
        self._answers = answers
        self._principal = principal
        self._within_s = within_s
        #: Whether the answers are for a single call.
        self._once = once

    def stream(self, method: str, /, **params: Any) -> Stream:
        """Call a method and read it event by event. Raises the error of a refused call.

        Questions without an answer are left to the test: `stream.answer(...)`.
        """
        call = self.hub.call(method, params, self._principal)
        return Stream(call, self._answers, self._within_s, params)

    async def restart(self, stream: Stream) -> Stream:
        """Stop a run and restart it with its last checkpoint, as after the loss of its process.

        The new stream begins with `Restarted`. Unlike after a real loss, the `finally` blocks of
        the stopped run are executed. Raises Unsupported if the method declares no restart.
        """
        if stream.run.terminal is not None:
            raise AssertionError(f"{stream.run.method} has already ended: {stream.run.terminal!r}")
        await stream.aclose()
        old = stream.run
        assert isinstance(old, LocalRun), "the runs of a test are local"
        # The end of the stopped run is not part of the restarted one.
        first_seq = old.log.last
        run = self.hub.restart(
            old.method,
            run_id=old.id,
            principal=old.principal,
            arguments=stream.params,
            epoch=old.epoch + 1,
            checkpoint=old.checkpoint,
            first_seq=first_seq,
            started_at=old.started_at,
            parent=None,
            key=old.key,
        )
        call = Call(run, first_seq - 1, True, True)
        return Stream(call, self._answers, self._within_s, stream.params)

    async def events(self, method: str, /, **params: Any) -> list[Event]:
        """Return all events of a call, up to and including its terminal."""
        events = []
        async with self.stream(method, **params) as stream:
            async for event in stream:
                if isinstance(event, QuestionAsked) and event.request in stream.unanswered:
                    raise AssertionError(
                        f"{method} asks {event.message!r} ({event.kind}), which has no answer: "
                        "pass one to `local(..., answers=[...])` or `plexus.answering(...)`"
                    )
                events.append(event)
        if self._once:
            self._answers.check_all_used()
        return events

    async def call(self, method: str, /, **params: Any) -> Any:
        """Return the value of a call: the result of a plain method, or the last event of a stream.

        Raises the error of a failed call, as the class of `plexus.errors` with its code.
        """
        return _value_of((await self.events(method, **params))[-1])

    def answering(self, *answers: Any) -> Local:
        """Return a caller with these answers for its next call, which must use all of them."""
        return Local(self.hub, Answers(answers), self._principal, self._within_s, once=True)


class Stream:
    """The events of one call, as they arrive. Leaving the block stops the run."""

    def __init__(
        self, call: Call, answers: Answers, within_s: float, params: dict[str, Any]
    ) -> None:
        #: The run itself.
        self.run = call.run
        #: The parameters of the call.
        self.params = params
        #: Questions that wait for an answer, by number.
        self.unanswered: dict[str, QuestionAsked] = {}
        self._answers = answers
        self._within_s = within_s
        #: Whether this call started the run, and stops it.
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
                while not self._ready:
                    events = (await anext(self._batches)).events
                    # The test knows what it has answered.
                    shown = (each for each in events if each.__class__ is not QuestionAnswered)
                    self._ready.extend(shown)
        except TimeoutError:
            last = "none" if self._last is None else repr(self._last)
            raise AssertionError(
                f"{self.run.method} sent no event for {self._within_s:g} s; its last was {last}"
            ) from None

    def answer(self, answer: Any) -> None:
        """Answer the oldest open question. Raises InvalidParams if the answer is invalid."""
        if not self.unanswered:
            raise AssertionError(f"{self.run.method} has no open question")
        request = next(iter(self.unanswered))
        self.run.answer(request, answer)
        del self.unanswered[request]

    def cancel(self, reason: str = "the test stopped it") -> None:
        """Cancel the run; its terminal still arrives."""
        self.run.cancel(reason)

    async def aclose(self) -> None:
        """Cancel the run, if it has not ended, and wait until its `finally` blocks have run."""
        await self._batches.aclose()
        if not self._own:
            return
        self.run.cancel("the test left it")
        async with asyncio.timeout(self._within_s):
            async with aclosing(self.run.batches(self.run.log.last)) as rest:
                async for _ in rest:
                    pass


def _value_of(terminal: Event) -> Any:
    """Return the value of a run. Raises its error if it failed."""
    assert isinstance(terminal, Terminal), terminal
    if isinstance(terminal, ErrorEvent):
        known = {cls.default_code: cls for cls in PlexusError.__subclasses__()}
        cls = known.get(terminal.code, Failed)
        raise cls(terminal.message, code=terminal.code, data=terminal.data)
    return value_of(terminal)


# --- assertions -------------------------------------------------------------------------------


def expect(events: Sequence[Event]) -> Expectation:
    """Return assertions about these events; a failed one is an AssertionError that shows them."""
    return Expectation(events)


class Expectation:
    """Assertions about the events of a call. They can be chained."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)

    @property
    def text(self) -> str:
        """The text that a person would have read."""
        return "".join(event.as_text() for event in self.events)

    @property
    def questions(self) -> list[str]:
        """The questions that were asked."""
        return [event.message for event in self.of(QuestionAsked)]

    @property
    def value(self) -> Any:
        """The value of the run. Raises its error if it failed."""
        return _value_of(self._last())

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of this class."""
        return [event for event in self.events if isinstance(event, kind)]

    def types(self, *types: str) -> Expectation:
        """Assert that the events have exactly these tags, in this order."""
        found = tuple(event.type for event in self.events)
        if found == types:
            return self
        place = next(
            (n for n, pair in enumerate(zip(found, types, strict=False)) if pair[0] != pair[1]),
            min(len(found), len(types)),
        )
        return self._fail(
            f"expected {', '.join(types) or 'no event'}; the first difference is at {place + 1}"
        )

    def completes(self, **fields: Any) -> Expectation:
        """Assert that the run completed, and that its terminal has these fields."""
        return self._ends("complete", fields)

    def fails(self, code: str, *, saying: str = "") -> Expectation:
        """Assert that the run failed with this code, and that its message contains `saying`."""
        self._ends("error", {"code": code})
        message = self.of(ErrorEvent)[-1].message
        return self if saying in message else self._fail(f"{saying!r} is not in {message!r}")

    def is_cancelled(self) -> Expectation:
        """Assert that the run was cancelled."""
        return self._ends("cancelled", {})

    def progresses(self, to: float | None = None) -> Expectation:
        """Assert that progress never decreased, and that it reached `to` if given."""
        done = [event.done for event in self.of(Progress)]
        if not done:
            return self._fail("expected progress, found none")
        if done != sorted(done):
            return self._fail(f"progress decreased: {done}")
        return self if to is None or done[-1] == to else self._fail(f"progress ends at {done[-1]}")

    def _ends(self, type_: str, fields: dict[str, Any]) -> Expectation:
        last = self._last()
        if last.type != type_:
            return self._fail(f"expected the end to be {type_!r}, not {last.type!r}")
        for name, expected in fields.items():
            if not hasattr(last, name):
                return self._fail(f"{type(last).__name__} has no field {name!r}")
            if getattr(last, name) != expected:
                return self._fail(f"{name} is {getattr(last, name)!r}, not {expected!r}")
        return self

    def _last(self) -> Event:
        if not self.events or not self.events[-1].terminal:
            self._fail("expected a terminal at the end")
        return self.events[-1]

    def _fail(self, why: str) -> Expectation:
        lines = [f"  {number}. {event!r}" for number, event in enumerate(self.events, 1)]
        raise AssertionError("\n".join([why, "the events are:", *(lines or ["  none"])]))
