"""Sessions over HTTP: open streams, replay for clients that reconnect, and expiry.

Rules:
- A session belongs to the credential that created it and is invisible to all others, including
  another token of the same principal. An OAuth login may use a refreshed token. A token with more
  scopes takes the session over, after which a token with fewer scopes does not find it.
- A response continues after its client is disconnected. If the client does not reconnect in time,
  the call is cancelled, and a client that reconnects later gets an error.
- The number of sessions, the retained bytes of a stream, and the number and retention time of ended
  streams are limited. Every principal has a share of the sessions and of the retained bytes; above
  a limit, the principal that uses the most is evicted from first.
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
from mcp_view.session import Caller, Session
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.shares import FairCache, weight
from substrate.driver import Connection
from substrate.server.mcp.streams import EventLog, ResumePoint, SessionStream
from substrate.server.peers import Peer

__all__ = ("HttpSession", "Sessions")

#: Maximum number of sessions. A client has one, and some hosts do not end theirs.
MAX_SESSIONS: Final = 1024
#: How long a session lives without requests and open streams.
IDLE_TIMEOUT_S: Final = 3600.0
#: How long, and how many per session, ended streams are retained: a client whose connection broke
#: before the last bytes arrived reconnects for them.
ENDED_RETENTION_S: Final = 60.0
MAX_ENDED_STREAMS: Final = 64
#: The interval of evicting expired sessions and streams.
CLEANUP_INTERVAL_S: Final = 5.0

NOT_RESUMED = "The call was cancelled: its client was disconnected and did not reconnect in time."


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
        #: Stream numbers, unique over all sessions, so that event ids of another session are
        #: unknown.
        self._numbers = count(1)
        #: The logs of ended streams of all sessions.
        self.ended: FairCache[int, EventLog] = FairCache(
            max_sessions * MAX_ENDED_STREAMS, limits.finished_bytes
        )
        self._cleanup_scheduled = False

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(self._sessions.values())

    async def begin(self, state: Session, principal: Principal) -> HttpSession | None:
        """Create the session of a new client; None as for `create`."""
        return self.create(state, principal)

    async def lookup(
        self,
        session_id: bytes,
        principal: Principal,
        *,
        sets: bool = False,  # noqa: ARG002 - for subclasses
    ) -> HttpSession | None:
        """Return a session of this credential, wherever it is kept; None if it does not exist.

        `sets`: the client changes a setting of the session.
        """
        return self.find(session_id, principal)

    async def end(self, session: HttpSession) -> None:
        """End a session that its client no longer needs."""
        self.close(session)

    def create(
        self, state: Session, principal: Principal, session_id: bytes | None = None
    ) -> HttpSession | None:
        """Create a session; None if the limit is reached and no session can be evicted."""
        if len(self._sessions) >= self._max:
            idle = self._find_evictable(principal)
            if idle is None:
                return None
            self.close(idle)
        session = self._make(session_id or os.urandom(16).hex().encode(), state, principal)
        self._sessions[session.id] = session
        if not self._cleanup_scheduled:
            self._cleanup_scheduled = True
            asyncio.get_running_loop().call_later(CLEANUP_INTERVAL_S, self._cleanup)
        return session

    def _make(self, session_id: bytes, state: Session, principal: Principal) -> HttpSession:
        return HttpSession(self, session_id, state, principal)

    def _find_evictable(self, principal: Principal) -> HttpSession | None:
        """Return the session to evict for a new session of this principal; None if there is none.

        That is the session of the principal with the most sessions that has been idle longest. A
        principal with fewer sessions than this principal loses none.
        """
        held = Counter(session.principal.name for session in self._sessions.values())
        held[principal.name] += 1
        weights = {name: weight(name, count, self._max) for name, count in held.items()}
        least = weights[principal.name]
        idle = [
            session
            for session in self._sessions.values()
            if not session.connections and weights[session.principal.name] >= least
        ]
        return max(
            idle,
            key=lambda session: (weights[session.principal.name], -session.last_used),
            default=None,
        )

    def find(self, session_id: bytes, principal: Principal) -> HttpSession | None:
        """Return a session of this credential and mark it as used; None if it does not exist."""
        session = self._sessions.get(session_id)
        if session is None or not principal.covers(session.principal):
            return None
        session.principal = principal
        session.last_used = self.clock()
        return session

    def close(self, session: HttpSession) -> None:
        """Close a session and cancel its calls."""
        del self._sessions[session.id]
        session.close()

    def credentials(self) -> set[bytes]:
        """Return the credentials that have a session."""
        found = {session.principal.credential for session in self._sessions.values()}
        return {credential for credential in found if credential is not None}

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """Close the sessions of this credential, except those that a valid principal covers.

        Open requests in them are answered with an error.
        """
        for session in list(self._sessions.values()):
            owner = session.principal
            if owner.credential == credential and not any(each.covers(owner) for each in valid):
                del self._sessions[session.id]
                session.revoke(reason)

    def next_stream_number(self) -> int:
        """Return the number for a new stream."""
        return next(self._numbers)

    def _cleanup(self) -> None:
        self.evict_expired()
        self._cleanup_scheduled = bool(self._sessions)
        if self._cleanup_scheduled:
            asyncio.get_running_loop().call_later(CLEANUP_INTERVAL_S, self._cleanup)

    def evict_expired(self) -> None:
        """Close expired sessions and drop expired streams."""
        now = self.clock()
        for session in list(self._sessions.values()):
            session.drop_ended(now - ENDED_RETENTION_S)
            if session.connections:
                session.last_used = now
            elif session.last_used < now - IDLE_TIMEOUT_S:
                self.close(session)


class HttpSession:
    """One session: its state and its streams."""

    __slots__ = (
        "_ended",
        "_sessions",
        "_standalone",
        "_streams",
        "connections",
        "id",
        "last_used",
        "principal",
        "state",
    )

    def __init__(
        self, sessions: Sessions, session_id: bytes, state: Session, principal: Principal
    ) -> None:
        self._sessions = sessions
        self.id = session_id
        self.state = state
        state.outlives_connection = True
        self.principal = principal
        self.last_used = sessions.clock()
        #: Open connections, including those whose client is disconnected.
        self.connections: dict[Connection, McpConnection] = {}
        self._streams: dict[int, SessionStream] = {}
        #: The logs of ended streams, oldest first.
        self._ended: dict[int, EventLog] = {}
        self._standalone: SessionStream | None = None

    @property
    def caller(self) -> Caller:
        """The client, as it has identified itself."""
        caller = self.state.caller
        assert caller is not None, "a session is created by a handshake"
        return caller

    @property
    def revision(self) -> Revision:
        """The negotiated revision."""
        return self.caller.revision

    @property
    def needs_save(self) -> bool:
        """Whether the client has changed something that is not stored yet."""
        return False

    async def save(self) -> None:
        """Store what the client has changed, if sessions are stored."""

    async def deliver(self, message: wire.Notification | wire.Response) -> None:
        """Handle a message about the session or about one of its requests."""
        if isinstance(message, wire.Notification):
            if message.method == "notifications/initialized":
                self.state.initialized = True
                return
            if message.method != "notifications/cancelled":
                return
        if not self.deliver_here(message):
            await self.forward(message)

    def deliver_here(self, message: wire.Notification | wire.Response) -> bool:
        """Deliver a message to the connection of its request.

        False if there is none here, or if its client does not read it: then another server may
        have taken over the request.
        """
        for connection, view in list(self.connections.items()):
            if view.concerns(message):
                streams = self._streams.values()
                unread = any(s.connection is connection and s.peer is None for s in streams)
                connection.receive(message)
                if view.idle:
                    connection.wake()
                return not unread
        return False

    async def forward(self, message: wire.Notification | wire.Response) -> None:
        """Pass on a message about a request that is in progress elsewhere, if that can be."""

    def close(self) -> None:
        """Cancel everything in progress."""
        for stream in self._streams.values():
            if stream.peer is not None:
                stream.peer.dismiss()
        for connection in list(self.connections):
            connection.lost()
            connection.wake()
        self._clear()

    def revoke(self, reason: str) -> None:
        """Cancel everything in progress and answer pending requests with an error.

        The tasks that write the streams send the errors and end.
        """
        for connection in list(self.connections):
            connection.revoke(reason)
        self._clear()

    def _clear(self) -> None:
        for stream in self._streams.values():
            if stream.timer is not None:
                stream.timer.cancel()
            stream.peer = None  # detaching it no longer concerns this session
        self._streams.clear()
        self.connections.clear()
        self.state.close()
        self.drop_ended(float("inf"))

    # --- streams ------------------------------------------------------------------------------

    def open_stream(
        self, connection: Connection, view: McpConnection, peer: Peer, *, standalone: bool = False
    ) -> SessionStream:
        """Open a stream, read by this peer."""
        log = self._new_log(connection, view)
        stream = SessionStream(connection, view, log, peer, self, standalone=standalone)
        self._streams[stream.log.number] = stream
        self.connections[connection] = view
        return stream

    def open_standalone(
        self, connection: Connection, view: McpConnection, peer: Peer
    ) -> SessionStream:
        """Open the standalone stream, replacing the previous one."""
        before = self._standalone
        if before is not None:
            if before.timer is not None:
                before.timer.cancel()
            if before.peer is not None:
                before.peer.dismiss()
                before.peer = None
            self._end_stream(before)
        self._standalone = self.open_stream(connection, view, peer, standalone=True)
        return self._standalone

    @property
    def has_standalone_reader(self) -> bool:
        """Whether a client reads the standalone stream."""
        return self._standalone is not None and self._standalone.peer is not None

    def find_stream(self, event_id: bytes) -> tuple[SessionStream | EventLog, int] | None:
        """Return the open stream of an event, or the log of the ended one, and the last event seen.

        None if the stream is unknown or has no further events.
        """
        number, _, seen = event_id.partition(b":")
        if len(event_id) > 40 or not number.isdigit() or not seen.isdigit():
            return None
        stream = self._streams.get(int(number))
        if stream is not None:
            return stream, min(int(seen), stream.log.last)
        log = self._ended.get(int(number))
        return None if log is None or int(seen) >= log.last else (log, int(seen))

    def resume_point(self, event_id: bytes) -> ResumePoint | None:  # noqa: ARG002 - for subclasses
        """Return where to continue a stream that is not here; None if it cannot be continued."""
        return None

    async def take_over(self, point: ResumePoint) -> None:
        """Have the server that has a stream leave its run to this one."""

    def attach(self, stream: SessionStream, peer: Peer) -> None:
        """Make this peer the only reader of the stream."""
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        if stream.peer is not None:
            stream.peer.dismiss()
        stream.peer = peer

    def detach(self, stream: SessionStream, peer: Peer) -> None:
        """Handle a peer that stopped reading: end the stream, or wait for a reconnect."""
        if stream.peer is not peer:
            return  # another peer reads it, or the session was closed
        stream.peer = None
        if stream.over or (stream.standalone and stream is not self._standalone):
            self._end_stream(stream)
        else:
            loop = asyncio.get_running_loop()
            stream.timer = loop.call_later(
                self._sessions.limits.orphan_s, self._expire_stream, stream
            )

    def _expire_stream(self, stream: SessionStream) -> None:
        """Cancel the calls of a stream whose client has not reconnected in time."""
        connection = stream.connection
        while messages := connection.collect():
            stream.frame(messages)
        if not stream.view.idle:
            connection.lost()
            stream.frame([_not_resumed(stream.request_ids)])
        self._end_stream(stream)

    def _end_stream(self, stream: SessionStream) -> None:
        del self._streams[stream.log.number]
        del self.connections[stream.connection]
        if stream is self._standalone:
            self._standalone = None
        if stream.standalone:
            stream.connection.lost()
        else:
            self._keep(stream.log)

    # --- ended streams ------------------------------------------------------------------------

    def complete_stream(self, messages: list[bytes]) -> bytes:
        """Return all bytes of a stream that ends immediately. It is retained like any other."""
        log = self._new_log(None, None)
        body = log.opening() + log.append(messages)
        self._keep(log)
        return body

    def _new_log(
        self,
        connection: Connection | None,  # noqa: ARG002 - for subclasses
        view: McpConnection | None,  # noqa: ARG002 - for subclasses
    ) -> EventLog:
        return EventLog(self._sessions.next_stream_number(), primes=self.revision.priming)

    def _keep(self, log: EventLog) -> None:
        log.ended_at = self._sessions.clock()
        self._ended[log.number] = log
        self._sessions.ended.add(log.number, self.principal.name, log, log.size, self._on_evicted)
        if len(self._ended) > MAX_ENDED_STREAMS:
            self._drop_oldest()

    def _on_evicted(self, log: EventLog) -> None:
        del self._ended[log.number]

    def drop_ended(self, before: float) -> None:
        """Drop the logs of streams that ended before this time."""
        while self._ended and next(iter(self._ended.values())).ended_at < before:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        number = next(iter(self._ended))
        del self._ended[number]
        self._sessions.ended.discard(number)


def _not_resumed(asked: wire.Id | list[wire.Id]) -> bytes:
    if isinstance(asked, list):
        return wire.encode_batch(
            wire.encode_error(request, wire.INTERNAL_ERROR, NOT_RESUMED) for request in asked
        )
    return wire.encode_error(asked, wire.INTERNAL_ERROR, NOT_RESUMED)
