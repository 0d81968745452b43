"""Tickets: one-time credentials for browser requests that cannot carry a header.

These are the requests that open a WebSocket or an EventSource. A ticket is part of a URL, and URLs
are logged by proxies and kept in histories. So a ticket is valid once, for seconds, only for
opening a stream, and it stands for the credential that requested it: when that expires, so does the
ticket. Tickets are in memory, and a restart invalidates them. Servers that share a PostgreSQL
database store them there (`substrate.security.ticket_rows`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from starlette.types import Scope

from substrate.security.errors import TooMany
from substrate.security.tokens import digest_of, new_token
from substrate.server.limits import ServerLimits

__all__ = (
    "TICKET_PATHS",
    "TicketStore",
    "Tickets",
    "accepts_ticket",
    "is_ticket_path",
    "pop_ticket",
)

#: The WebSocket routes that accept a ticket, and the HTTP route, which does for GET only.
SOCKETS: Final = frozenset({"/rpc", "/mcp"})
EVENTS: Final = re.compile(r"/runs/[0-9]{1,20}/events")
#: The same in error messages.
TICKET_PATHS: Final = "/rpc, /mcp (WebSocket) and /runs/{run}/events"
PARAMETER: Final = b"ticket="

Holder = TypeVar("Holder")


class TicketStore(Protocol[Holder]):
    """The place where unused tickets are kept."""

    async def issue(self, holder: Holder, identity: bytes, path: str | None) -> str:
        """Return a new ticket. `identity` is the digest of the credential. Raises TooMany."""

    async def redeem(self, ticket: str, path: str) -> Holder | None:
        """Return the holder of this ticket if it is valid for this path.

        Uses the ticket up either way.
        """


class _Ticket(NamedTuple, Generic[Holder]):
    holder: Holder
    #: The credential that requested it, for counting.
    identity: bytes
    #: The only path that it is valid for; None for every path that accepts tickets.
    path: str | None
    expires_at: float


class Tickets(Generic[Holder]):
    """Unused tickets of one server, by digest, the oldest first."""

    def __init__(self, limits: ServerLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._tickets: dict[bytes, _Ticket[Holder]] = {}
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._tickets)

    async def issue(self, holder: Holder, identity: bytes, path: str | None) -> str:
        """Return a new ticket. `identity` is the digest of the credential. Raises TooMany."""
        self._drop_expired()
        limits = self._limits
        if self._counts[identity] >= limits.tickets_per_credential:
            reason = "this credential has too many unused tickets"
            raise TooMany(reason, limits.tickets_per_credential)
        if len(self._tickets) >= limits.tickets:
            raise TooMany("the server has too many unused tickets", limits.tickets)
        ticket = new_token()
        expires_at = self._clock() + limits.ticket_s
        self._tickets[digest_of(ticket)] = _Ticket(holder, identity, path, expires_at)
        self._counts[identity] += 1
        return ticket

    async def redeem(self, ticket: str, path: str) -> Holder | None:
        """Return the holder of this ticket if it is valid for this path.

        Uses the ticket up either way.
        """
        # The lookup is by digest, so its timing reveals nothing about any ticket.
        found = self._remove(digest_of(ticket))
        if found is None or self._clock() >= found.expires_at:
            return None
        return found.holder if found.path in (None, path) else None

    def _drop_expired(self) -> None:
        """Remove expired tickets. All have the same lifetime, so the oldest come first."""
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
    """Return whether a route of this path accepts tickets."""
    return path in SOCKETS or EVENTS.fullmatch(path) is not None


def accepts_ticket(scope: Scope) -> bool:
    """Return whether this request may carry a ticket: it opens a stream."""
    path: str = scope["path"]
    if scope["type"] == "websocket":
        return path in SOCKETS
    return scope["method"] == "GET" and EVENTS.fullmatch(path) is not None


def pop_ticket(scope: Scope) -> str | None:
    """Remove the ticket from the URL of a request, so that it is never logged, and return it.

    None without a ticket. Several tickets are ambiguous: the result is empty.
    """
    query: bytes = scope.get("query_string", b"")
    if PARAMETER not in query:
        return None
    parts = query.split(b"&")
    tickets = [part for part in parts if part.startswith(PARAMETER)]
    scope["query_string"] = b"&".join(part for part in parts if part not in tickets)
    if not tickets:
        return None
    return tickets[0][len(PARAMETER) :].decode("latin-1") if len(tickets) == 1 else ""
