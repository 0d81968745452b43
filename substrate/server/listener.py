"""Accepts connections while file descriptors are available, and limits them per principal.

The event loop's own server closes connections for which it has no descriptor, and may then stop
listening permanently. This listener pauses instead: clients wait in the system's backlog, open
connections continue, and a reserve of descriptors remains for files, pipes and databases.

Rules for open connections:
- A connection is anonymous until a request on it has passed the guard with a credential. From
  then on it counts toward its principal's share.
- At the limit, a new connection evicts the oldest anonymous one of the address that has the most.
  Anonymous connections therefore keep no client out.
- A principal that has used up its share is refused at the request that would exceed it. Others
  cannot use the operator's reserve, so the operator can always connect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from plexus.errors import Busy
from plexus.runtime.shares import FairCache, FairPool

__all__ = (
    "Client",
    "Evictable",
    "Listener",
    "OpenConnections",
)

logger = logging.getLogger("substrate.server.listener")

#: Maximum connections accepted before other tasks run.
ACCEPT_BURST = 64
#: Seconds between checks while accepting is paused.
PAUSE_S = 0.2
#: Descriptors reserved for files, pipes of commands and databases.
RESERVED_DESCRIPTORS = 64
#: The address and port of a peer, unique among the open connections of a server.
Client = tuple[str, int]


class Listener:
    """Accepts connections on one socket and starts a task for each."""

    def __init__(
        self, sock: socket.socket, open_client: Callable[[socket.socket], Coroutine[Any, Any, None]]
    ) -> None:
        """Listen on a socket. `open_client` owns the sockets that it is called with."""
        self._sock = sock
        self._open_client = open_client
        self._loop = asyncio.get_running_loop()
        self._open_tasks: set[asyncio.Task[None]] = set()
        self._resume_timer: asyncio.TimerHandle | None = None
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The system assigns the lowest free number, so a high number means that few are left.
        reserve = min(RESERVED_DESCRIPTORS, limit // 4)
        self._scarce_fd = sys.maxsize if limit == resource.RLIM_INFINITY else limit - reserve
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop accepting. The system refuses the clients in the backlog."""
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                client, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors or memory
                self._pause_accepting(error.strerror)
                return
            client.setblocking(False)
            task = self._loop.create_task(self._open_client(client))
            self._open_tasks.add(task)
            task.add_done_callback(self._open_tasks.discard)
            if client.fileno() >= self._scarce_fd:
                self._pause_accepting("file descriptors are scarce")
                return

    def _pause_accepting(self, why: str | None) -> None:
        logger.warning("accepting connections is paused: %s", why)
        self._loop.remove_reader(self._sock)
        self._resume_timer = self._loop.call_later(PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._are_descriptors_scarce():
            self._resume_timer = self._loop.call_later(PAUSE_S, self._resume_accepting)
            return
        self._resume_timer = None
        self._loop.add_reader(self._sock, self._accept)

    def _are_descriptors_scarce(self) -> bool:
        try:
            number = os.dup(self._sock.fileno())
        except OSError:
            return True
        os.close(number)
        return number >= self._scarce_fd


# --- open connections -------------------------------------------------------------------------


class Evictable(Protocol):
    """A connection that can be closed in favour of another."""

    def evict(self) -> None:
        """Close the connection."""


class OpenConnections:
    """The open connections of one server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pool = FairPool(
            "connections",
            limit,
            "open connections",
            "Close one, or send several calls over one connection.",
        )
        #: The name of the principal of each authenticated connection.
        self._principals: dict[Client, str] = {}
        #: Unauthenticated connections, grouped by address.
        self._anonymous: FairCache[Client, Evictable] = FairCache(limit, limit)

    def __len__(self) -> int:
        return len(self._principals) + len(self._anonymous.entries)

    @property
    def anonymous(self) -> int:
        """The number of unauthenticated connections."""
        return len(self._anonymous.entries)

    def open(self, client: Client, connection: Evictable) -> bool:
        """Count a new connection. Returns False if the limit is reached."""
        if len(self) >= self.limit and not self._anonymous.evict_one():
            return False
        self._anonymous.add(client, client[0], connection, 0, _evict)
        return True

    def identify(self, client: Client, name: str) -> Busy | None:
        """Assign a connection to a principal. Returns an error if its share is used up."""
        before = self._principals.get(client)
        if before == name:
            return None
        if before is None and client not in self._anonymous.entries:
            return None  # being closed
        if not self._pool.acquire(name):
            return self._pool.refusal(name)
        if before is None:
            self._anonymous.discard(client)
        else:  # a proxy sends requests of several clients over one connection
            self._pool.release(before)
        self._principals[client] = name
        return None

    def close(self, client: Client) -> None:
        """Stop counting a connection."""
        name = self._principals.pop(client, None)
        if name is None:
            self._anonymous.discard(client)
        else:
            self._pool.release(name)


def _evict(connection: Evictable) -> None:
    connection.evict()
