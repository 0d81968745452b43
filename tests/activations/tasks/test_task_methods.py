"""The methods of tasks through a hub: leases of connections and runs, projects, scopes, texts."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hub_calls import OTHER, WAIT_S, follow, settled, until
from task_hub import Board, boarding

from activations.tasks.model import REFS
from plexus import Activation, Context, Denied, InvalidParams, Principal, method
from plexus.caller_connection import CallerConnection
from plexus.caller_environment import CallerEnvironment
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Agent(Activation):
    """An agent that calls tasks from its own run."""

    namespace = "agent"

    def __init__(self) -> None:
        self.go = asyncio.Event()

    @method
    async def work(self, *, ctx: Context) -> dict[str, Any]:
        """Claim a task, and wait."""
        task: dict[str, Any] = await ctx.call("tasks.next_task")
        await self.go.wait()
        return task


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
async def board(tmp_path: Path, agent: Agent) -> AsyncIterator[Board]:
    async with boarding(tmp_path / "tasks.db", agent) as opened:
        yield opened


async def state(board: Board, name: str) -> str:
    return str((await board.value("get", task_id=name))["status"])


async def becomes(board: Board, name: str, status: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await state(board, name) != status:  # noqa: ASYNC110 - as a client sees it
            await asyncio.sleep(0.001)


async def test_a_claim_ends_with_the_connection_it_was_made_on(board: Board) -> None:
    name = await board.add("a")
    first, second = CallerConnection(), CallerConnection()
    held = await board.through(first, "next_task")
    assert held["id"] == name
    assert held["holder"].startswith("agent/1 #")
    empty = await board.through(second, "next_task")
    assert empty == {"message": "No task is ready.", "pending": 0, "in_progress": 1}
    second.close()
    assert await state(board, name) == "in_progress"
    first.close()
    await becomes(board, name, "pending")
    changes = (await board.value("history", task_id=name))["changes"]
    assert changes[-1]["details"] == {"why": "its connection has ended"}


async def test_a_claim_of_a_person_outlives_the_connection(board: Board) -> None:
    name = await board.add("a")
    window = CallerConnection()
    await board.through(window, "update_task", client="Browser", task_id=name, status="in_progress")
    window.close()
    other = CallerConnection()
    found = await board.through(other, "next_task")
    assert found["in_progress"] == 1
    closed = await board.through(other, "close_task", client="substrate tasks 1.0", task_id=name)
    assert closed["status"] == "done"


async def test_a_claim_inside_a_run_ends_with_the_outer_run_and_links_it(
    board: Board, agent: Agent
) -> None:
    name = await board.add("a")
    run = board.hub.call("agent.work").run
    await becomes(board, name, "in_progress")
    found = await board.value("get", task_id=name)
    assert found["holder"].endswith(f"in run {run.id}")
    assert [each["uri"] for each in found["refs"]] == [f"run://{run.id}"]
    run.cancel("enough")
    assert await settled(run) == Cancelled("enough")
    await becomes(board, name, "pending")
    again = board.hub.call("agent.work").run  # the listener works for the next run as well
    await becomes(board, name, "in_progress")
    agent.go.set()
    await settled(again)
    await becomes(board, name, "pending")


async def test_a_task_with_too_many_references_is_claimed_all_the_same(
    board: Board, agent: Agent
) -> None:
    name = await board.add("a")
    for number in range(REFS):
        await board.value("link_tasks", task_id=name, kind="run", target=f"run://{number + 1}")
    run = board.hub.call("agent.work").run
    await becomes(board, name, "in_progress")
    found = await board.value("get", task_id=name)
    assert len(found["refs"]) == REFS
    agent.go.set()
    assert isinstance(await settled(run), Result)


async def test_the_end_of_other_runs_and_a_closed_task_release_nothing(
    board: Board, agent: Agent
) -> None:
    name = await board.add("a")
    run = board.hub.call("agent.work").run
    await becomes(board, name, "in_progress")
    await board.value("close_task", task_id=name, force=True)
    agent.go.set()
    await settled(run)
    assert await state(board, name) == "done"


async def test_closing_the_hub_releases_claims(tmp_path: Path) -> None:
    async with boarding(tmp_path / "tasks.db") as board:
        name = await board.add("a")
        await board.through(CallerConnection(), "next_task")
        assert await state(board, name) == "in_progress"
    async with boarding(tmp_path / "tasks.db") as board:
        assert await state(board, name) == "pending"


async def test_nothing_is_opened_before_the_first_task(board: Board) -> None:
    assert await board.value("list_tasks") == {"tasks": [], "total": 0}
    assert (await board.value("projects"))["projects"] == []
    assert [event["type"] for event in await board.events("export")] == ["content", "complete"]
    assert await board.tasks.check_health() == "no tasks stored yet"
    assert not board.tasks.path().exists()
    await board.add("a")
    assert (await board.tasks.check_health()).endswith(
        "tasks.db, schema 1, 1 pending, 0 in progress"
    )


async def test_a_watch_begins_with_a_snapshot_and_resumes_after_a_number(board: Board) -> None:
    names = [await board.add(str(number)) for number in range(3)]
    await board.value("close_task", task_id=names[0])
    run = board.hub.call("tasks.watch").run
    await until(lambda: run.log.last >= 2)
    first = wire.decode_plain(run.log.events[:2])
    assert [task["description"] for event in first for task in event["tasks"]] == ["1", "2", "0"]
    assert all(event["snapshot"] for event in first)
    await board.value("close_task", task_id=names[1])
    await until(lambda: run.log.last >= 3)
    [event] = wire.decode_plain(run.log.events[2:3])
    assert "snapshot" not in event
    assert [(task["id"], task["status"]) for task in event["tasks"]] == [(names[1], "done")]
    assert run.log.events[2].as_text() == f"{names[1]} done P2 1\n"
    resumed = board.hub.call("tasks.watch", {"after": first[-1]["seq"]}).run
    await until(lambda: resumed.log.last >= 1)
    assert wire.decode_plain(resumed.log.events[:1]) == [event]
    for each in (run, resumed):
        each.cancel("enough")
        await settled(each)


async def test_tasks_belong_to_the_project_of_the_caller(board: Board, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", "-C", str(main), *identity, *words], check=True, timeout=20)

    main, tree, other = tmp_path / "main", tmp_path / "tree", tmp_path / "other"
    (main / "deep" / "er").mkdir(parents=True)
    other.mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    git("worktree", "add", "-q", str(tree))

    async def listed(folder: Path, **params: Any) -> list[str]:
        caller = CallerEnvironment(str(folder), {})
        run = board.hub.call("tasks.list_tasks", params, caller=caller).run
        [event] = await follow(run, owner=True)
        tasks = wire.decode_plain(event)["result"]["tasks"]
        return [task["description"] for task in tasks]

    for folder, text in ((main / "deep" / "er", "main"), (tree, "tree"), (other, "other")):
        caller = CallerEnvironment(str(folder), {})
        run = board.hub.call("tasks.create_task", {"description": text}, caller=caller).run
        await settled(run)
    assert await listed(tree) == await listed(main) == ["main", "tree"]
    assert await listed(other) == ["other"]
    assert await listed(other, project=str(main)) == ["main", "tree"]
    assert await listed(other, project="*") == ["main", "tree", "other"]


async def test_changes_need_the_scope_and_reading_does_not(board: Board) -> None:
    reader = Principal("local", scopes=frozenset({"read"}))
    await board.add("a")
    for name in ("create_task", "next_task", "update_task", "close_task", "link_tasks", "delete"):
        with pytest.raises(Denied):
            board.hub.call(f"tasks.{name}", {}, reader)
    for name in ("list_tasks", "projects"):
        assert await board.value(name, reader)
    assert (await board.value("list_tasks", OTHER))["total"] == 0


async def test_an_export_reads_well_and_restores(board: Board, tmp_path: Path) -> None:
    first = await board.add("First line\nsecond line", type="bug", acceptance=["It works"])
    await board.add("Later", blocked_by=[first], labels=["ui"])
    await board.value("link_tasks", task_id=first, kind="run", target="run://9")
    await board.value("close_task", task_id=first, reason="Fixed", force=True)
    events = await board.events("export")
    text = "".join(event["text"] for event in events[:-1])
    assert text.index("## To do") < text.index("- [ ] Later") < text.index("## Done")
    assert "#ui" in text
    assert f"- [x] First line (`{first}`, P2, bug)\n  second line\n  - [ ] It works\n" in text
    assert "  - run: run://9\n  - closed: Fixed\n" in text
    events = await board.events("export", format="jsonl")
    lines = "".join(event["text"] for event in events[:-1])
    async with boarding(tmp_path / "copy.db") as copy:
        assert await copy.value("import", text=lines) == {"imported": 2, "existing": 0}
        assert (await copy.value("list_tasks", status="all"))["total"] == 2


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "{", '{"id":"task_00000001"', "[" * 100, "\0", '{"a":1e999}', "nonsense\n{}"],
)
async def test_a_file_that_is_not_json_lines_is_refused(board: Board, text: str) -> None:
    error = await board.error("import", text=text)
    assert error.code in ("invalid_params", "bad_import")
    assert (await board.value("list_tasks", status="all"))["total"] == 0


async def test_a_call_without_a_connection_holds_a_task_by_time(board: Board) -> None:
    name = await board.add("a")
    made = board.hub.call("tasks.next_task", {}, client="remote/1").run
    assert not isinstance((await follow(made, owner=True))[-1], ErrorEvent)
    found = await board.value("get", task_id=name)
    assert found["holder"] == "remote/1"
    store = await board.tasks.store()
    _, expires = await store.leases()
    assert expires is not None


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("list_tasks", {"text": "x" * 60_000}),
        ("list_tasks", {"label": "x" * 60_000}),
        ("list_tasks", {"project": "a\0b"}),
        ("next_task", {"project": ""}),
        ("create_task", {"description": "a", "project": "x" * 5000}),
        ("watch", {"after": 2**63}),
        ("watch", {"project": "\0"}),
        ("export", {"project": "\0"}),
        ("history", {"task_id": "task_00000000", "after": 2**63}),
        ("delete", {"task_ids": []}),
        ("update_task", {"task_id": "task_00000000", "met": [2**63]}),
    ],
)
async def test_hostile_arguments_are_refused_as_such(
    board: Board, name: str, params: dict[str, Any]
) -> None:
    await board.add("a")
    try:
        error = await board.error(name, **params)
    except InvalidParams:
        return  # by the schema, before the call
    assert error.code in ("bad_text", "too_big", "not_found", "invalid_params"), error
