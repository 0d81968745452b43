"""The official Python client and the client of FastMCP, over every transport they support."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import fastmcp
import mcp
import mcp_types as types
import pytest
from conformance.serving import COMMAND, REPOSITORY, serving
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from mcp.client.sse import sse_client
from mcp.shared.dispatcher import ProgressFnT
from other_clients import check_session

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

SESSION_S = 40.0
#: Timeout for the server to detect a cancelled call.
NOTICE_S = 5.0

MODES = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
COMMAND_LINE, *ARGUMENTS = (*COMMAND, "--stdio")

#: Calls a tool by name, with an optional progress callback.
Call = Callable[[str, ProgressFnT | None], Coroutine[Any, Any, Any]]


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


async def watch(client: Any, call: Call) -> dict[str, Any]:
    """Use every feature of a client. Returns the results."""
    seen: dict[str, Any] = {"revision": client.protocol_version}
    if client.server_info is not None:  # a client with a fixed revision does not negotiate
        seen["server"] = client.server_info.name
    listed = await client.list_tools()
    seen["tools"] = [tool.name for tool in getattr(listed, "tools", listed)]
    seen["text"] = text_of(await call("test_simple_text", None))

    seen["progress"] = []

    async def report(
        progress: float,
        total: float | None,
        message: str | None,  # noqa: ARG001
    ) -> None:
        seen["progress"].append([progress, total])

    seen["after_progress"] = text_of(await call("test_tool_with_progress", report))
    seen["cancelled"] = await cancelled(call)
    seen["stopped"] = await stopped(call)
    failed = await call("test_error_handling", None)
    seen["failed"] = [failed.is_error, text_of(failed)]

    read = await client.read_resource("test://static-text")
    seen["resource"] = [content.text for content in getattr(read, "contents", read)]
    arguments = {"arg1": "hello", "arg2": "world"}
    prompt = await client.get_prompt("test_prompt_with_arguments", arguments)
    seen["prompt"] = [message.content.text for message in prompt.messages]
    seen["elicited"] = text_of(await call("test_input_required_result_elicitation", None))
    return seen


async def cancelled(call: Call) -> bool:
    """Cancel an endless call once it has reported progress."""
    started = anyio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
        started.set()

    async with anyio.create_task_group() as group:
        group.start_soon(call, "wait_for_cancel", report)
        await started.wait()
        group.cancel_scope.cancel()
    return True


async def stopped(call: Call) -> int:
    """Return the number of cancelled calls, once there is one."""
    count = 0
    with anyio.move_on_after(NOTICE_S):
        while count == 0:
            count = int(text_of(await call("stopped_calls", None)))
            await anyio.sleep(0.02)
    return count


# --- the official client -------------------------------------------------------------------------


async def official(server: Any, mode: str) -> dict[str, Any]:
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:  # noqa: ARG001
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    with anyio.fail_after(SESSION_S):
        async with mcp.Client(server, mode=mode, elicitation_callback=answer) as client:

            async def call(name: str, report: ProgressFnT | None) -> Any:
                return await client.call_tool(name, {}, progress_callback=report)

            return await watch(client, call) | {"asked": asked}


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_has_a_whole_session_over_http(mode: str) -> None:
    with serving() as url:
        check_session(await official(url, mode), MODES[mode])


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_has_a_whole_session_over_stdio(mode: str) -> None:
    server = mcp.StdioServerParameters(command=COMMAND_LINE, args=ARGUMENTS, cwd=REPOSITORY)
    check_session(await official(server, mode), MODES[mode])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_has_a_whole_session_over_sse(mode: str) -> None:
    with serving() as url:
        server = sse_client(url.removesuffix("/mcp") + "/sse")
        check_session(await official(server, mode), "2025-11-25")


# --- FastMCP -------------------------------------------------------------------------------------


async def fast(transport: Any, mode: str) -> dict[str, Any]:
    asked: list[str] = []

    async def answer(message: str, *_: Any) -> ElicitResult[dict[str, str]]:
        asked.append(message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    with anyio.fail_after(SESSION_S):
        async with fastmcp.Client(transport, mode=mode, elicitation_handler=answer) as client:

            async def call(name: str, report: ProgressFnT | None) -> Any:
                return await client.call_tool(
                    name, {}, progress_handler=report, raise_on_error=False
                )

            return await watch(client, call) | {"asked": asked}


@pytest.mark.parametrize("mode", MODES)
async def test_fastmcp_has_a_whole_session_over_http(mode: str) -> None:
    with serving() as url:
        check_session(await fast(StreamableHttpTransport(url), mode), MODES[mode])


@pytest.mark.parametrize("mode", MODES)
async def test_fastmcp_has_a_whole_session_over_stdio(mode: str) -> None:
    transport = StdioTransport(COMMAND_LINE, ARGUMENTS, cwd=str(REPOSITORY))
    check_session(await fast(transport, mode), MODES[mode])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_fastmcp_has_a_whole_session_over_sse(mode: str) -> None:
    with serving() as url:
        transport = SSETransport(url.removesuffix("/mcp") + "/sse")
        check_session(await fast(transport, mode), "2025-11-25")
