"""Models over HTTP: streamed answers and requests, in each of the formats."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from model_server import Gate, ModelServer, Ping, Refusal, Request, Silence, Think, Use, reply
from provider_asking import (
    WAIT_S,
    asked,
    asking,
    calls,
    failed,
    found,
    stopped,
    text_of,
    thought,
)

from activations.chat.message import Message
from activations.chat.providers.provider import (
    Delta,
    Text,
    ThinkingText,
    TokenUsage,
    Tool,
    ToolCall,
)
from activations.chat.providers.registry import Providers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

MODELS = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6-sol",
    "google": "google:gemini-3.8-flash",
    "compatible": "local:llama3",
}
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string", "default": "ls"}, "deep": {"type": "boolean"}},
    "required": ["command"],
}
EXECUTE = Tool("bash_execute", "Runs a command.", SCHEMA)
PIXEL = base64.b64encode(b"\x89PNG not really").decode()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as opened:
        yield opened


@pytest.fixture
async def providers(server: ModelServer) -> AsyncIterator[Providers]:
    endpoints = [f"local={server.openai_url}"]
    opened = Providers(endpoints, environment=server.environment())
    yield opened
    await opened.close()


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return MODELS[request.param]


def turns(request: Request) -> list[tuple[str, Any]]:
    """Return the roles and contents of a request in its format."""
    if request.dialect == "google":
        return [(each["role"], each["parts"]) for each in request.body["contents"]]
    return [(each["role"], each.get("content")) for each in request.body["messages"]]


# --- answers -------------------------------------------------------------------------------------


async def test_an_answer_streams_word_by_word(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.script(reply("Good morning,\n  all of you.", tokens=(12, 34)))
    deltas = await asked(providers, name, "Hi.")
    texts = [delta.text for delta in deltas if isinstance(delta, Text)]
    assert texts == ["Good ", "morning,\n  ", "all ", "of ", "you."]
    assert stopped(deltas) == "end_turn"
    used = [delta for delta in deltas if isinstance(delta, TokenUsage)]
    assert used[-1] == TokenUsage(12, 34)
    assert len(used) <= 2


async def test_each_delta_is_yielded_before_the_next_arrives(
    server: ModelServer, providers: Providers, name: str
) -> None:
    gate = asyncio.Event()
    server.script(reply("First ", Gate(gate), "second."))
    provider, model = providers.find(name)
    texts: list[str] = []
    async with (
        asyncio.timeout(WAIT_S),
        aclosing(provider.stream(asking(model, "Hi."))) as answer,
    ):
        async for delta in answer:
            if isinstance(delta, Text):
                texts.append(delta.text)
                # The server sends no more until this was received.
                gate.set()
    assert texts == ["First ", "second."]


async def test_reasoning_is_separate_from_the_answer(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.script(reply(Think("let me see"), "Yes."))
    deltas = await asked(providers, name, "Is it?", thinking=True)
    assert thought(deltas) == "let me see"
    assert len([d for d in deltas if isinstance(d, ThinkingText) and d.text]) == 3
    assert text_of(deltas) == "Yes."
    order = [type(d) for d in deltas if isinstance(d, ThinkingText | Text)]
    assert order == sorted(order, key=lambda kind: kind is Text)


async def test_a_tool_call_is_yielded_complete(
    server: ModelServer, providers: Providers, name: str
) -> None:
    uses = [
        Use("bash_execute", {"command": "ls", "deep": True}, "use_1"),
        Use("bash_execute", {"command": "pwd"}, "use_2"),
    ]
    server.script(reply("Let me look.", *uses))
    deltas = await asked(providers, name, "Look.", tools=[EXECUTE])
    assert [call[:3] for call in calls(deltas)] == [(u.id, u.name, u.arguments) for u in uses]
    assert text_of(deltas) == "Let me look."
    assert stopped(deltas) == "tool_use"


async def test_a_tool_without_parameters_gets_an_empty_input(
    server: ModelServer, providers: Providers
) -> None:
    for name in (MODELS["anthropic"], MODELS["openai"]):
        server.script(reply(Use("now", "")))
        assert calls(await asked(providers, name, "When?")) == [ToolCall("use_1", "now", {})]


@pytest.mark.parametrize("arguments", ['{"command": ', "[1]", "nonsense"])
@pytest.mark.parametrize("kind", ["anthropic", "openai", "compatible"])
async def test_arguments_that_are_not_an_object_are_passed_raw(
    server: ModelServer, providers: Providers, kind: str, arguments: str
) -> None:
    server.script(reply(Use("bash_execute", arguments)))
    deltas = await asked(providers, MODELS[kind], "Look.", tools=[EXECUTE])
    assert calls(deltas) == [ToolCall("use_1", "bash_execute", {"_raw": arguments})]
    assert stopped(deltas) == "tool_use"


@pytest.mark.parametrize("kind", ["anthropic", "openai", "compatible"])
async def test_a_truncated_tool_call_is_omitted(
    server: ModelServer, providers: Providers, kind: str
) -> None:
    server.script(reply("So: ", Use("bash_execute", '{"command": "rm -r'), stop="max_tokens"))
    deltas = await asked(providers, MODELS[kind], "Look.", tools=[EXECUTE])
    assert calls(deltas) == []
    assert text_of(deltas) == "So: "
    assert stopped(deltas) == "max_tokens"


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "refusal"])
async def test_finish_reasons_are_mapped_to_stop_reasons(
    server: ModelServer, providers: Providers, name: str, reason: str
) -> None:
    server.script(reply("So.", stop=reason))
    assert stopped(await asked(providers, name, "Go on.")) == reason


async def test_a_specific_stop_reason_is_kept(server: ModelServer, providers: Providers) -> None:
    server.script(reply("So.", stop="stop_sequence"))
    assert stopped(await asked(providers, MODELS["anthropic"], "Go on.")) == "stop_sequence"


async def test_an_empty_answer_is_an_answer(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.script(reply())
    deltas = await asked(providers, name, "Hi.")
    assert text_of(deltas) == ""
    assert stopped(deltas) == "end_turn"


async def test_a_keep_alive_message_is_not_output(
    server: ModelServer, providers: Providers
) -> None:
    for kind in ("anthropic", "openai", "compatible"):
        server.script(reply(Ping(), "One ", Ping(), "two."))
        assert text_of(await asked(providers, MODELS[kind], "Count.")) == "One two."


# --- requests ------------------------------------------------------------------------------------


async def test_settings_are_sent(server: ModelServer, providers: Providers, name: str) -> None:
    more: dict[str, Any] = {"system_prompt": "Be brief.", "max_tokens": 77, "tools": [EXECUTE]}
    await asked(providers, name, "Hi.", **more)
    [request] = server.requests
    body = json.dumps(request.body)
    assert request.model == name.partition(":")[2]
    assert "Be brief." in body
    assert "bash_execute" in body
    assert "Runs a command." in body
    # The schema is unchanged, including defaults.
    assert json.dumps(SCHEMA)[1:-1] in body
    limit = {
        "anthropic": lambda: request.body["max_tokens"],
        "openai": lambda: request.body["max_completion_tokens"],
        "google": lambda: request.body["generationConfig"]["maxOutputTokens"],
        "local": lambda: request.body["max_tokens"],
    }
    assert limit[name.partition(":")[0]]() == 77


async def test_a_schema_is_sent_unchanged(
    server: ModelServer, providers: Providers, name: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    }
    await asked(providers, name, "Hi.", tools=[Tool("bash_execute", "", schema)])
    body = json.dumps(server.requests[0].body)
    assert json.dumps(schema) in body
    # Strict mode of a server would change the schema.
    assert '"strict": true' not in body


@pytest.mark.parametrize("name", ["openai:gpt-4o", "google:gemini-2.5-flash", "local:llama3"])
async def test_a_temperature_is_sent_to_models_that_support_it(
    server: ModelServer, providers: Providers, name: str
) -> None:
    await asked(providers, name, "Hi.", temperature=0.25)
    [request] = server.requests
    assert request.body.get("generationConfig", request.body)["temperature"] == 0.25


async def test_reasoning_is_sent_back_to_the_same_model_with_its_signature(
    server: ModelServer, providers: Providers
) -> None:
    name = MODELS["anthropic"]
    server.script(
        reply(
            Think("let me see", "signature one"),
            Think("and again", "signature two"),
            Use("bash_execute", {"command": "ls"}),
        )
    )
    deltas = await asked(providers, name, "Look.", tools=[EXECUTE])
    messages = [Message("user", "Look."), *stored(deltas, name), result("use_1", "a.txt")]
    server.script("Done.", "Done.", "Done.")
    await asked(providers, name, *messages, tools=[EXECUTE])
    (_, answer), (_, results) = turns(server.requests[-1])[1:]
    assert [{k: v for k, v in part.items() if k != "cache_control"} for part in answer] == [
        {"type": "thinking", "thinking": "let me see", "signature": "signature one"},
        {"type": "thinking", "thinking": "and again", "signature": "signature two"},
        {
            "type": "tool_use",
            "id": "use_1",
            "name": "bash_execute",
            "input": {"command": "ls"},
        },
    ]
    assert results[0]["tool_use_id"] == "use_1"
    # Signatures are specific to a model, so another model does not receive the reasoning.
    for other in ("anthropic:claude-opus-5-5", MODELS["openai"]):
        await asked(providers, other, *messages, tools=[EXECUTE])
        sent = json.dumps(server.requests[-1].body)
        assert "let me see" not in sent
        assert "signature" not in sent
        assert "a.txt" in sent


async def test_changed_reasoning_is_not_sent_back(
    server: ModelServer, providers: Providers
) -> None:
    name = MODELS["anthropic"]
    server.script(reply(Think("let me see"), "Yes."))
    deltas = await asked(providers, name, "Is it?")
    changed = [
        message._replace(text="something else") if message.kind == "thinking" else message
        for message in stored(deltas, name)
    ]
    await asked(providers, name, "Is it?", *changed, "Sure?")
    assert "something else" not in json.dumps(server.requests[-1].body)
    unsigned = Message("thinking", "hmm", {"model": name, "status": "cancelled"})
    await asked(providers, name, "Is it?", unsigned, "Sure?")
    assert "hmm" not in json.dumps(server.requests[-1].body)


async def test_the_signature_of_a_tool_call_is_sent_back(
    server: ModelServer, providers: Providers
) -> None:
    name = MODELS["google"]
    server.script(reply(Use("bash_execute", {"command": "ls"})))
    deltas = await asked(providers, name, "Look.", tools=[EXECUTE])
    await asked(providers, name, "Look.", *stored(deltas, name), result("use_1", "a.txt"))
    [part] = turns(server.requests[-1])[1][1]
    assert base64.b64decode(part["thoughtSignature"]) == b"signed use_1"


async def test_a_conversation_with_tools_is_sent_in_order(
    server: ModelServer, providers: Providers, name: str
) -> None:
    messages = [
        Message("user", "Look twice."),
        Message("assistant", "I will."),
        use("use_1", {"command": "ls"}),
        use("use_2", {"command": "pwd"}),
        result("use_1", "a.txt"),
        result("use_2", "no", is_error=True),
        Message("assistant", "One file."),
        Message("user", "Thanks."),
    ]
    await asked(providers, name, *messages, tools=[EXECUTE])
    [request] = server.requests
    sent = turns(request)
    text = json.dumps(request.body)
    if request.dialect == "anthropic":
        roles = ["user", "assistant", "user", "assistant", "user"]
        blocks = [(part["type"], part.get("id"), part.get("name")) for part in sent[1][1]]
        assert blocks == [
            ("text", None, None),
            ("tool_use", "use_1", "bash_execute"),
            ("tool_use", "use_2", "bash_execute"),
        ]
        results = [(part["tool_use_id"], part["is_error"]) for part in sent[2][1]]
        assert results == [("use_1", False), ("use_2", True)]
    elif request.dialect == "openai":
        roles = ["user", "assistant", "tool", "tool", "assistant", "user"]
        made = request.body["messages"][1]["tool_calls"]
        assert [(each["id"], each["function"]["name"]) for each in made] == [
            ("use_1", "bash_execute"),
            ("use_2", "bash_execute"),
        ]
        assert [each["tool_call_id"] for each in request.body["messages"][2:4]] == [
            "use_1",
            "use_2",
        ]
    else:
        roles = ["user", "model", "user", "model", "user"]
        assert [part.get("functionCall", {}).get("name") for part in sent[1][1]] == [
            None,
            "bash_execute",
            "bash_execute",
        ]
        assert [part["functionResponse"]["id"] for part in sent[2][1]] == ["use_1", "use_2"]
    assert [role for role, _ in sent] == roles
    words = ["Look twice.", "I will.", "a.txt", "One file.", "Thanks."]
    assert sorted(words, key=text.index) == words


async def test_an_interrupted_tool_call_does_not_break_the_conversation(
    server: ModelServer, providers: Providers, name: str
) -> None:
    messages = [
        Message("user", "Look."),
        use("use_1", {"command": "ls"}),
        use("use_2", {"command": "pwd"}),
        result("use_1", "a.txt"),
        Message("user", "Never mind."),
    ]
    assert stopped(await asked(providers, name, *messages, tools=[EXECUTE])) == "end_turn"
    text = json.dumps(server.requests[0].body)
    order = ["use_2", "a.txt", "This tool was not run", "Never mind."]
    assert sorted(order, key=text.index) == order


async def test_a_summary_is_sent_as_a_summary(
    server: ModelServer, providers: Providers, name: str
) -> None:
    await asked(providers, name, Message("summary", "They met."), Message("user", "And then?"))
    text = json.dumps(turns(server.requests[0]))
    assert "Summary of the conversation" in text
    assert text.index("They met.") < text.index("And then?")


async def test_attachments_are_sent_with_their_message(
    server: ModelServer, providers: Providers, name: str
) -> None:
    messages = [
        file("notes.txt", "text/plain", "remember the milk", "text"),
        file("dot.png", "image/png", PIXEL),
        file("paper.pdf", "application/pdf", PIXEL),
        Message("user", "What is this?"),
    ]
    await asked(providers, name, *messages)
    text = json.dumps(server.requests[0].body)
    assert text.count(PIXEL) == 2
    order = ["notes.txt", "remember the milk", PIXEL, "What is this?"]
    assert sorted(order, key=text.index) == order
    assert [role for role, _ in turns(server.requests[0])] == ["user"]
    for mime_type in ("image/png", "application/pdf"):
        assert mime_type in text


@pytest.mark.parametrize(("kind", "taken"), [("anthropic", 0), ("openai", 1), ("google", 1)])
async def test_an_unsupported_file_is_replaced_by_a_note(
    server: ModelServer, providers: Providers, kind: str, taken: int
) -> None:
    sound = file("hum.wav", "audio/wav", PIXEL)
    await asked(providers, MODELS[kind], sound, Message("user", "What is this?"))
    text = json.dumps(server.requests[0].body)
    assert text.count(PIXEL) == taken
    assert ("The attached file hum.wav, audio/wav, is not shown" in text) is not bool(taken)


async def test_a_damaged_file_is_replaced_by_a_note(
    server: ModelServer, providers: Providers, name: str
) -> None:
    await asked(providers, name, file("dot.png", "image/png", "!!"), Message("user", "This?"))
    assert "its data is damaged" in json.dumps(server.requests[0].body)


async def test_caching_is_requested_where_it_is_optional(
    server: ModelServer, providers: Providers
) -> None:
    await asked(providers, MODELS["anthropic"], "Hi.")
    await asked(providers, MODELS["anthropic"], "Hi.", ephemeral=True)
    kept, unkept = (json.dumps(request.body) for request in server.requests)
    assert "cache_control" in kept
    assert "cache_control" not in unkept


# --- destinations --------------------------------------------------------------------------------


async def test_a_key_is_sent_only_to_its_own_server(
    monkeypatch: pytest.MonkeyPatch, server: ModelServer, providers: Providers
) -> None:
    # Keys in the environment of the process are not sent to an endpoint either.
    for variable, value in {**server.environment("sk-process"), "OPENAI_ORG_ID": "org"}.items():
        monkeypatch.setenv(variable, value)
    for name in MODELS.values():
        await asked(providers, name, "Hi.")
    seen = {
        request.path: "\n".join(request.headers.values()) + json.dumps(request.body)
        for request in server.requests
    }
    assert len(server.requests) == 4
    for request, own in zip(server.requests, ["anthropic", "openai", "google", ""], strict=True):
        text = "\n".join(request.headers.values())
        assert (f"sk-test-{own}" in text) is bool(own)
        assert [k for k in ("anthropic", "openai", "google") if f"sk-test-{k}" in text] == [
            *([own] if own else [])
        ]
        assert "sk-process" not in text
    assert "org" not in server.requests[3].headers.values()
    assert all("sk-process" not in text for text in seen.values())


async def test_an_endpoint_gets_the_key_in_its_variable(server: ModelServer) -> None:
    environment = {"MY_BOX_API_KEY": "sk-box", "OPENAI_API_KEY": "sk-openai"}
    providers = Providers([f"my-box={server.openai_url}"], environment=environment)
    await asked(providers, "my-box:llama3", "Hi.")
    assert server.requests[0].headers["authorization"] == "Bearer sk-box"
    await providers.close()


async def test_a_redirect_does_not_send_a_key_to_another_server(
    server: ModelServer, providers: Providers, name: str
) -> None:
    async with ModelServer() as elsewhere:
        path = f"{elsewhere.url}/v1/messages"
        server.otherwise = Refusal(307, headers={"location": path})
        _, error = await failed(providers, name)
        assert error.code in ("provider_refused", "provider_broke")
        assert elsewhere.requests == []


async def test_a_local_server_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, providers: Providers, name: str
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    assert text_of(await asked(providers, name, "Hi.")) == "Hello."


async def test_connections_are_reused_and_closed(
    server: ModelServer, providers: Providers, name: str
) -> None:
    for _ in range(3):
        await asked(providers, name, "Hi.")
    assert server.connections == 1
    await found(providers, name).close()
    assert text_of(await asked(providers, name, "Hi.")) == "Hello."
    assert server.connections == 2


async def test_many_requests_can_run_concurrently(
    server: ModelServer, providers: Providers, name: str
) -> None:
    gate = asyncio.Event()
    server.otherwise = reply("One ", Gate(gate), "two.")
    asks = [asyncio.create_task(asked(providers, name, "Hi.")) for _ in range(8)]
    await server.asked(8)
    gate.set()
    assert [text_of(deltas) for deltas in await asyncio.gather(*asks)] == ["One two."] * 8


# --- cancellation --------------------------------------------------------------------------------


async def test_closing_the_stream_cancels_the_request(
    server: ModelServer, providers: Providers, name: str
) -> None:
    server.script(reply("One ", Silence()))
    provider, model = providers.find(name)
    answer = provider.stream(asking(model, "Hi."))
    async with asyncio.timeout(WAIT_S):
        while not isinstance(await anext(answer), Text):
            pass
        await answer.aclose()
        await server.requests[0].gone.wait()


@pytest.mark.parametrize("steps", [(Silence(),), ("One ", Silence())])
async def test_cancelling_the_caller_cancels_the_request(
    server: ModelServer, providers: Providers, name: str, steps: tuple[Any, ...]
) -> None:
    server.script(reply(*steps))
    task = asyncio.create_task(asked(providers, name, "Hi."))
    request = await server.asked(1)
    task.cancel()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(asyncio.CancelledError):
            await task
        await request.gone.wait()


# --- messages ------------------------------------------------------------------------------------


def use(identifier: str, arguments: dict[str, Any]) -> Message:
    meta = {"tool_name": "bash.execute", "tool_use_id": identifier}
    return Message("tool_use", json.dumps(arguments), meta)


def result(identifier: str, text: str, *, is_error: bool = False) -> Message:
    meta = {"tool_name": "bash.execute", "tool_use_id": identifier, "is_error": is_error}
    return Message("tool_result", text, meta)


def file(name: str, mime_type: str, text: str, encoding: str = "base64") -> Message:
    return Message("attachment", text, {"name": name, "mime_type": mime_type, "encoding": encoding})


def stored(deltas: list[Delta], name: str) -> list[Message]:
    """Return the messages of a round as a session stores them."""
    messages: list[Message] = []
    for delta in deltas:
        if isinstance(delta, ThinkingText | Text):
            kind: Any = "thinking" if isinstance(delta, ThinkingText) else "assistant"
            more = dict(delta.meta or {}) if isinstance(delta, ThinkingText) else {}
            if not messages or messages[-1].kind != kind:
                messages.append(Message(kind, "", {"model": name}))
            last = messages[-1]
            messages[-1] = Message(kind, last.text + delta.text, {**last.meta, **more})
        elif isinstance(delta, ToolCall):
            meta = {"tool_name": "bash.execute", "tool_use_id": delta.id, "model": name}
            text = json.dumps(delta.input)
            messages.append(Message("tool_use", text, {**meta, **(delta.meta or {})}))
    return messages
