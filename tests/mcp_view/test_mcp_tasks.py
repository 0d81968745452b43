"""Tasks in both forms: in the core of one revision, and as an extension of the newest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, happened, until
from mcp_activations import Show, Watched
from mcp_asking import Asking
from mcp_peer import (
    CAPABLE,
    HANDSHAKES,
    PREFIX,
    REVISIONS,
    STATELESS,
    TASKS,
    McpPeer,
    make_server,
    text_of,
)

from mcp_view.server import McpOptions
from plexus import Activation, Confirm, Content, Context, Detached, Failed, Plexus, method
from plexus.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

CORE = "2025-11-25"
ENDED = {"completed", "failed", "cancelled"}


class Slow(Activation):
    """Work that waits until a test releases it."""

    namespace = "slow"
    version = "1.0.0"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.calls = 0

    @method(background="required")
    async def required(self, fail: bool = False) -> AsyncIterator[Content]:
        """Run only as a task."""
        self.calls += 1
        yield Content("begun ")
        await self.go.wait()
        if fail:
            raise Failed("it broke")
        yield Content("done")

    @method(background="never")
    async def never(self) -> str:
        """Never run as a task."""
        return "here"

    @method
    async def gives_up(self) -> str:
        """Stop itself."""
        raise asyncio.CancelledError

    @method
    async def turns(self) -> AsyncIterator[Content | Detached]:
        """Continue in the background on request."""
        yield Content("in front, ")
        yield Detached()
        await self.go.wait()
        yield Content("behind")


class Replaced(Activation):
    """A replacement of `Slow` without its methods."""

    namespace = "slow"
    version = "2.0.0"

    @method
    async def other(self) -> str:
        """Something else."""
        return "other"


def extended(hub: Plexus, **more: Any) -> McpPeer:
    """Return a client with the tasks extension."""
    return McpPeer(hub, STATELESS, **({"capabilities": TASKS} | more))


async def begin(peer: McpPeer, tool: str, arguments: Any = None, **task: Any) -> dict[str, Any]:
    """Call a tool as a task of the core. Returns the task."""
    params = {"name": tool, "arguments": arguments or {}, "task": task}
    result = await peer.result("tools/call", params)
    assert set(result) == {"task"}
    made: dict[str, Any] = result["task"]
    return made


async def get(peer: McpPeer, task: str) -> dict[str, Any]:
    found: dict[str, Any] = await peer.result("tasks/get", {"taskId": task})
    return found


async def status(peer: McpPeer, task: str, wanted: str) -> dict[str, Any]:
    """Poll until the task has this status."""
    async with asyncio.timeout(30):
        while (found := await get(peer, task))["status"] != wanted:  # noqa: ASYNC110 - as clients do
            await asyncio.sleep(0.005)
    return found


# --- core tasks ----------------------------------------------------------------------------------


async def test_a_call_becomes_a_task_if_the_client_requests_it(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow), CORE)
    task = await begin(peer, "slow.required", ttl=60_000)
    assert task["status"] == "working"
    assert task["ttl"] == 60_000
    assert task["pollInterval"] > 0
    assert datetime.fromisoformat(task["createdAt"]) <= datetime.fromisoformat(
        task["lastUpdatedAt"]
    )
    assert peer.view.idle
    assert (await get(peer, task["taskId"]))["status"] == "working"
    slow.go.set()
    done = await status(peer, task["taskId"], "completed")
    assert task["statusMessage"] == f"Output so far: run://{task['taskId']}"
    assert set(done) == set(task) - {"statusMessage"}
    assert (done["taskId"], done["createdAt"]) == (task["taskId"], task["createdAt"])


async def test_the_result_of_a_task_waits_for_its_end(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow), CORE)
    task = (await begin(peer, "slow.required"))["taskId"]
    waiting = [peer.begin("tasks/result", {"taskId": task}) for _ in range(2)]
    assert await peer.quiet() == []
    slow.go.set()
    results = [(await peer.answer_to(each))["result"] for each in waiting]
    results.append(await peer.result("tasks/result", {"taskId": task}))
    for result in results:
        assert text_of(result) == "begun done"
        assert result["isError"] is False
        assert result["_meta"] == {PREFIX + "related-task": {"taskId": task}}
    assert slow.calls == 1


async def test_the_result_of_a_task_is_that_of_the_call(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow, Show), CORE)
    slow.go.set()
    failed = (await begin(peer, "slow.required", {"fail": True}))["taskId"]
    result = await peer.result("tasks/result", {"taskId": failed})
    assert [block["text"] for block in result["content"]] == ["begun ", "it broke"]
    assert result["isError"] is True
    assert (await get(peer, failed))["status"] == "failed"
    options = McpOptions(result_chars=10)
    short = McpPeer(peer.hub, CORE, options=options)
    cut = (await begin(short, "show.words", {"texts": ["x" * 50]}))["taskId"]
    result = await short.result("tasks/result", {"taskId": cut})
    assert result["content"][1]["uri"] == f"run://{cut}"


async def test_cancelling_the_request_for_a_result_does_not_stop_the_task(
    open_hub: OpenHub,
) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow), CORE)
    task = (await begin(peer, "slow.required"))["taskId"]
    waiting = peer.begin("tasks/result", {"taskId": task})
    peer.notify("notifications/cancelled", {"requestId": waiting})
    slow.go.set()
    assert (await status(peer, task, "completed"))["taskId"] == task
    assert [frame for frame in peer.frames if frame.get("id") == waiting] == []


async def test_a_task_outlives_its_connection(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(slow)
    first = McpPeer(hub, CORE)
    task = (await begin(first, "slow.required"))["taskId"]
    first.begin("tasks/result", {"taskId": task})
    first.connection.lost()
    slow.go.set()
    assert await status(McpPeer(hub, CORE), task, "completed")


async def test_a_task_with_much_output_is_not_suspended(open_hub: OpenHub) -> None:
    hub = open_hub(Show, limits=Limits(high_water_bytes=10_000))
    peer = McpPeer(hub, CORE)
    task = (await begin(peer, "show.words", {"texts": ["x" * 1000] * 400}))["taskId"]
    await status(peer, task, "completed")


async def test_a_task_is_cancelled_once(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), CORE)
    task = (await begin(peer, "watched.wait"))["taskId"]
    await happened(watched.started)
    cancelled = await peer.result("tasks/cancel", {"taskId": task})
    assert cancelled["status"] == "cancelled"
    await happened(watched.stopped)
    assert (await get(peer, task))["status"] == "cancelled"
    error = await peer.error("tasks/cancel", {"taskId": task})
    assert error["code"] == -32602
    result = await peer.result("tasks/result", {"taskId": task})
    assert result["isError"] is True
    assert "Cancelled" in text_of(result)


@pytest.mark.parametrize("form", ["core", "extension"])
async def test_a_cancelled_task_stays_cancelled_whatever_its_terminal(
    open_hub: OpenHub, form: str
) -> None:
    watched = Watched()
    hub = open_hub(watched)
    core = McpPeer(hub, CORE)
    task = (await begin(core, "watched.linger"))["taskId"]
    peer = core if form == "core" else extended(hub)
    await happened(watched.started)
    await peer.result("tasks/cancel", {"taskId": task})
    assert (await get(peer, task))["status"] == "cancelled"
    await until(lambda: not hub.runs.running())
    found = await get(peer, task)
    assert found["status"] == "cancelled"
    assert "result" not in found


async def test_a_task_that_cancels_itself_is_cancelled(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Slow), CORE)
    task = (await begin(peer, "slow.gives_up"))["taskId"]
    assert await status(peer, task, "cancelled")


async def test_a_task_that_exceeds_its_deadline_has_failed(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Slow, limits=Limits(run_s=0.01)), CORE)
    task = (await begin(peer, "slow.required"))["taskId"]
    assert await status(peer, task, "failed")
    result = await peer.result("tasks/result", {"taskId": task})
    assert "timed out after" in text_of(result)


async def test_a_null_task_is_no_task(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Slow), CORE)
    result = await peer.result("tools/call", {"name": "slow.never", "task": None})
    assert text_of(result) == "here"


async def test_a_task_that_has_ended_cannot_be_cancelled(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), CORE)
    task = (await begin(peer, "show.value"))["taskId"]
    await status(peer, task, "completed")
    assert (await peer.error("tasks/cancel", {"taskId": task}))["code"] == -32602
    assert (await get(peer, task))["status"] == "completed"


async def test_tasks_are_listed_in_pages(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(slow, Demo)
    server = make_server(hub, McpOptions(page_size=2))
    peer = McpPeer(hub, CORE, server=server)
    await peer.tool("demo.echo", {"text": "no task"})
    made = {(await begin(peer, "slow.required"))["taskId"] for _ in range(5)}
    other = McpPeer(hub, CORE, server=server, principal=OTHER)
    await begin(other, "slow.required")
    listed: list[str] = []
    params: dict[str, Any] = {}
    while True:
        result = await peer.result("tasks/list", params)
        listed += [task["taskId"] for task in result["tasks"]]
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert len(listed) == 5
    assert set(listed) == made
    assert (await peer.error("tasks/list", {"cursor": "x"}))["code"] == -32602


@pytest.mark.parametrize(
    ("wanted", "given"), [({}, 3_600_000), ({"ttl": 10**12}, 3_600_000), ({"ttl": 5000}, 5000)]
)
async def test_a_result_is_retained_as_long_as_promised(
    open_hub: OpenHub, wanted: dict[str, Any], given: int
) -> None:
    assert (await begin(McpPeer(open_hub(Show), CORE), "show.value", **wanted))["ttl"] == given


async def test_a_task_is_retained_although_other_runs_are_evicted(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show, limits=Limits(finished_runs=1)), CORE)
    task = (await begin(peer, "show.value"))["taskId"]
    for _ in range(3):
        await peer.tool("show.value")
    assert text_of(await peer.result("tasks/result", {"taskId": task})) == "a text"


async def test_an_expired_task_is_not_listed(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show, limits=Limits(finished_runs=0)), CORE)
    task = (await begin(peer, "show.value", ttl=20))["taskId"]
    async with asyncio.timeout(30):
        while (await peer.result("tasks/list"))["tasks"]:  # noqa: ASYNC110 - as clients do
            await asyncio.sleep(0.005)
    assert (await peer.error("tasks/get", {"taskId": task}))["code"] == -32602


@pytest.mark.parametrize("wanted", [5, "x", [], True, {"ttl": "1"}, {"ttl": 0}, {"ttl": True}])
async def test_an_invalid_task_request_is_refused(open_hub: OpenHub, wanted: Any) -> None:
    slow = Slow()
    params = {"name": "slow.required", "task": wanted}
    error = await McpPeer(open_hub(slow), CORE).error("tools/call", params)
    assert error["code"] == -32602
    assert slow.calls == 0


async def test_invalid_arguments_create_no_task(open_hub: OpenHub) -> None:
    params = {"name": "slow.required", "arguments": {"no_such": 1}, "task": {}}
    peer = McpPeer(open_hub(Slow), CORE)
    assert (await peer.error("tools/call", params))["code"] == -32602
    assert (await peer.result("tasks/list"))["tasks"] == []


async def test_methods_may_require_or_forbid_tasks(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow), CORE)
    assert (await peer.error("tools/call", {"name": "slow.required"}))["code"] == -32601
    error = await peer.error("tools/call", {"name": "slow.never", "task": {}})
    assert error["code"] == -32601
    assert text_of(await peer.tool("slow.never")) == "here"
    assert slow.calls == 0


@pytest.mark.parametrize("revision", [each for each in HANDSHAKES if each != CORE])
async def test_older_revisions_have_no_tasks_and_call_everything_directly(
    open_hub: OpenHub, revision: str
) -> None:
    slow = Slow()
    slow.go.set()
    peer = McpPeer(open_hub(slow), revision)
    result = await peer.result("tools/call", {"name": "slow.required", "task": {"ttl": 5}})
    assert text_of(result) == "begun done"
    for name in ("tasks/get", "tasks/list", "tasks/cancel", "tasks/result", "tasks/update"):
        assert (await peer.error(name, {"taskId": "1"}))["code"] == -32601


async def test_too_many_tasks_are_refused_and_do_not_run(open_hub: OpenHub) -> None:
    watched = Watched()
    hub = open_hub(watched, limits=Limits(kept_runs=1))
    peer = McpPeer(hub, CORE)
    await begin(peer, "watched.wait")
    error = await peer.error("tools/call", {"name": "watched.wait", "task": {}})
    assert error["data"] == {"limit": 1, "name": "kept_runs", "held": 1}
    await peer.quiet()
    assert len(hub.runs.running()) == 1
    assert peer.view.idle


# --- questions of a task -------------------------------------------------------------------------


async def test_a_task_asks_by_the_request_for_its_result(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), CORE, capabilities=CAPABLE)
    task = (await begin(peer, "asking.ask", {"kind": "confirm"}))["taskId"]
    await status(peer, task, "input_required")
    waiting = peer.begin("tasks/result", {"taskId": task})
    request = await peer.asked("elicitation/create")
    assert request["params"]["_meta"] == {PREFIX + "related-task": {"taskId": task}}
    peer.respond(request, {"action": "accept", "content": {"answer": True}})
    result = (await peer.answer_to(waiting))["result"]
    assert text_of(result) == "before answered True"
    assert (await get(peer, task))["status"] == "completed"


@pytest.mark.parametrize("kind", ["sample", "roots", "visit"])
async def test_a_task_fails_to_ask_what_its_client_does_not_support(
    open_hub: OpenHub, kind: str
) -> None:
    peer = McpPeer(open_hub(Asking), CORE)
    task = (await begin(peer, "asking.ask", {"kind": kind}))["taskId"]
    await status(peer, task, "failed")
    result = await peer.result("tasks/result", {"taskId": task})
    assert f"questions of the kind {kind!r}" in text_of(result)


async def test_a_task_of_a_client_without_forms_is_answered_by_a_tool(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Asking), CORE)
    task = (await begin(peer, "asking.ask", {"kind": "confirm"}))["taskId"]
    await status(peer, task, "input_required")
    words = await peer.result("tasks/result", {"taskId": task})
    assert "plexus.respond" in text_of(words)
    assert words["_meta"] == {PREFIX + "related-task": {"taskId": task}}
    await peer.tool("plexus.respond", {"run": int(task), "request": "1", "answer": True})
    assert "answered True" in text_of(await peer.result("tasks/result", {"taskId": task}))


# --- tasks extension -----------------------------------------------------------------------------


async def test_the_server_creates_a_task_for_a_method_that_requires_it(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = extended(open_hub(slow))
    task = await peer.tool("slow.required")
    assert task["resultType"] == "task"
    assert set(task) == {
        *("resultType", "taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt"),
        *("ttlMs", "pollIntervalMs", "_meta"),
    }
    assert f"run://{task['taskId']}" in task["statusMessage"]
    assert set(task["_meta"]) == {PREFIX + "serverInfo"}
    working = await get(peer, task["taskId"])
    assert (working["resultType"], working["status"]) == ("complete", "working")
    assert not {"result", "error", "inputRequests"} & set(working)
    slow.go.set()
    done = await status(peer, task["taskId"], "completed")
    assert text_of(done["result"]) == "begun done"
    assert done["result"]["isError"] is False


async def test_the_extension_reports_failures_in_the_result(open_hub: OpenHub) -> None:
    slow = Slow()
    slow.go.set()
    peer = extended(open_hub(slow, Show))
    task = (await peer.tool("slow.required", {"fail": True}))["taskId"]
    done = await status(peer, task, "completed")
    assert done["result"]["isError"] is True
    assert text_of(done["result"]) == "begun it broke"


async def test_the_extension_reports_unexpected_errors_as_errors(open_hub: OpenHub) -> None:
    hub = open_hub(Show)
    task = (await begin(McpPeer(hub, CORE), "show.crash"))["taskId"]
    failed = await status(extended(hub), task, "failed")
    assert failed["error"]["code"] == -32603
    assert "this text" not in failed["error"]["message"]


async def test_a_model_in_a_task_is_structured(open_hub: OpenHub) -> None:
    hub = open_hub(Asking)
    task = (await begin(McpPeer(hub, CORE, capabilities=CAPABLE), "asking.model"))["taskId"]
    peer = extended(hub, capabilities=TASKS | CAPABLE)
    await status(peer, task, "input_required")
    answers = {"1": {"action": "accept", "content": {"answer": True}}}
    await peer.result("tasks/update", {"taskId": task, "inputResponses": answers})
    done = await status(peer, task, "completed")
    assert done["result"]["structuredContent"] == {"total": 1}


async def test_a_call_becomes_a_task_when_the_method_detaches(open_hub: OpenHub) -> None:
    slow = Slow()
    hub = open_hub(slow)
    peer = extended(hub)
    task = await peer.tool("slow.turns", progressToken=1)
    assert task["resultType"] == "task"
    notified = len(peer.notifications("notifications/progress"))
    slow.go.set()
    done = await status(peer, task["taskId"], "completed")
    assert text_of(done["result"]) == "in front, behind"
    # A client of the extension keeps track of its tasks itself.
    assert len(peer.notifications("notifications/progress")) == notified


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_client_without_the_extension_waits_for_the_end(
    open_hub: OpenHub, revision: str
) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow), revision)
    call = peer.begin_tool("slow.turns")
    assert await peer.quiet() == []
    slow.go.set()
    assert text_of((await peer.answer_to(call))["result"]) == "in front, behind"


async def test_a_short_call_is_answered_with_its_result(open_hub: OpenHub) -> None:
    slow = Slow()
    slow.go.set()
    result = await extended(open_hub(slow)).tool("slow.turns")
    assert result["resultType"] in ("complete", "task")


async def test_a_task_contains_its_questions(open_hub: OpenHub) -> None:
    peer = extended(open_hub(Asking), capabilities=TASKS | CAPABLE)
    task = (await peer.tool("asking.behind"))["taskId"]
    asked = await status(peer, task, "input_required")
    assert list(asked["inputRequests"]) == ["sure"]
    assert asked["inputRequests"]["sure"]["method"] == "elicitation/create"
    for answers in ({}, {"other": {"action": "accept"}}, {"sure": None}):
        await peer.result("tasks/update", {"taskId": task, "inputResponses": answers})
    assert (await get(peer, task))["status"] == "input_required"
    bad = {"sure": {"action": "accept", "content": {"answer": "perhaps"}}}
    error = await peer.error("tasks/update", {"taskId": task, "inputResponses": bad})
    assert error["code"] == -32602
    good = {"sure": {"action": "accept", "content": {"answer": True}}}
    acknowledged = await peer.result("tasks/update", {"taskId": task, "inputResponses": good})
    assert set(acknowledged) == {"resultType", "_meta"}
    done = await status(peer, task, "completed")
    assert text_of(done["result"]) == "in front behind True"
    # Late answers are ignored.
    await peer.result("tasks/update", {"taskId": task, "inputResponses": good})


async def test_a_question_without_a_form_is_text_in_the_task(open_hub: OpenHub) -> None:
    peer = extended(open_hub(Asking))
    task = (await peer.tool("asking.behind"))["taskId"]
    asked = await status(peer, task, "input_required")
    assert asked["inputRequests"] == {}
    assert "plexus.respond" in asked["statusMessage"]
    await peer.tool("plexus.respond", {"run": int(task), "request": "1", "answer": True})
    assert await status(peer, task, "completed")


@pytest.mark.parametrize("answers", [None, 5, []])
async def test_an_update_without_answers_is_refused(open_hub: OpenHub, answers: Any) -> None:
    slow = Slow()
    peer = extended(open_hub(slow))
    task = (await peer.tool("slow.required"))["taskId"]
    error = await peer.error("tasks/update", {"taskId": task, "inputResponses": answers})
    assert error["code"] == -32602


async def test_the_extension_acknowledges_a_cancellation(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = extended(open_hub(slow))
    task = (await peer.tool("slow.required"))["taskId"]
    for _ in range(2):  # repeating it is harmless
        acknowledged = await peer.result("tasks/cancel", {"taskId": task})
        assert set(acknowledged) == {"resultType", "_meta"}
    cancelled = await status(peer, task, "cancelled")
    assert not {"result", "error"} & set(cancelled)


async def test_task_methods_require_the_extension(open_hub: OpenHub) -> None:
    slow = Slow()
    peer = McpPeer(open_hub(slow), STATELESS)
    required: Any = {"requiredCapabilities": {"extensions": {PREFIX + "tasks": {}}}}
    error = await peer.error("tools/call", {"name": "slow.required"})
    assert (error["code"], error["data"]) == (-32021, required)
    for name in ("tasks/get", "tasks/cancel", "tasks/update"):
        error = await peer.error(name, {"taskId": "1", "inputResponses": {}})
        assert (error["code"], error["data"]) == (-32021, required)
    assert slow.calls == 0


async def test_the_task_parameter_of_the_core_is_ignored_by_the_extension(
    open_hub: OpenHub,
) -> None:
    params = {"name": "show.value", "task": {"ttl": 5}}
    result = await extended(open_hub(Show)).result("tools/call", params)
    assert result["resultType"] == "complete"
    assert text_of(result) == "a text"


# --- unknown tasks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", [None, 5, "", "x", "-1", "1", "1.0", "²", "9" * 5000, ["1"], {}, " 1"]
)
@pytest.mark.parametrize("form", ["core", "extension"])
async def test_an_unknown_task_is_refused(open_hub: OpenHub, form: str, task: Any) -> None:
    hub = open_hub(Show)
    peer = McpPeer(hub, CORE) if form == "core" else extended(hub)
    names = ["tasks/get", "tasks/cancel"]
    names.append("tasks/result" if form == "core" else "tasks/update")
    for name in names:
        error = await peer.error(name, {"taskId": task, "inputResponses": {}})
        assert error["code"] == -32602


@pytest.mark.parametrize("form", ["core", "extension"])
async def test_a_task_of_another_principal_is_unknown(open_hub: OpenHub, form: str) -> None:
    slow = Slow()
    hub = open_hub(slow)
    task = (await begin(McpPeer(hub, CORE), "slow.required"))["taskId"]
    other = (
        McpPeer(hub, CORE, principal=OTHER) if form == "core" else extended(hub, principal=OTHER)
    )
    error = await other.error("tasks/get", {"taskId": task})
    assert error == {
        "code": -32602,
        "message": "Unknown task. It may have expired.",
        "data": {"taskId": task},
    }
    assert (await other.error("tasks/cancel", {"taskId": task}))["code"] == -32602
    slow.go.set()


async def test_a_task_has_one_name(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), CORE)
    task = (await begin(peer, "show.value"))["taskId"]
    for name in (f" {task}", f"0{task}", f"+{task}", f"{task[:1]}_{task[1:]}", f"{task}\n"):
        assert (await peer.error("tasks/get", {"taskId": name}))["code"] == -32602


async def test_a_run_that_is_no_task_is_unknown(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), CORE)
    peer.begin_tool("watched.wait")
    await happened(watched.started)
    [run] = peer.hub.runs.running()
    assert (await peer.error("tasks/get", {"taskId": str(run.id)}))["code"] == -32602


@pytest.mark.parametrize("form", ["core", "extension"])
async def test_a_task_of_an_unregistered_method_closes_no_connection(
    open_hub: OpenHub, form: str
) -> None:
    slow = Slow()
    slow.go.set()
    hub = open_hub(slow)
    core = McpPeer(hub, CORE)
    task = (await begin(core, "slow.required"))["taskId"]
    await status(core, task, "completed")
    hub.register(Replaced())
    if form == "core":
        await core.call("tasks/result", {"taskId": task})
    else:
        await extended(hub).call("tasks/get", {"taskId": task})
    assert text_of(await core.tool("slow.other")) == "other"


# --- questions after the log was trimmed ---------------------------------------------------------


class Chatty(Activation):
    """Asks a question and yields much output while it waits for the answer."""

    namespace = "chatty"
    version = "1.0.0"

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    @method(background="optional")
    async def work(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask, and yield output meanwhile."""
        answer = asyncio.create_task(ctx.ask(Confirm("Sure?"), timeout_s=60))
        await asyncio.sleep(0)
        for number in range(3000):
            yield Content(f"{number} ")
        self.ready.set()
        yield Content(f"answered {await answer}")


