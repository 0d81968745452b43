"""What the methods share: the store, opened at its first use, and the size of answers.

A server whose client never uses trees touches no database: it imports no driver, creates no file
and starts no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from activations.arbor.events import NodeData, NodePage, node_data
from activations.arbor.feed import ChangePublisher, publish_changes
from activations.arbor.model import PAGE_BYTES, PAGE_ITEMS, Node, Retention, check_range
from activations.arbor.schema import ARBOR
from activations.arbor.store import Store, open_store
from plexus import Activation, Failed
from plexus.private_files import data_folder
from plexus.rpc import wire
from plexus.storage.engine import is_postgres, sqlite_path

__all__ = (
    "BATCH_NODES",
    "WRITE",
    "StoreActivation",
    "batches",
    "check_limit",
    "default_path",
    "may_have_more",
    "node_page",
)

#: The scope of every method that changes a tree.
WRITE = "arbor.write"

#: The nodes and characters of a batch: with six bytes for each character it still fits an event.
BATCH_NODES = 256
BATCH_CHARACTERS = 64_000
#: The characters of a page: it is one answer, which may be larger than an event.
PAGE_CHARACTERS = 1_000_000


def default_path() -> Path:
    """Return where the file is unless the operator chose another place."""
    return data_folder() / "arbor.db"


class StoreActivation(Activation):
    """An activation with a store that is opened at its first use."""

    def __init__(self, database: str = "", retention: Retention | None = None) -> None:
        """Set the database (default: a file in the user's data folder) and how long things are
        kept. Nothing is opened yet."""
        self._database = database
        self._retention = retention or Retention()
        self._opened: Store | None = None
        self._opening: asyncio.Lock | None = None
        self._publisher: ChangePublisher | None = None
        self._closed = False

    async def store(self) -> Store:
        """Return the store. The first call opens it; calls meanwhile wait for that."""
        if self._opened is not None:
            return self._opened
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._closed:
                raise Failed("the store is closed", code="storage")
            if self._opened is None:
                database = self._database or str(default_path())
                store = await open_store(database, self._retention)
                if hasattr(self, "plexus"):  # it is registered
                    self._publisher = await publish_changes(store, self.plexus)
                self._opened = store
            return self._opened

    def is_empty(self) -> bool:
        """Whether there is no file yet, and so no tree. Opens nothing."""
        if self._opened is not None or is_postgres(self._database):
            return False
        return not self.path().exists()

    def location(self) -> str:
        """Return where trees are stored, without credentials."""
        if is_postgres(self._database):
            _, _, where = self._database.partition("://")
            where = where.rpartition("@")[2].partition("?")[0]
            return f"postgresql {where}, schema {ARBOR.version}"
        return f"sqlite {self.path()}, schema {ARBOR.version}"

    def size(self) -> int | None:
        """Return the bytes of the file and its log, None if it is not open or on a server."""
        if self._opened is None or is_postgres(self._database):
            return None
        path = self.path()
        files = (path, path.with_name(path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def path(self) -> Path:
        """Return the file of a SQLite database."""
        return sqlite_path(self._database or str(default_path()))

    async def close(self) -> None:
        """Close the store. It is not opened again."""
        self._closed = True
        if self._opening is None:
            return
        async with self._opening:
            store, self._opened = self._opened, None
            if self._publisher is not None:
                await self._publisher.stop()
            if store is not None:
                await store.close()


# --- pages and batches ----------------------------------------------------------------------------


def check_limit(limit: int) -> int:
    """Return the limit. Raises InvalidParams if it is not from 1 to the size of a page."""
    return check_range("limit", limit, 1, PAGE_ITEMS)


def batches(nodes: Iterable[Node]) -> Iterator[list[NodeData]]:
    """Yield the nodes in lists that fit into an event."""
    batch: list[NodeData] = []
    size = 0
    for each in nodes:
        node = node_data(each)
        weight = _size(node)
        if batch and (len(batch) == BATCH_NODES or size + weight > BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(node)
        size += weight
    if batch:
        yield batch


def node_page(tree: str, nodes: Sequence[Node], limit: int) -> NodePage:
    """Return as many of the nodes as fit, and the cursor of the next page. One node more than the
    limit may be given."""
    page: list[NodeData] = []
    size = 0
    for each in nodes[:limit]:
        node = node_data(each)
        size += _size(node)
        if page and size > PAGE_CHARACTERS:
            break
        page.append(node)
    more = len(page) < len(nodes) or may_have_more(nodes, PAGE_ITEMS)
    return NodePage(tree, page, nodes[len(page) - 1].n if more else None)


def may_have_more(nodes: Sequence[Node], limit: int) -> bool:
    """Whether more may follow a page of the store: it was full, or ended early because it was
    large."""
    if len(nodes) < limit:
        return sum(len(node.content or "") for node in nodes) > PAGE_BYTES // 2
    return True


def _size(node: NodeData) -> int:
    weight = 0 if node.content is None else len(node.content)
    if node.metadata is not None:
        weight += len(wire.encode(node.metadata))
    if node.handle is not None:
        weight += 2 * len(node.handle.text)
    return weight
