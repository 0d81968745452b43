"""The methods for recorded runs, on a hub without a run store, and the times that they accept."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hub_calls import call, register

from plexus import Plexus
from plexus.errors import InvalidParams
from plexus.events import ErrorEvent, Result
from plexus.principal import LOCAL
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.history import parse_time

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30m", NOW - 30 * 60_000),
        ("3h", NOW - 3 * 3_600_000),
        ("1.5h", NOW - 5_400_000),
        ("2d", NOW - 2 * 86_400_000),
        ("1w", NOW - 7 * 86_400_000),
        (1234, 1234),
        ("1234", 1234),
        ("2026-05-01T12:00:00+00:00", 1_777_636_800_000),
    ],
)
def test_a_time_is_a_duration_a_date_or_milliseconds(text: str | int, expected: int) -> None:
    assert parse_time(text, NOW) == expected


def test_a_date_without_a_time_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-9")
    time.tzset()
    try:
        assert parse_time("2026-05-01T21:00") == 1_777_636_800_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "2 fortnights", "d", "9999999999d", "١٢"])
def test_any_other_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="is not a time"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("plexus.history", {}),
        ("plexus.find_runs", {"search": "x"}),
        ("plexus.pin", {"run": 1}),
        ("plexus.delete", {"runs": [1]}),
        ("plexus.prune", {}),
    ],
)
async def test_without_a_run_store_they_are_unsupported(
    method: str, params: dict[str, Any]
) -> None:
    hub = Plexus()
    register(hub, PlexusActivation(hub))
    terminal = (await call(hub, method, params))[-1]
    assert isinstance(terminal, ErrorEvent)
    assert terminal.code == "unsupported"
    assert "has no run store" in terminal.message
    await hub.close()


async def test_without_a_run_store_a_run_in_memory_can_be_inspected() -> None:
    hub = Plexus()
    register(hub, PlexusActivation(hub))
    await call(hub, "plexus.hash")
    [run] = [run for run in hub.runs.list_for(LOCAL) if run.method == "plexus.hash"]
    terminal = (await call(hub, "plexus.inspect", {"run": run.id}))[-1]
    assert isinstance(terminal, Result)
    assert terminal.result["method"] == "plexus.hash"
    await hub.close()
