"""Measures of the tree store on a file, compared with bare `sqlite3` and with a single writer.

The limit writes the same rows to the same tables with the same durability: each commit is on disk
before the next starts. Files are on the disk of this folder, because an in-memory file system would
hide the cost of the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvloop

from activations.arbor.model import APPEND_ITEMS, PAGE_ITEMS, NewNode, Tree
from activations.arbor.queries.search import INDEX_EVERY
from activations.arbor.schema import ARBOR
from activations.arbor.store import Store, open_store
from bench.measure import Effort, Figure, Target, compare, interleave, percentile
from bench.servers import scratch_folder
from plexus.storage.migrations import statements

__all__ = ("Ours", "append_bare", "bare_store", "commits", "groups", "paths", "readers")

PRINCIPAL = "bench"
WRITERS = 64
READERS = 8
TEXT = "A message of a usual length, such as people and programs send to each other, no more."

UP = """
WITH RECURSIVE up AS (
    SELECT 0 AS depth, nodes.* FROM nodes WHERE id = ?
    UNION ALL
    SELECT up.depth + 1, nodes.* FROM up JOIN nodes ON nodes.n = up.parent
)
SELECT n, id, parent, position, content, handle, metadata, created_ms, replaces, replaced_by
FROM up ORDER BY depth DESC
"""


def commits(effort: Effort) -> list[Figure]:
    """Measure sequential commits of one node."""
    count = effort.arbor_commits
    with (
        scratch_folder() as folder,
        Ours(folder / "ours.db") as ours,
        bare_store(folder / "bare.db") as bare,
    ):
        mine, best = interleave(
            lambda: ours.append_sequentially(count),
            lambda: append_bare(bare, count),
            effort.arbor_rounds,
        )
    note = f"{count} sequential commits of one node; bare sqlite3 writes the same rows"
    return [compare("arbor_commit", "us/commit", mine, best, Target("ratio", 2.0), note)]


def groups(effort: Effort) -> list[Figure]:
    """Measure concurrent writers, whose commits are grouped."""
    count = effort.arbor_commits
    with scratch_folder() as folder, Ours(folder / "ours.db") as ours:
        together, singly = interleave(
            lambda: ours.append_concurrently(count),
            lambda: ours.append_sequentially(count),
            effort.arbor_rounds,
        )
    note = f"{WRITERS} writers of one node per commit; L is a single writer of ours"
    return [compare("arbor_group", "us/node", together, singly, Target("ratio", 0.2), note)]


def paths(effort: Effort) -> list[Figure]:
    """Measure the path from the deepest node to the root."""
    depth = effort.arbor_depth
    with scratch_folder() as folder, Ours(folder / "ours.db") as ours:
        deepest = ours.create_chain(depth)
        # A copy, because two SQLite libraries in one process must not open the same file.
        ours.backup(folder / "copy.db")
        with contextlib.closing(sqlite3.connect(folder / "copy.db")) as bare:
            mine, best = interleave(
                lambda: ours.climb(deepest, depth),
                lambda: _climb_bare(bare, deepest, depth),
                effort.arbor_rounds,
            )
    note = f"a node {depth:,} deep; L is the bare recursive query and its rows"
    return [compare("arbor_path", "ms", mine, best, Target("ratio", 3.0), note)]


def readers(effort: Effort) -> list[Figure]:
    """Measure a writer while readers walk a large tree, compared with the writer alone."""
    count = effort.arbor_commits
    with scratch_folder() as folder, Ours(folder / "ours.db") as ours:
        ours.create_large(effort.arbor_nodes)
        mixed, alone = interleave(
            lambda: ours.append_among_readers(count),
            lambda: ours.append_sequentially(count),
            effort.arbor_rounds,
        )
        slowest = percentile(ours.taken_among_readers, 99) * 1e3
    note = (
        f"one node per commit while {READERS} readers in the same process walk "
        f"{effort.arbor_nodes:,} nodes; L is the writer alone; p99 is {slowest:.1f} ms"
    )
    return [compare("arbor_readers", "us/commit", mixed, alone, Target("ratio", 2.0), note)]


class Ours:
    """The store on a file, with its own event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.taken_among_readers: list[float] = []

    def __enter__(self) -> Ours:
        self._store: Store = self._runner.run(open_store(str(self._path), purge_every_s=None))
        self._tree: Tree = self._runner.run(self._store.create_tree(PRINCIPAL, "bench"))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._store.close())
        self._runner.close()

    def append_sequentially(self, count: int) -> float:
        """Return microseconds per commit."""
        taken = self._runner.run(self._append(count))
        return sum(taken) / count * 1e6

    def append_concurrently(self, count: int) -> float:
        """Return microseconds per node."""
        each = max(1, count // WRITERS) * 4

        async def write() -> float:
            started = time.perf_counter()
            await asyncio.gather(*(self._append(each) for _ in range(WRITERS)))
            return time.perf_counter() - started

        return self._runner.run(write()) / (each * WRITERS) * 1e6

    def append_among_readers(self, count: int) -> float:
        """Return microseconds per commit."""

        async def write() -> list[float]:
            async with self._walking():
                return await self._append(count)

        taken = self._runner.run(write())
        self.taken_among_readers += taken
        return sum(taken) / count * 1e6

    def backup(self, path: Path) -> None:
        """Write a backup of the store."""
        self._runner.run(self._store.backup(path))

    def create_chain(self, depth: int) -> str:
        """Create a chain of nodes. Returns the id of the deepest."""
        parent: str | None = None
        for start in range(0, depth, APPEND_ITEMS):
            size = min(APPEND_ITEMS, depth - start)
            items = [NewNode(TEXT, parent=index - 1 if index else None) for index in range(size)]
            made = self._runner.run(self._store.append(PRINCIPAL, self._tree.id, parent, items))
            parent = made[-1].id
        assert parent is not None
        return parent

    def create_large(self, nodes: int) -> None:
        """Create many children of the root."""
        for start in range(0, nodes, APPEND_ITEMS):
            items = [NewNode(TEXT)] * min(APPEND_ITEMS, nodes - start)
            self._runner.run(self._store.append(PRINCIPAL, self._tree.id, None, items))

    def climb(self, node: str, depth: int) -> float:
        """Return the milliseconds of reading the path to the root."""
        started = time.perf_counter()
        found = self._runner.run(self._store.path(PRINCIPAL, self._tree.id, node))
        taken = time.perf_counter() - started
        assert len(found) == depth + 1
        return taken * 1e3

    async def _append(self, count: int) -> list[float]:
        """Append nodes. Returns the seconds of each commit."""
        store, tree = self._store, self._tree.id
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            await store.append(PRINCIPAL, tree, None, [NewNode(TEXT)])
            taken.append(time.perf_counter() - started)
        return taken

    @contextlib.asynccontextmanager
    async def _walking(self) -> AsyncIterator[None]:
        """Run readers that walk the tree repeatedly, page by page."""
        tasks = [asyncio.create_task(self._walk()) for _ in range(READERS)]
        await asyncio.sleep(0.05)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _walk(self) -> None:
        after: int | None = None
        while True:
            page = await self._store.walk(PRINCIPAL, self._tree.id, after, PAGE_ITEMS)
            after = page[-1].n if page else None


# --- bare ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def bare_store(path: Path) -> Iterator[sqlite3.Connection]:
    """Create the store's tables without the migration records, and a tree with a root."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for sql in statements(ARBOR, "sqlite", 0):
            # SQLite before 3.43 does not support this option; it only affects deletion.
            connection.execute(sql.replace(", contentless_delete=1", ""))
        connection.execute(
            "INSERT INTO trees (n, id, principal, owner, state, root, created_ms, updated_ms, seq)"
            " VALUES (1, ?, ?, ?, 'active', 2, 0, 0, 2)",
            (_id(), PRINCIPAL, "bench"),
        )
        connection.execute("INSERT INTO tree_refs (tree, owner, count) VALUES (1, 'bench', 1)")
        connection.execute(
            "INSERT INTO nodes (n, id, tree, position, content, created_ms)"
            " VALUES (2, ?, 1, 0, '', 0)",
            (_id(),),
        )
        connection.execute("UPDATE numbers SET value = 2")
        yield connection


def _id() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def append_bare(connection: sqlite3.Connection, count: int) -> float:
    """Return microseconds per commit."""
    execute = connection.execute
    started = time.perf_counter()
    for _ in range(count):
        now, node = time.time_ns() // 1_000_000, _id()
        execute("BEGIN IMMEDIATE")
        [(n,)] = execute("UPDATE numbers SET value = value + 1 RETURNING value").fetchall()
        execute(
            "INSERT INTO nodes (n, id, tree, parent, position, content, created_ms)"
            " VALUES (?, ?, 1, 2, ?, ?, ?)",
            (n, node, n << 20, TEXT, now),
        )
        execute(
            "INSERT INTO changes (seq, tree, kind, node, at_ms)"
            " VALUES (?, 1, 'node_created', ?, ?)",
            (n, node, now),
        )
        execute("UPDATE trees SET seq = ?, updated_ms = ? WHERE n = 1", (n, now))
        if (n + 1) % INDEX_EVERY == 0:
            execute(
                "INSERT INTO search (rowid, content) SELECT nodes.n, content FROM nodes, numbers"
                " WHERE nodes.n > indexed AND content <> ''"
            )
            execute("UPDATE numbers SET indexed = ?", (n,))
        execute("COMMIT")
    return (time.perf_counter() - started) / count * 1e6


def _climb_bare(connection: sqlite3.Connection, node: str, depth: int) -> float:
    """Return the milliseconds of reading the path to the root."""
    started = time.perf_counter()
    rows = connection.execute(UP, (node,)).fetchall()
    taken = time.perf_counter() - started
    assert len(rows) == depth + 1
    return taken * 1e3
