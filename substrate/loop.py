"""Ending the event loop of a hub, also when a method will not end."""

from __future__ import annotations

import asyncio

from plexus.runtime.hub import Plexus

__all__ = ("close_runner",)


def close_runner(runner: asyncio.Runner, hub: Plexus) -> None:
    """Close the loop that a hub ran on.

    A method that ignores being cancelled was given up by the hub, but closing the loop would
    wait for it for ever. It is left to end with this process, and nobody needs to hear of it a
    second time.
    """
    if all(task.done() for task in hub.pump.tasks):
        runner.close()
    else:
        runner.get_loop().set_exception_handler(lambda _loop, _context: None)
