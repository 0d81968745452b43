"""What is turned away before there is a run: counted all, and logged within a bound.

A flood of bad requests must not become a flood of lines, so there are at most so many lines a
second; the next one that is written says how many were not.
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

#: Who is told of a request that is refused: a word for the reason, the peer's address, the status.
OnRefused = Callable[[str, str | None, int | None], None]

#: Lines at once, and lines a second after that.
BURST: Final = 20
PER_S: Final = 5.0
#: How many reasons are told apart: the codes of errors are their authors' to choose.
REASONS: Final = 64
OTHER: Final = "other"
#: How much of what a peer called a method is logged.
NAME_CHARS: Final = 128


def address_of(scope: Mapping[str, Any]) -> str | None:
    """Return the address of the client of a request; None if the transport has none."""
    client = scope.get("client")
    return None if client is None else client[0]


class Refusals:
    """The refusals of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: How many there were, by reason.
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._lines = TokenBucket(BURST, PER_S, clock())
        self._unsaid = 0

    def request(self, reason: str, address: str | None, status: int | None = None) -> None:
        """A request was refused: a word for why, and who sent it."""
        self._count(reason)
        if self._may_log():
            self._log("request refused", reason=reason, address=address, status=status)

    def call(self, method: str, principal: Principal, error: PlexusError) -> None:
        """A call was refused. Its arguments, which the error may quote, are nobody's business."""
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
        if self._lines.take(self._clock()):
            self._unsaid += 1
            return False
        return True

    def _log(self, message: str, **fields: str | int | None) -> None:
        said = {name: value for name, value in fields.items() if value is not None}
        if self._unsaid:
            said["unsaid"] = self._unsaid
            self._unsaid = 0
        logger.info(message, extra={"fields": said})
