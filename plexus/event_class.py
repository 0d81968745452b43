"""The metaclass of events: a `msgspec.Struct` with a tag, reserved names and finite floats.

Guarantees for every event class:
- The annotated fields are the constructor's parameters. Instances are immutable, compare by class
  and fields, and are not hashable, because they may contain lists.
- On the wire, a field whose default is None is omitted while it is None. All other fields are
  written, even if they have their default.
- A field annotated as a float is finite. JSON has no other numbers, and an encoder would write
  null.
- The names of an event's own attributes are reserved, so no field can hide one.
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
#: Annotations of a float field, as text or as type.
_FLOATS: Final = ("float", "float | None", "Optional[float]", float, float | None)
_POST_INIT: Final = "__post_init__"

#: Marks a field without a default.
REQUIRED: Any = dataclasses.MISSING


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class EventMeta(msgspec.StructMeta):
    """Metaclass of events."""

    #: Each field with its default: a value, `REQUIRED` or a factory.
    fields: dict[str, Any]
    #: Each field with its annotation, as written.
    hints: dict[str, Any]

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        tag: str | None = None,
    ) -> EventMeta:
        """Create an event class from its annotations; those of its bases come first.

        Raises RegistrationError for a class that breaks the guarantees of this module.
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
                f"{name}.__init__: an event cannot define a constructor; write a classmethod "
                f"that creates the event, or {_POST_INIT} to check its fields"
            )
        fields = {
            field: default for base in reversed(parents) for field, default in base.fields.items()
        }
        hints = {field: hint for base in parents for field, hint in base.hints.items()} | own
        for field in own:
            fields[field] = _read_default(field, namespace)
        _check_order(name, fields)
        namespace |= {"fields": fields, "hints": hints}
        defines_text = any(each in namespace for each in ("as_text", "as_line"))
        namespace["has_text"] = bool(parents) and (
            defines_text or any(getattr(base, "has_text", False) for base in parents)
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
    """Return the name of a field on the wire: without the trailing underscore that Python needs."""
    return field.rstrip("_")


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations in a class body; since Python 3.14 they are evaluated lazily."""
    written: dict[str, Any] = namespace.get("__annotations__", {})
    if sys.version_info >= (3, 14) and not written:
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is not None:
            text = annotationlib.Format.STRING
            written = annotationlib.call_annotate_function(annotate, text)
    return written


def _read_default(field: str, namespace: dict[str, Any]) -> Any:
    """Return the declared default of a field, and leave in the class body what the struct needs.

    The struct omits a value that *is* its default, so only None may be a plain default there. Every
    other default is produced by a factory for each event.
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
        # Wrapped, because the struct omits an empty list whose factory is `list` itself.
        namespace[field] = msgspec.field(default_factory=lambda: factory())
    elif default is None:
        namespace[field] = None
    else:
        # Returns the same value on every call, faster than a function would.
        namespace[field] = msgspec.field(default_factory=itertools.repeat(default).__next__)
    return default


def _check_names(class_name: str, bases: tuple[type, ...], own: dict[str, Any]) -> None:
    """Raise RegistrationError for a field that would hide an attribute of events."""
    is_root = not any(isinstance(base, EventMeta) for base in bases)
    reserved = {name for base in bases for name in dir(base) if not name.startswith("_")}
    reserved -= {name for base in bases for name in getattr(base, "fields", ())}
    for field in own:
        # On the wire, without the underscore, the name "type" is the tag.
        if field in reserved or (not is_root and _written(field) == "type"):
            raise RegistrationError(
                f"{class_name}.{field}: the name {field!r} is reserved; rename the field, "
                f"for example to 'kind' or '{_written(field)}_name'"
            )
        if field.startswith("_"):
            raise RegistrationError(
                f"{class_name}.{field}: names with a leading underscore are reserved; "
                f"rename it to {field.lstrip('_')!r}"
            )


def _check_order(class_name: str, fields: dict[str, Any]) -> None:
    """Raise RegistrationError for a field without a default after one with a default."""
    optional = None
    for field, default in fields.items():
        if default is not REQUIRED:
            optional = optional or field
        elif optional is not None:
            raise RegistrationError(
                f"{class_name}.{field}: a field without a default follows {optional!r}, which has "
                f"one; add a default to {field!r}, or declare it first"
            )


def _float_check(
    names: tuple[str, ...], inherited_check: Callable[[Any], None] | None
) -> Callable[[Any], None]:
    """Return a `__post_init__` that raises InvalidEvent for a number that is not finite."""

    def check(event: Any) -> None:
        for name in names:
            value = getattr(event, name)
            if value is not None:
                try:
                    if math.isfinite(value):
                        continue
                except OverflowError:  # an integer too large for a float
                    pass
                _refuse(event, name, value)
        if inherited_check is not None:
            inherited_check(event)

    return check


def _refuse(event: Any, name: str, value: float) -> NoReturn:
    shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else str(value)
    raise InvalidEvent(f"{type(event).__name__}.{name} is {shown}; JSON cannot represent it")
