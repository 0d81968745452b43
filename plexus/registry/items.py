"""The values that a method yields or returns, read from its return annotation.

Every declared type has an event form (see `plexus.values`). A stream without an annotation may
yield anything.
"""

from __future__ import annotations

import itertools
import types
import typing
from typing import Any, Final, NamedTuple

from plexus.errors import RegistrationError
from plexus.events import Audio, Content, Data, Event, Image, Resource
from plexus.registry.callables import MISSING, is_stream
from plexus.values import renders

__all__ = ("ANYTHING", "Items", "read_items", "read_result")

_UNIONS: Final = (types.UnionType, typing.Union)
_BYTES: Final = (bytes, bytearray, memoryview)
#: Tags of terminals, which only terminals may have.
_ENDS: Final = ("complete", "error", "cancelled")


class Items(NamedTuple):
    """The declared items of a stream.

    These are its events, the type of the values inside `Data` events, and all allowed classes.
    """

    #: Empty if nothing is declared, so that everything is allowed.
    events: tuple[type[Event], ...]
    data: Any
    classes: tuple[type, ...]


#: What is not declared may be any event.
ANYTHING: Final = Items((), Any, ())


def read_items(hint: Any, where: str) -> Items:
    """Read what a stream yields from its return annotation. Raises RegistrationError."""
    if hint is MISSING or (is_stream(hint) and not typing.get_args(hint)):
        return ANYTHING
    if not is_stream(hint):
        raise RegistrationError(
            f"{where}: yields, so annotate it with AsyncIterator[...] or Iterator[...], or leave "
            "the return annotation out"
        )
    yielded = typing.get_args(hint)[0]
    if yielded is Any:
        return ANYTHING
    events: list[type[Event]] = []
    values: list[Any] = []
    for member in _members(yielded):
        media = _media_types(member)
        if isinstance(member, type) and issubclass(member, Event):
            _check_tag(member, where)
            events.append(member)
        elif media:
            events += media
        else:
            values.append(member)
    data: Any = typing.Union[tuple(values)] if values else None  # noqa: UP007 - made at run time
    classes: list[type] = [*events, *itertools.chain.from_iterable(map(_classes, values))]
    if Content in events:
        classes.append(str)
    if Image in events:
        classes += _BYTES
        classes += [each for each in _members(yielded) if isinstance(each, type)]
    if values and Data not in events:
        events.append(Data)
    if object in classes:
        return Items(tuple(dict.fromkeys(events)), data, ())
    return Items(tuple(dict.fromkeys(events)), data, tuple(dict.fromkeys(classes)))


def _classes(hint: Any) -> tuple[type, ...]:
    """Return the classes of the values of a type; `object` if they cannot be known."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _classes(typing.get_args(hint)[0])
    if origin is typing.Literal:
        return tuple(type(value) for value in typing.get_args(hint))
    if hint is None:
        return (type(None),)
    kind = origin or hint
    if isinstance(kind, type) and hasattr(kind, "__total__"):
        return (dict,)  # a TypedDict, of typing or of typing_extensions
    if kind is float:
        return (float, int)
    return (kind,) if isinstance(kind, type) else (object,)


def read_result(hint: Any) -> Any:
    """Return the type of a result: images, sounds and bytes are returned as events."""
    media = [] if hint is str else _media_types(hint)
    if not media:
        return hint
    return typing.Union[tuple(media)] if len(media) > 1 else media[0]  # noqa: UP007


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)


def _media_types(hint: Any) -> list[type[Event]]:
    """Return the events that values of a type become; empty if they are data."""
    if hint is str:
        return [Content]
    if hint in _BYTES:
        return [Image, Audio, Resource]
    return [Image] if isinstance(hint, type) and renders(hint) else []


def _check_tag(event: type[Event], where: str) -> None:
    if event.type in _ENDS and not event.terminal:
        raise RegistrationError(
            f"{where}: {event.__name__} is tagged {event.type!r}, which ends a run; "
            "subclass plexus.Complete, or give it another tag"
        )
