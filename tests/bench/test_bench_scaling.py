"""The measures of the capacity model: replicas on one PostgreSQL, and watchers of one run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import measure, postgres, replicas, watchers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SMALL = dataclasses.replace(
    measure.QUICK, pipelined_calls=100, recorded_rounds=1, idle_s=0.2, ticks=4, call_rounds=1
)


@pytest.mark.skipif(not postgres.is_installed(), reason="PostgreSQL is not installed")
def test_every_call_on_two_replicas_is_stored_in_a_database_that_is_then_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[tuple[int, Path]] = []

    @contextmanager
    def recorded() -> Iterator[postgres.Database]:
        with open_database() as database:
            folder = Path(database.query("SHOW unix_socket_directories"))
            assert folder.exists()
            opened.append((database.pid, folder))
            yield database

    open_database = postgres.open_database
    monkeypatch.setattr(postgres, "open_database", recorded)

    figures = {figure.name: figure for figure in replicas.calls(SMALL)}

    assert figures["replicas lost"].ours.median == 0
    assert figures["replicas lost"].reached
    for name in ("replicas wall", "replicas cpu", "replicas database"):
        assert figures[name].ratio is not None
    assert figures["replicas commits"].ours.median > 0
    assert figures["replicas connections"].ours.median >= 1
    [(pid, folder)] = opened
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_all_watchers_of_a_run_get_its_end() -> None:
    [figure] = watchers.live(SMALL)

    assert figure.name == "watchers"
    assert figure.ours.rounds == 1
