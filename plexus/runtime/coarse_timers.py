"""Timers of seconds that are usually cancelled, such as one for each open stream.

Timers that are due at about the same time share a slot, and all slots share one timer of the event
loop. A timer of the loop takes 0.7 KiB of memory, and to set and cancel it takes a microsecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

__all__ = ("RESOLUTION_S", "CoarseTimer", "CoarseTimers")

#: How much later than requested a timer may be due.
RESOLUTION_S: Final = 0.5


class CoarseTimer:
    """A timer that is set."""

    __slots__ = ("_slot", "argument", "callback")

    def __init__(
        self, slot: set[CoarseTimer], callback: Callable[[Any], None], argument: Any
    ) -> None:
        self._slot = slot
        self.callback = callback
        self.argument = argument

    def cancel(self) -> None:
        """Cancel the timer, unless it is due already."""
        self._slot.discard(self)


class CoarseTimers:
    """The timers of one event loop."""

    def __init__(self, resolution_s: float = RESOLUTION_S) -> None:
        self._resolution_s = resolution_s
        #: The timers by the number of the moment at which they are due.
        self._slots: dict[int, set[CoarseTimer]] = {}
        #: The timer of the event loop, and the slot that it is for.
        self._handle: asyncio.TimerHandle | None = None
        self._next = 0

    def set(self, after_s: float, callback: Callable[[Any], None], argument: Any) -> CoarseTimer:
        """Call `callback` with this argument after this time, or a little later."""
        now = asyncio.get_running_loop().time()
        due = int((now + after_s) / self._resolution_s) + 1
        slot = self._slots.get(due)
        if slot is None:
            slot = self._slots[due] = set()
            if self._handle is None or due < self._next:
                self._schedule(due)
        timer = CoarseTimer(slot, callback, argument)
        slot.add(timer)
        return timer

    def _schedule(self, due: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next = due
        loop = asyncio.get_running_loop()
        self._handle = loop.call_at(due * self._resolution_s, self._on_due)

    def _on_due(self) -> None:
        self._handle = None
        now = asyncio.get_running_loop().time()
        try:
            for due in sorted(self._slots):
                if due * self._resolution_s > now:
                    break
                slot = self._slots[due]
                while slot:
                    timer = slot.pop()
                    timer.callback(timer.argument)
                del self._slots[due]
        finally:
            # If a callback has raised, its slot is still there, and the rest of it is due now.
            if self._slots:
                self._schedule(min(self._slots))
