"""A process that uses a store, for tests of several processes: `arbor_worker.py MODE DATABASE ...`.

It prints a line for each acknowledged write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from activations.arbor.model import NewNode
from activations.arbor.store import Store, open_store
from plexus.errors import PlexusError

ME = "me"


def report(text: str) -> None:
    """Print a line in one write, so that it is complete even if the process is killed."""
    os.write(1, f"{text}\n".encode())


async def open_on_signal(database: str) -> None:
    """Open the database on a signal from the test, and create a tree."""
    report("ready")
    await asyncio.to_thread(sys.stdin.readline)
    store = await open_store(database)
    tree = await store.create_tree(ME, "owner")
    report(f"opened {tree.id}")
    await store.close()


async def write_and_watch(database: str, tree: str, count: str, expected: str) -> None:
    """Write nodes one by one, and watch the tree until `expected` nodes were seen."""
    store = await open_store(database)
    rung = asyncio.Event()
    store.subscribe(rung.set)
    report("ready")
    await asyncio.to_thread(sys.stdin.readline)
    own = {(await store.get_tree(ME, tree)).root}
    delays: list[float] = []
    seen: list[str] = []

    async def write() -> None:
        for number in range(int(count)):
            [node] = await store.append(ME, tree, None, [NewNode(f"{os.getpid()} {number}")])
            own.add(node.id)
            report(f"wrote {node.id}")
            await asyncio.sleep(random.uniform(0, 0.02))

    async def watch() -> None:
        after = 0
        while len(seen) < int(expected):
            rung.clear()
            while changes := await store.changes(ME, tree, after, 100):
                after = changes[-1].seq
                for change in changes:
                    if change.kind == "node_created" and change.node is not None:
                        seen.append(change.node)
                        if change.node not in own:
                            delays.append(time.time() * 1000 - change.at_ms)
            if len(seen) < int(expected):
                async with asyncio.timeout(30):
                    await rung.wait()

    await asyncio.gather(write(), watch())
    for node in seen:
        report(f"saw {node}")
    report(f"delays {statistics.median(delays):.0f} {max(delays):.0f}")
    await store.close()


async def churn(database: str, tree: str) -> None:
    """Perform all operations concurrently, without end."""
    store = await open_store(database)
    found = await store.get_tree(ME, tree)
    tasks = [append(store, tree, found.root) for _ in range(6)]
    await asyncio.gather(*tasks, shuffle(store, tree), claim(store, tree), trees(store))


async def append(store: Store, tree: str, root: str) -> None:
    known = [root]
    while True:
        items = [NewNode("text " * random.randrange(200)) for _ in range(random.randrange(1, 6))]
        items += [NewNode("below", parent=0)]
        made = await store.append(ME, tree, random.choice(known), items)
        for node in made:
            report(f"node {node.id}")
        known.append(made[0].id)


async def shuffle(store: Store, tree: str) -> None:
    """Edit, move and delete nodes that no other task uses."""
    while True:
        made = await store.append(ME, tree, None, [NewNode(str(n)) for n in range(4)])
        newer = await store.edit(ME, tree, made[0].id, "newer")
        with contextlib.suppress(PlexusError):
            await store.move(ME, tree, made[1].id, made[2].id, 0)
            await store.move(ME, tree, newer.id, made[1].id)
        await store.delete_node(ME, tree, random.choice(made).id)


async def claim(store: Store, tree: str) -> None:
    owner = f"worker {os.getpid()}"
    while True:
        await store.claim(ME, tree, owner, 2)
        report("claimed 2")
        await store.release(ME, tree, owner, 1)
        report("claimed -1")


async def trees(store: Store) -> None:
    while True:
        made = await store.create_tree(ME, "owner")
        report(f"node {made.root}")
        await store.release(ME, made.id, "owner")
        await asyncio.sleep(0.01)


MODES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "open": open_on_signal,
    "watch": write_and_watch,
    "churn": churn,
}

if __name__ == "__main__":
    asyncio.run(MODES[sys.argv[1]](*sys.argv[2:]))
