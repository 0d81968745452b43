"""Events: small frozen values that a method yields, each with a `type` tag.

An author writes a class with annotated fields, nothing else:

    class Line(Event):
        "One line of the file."
        number: int
        line: str

The tag is the class name in snake_case unless `tag=` says otherwise, the constructor follows
from the fields, and instances are immutable. An event knows how a person would read it
(`as_text()`), so a view can show an event it has never heard of. This module knows nothing of
runs, views or bytes.

Event classes are made by a small metaclass and not by `dataclasses`: a frozen dataclass with
slots takes twice as long to construct, and a stream spends a good part of its time there.
"""

from __future__ import annotations

import binascii
import dataclasses
import math
import re
import sys
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, NoReturn, dataclass_transform

from plexus.errors import InvalidEvent, RegistrationError

__all__ = (
    "CHECKS_FLOATS",
    "FLOATS",
    "MEDIA",
    "Audio",
    "Cancelled",
    "Complete",
    "Content",
    "Detached",
    "Error",
    "Event",
    "EventMeta",
    "Gap",
    "Image",
    "Log",
    "Message",
    "Progress",
    "Request",
    "Resource",
    "Result",
    "Start",
    "Terminal",
    "ToolResult",
    "ToolUse",
    "outcome_of",
)

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: How a float may be annotated, as a text or not.
FLOATS = ("float", "float | None", "Optional[float]", float, float | None)

#: Marks the constructors that are written here, which check floats.
CHECKS_FLOATS: Final = "__checks_floats__"

#: The default of a field that has none.
REQUIRED: Any = dataclasses.MISSING


