"""What a view tells its driver to do.

A view is sans-IO: messages and items go in, effects come out. Both views speak these effects,
so one driver runs either of them over any transport. They are plain slotted classes: one or two
are made for every message, and a dataclass costs half a millisecond of every start to define.
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ("Effect", "LeaveCall", "Send", "StartCall")


class Send:
    """Write these frames, in this order, after whatever was to be written before."""

    __slots__ = ("frames",)

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames


class StartCall:
    """Call a method; the driver answers with `on_started` or `on_refused` and this `call`.

    Whoever `owns` the run holds it back by not reading; one that nobody reads must not be held.
    """

    __slots__ = ("call", "method", "owns", "params")

    def __init__(
        self,
        call: Any,
        method: str,
        params: dict[str, Any] | list[Any] | None,
        *,
        owns: bool = True,
    ) -> None:
        self.call = call
        self.method = method
        self.params = params
        self.owns = owns


class LeaveCall:
    """Read this call no further; after its terminal that goes without saying.

    `cancel` gives the reason if its run is to be stopped too; without one, `keep` says whether
    its place is held for a caller that may come back.
    """

    __slots__ = ("call", "cancel", "keep")

    def __init__(self, call: Any, cancel: str | None = None, *, keep: bool = False) -> None:
        self.call = call
        self.cancel = cancel
        self.keep = keep


Effect: TypeAlias = Send | StartCall | LeaveCall
