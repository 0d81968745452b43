"""Proposed changes: who answers, what is recorded, and how a change ends without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from editor_hub import EVENT_S, Editor, open_editor, watching
from hub_calls import OTHER, call, follow, settled

from activations.ide.diff import DIFF_BYTES
from activations.ide.state import MAX_ANSWERED
from plexus.events import Cancelled, ErrorEvent, QuestionAnswered, Result
from plexus.principal import LOCAL, Principal
from plexus.runtime.calls import Call

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

OLD = "one\ntwo\nthree\nfour\n"
NEW = "ONE\ntwo\nthree\nFOUR\n"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_calls.WAIT_S", EVENT_S)


@pytest.fixture
async def editor(tmp_path: Path) -> AsyncIterator[Editor]:
    (tmp_path / "a.txt").write_text(OLD)
    async with open_editor(tmp_path) as opened:
        yield opened


async def review(started: Call) -> Any:
    """Return the result of a proposed change."""
    end = (await follow(started.run))[-1]
    assert isinstance(end, Result), end
    return end.result


def id_of(started: Call) -> str:
    return str(started.run.id)


async def answered(editor: Editor, started: Call, **answer: Any) -> Any:
    await editor.value("answer_diff", diff=id_of(started), **answer)
    return await review(started)


async def test_all_of_a_change_parts_of_it_or_an_edited_text_are_accepted(editor: Editor) -> None:
    whole = await answered(editor, await editor.ask("a.txt", NEW), accept=True)
    assert (whole.outcome, whole.text) == ("accepted", NEW)
    part = await answered(editor, await editor.ask("a.txt", NEW), accept=True, hunks=[1, 1])
    assert (part.outcome, part.text) == ("edited", "one\ntwo\nthree\nFOUR\n")
    nothing = await answered(editor, await editor.ask("a.txt", NEW), accept=True, hunks=[])
    assert (nothing.outcome, nothing.text) == ("edited", OLD)
    every = await answered(editor, await editor.ask("a.txt", NEW), accept=True, hunks=[0, 1])
    assert (every.outcome, every.text) == ("accepted", NEW)
    text = await answered(editor, await editor.ask("a.txt", NEW), accept=True, text="mine\n")
    assert (text.outcome, text.text) == ("edited", "mine\n")
    assert (editor.folder / "a.txt").read_text() == OLD


@pytest.mark.parametrize(
    "answer",
    [
        {"accept": True, "hunks": [2]},
        {"accept": True, "hunks": [0], "text": "x"},
        {"accept": True, "reason": "why"},
        {"accept": True, "text": "x" * (DIFF_BYTES + 1)},
        {"accept": False, "text": "x"},
        {"accept": False, "reason": "x" * 5000},
    ],
    ids=["unknown hunk", "both", "reason", "large", "rejected text", "long reason"],
)
async def test_an_answer_that_makes_no_sense_leaves_the_change_waiting(
    editor: Editor, answer: dict[str, Any]
) -> None:
    started = await editor.ask("a.txt", NEW)
    error = await editor.error("answer_diff", diff=id_of(started), **answer)
    assert error.code == "invalid_params"
    assert len(await editor.value("diffs")) == 1
    assert (await answered(editor, started, accept=True)).text == NEW


async def test_who_answered_what_and_when_is_an_event_of_the_run(editor: Editor) -> None:
    started = await editor.ask("a.txt", NEW)
    params = {"diff": id_of(started), "accept": False, "reason": "not now"}
    answer = editor.hub.call("ide.answer_diff", params, client="page/1")
    await follow(answer.run, owner=True)
    events = await follow(started.run)
    [record] = [each for each in events if isinstance(each, QuestionAnswered)]
    assert record.by == "page/1"
    assert record.outcome == "answered"
    assert record.answer == {"decision": "reject", "reason": "not now"}
    result = await review(started)
    assert (result.outcome, result.reason, result.by) == ("rejected", "not now", "page/1")
    shown = await editor.value("diff", diff=id_of(started))
    closed = shown["answered"]
    assert (closed["outcome"], closed["by"], closed["reason"]) == ("rejected", "page/1", "not now")
    assert closed["at_ms"] >= shown["diff"]["asked_ms"]


async def test_a_change_is_answered_through_approvals_and_a_second_answer_is_refused(
    editor: Editor,
) -> None:
    started = await editor.ask("a.txt", NEW)
    [pending] = (await editor.value("approvals.pending"))["approvals"]
    assert pending["kind"] == "diff"
    assert pending["details"]["unified"].startswith("--- a.txt\n+++ a.txt\n@@ -1,4 +1,4 @@\n-one\n")
    respond = {"approval_id": pending["approval_id"], "approve": True}
    await editor.value("approvals.respond", **respond)
    assert (await review(started)).text == NEW
    error = await editor.error("answer_diff", diff=id_of(started), accept=False)
    assert error.code == "not_found"


async def test_all_watchers_see_a_change_until_it_is_answered(editor: Editor) -> None:
    async with watching(editor) as first, watching(editor) as second:
        started = await editor.ask("a.txt", NEW, tab_name="Fix \x1b[31mit")
        for watch in (first, second):
            info = await watch.next("diff")
            assert (info.added, info.removed, info.hunks) == (2, 2, 2)
            assert info.tab_name == "Fix [31mit"
            assert info.approval_id == f"{started.run.id}.1"
        await answered(editor, started, accept=False, reason="no")
        for watch in (first, second):
            assert (await watch.next("diff_closed")).outcome == "rejected"


async def test_a_change_belongs_to_its_principal(editor: Editor) -> None:
    scoped = Principal(OTHER.name, frozenset({"ide"}))
    started = await editor.ask("a.txt", NEW)
    theirs = await editor.ask("a.txt", "theirs\n", scoped)
    assert [each["diff"] for each in await editor.value("diffs")] == [id_of(started)]
    for method, more in (
        ("diff", {}),
        ("answer_diff", {"accept": True}),
        ("comment", {"line": 0, "text": "x"}),
        ("uncomment", {"comment": "x"}),
    ):
        error = await editor.error(method, scoped, diff=id_of(started), **more)
        assert error.code == "not_found"
    async with watching(editor, scoped) as watch:
        assert (await watch.next("diff")).diff == id_of(theirs)
        assert await editor.value("close_all_diff_tabs", scoped) == 1
        assert (await watch.next("diff_closed")).outcome == "closed"
    assert started.run.terminal is None


async def test_a_cancelled_change_is_no_longer_waiting(editor: Editor) -> None:
    started = await editor.ask("a.txt", NEW)
    started.run.cancel("the client has left")
    assert isinstance(await settled(started.run), Cancelled)
    assert await editor.value("diffs") == []
    assert (await editor.value("approvals.pending"))["approvals"] == []
    shown = await editor.value("diff", diff=id_of(started))
    assert shown["answered"]["outcome"] == "closed"


async def test_a_change_expires(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activations.ide.methods.diffs.WAIT_S", 0.05)
    started = editor.start("open_diff", old_file_path="a.txt", new_file_contents=NEW)
    end = (await follow(started.run))[-1]
    assert isinstance(end, ErrorEvent), end
    assert end.code == "no_answer"
    assert await editor.value("diffs") == []


async def test_comments_are_edited_deleted_bounded_and_returned_with_the_rejection(
    editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activations.ide.methods.diffs.MAX_COMMENTS", 2)
    started = await editor.ask("a.txt", NEW)
    diff: dict[str, Any] = {"diff": id_of(started)}
    first = await editor.value("comment", **diff, line=0, text="why?")
    second = await editor.value("comment", **diff, line=3, text="old", side="old")
    assert (await editor.error("comment", **diff, line=1, text="third")).code == "busy"
    edited: dict[str, Any] = {"line": 0, "text": "why, really?", "comment": first["comment"]}
    await editor.value("comment", **diff, **edited)
    unknown = await editor.error("comment", **diff, line=0, text="x", comment="none")
    assert unknown.code == "not_found"
    assert await editor.value("uncomment", **diff, comment=second["comment"]) is True
    assert await editor.value("uncomment", **diff, comment=second["comment"]) is False
    result = await answered(editor, started, accept=False)
    assert result.reason == "Line 1: why, really?"


async def test_old_answers_are_forgotten_and_their_number_is_bounded(editor: Editor) -> None:
    ids = []
    for number in range(MAX_ANSWERED + 2):
        started = await editor.ask("a.txt", f"{number}\n")
        await answered(editor, started, accept=True)
        ids.append(id_of(started))
    assert (await editor.error("diff", diff=ids[0])).code == "not_found"
    assert (await editor.value("diff", diff=ids[-1]))["new_text"] == f"{MAX_ANSWERED + 1}\n"


async def test_the_texts_of_all_waiting_changes_are_bounded(
    editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activations.ide.state.WAITING_CHARS", 100)
    started = await editor.ask("a.txt", "x" * 40)
    [error] = await call(
        editor.hub, "ide.open_diff", {"old_file_path": "b", "new_file_contents": "x" * 70}, LOCAL
    )
    assert isinstance(error, ErrorEvent)
    assert error.code == "busy"
    await answered(editor, started, accept=True)


async def test_answers_at_the_same_time_have_one_winner(editor: Editor) -> None:
    started = await editor.ask("a.txt", NEW)
    answers = [
        call(editor.hub, "ide.answer_diff", {"diff": id_of(started), "accept": True, "text": name})
        for name in ("one", "two", "three")
    ]
    ends = [events[-1] for events in await asyncio.gather(*answers)]
    assert sum(isinstance(each, Result) for each in ends) == 1
    losers = [each for each in ends if isinstance(each, ErrorEvent)]
    assert {each.code for each in losers} == {"not_found"}
    winner = ("one", "two", "three")[next(i for i, e in enumerate(ends) if isinstance(e, Result))]
    assert (await review(started)).text == winner