def _tag(class_name: str) -> str:
    return _WORD_START.sub("_", class_name).lower()


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


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class EventMeta(type):
    """Makes event classes: the annotated fields become slots, and a constructor is written."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        tag: str | None = None,
    ) -> EventMeta:
        """Read the annotations of the class; those of its bases come first."""
        own: dict[str, Any] = {}
        _check_field_names(name, bases, namespace)
        hints = {name: hint for base in bases for name, hint in getattr(base, "hints", {}).items()}
        for field, hint in _annotations(namespace).items():
            if not str(hint).removeprefix("typing.").startswith("ClassVar"):
                default = namespace.pop(field, REQUIRED)
                if isinstance(default, dataclasses.Field):
                    factory = default.default_factory
                    default = default.default if factory is REQUIRED else factory
                own[field] = default
                hints[field] = hint
        inherited = (base.fields for base in reversed(bases) if issubclass(base, Event))
        fields = {field: default for each in inherited for field, default in each.items()} | own
        namespace |= {"__slots__": tuple(own), "fields": fields, "hints": hints}
        speaks = any(name in namespace for name in ("as_text", "as_line"))
        namespace["speaks"] = bool(bases) and (
            speaks or any(getattr(base, "speaks", False) for base in bases)
        )
        if not any(getattr(base, "keeps_tag", False) for base in bases):
            namespace["type"] = tag or _tag(name)
        cls = super().__new__(mcs, name, bases, namespace)
        if "__init__" not in namespace:
            cls.__init__ = _constructor(cls, fields, hints)  # type: ignore[misc]  # a metaclass may
        return cls


def _check_field_names(class_name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
    """Raise RegistrationError for a field that would hide what every event has."""
    taken = {name for base in bases for name in dir(base) if not name.startswith("_")}
    taken -= {name for base in bases for name in getattr(base, "fields", ())}
    for field, hint in _annotations(namespace).items():
        if str(hint).removeprefix("typing.").startswith("ClassVar"):
            continue
        # A trailing underscore is not on the wire, where the tag is called "type".
        if field in taken or (bases and field.rstrip("_") == "type"):
            raise RegistrationError(
                f"{class_name}.{field}: the name {field!r} is reserved for events themselves; "
                f"give the field another name, as in 'kind' or '{field.rstrip('_')}_name'"
            )
        if field.startswith("_"):
            raise RegistrationError(
                f"{class_name}.{field}: fields with a leading underscore are reserved; "
                f"call it {field.lstrip('_')!r}"
            )


def _constructor(cls: type, fields: dict[str, Any], hints: dict[str, Any]) -> Callable[..., None]:
    """Write `__init__` for these fields.

    A field typed as a plain float is checked to be finite, because JSON has no way to say NaN
    and the encoder would silently write null.
    """
    scope: dict[str, Any] = {
        "_isfinite": math.isfinite,
        "_bad": _not_finite,
        "_missing": REQUIRED,
    }
    params: list[str] = []
    body: list[str] = []
    for name, default in fields.items():
        # The slot's own setter: the class refuses to have its attributes set.
        scope[f"_set_{name}"] = getattr(cls, name).__set__
        if default is REQUIRED:
            params.append(name)
        elif callable(default):
            scope[f"_make_{name}"] = default
            # Not None: an explicit None is a value, and stays one.
            params.append(f"{name}=_missing")
            body.append(f"if {name} is _missing: {name} = _make_{name}()")
        else:
            scope[f"_default_{name}"] = default
            params.append(f"{name}=_default_{name}")
        if hints[name] in FLOATS:
            bad = f"_bad(self, {name!r}, {name})"
            body.append(f"try:\n        if {name} is not None and not _isfinite({name}): {bad}")
            body.append(f"except OverflowError: {bad}")  # of an integer that no float can hold
        body.append(f"_set_{name}(self, {name})")
    source = f"def __init__({', '.join(['self', *params])}):\n    " + "\n    ".join(
        body or ["pass"]
    )
    exec(source, scope)  # the same device as dataclasses itself uses
    constructor: Callable[..., None] = scope["__init__"]
    setattr(constructor, CHECKS_FLOATS, True)
    return constructor


def _not_finite(event: Event, name: str, value: float) -> NoReturn:
    shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else str(value)
    raise InvalidEvent(f"{type(event).__name__}.{name} is {shown}; JSON has no such number")


class Event(metaclass=EventMeta):
    """The root of all events. Subclass it with annotated fields; see the module's docstring."""

    #: What the wire calls this kind of event.
    type: ClassVar[str]
    #: Each field with its default, `REQUIRED`, or the function that makes the default.
    fields: ClassVar[dict[str, Any]]
    #: Each field with its annotation, as it was written.
    hints: ClassVar[dict[str, Any]]
    #: Whether this event ends its run. Only subclasses of `Terminal` do.
    terminal: ClassVar[bool] = False
    #: Whether it says how a person would read it; if not, its data is all there is to show.
    speaks: ClassVar[bool]
    #: Whether subclasses have the tag of this class, and not one of their own.
    keeps_tag: ClassVar[bool] = False

    def as_text(self) -> str:
        """How a person would read this event in a stream of output; empty if not at all."""
        return ""

    def as_line(self) -> str:
        """One short line about this event, for a progress display."""
        return self.as_text().strip()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: Any) -> Any:
        """How pydantic describes and reads an event that is part of something else."""
        from pydantic_core import core_schema as core

        hints = typing.get_type_hints(cls, include_extras=True)
        names = {name.rstrip("_"): name for name in cls.fields}  # as they are on the wire
        fields = {"type": core.typed_dict_field(core.literal_schema([cls.type]))}
        for written, name in names.items():
            field = handler.generate_schema(hints[name])
            required = cls.fields[name] is not None
            fields[written] = core.typed_dict_field(field, required=required)

        def read(given: dict[str, Any]) -> Event:
            return cls(
                **{name: given[written] for written, name in names.items() if written in given}
            )

        ref = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
        closed = core.typed_dict_schema(
            fields, cls=cls, cls_name=cls.__name__, extra_behavior="forbid"
        )
        return core.no_info_after_validator_function(read, closed, ref=ref)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"events are immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"events are immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        return other.__class__ is self.__class__ and all(
            getattr(other, name) == getattr(self, name) for name in self.__class__.fields
        )

    __hash__ = None  # type: ignore[assignment]  # events may hold lists and dicts

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__class__.fields)
        return f"{self.__class__.__name__}({fields})"


class Start(Event):
    """The work has begun."""

    def as_line(self) -> str:
        return "Started"


class Content(Event):
    """A piece of the answer, to be joined to the pieces before it."""

    text: str

    def as_text(self) -> str:
        return self.text


class Progress(Event):
    """How far the work is; `total` is left out when nobody knows."""

    done: float
    total: float | None = None
    message: str | None = None

    def as_line(self) -> str:
        amount = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{amount} {self.message}" if self.message else amount


