"""Blocking calls that must not delay the end of the process.

The threads of an executor are joined when the process ends. A call that waits for a database which
does not respond would keep the process alive long after its caller has given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

__all__ = ("run_in_daemon_thread",)


async def run_in_daemon_thread(work: Callable[[], None], name: str) -> None:
    """Run a blocking function. It is abandoned if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised to the caller
            failure = error
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    await done
