"""A process that works on tasks: `python task_worker.py ROLE DATABASE`.

work  claims and closes tasks until none is open, and prints the id of each before and after it
hold  claims one task, prints its id, and waits to be killed
"""

from __future__ import annotations

import asyncio
import os
import sys

from activations.tasks.model import Caller, Filter
from activations.tasks.store import Store, open_store

__all__ = ("CALLER", "PROJECT")

PROJECT = "/project"
CALLER = Caller("worker", f"worker {os.getpid()}", "connection", "1")
#: Seconds between attempts while other workers hold the last tasks.
PAUSE_S = 0.05


def say(word: str, task: str) -> None:
    sys.stdout.write(f"{word} {task}\n")
    sys.stdout.flush()


async def work(store: Store) -> None:
    while True:
        task = await store.next_task(CALLER, Filter(PROJECT), claim=True)
        if task is not None:
            say("claimed", task["id"])
            await store.close_task(CALLER, task["id"])
            say("closed", task["id"])
            continue
        counts = await store.counts(CALLER.principal, PROJECT)
        if not counts["pending"] and not counts["in_progress"]:
            return
        await asyncio.sleep(PAUSE_S)


async def hold(store: Store) -> None:
    task = await store.next_task(CALLER, Filter(PROJECT), claim=True)
    assert task is not None
    say("claimed", task["id"])
    await asyncio.Event().wait()


async def main(role: str, database: str) -> None:
    store = await open_store(database)
    try:
        await (work(store) if role == "work" else hold(store))
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
