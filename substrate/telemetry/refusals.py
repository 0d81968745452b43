"""Refused requests and calls, which never become a run: all are counted, log lines are limited.

A flood of bad requests must not become a flood of log lines, so lines are rate limited. The next
line has the number of suppressed ones.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from plexus.errors import PlexusError
from plexus.principal import Principal
from plexus.token_bucket import TokenBucket

__all__ = ("OnRefused", "Refusals", "address_of")

logger = logging.getLogger("substrate.telemetry.refusals")

#: Callback for a refused request: a reason code, the client's address, the HTTP status.
OnRefused = Callable[[str, str | None, int | None], None]

#: Maximum burst of log lines, and sustained lines per second.
BURST: Final = 20
PER_S: Final = 5.0
#: Maximum number of distinct reasons. Plugin authors can choose error codes freely.
REASONS: Final = 64
OTHER: Final = "other"
#: Maximum characters of a logged method name, which a client can choose.
NAME_CHARS: Final = 128


def address_of(scope: Mapping[str, Any]) -> str | None:
    """Return the address of the client of a request; None if the transport has none."""
    client = scope.get("client")
    return None if client is None else client[0]


class Refusals:
    """The refusals of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: The number of refusals by reason.
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._line_bucket = TokenBucket(BURST, PER_S, clock())
        self._suppressed = 0

    def request(self, reason: str, address: str | None, status: int | None = None) -> None:
        """Record a refused request."""
        self._count(reason)
        if self._may_log():
            self._log("request refused", reason=reason, address=address, status=status)

    def call(self, method: str, principal: Principal, error: PlexusError) -> None:
        """Record a refused call, without the error text: it may quote arguments."""
        self._count(error.code)
        if self._may_log():
            self._log(
                "call refused",
                reason=error.code,
                method=method[:NAME_CHARS],
                principal=principal.name,
            )

    def _count(self, reason: str) -> None:
        known = reason in self.counts or len(self.counts) < REASONS
        self.counts[reason if known else OTHER] += 1

    def _may_log(self) -> bool:
        if not logger.isEnabledFor(logging.INFO):
            return False
        if self._line_bucket.take(self._clock()):
            self._suppressed += 1
            return False
        return True

    def _log(self, message: str, **fields: str | int | None) -> None:
        present = {name: value for name, value in fields.items() if value is not None}
        if self._suppressed:
            present["unsaid"] = self._suppressed
            self._suppressed = 0
        logger.info(message, extra={"fields": present})
