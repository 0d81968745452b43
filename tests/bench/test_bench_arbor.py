"""The measures of the store run, and bare SQLite writes the same rows as the store."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

import pytest

from bench import arbor, measure

SMALL = dataclasses.replace(
    measure.QUICK, arbor_rounds=1, arbor_commits=5, arbor_depth=20, arbor_nodes=100
)
TABLES = ("trees", "tree_refs", "nodes", "changes", "numbers")


@pytest.mark.parametrize("name", ["commits", "groups", "paths", "readers"])
def test_a_measure_returns_a_figure_with_its_limit(name: str) -> None:
    [figure] = getattr(arbor, name)(SMALL)

    assert figure.name.startswith("arbor_")
    assert figure.ours.median > 0
    assert figure.ratio is not None
    assert figure.targets


def test_bare_sqlite_writes_the_same_rows_as_the_store(tmp_path: Path) -> None:
    commits = 600  # enough to trigger an update of the index
    with arbor.Ours(tmp_path / "ours.db") as ours:
        ours.append_sequentially(commits)
    with arbor.bare_store(tmp_path / "bare.db") as bare:
        arbor.append_bare(bare, commits)
        bare.execute("INSERT INTO changes VALUES (1, 1, 'tree_created', NULL, 0)")
        bare.execute("INSERT INTO changes VALUES (2, 1, 'node_created', NULL, 0)")
    kept = []
    for name in ("ours.db", "bare.db"):
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as file:
            counts = [file.execute(f"SELECT count(*) FROM {table}").fetchone() for table in TABLES]
            kept.append((counts, file.execute("SELECT value, indexed FROM numbers").fetchall()))
    assert kept[0] == kept[1]
