"""A process that uses a store: `python arbor_process.py ROLE DATABASE TREE [COUNT]`.

write  adds COUNT nodes, or nodes without end, and prints the id of each acknowledged node
watch  prints `ready`, and then the node of each change of the tree, until it is killed
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from activations.arbor.model import NewNode
from activations.arbor.store import Store, open_store

__all__ = ("main",)

PRINCIPAL = "arbor process"


async def write(store: Store, tree: str, count: int | None) -> None:
    # A leaf and a branch in one write, so that a partial write makes the tree inconsistent.
    parent: str | None = None
    for _ in itertools.repeat(None) if count is None else range(count):
        items = [NewNode("branch"), NewNode("leaf", parent=0)]
        branch, leaf = await store.append(PRINCIPAL, tree, parent, items)
        sys.stdout.write(f"{branch.id}\n{leaf.id}\n")
        sys.stdout.flush()
        parent = branch.id


async def watch(store: Store, tree: str) -> None:
    rung = asyncio.Event()
    store.subscribe(rung.set)
    after = (await store.get_tree(PRINCIPAL, tree)).seq
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        rung.clear()
        rows = await store.changes(PRINCIPAL, tree, after, 100)
        for row in rows:
            sys.stdout.write(f"{row.node}\n")
            after = row.seq
        sys.stdout.flush()
        if not rows:
            await rung.wait()


async def main(role: str, database: str, tree: str, count: str | None = None) -> None:
    store = await open_store(database, purge_every_s=None)
    try:
        if role == "write":
            await write(store, tree, None if count is None else int(count))
        else:
            await watch(store, tree)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
