"""The methods of `plexus` for recorded runs, with a real store on both engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import pytest
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from hub_calls import OTHER, WAIT_S, follow, read, settled
from store_hubs import StoreHub

from activations.bash import Bash
from plexus import Activation, Confirm, Context, Plexus, Secret, method
from plexus.events import ErrorEvent, Event, QuestionAnswered, Result
from plexus.principal import LOCAL, Principal
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.history import RunsFound
from plexus.runtime.run_watch import RunsChanged
from substrate.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ENGINES)
async def hub(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreHub]:
    opened = await StoreHub.open(new_database(request.param, tmp_path), Demo)
    yield opened
    await opened.close()


async def call(
    hub: StoreHub, method: str, params: dict[str, Any], principal: Principal = LOCAL
) -> list[Event]:
    return await read(hub.hub.call(method, params, principal))


async def result(
    hub: StoreHub, method: str, params: dict[str, Any], principal: Principal = LOCAL
) -> Any:
    """Return the result of a method, or the code of its error."""
    terminal = (await call(hub, method, params, principal))[-1]
    if isinstance(terminal, ErrorEvent):
        return terminal.code
    assert isinstance(terminal, Result)
    return terminal.result


async def echoed(hub: StoreHub, text: str) -> int:
    started = hub.hub.call("demo.echo", {"text": text}, LOCAL)
    await read(started)
    return started.run.id


async def test_history_lists_runs_by_time_method_state_and_text(hub: StoreHub) -> None:
    run = await echoed(hub, "needle-in-hay")
    await call(hub, "demo.fail", {"code": "c", "message": "m"})
    waiting = hub.hub.call("demo.wait", None, LOCAL)

    async def listed(**params: Any) -> list[str]:
        return [entry["method"] for entry in await result(hub, "plexus.history", params)]

    assert sorted(await listed()) == ["demo.echo", "demo.fail", "demo.wait"]
    assert await listed(method="demo.echo, demo.f*", state="failed") == ["demo.fail"]
    assert await listed(state="running") == ["demo.wait"]
    assert len(await listed(since="1h")) == 3
    assert await listed(until="1h") == []
    assert await listed(search="needle") == ["demo.echo"]
    assert await listed(search="edle-in") == ["demo.echo"]
    found = await call(hub, "plexus.find_runs", {"search": "edle-in"})
    assert [
        entry["run"] for each in found if isinstance(each, RunsFound) for entry in each.runs
    ] == [run]
    assert await result(hub, "plexus.history", {"state": "asleep"}) == "invalid_params"
    assert await result(hub, "plexus.history", {"since": "soon"}) == "invalid_params"
    assert await result(hub, "plexus.history", {}, OTHER) == []
    waiting.run.cancel("enough")
    await read(waiting)


async def test_a_run_is_inspected_with_its_arguments_and_retention(hub: StoreHub) -> None:
    run = await echoed(hub, "hello")
    found = await result(hub, "plexus.inspect", {"run": run})
    assert found["arguments"] == {"text": "hello"}
    assert (found["method"], found["outcome"], found["recorded"]) == (
        "demo.echo",
        "succeeded",
        "all",
    )
    assert found["kept_until"] > time.time() * 1000
    assert await result(hub, "plexus.inspect", {"run": run}, OTHER) == "not_found"
    assert await result(hub, "plexus.inspect", {"run": 1}) == "not_found"


async def test_runs_are_pinned_and_deleted_by_their_principal_only(hub: StoreHub) -> None:
    run = await echoed(hub, "mine")
    for name, params in (("plexus.pin", {"run": run}), ("plexus.delete", {"runs": [run]})):
        assert await result(hub, name, params, OTHER) == "not_found"
    assert await result(hub, "plexus.pin", {"run": run}) is True
    assert (await result(hub, "plexus.inspect", {"run": run}))["pinned"] is True
    assert await result(hub, "plexus.pin", {"run": run, "pinned": False}) is False
    assert await result(hub, "plexus.delete", {"runs": [run]}) == 1
    assert await result(hub, "plexus.inspect", {"run": run}) == "not_found"
    assert await result(hub, "plexus.delete", {"runs": [run]}) == "not_found"
    assert await result(hub, "plexus.prune", {}) == 0


async def test_changing_a_run_needs_the_scope_of_its_method(hub: StoreHub) -> None:
    run = await echoed(hub, "mine")
    reader = Principal(LOCAL.name, scopes=frozenset({"read"}))
    assert await result(hub, "plexus.pin", {"run": run}, reader) == "denied"
    assert await result(hub, "plexus.delete", {"runs": [run]}, reader) == "denied"
    assert (await result(hub, "plexus.inspect", {"run": run}))["run"] == run


async def test_a_run_in_progress_cannot_be_deleted(hub: StoreHub) -> None:
    waiting = hub.hub.call("demo.wait", None, LOCAL)
    assert await result(hub, "plexus.delete", {"runs": [waiting.run.id]}) == "in_progress"
    waiting.run.cancel("enough")
    await read(waiting)


async def test_history_is_filtered_by_parent_client_and_agent_session(hub: StoreHub) -> None:
    hub.hub.runs.agent_session = "session-7"
    params = {"method": "demo.echo", "params": {"text": "needle"}}
    outer = hub.hub.call("plexus.call", params, LOCAL, client="Claude Code/2.1")
    await read(outer)
    await echoed(hub, "needle alone")

    async def listed(**filters: Any) -> list[Any]:
        return await result(hub, "plexus.history", filters)  # type: ignore[no-any-return]

    [inner] = await listed(parent=outer.run.id)
    assert (inner["method"], inner["parent"]) == ("demo.echo", outer.run.id)
    # A run that another run has called belongs to the same client and session.
    assert (inner["client"], inner["agent_session"]) == ("Claude Code/2.1", "session-7")
    assert [entry["run"] for entry in await listed(client="claude", method="demo.*")] == [
        inner["run"]
    ]
    found_runs = {entry["run"] for entry in await listed(client="claude", search="needle")}
    assert found_runs == {inner["run"], outer.run.id}
    assert len(await listed(agent_session="session-7")) == 3
    assert await listed(agent_session="another") == []
    found = await call(hub, "plexus.find_runs", {"search": '"needle"', "parent": outer.run.id})
    runs = [entry["run"] for each in found if isinstance(each, RunsFound) for entry in each.runs]
    assert runs == [inner["run"]]


async def test_the_runs_of_a_project_are_counted(hub: StoreHub) -> None:
    await echoed(hub, "a")
    await call(hub, "demo.fail", {"code": "c", "message": "m"})
    waiting = hub.hub.call("demo.wait", None, LOCAL)
    assert await result(hub, "plexus.run_counts", {"since": "1h"}) == {
        "running": 1,
        "asking": 0,
        "failed": 1,
        "total": 3,
    }
    assert (await result(hub, "plexus.run_counts", {}, OTHER))["total"] == 0
    assert (await result(hub, "plexus.run_counts", {"since": str(2**50)}))["total"] == 0
    assert await result(hub, "plexus.run_counts", {"since": "soon"}) == "invalid_params"
    waiting.run.cancel("enough")
    await read(waiting)


async def test_runs_that_are_not_recorded_are_counted_in_memory() -> None:
    plexus = Plexus()
    plexus.register(PlexusActivation(plexus), checked=True)
    plexus.register(Demo)
    await read(plexus.call("demo.echo", ["a"]))
    await read(plexus.call("demo.fail", {"code": "c", "message": "m"}))
    waiting = plexus.call("demo.wait")
    terminal = (await read(plexus.call("plexus.run_counts")))[-1]
    assert isinstance(terminal, Result)
    assert terminal.result == {"running": 1, "asking": 0, "failed": 1, "total": 3}
    waiting.run.cancel("enough")
    await plexus.close()


async def test_the_outcome_and_exit_code_are_the_same_wherever_a_run_is_described(
    tmp_path: Path,
) -> None:
    database = new_database("sqlite", tmp_path)
    own, other = await StoreHub.open(database, Bash), await StoreHub.open(database)
    run = own.hub.call("bash.execute", {"command": "exit 3"}, LOCAL).run
    await settled(run)
    expected = ("complete", "failed", 3)

    def outcome(entry: dict[str, Any]) -> tuple[Any, ...]:
        return entry["state"], entry["outcome"], entry["exit_code"]

    async def watched(hub: StoreHub) -> dict[str, Any]:
        watching = hub.hub.call("plexus.watch", None, LOCAL).run
        async with asyncio.timeout(WAIT_S), aclosing(watching.batches()) as batches:
            async for batch in batches:
                for event in batch.events:
                    assert isinstance(event, RunsChanged)
                    for entry in event.runs:
                        if entry["run"] == run.id:
                            watching.cancel("enough")
                            await settled(watching)
                            return entry
        raise AssertionError("the run is not listed")

    # In the process of the run, in another one that has listed it, and after it was loaded.
    for hub in (own, other, other):
        for name in ("plexus.runs", "plexus.history"):
            [entry] = await result(hub, name, {})
            assert outcome(entry) == expected, name
        assert outcome(await watched(hub)) == expected
        assert outcome(await result(hub, "plexus.inspect", {"run": run.id})) == expected
        await hub.hub.runs.fetch(run.id, LOCAL)
        assert (await result(hub, "plexus.run_counts", {}))["failed"] == 1
    await own.close()
    await other.close()


class Confirming(Activation):
    """Asks before it does anything."""

    namespace = "confirming"
    version = "1.0.0"

    @method
    async def send(
        self,
        to: str,
        password: Annotated[str, Secret()],  # noqa: ARG002 - only recorded
        *,
        ctx: Context,
    ) -> bool:
        """Ask before sending."""
        return await ctx.ask(Confirm(f"Send to {to}?"))


async def test_a_question_shows_the_recorded_arguments_of_its_run(tmp_path: Path) -> None:
    database = new_database("sqlite", tmp_path)
    own, other = await StoreHub.open(database, Confirming), await StoreHub.open(database)
    params = {"to": "Ada", "password": "hunter2"}
    run = own.hub.call("confirming.send", params, LOCAL, client="Claude Code/2.1").run
    for hub in (own, other):
        async with asyncio.timeout(WAIT_S):
            while not (found := (await result(hub, "approvals.pending", {})).approvals):  # noqa: ASYNC110 - any process
                await asyncio.sleep(0.01)  # until the other process has recorded it
        assert found[0].arguments["to"] == "Ada"
        assert "hunter2" not in str(found[0])
        assert "Ada" in found[0].summary
        assert (found[0].method, found[0].client) == ("confirming.send", "Claude Code/2.1")
    answer = {"approval_id": found[0].approval_id, "approve": True}
    await read(other.hub.call("approvals.respond", answer, LOCAL, client="page 2"))
    events = await follow(run)
    assert QuestionAnswered("1", "answered", True, "page 2") in events
    assert QuestionAnswered("1", "answered", True, "page 2") in await follow(
        await other.hub.runs.fetch(run.id, LOCAL)
    )
    await own.close()
    await other.close()


async def test_metadata_have_no_arguments_and_no_summary(tmp_path: Path) -> None:
    settings = Settings(record="metadata")
    hub = await StoreHub.open(new_database("sqlite", tmp_path), Demo, settings=settings)
    for name, params in (("demo.echo", {"text": "quiet"}), ("demo.count", {"to": 2})):
        run = hub.hub.call(name, params, LOCAL).run
        await settled(run)
        record = await hub.store.history.details(run.id)
        assert record is not None
        assert (record.recorded, record.arguments, record.summary) == ("metadata", "", "")
    await hub.close()
