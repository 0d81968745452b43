"""How a question was closed is an event of its run: by an answer, a refusal or its timeout."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import follow, local, until
from stored_runs import attach_store

from mcp_view.reducer import Reducer
from mcp_view.revisions import REVISIONS
from plexus import Activation, AskText, Confirm, Context, Form, Plexus, method
from plexus.errors import Declined
from plexus.events import Content, QuestionAnswered, QuestionAsked, Result
from plexus.questions import Question
from plexus.rpc import wire
from plexus.runtime.log import Batch
from plexus.runtime.run import LocalRun
from plexus.runtime.stored_events import read_event

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

PASSWORD = {"type": "object", "properties": {"password": {"type": "string"}}}
HIDDEN = {"type": "object", "properties": {"word": {"type": "string", "writeOnly": True}}}
PLAIN = {"type": "object", "properties": {"name": {"type": "string"}}}


class Asking(Activation):
    """Asks questions."""

    namespace = "asking"
    version = "1.0.0"

    def __init__(self, question: Question[Any], timeout_s: float | None = None) -> None:
        self._question = question
        self._timeout_s = timeout_s

    @method
    async def ask(self, *, ctx: Context) -> str:
        """Ask the question."""
        return str(await ctx.ask(self._question, timeout_s=self._timeout_s))


async def asked(open_hub: OpenHub, question: Question[Any]) -> tuple[Plexus, LocalRun]:
    hub = open_hub(Asking(question))
    run = hub.call("asking.ask", client="caller 1").run
    await until(lambda: bool(run.questions))
    return hub, local(run)


async def closed(run: LocalRun) -> QuestionAnswered:
    """Return the event after the question."""
    request, event, *_ = await follow(run)
    assert isinstance(request, QuestionAsked)
    assert isinstance(event, QuestionAnswered)
    assert event.request == request.request
    return event


@pytest.mark.parametrize(
    ("question", "answer", "shown"),
    [
        (Confirm("Sure?"), True, True),
        (Confirm("Sure?"), False, False),
        (AskText("Name?"), "Ada", "Ada"),
        (AskText("Name?"), "x" * 5000, "x" * 1000 + "..."),
        (AskText("Your password?"), "hunter2", None),
        (AskText("API key of the service"), "sk-1", None),
        (Confirm("Delete the token?"), True, True),
        (Form("Log in", PASSWORD), {"password": "hunter2"}, None),
        (Form("Log in", HIDDEN), {"word": "hunter2"}, None),
        (Form("Who?", PLAIN), {"name": "Ada"}, {"name": "Ada"}),
        (Form("Who?", PLAIN), {"name": "x" * 5000}, None),
    ],
)
async def test_the_answer_is_recorded_unless_it_is_secret_or_large(
    open_hub: OpenHub, question: Question[Any], answer: Any, shown: Any
) -> None:
    hub, run = await asked(open_hub, question)
    params = {"run": run.id, "request": "1", "answer": answer}
    await follow(hub.call("plexus.respond", params, client="page 2").run)
    event = await closed(run)
    assert (event.outcome, event.answer, event.by) == ("answered", shown, "page 2")
    assert b"hunter2" not in b"".join(run.log.payloads[:2])


@pytest.mark.parametrize("refused", [False, True])
async def test_a_declined_question_has_no_answer(open_hub: OpenHub, refused: bool) -> None:
    _, run = await asked(open_hub, AskText("Name?"))
    if refused:
        run.refuse("1", Declined("declined: no"), "page 2")
    else:
        run.answer("1", None, "page 2")
    event = await closed(run)
    assert wire.decode_plain(event) == {
        "type": "answered",
        "request": "1",
        "outcome": "declined",
        "by": "page 2",
    }
    assert event.as_line() == "Declined by page 2"


async def test_a_question_expires(open_hub: OpenHub) -> None:
    hub = open_hub(Asking(Confirm("Sure?"), timeout_s=0.05))
    run = local(hub.call("asking.ask").run)
    event = await closed(run)
    assert (event.outcome, event.answer, event.by) == ("expired", None, None)
    assert event.as_line() == "Not answered in time"


async def test_an_invalid_answer_is_not_recorded(open_hub: OpenHub) -> None:
    _, run = await asked(open_hub, Confirm("Sure?"))
    with pytest.raises(Exception, match="true or false"):
        run.answer("1", "yes")
    assert run.log.last == 1
    run.cancel("enough")
    events = await follow(run)
    assert not any(isinstance(event, QuestionAnswered) for event in events)


async def test_the_client_that_answers_is_passed_to_the_process_of_the_run(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    store = attach_store(hub)
    question = QuestionAsked("1", "confirm", "Sure?", {"type": "boolean"}, 60.0)
    store.create(7, question)
    store.ask(7, question)
    params = {"run": 7, "request": "1", "answer": True}
    await follow(hub.call("plexus.respond", params, client="page 2").run)
    assert store.requests == [("plexus.respond", params)]
    assert store.clients == ["page 2"]


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
def test_it_is_no_part_of_an_mcp_result(revision: Any) -> None:
    reducer = Reducer(revision, 1000, 1000)
    events = [QuestionAnswered("1", "answered", True, "page"), Content("a"), Result(None)]
    reducer.add_batch(Batch(1, events, [wire.encode_event(event) for event in events]))
    assert reducer.blocks("run://1") == [{"type": "text", "text": "a"}]
    assert reducer.side_events == []


def test_it_is_read_from_the_store_as_the_same_event() -> None:
    event = QuestionAnswered("1", "answered", {"name": "Ada"}, "page 2")
    assert read_event(wire.encode_event(event)) == event