def chatty_hub(open_hub: OpenHub) -> tuple[Plexus, Chatty]:
    chatty = Chatty()
    return open_hub(chatty, limits=Limits(log_items=16)), chatty


async def test_a_task_shows_its_question_after_the_log_was_trimmed(
    open_hub: OpenHub,
) -> None:
    hub, chatty = chatty_hub(open_hub)
    task = (await begin(McpPeer(hub, CORE, capabilities=CAPABLE), "chatty.work"))["taskId"]
    await happened(chatty.ready)
    peer = extended(hub, capabilities=TASKS | CAPABLE)
    asked = await status(peer, task, "input_required")
    assert list(asked["inputRequests"]) == ["1"]
    answers = {"1": {"action": "accept", "content": {"answer": True}}}
    await peer.result("tasks/update", {"taskId": task, "inputResponses": answers})
    done = await status(peer, task, "completed")
    assert text_of(done["result"]).endswith("answered True")


async def test_the_result_of_a_task_asks_its_question_after_the_log_was_trimmed(
    open_hub: OpenHub,
) -> None:
    hub, chatty = chatty_hub(open_hub)
    peer = McpPeer(hub, CORE, capabilities=CAPABLE)
    task = (await begin(peer, "chatty.work"))["taskId"]
    await happened(chatty.ready)
    waiting = peer.begin("tasks/result", {"taskId": task})
    asked = await peer.asked("elicitation/create")
    peer.respond(asked, {"action": "accept", "content": {"answer": True}})
    result = (await peer.answer_to(waiting))["result"]
    assert text_of(result).endswith("answered True")
