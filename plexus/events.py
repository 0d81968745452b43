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

Event classes are structs of msgspec (see `plexus.event_class`): a stream spends a good part of
its time constructing events, and a frozen dataclass takes several times as long.
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
    "Result",
    "Start",
    "Terminal",
    "ToolResult",
    "ToolUse",
    "outcome_of",
)


class Event(msgspec.Struct, metaclass=EventMeta):
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
    has_text: ClassVar[bool]
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

    __hash__ = None  # type: ignore[assignment]  # events may hold lists and dicts


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


class QuestionAsked(Event, tag="request"):
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
