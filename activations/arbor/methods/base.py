"""Shared by the methods: the store, which is opened at first use, and the size of results.

A server whose clients never use trees touches no database: it imports no driver, creates no file
and starts no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from activations.arbor.events import NodeData, NodePage, node_data
from activations.arbor.feed import ChangePublisher, publish_changes
from activations.arbor.model import PAGE_BYTES, PAGE_ITEMS, Node, Retention
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
    "default_path",
    "may_have_more",
    "node_page",
)

#: The scope of every method that changes a tree.
WRITE = "arbor.write"

#: Maximum number of nodes and characters in a batch. It fits into an event even with six bytes for
#: each character.
BATCH_NODES = 256
BATCH_CHARACTERS = 64_000
#: Maximum number of characters on a page. A page is one result, which may be larger than an event.
PAGE_CHARACTERS = 1_000_000


def default_path() -> Path:
    """Return the default path of the database file."""
    return data_folder() / "arbor.db"


class StoreActivation(Activation):
    """An activation with a store that is opened at first use."""

    def __init__(self, database: str = "", retention: Retention | None = None) -> None:
        """Set the database (default: a file in the user's data folder) and the retention.

        Does not open the database.
        """
        self._database = database
        self._retention = retention or Retention()
        self._opened: Store | None = None
        self._opening: asyncio.Lock | None = None
        self._publisher: ChangePublisher | None = None
        self._closed = False

    async def store(self) -> Store:
        """Return the store. The first call opens it; concurrent calls wait. Raises Failed."""
        if self._opened is not None:
            return self._opened
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._closed:
                raise Failed("The store is closed.", code="storage")
            if self._opened is None:
                database = self._database or str(default_path())
                store = await open_store(database, self._retention)
                if hasattr(self, "plexus"):  # only if registered
                    self._publisher = await publish_changes(store, self.plexus)
                self._opened = store
            return self._opened

    def is_empty(self) -> bool:
        """Return whether there is no database file yet, and so no tree. Opens nothing."""
        if self._opened is not None or is_postgres(self._database):
            return False
        return not self.path().exists()

    def location(self) -> str:
        """Return the location of the database, without credentials."""
        if is_postgres(self._database):
            _, _, where = self._database.partition("://")
            where = where.rpartition("@")[2].partition("?")[0]
            return f"postgresql {where}, schema {ARBOR.version}"
        return f"sqlite {self.path()}, schema {ARBOR.version}"

    def size(self) -> int | None:
        """Return the size of the file and its log in bytes, None if not open or on a server."""
        if self._opened is None or is_postgres(self._database):
            return None
        path = self.path()
        files = (path, path.with_name(path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def path(self) -> Path:
        """Return the path of the SQLite file."""
        return sqlite_path(self._database or str(default_path()))

    async def close(self) -> None:
        """Close the store permanently."""
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


def batches(nodes: Iterable[Node]) -> Iterator[list[NodeData]]:
    """Yield the nodes in batches that fit into an event."""
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
    """Return a page of as many nodes as fit, with the cursor of the next page.

    `nodes` may contain one node more than the limit, which shows that there is a next page.
    """
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
    """Return whether more nodes may follow a page of the store.

    True if the page was full, or large enough to have ended early.
    """
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
