"""Backoff between attempts to start a server, and the circuit breaker that it amounts to.

After a failure the next attempt waits, each time twice as long. A call that would have to wait
longer than a moment fails immediately with the last error, so that a dead server delays no caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ("Breaker",)

#: Wait after the first failure, and the longest wait, in seconds.
FIRST_S: Final = 0.5
LONGEST_S: Final = 60.0
#: How long a call waits for the next attempt. Past that the circuit is open.
PATIENCE_S: Final = 1.5
#: A session that lasted this long was a success: its loss restarts the backoff.
STABLE_S: Final = 30.0


class Breaker:
    """Counts the failures in a row of one server."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.failures = 0
        self._retry_at = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt."""
        return max(self._retry_at - self._monotonic(), 0.0)

    @property
    def is_open(self) -> bool:
        """Whether calls fail immediately."""
        return self.wait_s > PATIENCE_S

    def on_failure(self, lasted_s: float = 0.0) -> None:
        """Count a start that failed, or the loss of a session that lasted this long."""
        self.failures = 1 if lasted_s >= STABLE_S else self.failures + 1
        wait = min(FIRST_S * 2 ** (min(self.failures, 20) - 1), LONGEST_S)
        self._retry_at = self._monotonic() + wait

    def on_success(self) -> None:
        """Allow attempts immediately; failures are counted until a session has proved stable."""
        self._retry_at = 0.0

    def reset(self) -> None:
        """Forget all failures, because a person asks for another attempt."""
        self.failures = 0
        self._retry_at = 0.0
