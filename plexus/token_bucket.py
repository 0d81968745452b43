"""Token-bucket rate limiter, with a burst and an average rate.

It reads no clock: the time is passed in, in seconds of any monotonic clock.
"""

from __future__ import annotations

from typing import Final

__all__ = ("TokenBucket",)

#: What counts as a whole token: a timer that was set for the time of the next token may fire
#: slightly early.
WHOLE_TOKEN: Final = 0.999


class TokenBucket:
    """A bucket of at most `burst` tokens that gains `per_s` tokens a second; it starts full."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated_at")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = burst
        self._updated_at = now

    def take(self, now: float) -> float:
        """Take a token. Return 0, or the seconds until one is available."""
        tokens = self._tokens + (now - self._updated_at) * self._per_s
        self._tokens = tokens = min(tokens, self._burst)
        self._updated_at = now
        if tokens < WHOLE_TOKEN:
            return (1 - tokens) / self._per_s
        self._tokens = tokens - 1
        return 0.0

    def charge(self, count: int) -> None:
        """Take `count` tokens unconditionally; a deficit delays later ones."""
        self._tokens -= count

    def wait_s(self, now: float) -> float:
        """Return the seconds until a token is available, without taking it."""
        tokens = self._tokens + (now - self._updated_at) * self._per_s
        return max((1 - tokens) / self._per_s, 0.0)
