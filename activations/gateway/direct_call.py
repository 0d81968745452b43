"""A call in a session that is open: the request is sent immediately, and the run has no task.

Nearly all calls of tools are answered with their result and nothing else. Such a run ends in the
callback that has received the result. As soon as anything else happens, the pump takes it over:
progress, logs, a question, an error, or its cancellation.

It saves two turns of the event loop and a task: 18 % of what a mount adds to a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from activations.gateway.session_pool import Entry, SessionPool
from activations.gateway.transports.upstream_call import UpstreamCall
from plexus.events import Terminal

if TYPE_CHECKING:  # imported for annotations only
    from plexus.context import Context
    from plexus.runtime.run import LocalRun

__all__ = ("DirectCall", "StartedCall")

#: A stream of the pump may yield anything.
UNDECLARED: Final[tuple[type, ...]] = ()


class StartedCall(NamedTuple):
    """A request that was sent, in a session of the pool."""

    entry: Entry
    number: int
    call: UpstreamCall
    started_at: float


class DirectCall:
    """A run that waits for the answer to its request, without a task."""

    __slots__ = ("_continue", "_ctx", "_pool", "_read", "_run", "_started")

    def __init__(
        self,
        run: LocalRun,
        ctx: Context,
        pool: SessionPool,
        started: StartedCall,
        *,
        read: Callable[[dict[str, Any]], Terminal],
        continues: Callable[[StartedCall], Any],
    ) -> None:
        """Follow a request that was sent.

        `read` makes the terminal of a result, and `continues` the stream of a call that has more.
        """
        self._run = run
        self._ctx = ctx
        self._pool = pool
        self._started = started
        self._read = read
        self._continue = continues
        run.task = self
        started.call.on_wake = self._on_wake
        if started.call.is_done:  # the session has just ended
            self._on_wake()

    def _on_wake(self) -> None:
        entry, number, call, started_at = self._started
        result = call.only_result
        if result is None:
            self._hand_over(partial(self._continue, self._started))
            return
        self._release()
        self._pool.release(entry, number, time.monotonic() - started_at)
        self._ctx.plexus.pump.finish(self._run, partial(self._read, result))

    def cancel(self) -> None:
        """Cancel the request. The pump ends the run."""
        entry, number, call, _ = self._started
        self._hand_over(partial(self._continue, self._started))
        call.cancel()
        self._pool.release(entry, number)

    def _hand_over(self, function: Callable[[], Any]) -> None:
        self._release()
        self._ctx.plexus.pump.submit((self._run, function, {}, UNDECLARED))

    def _release(self) -> None:
        self._started.call.on_wake = None
        self._run.task = None
