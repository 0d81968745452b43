"""The context of a call: what a method can read of its call and request from its caller.

A method that declares an argument of type `Context` receives one. It contains no transport: every
view offers the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from plexus.caller_connection import CallerConnection
from plexus.caller_environment import CallerEnvironment
from plexus.errors import DeadlineExceeded, Declined, Failed, PlexusError, TooBig, Unsupported
from plexus.events import Cancelled, ErrorEvent, Event, Log, Progress, Result, Terminal
from plexus.principal import Principal
from plexus.questions import Question
from plexus.rpc import wire
from plexus.runtime.threads import sender_of_worker, waiter_of_worker

if TYPE_CHECKING:  # imported for annotations only: the hub imports this module
    from plexus.runtime.hub import Plexus
    from plexus.runtime.run import LocalRun

__all__ = ("Context", "RestartedContext", "Storage", "Stores", "SubCall", "value_of")

A = TypeVar("A")
#: Levels of syslog, the least urgent first.
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
#: Kinds of questions that every view can show to a person as text.
UNIVERSAL_KINDS = frozenset({"confirm", "prompt", "select", "select_many", "form"})


class Storage(Protocol):
    """Durable storage of one activation for one principal, as a program provides it."""

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default if it has none."""

    async def set(self, key: str, value: Any) -> None:
        """Store a value that has a JSON form."""

    async def delete(self, key: str) -> bool:
        """Delete a key. Returns whether it existed."""

    async def keys(self, prefix: str = "", *, after: str = "", limit: int = 100) -> list[str]:
        """Return keys that start with `prefix`, in order, after the key `after`."""

    async def write(self, work: Callable[[Any], A]) -> A:
        """Run a function over a SQL transaction of the activation's own database."""

    async def read(self, work: Callable[[Any], A]) -> A:
        """Run a function that only reads over the activation's own database."""


class Stores(Protocol):
    """The storage of all activations of a hub."""

    def of(self, activation: str, principal: Principal) -> Storage:
        """Return the storage of an activation for a principal."""

    async def close(self) -> None:
        """Close everything that is open."""


