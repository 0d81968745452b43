"""Open connections: who holds how many, and which one is closed to make room for another.

Rules:
- A connection is anonymous until a request on it has passed the guard with a credential. From
  then on it is counted in its principal's share.
- When there are as many connections as there may be, a new one displaces the oldest anonymous one
  of the address that has the most of them. So anonymous connections keep no client out.
- A principal past its share is refused at the request that would add the connection to it.
  Others can never use the operator's reserve, so the operator can always connect.
"""

from __future__ import annotations

from typing import Protocol

from plexus.errors import Busy
from plexus.runtime.shares import FairCache, FairPool

__all__ = ("Client", "Displaceable", "OpenConnections")

#: The address and the port of a peer: no two open connections of a server share both.
Client = tuple[str, int]


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
        if not self._pool.take(name):
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
