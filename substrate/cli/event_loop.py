"""Event loops of commands, which Ctrl-C ends at any time without a traceback.

An event loop that is created in part cannot be closed, and Python prints a traceback for it. A
runner that is interrupted while it starts raises CancelledError instead of KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ("open_runner", "run_async", "run_on")

T = TypeVar("T")


def open_runner() -> asyncio.Runner:
    """Return a runner with an event loop."""
    runner = asyncio.Runner()
    try:
        with _interrupts_deferred():
            runner.get_loop()
    except BaseException:
        runner.close()
        raise
    return runner


def run_on(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. Raises KeyboardInterrupt for Ctrl-C."""
    try:
        return runner.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        work.close()  # nothing, unless it was not started


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a command on its own event loop. Raises KeyboardInterrupt for Ctrl-C."""
    try:
        with open_runner() as runner:
            return run_on(runner, work)
    finally:
        work.close()


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # another thread is never interrupted, and the default or ignoring has no effect here
        return
    pressed: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(*pressed[0])
