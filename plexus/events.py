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
    "ContentResult",
    "Data",
    "Detached",
    "ErrorEvent",
    "Event",
    "Gap",
    "Image",
    "Log",
    "Message",
    "Progress",
    "QuestionAnswered",
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

    #: The text. Parts are joined as they are, without a separator.
    text: str

    def as_text(self) -> str:
        return self.text


class Data(Event):
    """A value of the answer that is not text. Consecutive values form a list."""

    #: Any JSON value.
    value: Any


class Progress(Event):
    """Progress of the work; `total` is omitted if unknown."""

    #: Amount that is done, in any unit.
    done: float
    #: Amount when everything is done; omitted if unknown.
    total: float | None = None
    #: Short text about the current step.
    message: str | None = None

    def as_line(self) -> str:
        amount = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{amount} {self.message}" if self.message else amount


class Log(Event):
    """A log message of the method."""

    #: A level of syslog: debug, info, notice, warning, error, critical, alert or emergency.
    level: str
    #: Text of the message.
    message: str

    def as_line(self) -> str:
        return f"{self.level}: {self.message}"


class ToolUse(Event):
    """A model calls a tool."""

    #: Name of the tool.
    tool_name: str
    #: Id of this use, which the result repeats.
    tool_use_id: str
    #: Arguments of the tool.
    input: dict[str, Any]

    def as_line(self) -> str:
        return f"Using tool: {self.tool_name}"


class ToolResult(Event):
    """The result of a tool call."""

    #: Id of the use that it answers.
    tool_use_id: str
    #: Output of the tool, as text.
    output: str
    #: Whether the tool failed.
    is_error: bool = False

    def as_line(self) -> str:
        return "Tool failed" if self.is_error else "Tool answered"


class Image(Event):
    """An image; `data` is base64."""

    #: Bytes of the image, as base64.
    data: str
    #: Media type, such as image/png.
    mime_type: str

    @classmethod
    def of_bytes(cls, data: bytes, mime_type: str) -> Image:
        """Return the event for an image in bytes."""
        return cls(_base64(data), mime_type)

    def as_line(self) -> str:
        return f"[image {self.mime_type}]"


class Audio(Event):
    """Audio; `data` is base64."""

    #: Bytes of the sound, as base64.
    data: str
    #: Media type, such as audio/wav.
    mime_type: str

    @classmethod
    def of_bytes(cls, data: bytes, mime_type: str) -> Audio:
        """Return the event for a sound in bytes."""
        return cls(_base64(data), mime_type)

    def as_line(self) -> str:
        return f"[audio {self.mime_type}]"


class Resource(Event):
    """A resource that can be read by its URI; the content may be included."""

    #: Where it can be read.
    uri: str
    #: Name for people, such as a file name.
    name: str | None = None
    #: Media type of the content.
    mime_type: str | None = None
    #: Content, if it is text and included.
    content: str | None = None
    #: Content as base64, if it is not text and included.
    blob: str | None = None

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

    #: Who speaks: user or assistant.
    role: Literal["user", "assistant"]
    #: What is sent: a text, an image, a sound or a resource.
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

    #: Number of the question in its run, for plexus.respond.
    request: str
    #: Kind: confirm, prompt, select, select_many, form, sample, roots or visit.
    kind: str
    #: Text of the question.
    message: str
    #: JSON Schema of an answer.
    schema: dict[str, Any]
    #: Seconds until the question expires.
    timeout_s: float
    #: Suggested answer.
    default: Any = None
    #: Choices, each with value and label.
    options: list[dict[str, str]] | None = None
    #: Name of the question if several are asked together.
    key: str | None = None
    #: What else a client needs to ask it, such as the address to open.
    details: dict[str, Any] | None = None

    def as_line(self) -> str:
        return f"Asks: {self.message}"


class QuestionAnswered(Event, tag="answered"):
    """A question of the run was answered or declined, or its time has run out.

    `answer` is omitted if it may be a secret or is too large. `by` is the client that answered.
    """

    #: Number of the question.
    request: str
    #: How it was closed.
    outcome: Literal["answered", "declined", "expired"]
    #: The answer; omitted if it may be a secret or is too large.
    answer: Any = None
    #: Name of the client that answered.
    by: str | None = None

    def as_line(self) -> str:
        if self.outcome == "expired":
            return "Not answered in time"
        return self.outcome.capitalize() + (f" by {self.by}" if self.by else "")


class Gap(Event):
    """A watcher fell behind: the items `from_` to `to` are no longer available."""

    #: Number of the first missing item.
    from_: int  # `from` on the wire, which is a keyword of Python
    #: Number of the last missing item.
    to: int

    def as_line(self) -> str:
        return f"[items {self.from_} to {self.to} are no longer available]"


class Restarted(Event):
    """The process of the run was lost, and another continues it.

    `epoch` counts the restarts of the run. What follows may repeat items before this one.
    """

    #: Number of restarts of the run.
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

    #: The value that the method returned.
    result: Any

    def as_text(self) -> str:
        return self.result if isinstance(self.result, str) else ""


class ContentResult(Complete):
    """The run completed with content blocks and, if it has one, a value.

    The result of a tool of another MCP server, as that server sent it.
    """

    #: The blocks, as MCP writes them: {"type": "text", "text": ...} and others. For a resource its
    #: contents, for a prompt its messages.
    content: list[dict[str, Any]]
    #: The value of the result, if it has one besides the content.
    value: Any = None
    #: Whether the tool failed. The content then has the reason.
    is_error: bool = False
    #: Further fields that the other server sent, by its own keys.
    meta: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        return self.is_error

    def as_text(self) -> str:
        return "\n".join(filter(None, map(_block_text, self.content)))


def _block_text(block: dict[str, Any]) -> str:
    """Return a content block as a person reads it."""
    inner = block.get("content")
    if isinstance(inner, dict):  # a message of a prompt
        return f"{block.get('role', '')}: {_block_text(inner)}"
    resource = block.get("resource")
    if isinstance(resource, dict):  # an embedded resource
        block = resource
    text = block.get("text")
    if isinstance(text, str):
        return text
    name = block.get("uri") or block.get("mimeType") or ""
    return f"[{block.get('type', 'resource')} {name}]".replace(" ]", "]")


class ErrorEvent(Terminal, tag="error"):
    """The run failed: `code` for programs, `message` for people."""

    #: Code for programs, such as not_found.
    code: str
    #: Text for people.
    message: str
    #: More about the error, such as the limit that was exceeded.
    data: Any = None

    @property
    def failed(self) -> bool:
        return True

    def as_text(self) -> str:
        return self.message


class Cancelled(Terminal):
    """The run was stopped before its end."""

    #: Why it was stopped, if the client stated it.
    reason: str | None = None

    @property
    def failed(self) -> bool:
        return True

    def as_text(self) -> str:
        return f"Cancelled: {self.reason}" if self.reason else "Cancelled"
