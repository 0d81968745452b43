"""How event classes are made: a `msgspec.Struct` with a tag, closed names and checked floats.

What every class of events promises:
- The annotated fields are the constructor's parameters; instances are immutable, are compared by
  class and fields, and cannot be hashed, because they may hold lists.
- On the wire, a field whose default is None is left out while it is None. Every other field is
  written, also if it has its default.
- A field that is annotated as a float holds a finite number. JSON has no other, and an encoder
  would write null.
- The names of an event's own attributes are reserved, so a field never hides one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, dataclass_transform

import msgspec

from plexus.errors import InvalidEvent, RegistrationError

__all__ = ("EventMeta",)

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: How a float may be annotated, as a text or not.
_FLOATS: Final = ("float", "float | None", "Optional[float]", float, float | None)
_POST_INIT: Final = "__post_init__"

#: The default of a field that has none.
REQUIRED: Any = dataclasses.MISSING


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class EventMeta(msgspec.StructMeta):
    """Makes event classes."""

    #: Each field with its default, `REQUIRED`, or the function that makes the default.
    fields: dict[str, Any]
    #: Each field with its annotation, as it was written.
    hints: dict[str, Any]

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        tag: str | None = None,
    ) -> EventMeta:
        """Read the annotations of the class; those of its bases come first.

        Raises RegistrationError for a class that breaks the promises of this module.
        """
        parents = [base for base in bases if isinstance(base, EventMeta)]
        own = {
            field: hint
            for field, hint in _annotations(namespace).items()
            if not str(hint).removeprefix("typing.").startswith("ClassVar")
        }
        _check_names(name, bases, own)
        if "__init__" in namespace:
            raise RegistrationError(
                f"{name}.__init__: an event has no constructor of its own; write a classmethod "
                f"that makes the event, or {_POST_INIT} to check its fields"
            )
        fields = {
            field: default for base in reversed(parents) for field, default in base.fields.items()
        }
        hints = {field: hint for base in parents for field, hint in base.hints.items()} | own
        for field in own:
            fields[field] = _read_default(field, namespace)
        _check_order(name, fields)
        namespace |= {"fields": fields, "hints": hints}
        has_text = any(each in namespace for each in ("as_text", "as_line"))
        namespace["has_text"] = bool(parents) and (
            has_text or any(getattr(base, "has_text", False) for base in parents)
        )
        if not any(getattr(base, "keeps_tag", False) for base in parents):
            namespace["type"] = tag or _tag(name)
        floats = tuple(field for field, hint in hints.items() if hint in _FLOATS)
        if floats and (_POST_INIT in namespace or not own.keys().isdisjoint(floats)):
            inherited = next((getattr(each, _POST_INIT, None) for each in parents), None)
            namespace[_POST_INIT] = _float_check(floats, namespace.get(_POST_INIT, inherited))
        try:
            return super().__new__(
                mcs,
                name,
                bases,
                namespace,
                frozen=True,
                omit_defaults=True,
                tag_field="type",
                tag=namespace["type"] if "type" in namespace else parents[0].__struct_config__.tag,
                rename=_written,
            )
        except (TypeError, ValueError) as error:
            raise RegistrationError(f"{name}: {error}") from error


def _tag(class_name: str) -> str:
    return _WORD_START.sub("_", class_name).lower()


def _written(field: str) -> str:
    """Return the name of a field on the wire: a trailing underscore is for Python only."""
    return field.rstrip("_")


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    """The annotations in a class body; since Python 3.14 they are made only when asked for."""
    written: dict[str, Any] = namespace.get("__annotations__", {})
    if sys.version_info >= (3, 14) and not written:
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is not None:
            text = annotationlib.Format.STRING
            written = annotationlib.call_annotate_function(annotate, text)
    return written


def _read_default(field: str, namespace: dict[str, Any]) -> Any:
    """Return the default of a field as it was written, and leave in the class body what the
    struct needs.

    The struct leaves out what *is* its default, so only None may be one there. Any other default
    is made by a function for each event.
    """
    default = namespace.get(field, REQUIRED)
    factory: Any = None
    if isinstance(default, dataclasses.Field):
        factory = default.default_factory
        default = default.default if factory is REQUIRED else factory
        factory = None if factory is REQUIRED else factory
    if default is REQUIRED:
        namespace.pop(field, None)
    elif factory is not None:
        # Not the factory itself: the struct leaves out an empty list that `list` would make.
        namespace[field] = msgspec.field(default_factory=lambda: factory())
    elif default is None:
        namespace[field] = None
    else:
        # This returns the same value for ever, faster than a function would.
        namespace[field] = msgspec.field(default_factory=itertools.repeat(default).__next__)
    return default


def _check_names(class_name: str, bases: tuple[type, ...], own: dict[str, Any]) -> None:
    """Raise RegistrationError for a field that would hide what every event has."""
    is_root = not any(isinstance(base, EventMeta) for base in bases)
    taken = {name for base in bases for name in dir(base) if not name.startswith("_")}
    taken -= {name for base in bases for name in getattr(base, "fields", ())}
    for field in own:
        # A trailing underscore is not on the wire, where the tag is called "type".
        if field in taken or (not is_root and _written(field) == "type"):
            raise RegistrationError(
                f"{class_name}.{field}: the name {field!r} is reserved for events themselves; "
                f"give the field another name, as in 'kind' or '{_written(field)}_name'"
            )
        if field.startswith("_"):
            raise RegistrationError(
                f"{class_name}.{field}: fields with a leading underscore are reserved; "
                f"call it {field.lstrip('_')!r}"
            )


def _check_order(class_name: str, fields: dict[str, Any]) -> None:
    """Raise RegistrationError for a field without a default after one that has a default."""
    optional = None
    for field, default in fields.items():
        if default is not REQUIRED:
            optional = optional or field
        elif optional is not None:
            raise RegistrationError(
                f"{class_name}.{field}: it has no default and follows {optional!r}, which has "
                f"one; give {field!r} a default, or declare it before"
            )


def _float_check(
    names: tuple[str, ...], then: Callable[[Any], None] | None
) -> Callable[[Any], None]:
    """Return a `__post_init__` that raises InvalidEvent for a number that is not finite."""

    def check(event: Any) -> None:
        for name in names:
            value = getattr(event, name)
            if value is not None:
                try:
                    if math.isfinite(value):
                        continue
                except OverflowError:  # of an integer that no float can hold
                    pass
                _refuse(event, name, value)
        if then is not None:
            then(event)

    return check


def _refuse(event: Any, name: str, value: float) -> NoReturn:
    shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else str(value)
    raise InvalidEvent(f"{type(event).__name__}.{name} is {shown}; JSON has no such number")
