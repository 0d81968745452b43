"""Tickets: what a page uses where a browser sends no header, which is opening a WebSocket or an
EventSource.

A ticket is part of an address, and addresses are logged by proxies and kept in histories. So it is
good once, for seconds, for opening a stream only, and it stands for the credential that asked for
it: when that ends, so does the ticket. They are in memory; a restart ends them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from starlette.types import Scope

from substrate.security.errors import TooMany
from substrate.security.tokens import digest_of, new_token
from substrate.server.limits import ServerLimits

__all__ = ("TICKET_PATHS", "Tickets", "is_ticket_path", "take_ticket", "takes_ticket")

#: The WebSocket routes that take a ticket, and the HTTP route, which does for GET only.
SOCKETS: Final = frozenset({"/rpc", "/mcp"})
EVENTS: Final = re.compile(r"/runs/[0-9]{1,20}/events")
#: As error messages name them.
TICKET_PATHS: Final = "/rpc, /mcp (WebSocket) and /runs/{run}/events"
PARAMETER: Final = b"ticket="

Holder = TypeVar("Holder")


class _Ticket(NamedTuple, Generic[Holder]):
    holder: Holder
    #: Who asked for it, for counting.
    identity: bytes
    #: The only path that it is good for; None for each that takes tickets.
    path: str | None
    expires_at: float


class Tickets(Generic[Holder]):
    """The tickets of one server that were not used yet, by digest, the oldest first."""

    def __init__(self, limits: ServerLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._tickets: dict[bytes, _Ticket[Holder]] = {}
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, holder: Holder, identity: bytes, path: str | None) -> str:
        """Return a new ticket. `identity` is the digest of the credential. Raises TooMany."""
        self._drop_expired()
        limits = self._limits
        if self._counts[identity] >= limits.tickets_per_credential:
            reason = "there are too many unused tickets of this credential"
            raise TooMany(reason, limits.tickets_per_credential)
        if len(self._tickets) >= limits.tickets:
            raise TooMany("there are too many unused tickets", limits.tickets)
        ticket = new_token()
        expires_at = self._clock() + limits.ticket_s
        self._tickets[digest_of(ticket)] = _Ticket(holder, identity, path, expires_at)
        self._counts[identity] += 1
        return ticket

    def redeem(self, ticket: str, path: str) -> Holder | None:
        """Return who asked for this ticket, if it is good for this path. It is used up then, and
        also if it is not."""
        # What is looked up is a digest: how long that takes says nothing about any ticket.
        found = self._remove(digest_of(ticket))
        if found is None or self._clock() >= found.expires_at:
            return None
        return found.holder if found.path in (None, path) else None

    def _drop_expired(self) -> None:
        """All live equally long, so those that are over are the first."""
        now = self._clock()
        while self._tickets:
            digest, ticket = next(iter(self._tickets.items()))
            if now < ticket.expires_at:
                return
            self._remove(digest)

    def _remove(self, digest: bytes) -> _Ticket[Holder] | None:
        found = self._tickets.pop(digest, None)
        if found is not None:
            self._counts[found.identity] -= 1
            if not self._counts[found.identity]:
                del self._counts[found.identity]
        return found


def is_ticket_path(path: str) -> bool:
    """Whether there is a route of this path that takes tickets."""
    return path in SOCKETS or EVENTS.fullmatch(path) is not None


def takes_ticket(scope: Scope) -> bool:
    """Whether this is a request that may come with a ticket: one that opens a stream."""
    path: str = scope["path"]
    if scope["type"] == "websocket":
        return path in SOCKETS
    return scope["method"] == "GET" and EVENTS.fullmatch(path) is not None


def take_ticket(scope: Scope) -> str | None:
    """Take the ticket out of the address of a request, so that it gets into no log; None if there
    is none. Of several, none counts: the result is empty."""
    query: bytes = scope.get("query_string", b"")
    if PARAMETER not in query:
        return None
    parts = query.split(b"&")
    tickets = [part for part in parts if part.startswith(PARAMETER)]
    scope["query_string"] = b"&".join(part for part in parts if part not in tickets)
    if not tickets:
        return None
    return tickets[0][len(PARAMETER) :].decode("latin-1") if len(tickets) == 1 else ""
