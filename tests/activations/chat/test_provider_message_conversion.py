"""Any conversation is converted to a valid request, even if turns were interrupted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from activations.chat.message import KINDS, Message
from activations.chat.providers.pydantic_ai.message_conversion import model_messages

MODEL = "anthropic:claude-sonnet-5-5"
IDS = st.sampled_from(["a", "b", "c"])

messages = st.lists(
    st.builds(
        Message,
        st.sampled_from(KINDS),
        st.sampled_from(["{}", "some text", "", " "]),
        st.fixed_dictionaries(
            {"tool_use_id": IDS, "model": st.just(MODEL)},
            optional={
                "tool_name": st.just("bash.execute"),
                "provider": st.just({"parts": [{"length": 9, "signature": "s"}]}),
                "encoding": st.just("base64"),
                "mime_type": st.just("image/png"),
            },
        ),
    ),
    max_size=25,
)


@given(messages)
def test_each_tool_call_is_followed_by_its_result(conversation: list[Message]) -> None:
    made = model_messages(conversation, MODEL, "anthropic", "anthropic")
    for before, after in zip([None, *made], [*made, None], strict=True):
        used = (
            [part.tool_call_id for part in before.parts if isinstance(part, ToolCallPart)]
            if isinstance(before, ModelResponse)
            else []
        )
        answered = (
            [part.tool_call_id for part in after.parts if isinstance(part, ToolReturnPart)]
            if isinstance(after, ModelRequest)
            else []
        )
        assert used == answered


@given(messages)
def test_requests_and_responses_alternate(conversation: list[Message]) -> None:
    made = model_messages(conversation, MODEL, "anthropic", "anthropic")
    kinds = [message.kind for message in made]
    assert all(one != other for one, other in itertools.pairwise(kinds))
    assert all(message.parts for message in made)


@given(messages)
def test_no_tool_call_is_lost(conversation: list[Message]) -> None:
    made = model_messages(conversation, MODEL, "anthropic", "anthropic")
    used = [
        part.tool_call_id
        for message in made
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    assert used == [each.meta["tool_use_id"] for each in conversation if each.kind == "tool_use"]


def test_a_reused_id_has_its_own_result() -> None:
    def use(result: str) -> list[Message]:
        meta = {"tool_name": "t", "tool_use_id": "call_0"}
        return [Message("tool_use", "{}", meta), Message("tool_result", result, meta)]

    made = model_messages([*use("one"), *use("two")], MODEL, "compatible", "local")
    results = [
        part.content
        for message in made
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    assert results == ["one", "two"]


def test_an_invalid_tool_name_is_made_valid() -> None:
    meta = {"tool_name": "bash.execute now", "tool_use_id": "1"}
    [response, _] = model_messages([Message("tool_use", "{}", meta)], MODEL, "openai", "openai")
    assert isinstance(response, ModelResponse)
    assert [part.tool_name for part in response.parts if isinstance(part, ToolCallPart)] == [
        "bash_execute_now"
    ]
