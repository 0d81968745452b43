"""Accepting connections: as long as there are descriptors, and within each principal's share.

The event loop's own server closes whatever it has no descriptor for, and can stop listening for
good over it. Here accepting pauses instead: clients wait in the system's queue, what is open goes
on, and some descriptors are always left for the work itself.

Rules for open connections:
- A connection is anonymous until a request on it has passed the guard with a credential. From
  then on it is counted in its principal's share.
- When there are as many connections as there may be, a new one displaces the oldest anonymous one
  of the address that has the most of them. So anonymous connections keep no client out.
- A principal past its share is refused at the request that would add the connection to it.
  Others can never use the operator's reserve, so the operator can always connect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Protocol

from plexus.errors import Busy
from plexus.runtime.shares import FairCache, FairPool

__all__ = (
    "Client",
    "Displaceable",
    "Listener",
    "OpenConnections",
)

logger = logging.getLogger("substrate.server.listener")

#: How many connections are taken before other work gets its turn.
BURST = 64
#: How long accepting pauses before it looks again.
PAUSE_S = 0.2
#: Descriptors that are left to the work itself: files, pipes of commands, databases.
SPARE = 64
#: The address and the port of a peer: no two open connections of a server share both.
Client = tuple[str, int]


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


# --- open connections -------------------------------------------------------------------------


class Displaceable(Protocol):
    """A connection that can be closed for another."""

    def displace(self) -> None:
        """Close it now."""


class OpenConnections:
    """The connections of one server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pool = FairPool(
            "connections",
            limit,
            "open connections",
            "Close one, or make several calls on one connection.",
        )
        #: By connection, the name of the principal in whose share it is.
        self._principals: dict[Client, str] = {}
        #: The others, by the address that they come from.
        self._anonymous: FairCache[Client, Displaceable] = FairCache(limit, limit)

    def __len__(self) -> int:
        return len(self._principals) + len(self._anonymous.entries)

    @property
    def anonymous(self) -> int:
        """How many connections belong to no principal."""
        return len(self._anonymous.entries)

    def open(self, client: Client, connection: Displaceable) -> bool:
        """Count a new connection; False if there is no room for it."""
        if len(self) >= self.limit and not self._anonymous.evict_one():
            return False
        self._anonymous.add(client, client[0], connection, 0, _displace)
        return True

    def identify(self, client: Client, name: str) -> Busy | None:
        """Count this connection in the share of this principal; the error if that is used up."""
        before = self._principals.get(client)
        if before == name:
            return None
        if before is None and client not in self._anonymous.entries:
            return None  # it is being closed
        if not self._pool.acquire(name):
            return self._pool.refusal(name)
        if before is None:
            self._anonymous.discard(client)
        else:  # a proxy uses one connection for several clients
            self._pool.release(before)
        self._principals[client] = name
        return None

    def close(self, client: Client) -> None:
        """Count this connection no more."""
        name = self._principals.pop(client, None)
        if name is None:
            self._anonymous.discard(client)
        else:
            self._pool.release(name)


def _displace(connection: Displaceable) -> None:
    connection.displace()
