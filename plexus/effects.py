"""What a view tells its driver to do.

A view is sans-IO: messages and items go in, effects come out. Both views speak these effects,
so one driver runs either of them over any transport. They are plain slotted classes: one or two
are made for every message, and a dataclass costs half a millisecond of every start to define.
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ("Close", "Effect", "LeaveCall", "Send", "StartCall")


class Send:
    """Write these frames, in this order, after whatever was to be written before."""

    __slots__ = ("frames",)

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames


class StartCall:
    """Call a method; the driver answers with `on_started` or `on_refused` and this `call`."""

    __slots__ = ("call", "method", "params")

    def __init__(self, call: Any, method: str, params: dict[str, Any] | list[Any] | None) -> None:
        self.call = call
        self.method = method
        self.params = params


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


class Close:
    """End the connection when everything before this is written."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Effect: TypeAlias = Send | StartCall | LeaveCall | Close