class Log(Event):
    """A remark of the method about its own work."""

    level: str
    message: str

    def as_line(self) -> str:
        return f"{self.level}: {self.message}"


class ToolUse(Event):
    """A model asks for a tool."""

    tool_name: str
    tool_use_id: str
    input: dict[str, Any]

    def as_line(self) -> str:
        return f"Using tool: {self.tool_name}"


class ToolResult(Event):
    """What the tool answered."""

    tool_use_id: str
    output: str
    is_error: bool = False

    def as_line(self) -> str:
        return "Tool failed" if self.is_error else "Tool answered"


class Image(Event):
    """A picture; `data` is base64."""

    data: str
    mime_type: str

    def as_line(self) -> str:
        return f"[image {self.mime_type}]"


class Audio(Event):
    """A sound; `data` is base64."""

    data: str
    mime_type: str

    def as_line(self) -> str:
        return f"[audio {self.mime_type}]"


class Resource(Event):
    """A thing that can be read by its address; the content may come along."""

    uri: str
    name: str | None = None
    mime_type: str | None = None
    content: str | None = None
    blob: str | None = None  # base64, for what is no text

    @classmethod
    def of_bytes(
        cls, uri: str, data: bytes, mime_type: str | None = None, *, name: str | None = None
    ) -> Resource:
        """A resource whose content is no text."""
        return cls(uri, name, mime_type, blob=binascii.b2a_base64(data, newline=False).decode())

    def as_line(self) -> str:
        return f"[resource {self.uri}]"


#: What a result shows as it is, and not as data.
MEDIA: Final = (Content, Image, Audio, Resource)


class Message(Event):
    """One message of a prompt: who says it, and what."""

    role: Literal["user", "assistant"]
    content: Content | Image | Audio | Resource

    def as_text(self) -> str:
        return self.content.as_text()

    def as_line(self) -> str:
        return f"{self.role}: {self.content.as_line()}"


class Detached(Event, tag="background"):
    """From here on the caller need not wait: the run goes on by itself."""

    def as_line(self) -> str:
        return "Goes on in the background"


class Request(Event):
    """The run asks its caller something and waits; `plexus.respond` answers."""

    request: str
    kind: str
    message: str
    schema: dict[str, Any]
    timeout_s: float
    default: Any = None
    options: list[dict[str, str]] | None = None
    key: str | None = None
    details: dict[str, Any] | None = None

    def as_line(self) -> str:
        return f"Asks: {self.message}"


class Gap(Event):
    """A watcher fell behind: the items `from_` to `to` are no longer kept."""

    from_: int  # the underscore, which Python needs, is not on the wire
    to: int

    def as_line(self) -> str:
        return f"[items {self.from_} to {self.to} are no longer kept]"


class Terminal(Event):
    """The last item of a run. The runtime sees to it that there is exactly one."""

    terminal = True

    @property
    def failed(self) -> bool:
        """Whether a person would say that the run went wrong."""
        return False


def outcome_of(terminal: Terminal) -> dict[str, Any]:
    """Return how a run went for a person: `succeeded`, `failed` or `cancelled`.

    A command that ran and failed is a complete run; its exit code is given too.
    """
    if isinstance(terminal, Cancelled):
        return {"outcome": "cancelled"}
    outcome: dict[str, Any] = {"outcome": "failed" if terminal.failed else "succeeded"}
    code = getattr(terminal, "exit_code", None)
    return outcome if code.__class__ is not int else outcome | {"exit_code": code}


class Complete(Terminal):
    """The run did its work. Subclass it to say more; the tag stays `complete`."""

    keeps_tag = True


class Result(Complete):
    """The run did its work and this is what came of it."""

    result: Any

    def as_text(self) -> str:
        return self.result if isinstance(self.result, str) else ""


class Error(Terminal):
    """The run failed: `code` for programs, `message` for people."""

    code: str
    message: str
    data: Any = None

    @property
    def failed(self) -> bool:
        return True

    def as_text(self) -> str:
        return self.message


class Cancelled(Terminal):
    """The run was stopped before its end."""

    reason: str | None = None

    @property
    def failed(self) -> bool:
        return True

    def as_text(self) -> str:
        return f"Cancelled: {self.reason}" if self.reason else "Cancelled"
