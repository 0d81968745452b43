"""Sessions with our server and the official SDK's, in both eras, over every transport."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from conformance.serving import COMMAND, serving
from other_clients import check_session
from upstream_sessions import WAIT_S, program, text_of

from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.sse import SseTransport
from activations.gateway.transports.streamable_http import HttpTransport
from activations.gateway.transports.websocket import WebSocketTransport
from mcp_view.client.errors import Refused
from mcp_view.client.items import (
    ListChanged,
    LogMessage,
    Notice,
    Progress,
    Question,
    ResourceUpdated,
    TaskStatus,
)
from mcp_view.client.options import ClientOptions, Era

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(90)]

CAPABILITIES = frozenset({"form", "url", "sampling", "roots", "tasks"})
ERAS: dict[Era, str] = {"legacy": "2025-11-25", "auto": "2026-07-28", "modern": "2026-07-28"}
TRANSPORTS = ("stdio", "http", "websocket", "sse")
CELLS = [
    (transport, era)
    for transport in TRANSPORTS
    for era in ERAS
    if (transport, era) != ("sse", "modern")  # that transport belongs to the handshake
]


@asynccontextmanager
async def session_over(
    transport: str, options: ClientOptions, notices: list[Notice] | None = None
) -> AsyncIterator[UpstreamSession]:
    """Open a session with the fixture."""
    if transport == "stdio":
        async with program(*COMMAND, "--stdio", options=options, notices=notices) as session:
            yield session
        return
    with serving() as url:
        async with remote(transport, url, options, notices) as session:
            yield session


@asynccontextmanager
async def remote(
    transport: str, url: str, options: ClientOptions, notices: list[Notice] | None = None
) -> AsyncIterator[UpstreamSession]:
    """Open a session with a server that runs."""
    made: Any
    if transport == "http":
        made = HttpTransport(url)
    elif transport == "sse":
        made = SseTransport(url.removesuffix("/mcp") + "/sse")
    else:
        made = WebSocketTransport("ws" + url.removeprefix("http"))
    on_notice = None if notices is None else notices.append
    session = UpstreamSession(made, options, on_notice=on_notice)
    async with asyncio.timeout(WAIT_S):
        await session.open()
    try:
        yield session
    finally:
        async with asyncio.timeout(WAIT_S):
            await session.close()


async def call(
    session: UpstreamSession, name: str, arguments: dict[str, Any] | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """Call a tool, answer its questions, and return its result and items."""
    seen: list[Any] = []
    params = {"name": name, "arguments": arguments or {}}
    async with asyncio.timeout(WAIT_S), session.start("tools/call", params) as running:
        async for items in running:
            seen += items
            for item in items:
                if isinstance(item, Question):
                    running.answer(item, answer(item))
    return running.result, seen


def answer(question: Question) -> dict[str, Any]:
    if question.kind == "roots":
        return {"roots": [{"uri": "file:///tea"}]}
    if question.kind == "sampling":
        content = {"type": "text", "text": "forty-two"}
        return {"role": "assistant", "content": content, "model": "m", "stopReason": "endTurn"}
    return {"action": "accept", "content": {"name": "Ada", "username": "ada", "email": "a@b.c"}}


async def watch(session: UpstreamSession) -> dict[str, Any]:
    """Use every feature of a session. Returns what was seen."""
    seen: dict[str, Any] = {"revision": session.server.revision.name, "asked": []}
    seen["server"] = session.server.name
    seen["tools"] = [tool["name"] for tool in await session.list_all("tools")]
    seen["text"] = text_of((await call(session, "test_simple_text"))[0])
    result, items = await call(session, "test_tool_with_progress")
    seen["progress"] = [[each.progress, each.total] for each in items if type(each) is Progress]
    seen["after_progress"] = text_of(result)
    async with session.start("tools/call", {"name": "wait_for_cancel"}) as endless:
        await anext(endless)
    seen["cancelled"] = True
    seen["stopped"] = 0
    while not seen["stopped"]:
        seen["stopped"] = int(text_of((await call(session, "stopped_calls"))[0]))
    failed, _ = await call(session, "test_error_handling")
    seen["failed"] = [failed["isError"], text_of(failed)]
    read = await session.request("resources/read", {"uri": "test://static-text"})
    seen["resource"] = [content["text"] for content in read["contents"]]
    arguments = {"arg1": "hello", "arg2": "world"}
    wanted = {"name": "test_prompt_with_arguments", "arguments": arguments}
    prompt = await session.request("prompts/get", wanted)
    seen["prompt"] = [message["content"]["text"] for message in prompt["messages"]]
    result, items = await call(session, "test_input_required_result_elicitation")
    seen["elicited"] = text_of(result)
    seen["asked"] = [each.params["message"] for each in items if isinstance(each, Question)]
    return seen


@pytest.mark.parametrize(("transport", "era"), CELLS)
async def test_a_whole_session_works_in_each_era_over_each_transport(
    transport: str, era: Era
) -> None:
    options = ClientOptions(capabilities=CAPABILITIES, era=era)
    async with session_over(transport, options) as session:
        async with asyncio.timeout(60):
            seen = await watch(session)
    check_session(seen, "2025-11-25" if transport == "sse" else ERAS[era])


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_each_revision_with_a_handshake_is_spoken(revision: str) -> None:
    options = ClientOptions(CAPABILITIES, era="legacy", revision=revision)
    async with session_over("stdio", options) as session:
        assert session.server.revision.name == revision
        assert (await call(session, "test_simple_text"))[0]["content"]
        if revision >= "2025-06-18":
            result, items = await call(session, "test_elicitation", {"message": "who?"})
            assert "ada" in text_of(result)
            assert [each.kind for each in items if isinstance(each, Question)] == ["form"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_samples_roots_logs_and_tasks_arrive(transport: str, era: Era) -> None:
    options = ClientOptions(capabilities=CAPABILITIES, era=era, log_level="debug")
    async with session_over(transport, options) as session:
        await session.list_all("tools")
        result, items = await call(session, "test_sampling", {"prompt": "why?"})
        assert "forty-two" in text_of(result)
        assert [each.kind for each in items if isinstance(each, Question)] == ["sampling"]
        _, items = await call(session, "test_tool_with_logging")
        logs = [each for each in items if isinstance(each, LogMessage)]
        assert len(logs) == 3
        result, items = await call(session, "failing_job")
        assert result["isError"] is True
        assert any(isinstance(each, TaskStatus) for each in items)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_task_asks_and_continues_with_the_answer(transport: str) -> None:
    options = ClientOptions(capabilities=CAPABILITIES, era="modern")
    async with session_over(transport, options) as session:
        asked: list[Question] = []
        params = {"name": "confirm_delete", "arguments": {"filename": "tea.txt"}}
        async with asyncio.timeout(WAIT_S), session.start("tools/call", params) as running:
            async for items in running:
                for item in items:
                    if isinstance(item, Question):
                        asked.append(item)
                        running.answer(item, {"action": "accept", "content": {"confirm": True}})
        assert len(asked) == 1
        assert "tea.txt" in text_of(running.result)


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_changes_of_lists_and_resources_are_noticed(transport: str, era: Era) -> None:
    notices: list[Notice] = []
    options = ClientOptions(capabilities=CAPABILITIES, era=era)
    async with session_over(transport, options, notices) as session:
        await session.subscribe("test://watched-resource")
        async with asyncio.timeout(WAIT_S):
            while ListChanged("tools") not in notices:
                await call(session, "test_trigger_tool_change")
                await asyncio.sleep(0.1)
            assert session.is_open
            while ResourceUpdated("test://watched-resource") not in notices:
                await call(session, "touch_watched_resource")
                await asyncio.sleep(0.1)


async def test_an_error_of_the_server_keeps_its_number_and_data() -> None:
    async with session_over("stdio", ClientOptions()) as session:
        with pytest.raises(Refused) as caught:
            await session.request("resources/read", {"uri": "test://nothing"})
        assert caught.value.number == -32602
        assert caught.value.data["data"]["uri"] == "test://nothing"


async def test_a_server_that_is_restarted_gets_a_new_session() -> None:
    notices: list[Notice] = []
    with serving() as url:
        async with remote("http", url, ClientOptions(era="legacy"), notices) as session:
            transport: Any = session.transport
            transport._session_id = "forgotten"  # noqa: SLF001 - as after a restart
            result, _ = await call(session, "test_simple_text")
            assert text_of(result).startswith("This is")
            assert [type(each).__name__ for each in notices].count("Reinitialized") == 1


SDK_SERVER = """
import sys
from mcp.server.mcpserver import MCPServer, Context
server = MCPServer("official")
@server.tool()
async def steps(count: int, ctx: Context) -> str:
    "Report progress."
    for number in range(count):
        await ctx.report_progress(number + 1, count, f"step {number + 1}")
    return "done"
@server.resource("note://tea")
def tea() -> str:
    return "green"
@server.prompt()
def greet(name: str) -> str:
    return f"Hello, {name}!"
server.run(sys.argv[1], **({} if sys.argv[1] == "stdio" else {"port": int(sys.argv[2])}))
"""


@pytest.mark.parametrize("era", ERAS)
async def test_the_official_server_is_used_over_stdio(era: Era) -> None:
    command = (sys.executable, "-c", SDK_SERVER, "stdio")
    async with program(*command, options=ClientOptions(era=era)) as session:
        assert session.server.revision.name == ERAS[era]
        assert session.server.name == "official"
        result, items = await call(session, "steps", {"count": 3})
        assert text_of(result) == "done"
        assert items == [Progress(n, 3, f"step {n}") for n in (1, 2, 3)]
        assert len(await session.list_all("resources")) == 1
        read = await session.request("resources/read", {"uri": "note://tea"})
        assert read["contents"][0]["text"] == "green"
        prompt = await session.request("prompts/get", {"name": "greet", "arguments": {"name": "A"}})
        assert prompt["messages"][0]["content"]["text"] == "Hello, A!"
