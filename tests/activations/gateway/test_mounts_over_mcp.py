"""Mounts as MCP clients see them: every revision in front of a server of every other.

The client is that of the official SDK, the program in the middle is `substrate --stdio --mcp`, and
the servers behind it are processes too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from child_processes import clean_environment
from conformance.serving import COMMAND, REPOSITORY
from gateway_kit import UPSTREAM
from pydantic import FileUrl

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120)]

SESSION_S = 60.0
#: Modes of the client, with the revisions that result.
MODES = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}

#: Waits for a file, and becomes another program.
LATE = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Answers:
    """A client's person, model and program, and what they were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:  # noqa: ARG002
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:  # noqa: ARG002
        self.asked.append(params.messages[0].content.text)
        text = types.TextContent(type="text", text="Hi there")
        return types.CreateMessageResult(role="assistant", content=text, model="m")

    async def roots(self, context: Any) -> types.ListRootsResult:  # noqa: ARG002
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///work"), name="work")])


@asynccontextmanager
async def mounted_client(
    folder: Path,
    tables: dict[str, list[str]],
    mode: str,
    tools: str = "all",
    more: str = "",
    on_message: Any = None,
) -> AsyncIterator[tuple[mcp.Client, Answers]]:
    """Connect a client to a program with mounts of these commands."""
    file = folder / "mounts.toml"
    file.write_text(
        "".join(
            f"[mounts.{name}]\ncommand = {json.dumps(command[0])}\n"
            f"args = {json.dumps(command[1:])}\n{more}\n"
            for name, command in tables.items()
        )
    )
    names = ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
    variables = {name: str(folder / "state") for name in names}
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "substrate", "--stdio", "--mcp", "--mcp-tools", tools],
        cwd=REPOSITORY,
        env=clean_environment(SUBSTRATE_MOUNTS_FILE=str(file), **variables),
    )
    answers = Answers()
    with anyio.fail_after(SESSION_S):
        async with mcp.Client(
            server,
            mode=mode,
            elicitation_callback=answers.elicit,
            sampling_callback=answers.sample,
            list_roots_callback=answers.roots,
            message_handler=on_message,
        ) as client:
            if tools == "all":
                await listed(client, *tables)
            yield client, answers


async def listed(client: mcp.Client, *names: str) -> dict[str, Any]:
    """Wait until the servers behind were listed for the first time. Returns all tools by name."""
    while True:
        # In the newest revision the client keeps a list for as long as the server allows.
        answer = await client.list_tools(cache_mode="refresh")
        tools = {tool.name: tool for tool in answer.tools}
        if all(any(each.startswith(f"{name}.") for each in tools) for name in names):
            return tools
        await anyio.sleep(0.05)


def names_with(prefix: str, answer: types.ListToolsResult) -> list[str]:
    """Return the names of the listed tools that start with this prefix."""
    return [tool.name for tool in answer.tools if tool.name.startswith(prefix)]


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


