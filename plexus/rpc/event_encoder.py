"""Encode events: one encoder for each event class, created at first use.

Rules:
- An event has the same bytes wherever it is sent; it is encoded once and spliced into envelopes.
- An event of strings, booleans, None and ordinary numbers is encoded by msgspec, which reads the
  fields itself. All others are encoded by orjson: the two differ in large floats, in integers of
  more than 64 bits, and in dates, bytes and sets.
- NaN and infinity become null. An event with a null in its bytes is therefore searched for them: a
  None is accepted, and a number raises InvalidEvent.
- The bytes are copied to their exact size: orjson returns a block of a kilobyte, and a log that
  keeps thousands of those spends its time on page faults.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson

from plexus.errors import InvalidEvent
from plexus.events import Event, Result
from plexus.rpc.json_values import INTEGERS, find_fault, plain

__all__ = ("encode_event", "event_encoders", "event_text")

Encode = Callable[[Event], bytes]

_INTEGER: Final = (
    f"event.{{0}}.__class__ is int and {INTEGERS.start} <= event.{{0}} < {INTEGERS.stop}"
)
#: By type, the condition under which both encoders write a field alike.
_ALIKE: Final[dict[Any, str]] = {
    str: "event.{0}.__class__ is str",
    bool: "event.{0}.__class__ is bool",
    int: _INTEGER,
    float: f"event.{{0}}.__class__ is float and -1e16 < event.{{0}} < 1e16 or {_INTEGER}",
}
#: The same by annotation, which may be a string and may allow None.
_CONDITIONS: Final[dict[Any, str]] = {
    hint: condition
    for kind, alike in _ALIKE.items()
    for condition, hints in (
        (alike, (kind, kind.__name__)),
        (f"event.{{0}} is None or {alike}", (kind | None, f"{kind.__name__} | None")),
    )
    for hint in hints
}
_U: Final = ord("u")

_encode_struct: Final = msgspec.json.Encoder().encode


class EventEncoders(dict[type[Event], Encode]):
    """The encoder of each event class; created at first use."""

    def __missing__(self, event_class: type[Event]) -> Encode:
        self[event_class] = encoder = _encoder_for(event_class)
        return encoder


def _encoder_for(event_class: type[Event]) -> Encode:
    """Return the fastest encoder for the fields of a class."""
    fields = event_class.fields
    if not fields:
        raw = _encode_struct(event_class())
        return lambda _: raw
    condition = _alike_condition(event_class)
    if condition is not None:
        return _struct_encoder(condition, _general_encoder(event_class))
    if len(fields) == 1 and None not in fields.values():
        return _value_encoder(event_class, *fields)
    return _general_encoder(event_class)


def _alike_condition(event_class: type[Event]) -> str | None:
    """Return the condition under which both encoders write an event alike; None if rarely."""
    defaults = list(event_class.fields.values())
    optional = len(defaults) - defaults.count(None)
    if None in defaults[:optional]:
        return None  # orjson writes fields without a default of None first
    conditions = []
    for name, default in event_class.fields.items():
        condition = _CONDITIONS.get(event_class.hints[name])
        if condition is None and default is None:
            condition = "event.{0} is None"
        if condition is None:
            return None
        conditions.append(f"({condition.format(name)})")
    return " and ".join(conditions)


def _struct_encoder(condition: str, general: Encode) -> Encode:
    """Return an encoder that uses msgspec where the result is the same, as for most events."""
    # Compiled, because a loop over the fields takes longer than encoding them.
    is_alike: Callable[[Event], bool] = eval(f"lambda event: {condition}")

    def encode(event: Event) -> bytes:
        if is_alike(event):
            try:
                return _encode_struct(event)
            except UnicodeEncodeError:  # a lone surrogate
                pass
        return general(event)

    return encode


def _value_encoder(event_class: type[Event], name: str) -> Encode:
    """Return an encoder for events with a single field of any type, such as results."""
    get = operator.attrgetter(name)
    dumps = orjson.dumps
    head = orjson.dumps({"type": event_class.type, name.rstrip("_"): 0})[:-2]
    template = head.replace(b"%", b"%%") + b"%b}"

    def encode(event: Event) -> bytes:
        try:
            raw = dumps(get(event), plain)
        except TypeError as error:
            return _encode_slowly(event, error)
        if _U in raw and b"null" in raw:
            _check_nulls(event)
        return template % raw

    return encode


def _general_encoder(event_class: type[Event]) -> Encode:
    """Return an encoder for any event. A field whose default is None is omitted if it is None."""
    fields = event_class.fields.items()
    required = "".join(
        f", {name.rstrip('_')!r}: event.{name}" for name, default in fields if default is not None
    )
    written: Callable[[Event], dict[str, Any]] = eval(
        f"lambda event: {{'type': tag{required}}}", {"tag": event_class.type}
    )
    optional = [
        (name.rstrip("_"), operator.attrgetter(name)) for name, default in fields if default is None
    ]
    dumps = orjson.dumps

    def encode(event: Event) -> bytes:
        value = written(event)
        for key, get in optional:
            if (field := get(event)) is not None:
                value[key] = field
        try:
            raw = b"%b" % dumps(value, plain)
        except TypeError as error:
            return _encode_slowly(event, error)
        # Searching for one byte is fast, and a list of numbers does not contain it.
        if _U in raw and b"null" in raw:
            _check_nulls(event)
        return raw

    return encode


def _encode_slowly(event: Event, error: TypeError) -> bytes:
    """Encode an event with keys that are not strings. Raises InvalidEvent for all others."""
    try:
        raw = orjson.dumps(event, plain, orjson.OPT_NON_STR_KEYS)
    except TypeError:
        raise _invalid(event, _fault_in(event) or str(error)) from error
    _check_nulls(event)
    return b"%b" % raw


def _check_nulls(event: Event) -> None:
    """Raise InvalidEvent if a null in the bytes of this event stands for a number."""
    fault = _fault_in(event)
    if fault is not None:
        raise _invalid(event, fault)


def _fault_in(event: Event) -> str | None:
    if isinstance(event, Result):
        return find_fault(event.result, "result")
    return find_fault(event, event.__class__.__name__)


def _invalid(event: Event, fault: str) -> InvalidEvent:
    code = "invalid_result" if isinstance(event, Result) else None
    return InvalidEvent(fault, code=code)


event_encoders: Final = EventEncoders()


def encode_event(event: Event) -> bytes:
    """Return the JSON bytes of an event. Raises InvalidEvent if JSON cannot represent it."""
    return event_encoders[event.__class__](event)


def event_text(event: Event) -> str:
    """Return an event as text; an event without text is shown as JSON."""
    if isinstance(event, Result) and event.result is not None and not isinstance(event.result, str):
        return orjson.dumps(event.result, plain, orjson.OPT_INDENT_2).decode()
    if not event.has_text and not event.terminal:
        return encode_event(event).decode() + "\n"
    return event.as_text()
