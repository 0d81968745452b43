"""Events: tags, fields, immutability, text for people, and their bytes."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import math
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexus import (
    Audio,
    Complete,
    Content,
    Detached,
    Event,
    Image,
    InvalidParams,
    Log,
    Message,
    Progress,
    Resource,
    Start,
    ToolResult,
    ToolUse,
)
from plexus.errors import InvalidEvent, RegistrationError
from plexus.event_class import EventMeta
from plexus.events import Cancelled, ErrorEvent, Gap, QuestionAsked, Result, Terminal
from plexus.registry.validation import check
from plexus.rpc import wire


class Line(Event):
    """One line of the file."""

    number: int
    line: str


class HTTPAnswer(Event):
    """A name with an abbreviation."""


class Many(Event):
    """Fields of every kind."""

    first: str
    path: Path
    second: int = 2
    third: float | None = None
    fourth: list[int] = dataclasses.field(default_factory=list)
    fifth: dict[str, Any] | None = None


class Exit(Complete):
    """How a command ended."""

    exit_code: int


class Longer(Line):
    """More than a line."""

    more: bool = False


def encoded(event: Event) -> Any:
    """Return an event as it is encoded."""
    return json.loads(wire.encode_event(event))


# --- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "tag"),
    [
        (Content, "content"),
        (ToolUse, "tool_use"),
        (ToolResult, "tool_result"),
        (HTTPAnswer, "http_answer"),
        (Line, "line"),
        (Gap, "gap"),
    ],
)
def test_the_tag_is_the_name_of_the_class_in_snake_case(cls: type[Event], tag: str) -> None:
    assert cls.type == tag


def test_a_terminal_with_more_fields_keeps_the_tag_complete() -> None:
    assert Exit.type == Result.type == Complete.type == "complete"
    assert encoded(Exit(exit_code=3)) == {"type": "complete", "exit_code": 3}


def test_only_terminals_end_a_run() -> None:
    assert all(cls.terminal for cls in (Terminal, Complete, Result, ErrorEvent, Cancelled, Exit))
    assert not any(
        cls.terminal for cls in (Start, Content, Progress, Log, QuestionAsked, Gap, Line)
    )


def test_only_errors_and_cancellations_failed() -> None:
    assert ErrorEvent("a", "b").failed
    assert Cancelled().failed
    assert not Complete().failed
    assert not Result(1).failed


def test_fields_are_passed_by_position_or_by_name_with_defaults() -> None:
    assert Line(1, "a") == Line(number=1, line="a")
    many = Many("a", Path("b"))
    assert (many.second, many.third, many.fourth, many.fifth) == (2, None, [], None)


def test_a_default_factory_is_called_for_each_event() -> None:
    assert Many("a", Path("b")).fourth is not Many("a", Path("b")).fourth


@pytest.mark.parametrize("arguments", [{}, {"number": 1}, {"number": 1, "line": "a", "x": 1}])
def test_a_field_that_is_missing_or_unknown_is_a_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Line(**arguments)


def test_a_class_that_extends_another_has_the_fields_of_both() -> None:
    assert encoded(Longer(1, "a", more=True)) == {
        "type": "longer",
        "number": 1,
        "line": "a",
        "more": True,
    }


def test_events_are_immutable() -> None:
    event: Any = Line(1, "a")
    with pytest.raises(AttributeError):
        event.number = 2
    with pytest.raises(AttributeError):
        event.other = 2
    with pytest.raises(AttributeError):
        del event.number
    assert event == Line(1, "a")


def test_events_are_equal_by_class_and_fields() -> None:
    assert Line(1, "a") == Line(1, "a")
    assert Line(1, "a") != Line(2, "a")
    assert Line(1, "a") != Longer(1, "a")
    others: list[Any] = ["a", Cancelled()]
    assert Content(text="a") not in others
    assert Complete() not in others


def test_events_show_their_fields() -> None:
    assert repr(Line(1, "a")) == "Line(number=1, line='a')"
    assert repr(Complete()) == "Complete()"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_without_a_json_form_is_refused_by_the_constructor(value: float) -> None:
    with pytest.raises(ValueError, match=r"Progress\.done"):
        Progress(done=value)
    with pytest.raises(ValueError, match=r"Progress\.total"):
        Progress(done=1, total=value)


def test_numbers_are_checked_however_the_annotation_is_written() -> None:
    scope: dict[str, Any] = {"Event": Event}
    # A module without `from __future__ import annotations`, where hints are objects.
    source = (
        "class Level(Event):\n    'A level.'\n    height: float\n    depth: float | None = None\n"
    )
    exec(compile(source, "level", "exec", dont_inherit=True), scope)
    level = scope["Level"]
    assert encoded(level(1.5)) == {"type": "level", "height": 1.5}
    with pytest.raises(ValueError, match="height"):
        level(math.nan)
    with pytest.raises(ValueError, match="depth"):
        level(1.0, math.nan)


# --- bytes ---------------------------------------------------------------------------------------


def test_the_tag_comes_first_and_omitted_fields_are_not_encoded() -> None:
    assert wire.encode_event(Progress(done=1)) == b'{"type":"progress","done":1}'
    assert wire.encode_event(Cancelled()) == b'{"type":"cancelled"}'
    assert wire.encode_event(ErrorEvent("a", "b")) == b'{"type":"error","code":"a","message":"b"}'
    assert wire.encode_event(Complete()) == b'{"type":"complete"}'
    assert encoded(Many("a", Path("b"))) == {
        "type": "many",
        "first": "a",
        "path": "b",
        "second": 2,
        "fourth": [],
    }


def test_a_result_of_none_is_encoded() -> None:
    assert encoded(Result(None)) == {"type": "complete", "result": None}


def test_a_gap_is_encoded_without_an_underscore() -> None:
    assert encoded(Gap(3, 5)) == {"type": "gap", "from": 3, "to": 5}


def test_a_message_contains_another_event() -> None:
    assert encoded(Message("user", Resource("a://b", content="c"))) == {
        "type": "message",
        "role": "user",
        "content": {"type": "resource", "uri": "a://b", "content": "c"},
    }


@given(st.binary())
def test_a_resource_may_be_created_from_bytes(data: bytes) -> None:
    made = Resource.of_bytes("a://b", data, "image/png")
    assert made.blob is not None
    assert base64.b64decode(made.blob, validate=True) == data
    assert (made.uri, made.mime_type, made.content, made.name) == ("a://b", "image/png", None, None)
    assert Resource.of_bytes("a://b", data, name="n").name == "n"


@pytest.mark.parametrize(
    "event",
    [
        Message("user", Content(text="a")),
        Message("assistant", Resource("a://b", blob="AA==")),
        Gap(1, 2),
        Progress(done=0.5),
        Line(1, "a"),
    ],
)
def test_an_event_can_be_read_again(event: Event) -> None:
    assert check("event", type(event), encoded(event)) == event


def test_a_value_that_is_not_such_an_event_is_refused() -> None:
    for wrong in ({"type": "line", "number": 1}, {"number": 1, "line": "a"}, {"type": "gap"}):
        with pytest.raises(InvalidParams):
            check("event", Line, wrong)


@pytest.mark.parametrize(
    "event",
    [
        Content(text="y"),
        Progress(done=1),
        Result(5),
        Result(None),
        Gap(1, 2),
        Cancelled(),
        Many("a", Path("b"), fifth={"x": None}),
    ],
)
def test_an_event_inside_another_value_is_encoded_the_same(event: Event) -> None:
    outer = ToolUse(tool_name="a", tool_use_id="b", input={"x": event})
    assert encoded(outer)["input"] == {"x": encoded(event)}
    assert wire.decode_plain([event]) == [encoded(event)]


def test_a_class_may_be_named_in_any_language() -> None:
    scope: dict[str, Any] = {"Event": Event}
    exec("class Größe(Event):\n    'How large.'\n    weiß: int\n", scope)
    assert encoded(scope["Größe"](1)) == {"type": "größe", "weiß": 1}


@pytest.mark.parametrize("tag", ["50%", "a'b", 'a"b', "a\\b", "{}", "%b", "ä"])
def test_an_odd_tag_is_refused_with_its_class_or_encoded_unchanged(tag: str) -> None:
    try:
        make: Any = type(Event)
        odd = make("Odd", (Event,), {"__annotations__": {"text": "str"}}, tag=tag)
    except (TypeError, ValueError) as error:
        assert "Odd" in str(error)  # noqa: PT017
    else:
        assert encoded(odd("x")) == {"type": tag, "text": "x"}


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
words = st.text(st.characters(codec="utf-8"))


@given(words, words, plain)
def test_every_event_decodes_to_an_equal_value(one: str, other: str, value: Any) -> None:
    assert encoded(Content(text=one)) == {"type": "content", "text": one}
    assert encoded(Log(level=one, message=other))["message"] == other
    assert encoded(Result(value))["result"] == value
    assert encoded(ToolUse(one, other, {"v": value}))["input"] == {"v": value}
    assert b"\n" not in wire.encode(Result(value))


@pytest.mark.parametrize("text", ["%d %b %%", "{}", "\\", "'", '"', "\x00", "\n"])
def test_text_that_looks_like_a_format_is_only_text(text: str) -> None:
    assert encoded(Content(text=text)) == {"type": "content", "text": text}
    assert encoded(Log(level="info", message=text))["message"] == text


# --- text for people -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "text", "line"),
    [
        (Content(text=" a\n"), " a\n", "a"),
        (Start(), "", "Started"),
        (Progress(done=1), "", "1"),
        (Progress(done=1, total=4, message="files"), "", "1/4 files"),
        (Log(level="info", message="hm"), "", "info: hm"),
        (ToolUse("bash", "1", {}), "", "Using tool: bash"),
        (ToolResult("1", "x"), "", "Tool answered"),
        (ToolResult("1", "x", is_error=True), "", "Tool failed"),
        (Image("", "image/png"), "", "[image image/png]"),
        (Audio("", "audio/wav"), "", "[audio audio/wav]"),
        (Resource("file:///a"), "", "[resource file:///a]"),
        (Message("user", Content(text="Hi ")), "Hi ", "user: Hi"),
        (Message("assistant", Image("", "image/png")), "", "assistant: [image image/png]"),
        (Detached(), "", "Continues in the background"),
        (QuestionAsked("1", "confirm", "Sure?", {}, 1.0), "", "Asks: Sure?"),
        (Gap(1, 5), "", "[items 1 to 5 are no longer available]"),
        (Complete(), "", ""),
        (Result("text"), "text", "text"),
        (Result({"a": 1}), "", ""),
        (ErrorEvent("a", "b"), "b", "b"),
        (Cancelled("why"), "Cancelled: why", "Cancelled: why"),
        (Cancelled(), "Cancelled", "Cancelled"),
        (Line(1, "a"), "", ""),
    ],
)
def test_an_event_formats_itself_as_text(event: Event, text: str, line: str) -> None:
    assert (event.as_text(), event.as_line()) == (text, line)


# --- names that every event has ------------------------------------------------------------------

RESERVED = sorted(
    name for name in {*dir(Event), *Event.__annotations__} if not name.startswith("_")
)


@pytest.mark.parametrize("name", [*RESERVED, "type_", "_hidden"])
@pytest.mark.parametrize("base", [Event, Complete])
def test_a_field_that_would_hide_what_every_event_has_is_refused(
    name: str, base: type[Event]
) -> None:
    with pytest.raises(RegistrationError, match=rf"Odd\.{name}: .*reserved"):
        EventMeta("Odd", (base,), {"__annotations__": {name: "str"}})


def test_a_subclass_may_declare_a_field_of_its_base_again() -> None:
    class Narrow(Content):
        text: str = "nothing"

    assert Narrow().text == "nothing"


def test_an_explicit_none_is_not_replaced_by_a_default_factory() -> None:
    class Tagged(Event):
        tags: list[str] | None = dataclasses.field(default_factory=list)

    assert Tagged().tags == []
    assert Tagged(tags=None).tags is None
    assert wire.encode_event(Tagged(tags=None)) == b'{"type":"tagged","tags":null}'


def test_an_event_with_a_constructor_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"Odd\.__init__: .*classmethod.*__post_init__"):
        EventMeta("Odd", (Event,), {"__annotations__": {}, "__init__": lambda _: None})


def test_a_field_without_a_default_after_one_with_a_default_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"Odd\.last: .* without a default follows 'more'"):
        EventMeta("Odd", (Longer,), {"__annotations__": {"line": "str", "last": "int"}})


def test_an_events_own_check_runs_after_the_check_of_its_numbers() -> None:
    class Share(Event):
        part: float

        def __post_init__(self) -> None:
            if self.part > 1:
                raise ValueError("more than all")

    class Named(Share):
        name: str
        other: float = 0.0

    for make in (Share, lambda part: Named(part, "n"), lambda part: Named(0.5, "n", part)):
        assert make(0.5) == make(0.5)
        with pytest.raises(InvalidEvent, match="JSON cannot represent it"):
            make(math.inf)
    for checked in (Share, lambda part: Named(part, "n")):
        with pytest.raises(ValueError, match="more than all"):
            checked(2)


def test_every_default_but_none_is_written() -> None:
    class Full(Event):
        text: str = ""
        flag: bool = False
        numbers: list[int] = dataclasses.field(default_factory=list)
        more: dict[str, int] = dataclasses.field(default_factory=dict)
        none: str | None = None

    class Texts(Event):
        text: str = "t"
        flag: bool = True
        none: str | None = None

    assert wire.encode_event(Full()) == (
        b'{"type":"full","text":"","flag":false,"numbers":[],"more":{}}'
    )
    assert wire.encode_event(Texts()) == b'{"type":"texts","text":"t","flag":true}'
    assert wire.encode_event(Texts(none="n")).endswith(b',"none":"n"}')


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1e16, b"1e+16"),
        (0.1, b"0.1"),
        (2**64 - 1, b"18446744073709551615"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), b'"2026-01-02T00:00:00+00:00"'),
        ({2, 1}, b"[1,2]"),
        ([Content("a")], b'[{"type":"content","text":"a"}]'),
        (None, b"null"),
    ],
)
def test_a_value_of_another_type_than_its_field_has_its_usual_form(
    value: Any, written: bytes
) -> None:
    assert wire.encode_event(Content(value)) == b'{"type":"content","text":%b}' % written
    assert wire.encode_event(Log("a", value)) == (
        b'{"type":"log","level":"a","message":%b}' % written
    )


@pytest.mark.parametrize("value", [b"bytes", "\ud800", 2**64, math.nan, object()])
def test_a_value_without_a_json_form_is_an_error_in_any_field(value: Any) -> None:
    for event in (Content(value), Log("a", value), Gap(1, value), Result(value)):
        with pytest.raises(InvalidEvent):
            wire.encode_event(event)


def test_infinity_is_an_error_however_its_field_is_annotated() -> None:
    class Level(Event):
        height: Annotated[float, "in metres"]
        depth: float | int | None = None

    assert wire.encode_event(Level(1.5)) == b'{"type":"level","height":1.5}'
    for level in (Level(math.inf), Level(1.5, -math.inf)):
        with pytest.raises(InvalidEvent, match=r"Level\.(height|depth) is -?inf"):
            wire.encode_event(level)
