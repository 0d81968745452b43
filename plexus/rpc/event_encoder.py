"""The bytes of events: one encoder for each class, made when the class is first encoded.

Rules:
- An event has the same bytes wherever it is sent; they are made once and spliced into envelopes.
- An event of texts, booleans, None and ordinary numbers is written by msgspec, which reads the
  fields itself. Whatever else there may be is written by orjson: the two differ in large floats,
  in integers of more than 64 bits, and in dates, bytes and sets.
- NaN and infinity become null. So an event with a null in its bytes is searched for them; what
  was None stays null, and a number raises InvalidEvent.
- The bytes are a copy in the right size: what orjson returns sits in a block of a kilobyte, and a
  log that keeps thousands of those spends its time on page faults.
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
#: By type, when both encoders write the value of a field alike.
_ALIKE: Final[dict[Any, str]] = {
    str: "event.{0}.__class__ is str",
    bool: "event.{0}.__class__ is bool",
    int: _INTEGER,
    float: f"event.{{0}}.__class__ is float and -1e16 < event.{{0}} < 1e16 or {_INTEGER}",
}
#: The same by annotation, which may be a text, and may allow None.
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
    """For each class of events the function that encodes one; made when first asked for."""

    def __missing__(self, event_class: type[Event]) -> Encode:
        self[event_class] = encoder = _encoder_for(event_class)
        return encoder


def _encoder_for(event_class: type[Event]) -> Encode:
    """Return the fastest encoder that fits the fields of a class."""
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
    """Return when both encoders write an event of this class alike; None if hardly ever."""
    defaults = list(event_class.fields.values())
    optional = len(defaults) - defaults.count(None)
    if None in defaults[:optional]:
        return None  # orjson is given those without a default of None first
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
    """Encode an event by msgspec where that makes no difference, as for most events it does."""
    # Compiled, because a loop over the fields takes longer than writing them.
    is_alike: Callable[[Event], bool] = eval(f"lambda event: {condition}")

    def encode(event: Event) -> bytes:
        if is_alike(event):
            try:
                return _encode_struct(event)
            except UnicodeEncodeError:  # half of a surrogate pair
                pass
        return general(event)

    return encode


def _value_encoder(event_class: type[Event], name: str) -> Encode:
    """Encode an event that has one field of any type, as a result has."""
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
    """Encode an event of any shape. A field whose default is None is left out if it is None."""
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
        # One byte is found at once, and a list of numbers does not have it.
        if _U in raw and b"null" in raw:
            _check_nulls(event)
        return raw

    return encode


def _encode_slowly(event: Event, error: TypeError) -> bytes:
    """Encode an event that has keys which are no texts; raises InvalidEvent for anything else."""
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
    """Return the JSON bytes of an event; raises InvalidEvent if it holds what JSON cannot."""
    return event_encoders[event.__class__](event)


def event_text(event: Event) -> str:
    """An event as text; what has no text is shown as JSON."""
    if isinstance(event, Result) and event.result is not None and not isinstance(event.result, str):
        return orjson.dumps(event.result, plain, orjson.OPT_INDENT_2).decode()
    if not event.has_text and not event.terminal:
        return encode_event(event).decode() + "\n"
    return event.as_text()
