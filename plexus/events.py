"""Events: small immutable values that a method yields, each with a `type` tag.

An author only declares a class with annotated fields:

    class Line(Event):
        "One line of the file."
        number: int
        line: str

The tag is the class name in snake_case, or the class argument `tag`. The constructor is derived
from the fields, and instances are immutable. An event can format itself for people (`as_text()`),
so a view can show events that it does not know. This module knows nothing of runs, views or bytes.

Event classes are msgspec structs (see `plexus.event_class`): a stream spends much of its time on
constructing events, and a frozen dataclass takes several times as long.
"""

from __future__ import annotations

import binascii
import typing
from typing import Any, ClassVar, Final, Literal

import msgspec

from plexus.event_class import EventMeta

__all__ = (
    "MEDIA",
    "Audio",
    "Cancelled",
    "Complete",
    "Content",
    "Data",
    "Detached",
    "ErrorEvent",
    "Event",
    "Gap",
    "Image",
    "Log",
    "Message",
    "Progress",
    "QuestionAsked",
    "Resource",
    "Restarted",
    "Result",
    "Start",
    "Terminal",
    "ToolResult",
    "ToolUse",
    "outcome_of",
)


class Event(msgspec.Struct, metaclass=EventMeta):
    """Root of all events. Subclass it with annotated fields; see the module docstring."""

    #: Tag of this kind of event on the wire.
    type: ClassVar[str]
    #: Each field with its default: a value, `REQUIRED` or a factory.
    fields: ClassVar[dict[str, Any]]
    #: Each field with its annotation, as written.
    hints: ClassVar[dict[str, Any]]
    #: Whether this event ends its run. Only subclasses of `Terminal` do.
    terminal: ClassVar[bool] = False
    #: Whether the class formats itself as text; otherwise views show its data.
    has_text: ClassVar[bool]
    #: Whether subclasses inherit the tag of this class.
    keeps_tag: ClassVar[bool] = False

    def as_text(self) -> str:
        """Return the event as a person reads it in a stream of output; empty if not shown."""
        return ""

    def as_line(self) -> str:
        """Return one short line about this event, for a progress display."""
        return self.as_text().strip()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: Any) -> Any:
        """Describe and validate an event that is part of another value, for pydantic."""
        from pydantic_core import core_schema as core

        hints = typing.get_type_hints(cls, include_extras=True)
        names = {name.rstrip("_"): name for name in cls.fields}  # by their names on the wire
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

    __hash__ = None  # type: ignore[assignment]  # events may contain lists and dicts


class Start(Event):
    """The work has started."""

    def as_line(self) -> str:
        return "Started"


class Content(Event):
    """A part of the answer, to be appended to the parts before it."""

    text: str

    def as_text(self) -> str:
        return self.text


class Data(Event):
    """A value of the answer that is not text. Consecutive values form a list."""

    value: Any


class Progress(Event):
    """Progress of the work; `total` is omitted if unknown."""

    done: float
    total: float | None = None
    message: str | None = None

    def as_line(self) -> str:
        amount = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{amount} {self.message}" if self.message else amount


class Log(Event):
    """A log message of the method."""

    level: str
    message: str

    def as_line(self) -> str:
        return f"{self.level}: {self.message}"


class ToolUse(Event):
    """A model calls a tool."""

    tool_name: str
    tool_use_id: str
    input: dict[str, Any]

    def as_line(self) -> str:
        return f"Using tool: {self.tool_name}"


class ToolResult(Event):
    """The result of a tool call."""

    tool_use_id: str
    output: str
    is_error: bool = False

    def as_line(self) -> str:
        return "Tool failed" if self.is_error else "Tool answered"


class Image(Event):
    """An image; `data` is base64."""

    data: str
    mime_type: str

    @classmethod
    def of_bytes(cls, data: bytes, mime_type: str) -> Image:
        """Return the event for an image in bytes."""
        return cls(_base64(data), mime_type)

    def as_line(self) -> str:
        return f"[image {self.mime_type}]"


class Audio(Event):
    """Audio; `data` is base64."""

    data: str
    mime_type: str

    @classmethod
    def of_bytes(cls, data: bytes, mime_type: str) -> Audio:
        """Return the event for a sound in bytes."""
        return cls(_base64(data), mime_type)

    def as_line(self) -> str:
        return f"[audio {self.mime_type}]"


class Resource(Event):
    """A resource that can be read by its URI; the content may be included."""

    uri: str
    name: str | None = None
    mime_type: str | None = None
    content: str | None = None
    blob: str | None = None  # base64, for content that is not text

    @classmethod
    def of_bytes(
        cls, uri: str, data: bytes, mime_type: str | None = None, *, name: str | None = None
    ) -> Resource:
        """Return a resource with binary content."""
        return cls(uri, name, mime_type, blob=_base64(data))

    def as_line(self) -> str:
        return f"[resource {self.uri}]"


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


#: Events that a result shows as content blocks, not as data.
MEDIA: Final = (Content, Image, Audio, Resource)


class Message(Event):
    """One message of a prompt: its role and its content."""

    role: Literal["user", "assistant"]
    content: Content | Image | Audio | Resource

    def as_text(self) -> str:
        return self.content.as_text()

    def as_line(self) -> str:
        return f"{self.role}: {self.content.as_line()}"


class Detached(Event, tag="background"):
    """The caller no longer needs to wait: the run continues in the background."""

    def as_line(self) -> str:
        return "Continues in the background"


class QuestionAsked(Event, tag="request"):
    """The run asks its caller a question and waits; `plexus.respond` answers."""

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
    """A watcher fell behind: the items `from_` to `to` are no longer available."""

    from_: int  # without the underscore on the wire; `from` is a keyword
    to: int

    def as_line(self) -> str:
        return f"[items {self.from_} to {self.to} are no longer available]"


class Restarted(Event):
    """The process of the run was lost, and another continues it.

    `epoch` counts the restarts of the run. What follows may repeat items before this one.
    """

    epoch: int

    def as_text(self) -> str:
        return "[restarted]\n"


class Terminal(Event):
    """The last item of a run. The runtime guarantees exactly one."""

    terminal = True

    @property
    def failed(self) -> bool:
        """Whether the run failed, from the point of view of a person."""
        return False


def outcome_of(terminal: Terminal) -> dict[str, Any]:
    """Return the outcome of a run for a person: `succeeded`, `failed` or `cancelled`.

    A command that ran and failed is a complete run; the result then includes its exit code.
    """
    if isinstance(terminal, Cancelled):
        return {"outcome": "cancelled"}
    outcome: dict[str, Any] = {"outcome": "failed" if terminal.failed else "succeeded"}
    code = getattr(terminal, "exit_code", None)
    return outcome if code.__class__ is not int else outcome | {"exit_code": code}


class Complete(Terminal):
    """The run completed. Subclass it to add fields; the tag stays `complete`."""

    keeps_tag = True


class Result(Complete):
    """The run completed with this value."""

    result: Any

    def as_text(self) -> str:
        return self.result if isinstance(self.result, str) else ""


class ErrorEvent(Terminal, tag="error"):
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
