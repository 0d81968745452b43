"""One request to a server, from its first message to its result."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from mcp_view.client.errors import UpstreamError
from mcp_view.client.items import CallItem, LogMessage, Progress, Question
from plexus.limits import MIB

__all__ = ("BYTES_MAX", "ITEMS_MAX", "ClientCall")

#: Unread items of one call, and their bytes as messages. Past either, a progress notification
#: replaces the one before it, and log messages are dropped and counted.
ITEMS_MAX: Final = 50_000
BYTES_MAX: Final = 32 * MIB


class ClientCall:
    """The state of a request. The owner reads `take`, `is_done`, `result` and `error`."""

    __slots__ = (
        "_bytes",
        "dropped",
        "error",
        "id",
        "is_announced",
        "is_done",
        "is_resent",
        "items",
        "meta",
        "method",
        "params",
        "questions",
        "responses",
        "result",
        "rounds",
        "state",
        "task",
        "tracks_progress",
    )

    def __init__(self, method: str, params: dict[str, Any], meta: dict[str, Any] | None) -> None:
        self.method = method
        self.params = params
        self.meta = meta
        #: The id of the request in progress; a call that is continued has several, one by one.
        self.id = 0
        self.tracks_progress = False
        self.items: deque[CallItem] = deque()
        self._bytes = 0
        self.dropped = 0
        self.result: dict[str, Any] | None = None
        self.error: UpstreamError | None = None
        self.is_done = False
        #: Whether the driver knows that there is something to take.
        self.is_announced = False
        #: Whether the request was repeated because the server had forgotten the session.
        self.is_resent = False
        #: Open questions of `input_required`, by key.
        self.questions: dict[str, Question] = {}
        #: Answers to them, by key.
        self.responses: dict[str, Any] = {}
        #: The `requestState` to return; None if there is none.
        self.state: str | None = None
        self.rounds = 0
        #: The id of the task that the server made of the call.
        self.task: str | None = None

    def take(self) -> list[CallItem]:
        """Return the unread items and remove them."""
        found = list(self.items)
        self.items.clear()
        self._bytes = 0
        self.is_announced = False
        return found

    def add(self, item: CallItem, size: int) -> None:
        """Append an item of a message of this size, within the limits."""
        items = self.items
        if len(items) >= ITEMS_MAX or self._bytes + size > BYTES_MAX:
            kind = item.__class__
            if kind is Progress and items and items[-1].__class__ is Progress:
                items[-1] = item
                self.dropped += 1
                return
            if kind is LogMessage or kind is Progress:
                self.dropped += 1
                return
        self._bytes += size
        items.append(item)

    def end(self, result: dict[str, Any] | None, error: UpstreamError | None) -> None:
        """Set the outcome."""
        self.is_done = True
        self.result = result
        self.error = error
