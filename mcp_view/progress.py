"""Progress notifications for a client with a progress token.

Values increase strictly, whatever the events contain. Events are coalesced to a maximum rate of
notifications, with their texts joined. A silent run gets a heartbeat, because clients time out
without one. Time is a parameter.
"""

from __future__ import annotations

import math
from typing import Final

from mcp_view.replies import NotifyCounted
from mcp_view.revisions import Revision
from plexus.events import Content, Event, Progress
from plexus.rpc import wire
from plexus.token_bucket import TokenBucket

__all__ = ("ProgressReporter",)

#: Maximum characters of a message, which is for a status line. A longer text keeps its end.
MESSAGE_CHARS: Final = 1000
#: The offset of the text in an encoded content event.
CONTENT_HEAD: Final = len(wire.encode_event(Content(""))) - len('""}')
#: The increment of a value if no better value is known.
MIN_STEP: Final = 0.001
#: JSON parsers cannot distinguish larger integers.
MAX_VALUE: Final = 2**53


class ProgressReporter:
    """Creates the progress notifications of one call."""

    __slots__ = (
        "_after_line",
        "_bucket",
        "_counted",
        "_counts",
        "_head",
        "_messages",
        "_pending",
        "_target",
        "_total",
        "_value",
        "last_at",
        "timer_set",
        "unlimited",
    )

    def __init__(
        self, token: str | int, revision: Revision, now: float, *, rate: float, counts: bool
    ) -> None:
        """Create a reporter. `counts`: use the number of events as the value by default."""
        self._head = (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'
            + wire.encode(token)
        )
        self._messages = revision.progress_message
        self._counts = counts
        self._counted = 0
        self._value = -MIN_STEP
        self._target: float = 0
        self._total: float | None = None
        self._pending: list[str] | None = None
        #: Whether the last pending text is a separate line, not part of streamed text.
        self._after_line = False
        #: Three quarters of the rate refill the bucket and a quarter may be a burst, so that no
        #: second exceeds the rate and a few quick steps are not delayed.
        self._bucket = TokenBucket(max(rate * 0.25, 1.0), rate * 0.75, now)
        #: Whether every event gets its own notification.
        self.unlimited = rate <= 0
        #: When the last notification was sent.
        self.last_at = now
        #: Whether a timer for the next flush is set.
        self.timer_set = False

    def report_each(
        self, events: list[Event], payloads: list[bytes], now: float
    ) -> list[bytes] | NotifyCounted:
        """Return one notification per event; `payloads` are the encoded events."""
        self.last_at = now
        return self._counted_texts(events, payloads) or [self._step(event) for event in events]

    def _counted_texts(self, events: list[Event], payloads: list[bytes]) -> NotifyCounted | None:
        """Return numbered notifications for short, counted content events; None for other events.

        This is the common case of a fast stream. The encoded texts are inserted without decoding.
        """
        first = self._counted + 1
        plain = self._counts and self._messages and first > self._value
        if (
            not plain
            or set(map(type, events)) != {Content}
            or max(map(len, payloads)) > MESSAGE_CHARS
        ):
            return None
        self._value = self._counted = self._counted + len(events)
        template = self._head.replace(b"%", b"%%") + b',"progress":%d,"message":%b}}'
        return NotifyCounted(template, first, [payload[CONTENT_HEAD:-1] for payload in payloads])

    def _step(self, event: Event) -> bytes:
        self._counted += 1
        if event.__class__ is Progress:
            return self._report_progress(event)
        self._value = value = (
            self._counted if self._counts and self._counted > self._value else self._next_larger()
        )
        return self._frame(value, event.as_text() or event.as_line())

    def _report_progress(self, event: Progress) -> bytes:
        self._set_progress(event)
        return self._frame(self._next(), event.message or "")

    def _set_progress(self, event: Progress) -> None:
        self._target = min(event.done, MAX_VALUE)
        self._total = event.total
        self._counts = False

    def add(self, events: list[Event]) -> None:
        """Add these events to the next notification."""
        pending = self._pending
        if pending is None:
            pending = self._pending = []
        self._counted += len(events)
        for event in events:
            text = event.as_text()
            is_line = not text
            if is_line:
                text = self._line_of(event)
                if not text:
                    continue
            # An event that is not streamed text starts a new line.
            if (is_line or self._after_line) and pending and pending[-1][-1] != "\n":
                pending.append("\n")
            pending.append(text)
            self._after_line = is_line
        if self._counts:
            self._target = self._counted
        if len(pending) > MESSAGE_CHARS:
            del pending[:-MESSAGE_CHARS]

    def skip(self, events: list[Event], heartbeats: int) -> None:
        """Account for events and heartbeats that another reporter has sent to the client."""
        self.add(events)
        self._pending = None
        self._value = max(self._target, self._value) + heartbeats * MIN_STEP

    def _line_of(self, event: Event) -> str:
        if isinstance(event, Progress):
            self._set_progress(event)
            return event.message or ""
        return event.as_line()

    def flush(self, now: float) -> bytes | None:
        """Return the notification for the pending events if the rate allows it now."""
        if self._pending is None:
            return None
        if self._bucket.take(now):
            return None
        self.last_at = now
        message = "".join(self._pending)
        self._pending = None
        return self._frame(self._next(), message)

    def wait_s(self, now: float) -> float | None:
        """Return how long until the pending events may be sent; None if nothing is pending."""
        if self._pending is None:
            return None
        return self._bucket.wait_s(now)

    def heartbeat(self, now: float, running_s: float) -> bytes:
        """Return a notification that the run is still in progress."""
        self.last_at = now
        return self._frame(self._next(), f"still running after {running_s:.0f} s")

    def _next(self) -> float:
        """Return the target if it is larger than the last value, or a minimal increment."""
        target = self._target
        self._value = value = target if target > self._value else self._next_larger()
        return value

    def _next_larger(self) -> float:
        """Return the last value plus the minimum step, or the next larger float."""
        more = round(self._value + MIN_STEP, 3)
        return more if more > self._value else math.nextafter(self._value, math.inf)

    def _frame(self, value: float, message: str) -> bytes:
        number = b"%d" % value if value.__class__ is int else wire.encode(value)
        rest = b""
        if self._total is not None and value <= self._total:
            rest = b',"total":' + wire.encode(self._total)
        if message and self._messages:
            if len(message) > MESSAGE_CHARS:
                message = "\N{HORIZONTAL ELLIPSIS}" + message[1 - MESSAGE_CHARS :]
            rest += b',"message":' + wire.encode(message)
        return b'%b,"progress":%b%b}}' % (self._head, number, rest)
