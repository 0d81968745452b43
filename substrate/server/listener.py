"""Taking connections from a listening socket, as long as there are descriptors for them.

The event loop's own server closes whatever it has no descriptor for, and can stop listening for
good over it. Here accepting pauses instead: clients wait in the system's queue, what is open goes
on, and some descriptors are always left for the work itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable

__all__ = ("Listener",)

logger = logging.getLogger("substrate.server.listener")

#: How many connections are taken before other work gets its turn.
BURST = 64
#: How long accepting pauses before it looks again.
PAUSE_S = 0.2
#: Descriptors that are left to the work itself: files, pipes of commands, databases.
SPARE = 64


class Listener:
    """Accepts on one socket and gives every connection a protocol of its own."""

    def __init__(
        self, sock: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._sock = sock
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The system always gives out the lowest number, so a high one means that few are left.
        self._scarce_from = (
            sys.maxsize if most == resource.RLIM_INFINITY else most - min(SPARE, most // 4)
        )
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept no more; whoever waits in the queue is refused by the system."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(BURST):
            try:
                client, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors, or no memory for one more
                self._rest(error.strerror)
                return
            client.setblocking(False)
            task = self._loop.create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            if client.fileno() >= self._scarce_from:
                self._rest("few descriptors are left")
                return

    async def _open(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, client)
        except OSError:  # it is gone already
            client.close()

    def _rest(self, why: str | None) -> None:
        logger.warning("new connections wait: %s", why)
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if self._is_scarce():
            self._pause = self._loop.call_later(PAUSE_S, self._go_on)
            return
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _is_scarce(self) -> bool:
        try:
            number = os.dup(self._sock.fileno())
        except OSError:
            return True
        os.close(number)
        return number >= self._scarce_from
