"""The methods of `plexus` for recorded runs, with a real store on both engines."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from hub_calls import OTHER, read
from store_hubs import StoreHub

from plexus.events import ErrorEvent, Event, Result
from plexus.principal import LOCAL, Principal
from plexus.runtime.history import RunsFound

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
    for method, params in (("plexus.pin", {"run": run}), ("plexus.delete", {"runs": [run]})):
        assert await result(hub, method, params, OTHER) == "not_found"
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
