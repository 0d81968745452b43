"""Progress: notifications for a client with a token, their rate, and increasing values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from conftest import OpenHub
from hypothesis import given
from hypothesis import strategies as st
from mcp_activations import Show
from mcp_peer import REVISIONS, STATELESS, McpPeer, Stage

from mcp_view.server import McpOptions
from plexus import Complete, Content, Event, Image, Log, Progress, ToolUse
from plexus.events import Result

anyio = pytest.mark.anyio
pytestmark = pytest.mark.timeout(60)

NEWEST = "2025-11-25"

EVENTS = st.one_of(
    st.builds(Content, st.text(max_size=5)),
    st.builds(Log, st.just("debug"), st.text(max_size=5)),
    st.builds(
        Progress,
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.integers(0, 5),
        ),
        st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        st.one_of(st.none(), st.text(max_size=5)),
    ),
)


def stage(tool: str = "words", revision: str = NEWEST, **options: Any) -> Stage:
    """Return a call in progress with the token "t"."""
    made = Stage(Show, revision, options=McpOptions(**options))
    made.call(f"show.{tool}", {"texts": []} if tool == "words" else {}, progressToken="t")
    return made


def params(frames: list[Any]) -> list[dict[str, Any]]:
    return [f["params"] for f in frames if f.get("method") == "notifications/progress"]


def values(frames: list[Any]) -> list[float]:
    return [each["progress"] for each in params(frames)]


def messages(frames: list[Any]) -> str:
    return "".join(each.get("message", "") for each in params(frames))


# --- the token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, 1, -1, 2**53, "", "0", "a-uuid", "é"])
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_token_is_echoed_exactly(revision: str, token: Any) -> None:
    view = Stage(Show, revision)
    view.call("show.words", {"texts": []}, progressToken=token)
    [sent] = params(view.emit(Content("x")))
    assert sent["progressToken"] == token
    assert type(sent["progressToken"]) is type(token)


@pytest.mark.parametrize("meta", [{}, {"progressToken": None}, {"progressToken": True}])
@pytest.mark.parametrize("revision", REVISIONS)
def test_without_a_token_no_progress_is_sent(revision: str, meta: dict[str, Any]) -> None:
    view = Stage(Show, revision)
    view.call("show.words", {"texts": []}, **meta)
    assert view.emit(Content("x")) == []
    assert view.wait(60) == []
    assert [frame["id"] for frame in view.emit(Complete())] == [1]


def test_a_token_is_generated_only_if_configured() -> None:
    view = Stage(Show, NEWEST, options=McpOptions(progress_always=True))
    view.call("show.words", {"texts": []})
    [sent] = params(view.emit(Content("x")))
    assert sent["progressToken"] == "7"
    view = Stage(Show, NEWEST, options=McpOptions(progress_always=True))
    view.call("show.words", {"texts": []}, progressToken=3)
    [sent] = params(view.emit(Content("x")))
    assert sent["progressToken"] == 3


def test_a_connection_for_answers_only_sends_no_progress() -> None:
    view = Stage(Show, NEWEST, options=McpOptions(progress_always=True), streaming=False)
    view.call("show.words", {"texts": []}, progressToken=3)
    assert view.emit(Content("x")) == []
    assert view.wait(60) == []


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
def test_progress_has_a_message_if_the_revision_has_it(revision: str) -> None:
    [sent] = params(stage(revision=revision).emit(Content("hello")))
    assert sent.get("message") == ("hello" if revision > "2024-11-05" else None)
    assert sent["progress"] == 1


def test_progress_of_a_method_is_sent_unchanged() -> None:
    view = stage("steps")
    sent = params(view.emit(Progress(0, 100, "begin")))
    view.wait(1)
    sent += params(view.emit(Progress(50, 100)))
    view.wait(1)
    sent += params(view.emit(Progress(100.0, 100)))
    assert [(each["progress"], each["total"], each.get("message")) for each in sent] == [
        (0, 100, "begin"),
        (50, 100, None),
        (100, 100, None),
    ]


def test_a_total_is_sent_only_while_it_is_not_exceeded() -> None:
    view = stage("steps", progress_rate=0)
    sent = params(view.emit(Progress(10, 10), Content("x"), Progress(10, 20), Progress(3)))
    assert [each.get("total") for each in sent] == [10, None, 20, None]
    assert values(view.frames) == [10, 10.001, 10.002, 10.003]


def test_events_without_text_are_sent_as_their_line() -> None:
    view = stage(progress_rate=0)
    sent = view.emit(ToolUse("grep", "1", {}), Image("AA==", "image/png"), Log("debug", "m"))
    assert [each["message"] for each in params(sent)] == [
        "Using tool: grep",
        "[image image/png]",
        "debug: m",
    ]


def test_a_long_message_keeps_its_newest_end() -> None:
    [sent] = params(stage().emit(Content("a" * 2000), Content("the end")))
    assert len(sent["message"]) == 1000
    assert sent["message"].startswith("\N{HORIZONTAL ELLIPSIS}a")
    assert sent["message"].endswith("athe end")


def test_text_next_to_progress_without_a_message_is_not_lost() -> None:
    view = stage("steps")
    [sent] = params(view.emit(Content("one "), Progress(1, 2), Content("two")))
    assert sent["message"] == "one two"
    assert (sent["progress"], sent["total"]) == (1, 2)


def test_an_event_that_is_no_text_starts_a_line() -> None:
    view = stage("steps")
    [sent] = params(view.emit(Progress(1, 3, "first"), Progress(2, 3, "second"), Content("a")))
    assert (sent["progress"], sent["message"]) == (2, "first\nsecond\na")
    [sent] = params(view.emit(Content("b"), Content("c\n"), ToolUse("grep", "1", {})))
    assert sent["message"] == "bc\nUsing tool: grep"


def test_a_log_message_is_not_repeated_as_progress() -> None:
    view = Stage(Show, NEWEST, options=McpOptions(progress_rate=0))
    view.call("show.steps", progressToken=1)
    frames = view.emit(Log("error", "bad"), Log("debug", "fine"))
    assert [frame["method"] for frame in frames] == [
        "notifications/message",
        "notifications/progress",
    ]


# --- values --------------------------------------------------------------------------------------


def rises(numbers: list[float]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def test_mixed_progress_and_text_rise_strictly() -> None:
    view = stage("steps", progress_rate=0)
    view.emit(Progress(1, 10), Content("a"), Content("b"), Progress(2, 10), Progress(2, 10))
    view.emit(Progress(1, 10), Content("c"), Progress(0.5), Progress(7))
    assert values(view.frames) == [1, 1.001, 1.002, 2, 2.001, 2.002, 2.003, 2.004, 7]


def test_without_progress_events_the_value_counts_events() -> None:
    view = stage()
    assert values(view.emit(Content("a"))) == [1]
    view.wait(1)
    assert values(view.emit(Content("b"), Content("c"))) == [3]


@given(st.lists(st.lists(EVENTS, max_size=4)), st.sampled_from([0.0, 1.0, 20.0]), st.data())
def test_any_events_give_values_that_rise_strictly(
    spoken: list[list[Event]], rate: float, data: st.DataObject
) -> None:
    view = stage(data.draw(st.sampled_from(["steps", "words"])), progress_rate=rate)
    for events in spoken:
        view.emit(*events)
        view.wait(data.draw(st.sampled_from([0.0, 0.01, 0.5, 40.0])))
    view.emit(Complete())
    assert rises(values(view.frames))
    assert view.frames[-1]["id"] == 1
    for each in params(view.frames):
        assert "total" not in each or each["progress"] <= each["total"]


# --- rate ----------------------------------------------------------------------------------------


def busiest_second(times: list[float]) -> int:
    return max(sum(start <= at < start + 1 for at in times) for start in times)


@pytest.mark.parametrize("rate", [20.0, 5.0, 1.0, 100.0])
@pytest.mark.parametrize("pause", [0.001, 0.01, 0.06])
def test_notifications_are_limited_to_a_rate_per_second(rate: float, pause: float) -> None:
    view = stage(progress_rate=rate)
    times = []
    for _ in range(int(4 / pause)):
        sent = view.emit(Content("x"))
        times += [view.clock.now] * len(sent)
        before = len(view.frames)
        view.wait(pause)
        times += [view.clock.now] * (len(view.frames) - before)
    assert busiest_second(times) <= rate
    # The rate is not much lower either, as long as there are events.
    assert len(times) >= 4 * min(rate, 1 / pause) * 0.6


def test_delayed_text_is_joined_and_none_is_lost() -> None:
    view = stage()
    text = ""
    for number in range(300):
        text += f"{number} "
        view.emit(Content(f"{number} "))
        view.wait(0.001)
    view.wait(1)
    assert messages(view.frames) == text
    assert len(params(view.frames)) <= 20


def test_every_event_is_sent_without_a_limit() -> None:
    view = stage(progress_rate=0)
    sent = view.emit(*(Content(f"{number}") for number in range(500)))
    assert [each["message"] for each in params(sent)] == [f"{number}" for number in range(500)]
    assert values(sent) == list(range(1, 501))


def test_a_few_quick_steps_are_not_delayed() -> None:
    view = stage("steps")
    sent = [view.emit(Progress(number, 3)) for number in range(1, 4)]
    assert [len(each) for each in sent] == [1, 1, 1]


# --- heartbeats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("rate", [0.0, 20.0])
def test_a_silent_run_gets_a_heartbeat(revision: str, rate: float) -> None:
    view = stage(revision=revision, progress_rate=rate)
    assert view.wait(14.9) == []
    [sent] = params(view.wait(0.2))
    if revision > "2024-11-05":
        assert sent["message"] == "still running after 15 s"
    assert len(params(view.wait(30))) == 2
    assert rises(values(view.frames))


def test_a_heartbeat_follows_the_last_notification_after_an_interval() -> None:
    view = stage()
    view.wait(10)
    view.emit(Content("x"))
    assert view.wait(14.9) == []
    assert len(params(view.wait(0.2))) == 1


def test_a_heartbeat_does_not_exceed_the_total() -> None:
    view = stage("steps")
    view.emit(Progress(5, 5))
    [sent] = params(view.wait(16))
    assert sent["progress"] > 5
    assert "total" not in sent


def test_the_heartbeat_interval_is_configurable() -> None:
    assert len(params(stage(heartbeat_s=2.0).wait(9))) == 4


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 20.0])
def test_no_progress_is_sent_after_the_result(rate: float) -> None:
    view = stage(progress_rate=rate)
    for _ in range(50):
        view.emit(Content("x"))
    frames = view.emit(Content("y"), Complete())
    assert frames[-1]["id"] == 1
    assert view.wait(60) == []
    assert view.frames[-1]["id"] == 1


def test_the_terminal_is_not_sent_as_progress() -> None:
    view = stage("value")
    assert [frame.get("id") for frame in view.emit(Result("x"))] == [1]


def test_no_progress_is_sent_after_a_cancellation() -> None:
    view = stage()
    view.emit(Content("x"))
    view.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
    assert [effect.cancel for effect in view.left] == ["cancelled by the client"]
    assert view.wait(60) == []


@anyio
@pytest.mark.parametrize("revision", [NEWEST, STATELESS])
async def test_over_a_real_run_progress_comes_before_the_result(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Show), revision)
    call = peer.begin_tool("show.words", {"texts": ["a", "b"] * 100}, progressToken=0)
    await peer.answer_to(call)
    assert rises(values(peer.frames))
    assert peer.frames[-1]["id"] == call


@anyio
async def test_a_call_that_is_refused_has_no_progress(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), NEWEST)
    call = peer.begin_tool("show.words", {"texts": 5}, progressToken=0)
    assert (await peer.answer_to(call))["result"]["isError"] is True
    assert [frame.get("id") for frame in peer.frames] == [call]
