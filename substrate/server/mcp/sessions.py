"""Sessions over HTTP: what is open in each, what is kept for those who come back, and for how
long.

Rules:
- A session belongs to the credential that began it. For any other it does not exist, also for
  another token of the same principal. An OAuth login may come back with a refreshed token; one
  with more scopes takes the session over, and from then on one with fewer does not find it.
- A response whose client was cut off goes on. If nobody comes back for it in time, what it
  waits for is stopped, and whoever comes later is told so.
- Everything is bounded: the number of sessions, what a stream keeps, how many streams that have
  ended are kept, and all of it by time. Every principal has a share of the sessions and of what
  ended streams keep: only the principal that holds the most loses some to others.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

from mcp_view.protocol import McpConnection
from mcp_view.revisions import Revision
from mcp_view.session import Session
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.shares import FairCache, weight
from substrate.driver import Connection
from substrate.server.mcp.streams import EventLog, SessionEvents
from substrate.server.peers import Peer

__all__ = ("HttpSession", "Sessions")

#: How many sessions there may be. A client has one, and some hosts forget to end theirs.
MAX_SESSIONS: Final = 1024
#: How long a session lives without a request and without an open stream.
IDLE_S: Final = 3600.0
#: For how long, and how many in each session, streams are kept after their end: a client whose
#: connection broke with the last bytes on the way comes back for them.
ENDED_S: Final = 60.0
ENDED_STREAMS: Final = 64
#: How often is looked for what is too old.
TICK_S: Final = 5.0

GIVEN_UP = "the client was cut off and did not come back in time; the call was stopped"


class Sessions:
    """All sessions of one server."""

    def __init__(
        self,
        limits: Limits,
        max_sessions: int = MAX_SESSIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self._max = max_sessions
        self._sessions: dict[bytes, HttpSession] = {}
        #: Numbers of streams; no two sessions share one, so an id of another finds nothing.
        self._numbers = count(1)
        #: What streams that have ended keep, in all sessions together.
        self.ended: FairCache[int, EventLog] = FairCache(
            max_sessions * ENDED_STREAMS, limits.finished_bytes
        )
        self._ticking = False

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(self._sessions.values())

    def begin(self, state: Session, principal: Principal) -> HttpSession | None:
        """Begin a session; None if there are too many and none can be ended for it."""
        if len(self._sessions) >= self._max:
            idle = self._idle_for(principal)
            if idle is None:
                return None
            self.end(idle)
        session = HttpSession(self, os.urandom(16).hex().encode(), state, principal)
        self._sessions[session.id] = session
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return session

    def _idle_for(self, principal: Principal) -> HttpSession | None:
        """Return the session to end so that this principal gets one: the longest idle one of the
        principal that has the most, and never of one that has fewer than this one."""
        held = Counter(session.principal.name for session in self._sessions.values())
        held[principal.name] += 1
        weights = {name: weight(name, count, self._max) for name, count in held.items()}
        least = weights[principal.name]
        idle = [
            session
            for session in self._sessions.values()
            if not session.live and weights[session.principal.name] >= least
        ]
        return max(
            idle,
            key=lambda session: (weights[session.principal.name], -session.used_at),
            default=None,
        )

    def find(self, session_id: bytes, principal: Principal) -> HttpSession | None:
        """Return this session of this credential and mark it as used."""
        session = self._sessions.get(session_id)
        if session is None or not principal.covers(session.principal):
            return None
        session.principal = principal
        session.used_at = self.clock()
        return session

    def end(self, session: HttpSession) -> None:
        """End a session and whatever is under way in it."""
        del self._sessions[session.id]
        session.close()

    def credentials(self) -> set[bytes]:
        """The credentials that have a session."""
        found = {session.principal.credential for session in self._sessions.values()}
        return {credential for credential in found if credential is not None}

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """End the sessions of this credential, except those that these principals may go on with;
        what is open in them ends with an error."""
        for session in list(self._sessions.values()):
            owner = session.principal
            if owner.credential == credential and not any(each.covers(owner) for each in valid):
                del self._sessions[session.id]
                session.revoke(reason)

    def new_number(self) -> int:
        """The number of a new stream."""
        return next(self._numbers)

    def _tick(self) -> None:
        self.forget_old()
        self._ticking = bool(self._sessions)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def forget_old(self) -> None:
        """End the sessions, and drop the streams, whose time is over."""
        now = self.clock()
        for session in list(self._sessions.values()):
            session.forget_ended(now - ENDED_S)
            if session.live:
                session.used_at = now
            elif session.used_at < now - IDLE_S:
                self.end(session)


class HttpSession:
    """One session: its state, and its streams."""

    __slots__ = (
        "_ended",
        "_sessions",
        "_standing",
        "_streams",
        "id",
        "live",
        "principal",
        "state",
        "used_at",
    )

    def __init__(
        self, sessions: Sessions, session_id: bytes, state: Session, principal: Principal
    ) -> None:
        self._sessions = sessions
        self.id = session_id
        self.state = state
        state.outlives_connection = True
        self.principal = principal
        self.used_at = sessions.clock()
        #: The connections that are open, also those whose client was cut off.
        self.live: dict[Connection, McpConnection] = {}
        self._streams: dict[int, SessionEvents] = {}
        #: What is kept of streams that have ended, the oldest first.
        self._ended: dict[int, EventLog] = {}
        self._standing: SessionEvents | None = None

    @property
    def revision(self) -> Revision:
        """The revision that the handshake agreed on."""
        revision = self.state.revision
        assert revision is not None, "there is no session before a handshake"
        return revision

    def deliver(self, message: wire.Notification | wire.Response) -> None:
        """Give a message to every connection: those that it does not concern ignore it."""
        if isinstance(message, wire.Notification):
            if message.method == "notifications/initialized":
                self.state.initialized = True
                return
            if message.method != "notifications/cancelled":
                return
        for connection, view in list(self.live.items()):
            connection.receive(message)
            if view.idle:
                connection.wake()

    def close(self) -> None:
        """Stop everything that is under way here."""
        for stream in self._streams.values():
            if stream.peer is not None:
                stream.peer.dismiss()
        for connection in list(self.live):
            connection.lost()
            connection.wake()
        self._forget_everything()

    def revoke(self, reason: str) -> None:
        """Stop everything here and answer what is pending with an error: those who read streams
        write that, and end."""
        for connection in list(self.live):
            connection.revoke(reason)
        self._forget_everything()

    def _forget_everything(self) -> None:
        for stream in self._streams.values():
            if stream.timer is not None:
                stream.timer.cancel()
            stream.peer = None  # leaving it is of no concern to this session any more
        self._streams.clear()
        self.live.clear()
        self.state.close()
        self.forget_ended(float("inf"))

    # --- streams ------------------------------------------------------------------------------

    def open(
        self, connection: Connection, view: McpConnection, peer: Peer, *, standing: bool = False
    ) -> SessionEvents:
        """A new stream, read by this peer."""
        stream = SessionEvents(connection, view, self._new_log(), peer, standing=standing)
        self._streams[stream.log.number] = stream
        self.live[connection] = view
        return stream

    def open_standing(
        self, connection: Connection, view: McpConnection, peer: Peer
    ) -> SessionEvents:
        """The standing stream, in place of the one that there was."""
        before = self._standing
        if before is not None:
            if before.timer is not None:
                before.timer.cancel()
            if before.peer is not None:
                before.peer.dismiss()
                before.peer = None
            self._end_stream(before)
        self._standing = self.open(connection, view, peer, standing=True)
        return self._standing

    @property
    def is_listening(self) -> bool:
        """Whether somebody reads the standing stream."""
        return self._standing is not None and self._standing.peer is not None

    def find_stream(self, event_id: bytes) -> tuple[SessionEvents | EventLog, int] | None:
        """The stream that goes on after this event, or what is kept of it, and how much the
        client has seen; None if there is no more to come."""
        number, _, seen = event_id.partition(b":")
        if len(event_id) > 40 or not number.isdigit() or not seen.isdigit():
            return None
        stream = self._streams.get(int(number))
        if stream is not None:
            return stream, min(int(seen), stream.log.last)
        log = self._ended.get(int(number))
        return None if log is None or int(seen) >= log.last else (log, int(seen))

    def take_over(self, stream: SessionEvents, peer: Peer) -> None:
        """From now on this peer reads the stream, and no other does."""
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        if stream.peer is not None:
            stream.peer.dismiss()
        stream.peer = peer

    def leave(self, stream: SessionEvents, peer: Peer) -> None:
        """This peer reads no more: the stream is over, or waits for somebody to come back."""
        if stream.peer is not peer:
            return  # another reads it, or the session was closed
        stream.peer = None
        if stream.over or (stream.standing and stream is not self._standing):
            self._end_stream(stream)
        else:
            loop = asyncio.get_running_loop()
            stream.timer = loop.call_later(self._sessions.limits.orphan_s, self._give_up, stream)

    def _give_up(self, stream: SessionEvents) -> None:
        """Nobody came back."""
        connection = stream.connection
        while messages := connection.collect():
            stream.frame(messages)
        if not stream.view.idle:
            connection.lost()
            stream.frame([_given_up(stream.asked)])
        self._end_stream(stream)

    def _end_stream(self, stream: SessionEvents) -> None:
        del self._streams[stream.log.number]
        del self.live[stream.connection]
        if stream is self._standing:
            self._standing = None
        if stream.standing:
            stream.connection.lost()
        else:
            self._keep(stream.log)

    # --- what has ended -----------------------------------------------------------------------

    def whole(self, messages: list[bytes]) -> bytes:
        """All bytes of a stream that is over when it begins; it is kept like any other."""
        log = self._new_log()
        body = log.opening() + log.append(messages)
        self._keep(log)
        return body

    def _new_log(self) -> EventLog:
        return EventLog(self._sessions.new_number(), primes=self.revision.priming)

    def _keep(self, log: EventLog) -> None:
        log.ended_at = self._sessions.clock()
        self._ended[log.number] = log
        self._sessions.ended.add(
            log.number, self.principal.name, log, log.size, self._forget_evicted
        )
        if len(self._ended) > ENDED_STREAMS:
            self._forget_oldest()

    def _forget_evicted(self, log: EventLog) -> None:
        del self._ended[log.number]

    def forget_ended(self, before: float) -> None:
        """Drop what is kept of streams that ended before this time."""
        while self._ended and next(iter(self._ended.values())).ended_at < before:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        number = next(iter(self._ended))
        del self._ended[number]
        self._sessions.ended.discard(number)


def _given_up(asked: wire.Id | list[wire.Id]) -> bytes:
    if isinstance(asked, list):
        return wire.encode_batch(
            wire.encode_error(request, wire.INTERNAL_ERROR, GIVEN_UP) for request in asked
        )
    return wire.encode_error(asked, wire.INTERNAL_ERROR, GIVEN_UP)