class Context:
    """The call that a method is serving."""

    __slots__ = ("_asking_run", "_run", "plexus")

    def __init__(self, plexus: Plexus, run: LocalRun, parent: Context | None = None) -> None:
        #: The hub, for methods that inspect the server itself.
        self.plexus = plexus
        self._run = run
        #: The run whose caller is asked: a nested call asks the caller of the outermost run.
        self._asking_run: LocalRun = run if parent is None else parent._asking_run  # noqa: SLF001 - same class

    @property
    def principal(self) -> Principal:
        """The caller."""
        return self._run.principal

    @property
    def run_id(self) -> int:
        """The number of this run."""
        return self._run.id

    @property
    def outer_run_id(self) -> int:
        """The number of the outermost run: the one that the client called, maybe this one."""
        return self._asking_run.id

    @property
    def connection(self) -> CallerConnection | None:
        """The connection of the client; None over HTTP, where its end is not known."""
        return self._asking_run.connection

    @property
    def client(self) -> str | None:
        """The name and version of the client that made the call; None if they are unknown."""
        return self._run.client

    @property
    def epoch(self) -> int:
        """How often this run was restarted: 0 at first."""
        return self._run.epoch

    @property
    def restored(self) -> Any:
        """The last checkpoint of a run that was restarted; None if it was not, or had none."""
        return None

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Store a JSON value, so that a restart of this run continues from it.

        Await it in an `async def`: it returns when the value and everything yielded before it are
        durable, or immediately without a run store. In a plain function, call it without
        `await`; it blocks that long. Raises Unsupported unless the method declares
        `restart="from_checkpoint"`, InvalidEvent for a value without a JSON form, and TooBig.
        """
        run, limit = self._run, self.plexus.limits.checkpoint_bytes
        spec = self.plexus.find_method(run.method)
        # A method that was unregistered meanwhile continues as it was declared.
        if spec is not None and spec.restart != "from_checkpoint":
            raise Unsupported(
                f'{run.method} does not declare @method(restart="from_checkpoint"), so its '
                "checkpoints would never be used."
            )
        raw = wire.encode_exact(value, "the checkpoint")
        if len(raw) > limit:
            raise TooBig(
                f"A checkpoint of {len(raw)} bytes exceeds the limit of {limit} bytes. Store the "
                "data in ctx.storage or in a file, and only its position in the checkpoint.",
                data={"limit": limit},
            )
        wait = waiter_of_worker()
        if wait is None:
            return _store_checkpoint(run, raw)
        _check_not_stopped(run)
        wait(partial(_store_checkpoint, run, raw))
        _check_not_stopped(run)
        return _Capacity(run)

    @property
    def caller(self) -> CallerEnvironment | None:
        """Working directory and variables of the calling process; None for those of the server."""
        return self._run.caller

    @property
    def storage(self) -> Storage:
        """Durable storage of this activation for this principal. Raises Unsupported without one."""
        stores = self.plexus.storage
        if stores is None:
            raise Unsupported("This hub has no storage. Serve the activation with substrate.")
        return stores.of(self._run.method.rpartition(".")[0], self.principal)

    def log(self, level: Level, message: str) -> Awaitable[None]:
        """Send a log message to the caller, in addition to the result.

        Await it in an `async def`, so that a slow reader can catch up. In a plain function, call it
        without `await`.
        """
        return self._send(Log(level=level, message=message))

    def debug(self, message: str) -> Awaitable[None]:
        """Send a log message of the level `debug`."""
        return self.log("debug", message)

    def info(self, message: str) -> Awaitable[None]:
        """Send a log message of the level `info`."""
        return self.log("info", message)

    def warning(self, message: str) -> Awaitable[None]:
        """Send a log message of the level `warning`."""
        return self.log("warning", message)

    def error(self, message: str) -> Awaitable[None]:
        """Send a log message of the level `error`."""
        return self.log("error", message)

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Report progress to the caller. Await it as you await `log`."""
        return self._send(Progress(done=done, total=total, message=message))

    def _send(self, event: Event) -> Awaitable[None]:
        run = self._run
        send = sender_of_worker()
        if send is None:
            run.append(event)
        else:
            _check_not_stopped(run)
            send(partial(_append, run, event), event)
        return _Capacity(run)

    def call(self, method: str, /, **params: Any) -> SubCall:
        """Call another method as the same principal: `async for` its events, or await its value.

        The call is a separate run, which is cancelled when this run stops reading it. Its questions
        go to the caller of this run.
        """
        return SubCall(self, method, params)

    @property
    def question_kinds(self) -> frozenset[str] | None:
        """The kinds of questions that the client has declared; None if it declares none."""
        return self._asking_run.question_kinds

    def can_ask(self, kind: str) -> bool:
        """Return whether the caller can answer questions of this kind, such as "sample"."""
        return self._asking_run.question_kinds is None or kind in self._asking_run.question_kinds

    async def ask(
        self, question: Question[A], *, timeout_s: float | None = None, key: str | None = None
    ) -> A:
        """Ask the caller a question and wait for the answer.

        `key` is a name for this question that stays the same when the method is called again.
        Raises Declined if the person declines to answer, DeadlineExceeded if no answer arrives in
        time, and Unsupported if the caller cannot be asked a question of this kind.
        """
        answers: list[A] = await self._ask([question], [key], timeout_s)
        return answers[0]

    async def ask_all(
        self, questions: Mapping[str, Question[Any]], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Ask several questions at the same time; return all answers by the questions' keys.

        Raises what `ask` raises, for the first question that fails; the other questions are then
        withdrawn.
        """
        answers = await self._ask(list(questions.values()), list(questions), timeout_s)
        return dict(zip(questions, answers, strict=True))

    async def _ask(
        self,
        questions: Sequence[Question[Any]],
        keys: Sequence[str | None],
        timeout_s: float | None,
    ) -> list[Any]:
        for question in questions:
            if question.kind not in UNIVERSAL_KINDS and not self.can_ask(question.kind):
                raise Unsupported(
                    f"This caller cannot answer questions of the kind {question.kind!r}.",
                    data={"kind": question.kind},
                )
        limit = self.plexus.limits.answer_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        notify = self.plexus.questions.notify
        asked: dict[asyncio.Future[Any], tuple[str, Question[Any]]] = {}
        try:
            for question, key in zip(questions, keys, strict=True):
                request, future = self._asking_run.ask(question, limit, key, notify)
                asked[future] = request, question
            pending = set(asked)
            while pending:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=max(deadline - time.monotonic(), 0),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    for future in pending:
                        self._asking_run.expire_question(asked[future][0])
                    request, question = next(asked[each] for each in asked if each in pending)
                    raise DeadlineExceeded(
                        f"No answer within {limit:g} s: {question.message}",
                        code="no_answer",
                        data={"limit_s": limit, "request": request},
                    )
                for future in done:
                    _check_answer(asked[future][1], future.result())
        finally:
            for request, _ in asked.values():
                self._asking_run.forget_question(request)
        return [future.result() for future in asked]


class RestartedContext(Context):
    """The call that a restarted run is serving."""

    __slots__ = ("_restored",)

    def __init__(self, plexus: Plexus, run: LocalRun) -> None:
        super().__init__(plexus, run)
        raw = run.checkpoint
        self._restored = None if raw is None else wire.decode_trusted(raw)

    @property
    def restored(self) -> Any:
        return self._restored


def _check_answer(question: Question[Any], answer: Any) -> None:
    if answer is None:
        raise Declined(f"declined: {question.message}")
    if isinstance(answer, PlexusError):
        raise answer


def _check_not_stopped(run: LocalRun) -> None:
    """Stop a worker thread whose run is cancelled: only its use of the context can do that."""
    if run.cancel_reason is not None or run.terminal is not None:
        raise asyncio.CancelledError


async def _store_checkpoint(run: LocalRun, raw: bytes) -> None:
    """Store a checkpoint; ignored after the end of the run."""
    if run.terminal is not None:
        return
    if run.recorder is not None:
        await run.recorder.checkpoint(run, raw)
    run.checkpoint = raw


def _append(run: LocalRun, event: Event) -> None:
    """Append an event that came from a thread; an event that cannot be sent fails the run."""
    try:
        run.append(event)
    except PlexusError as error:
        run.finish(ErrorEvent(error.code, error.message, error.data))


class _Capacity:
    """Waits, when awaited, until the reader of a run has caught up."""

    __slots__ = ("_run",)

    def __init__(self, run: LocalRun) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, None]:
        return self._run.log.wait_for_capacity().__await__()


class SubCall:
    """A call from inside a run. Await it for its value, or iterate over its events."""

    def __init__(self, parent: Context, method: str, params: dict[str, Any]) -> None:
        self._parent = parent
        self._method = method
        self._params = params

    async def __aiter__(self) -> AsyncGenerator[Event]:
        parent = self._parent
        call = await parent.plexus.call_loaded(self._method, self._params, parent.principal, parent)
        try:
            async with aclosing(call.run.batches(call.after, owner=call.fresh)) as batches:
                async for batch in batches:
                    for event in batch.events:
                        yield event
        finally:
            if call.fresh:
                call.run.cancel("the caller stopped reading")

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value().__await__()

    async def _value(self) -> Any:
        async with aclosing(self.__aiter__()) as events:
            async for event in events:
                if isinstance(event, Terminal):
                    return value_of(event)
        raise Failed(f"{self._method} ended without a terminal.")


def value_of(terminal: Terminal) -> Any:
    """Return the value of a terminal. Raises Failed if the run failed or was cancelled."""
    if isinstance(terminal, ErrorEvent):
        raise Failed(terminal.message, code=terminal.code, data=terminal.data)
    if isinstance(terminal, Cancelled):
        raise Failed(terminal.as_text(), code="cancelled")
    return terminal.result if isinstance(terminal, Result) else terminal
