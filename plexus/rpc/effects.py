"""Effects: what a view instructs its driver to do.

A view is sans-IO: it receives messages and items, and returns effects. Both views return these
effects, so one driver runs either view over any transport, and no view changes a run or the hub.
They are plain slotted classes: one or two are created for every message, and defining a dataclass
costs half a millisecond at every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from plexus.errors import PlexusError
from plexus.registry.signature import MethodSpec

if TYPE_CHECKING:  # only named in the interface of views
    from plexus.rpc.wire import Id, Message
    from plexus.runtime.changes import Change
    from plexus.runtime.log import Batch
    from plexus.runtime.run import Run

__all__ = (
    "AnswerQuestion",
    "AttachCall",
    "CancelRun",
    "Effect",
    "KeepRun",
    "LeaveCall",
    "LoadRun",
    "RefuseQuestion",
    "Reported",
    "Send",
    "SetTimer",
    "StartCall",
    "View",
    "WatchChanges",
)


class Send:
    """Write these frames in order, after those of earlier effects."""

    __slots__ = ("frames",)

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames


class StartCall:
    """Call a method; the driver reports `on_started` or `on_refused` with this `call`.

    `spec` is the method, if the view has already looked it up. A caller that `owns` the run applies
    backpressure by not reading. `question_kinds` are those that this caller can answer; None for
    all. `trace` is the W3C trace context of the request. `client` is the name and version of the
    client; None if the view does not know them. `at_limit` is whether the connection has reached
    its limit of calls: then only a control method is called.
    """

    __slots__ = (
        "at_limit",
        "call",
        "client",
        "method",
        "owns",
        "params",
        "question_kinds",
        "spec",
        "trace",
    )

    def __init__(
        self,
        call: Any,
        method: str,
        params: dict[str, Any] | list[Any] | None,
        *,
        spec: MethodSpec | None = None,
        owns: bool = True,
        question_kinds: frozenset[str] | None = None,
        trace: Mapping[str, str] | None = None,
        client: str | None = None,
    ) -> None:
        self.call = call
        self.at_limit = False
        self.method = method
        self.params = params
        self.spec = spec
        self.owns = owns
        self.question_kinds = question_kinds
        self.trace = trace
        self.client = client


class AttachCall:
    """Read an existing run from after this item; reported like `StartCall`."""

    __slots__ = ("after", "call", "owns", "run")

    def __init__(self, call: Any, run: int, after: int = 0, *, owns: bool = False) -> None:
        self.call = call
        self.run = run
        self.after = after
        self.owns = owns


class LeaveCall:
    """Stop reading the run of this call. Not needed after its terminal.

    `cancel` is a reason if the run must be cancelled too. Otherwise `keep` is whether its position
    is kept for a caller that may reconnect, and `within_s` for how long; None for the default.
    `disconnected` is whether the caller's connection was lost: then the run continues without an
    owner if its method or the connection requires that, whatever the other fields are.
    `unsubscribed` is whether the caller reads it no longer: then the run continues only if the
    caller has asked for that when it started the run.
    """

    __slots__ = ("call", "cancel", "disconnected", "keep", "unsubscribed", "within_s")

    def __init__(
        self,
        call: Any,
        cancel: str | None = None,
        *,
        keep: bool = False,
        within_s: float | None = None,
        disconnected: bool = False,
        unsubscribed: bool = False,
    ) -> None:
        self.call = call
        self.cancel = cancel
        self.disconnected = disconnected
        self.keep = keep
        self.unsubscribed = unsubscribed
        self.within_s = within_s


class SetTimer:
    """Call `on_timer` with this call after this time, unless it has ended by then.

    A call has one timer; a later one replaces it.
    """

    __slots__ = ("after_s", "call")

    def __init__(self, call: Any, after_s: float) -> None:
        self.call = call
        self.after_s = after_s


class WatchChanges:
    """Call `on_change` on every change of the hub from now on."""

    __slots__ = ()


class AnswerQuestion:
    """Answer a question of a run; None declines it. The driver reports with `on_outcome`."""

    __slots__ = ("answer", "call", "request", "run")

    def __init__(self, call: Any, run: int, request: str, answer: Any) -> None:
        self.call = call
        self.run = run
        self.request = request
        self.answer = answer


class RefuseQuestion:
    """Raise this error in a run that waits for an answer, if it still does."""

    __slots__ = ("error", "request", "run")

    def __init__(self, run: int, request: str, error: PlexusError) -> None:
        self.run = run
        self.request = request
        self.error = error


class CancelRun:
    """Cancel a run for this reason, if it is still in progress.

    With a `call`, the driver reports with `on_outcome`.
    """

    __slots__ = ("call", "reason", "run")

    def __init__(self, run: int, reason: str, call: Any = None) -> None:
        self.run = run
        self.reason = reason
        self.call = call


class KeepRun:
    """Retain a run for this time. The driver reports with `on_outcome`."""

    __slots__ = ("call", "for_s", "run")

    def __init__(self, call: Any, run: int, for_s: float) -> None:
        self.call = call
        self.run = run
        self.for_s = for_s


class LoadRun:
    """Load a run from the run store, so that it can be found for a moment.

    `run` is its number, or None for all runs with a guaranteed retention. The driver reports with
    `on_outcome`.
    """

    __slots__ = ("call", "run")

    def __init__(self, call: Any, run: int | None) -> None:
        self.call = call
        self.run = run


Effect: TypeAlias = (
    Send
    | StartCall
    | AttachCall
    | LeaveCall
    | SetTimer
    | WatchChanges
    | AnswerQuestion
    | RefuseQuestion
    | CancelRun
    | KeepRun
    | LoadRun
)


#: Effects whose outcome the driver reports with `on_outcome`.
Reported: TypeAlias = AnswerQuestion | CancelRun | KeepRun | LoadRun


class View(Protocol):
    """The interface of a protocol view: each handler returns effects."""

    def receive(self, message: Message | list[Message]) -> list[Effect]: ...
    def on_started(self, call: Any, run: Run) -> list[Effect]: ...
    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]: ...
    def on_items(self, call: Any, batch: Batch) -> list[Effect]: ...
    def on_timer(self, call: Any) -> list[Effect]: ...
    def on_outcome(self, effect: Reported, error: PlexusError | None) -> list[Effect]: ...
    def on_change(self, change: Change) -> list[Effect]: ...
    def on_request_error(self, requests: list[Id], error: PlexusError) -> list[Effect]: ...
    def on_call_error(self, call: Any, error: PlexusError, seq: int) -> list[Effect]: ...
    def on_shutdown(self) -> list[Effect]: ...
    def on_revoked(self, reason: str) -> list[Effect]: ...
    def on_disconnect(self) -> list[Effect]: ...
