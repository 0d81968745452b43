"""Decodes events that another process, or an earlier one, has recorded.

The class of an event may be unknown here: its activation may not be registered, or not in this
version. Such events get a class that is created for their tag and fields.
"""

from __future__ import annotations

import keyword
import types
from typing import Any, Final

from plexus.errors import RegistrationError
from plexus.events import (
    Audio,
    Cancelled,
    Complete,
    Content,
    Data,
    Detached,
    ErrorEvent,
    Event,
    Gap,
    Image,
    Log,
    Progress,
    QuestionAnswered,
    QuestionAsked,
    Resource,
    Restarted,
    Result,
    Start,
    ToolResult,
    ToolUse,
)
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("READING", "read_event")

#: Limits for decoding events: they were bounded when created, so no event exceeds these.
READING: Final = Limits(
    message_containers=8_000_000,
    message_members=8_000_000,
    message_values=16_000_000,
    message_depth=256,
)
#: Event classes that are the same in every process, with plain JSON fields.
COMMON: Final[tuple[type[Event], ...]] = (
    Audio,
    Cancelled,
    Content,
    Data,
    Detached,
    ErrorEvent,
    Gap,
    Image,
    Log,
    Progress,
    QuestionAnswered,
    QuestionAsked,
    Resource,
    Restarted,
    Result,
    Start,
    ToolResult,
    ToolUse,
)
#: Maximum number of classes created for unknown events. A program has far fewer.
MAX_CLASSES: Final = 512
#: Fields that contain readable text, if an event has one of them.
TEXT_FIELDS: Final = ("text", "data", "message")


class _Recorded(Event):
    """An event of an unknown class."""

    def as_text(self) -> str:
        return _text_of(self)


class _RecordedComplete(Complete):
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
        base = _RecordedComplete if tag == Complete.type else _Recorded
        body = {"__annotations__": dict.fromkeys(attributes, "Any"), "__module__": __name__}
        try:
            found = types.new_class(
                "Recorded", (base,), {"tag": tag}, lambda space: space.update(body)
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
