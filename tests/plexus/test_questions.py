"""Questions for a model, a program and a browser: their details and their answers."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from plexus import Form, InvalidParams, OpenUrl, Roots, Sample
from plexus.questions import Question, Root, SampleResult

PNG = {"type": "image", "data": "", "mimeType": "image/png"}


def test_a_sample_has_the_details_that_a_view_needs() -> None:
    sample = Sample("Why?", max_tokens=7, system_prompt="Be brief.")
    assert (sample.kind, sample.message) == ("sample", "Why?")
    assert sample.details() == {
        "messages": [{"role": "user", "content": "Why?"}],
        "max_tokens": 7,
        "system_prompt": "Be brief.",
    }


def test_a_sample_may_be_a_conversation() -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    sample = Sample(talk)
    assert sample.message == "b"
    assert sample.details() == {"messages": talk, "max_tokens": 1024}
    assert Sample([]).message == ""


@pytest.mark.parametrize(
    ("answer", "sampled"),
    [
        ("four", SampleResult("four")),
        ({"content": "four"}, SampleResult("four")),
        ({"role": "assistant", "content": {"type": "text", "text": "four"}}, SampleResult("four")),
        (
            {"content": {"type": "text", "text": "4"}, "model": "m", "stopReason": "endTurn"},
            SampleResult("4", "m", "endTurn"),
        ),
        (
            {"content": [{"type": "text", "text": "a"}, PNG, {"type": "text", "text": "b"}]},
            SampleResult("ab"),
        ),
        ({"content": []}, SampleResult("")),
    ],
)
def test_the_answer_of_a_model_is_validated(answer: Any, sampled: SampleResult) -> None:
    assert Sample("?").read(answer) == sampled
    Draft202012Validator(Sample("?").schema()).validate(answer)


@pytest.mark.parametrize(
    "answer",
    [
        1,
        [],
        {},
        {"content": 1},
        {"content": [1]},
        {"content": {"text": 1}},
        {"content": "a", "model": 1},
        {"content": "a", "stopReason": []},
    ],
)
def test_an_answer_that_is_not_a_message_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidParams):
        Sample("?").read(answer)
    assert not Draft202012Validator(Sample("?").schema()).is_valid(answer)


@pytest.mark.parametrize("wrap", [lambda roots: roots, lambda roots: {"roots": roots}])
def test_roots_are_read_as_a_list_or_as_a_program_wraps_them(wrap: Any) -> None:
    answer = wrap([{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}])
    assert Roots().read(answer) == [Root("file:///a", "A"), Root("file:///b")]
    Draft202012Validator(Roots().schema()).validate(answer)
    assert Roots().read(wrap([])) == []


@pytest.mark.parametrize(
    "answer", ["x", 1, {}, {"roots": 1}, [1], [{}], [{"uri": 1}], [{"uri": "a", "name": 1}]]
)
def test_an_answer_that_is_not_a_list_of_roots_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidParams):
        Roots().read(answer)
    assert not Draft202012Validator(Roots().schema()).is_valid(answer)


def test_a_visit_is_answered_by_yes_or_no() -> None:
    visit = OpenUrl("Sign in", "https://example.org/")
    assert (visit.kind, visit.message) == ("visit", "Sign in")
    assert visit.details() == {"url": "https://example.org/"}
    assert visit.schema() == {"type": "boolean"}
    assert visit.read(True) is True
    with pytest.raises(InvalidParams):
        visit.read("yes")


def test_a_form_may_be_described_by_a_schema() -> None:
    fields = {"type": "object", "properties": {"name": {"type": "string", "default": "Ada"}}}
    form = Form("Who?", fields)
    assert form.schema() == fields
    assert form.read({}) == {"name": "Ada"}
    with pytest.raises(InvalidParams):
        form.read([])


def test_a_question_has_no_details_by_default() -> None:
    assert Question[str]("?").details() is None
    assert Form("?", dict[str, str]).details() is None
