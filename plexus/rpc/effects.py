"""What a view tells its driver to do.

A view is sans-IO: messages and items go in, effects come out. Both views speak these effects,
so one driver runs either of them over any transport. They are plain slotted classes: one or two
are made for every message, and a dataclass costs half a millisecond of every start to define.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ("AttachCall", "Effect", "LeaveCall", "Remind", "Send", "StartCall", "WatchChanges")


class Send:
    """Write these frames, in this order, after whatever was to be written before."""

    __slots__ = ("frames",)

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames


class StartCall:
    """Call a method; the driver answers with `on_started` or `on_refused` and this `call`.

    Whoever `owns` the run holds it back by not reading; one that nobody reads must not be held.
    `asks` are the kinds of questions that this caller can answer; None stands for all. `trace` is
    the trace context that came with the request, as W3C's headers have it. `crowded` is whether
    the connection has as many calls under way as it may: then only a control method is called.
    """

    __slots__ = ("asks", "call", "crowded", "method", "owns", "params", "trace")

    def __init__(
        self,
        call: Any,
        method: str,
        params: dict[str, Any] | list[Any] | None,
        *,
        owns: bool = True,
        asks: frozenset[str] | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        self.call = call
        self.crowded = False
        self.method = method
        self.params = params
        self.owns = owns
        self.asks = asks
        self.trace = trace


class AttachCall:
    """Read a run that exists, from after this item; answered as `StartCall` is."""

    __slots__ = ("after", "call", "owns", "run")

    def __init__(self, call: Any, run: int, after: int = 0, *, owns: bool = False) -> None:
        self.call = call
        self.run = run
        self.after = after
        self.owns = owns


class LeaveCall:
    """Read this call no further; after its terminal that goes without saying.

    `cancel` gives the reason if its run is to be stopped too; without one, `keep` says whether
    its place is held for a caller that may come back, and `within_s` for how long, if not for as
    long as usual.
    """

    __slots__ = ("call", "cancel", "keep", "within_s")

    def __init__(
        self,
        call: Any,
        cancel: str | None = None,
        *,
        keep: bool = False,
        within_s: float | None = None,
    ) -> None:
        self.call = call
        self.cancel = cancel
        self.keep = keep
        self.within_s = within_s


class Remind:
    """Call `on_reminder` with this call after so many seconds, unless it has ended by then.

    A call has one reminder; a later one takes its place.
    """

    __slots__ = ("after_s", "call")

    def __init__(self, call: Any, after_s: float) -> None:
        self.call = call
        self.after_s = after_s


class WatchChanges:
    """From now on call `on_change` when the hub changes."""

    __slots__ = ()


Effect: TypeAlias = Send | StartCall | AttachCall | LeaveCall | Remind | WatchChanges
