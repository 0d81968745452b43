"""Blocking calls that must not delay the end of the process.

The threads of an executor are joined when the process ends. A call that waits for a database which
does not respond would keep the process alive long after its caller has given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ("run_in_daemon_thread",)

T = TypeVar("T")


async def run_in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Run a blocking function and return its result. It is abandoned if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not done.done():
            set_outcome()

    def run() -> None:
        set_outcome: Callable[[], None]
        try:
            set_outcome = partial(done.set_result, work())
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            set_outcome = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits
            loop.call_soon_threadsafe(settle, set_outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