@pytest.mark.parametrize("upstream", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_server_with_a_handshake_asks_a_client_of_any_revision(
    mode: str, upstream: str, tmp_path: Path
) -> None:
    tables = {"old": [sys.executable, str(UPSTREAM), upstream]}
    async with mounted_client(tmp_path, tables, mode) as (client, answers):
        assert client.protocol_version == MODES[mode]
        steps: list[float] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
            steps.append(progress)

        flood = await client.call_tool("old.flood", {"n": 20}, progress_callback=report)
        assert text_of(flood) == "flooded"
        assert steps == sorted(steps)
        assert steps[-1] == 19

        answer = json.loads(text_of(await client.call_tool("old.sample", {})))
        assert answer["content"]["text"] == "Hi there"
        roots = json.loads(text_of(await client.call_tool("old.roots", {})))
        assert roots["roots"][0]["uri"] == "file:///work"
        asked = ["Hello", "roots"]
        if upstream >= "2025-06-18":  # older revisions have no forms
            form = json.loads(text_of(await client.call_tool("old.ask", {})))
            assert form == {"action": "accept", "content": {"name": "Ada"}}
            asked.append("old asks: Your name?")
        assert answers.asked == asked


@pytest.mark.parametrize("mode", MODES)
async def test_a_server_without_a_handshake_asks_a_client_of_any_revision(
    mode: str, tmp_path: Path
) -> None:
    async with mounted_client(tmp_path, {"new": [*COMMAND, "--stdio"]}, mode) as (client, answers):
        greeted = await client.call_tool("new.test_input_required_result_elicitation", {})
        assert "Ada" in text_of(greeted)
        assert answers.asked == ["new asks: What is your name?"]


@pytest.mark.parametrize("mode", MODES)
async def test_content_annotations_and_uris_arrive_at_the_client_and_lead_back(
    mode: str, tmp_path: Path
) -> None:
    tables = {"up": [sys.executable, str(UPSTREAM)]}
    async with mounted_client(tmp_path, tables, mode) as (client, _):
        result: Any = await client.call_tool("up.rich", {})
        kinds = [block.type for block in result.content]
        assert kinds == ["text", "image", "text", "resource_link", "resource"]
        assert result.structured_content == {"n": 1}
        assert result.content[0].annotations.audience == ["user"]
        assert str(result.content[4].resource.uri) == "ui://up/view/1"
        read: Any = await client.read_resource(str(result.content[3].uri))
        assert read.contents[0].text == "content of file:///a"
        shown: Any = await client.read_resource("ui://up/view/1")
        assert shown.contents[0].text == "content of ui://view/1"
        prompt: Any = await client.get_prompt("up.greet", {"who": "Ann"})
        assert prompt.messages[0].content.text == "Greet Ann"
        failed = await client.call_tool("up.fail", {})
        assert (failed.is_error, text_of(failed)) == (True, "it is broken")


@pytest.mark.parametrize("mode", MODES)
async def test_variables_of_a_template_are_suggested_by_its_server(
    mode: str, tmp_path: Path
) -> None:
    tables = {"up": [sys.executable, str(UPSTREAM)]}
    async with mounted_client(tmp_path, tables, mode) as (client, _):
        listed = (await client.list_resource_templates()).resource_templates
        template = "mount://up/file:///{path}"
        assert template in [each.uri_template for each in listed]
        ref = types.ResourceTemplateReference(uri=template)
        typed = {"name": "path", "value": "ab"}
        found = (await client.complete(ref, typed, {"other": "x"})).completion
        seen = [{"type": "ref/resource", "uri": "file:///{path}"}, typed, {"other": "x"}]
        assert json.loads(found.values[0]) == seen
        assert found.values[1:] == ["b"]
        with pytest.raises(mcp.MCPError, match="no argument"):
            await client.complete(ref, {"name": "nothing", "value": ""})


async def test_a_list_of_the_server_that_changes_changes_that_of_the_client(
    tmp_path: Path,
) -> None:
    tables = {"up": [sys.executable, str(UPSTREAM)]}
    async with mounted_client(tmp_path, tables, "legacy") as (client, _):
        assert "up.count" in await listed(client)
        await client.call_tool("up.hide", {})
        while "up.count" in await listed(client, "up"):  # noqa: ASYNC110 - of another process
            await anyio.sleep(0.05)


@asynccontextmanager
async def watching(client: mcp.Client, uris: list[str], updated: set[str]) -> AsyncIterator[None]:
    """Subscribe as the revision of a client does; with a handshake, updates are messages."""
    if client.protocol_version == MODES["legacy"]:
        for uri in uris:
            subscription = types.SubscribeRequestParams(uri=uri)
            request = types.SubscribeRequest(params=subscription)
            await client.session.send_request(request, types.EmptyResult)
        yield
        for uri in uris:
            end = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
            await client.session.send_request(end, types.EmptyResult)
        return

    async def read(events: Any) -> None:
        async for event in events:
            updated.add(str(event.uri))

    async with (
        client.listen(resource_subscriptions=uris) as events,
        anyio.create_task_group() as go,
    ):
        go.start_soon(read, events)
        yield
        go.cancel_scope.cancel()


async def test_no_client_keeps_a_list_without_the_tools_of_a_server_that_was_never_listed(
    tmp_path: Path,
) -> None:
    # A server that starts when a file exists.
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", LATE, str(ready), str(UPSTREAM)]
    async with mounted_client(tmp_path, {"late": command}, "2026-07-28", tools="late.*") as (
        client,
        _,
    ):
        first = await client.list_tools()
        assert (first.ttl_ms, names_with("late.", first)) == (0, [])
        ready.touch()
        # As clients do that keep a list for as long as they may.
        answer = first
        while not names_with("late.", answer):
            await anyio.sleep(0.05)
            answer = await client.list_tools()
        assert answer.ttl_ms == 60_000
    async with mounted_client(tmp_path, {"late": command}, "2026-07-28", tools="late.*") as (
        client,
        _,
    ):
        answer = await client.list_tools()  # it was listed before this program started
        assert answer.ttl_ms == 60_000
        assert names_with("late.", answer)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_of_any_revision_sees_updates_of_resources_of_servers_of_both_eras(
    mode: str, tmp_path: Path
) -> None:
    tables = {"old": [sys.executable, str(UPSTREAM), "subscribe"], "new": [*COMMAND, "--stdio"]}
    wanted = {"mount://old/file:///a", "mount://new/test://watched-resource"}
    updated: set[str] = set()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            updated.add(str(message.params.uri))

    async with mounted_client(tmp_path, tables, mode, on_message=on_message) as (client, _):
        async with watching(client, sorted(wanted), updated):
            while updated != wanted:
                await client.call_tool("old.touch", {"uri": "file:///a"})
                await client.call_tool("new.touch_watched_resource", {})
                await anyio.sleep(0.05)
        while json.loads(text_of(await client.call_tool("old.subscribed", {}))):  # noqa: ASYNC110
            await anyio.sleep(0.05)
        updated.clear()
        await client.call_tool("old.touch", {"uri": "file:///a", "n": 10})
        assert not updated


async def test_by_default_the_tools_of_mounts_fill_no_list_and_are_found_and_called(
    tmp_path: Path,
) -> None:
    tables = {"up": [sys.executable, str(UPSTREAM)]}
    async with mounted_client(tmp_path, tables, "legacy"):
        pass  # the catalogue is on disk now
    async with mounted_client(tmp_path, tables, "legacy", "standard") as (client, _):
        assert not any(name.startswith("up.") for name in await listed(client))
        found = await client.call_tool("plexus.search", {"query": "echo a text"})
        assert "up.echo" in text_of(found)
        params = {"method": "up.echo", "params": {"text": "hello"}}
        called = await client.call_tool("plexus.call", params)
        # It declares nothing, and a person who allowed plexus.call has not allowed it.
        assert 'call = "all"' in text_of(called)
    async with mounted_client(tmp_path, tables, "legacy", "standard", 'call = "all"') as (here, _):
        called = await here.call_tool("plexus.call", params)
        assert "hello" in text_of(called), called
