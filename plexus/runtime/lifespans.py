"""Lifespans of activations: what they open before their first call and close after their last.

Each lifespan lives in a separate task, which enters and leaves the context manager: a task group
or a timeout inside it works, because both must be left in the task that entered them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Final

from plexus.registry.activation_tree import Node

__all__ = ("Lifespan", "Lifespans", "close_activations")

logger = logging.getLogger("plexus.runtime.lifespans")

#: How long an activation may take to start, and to stop, in seconds.
START_S: Final = 30.0
STOP_S: Final = 10.0


class Lifespans:
    """The lifespans of the activations of one hub."""

    def __init__(self) -> None:
        self._started: dict[int, Lifespan] = {}
        #: Contexts of the program that are entered with the next start, by their names.
        self._added: dict[str, Callable[[], AbstractAsyncContextManager[object]]] = {}

    def add(self, name: str, make: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """Enter a context with the next start, and leave it with the others."""
        self._added[name] = make

    async def start(self, nodes: Iterable[Node]) -> list[tuple[str, str]]:
        """Start those that have not been started. Returns the failures with their reasons."""
        failed = []
        for node in [each for each in nodes if "lifespan" in each.hooks]:
            activation = node.activation
            if id(activation) in self._started:
                continue
            try:
                manager = activation.lifespan()
                if manager is None:
                    continue
                lifespan = Lifespan(node.path, manager)
                await lifespan.start()
            # An author's code may raise anything; the others start all the same.
            except Exception as error:
                logger.exception("%s did not start", node.path)
                reason = f"it did not start: {type(error).__name__}: {error}".rstrip(": ")
                failed.append((node.path, reason))
            else:
                self._started[id(activation)] = lifespan
        while self._added:
            name, make = self._added.popitem()
            lifespan = Lifespan(name, make())
            await lifespan.start()
            self._started[id(lifespan)] = lifespan
        return failed

    async def stop(self) -> None:
        """Stop all of them, the last started first."""
        while self._started:
            _, lifespan = self._started.popitem()
            await lifespan.stop()


async def close_activations(nodes: Iterable[Node]) -> None:
    """Run the close hooks of activations. An error is logged."""
    # The same object may have been registered again, and is closed once.
    for node in {id(node.activation): node for node in nodes}.values():
        try:
            await node.activation.close()
        except Exception:
            logger.exception("%s did not close cleanly", node.path)


class Lifespan:
    """The lifespan of one activation: started once, stopped once."""

    def __init__(self, path: str, manager: AbstractAsyncContextManager[object]) -> None:
        self._path = path
        self._manager = manager
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._live(), name=f"lifespan of {path}")

    async def start(self) -> None:
        """Wait until the activation has started.

        Raises the exception of its lifespan, or TimeoutError after `START_S` seconds.
        """
        try:
            async with asyncio.timeout(START_S):
                await asyncio.shield(self._started)
        except TimeoutError:
            self._task.cancel()
            raise TimeoutError(f"it did not start within {START_S:g} s") from None

    async def stop(self) -> None:
        """Leave the context manager, and wait for its cleanup. An error is logged."""
        self._stop.set()
        done, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not done:
            logger.error("%s did not stop within %g s", self._path, STOP_S)
            self._task.cancel()
        elif self._started.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                logger.error("%s did not stop cleanly", self._path, exc_info=error)

    async def _live(self) -> None:
        try:
            async with self._manager:
                self._started.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if self._started.done():
                raise
            # The caller of `start` gets it; only a cancellation also ends this task as such.
            self._started.set_exception(
                TimeoutError("it was cancelled")
                if isinstance(error, asyncio.CancelledError)
                else error
            )
            self._started.exception()
            if isinstance(error, asyncio.CancelledError):
                raise
