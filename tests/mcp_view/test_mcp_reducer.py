"""The reducer alone: any events in, one bounded result out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_activations import PIXEL, Counted, Reading

from mcp_view.reducer import NO_OUTPUT, Reducer, text_only_result
from mcp_view.revisions import REVISIONS
from plexus import (
    Complete,
    Content,
    Detached,
    Event,
    Image,
    Log,
    Progress,
    Start,
    ToolResult,
    ToolUse,
)
from plexus.events import Cancelled, ErrorEvent, Gap, QuestionAsked, Restarted, Result, Terminal
from plexus.rpc import wire
from plexus.runtime.log import Batch

NEWEST = REVISIONS["2026-07-28"]
OLDEST = REVISIONS["2024-11-05"]
NOTE = re.compile(r"\n\[\.\.\. (\d+) characters omitted; full output: run://7 \.\.\.\]\n")

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=20)


class Shouted(Content):
    """Content with its own text."""

    def as_text(self) -> str:
        return self.text.upper()


class Printed(Event):
    """An event with text but another name."""

    line: str

    def as_text(self) -> str:
        return f"{self.line}\n"


class Lined(Event):
    """An event with a line but no text."""

    def as_line(self) -> str:
        return "a line"


class Exit(Complete):
    """A failed terminal without text."""

    code: int

    @property
    def failed(self) -> bool:
        return self.code != 0


def batch(*events: Event) -> Batch:
    return Batch(1, list(events), [wire.encode_event(event) for event in events])


def reduce(
    *events: Event, limit: int = 1000, blocks: int = 10_000, revision: Any = NEWEST
) -> list[dict[str, Any]]:
    """Return the content of a result for these events. The last event is the terminal."""
    reducer = Reducer(revision, limit, blocks)
    reducer.add_batch(batch(*events))
    terminal = events[-1]
    assert isinstance(terminal, Terminal)
    return reducer.content(terminal, "run://7")


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


@given(TEXTS, st.integers(2, 40))
def test_any_text_keeps_its_ends_and_counts_the_rest(texts: list[str], limit: int) -> None:
    whole = "".join(texts)
    [first, *links] = reduce(*map(Content, texts), Complete(), limit=limit)
    if len(whole) <= limit:
        assert (first, links) == (text(whole or NO_OUTPUT), [])
        return
    head, left_out, tail = NOTE.split(first["text"])
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) == limit
    assert int(left_out) == len(whole) - limit
    assert [link["uri"] for link in links] == ["run://7"]


@given(TEXTS, st.sampled_from([Complete(), Result(None), Result("x"), Result([1]), Counted(3)]))
def test_the_fast_path_equals_the_reducer(texts: list[str], end: Terminal) -> None:
    events = [*map(Content, texts), end]
    short = text_only_result(batch(*events), 50)
    if short is not None:
        assert [text(json.loads(short))] == reduce(*events, limit=50)


@pytest.mark.parametrize(
    "events",
    [
        [Content("x"), ErrorEvent("e", "m")],
        [Content("x"), Cancelled("r")],
        [Shouted("x"), Complete()],
        [Content("x"), Image(PIXEL, "image/png"), Complete()],
        [Content("x"), Log("info", "m"), Complete()],
        [Content("x" * 51), Complete()],
        [Content(""), Complete()],
        [Counted(3)],
        [Gap(1, 5), Content("x"), Complete()],
    ],
)
def test_the_fast_path_is_for_text_only(events: list[Event]) -> None:
    assert text_only_result(batch(*events), 50) is None


def test_memory_is_bounded_for_any_output() -> None:
    reducer = Reducer(NEWEST, 100, 1000)
    for number in range(5000):
        reducer.add_batch(batch(Content(f"{number:09d} ")))
    assert len(reducer._head) == 1  # noqa: SLF001
    assert reducer._tail is not None  # noqa: SLF001
    assert len(reducer._tail) <= 6  # noqa: SLF001
    assert "[... 49900 characters omitted" in reducer.text("run://7")


def test_progress_is_not_part_of_the_result() -> None:
    events = [Start(), Progress(1, 2, "half"), Log("info", "m"), Detached(), Lined(), Complete()]
    assert reduce(*events) == [text(NO_OUTPUT)]


def test_logs_and_questions_are_side_events() -> None:
    reducer = Reducer(NEWEST, 100, 1000)
    asked = QuestionAsked("1", "confirm", "Sure?", {}, 60)
    reducer.add_batch(batch(Log("info", "m"), Content("x"), asked, Detached()))
    assert [event.type for event in reducer.side_events] == ["log", "request", "background"]


def test_custom_events_use_their_own_text() -> None:
    assert reduce(Shouted("loud"), Printed(" a"), Reading(5), Printed("b"), Complete()) == [
        text('LOUD a\n{"type":"reading","value":5}\nb\n')
    ]


def test_a_gap_is_reported_at_its_position() -> None:
    assert reduce(Gap(1, 9), Content("rest"), Complete()) == [
        text("[items 1 to 9 are no longer available]\nrest")
    ]


def test_a_restart_is_reported_at_its_position() -> None:
    assert reduce(Content("one\n"), Restarted(1), Content("two"), Complete()) == [
        text("one\n[restarted]\ntwo")
    ]


@pytest.mark.parametrize(
    ("terminal", "why"),
    [
        (ErrorEvent("e", "it broke"), "it broke"),
        (Cancelled("enough"), "Cancelled: enough"),
        (Cancelled(), "Cancelled"),
        (Exit(3), '{"code":3}'),
        (ErrorEvent("e", ""), '{"code":"e","message":""}'),
    ],
)
def test_why_a_run_failed_comes_last_and_is_never_empty(terminal: Terminal, why: str) -> None:
    assert reduce(terminal) == [text(why)]
    assert reduce(Content("said"), terminal) == [text("said"), text(why)]
    assert reduce(Image(PIXEL, "image/png"), terminal)[-1] == text(why)


def test_a_value_that_is_none_or_empty_is_no_output() -> None:
    assert reduce(Result(None)) == [text(NO_OUTPUT)]
    assert reduce(Result("")) == [text(NO_OUTPUT)]
    assert reduce(Result(0)) == [text("0")]
    assert reduce(Result(False)) == [text("false")]


def test_blocks_above_the_limit_are_counted_and_omitted() -> None:
    image = Image("A" * 100, "image/png")
    kept, left_out = reduce(image, image, Content("x"), image, Complete(), blocks=200)[1:]
    assert kept["type"] == "image"
    assert left_out == text("[2 more blocks omitted: the result is full]")


def test_using_a_tool_is_a_block_after_the_text() -> None:
    assert reduce(ToolUse("grep", "1", {}), Content("x"), Complete()) == [
        text("x"),
        text("[Tool: grep] {}"),
    ]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 20_000)), max_size=30),
    st.integers(4_000, 48_000),
)
def test_tool_outputs_and_text_together_stay_within_the_limit(
    sizes: list[tuple[bool, int]], limit: int
) -> None:
    events = [ToolResult("1", "r" * n) if tool else Content("x" * n) for tool, n in sizes]
    blocks = reduce(*events, Complete(), limit=limit, blocks=10_000_000)
    chars = sum(len(block.get("text", "")) for block in blocks)
    notes = 150 * len(blocks)
    assert chars <= limit + notes
    texts = sum(n for tool, n in sizes if not tool)
    outputs = sum(n for tool, n in sizes if tool)
    if texts and texts <= limit // 2 and outputs <= limit // 2:
        assert blocks[0] == text("x" * texts)  # output of tools never displaces the text


def test_the_oldest_revision_has_no_links() -> None:
    blocks = reduce(Content("x" * 30), Complete(), limit=10, revision=OLDEST)
    assert [block["type"] for block in blocks] == ["text"]
