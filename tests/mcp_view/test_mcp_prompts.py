"""Prompts and the completion of their arguments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from conftest import OpenHub
from mcp_peer import REVISIONS, McpPeer

from plexus import (
    Activation,
    Audio,
    Content,
    Failed,
    Image,
    Message,
    Principal,
    Resource,
    completer,
    prompt,
    resource,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

DATA = "ZGF0YQ=="


class Desk(Activation):
    """Writes prompts."""

    namespace = "desk"
    version = "1.0.0"

    @prompt
    async def letter(self, to: str, tone: Literal["kind", "kindly", "harsh"] = "kind") -> str:
        """A letter."""
        return f"Write a {tone} letter to {to}."

    @prompt
    async def talk(self) -> list[Message]:
        """A conversation."""
        return [
            Message("user", Content("Look:")),
            Message("assistant", Image(DATA, "image/png")),
            Message("user", Audio(DATA, "audio/wav")),
            Message("user", Resource("note://1", mime_type="text/plain", content="a note")),
            Message("user", Resource("note://2", name="second")),
        ]

    @prompt
    async def stream(self) -> AsyncIterator[Message]:
        """One message after the other."""
        yield Message("user", Content("one"))
        yield Message("assistant", Content("two"))

    @prompt
    async def fails(self) -> str:
        """Cannot be made."""
        raise Failed("no ink")

    @completer("letter", "to")
    async def people(self, value: str, given: dict[str, str], principal: Principal) -> list[str]:
        """Whom one writes to."""
        known = ["Ada", "Alan", "Barbara", f"harsh-{principal.name}"]
        if given.get("tone") == "harsh":
            return known[3:]
        return [name for name in known if name.startswith(value)]

    @resource("desk://{drawer}/{sheet}")
    async def sheet(self, drawer: Literal["top", "bottom"], sheet: int) -> str:
        """A sheet of paper."""
        return f"{drawer} {sheet}"

    @completer("sheet", "sheet")
    async def sheets(self, value: str, given: dict[str, str]) -> list[str]:
        """Many sheets."""
        return [f"{value}{number}" for number in range(250)] if given.get("drawer") else []


async def get(peer: McpPeer, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments} if arguments else {"name": name}
    result: dict[str, Any] = await peer.result("prompts/get", params)
    return result


async def complete(peer: McpPeer, ref: Any, name: Any, value: Any, **more: Any) -> dict[str, Any]:
    params = {"ref": ref, "argument": {"name": name, "value": value}} | more
    result = await peer.result("completion/complete", params)
    completion: dict[str, Any] = result["completion"]
    return completion


LETTER = {"type": "ref/prompt", "name": "desk.letter"}
SHEET = {"type": "ref/resource", "uri": "desk://{drawer}/{sheet}"}


# --- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_text_is_one_message_of_the_user(open_hub: OpenHub, revision: str) -> None:
    result = await get(McpPeer(open_hub(Desk), revision), "desk.letter", to="Ada")
    assert result["description"] == "A letter."
    assert result["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Write a kind letter to Ada."}}
    ]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_messages_have_the_content_of_the_revision(open_hub: OpenHub, revision: str) -> None:
    result = await get(McpPeer(open_hub(Desk), revision), "desk.talk")
    assert [message["role"] for message in result["messages"]] == [
        *("user", "assistant", "user", "user", "user")
    ]
    text, image, audio, note, link = (message["content"] for message in result["messages"])
    assert text == {"type": "text", "text": "Look:"}
    assert image == {"type": "image", "data": DATA, "mimeType": "image/png"}
    if revision >= "2025-03-26":
        assert audio == {"type": "audio", "data": DATA, "mimeType": "audio/wav"}
    else:
        assert audio == {"type": "text", "text": "[audio audio/wav]"}
    assert note["resource"] == {"uri": "note://1", "mimeType": "text/plain", "text": "a note"}
    if revision >= "2025-06-18":
        assert link == {"type": "resource_link", "uri": "note://2", "name": "second"}
    else:
        assert link["type"] == "text"


async def test_messages_may_come_one_after_the_other(open_hub: OpenHub) -> None:
    result = await get(McpPeer(open_hub(Desk), "2025-11-25"), "desk.stream")
    assert [message["content"]["text"] for message in result["messages"]] == ["one", "two"]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": 5},
        {"name": "no.such"},
        {"name": "desk.sheet"},
        {"name": "plexus.hash"},
        {"name": "desk.letter"},
        {"name": "desk.letter", "arguments": {"to": 5}},
        {"name": "desk.letter", "arguments": {"to": "x", "tone": "loud"}},
        {"name": "desk.letter", "arguments": {"to": "x", "other": "y"}},
        {"name": "desk.letter", "arguments": ["x"]},
    ],
)
async def test_an_unknown_prompt_or_a_missing_argument_is_refused(
    open_hub: OpenHub, revision: str, params: dict[str, Any]
) -> None:
    error = await McpPeer(open_hub(Desk), revision).error("prompts/get", params)
    assert error["code"] == -32602


async def test_arguments_may_be_null(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Desk), "2025-11-25")
    result = await peer.result("prompts/get", {"name": "desk.stream", "arguments": None})
    assert len(result["messages"]) == 2


async def test_a_prompt_that_fails_is_an_error_of_the_server(open_hub: OpenHub) -> None:
    error = await McpPeer(open_hub(Desk), "2025-11-25").error("prompts/get", {"name": "desk.fails"})
    assert error == {"code": -32603, "message": "no ink"}


async def test_a_prompt_is_no_tool(open_hub: OpenHub) -> None:
    error = await McpPeer(open_hub(Desk), "2025-11-25").error("tools/call", {"name": "desk.letter"})
    assert error["code"] == -32602


# --- completion ----------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_values_that_a_type_lists_are_suggested(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Desk), revision)
    assert await complete(peer, LETTER, "tone", "") == {
        "values": ["kind", "kindly", "harsh"],
        "total": 3,
        "hasMore": False,
    }
    assert (await complete(peer, LETTER, "tone", "KI"))["values"] == ["kind", "kindly"]
    assert (await complete(peer, SHEET, "drawer", "b"))["values"] == ["bottom"]
    assert (await complete(peer, LETTER, "tone", "x"))["values"] == []


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_completer_returns_its_own_values(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Desk), revision)
    assert (await complete(peer, LETTER, "to", "A"))["values"] == ["Ada", "Alan"]
    underscored = LETTER | {"name": "desk_letter"}
    assert (await complete(peer, underscored, "to", "B"))["values"] == ["Barbara"]


async def test_a_completer_gets_the_other_arguments(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Desk), "2025-06-18")
    context = {"arguments": {"tone": "harsh"}}
    found = await complete(peer, LETTER, "to", "A", context=context)
    assert found["values"] == ["harsh-local"]
    assert (await complete(peer, LETTER, "to", "A", context={}))["values"] == ["Ada", "Alan"]


async def test_at_most_a_hundred_values_are_sent(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Desk), "2025-11-25")
    context = {"arguments": {"drawer": "top"}}
    found = await complete(peer, SHEET, "sheet", "1", context=context)
    assert len(found["values"]) == 100
    assert (found["total"], found["hasMore"]) == (250, True)


async def test_the_numbers_of_runs_are_suggested(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Desk), "2025-11-25")
    found = await complete(peer, {"type": "ref/resource", "uri": "run://{run}{?after}"}, "run", "")
    assert found["values"] == []


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": LETTER},
        {"argument": {"name": "to", "value": ""}},
        {"ref": 5, "argument": {"name": "to", "value": ""}},
        {"ref": LETTER, "argument": {"name": "to"}},
        {"ref": LETTER, "argument": {"name": 5, "value": ""}},
        {"ref": LETTER, "argument": {"name": "to", "value": 5}},
        {"ref": LETTER, "argument": {"name": "no_such", "value": ""}},
        {"ref": LETTER | {"name": "no.such"}, "argument": {"name": "to", "value": ""}},
        {"ref": LETTER | {"name": 5}, "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/tool", "name": "x"}, "argument": {"name": "to", "value": ""}},
        {"ref": SHEET | {"uri": "desk://x"}, "argument": {"name": "sheet", "value": ""}},
        {"ref": SHEET | {"uri": None}, "argument": {"name": "sheet", "value": ""}},
        {"ref": LETTER, "argument": {"name": "to", "value": ""}, "context": 5},
        {"ref": LETTER, "argument": {"name": "to", "value": ""}, "context": {"arguments": 5}},
        {
            "ref": LETTER,
            "argument": {"name": "to", "value": ""},
            "context": {"arguments": {"tone": 5}},
        },
    ],
)
@pytest.mark.parametrize("revision", ["2024-11-05", "2026-07-28"])
async def test_an_invalid_completion_request_is_refused(
    open_hub: OpenHub, revision: str, params: dict[str, Any]
) -> None:
    error = await McpPeer(open_hub(Desk), revision).error("completion/complete", params)
    assert error["code"] == -32602
