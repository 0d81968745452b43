"""Items from another process: decode their events, and a log that keeps their numbers."""

from __future__ import annotations

import bisect
import keyword
import types
from collections.abc import Iterator
from typing import Any, Final

from plexus.errors import RegistrationError
from plexus.events import (
    Cancelled,
    Complete,
    Content,
    ErrorEvent,
    Event,
    Gap,
    Log,
    Progress,
    QuestionAsked,
    Result,
    Start,
)
from plexus.limits import Limits
from plexus.rpc import wire
from plexus.runtime.log import Batch, Reader, RunLog

__all__ = ("READING", "CopiedLog", "CopyReader", "read_event")

#: Limits for decoding events: they were bounded when created, so no event exceeds these.
READING: Final = Limits(
    message_containers=8_000_000,
    message_members=8_000_000,
    message_values=16_000_000,
    message_depth=256,
)
#: Event classes that are the same in every process, with plain JSON fields.
COMMON: Final[tuple[type[Event], ...]] = (
    Cancelled,
    Content,
    ErrorEvent,
    Gap,
    Log,
    Progress,
    QuestionAsked,
    Result,
    Start,
)
#: Maximum number of classes created for unknown events. A program has far fewer.
MAX_CLASSES: Final = 512
#: Fields that contain readable text, if an event has one of them.
TEXT_FIELDS: Final = ("text", "data", "message")


class CopiedLog(RunLog):
    """A log of items with the numbers of the process that runs the method.

    Missing items are replaced by a `gap` with the number of the last of them.
    """

    __slots__ = ("_numbers",)

    def __init__(self, limits: Limits, started_at: float) -> None:
        super().__init__(limits, started_at)
        self._numbers: list[int] = []

    @property
    def last(self) -> int:
        return self._numbers[-1] if self._numbers else self.first - 1

    def skip_to(self, seq: int) -> None:
        """Continue with this number; the items before it are missing."""
        if not self._numbers:
            self.first = seq
            return
        gap = Gap(self.last + 1, seq - 1)
        self.append(gap, wire.encode_event(gap))
        self._numbers[-1] = seq - 1

    def append(self, event: Event, raw: bytes) -> None:
        self._numbers.append(self.last + 1)
        super().append(event, raw)
        self.size += len(raw)
        self.total += len(raw)

    def trim(self, unread: int | None) -> None:  # noqa: ARG002 - a copy has no owner
        count = max(len(self.payloads) - self.limits.log_items, 0)
        self.size -= sum(map(len, self.payloads[:count]))
        while self.size > self.limits.log_bytes and count < len(self.payloads) - 1:
            self.size -= len(self.payloads[count])
            count += 1
        if count:
            del self.events[:count], self.payloads[:count], self._numbers[:count]
            self.first = self._numbers[0]
            stale = sum(number < self.first for number, _ in self.marks) - 1
            del self.marks[: max(stale, 0)]

    def size_after(self, seq: int) -> int:
        return sum(map(len, self.payloads[bisect.bisect_right(self._numbers, seq) :]))

    def numbered(self, after: int) -> Iterator[tuple[int, Event]]:
        start = bisect.bisect_right(self._numbers, after)
        return zip(self._numbers[start:], self.events[start:], strict=True)

    def read(self, after: int, max_items: int, max_bytes: int) -> Batch:
        numbers = self._numbers
        start = bisect.bisect_right(numbers, after)
        if start == len(numbers):
            return Batch(after + 1, [], [], 0)
        end = min(start + max_items, len(numbers))
        while numbers[end - 1] - numbers[start] > end - 1 - start:  # up to the first missing item
            end -= 1
        payloads = self.payloads[start:end]
        size = sum(map(len, payloads))
        while size > max_bytes and len(payloads) > 1:
            size -= len(payloads.pop())
        return Batch(
            numbers[start], self.events[start : start + len(payloads)], payloads, size, self
        )


class CopyReader(Reader):
    """A cursor over a copied log, whose numbers may skip."""

    __slots__ = ()

    def take(self) -> Batch:
        batch = super().take()
        if batch.events:
            self.seq = batch.first + len(batch.events) - 1
        return batch


# --- events ---------------------------------------------------------------------------------------


class _Copied(Event):
    """An event of an unknown class."""

    def as_text(self) -> str:
        return _text_of(self)


class _CopiedComplete(Complete):
    """A terminal of an unknown class."""

    @property
    def failed(self) -> bool:
        return bool(getattr(self, "exit_code", 0))

    def as_text(self) -> str:
        return _text_of(self)


#: Classes for unknown events, by tag and fields.
_classes: dict[tuple[str, tuple[str, ...]], type[Event]] = {}


def read_event(raw: bytes) -> Event:
    """Decode an event. Raises ValueError if the bytes are not an event."""
    fields = wire.decode_value(raw, READING)
    if not isinstance(fields, dict) or not isinstance(tag := fields.pop("type", None), str):
        raise ValueError("an event must be an object with a type")  # noqa: TRY004 - the bytes are wrong, not a type
    key = (tag, tuple(fields))
    found = _classes.get(key) or _class_for(key)
    return found(**{_attribute(name): value for name, value in fields.items()})


def _class_for(key: tuple[str, tuple[str, ...]]) -> type[Event]:
    tag, names = key
    attributes = [_attribute(name) for name in names]
    if not all(name.isidentifier() for name in attributes):
        raise ValueError("the fields of an event must be identifiers")
    if len(_classes) >= MAX_CLASSES:
        _classes.clear()
    found = next((kind for kind in COMMON if _fits(kind, tag, attributes)), None)
    if found is None:
        base = _CopiedComplete if tag == Complete.type else _Copied
        body = {"__annotations__": dict.fromkeys(attributes, "Any"), "__module__": __name__}
        try:
            found = types.new_class(
                "Copied", (base,), {"tag": tag}, lambda space: space.update(body)
            )
        except RegistrationError as error:
            raise ValueError(error.message) from error
    _classes[key] = found
    return found


def _fits(kind: type[Event], tag: str, attributes: list[str]) -> bool:
    required = (name for name, default in kind.fields.items() if default is not None)
    return kind.type == tag and set(required) <= set(attributes) <= kind.fields.keys()


def _attribute(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _text_of(event: Event) -> str:
    texts: list[Any] = [getattr(event, name, None) for name in TEXT_FIELDS]
    return next((text for text in texts if isinstance(text, str)), "")
