"""Python sessions over MCP: the tool with its flat name, its resources and its prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from hub_calls import register
from mcp_peer import HANDSHAKES, REVISIONS, McpPeer

from activations.evaluate import Evaluate
from plexus import Plexus

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture
async def hub() -> AsyncIterator[Plexus]:
    hub = Plexus()
    register(hub, Evaluate())
    yield hub
    await hub.close()


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_result_of_an_expression_is_one_text(hub: Plexus, revision: str) -> None:
    result = await McpPeer(hub, revision).tool("evaluate", {"expression": "3 + 4"})
    assert result["content"] == [{"type": "text", "text": "7"}]
    assert not result.get("isError")


async def test_an_exception_is_an_error_with_what_was_shown_before(hub: Plexus) -> None:
    code = "print('before')\nundefined"
    result = await McpPeer(hub, HANDSHAKES[-1]).tool("evaluate", {"expression": code})
    assert result["isError"] is True
    assert result["content"][0] == {"type": "text", "text": "before\n"}
    assert result["content"][1]["text"].startswith(
        "NameError: name 'undefined' is not defined\n\nTraceback"
    )


async def test_a_picture_is_an_image_block(hub: Plexus) -> None:
    code = "class Dot:\n    def _repr_png_(self): return b'\\x89PNG' + bytes(8)\nDot()"
    result = await McpPeer(hub, HANDSHAKES[-1]).tool("evaluate", {"expression": code})
    [picture] = [block for block in result["content"] if block["type"] == "image"]
    assert picture == {"type": "image", "data": "iVBORwAAAAAAAAAA", "mimeType": "image/png"}


async def test_resources_describe_the_interpreter_and_modules(hub: Plexus) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    version = await peer.result("resources/read", {"uri": "python://system/version"})
    assert version["contents"][0]["text"].startswith("Python 3.")
    listed = await peer.result("resources/templates/list")
    assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == [
        "python://module/{name}"
    ]
    module = await peer.result("resources/read", {"uri": "python://module/json.decoder"})
    described = json.loads(module["contents"][0]["text"])
    assert "JSONDecoder" in [each["name"] for each in described["classes"]]
    unknown = await peer.error("resources/read", {"uri": "python://module/no_such_module"})
    assert "no_such_module" in unknown["message"]
    hostile = await peer.error("resources/read", {"uri": "python://module/..%2Fetc%2Fpasswd"})
    assert "is not the name of a module" in hostile["message"]


async def test_the_prompt_asks_for_a_review_with_an_outline(hub: Plexus) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    [prompt] = (await peer.result("prompts/list"))["prompts"]
    assert [each["name"] for each in prompt["arguments"]] == ["module"]
    for name in (prompt["name"], "review-module"):
        asked = await peer.result("prompts/get", {"name": name, "arguments": {"module": "json"}})
        text = asked["messages"][0]["content"]["text"]
        assert text.startswith("Please review the Python module json.")
        assert "dumps" in text
