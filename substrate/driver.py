"""The driver: runs a view over a hub, for whatever transport carries its frames.

A transport feeds messages with `receive`, waits with `ready`, and writes what `collect`
returns; it calls `lost` when the peer is gone. The driver carries out the view's effects. It has
no task of its own: replies are collected before items, and a run's items are taken only when
the transport asks for more, so a peer that does not read holds back exactly its own runs.

Whatever raises inside a view, its request is answered: with an internal error and the number under
which the log has the defect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from plexus.errors import Internal, NotFound, PlexusError
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.rpc.effects import (
    AnswerQuestion,
    AttachCall,
    CancelRun,
    Effect,
    KeepRun,
    LeaveCall,
    RefuseQuestion,
    Send,
    SetTimer,
    StartCall,
    WatchChanges,
)
from plexus.rpc.wire import Message
from plexus.runtime.changes import Change
from plexus.runtime.hub import Plexus
from plexus.runtime.log import Batch, Reader
from plexus.runtime.run import Run
from plexus.runtime.shares import connection_full, watches_full

__all__ = ("Connection", "View")


class View(Protocol):
    """What the driver asks of a view."""

    def receive(self, message: Message | list[Message]) -> list[Effect]: ...
    def on_started(self, call: Any, run: Run) -> list[Effect]: ...
    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]: ...
    def on_items(self, call: Any, batch: Batch) -> list[Effect]: ...
    def on_timer(self, call: Any) -> list[Effect]: ...
    def on_outcome(
        self, effect: AnswerQuestion | KeepRun, error: PlexusError | None
    ) -> list[Effect]: ...
    def on_change(self, change: Change) -> list[Effect]: ...
    def on_defect(self, requests: list[wire.Id], error: PlexusError) -> list[Effect]: ...
    def on_call_defect(self, call: Any, error: PlexusError, seq: int) -> list[Effect]: ...
    def on_shutdown(self) -> list[Effect]: ...
    def revoked(self, reason: str) -> list[Effect]: ...
    def peer_gone(self) -> list[Effect]: ...


class Connection:
    """One peer, from its first message until it is gone."""

    __slots__ = (
        "_awake",
        "_finishing",
        "_frames",
        "_has_watched",
        "_hub",
        "_principal",
        "_readers",
        "_timers",
        "_unwatch",
        "_view",
        "_waiter",
        "_when_collected",
        "revoked",
    )

    def __init__(self, hub: Plexus, view: View, principal: Principal) -> None:
        self._hub = hub
        self._view = view
        self._principal = principal
        self._frames: list[bytes] = []
        self._readers: dict[Any, Reader] = {}
        self._awake: list[Reader] = []
        self._waiter: asyncio.Future[bool] | None = None
        self._when_collected: list[Callable[[], None]] = []
        self._finishing = False
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        self._unwatch: Callable[[], None] | None = None
        #: Whether a standing watch was ever read here: only then are they counted.
        self._has_watched = False
        #: Why its credential is no longer valid; None while it is.
        self.revoked: str | None = None

    # --- for the transport --------------------------------------------------------------------

    def receive(self, message: Message | list[Message]) -> None:
        """A message has arrived."""
        try:
            effects = self._view.receive(message)
        except Exception as error:  # noqa: BLE001 - a defect; what was asked is answered all the same
            defect = Internal.report("a request", error)
            effects = self._view.on_defect(_requests_in(message), defect)
        self.perform(effects)

    def collect(self) -> list[bytes]:
        """What there is to write now: replies first, then what each run has said since."""
        if self._awake:
            awake, self._awake = self._awake, []
            for reader in awake:
                call = reader.tag
                if call is None:  # it was left meanwhile
                    continue
                batch = reader.take()
                if not batch.events:
                    continue
                if batch.terminal is None:
                    if reader.poll():
                        self._awake.append(reader)
                else:
                    del self._readers[call]
                    if self._timers:
                        self._cancel_timer(call)
                try:
                    effects = self._view.on_items(call, batch)
                except Exception as error:  # noqa: BLE001 - as for a message
                    effects = self._call_defect(call, error, batch.first)
                self._run(effects)
        frames, self._frames = self._frames, []
        if self._when_collected:
            called, self._when_collected = self._when_collected, []
            for then in called:
                then()
        return frames

    def when_collected(self, then: Callable[[], None]) -> None:
        """Call this when what there is has been collected: how a transport stops reading from a
        peer that does not take its replies."""
        self._when_collected.append(then)

    async def collected(self) -> None:
        """Wait until what there is has been collected."""
        taken = asyncio.Event()
        self.when_collected(taken.set)
        await taken.wait()

    async def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until there may be something to collect; False if there was nothing for so long."""
        if self._awake or self._frames or self.finished:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = None if timeout_s is None else loop.call_later(timeout_s, _time_out, waiter)
        try:
            return await waiter
        finally:
            if self._waiter is waiter:  # another may wait by now
                self._waiter = None
            if timer is not None:
                timer.cancel()

    @property
    def unsent(self) -> int:
        """Bytes of replies that wait to be collected."""
        return sum(map(len, self._frames))

    @property
    def reading(self) -> bool:
        """Whether any run is still being read here."""
        return bool(self._readers)

    def attach(self, call: Any, run: Run, after: int, *, owner: bool) -> None:
        """Read a run that was not called here."""
        reader = run.reader(after, self._reader_woke, owner=owner)
        self._readers[call] = reader
        reader.tag = call
        if run.purpose == "watch":
            self._has_watched = True
        if reader.poll():
            self._reader_woke(reader)

    def lost(self) -> None:
        """The peer is gone: nothing more can be written."""
        self._run(self._view.peer_gone())
        self._frames = []
        self._stop_listening()

    def _stop_listening(self) -> None:
        """Take nothing more from runs, timers and changes of the hub."""
        self._awake = []
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def finish(self) -> None:
        """No more messages will come; `finished` turns true when all is collected."""
        self._run(self._view.on_shutdown())
        self._finishing = True
        self.wake()

    def revoke(self, reason: str) -> None:
        """End because the peer's credential is no longer valid.

        The runs that it owns are cancelled and its pending requests answered with an error, which
        is all that is left to collect: `finished` turns true after that.
        """
        if self.revoked is not None:
            return
        self.revoked = reason
        self._run(self._view.revoked(reason))
        self._stop_listening()
        self._finishing = True
        self.wake()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to write and nothing will come."""
        return self._finishing and not self._readers and not self._frames

    # --- effects ------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        """Carry out effects and wake the transport if there is something to write."""
        self._run(effects)
        if self._frames:
            self.wake()

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.__class__ is Send:
                self._frames += effect.frames
            else:
                self._CARRY_OUT[effect.__class__](self, effect)

    def _start_call(self, effect: StartCall) -> None:
        try:
            if effect.at_limit or self._has_watched:
                self._check_room(effect)
            call = self._hub.call(
                effect.spec or effect.method,
                effect.params,
                self._principal,
                question_kinds=effect.question_kinds,
                trace=effect.trace,
            )
        except Exception as error:  # noqa: BLE001 - as for a message
            called = f"a call of {effect.method}"
            refusal = error if isinstance(error, PlexusError) else Internal.report(called, error)
            self._hub.runs.notify_refused(effect.method, self._principal, refusal)
            self._run(self._view.on_refused(effect.call, refusal))
            return
        self.attach(effect.call, call.run, call.after, owner=call.owned and effect.owns)
        self._run(self._tried(effect.call, self._view.on_started, effect.call, call.run))

    def _check_room(self, effect: StartCall) -> None:
        """Raise Busy if this connection may not begin one more call of this kind."""
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
        try:
            # An owner decides when the run ends; following it needs no scope.
            find = self._hub.find_run_to_control if effect.owns else self._hub.runs.find
            run = find(effect.run, self._principal)
        except PlexusError as error:
            self._run(self._view.on_refused(effect.call, error))
            return
        self.attach(effect.call, run, effect.after, owner=effect.owns)
        self._run(self._tried(effect.call, self._view.on_started, effect.call, run))

    def _tried(self, call: Any, handler: Callable[..., list[Effect]], *given: Any) -> list[Effect]:
        """Return what a handler of the view wants, or what ends the call if the handler fails."""
        try:
            return handler(*given)
        except Exception as error:  # noqa: BLE001 - as for a message
            return self._call_defect(call, error, 1)

    def _call_defect(self, call: Any, error: Exception, seq: int) -> list[Effect]:
        """Return what ends a call whose view failed; its run is stopped."""
        if call is None:  # it was about no call, so nothing waits for an answer
            Internal.report("a change notification", error)
            return []
        reader = self._readers.get(call)
        if reader is not None:
            reader.run.cancel("its answer could not be made")
        self._leave_call(LeaveCall(call))
        return self._view.on_call_defect(call, Internal.report("an answer", error), seq)

    def _leave_call(self, effect: LeaveCall) -> None:
        reader = self._readers.pop(effect.call, None)
        if reader is None:
            return
        reader.tag = None
        self._cancel_timer(effect.call)
        run = reader.run
        owned = run.owned_by(reader)
        if effect.keep:
            run.detach(reader, effect.within_s)
            return
        run.leave(reader)
        if owned and effect.cancel is not None:
            run.cancel(effect.cancel)

    def _set_timer(self, effect: SetTimer) -> None:
        self._cancel_timer(effect.call)
        loop = asyncio.get_running_loop()
        self._timers[effect.call] = loop.call_later(effect.after_s, self._on_timer, effect.call)

    def _cancel_timer(self, call: Any) -> None:
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()

    def _on_timer(self, call: Any) -> None:
        del self._timers[call]
        self.perform(self._tried(call, self._view.on_timer, call))

    def _watch_changes(self, _: WatchChanges) -> None:
        if self._unwatch is None:
            self._unwatch = self._hub.on_change(self._changed)

    def _changed(self, change: Change) -> None:
        self.perform(self._tried(None, self._view.on_change, change))

    # --- runs ---------------------------------------------------------------------------------

    def _answer_question(self, effect: AnswerQuestion) -> None:
        def answer() -> None:
            run = self._hub.find_run_to_control(effect.run, self._principal)
            run.answer(effect.request, effect.answer)

        self._run(self._tried(effect.call, self._outcome, effect, answer))

    def _keep_run(self, effect: KeepRun) -> None:
        def keep() -> None:
            runs = self._hub.runs
            runs.keep(runs.find(effect.run, self._principal), effect.for_s)

        self._run(self._tried(effect.call, self._outcome, effect, keep))

    def _outcome(
        self, effect: AnswerQuestion | KeepRun, change: Callable[[], None]
    ) -> list[Effect]:
        """Change a run, and return what the view does about the outcome."""
        try:
            change()
        except PlexusError as error:
            return self._view.on_outcome(effect, error)
        return self._view.on_outcome(effect, None)

    def _refuse_question(self, effect: RefuseQuestion) -> None:
        with contextlib.suppress(NotFound):  # the run does not wait for it any more
            run = self._hub.find_run_to_control(effect.run, self._principal)
            run.refuse(effect.request, effect.error)

    def _cancel_run(self, effect: CancelRun) -> None:
        with contextlib.suppress(NotFound):  # it ended long ago
            self._hub.find_run_to_control(effect.run, self._principal).cancel(effect.reason)

    #: How each effect but `Send` is carried out. It is no part of an instance: over HTTP every
    #: message has a connection of its own.
    _CARRY_OUT: ClassVar[dict[type[Effect], Callable[[Any, Any], None]]] = {
        StartCall: _start_call,
        AttachCall: _attach_call,
        LeaveCall: _leave_call,
        SetTimer: _set_timer,
        WatchChanges: _watch_changes,
        AnswerQuestion: _answer_question,
        RefuseQuestion: _refuse_question,
        CancelRun: _cancel_run,
        KeepRun: _keep_run,
    }

    # --- waking -------------------------------------------------------------------------------

    def _reader_woke(self, reader: Reader) -> None:
        self._awake.append(reader)
        self.wake()

    def wake(self) -> None:
        """Wake the transport, to check again."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None  # a burst of messages wakes once
            if not waiter.done():
                waiter.set_result(True)


def _requests_in(message: Message | list[Message]) -> list[wire.Id]:
    """Return the ids of what wants an answer."""
    entries = message if isinstance(message, list) else [message]
    return [entry.id for entry in entries if isinstance(entry, wire.Request)]


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
