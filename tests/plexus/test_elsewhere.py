"""Copies of runs that are in other processes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plexus.runtime.copied import read_event
from plexus.runtime.elsewhere import UNFOLLOWED_BYTES, Elsewhere, RunElsewhere

from plexus import Plexus, Principal
from plexus.errors import Denied, NotFound
from plexus.events import (
    Cancelled,
    Content,
    ErrorEvent,
    Event,
    Gap,
    Log,
    Progress,
    QuestionAsked,
    Result,
)
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.builtin import transcript

pytestmark = pytest.mark.anyio


class Home:
    """A process that only records requests."""

    def __init__(self) -> None:
        self.wanted: list[tuple[int, int | None]] = []

    def describe(self) -> dict[str, Any]:
        return {"pid": 7}

    def request_items(self, run: int, after: int, most_bytes: int | None) -> None:  # noqa: ARG002
        self.wanted.append((after, most_bytes))

    def stop_items(self, run: int) -> None:  # noqa: ARG002
        self.wanted.append((-1, 0))

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        return [method, params]


def summary(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "run": number,
        "method": "x.y",
        "state": "running",
        "scope": "bash",
        "started_ms": 1000,
        "last_seq": 0,
    } | fields


def copied(elsewhere: Elsewhere, limits: Limits | None = None, **fields: Any) -> RunElsewhere:
    run = RunElsewhere(summary(**fields), LOCAL, limits or Limits(), Home(), elsewhere.on_end)
    elsewhere.add(run)
    return run


def content(*texts: str) -> list[bytes]:
    return [wire.encode_event(Content(text)) for text in texts]


async def read(run: RunElsewhere, after: int = 0) -> list[tuple[int, Event]]:
    """Return the available items with their numbers."""
    reader = run.reader(after, lambda _: None, owner=False)
    found: list[tuple[int, Event]] = []
    while (batch := reader.take()).events:
        found += enumerate(batch.events, batch.first)
        if batch.terminal is not None:
            break
    run.leave(reader)
    return found


async def test_items_keep_their_numbers_and_missing_ones_are_a_gap() -> None:
    run = copied(Elsewhere(Limits()))
    run.add_items(1, content("a", "b"))
    run.add_items(7, content("c"))
    run.add_items(6, content("late", "c", "d"))
    found = await read(run)
    assert [seq for seq, _ in found] == [1, 2, 6, 7, 8]
    assert found[2][1] == Gap(3, 6)
    assert [seq for seq, _ in await read(run, after=4)] == [6, 7, 8]
    assert [seq for seq, _ in await read(run, after=7)] == [8]
    assert transcript(run, after=1).startswith("b")
    assert transcript(run, after=6) == "cd\n[still running: run://1?after=8]"


async def test_a_copy_that_begins_late_begins_with_a_gap() -> None:
    run = copied(Elsewhere(Limits()))
    run.add_items(5, content("e"))
    assert await read(run) == [(4, Gap(1, 4)), (5, Content("e"))]


async def test_a_copy_is_bounded_like_a_log() -> None:
    run = copied(Elsewhere(Limits()), Limits(log_items=3))
    run.add_items(1, content(*"abcdefg"))
    assert await read(run) == [(4, Gap(1, 4)), *zip((5, 6, 7), map(Content, "efg"), strict=True)]


async def test_an_unfollowed_run_is_copied_up_to_a_limit() -> None:
    run = copied(Elsewhere(Limits()), last_seq=9)
    home = run._home  # noqa: SLF001
    assert isinstance(home, Home)
    run.request_missing_items()
    assert home.wanted.pop() == (0, UNFOLLOWED_BYTES)
    run.add_items(1, content("x" * UNFOLLOWED_BYTES))
    run.request_missing_items()
    assert home.wanted == []
    reader = run.reader(0, lambda _: None, owner=False)
    another = run.reader(0, lambda _: None, owner=False)
    assert home.wanted == [(1, None)]
    run.leave(reader)
    assert home.wanted == [(1, None)]
    run.leave(another)
    assert home.wanted == [(1, None), (-1, 0)]


async def test_a_lost_run_ends_with_its_known_terminal() -> None:
    elsewhere = Elsewhere(Limits())
    run = copied(elsewhere)
    run.add_items(1, content("a"))
    run.update(summary(state="complete", last_seq=9, terminal={"type": "complete", "exit_code": 3}))
    assert run.state == "complete"
    run.close_lost("gone")
    *_, (gap_seq, gap), (seq, last) = await read(run)
    assert (gap_seq, gap, seq) == (8, Gap(2, 8), 9)
    assert wire.decode_plain(last) == {"type": "complete", "exit_code": 3}
    other = copied(elsewhere, number=2)
    other.close_lost("its process is gone")
    assert await read(other) == [(1, ErrorEvent("gone", "its process is gone"))]
    assert elsewhere.running() == []
    assert elsewhere.all() == [run, other]


async def test_finished_remote_runs_are_kept_within_limits() -> None:
    elsewhere = Elsewhere(Limits(finished_runs=2))
    for number in range(1, 5):
        copied(elsewhere, number=number).close_lost("gone")
    assert [run.id for run in elsewhere.all()] == [3, 4]
    assert elsewhere.find(1) is None


async def test_a_remote_run_is_visible_to_and_controlled_by_its_principal_only() -> None:
    hub = Plexus()
    hub.runs.elsewhere = Elsewhere(Limits())
    run = copied(hub.runs.elsewhere)
    assert hub.runs.list_for(LOCAL) == hub.runs.list_active(LOCAL) == [run]
    assert hub.runs.running() == []
    assert hub.find_run_to_control(1, LOCAL) is run
    passed_on: Any = await run.stop("enough")
    assert passed_on == ["plexus.cancel", {"run": 1, "reason": "enough"}]
    with pytest.raises(Denied, match="'bash'"):
        hub.find_run_to_control(1, Principal("local", frozenset({"read"})))
    stranger = Principal("stranger")
    assert hub.runs.list_for(stranger) == hub.runs.list_active(stranger) == []
    with pytest.raises(NotFound):
        hub.runs.find(1, stranger)
    await hub.close()
    assert run.state == "error"


async def test_listeners_are_notified_when_a_remote_question_opens_and_closes() -> None:
    run = copied(Elsewhere(Limits()))
    changes: list[tuple[str, bool]] = []
    event = QuestionAsked("1", "prompt", "Name?", {"type": "string"}, 60.0)
    for _ in range(2):
        run.open_remote_question(
            event, 1500, lambda _, request, opened: changes.append((request, opened))
        )
    assert run.questions is not None
    assert run.questions["1"].event == event
    run.forget_question("1")
    assert changes == [("1", True), ("1", False)]


@pytest.mark.parametrize(
    "event",
    [
        Content("a"),
        Progress(1.0, 2.0, "m"),
        Log(level="info", message="x"),
        Gap(1, 2),
        Result({"a": [1, None]}),
        ErrorEvent("code", "message", {"x": 1}),
        Cancelled("why"),
        Cancelled(),
    ],
    ids=lambda event: event.type,
)
def test_a_common_event_is_read_as_what_it_was(event: Event) -> None:
    assert read_event(wire.encode_event(event)) == event


@pytest.mark.parametrize(
    ("raw", "text", "terminal"),
    [
        (b'{"type":"stdout","data":"hi\\n"}', "hi\n", False),
        (b'{"type":"odd","from":1,"class":null}', "", False),
        (b'{"type":"complete","exit_code":3,"duration_ms":5}', "", True),
        (b'{"type":"content","text":"a","more":[1]}', "a", False),
    ],
)
def test_an_unknown_event_is_passed_on_unchanged(raw: bytes, text: str, terminal: bool) -> None:
    event = read_event(raw)
    assert json.loads(wire.encode(event)) == json.loads(raw)
    assert (event.as_text(), event.terminal) == (text, terminal)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"type":1}', b'{"type":"a","b-c":1}', b"\xff"]
)
def test_bytes_that_are_not_an_event_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_event(raw)
