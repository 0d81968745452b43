"""MCP on runs of other processes: tasks, request states, resources and tools, in both forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, quiet, until
from mcp_peer import CAPABLE, PREFIX, STATELESS, TASKS, McpPeer, text_of
from stored_runs import MemoryStore, attach_store

from mcp_view.elicitation import RequestState, request_digest, seal_state
from plexus import Activation, Content, Detached, Plexus, Principal, method
from plexus.errors import Failed, InvalidParams
from plexus.events import Complete, QuestionAsked
from plexus.limits import Limits
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

CORE = "2025-11-25"
SURE = QuestionAsked("1", "confirm", "Sure?", {"type": "boolean"}, 60.0)
BOTH = pytest.mark.parametrize("revision", [CORE, STATELESS])


class Work(Activation):
    """Methods whose runs are tasks."""

    namespace = "work"
    version = "1.0.0"

    @method(background="required")
    async def build(self) -> AsyncIterator[Content | Detached]:
        """Build something."""
        yield Content("here")


@pytest.fixture
def hub(open_hub: OpenHub) -> Plexus:
    return open_hub(Demo, Work)


@pytest.fixture
def store(hub: Plexus) -> MemoryStore:
    return attach_store(hub)


def create(store: MemoryStore, number: int, *events: Any, **fields: Any) -> None:
    """Store a task of another process."""
    given: dict[str, Any] = {"method": "work.build", "retention_s": 60.0} | fields
    store.create(number, *events, **given)


def peer_of(hub: Plexus, revision: str, **more: Any) -> McpPeer:
    return McpPeer(hub, revision, **({"capabilities": CAPABLE | TASKS} | more))


async def get(peer: McpPeer, task: int) -> dict[str, Any]:
    found: dict[str, Any] = await peer.result("tasks/get", {"taskId": str(task)})
    return found


# --- tasks ---------------------------------------------------------------------------------------


@BOTH
async def test_a_task_of_another_process_is_read(
    revision: str, hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("so far"))
    peer = peer_of(hub, revision)
    task = await get(peer, 7)
    assert (task["status"], task["statusMessage"]) == ("working", "Output so far: run://7")
    read = await peer.result("resources/read", {"uri": "run://7"})
    assert read["contents"][0]["text"] == "so far\n[still running: run://7?after=1]"
    store.append(7, Content(", done"), Complete())
    await store.refresh()
    await store.load(7)
    task = await get(peer, 7)
    assert task["status"] == "completed"
    assert "statusMessage" not in task
    if revision == STATELESS:
        assert text_of(task["result"]) == "so far, done"
    assert peer.view.idle


async def test_the_result_of_a_task_of_another_process_is_awaited(
    hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("so far"))
    peer = peer_of(hub, CORE)
    waiting = peer.begin("tasks/result", {"taskId": "7"})
    await until(lambda: store.followed == [7])
    store.append(7, Content(", done"), Complete())
    answer = await peer.answer_to(waiting)
    assert text_of(answer["result"]) == "so far, done"


async def test_tasks_of_other_processes_are_listed(hub: Plexus, store: MemoryStore) -> None:
    create(store, 7, Content("a"))
    create(store, 8, Content("b"), Complete())
    create(store, 9, Content("c"), principal=OTHER)
    store.create(10, Content("no task"))
    peer = peer_of(hub, CORE)
    listed = await peer.result("tasks/list")
    found = [(task["taskId"], task["status"]) for task in listed["tasks"]]
    assert found == [("7", "working"), ("8", "completed")]
    store.error = Failed("the disk is full")
    assert (await peer.error("tasks/list"))["message"] == "the disk is full"


@BOTH
async def test_a_task_of_another_process_is_cancelled_by_that_process(
    revision: str, hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("a"))
    peer = peer_of(hub, revision)
    cancelled = await peer.result("tasks/cancel", {"taskId": "7"})
    assert store.requests == [("plexus.cancel", {"run": 7, "reason": "cancelled by request"})]
    if revision == CORE:
        assert cancelled["status"] == "cancelled"
        assert "statusMessage" not in cancelled
    assert (await get(peer, 7))["status"] == "cancelled"
    create(store, 8, Content("a"))
    store.answer = lambda *_: Failed("its process does not answer")
    assert "does not answer" in (await peer.error("tasks/cancel", {"taskId": "8"}))["message"]


async def test_the_questions_of_a_task_of_another_process_are_shown_and_answered(
    hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("a"), SURE)
    store.ask(7, SURE)
    peer = peer_of(hub, STATELESS)
    task = await get(peer, 7)
    assert task["status"] == "input_required"
    assert task["inputRequests"]["1"]["params"]["message"] == "Sure?"
    params = {"taskId": "7", "inputResponses": {"1": {"action": "accept", "content": {}}}}
    await peer.result("tasks/update", params)
    assert store.requests == [("plexus.respond", {"run": 7, "request": "1", "answer": True})]
    assert (await get(peer, 7))["status"] == "working"
    create(store, 8, SURE)
    store.ask(8, SURE)
    store.answer = lambda *_: InvalidParams("an answer must be true")
    refused = await peer.error("tasks/update", params | {"taskId": "8"})
    assert refused["message"] == "an answer must be true"
    assert (await get(peer, 8))["status"] == "input_required"


@BOTH
async def test_a_question_that_is_not_for_the_caller_of_a_task_is_not_asked_of_it(
    revision: str, hub: Plexus, store: MemoryStore
) -> None:
    permit = QuestionAsked("permit", "confirm", "Allow Bash?", {"type": "boolean"}, 60.0)
    create(store, 7, Content("a"))
    store.ask(7, permit)
    peer = peer_of(hub, revision)
    task = await get(peer, 7)
    assert task["status"] == "working"
    assert "inputRequests" not in task
    found = hub.runs.find(7, LOCAL)
    assert hub.questions.requests(found) == ["permit"]
    store.append(7, Complete())
    await store.load(7)
    assert hub.questions.requests(found) == []


@BOTH
async def test_a_task_of_another_principal_is_like_an_unknown_one(
    revision: str, hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("secret"), principal=OTHER)
    store.create(8, Content("no task"), method="work.build")
    peer = peer_of(hub, revision)
    errors = [
        await peer.error(name, {"taskId": task, "inputResponses": {}})
        for name in ("tasks/get", "tasks/cancel")
        for task in ("7", "8", "99")
    ]
    assert {error["message"] for error in errors} == {"Unknown task. It may have expired."}
    missing = [await peer.error("resources/read", {"uri": f"run://{number}"}) for number in (7, 99)]
    assert missing[0]["code"] == missing[1]["code"]
    assert store.requests == []


@BOTH
async def test_an_error_of_the_store_answers_the_request_for_a_task(
    revision: str, hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("a"))
    store.error = Failed("the disk is full")
    error = await peer_of(hub, revision).error("tasks/get", {"taskId": "7"})
    assert error["message"] == "the disk is full"


async def test_a_request_that_waits_for_the_store_is_cancelled_and_counted(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Demo, Work, limits=Limits(calls_in_flight=1))
    store = attach_store(hub)
    create(store, 7, Content("a"))
    store.open.clear()
    peer = peer_of(hub, CORE)
    first = peer.begin("tasks/get", {"taskId": "7"})
    assert not peer.view.idle
    [again] = peer.send({"id": first, "method": "tasks/get", "params": {"taskId": "7"}})
    assert "in progress" in again["error"]["message"]
    others = [peer.begin("tasks/get", {"taskId": "7"}) for _ in range(8)]
    refused = await peer.error("tasks/get", {"taskId": "7"})
    assert refused["code"] == -32003
    peer.notify("notifications/cancelled", {"requestId": first})
    peer.frames.clear()
    store.open.set()
    for each in others:
        assert (await peer.answer_to(each))["result"]["status"] == "working"
    await quiet()
    assert first not in [frame["id"] for frame in peer.frames]
    assert peer.view.idle


async def test_a_revoked_client_gets_an_error_for_a_task_that_is_loaded(
    hub: Plexus, store: MemoryStore
) -> None:
    create(store, 7, Content("a"))
    store.open.clear()
    peer = peer_of(hub, CORE)
    waiting = peer.begin("tasks/get", {"taskId": "7"})
    peer.connection.revoke("the token was revoked")
    answer = await peer.answer_to(waiting)
    assert answer["error"]["message"] == "the token was revoked"
    assert peer.connection.finished


# --- calls ---------------------------------------------------------------------------------------


async def test_a_batch_with_a_stored_run_has_one_reply(hub: Plexus, store: MemoryStore) -> None:
    store.create(7, Content("stored"), Complete())
    peer = McpPeer(hub, "2025-03-26")
    calls = [
        {"id": 1, "name": "plexus.attach", "arguments": {"run": 7}},
        {"id": 2, "name": "plexus.attach", "arguments": {"run": 99}},
        {"id": 3, "name": "demo.echo", "arguments": {"text": "here"}},
    ]
    batch = [{"id": each.pop("id"), "method": "tools/call", "params": each} for each in calls]
    assert peer.send(batch) == []
    replies = await peer.receive(lambda frame: isinstance(frame, list))
    texts = {reply["id"]: text_of(reply["result"]) for reply in replies}
    assert (texts[1], texts[3]) == ("stored", "here")
    assert "Unknown run 99" in texts[2]


async def test_a_suspended_request_is_resumed_in_another_process(
    hub: Plexus, store: MemoryStore
) -> None:
    store.create(7, Content("before, "), SURE, method="demo.wait")
    store.ask(7, SURE)
    peer = peer_of(hub, STATELESS)
    expires = int(peer.server.wall()) + 60
    state = RequestState(7, 2, 1, request_digest("demo.wait", {}), expires)
    params = {
        "name": "demo.wait",
        "arguments": {},
        "requestState": seal_state(state, peer.server.secret),
        "inputResponses": {"1": {"action": "accept", "content": {}}},
    }
    waiting = peer.begin("tools/call", params)
    async with asyncio.timeout(30):
        while len(store.requests) < 2:
            await peer.connection.ready()
            peer.collect()
    assert store.requests == [
        ("plexus.release", {"run": 7}),
        ("plexus.respond", {"run": 7, "request": "1", "answer": True}),
    ]
    store.append(7, Content("after, "))  # the store still has the question, which is answered
    await peer.quiet()
    store.append(7, Content("done"), Complete())
    assert text_of((await peer.answer_to(waiting))["result"]) == "before, after, done"
    stranger = peer_of(hub, STATELESS, principal=Principal("stranger"), server=peer.server)
    refused = await stranger.error("tools/call", params)
    assert "no longer exists" in refused["message"]


async def test_a_client_that_leaves_a_resumed_run_does_not_cancel_it(
    hub: Plexus, store: MemoryStore
) -> None:
    store.create(7, Content("before"), method="demo.wait")
    peer = peer_of(hub, STATELESS)
    expires = int(peer.server.wall()) + 60
    state = RequestState(7, 1, 1, request_digest("demo.wait", {}), expires)
    sealed = seal_state(state, peer.server.secret)
    peer.begin("tools/call", {"name": "demo.wait", "arguments": {}, "requestState": sealed})
    await until(lambda: store.followed == [7])
    peer.connection.lost()
    await quiet()
    assert store.followed == []
    assert [name for name, _ in store.requests] == ["plexus.release"]


async def test_following_a_detached_run_of_another_process_creates_a_task(
    hub: Plexus, store: MemoryStore
) -> None:
    store.create(7, Content("a"), Detached(), method="work.build")
    peer = peer_of(hub, STATELESS)
    task = await peer.tool("plexus.attach", {"run": 7})
    assert (task["resultType"], task["taskId"]) == ("task", "7")
    [(name, params)] = store.requests
    assert (name, params["run"]) == ("plexus.keep", 7)


# --- the client ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"name": "claude-code", "version": "2.1"}, "claude-code/2.1"),
        ({"name": "only a name"}, "only a name"),
        ({"name": "a\x1b[31m\nb", "version": "1\x00"}, "a[31mb/1"),
        ({"name": "x" * 200, "version": "1"}, "x" * 100),
        ({"name": 7, "version": "1"}, None),
        ({"name": "", "version": ""}, None),
        ("nonsense", None),
    ],
)
@BOTH
async def test_a_run_has_the_name_and_version_of_its_client(
    revision: str, info: Any, expected: str | None, hub: Plexus
) -> None:
    clients: list[str | None] = []
    hub.runs.on_start(lambda run, *_: clients.append(run.client))
    if revision == STATELESS:
        peer = McpPeer(hub, STATELESS, checked=False)
        await peer.tool("demo.echo", {"text": "a"}, **{PREFIX + "clientInfo": info})
    else:
        peer = McpPeer(hub, checked=False)
        params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": info}
        peer.send({"id": 0, "method": "initialize", "params": params})
        await peer.tool("demo.echo", {"text": "a"})
    assert clients == [expected]
