"""Every message of a session matches the official schema of its revision exactly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from conformance.serving import COMMAND, REPOSITORY
from mcp_schema import REVISIONS, STATELESS, needs_schemas, validate

pytestmark = [needs_schemas, pytest.mark.anyio]

ANSWER_S = 10.0
LEGACY = [revision for revision in REVISIONS if revision != STATELESS]
META = "io.modelcontextprotocol/"
TASKS = META + "tasks"
#: Client capabilities and information. A revision must ignore unknown fields.
CAPABILITIES: dict[str, Any] = {"roots": {}, "sampling": {}, "elicitation": {}}
CLIENT = {"name": "schema-test", "version": "1.0.0"}
WATCHED = "test://watched-resource"

#: Arguments of tools that require some.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "confirm_delete": {"filename": "a.txt"},
    "greet": {"name": "Ada"},
    "json_schema_2020_12_tool": {"name": "Ada", "email": "ada@example.org"},
    "plexus.attach": {"run": 1},
    "plexus.call": {"method": "tasks.greet", "params": {"name": "Ada"}},
    "plexus.cancel": {"run": 1},
    "plexus.respond": {"run": 1, "request": "1", "answer": None},
    "test_elicitation": {"message": "Who?"},
    "test_sampling": {"prompt": "Hello?"},
    "test_x_mcp_header": {"region": "north"},
}
#: Tools that do not end without an answer, or take too long.
NOT_CALLED = {"wait_for_cancel", "test_reconnection"}
SAMPLES = {"string": "Ada", "integer": 5, "number": 5.5, "boolean": True}
PROMPTS: dict[str, dict[str, str]] = {
    "test_simple_prompt": {},
    "test_prompt_with_arguments": {"arg1": "a", "arg2": "b"},
    "test_prompt_with_embedded_resource": {"resourceUri": "test://x"},
    "test_prompt_with_image": {},
    "test_input_required_result_prompt": {},
}
RESOURCES = ["test://static-text", "test://static-binary", WATCHED, "test://template/7/data"]


class Peer:
    """A client on the fixture's stdin and stdout that validates every message."""

    def __init__(self, process: asyncio.subprocess.Process, revision: str) -> None:
        self.revision = revision
        self.notified: list[str] = []
        self.asked: set[str] = set()
        self._process = process
        self._methods: dict[Any, str] = {}
        self._answers: dict[Any, dict[str, Any]] = {}

    def send(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def begin(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        if self.revision == STATELESS:
            capabilities = params.pop("capabilities", CAPABILITIES)
            params["_meta"] = {
                META + "protocolVersion": self.revision,
                META + "clientInfo": CLIENT,
                META + "clientCapabilities": capabilities,
                META + "logLevel": "debug",
            } | params.get("_meta", {})
        number = len(self._methods)
        self._methods[number] = method
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its response, answering requests of the server meanwhile."""
        number = self.begin(method, **params)
        while number not in self._answers:
            await self.take()
        answer = self._answers.pop(number)
        result = answer.get("result", {})
        if result.get("resultType") != "input_required":
            return answer
        replies = {key: self.reply_to(asked) for key, asked in result["inputRequests"].items()}
        state = {"requestState": result["requestState"], "inputResponses": replies}
        return await self.ask(method, **params | state)

    async def result(self, method: str, **params: Any) -> Any:
        """Send a request that must succeed, and return its result."""
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, **params: Any) -> int:
        """Send a request that must fail, and return its error number."""
        answer = await self.ask(method, **params)
        assert "error" in answer, answer
        code: int = answer["error"]["code"]
        return code

    async def take(self) -> None:
        """Read the next message of the server."""
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_S):
            line = await self._process.stdout.readline()
        message = json.loads(line)
        for frame in message if isinstance(message, list) else [message]:
            validate(self.revision, frame, self._methods.get(frame.get("id")))
            if "method" not in frame:
                self._answers[frame["id"]] = frame
            elif "id" in frame:
                reply = {"jsonrpc": "2.0", "id": frame["id"], "result": self.reply_to(frame)}
                self.send(reply)
            else:
                self.notified.append(frame["method"])

    async def notification(self, method: str) -> None:
        """Wait for a notification of the server."""
        while method not in self.notified:
            await self.take()
        self.notified.remove(method)

    def reply_to(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a client to a request of the server."""
        self.asked.add(request["method"])
        if request["method"] == "roots/list":
            return {"roots": [{"uri": "file:///here", "name": "here"}]}
        if request["method"] == "sampling/createMessage":
            content = {"type": "text", "text": "Hello!"}
            return {"role": "assistant", "content": content, "model": "none"}
        fields = request["params"]["requestedSchema"]["properties"]
        return {"action": "accept", "content": {name: fill(fields[name]) for name in fields}}


def fill(field: dict[str, Any]) -> Any:
    if field["type"] == "array":
        return [fill({"type": "string"} | field["items"])]
    for word in ("enum", "oneOf", "anyOf"):
        if word in field:
            first = field[word][0]
            return first["const"] if isinstance(first, dict) else first
    return SAMPLES[field["type"]]


@asynccontextmanager
async def connected(revision: str) -> AsyncIterator[Peer]:
    """Run the fixture with a client, after the handshake if the revision has one."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--stdio",
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        peer = Peer(process, revision)
        if revision != STATELESS:
            params = {
                "protocolVersion": revision,
                "clientInfo": CLIENT,
                "capabilities": CAPABILITIES,
            }
            assert (await peer.result("initialize", **params))["protocolVersion"] == revision
            peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield peer
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(ANSWER_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_tool_is_called(revision: str) -> None:
    async with connected(revision) as peer:
        if revision != STATELESS:
            await peer.result("logging/setLevel", level="debug")
        listed = await peer.result("tools/list")
        names = [tool["name"] for tool in listed["tools"]]
        assert len(names) > 40
        for name in sorted(set(names) - NOT_CALLED):
            meta = {"progressToken": name}
            await peer.ask("tools/call", name=name, arguments=ARGUMENTS.get(name, {}), _meta=meta)
        assert "notifications/progress" in peer.notified
        assert "notifications/message" in peer.notified
        forms = {"elicitation/create"} if revision >= "2025-06-18" else set()
        assert peer.asked == {"roots/list", "sampling/createMessage"} | forms


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_prompt_and_resource_is_read(revision: str) -> None:
    async with connected(revision) as peer:
        listed = await peer.result("prompts/list")
        assert {entry["name"] for entry in listed["prompts"]} >= set(PROMPTS)
        for name, arguments in PROMPTS.items():
            if revision >= "2025-06-18" or name != "test_input_required_result_prompt":
                result = await peer.result("prompts/get", name=name, arguments=arguments)
                assert result["messages"]
        await peer.result(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "test_prompt_with_arguments"},
            argument={"name": "arg1", "value": "par"},
        )
        assert (await peer.result("resources/list"))["resources"]
        assert (await peer.result("resources/templates/list"))["resourceTemplates"]
        for uri in RESOURCES:
            result = await peer.result("resources/read", uri=uri)
            assert result["contents"][0]["uri"] == uri


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_refusal_is_an_error_of_the_revision(revision: str) -> None:
    async with connected(revision) as peer:
        assert await peer.error("no/such_method") == -32601
        assert await peer.error("tools/call", name="none_such") == -32602
        assert await peer.error("prompts/get", name="none_such") == -32602
        assert await peer.error("tools/list", cursor="none such") == -32602
        missing = await peer.error("resources/read", uri="test://none-such")
        assert missing == (-32602 if revision == STATELESS else -32002)
        await peer.ask("tools/call", name="greet", arguments={"name": 5})
        peer.send("no request")
        await peer.take()


@pytest.mark.parametrize("revision", LEGACY)
async def test_changes_are_sent_on_the_connection(revision: str) -> None:
    async with connected(revision) as peer:
        assert await peer.result("ping") == {}
        assert await peer.result("resources/subscribe", uri=WATCHED) == {}
        await peer.result("tools/call", name="touch_watched_resource", arguments={})
        await peer.notification("notifications/resources/updated")
        assert await peer.result("resources/unsubscribe", uri=WATCHED) == {}
        await peer.result("tools/call", name="test_trigger_tool_change", arguments={})
        await peer.notification("notifications/tools/list_changed")
        await peer.result("tools/call", name="test_trigger_prompt_change", arguments={})
        await peer.notification("notifications/prompts/list_changed")


async def test_changes_are_sent_to_listen_streams() -> None:
    async with connected(STATELESS) as peer:
        await peer.result("server/discover")
        wanted = {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourceSubscriptions": [WATCHED],
        }
        peer.begin("subscriptions/listen", notifications=wanted)
        await peer.notification("notifications/subscriptions/acknowledged")
        for tool, expected in {
            "test_trigger_tool_change": "notifications/tools/list_changed",
            "test_trigger_prompt_change": "notifications/prompts/list_changed",
            "touch_watched_resource": "notifications/resources/updated",
        }.items():
            await peer.result("tools/call", name=tool, arguments={})
            await peer.notification(expected)


async def test_a_batch_is_answered_as_one() -> None:
    async with connected("2025-03-26") as peer:
        peer.send([{"jsonrpc": "2.0", "id": f"b{n}", "method": "ping"} for n in range(2)])
        await peer.take()


async def test_tasks_of_the_core_are_followed_to_their_end() -> None:
    async with connected("2025-11-25") as peer:
        call = {"name": "slow_compute", "arguments": {"seconds": 0.05}, "task": {"ttl": 60_000}}
        task = (await peer.result("tools/call", **call))["task"]["taskId"]
        assert (await peer.result("tasks/result", taskId=task))["content"]
        assert (await peer.result("tasks/get", taskId=task))["status"] == "completed"
        assert (await peer.result("tasks/list"))["tasks"]
        call["arguments"] = {"seconds": 60}
        task = (await peer.result("tools/call", **call))["task"]["taskId"]
        assert (await peer.result("tasks/cancel", taskId=task))["status"] == "cancelled"
        assert await peer.error("tasks/get", taskId="none-such") == -32602


async def test_tasks_of_the_extension_are_followed_to_their_end() -> None:
    able = CAPABILITIES | {"extensions": {TASKS: {}}}
    async with connected(STATELESS) as peer:
        call = {"name": "slow_compute", "arguments": {"seconds": 0.05}, "capabilities": able}
        task = (await peer.result("tools/call", **call))["taskId"]
        state = {"status": "working"}
        while state["status"] == "working":
            state = await peer.result("tasks/get", taskId=task, capabilities=able)
        assert state["status"] == "completed"
        await peer.result("tasks/cancel", taskId=task, capabilities=able)
        assert await peer.error("tasks/get", taskId="none-such", capabilities=able) == -32602
        assert await peer.error("tasks/get", taskId=task, capabilities={}) == -32021
