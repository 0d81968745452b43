"""The driver: connects a view to a hub, for any transport.

A transport passes messages to `receive`, waits with `ready`, writes what `collect` returns, and
calls `lost` when the peer disconnects. The driver performs the view's effects. Replies are
collected before items, and a run's items are read only when the transport collects, so a peer that
does not read applies backpressure to its own runs only.

If an effect needs a run that is not in memory, the driver loads it from the run store and performs
the effect again, once. Only this needs a task, and the connection is not finished before it ends.

If a view raises, the request is answered with an internal error and the log reference of the
defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from plexus.activation import OnDisconnect
from plexus.caller_connection import CallerConnection
from plexus.caller_environment import CallerEnvironment
from plexus.errors import Denied, Internal, PlexusError
from plexus.principal import Principal
from plexus.registry.lazy import resolve
from plexus.rpc import wire
from plexus.rpc.effects import (
    AnswerQuestion,
    AttachCall,
    CancelRun,
    Effect,
    KeepRun,
    LeaveCall,
    LoadRun,
    RefuseQuestion,
    Reported,
    Send,
    SetTimer,
    StartCall,
    View,
    WatchChanges,
)
from plexus.rpc.wire import Message
from plexus.runtime.changes import Change
from plexus.runtime.coarse_timers import CoarseTimer
from plexus.runtime.hub import Plexus
from plexus.runtime.log import Reader
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.runs import NotLoaded
from plexus.runtime.shares import connection_full, watches_full

if TYPE_CHECKING:  # only a process that reads the run store imports them
    from plexus.runtime.stored_run import StoredRun
    from substrate.connection_tasks import ConnectionTasks

__all__ = ("Connection",)

CONNECTION_TASKS: Final = "substrate.connection_tasks:ConnectionTasks"

#: From this time on, a timer of a call may be late by the resolution of coarse timers.
COARSE_S: Final = 5.0

#: What an effect still waits for after it was performed.
Work = Callable[[], Awaitable[Any]]


class Connection:
    """The connection of one peer, from its first message until it disconnects."""

    __slots__ = (
        "_caller",
        "_client",
        "_connection",
        "_finishing",
        "_frames",
        "_had_watch",
        "_hub",
        "_lookups",
        "_on_collected",
        "_on_disconnect",
        "_principal",
        "_readers",
        "_ready_readers",
        "_tasks",
        "_timers",
        "_unsubscribe",
        "_view",
        "_waiter",
        "revoked",
    )

    def __init__(
        self,
        hub: Plexus,
        view: View,
        principal: Principal,
        *,
        client: str | None = None,
        caller: CallerEnvironment | None = None,
        on_disconnect: OnDisconnect = "cancel",
        lasting: bool = False,
        lookups: bool = False,
    ) -> None:
        """Connect a peer.

        `client` is the name and version of the peer, and `caller` the environment of a process on
        this machine; None if they are unknown. `on_disconnect` applies to runs whose method does
        not decide. `lasting` means that the connection ends when the peer does, unlike a request.
        `lookups` means that the peer shows a person what it reads, which is then not recorded.
        """
        self._hub = hub
        self._caller = caller
        self._on_disconnect: OnDisconnect = on_disconnect
        self._view = view
        self._principal = principal
        self._client = client
        self._lookups = lookups
        self._connection = CallerConnection() if lasting else None
        self._frames: list[bytes] = []
        self._readers: dict[Any, Reader] = {}
        self._ready_readers: list[Reader] = []
        self._waiter: asyncio.Future[bool] | None = None
        self._on_collected: list[Callable[[], None]] = []
        self._finishing = False
        self._timers: dict[Any, asyncio.TimerHandle | CoarseTimer] = {}
        self._unsubscribe: Callable[[], None] | None = None
        #: Effects that wait for the run store; None before the first.
        self._tasks: ConnectionTasks | None = None
        #: Whether a standing watch was ever attached. Until then watches are not counted.
        self._had_watch = False
        #: Why the peer's credential is no longer valid; None while it is valid.
        self.revoked: str | None = None

    # --- for the transport --------------------------------------------------------------------

    @property
    def lifetime(self) -> CallerConnection | None:
        """The lifetime of this connection, as methods see it; None if it does not last."""
        return self._connection

    def receive(self, message: Message | list[Message]) -> None:
        """Process a message or a batch from the peer."""
        try:
            effects = self._view.receive(message)
        except Exception as error:  # noqa: BLE001 - a defect; requests are still answered
            defect = Internal.report("a request", error)
            effects = self._view.on_request_error(_request_ids(message), defect)
        self.perform(effects)

    def collect(self) -> list[bytes]:
        """Return the frames to write now: replies first, then new items of each run."""
        if self._ready_readers:
            readers, self._ready_readers = self._ready_readers, []
            for reader in readers:
                call = reader.tag
                if call is None:  # detached since it was queued
                    continue
                batch = reader.take()
                if not batch.events:
                    continue
                if batch.terminal is None:
                    if reader.poll():
                        self._ready_readers.append(reader)
                else:
                    del self._readers[call]
                    if self._timers:
                        self._cancel_timer(call)
                try:
                    effects = self._view.on_items(call, batch)
                except Exception as error:  # noqa: BLE001 - as in `receive`
                    effects = self._call_defect(call, error, batch.first)
                self._perform(effects)
        frames, self._frames = self._frames, []
        if self._on_collected:
            callbacks, self._on_collected = self._on_collected, []
            for callback in callbacks:
                callback()
        return frames

    def on_collected(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the next `collect`. Transports pause reading until then."""
        self._on_collected.append(callback)

    async def collected(self) -> None:
        """Wait for the next `collect`."""
        event = asyncio.Event()
        self.on_collected(event.set)
        await event.wait()

    def waiter(self) -> asyncio.Future[bool] | None:
        """Return what to await until there may be something to collect; None if there may be now.

        For tasks that wait for as long as a stream is open: `ready` is a coroutine more.
        """
        if self._ready_readers or self._frames or self.finished:
            return None
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

    async def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until there may be something to collect. Returns False after `timeout_s`."""
        waiter = self.waiter()
        if waiter is None:
            return True
        timer = None
        if timeout_s is not None:
            timer = waiter.get_loop().call_later(timeout_s, _time_out, waiter)
        try:
            return await waiter
        finally:
            if self._waiter is waiter:  # otherwise another task waits by now
                self._waiter = None
            if timer is not None:
                timer.cancel()

    @property
    def unsent(self) -> int:
        """Bytes of replies that were not collected yet."""
        return sum(map(len, self._frames))

    @property
    def reading(self) -> bool:
        """Whether this connection still reads any run, or waits for the run store."""
        return bool(self._readers) or bool(self._tasks)

    def position(self, call: Any) -> int:
        """Return the number of the last item that was read for a call; 0 before the first."""
        reader = self._readers.get(call)
        return 0 if reader is None else reader.seq

    def attach(self, call: Any, run: Run, after: int, *, owner: bool) -> None:
        """Read a run from the item after `after` on behalf of `call`."""
        reader = run.reader(after, self._on_reader_ready, owner=owner)
        self._readers[call] = reader
        reader.tag = call
        if run.purpose == "watch":
            self._had_watch = True
        if not owner and self._client is not None:
            run.watch(reader, self._client)
        if reader.poll():
            self._on_reader_ready(reader)

    def lost(self) -> None:
        """Handle a disconnect: nothing more can be written."""
        self.leave()
        self._frames = []

    def leave(self) -> None:
        """Leave all calls as after a disconnect. Frames that exist can still be collected."""
        self._perform(self._view.on_disconnect())
        self._stop_processing()

    def _stop_processing(self) -> None:
        """Stop processing items, timers, hub changes and tasks."""
        self._ready_readers = []
        if self._tasks is not None:
            self._tasks.cancel_all()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._connection is not None:
            self._connection.close()

    def finish(self) -> None:
        """Accept no more messages. `finished` becomes true once everything is collected."""
        self._perform(self._view.on_shutdown())
        self._finishing = True
        self.wake()

    def revoke(self, reason: str) -> None:
        """End the connection because the peer's credential is no longer valid.

        Cancels the runs that it owns and answers its pending requests with an error. `finished`
        becomes true once those replies are collected.
        """
        if self.revoked is not None:
            return
        self.revoked = reason
        self._perform(self._view.on_revoked(reason))
        for effect in () if self._tasks is None else self._tasks.cancel_all():
            self._fail(effect, Denied(reason))
        self._stop_processing()
        self._finishing = True
        self.wake()

    @property
    def finished(self) -> bool:
        """Whether everything is written and no more messages are accepted."""
        return self._finishing and not self.reading and not self._frames

    # --- effects ------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        """Perform effects and wake the transport if there is something to write."""
        self._perform(effects)
        if self._frames:
            self.wake()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.__class__ is Send:
                self._frames += effect.frames
            else:
                self._apply(effect)

    def _apply(self, effect: Effect, *, loaded: bool = False) -> None:
        """Perform an effect. `loaded`: the run that it needs was loaded before."""
        try:
            work = self._HANDLERS[effect.__class__](self, effect)
        except NotLoaded as missing:
            if loaded:
                self._fail(effect, missing)
            else:
                load = partial(self._hub.runs.load, missing.run_id, self._principal)
                self._start_task(effect, load, partial(self._on_loaded, effect))
        except PlexusError as error:
            self._fail(effect, error)
        else:
            if work is not None:
                self._start_task(effect, work, partial(self._report_outcome, effect))

    def _on_loaded(self, effect: Effect, error: PlexusError | None) -> None:
        if error is None:
            self._apply(effect, loaded=True)
        else:
            self._fail(effect, error)

    def _start_task(
        self, effect: Effect, work: Work, report: Callable[[PlexusError | None], None]
    ) -> None:
        if self._tasks is None:
            self._tasks = resolve(CONNECTION_TASKS)(self.wake)
        self._tasks.start(effect, work, report)

    def _fail(self, effect: Effect, error: PlexusError) -> None:
        """Report the error of an effect to the view, if it waits for the outcome."""
        if isinstance(effect, StartCall):
            self._hub.runs.notify_refused(effect.method, self._principal, error)
        if isinstance(effect, StartCall | AttachCall):
            refused = self._view.on_refused
            self._perform(self._call_view(effect.call, refused, effect.call, error))
        else:
            self._report_outcome(effect, error)

    def _report_outcome(self, effect: Effect, error: PlexusError | None) -> None:
        if isinstance(effect, Reported) and effect.call is not None:
            report = self._view.on_outcome
            self._perform(self._call_view(effect.call, report, effect, error))

    # --- calls --------------------------------------------------------------------------------

    def _start_call(self, effect: StartCall) -> None:
        if effect.at_limit or self._had_watch:
            self._check_limits(effect)
        try:
            call = self._hub.call(
                effect.spec or effect.method,
                effect.params,
                self._principal,
                question_kinds=effect.question_kinds,
                trace=effect.trace,
                caller=self._caller,
                client=effect.client or self._client,
                connection=self._connection,
                lookups=self._lookups,
            )
        except PlexusError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `receive`
            raise Internal.report(f"a call of {effect.method}", error) from None
        self.attach(effect.call, call.run, call.after, owner=call.owned and effect.owns)
        self._perform(self._call_view(effect.call, self._view.on_started, effect.call, call.run))

    def _check_limits(self, effect: StartCall) -> None:
        """Raise Busy if this call would exceed a limit of the connection."""
        spec = effect.spec or self._hub.resolve(effect.method, self._principal)
        purpose = spec.purpose
        limits = self._hub.limits
        if effect.at_limit and purpose != "control":
            raise connection_full(limits.calls_in_flight)
        if purpose == "watch":
            watches = sum(reader.run.purpose == "watch" for reader in self._readers.values())
            if watches >= limits.connection_watches:
                raise watches_full(limits.connection_watches)

    def _attach_call(self, effect: AttachCall) -> None:
        # An owner controls the run and needs its scope; a follower needs none.
        find = self._hub.find_run_to_control if effect.owns else self._hub.runs.find
        run = find(effect.run, self._principal)
        self.attach(effect.call, run, effect.after, owner=effect.owns)
        self._perform(self._call_view(effect.call, self._view.on_started, effect.call, run))

    def _call_view(
        self, call: Any, handler: Callable[..., list[Effect]], *args: Any
    ) -> list[Effect]:
        """Return the effects of a view handler, or those that end the call if it raises."""
        try:
            return handler(*args)
        except Exception as error:  # noqa: BLE001 - as in `receive`
            return self._call_defect(call, error, 1)

    def _call_defect(self, call: Any, error: Exception, seq: int) -> list[Effect]:
        """Cancel the run of a call whose view raised, and return the effects that end the call."""
        if call is None:  # not about a call, so no request is waiting
            Internal.report("a change notification", error)
            return []
        reader = self._readers.get(call)
        if reader is not None:
            reader.run.cancel("the response could not be created")
        self._leave_call(LeaveCall(call))
        return self._view.on_call_error(call, Internal.report("an answer", error), seq)

    def _leave_call(self, effect: LeaveCall) -> None:
        if self._tasks is not None:
            self._tasks.cancel(effect.call)
        reader = self._readers.pop(effect.call, None)
        if reader is None:
            return
        reader.tag = None
        self._cancel_timer(effect.call)
        run = reader.run
        owned = run.owned_by(reader)
        if owned and self._continues(run, effect):
            run.leave(reader)
            return
        if effect.keep:
            run.detach(reader, effect.within_s)
            return
        run.leave(reader)
        if owned and effect.cancel is not None:
            run.cancel(effect.cancel)

    def _continues(self, run: Run, effect: LeaveCall) -> bool:
        """Return whether a run continues without its caller."""
        if run.purpose != "work":
            return False
        requested = run.on_disconnect if isinstance(run, LocalRun) else None
        if effect.unsubscribed:
            return requested == "keep"
        spec = self._hub.find_method(run.method)
        declared = None if spec is None else spec.on_disconnect
        chosen = requested or declared or self._on_disconnect
        return effect.disconnected and chosen == "keep"

    def _set_timer(self, effect: SetTimer) -> None:
        call, after_s = effect.call, effect.after_s
        self._cancel_timer(call)
        if after_s >= COARSE_S:
            self._timers[call] = self._hub.timers.set(after_s, self._on_timer, call)
        else:
            loop = asyncio.get_running_loop()
            self._timers[call] = loop.call_later(after_s, self._on_timer, call)

    def _cancel_timer(self, call: Any) -> None:
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()

    def _on_timer(self, call: Any) -> None:
        del self._timers[call]
        self.perform(self._call_view(call, self._view.on_timer, call))

    def _watch_changes(self, _: WatchChanges) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._hub.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        self.perform(self._call_view(None, self._view.on_change, change))

    # --- runs ---------------------------------------------------------------------------------

    def _answer_question(self, effect: AnswerQuestion) -> Work | None:
        run = self._hub.find_run_to_control(effect.run, self._principal)
        if not isinstance(run, LocalRun):  # its process validates the answer
            return partial(run.respond, effect.request, effect.answer, self._answering_client(run))
        self._perform(self._call_view(effect.call, self._answer, run, effect))
        return None

    def _answer(self, run: LocalRun, effect: AnswerQuestion) -> list[Effect]:
        try:
            run.answer(effect.request, effect.answer, self._answering_client(run))
        except PlexusError as error:
            return self._view.on_outcome(effect, error)
        return self._view.on_outcome(effect, None)

    def _keep_run(self, effect: KeepRun) -> Work | None:
        runs = self._hub.runs
        run = runs.find(effect.run, self._principal)
        if not isinstance(run, LocalRun):
            return partial(cast("StoredRun", run).keep, effect.for_s)
        runs.keep(run, effect.for_s)
        self._report_outcome(effect, None)
        return None

    def _load_run(self, effect: LoadRun) -> Work:
        return partial(self._hub.runs.load, effect.run, self._principal)

    def _refuse_question(self, effect: RefuseQuestion) -> None:
        # Not found means that the run no longer waits for an answer.
        run = self._hub.find_run_to_control(effect.run, self._principal)
        run.refuse(effect.request, effect.error, self._answering_client(run))

    def _answering_client(self, run: Run) -> str | None:
        """Return the client that answers, which is the one that made the call."""
        return run.client or self._client

    def _cancel_run(self, effect: CancelRun) -> Work | None:
        # Not found means that the run has ended and is no longer retained.
        run = self._hub.find_run_to_control(effect.run, self._principal)
        if effect.call is not None and not isinstance(run, LocalRun):
            return partial(run.stop, effect.reason)
        run.cancel(effect.reason)
        self._report_outcome(effect, None)
        return None

    #: The handler of each effect except `Send`: returns the work that is left, and raises before it
    #: has changed anything. Shared by all instances, because over HTTP every message has its own
    #: connection.
    _HANDLERS: ClassVar[dict[type[Effect], Callable[[Any, Any], Work | None]]] = {
        StartCall: _start_call,
        AttachCall: _attach_call,
        LeaveCall: _leave_call,
        SetTimer: _set_timer,
        WatchChanges: _watch_changes,
        AnswerQuestion: _answer_question,
        RefuseQuestion: _refuse_question,
        CancelRun: _cancel_run,
        KeepRun: _keep_run,
        LoadRun: _load_run,
    }

    # --- waking -------------------------------------------------------------------------------

    def _on_reader_ready(self, reader: Reader) -> None:
        self._ready_readers.append(reader)
        self.wake()

    def wake(self) -> None:
        """Wake the transport so that it checks the state again."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None  # a burst of messages wakes once
            if not waiter.done():
                waiter.set_result(True)


def _request_ids(message: Message | list[Message]) -> list[wire.Id]:
    """Return the ids of the requests in a message or batch."""
    entries = message if isinstance(message, list) else [message]
    return [entry.id for entry in entries if isinstance(entry, wire.Request)]


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
