"""Chat over MCP: answers as tool results and progress, sessions as prompts, trees as resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_peer import HANDSHAKES, REVISIONS, STATELESS, McpPeer, text_of

from activations.arbor import Arbor, feed
from activations.chat import Chat, ClaudeCode
from activations.chat.providers.registry import Providers
from mcp_view.server import McpOptions
from plexus import Plexus
from plexus.rpc import wire
from plexus.runtime.builtin import PlexusActivation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPTS_CHANGED = "notifications/prompts/list_changed"

#: The entry of this tool on other servers of this protocol.
CLAUDECODE_CHAT = b"""{
    "name": "claudecode.chat",
    "description": "Chat with a Claude Code session",
    "inputSchema": {
      "type": "object",
      "properties": {
        "session_name": {
          "type": "string",
          "description": "Name of the session"
        },
        "query": {
          "type": "string",
          "description": "The query to send"
        },
        "max_turns": {
          "type": ["integer", "null"],
          "description": "Maximum conversation turns"
        }
      },
      "required": ["session_name", "query"]
    }
  }"""


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Plexus]:
    hub = Plexus()
    arbor = Arbor(str(tmp_path / "chat.db"))
    chat = Chat(arbor, lambda: Providers(environment={}), "echo:echo")
    for activation in (PlexusActivation(hub), arbor, chat, ClaudeCode(chat)):
        hub.register(activation)
    yield hub
    await hub.close()


async def create(peer: McpPeer, name: str = "my-session", **more: Any) -> None:
    result = await peer.tool("chat.create", {"name": name, **more})
    assert not result["isError"], result


# --- tools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_tool_to_chat_is_listed_word_for_word(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    tools = (await peer.result("tools/list"))["tools"]
    [listed] = [tool for tool in tools if tool["name"] == "claudecode.chat"]
    expected = wire.decode_plain(wire.decode_value(CLAUDECODE_CHAT, hub.limits))
    assert {name: listed[name] for name in expected} == expected
    assert list(listed["inputSchema"]["properties"]) == list(expected["inputSchema"]["properties"])


@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_unknown_session_is_a_tool_error(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    for tool, arguments in (
        ("claudecode.chat", {"session_name": "my-session", "query": "hi"}),
        ("chat.send", {"session": "my-session", "message": "hi"}),
    ):
        result = await peer.tool(tool, arguments)
        assert result["isError"] is True
        assert text_of(result) == "Session 'my-session' not found"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_result_is_the_whole_answer(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    await create(peer)
    await peer.tool("claudecode.chat", {"session_name": "my-session", "query": "first"})
    query = " ".join(f"word{n}" for n in range(500))
    for tool, arguments in (
        ("claudecode.chat", {"session_name": "my-session", "query": query}),
        ("claudecode.chat", {"session_name": "my-session", "query": query, "max_turns": None}),
        ("chat.send", {"session": "my-session", "message": query}),
    ):
        result = await peer.tool(tool, arguments)
        assert not result["isError"]
        assert text_of(result).startswith(f"You said: {query}")
        assert text_of(result).count("word499") == 1


@pytest.mark.parametrize("revision", REVISIONS)
async def test_progress_shows_the_answer_as_it_grows(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision, options=McpOptions(progress_rate=0))
    await create(peer)
    await peer.tool("chat.send", {"session": "my-session", "message": "hi"})
    await peer.tool("chat.configure", {"session": "my-session", "model": "echo:slow"})
    request = peer.begin_tool(
        "chat.send", {"session": "my-session", "message": "one two three"}, progressToken="t"
    )
    progress = await peer.notification("notifications/progress")
    assert all(frame.get("id") != request for frame in peer.frames), "it is not over yet"
    result = (await peer.answer_to(request))["result"]
    shown = peer.notifications("notifications/progress")
    assert progress in shown
    assert {each["progressToken"] for each in shown} == {"t"}
    values = [each["progress"] for each in shown]
    assert values == sorted(set(values))
    assert text_of(result).startswith("You said: one two three")
    if revision != "2024-11-05":  # its progress has no message
        grown = "".join(each.get("message", "") for each in shown)
        assert "You" in grown
        assert "three" in grown


@pytest.mark.parametrize("revision", REVISIONS)
async def test_without_a_token_there_is_no_progress(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    await create(peer)
    await peer.tool("chat.send", {"session": "my-session", "message": "hi"})
    assert peer.notifications("notifications/progress") == []


# --- prompts -------------------------------------------------------------------------------------


async def prompt_names(peer: McpPeer) -> list[str]:
    prompts = (await peer.result("prompts/list"))["prompts"]
    return [each["name"] for each in prompts if each["name"].startswith("chat.")]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_sessions_are_prompts_with_their_messages(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    assert await prompt_names(peer) == []
    for name in ("b", "a.b c", "my-session"):
        await create(peer, name)
    assert await prompt_names(peer) == [
        "chat.session.a.b c",
        "chat.session.b",
        "chat.session.my-session",
    ]
    attachments = [{"text": "x = 1", "name": "x.py"}]
    await peer.tool("chat.send", {"session": "b", "message": "one"})
    await peer.tool("chat.send", {"session": "b", "message": "two", "attachments": attachments})
    got = await peer.result("prompts/get", {"name": "chat.session.b"})
    roles = [message["role"] for message in got["messages"]]
    assert roles == ["user", "assistant", "user", "user", "assistant"]
    contents = [message["content"] for message in got["messages"]]
    assert contents[0] == {"type": "text", "text": "one"}
    assert contents[1]["text"].startswith("You said: one")
    assert contents[2]["type"] == "resource"
    assert contents[2]["resource"]["text"] == "x = 1"
    assert contents[3]["text"] == "two"
    assert (await peer.result("prompts/get", {"name": "chat.session.a.b c"}))["messages"] == []
    await peer.error("prompts/get", {"name": "chat.session.nobody"})


@pytest.mark.parametrize("revision", REVISIONS)
async def test_prompts_of_sessions_are_listed_page_by_page(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision, options=McpOptions(page_size=2))
    names = [f"s{n}" for n in range(5)]
    for name in names:
        await create(peer, name)
    found: list[str] = []
    params: dict[str, Any] = {}
    for _ in range(10):
        page = await peer.result("prompts/list", params)
        found += [each["name"] for each in page["prompts"]]
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert [name for name in found if name.startswith("chat.")] == [
        f"chat.session.{name}" for name in names
    ]


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_client_is_notified_when_sessions_are_created_deleted_and_renamed(
    revision: str, hub: Plexus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LIST_INTERVAL_S", 0.1)
    peer = McpPeer(hub, revision)
    await create(peer, "a")
    await peer.notification(PROMPTS_CHANGED)
    assert await prompt_names(peer) == ["chat.session.a"]
    await peer.tool("chat.rename", {"session": "a", "new_name": "b"})
    await peer.notification(PROMPTS_CHANGED)
    assert await prompt_names(peer) == ["chat.session.b"]
    await peer.tool("chat.delete", {"session": "b"})
    await peer.notification(PROMPTS_CHANGED)
    assert await prompt_names(peer) == []


async def test_a_listen_stream_is_notified_too(hub: Plexus) -> None:
    peer = McpPeer(hub, STATELESS)
    peer.begin("subscriptions/listen", {"notifications": {"promptsListChanged": True}})
    await create(peer, "a")
    await peer.notification(PROMPTS_CHANGED)


# --- resources -----------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_tree_of_a_session_is_a_resource(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    await create(peer)
    await peer.tool("chat.send", {"session": "my-session", "message": "a heron"})
    listed = (await peer.result("resources/list"))["resources"]
    [tree] = [
        each
        for each in listed
        if each["uri"].startswith("arbor://tree/") and "/node/" not in each["uri"]
    ]
    assert "my-session" in str(tree)
    read = await peer.result("resources/read", {"uri": tree["uri"]})
    assert "a heron" in str(read)


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_subscriber_to_the_tree_is_notified_of_every_message(
    revision: str, hub: Plexus
) -> None:
    peer = McpPeer(hub, revision)
    await create(peer)
    listed = (await peer.result("resources/list"))["resources"]
    [uri] = [each["uri"] for each in listed if "/node/" not in each["uri"]
             and each["uri"].startswith("arbor://tree/")]  # fmt: skip
    await peer.result("resources/subscribe", {"uri": uri})
    await peer.tool("chat.send", {"session": "my-session", "message": "hi"})
    assert await peer.notification("notifications/resources/updated") == {"uri": uri}
