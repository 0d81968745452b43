"""Sessions that every server of one database can answer, whichever created them.

Rules:
- The row is the session; what a server holds in memory is a copy, with the streams that it serves.
  A session that is not in memory is restored from its row. A copy is removed when another server
  ends the session, and refreshed when another server changes it. Before a copy is used, the
  messages of the other servers are read, so that a setting that was acknowledged holds everywhere.
- A message about a request that another server handles is passed on to it: a cancellation, or a
  response to a request of the server.
- The id of an event names the run and the last item that the client has received. With it, any
  server continues the stream of a tool call by reading the run.
- A copy that is evicted leaves its row, which expires when it is not used. When a credential is
  revoked, the rows of its sessions are deleted too, except those of an OAuth login: another server
  may know a newer token of it. Only the credential that created a session finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from mcp_view.protocol import McpConnection
from mcp_view.server import McpServer
from mcp_view.session import Session
from plexus.errors import Busy, Failed, PlexusError
from plexus.limits import Limits
from plexus.principal import Principal
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.security.tokens import CredentialKind, kind_of
from substrate.server.mailbox import Letter, Mailbox
from substrate.server.mcp.session_rows import CHANGED, ENDED, SessionRow, SessionRows, Settings
from substrate.server.mcp.sessions import HttpSession, Sessions
from substrate.server.mcp.shared_streams import SharedEventLog, parse_event_id
from substrate.server.mcp.streams import EventLog, ResumePoint, SessionStream

__all__ = ("SharedSession", "SharedSessions")

#: Messages to the other servers: a message of the client, and a stream that another server serves.
MESSAGE: Final = "message"
TAKEN: Final = "taken"
#: The time of use is stored at most this often.
TOUCH_INTERVAL_S: Final = 60.0
#: Maximum length of a session id.
ID_CHARS: Final = 64


class SharedSessions(Sessions):
    """The sessions of one of several servers."""

    def __init__(
        self, limits: Limits, server: McpServer, rows: SessionRows, mailbox: Mailbox
    ) -> None:
        super().__init__(limits)
        self.server = server
        self.rows = rows
        self.mailbox = mailbox
        #: Rows that are being read, and the sessions that ended or changed meanwhile.
        self._loading = 0
        self._ended_ids: set[bytes] = set()
        self._changed_ids: set[bytes] = set()
        mailbox.listen(self)

    async def begin(self, state: Session, principal: Principal) -> HttpSession | None:
        """Create a session and store it. Raises InvalidParams, Busy and Failed."""
        row = SessionRow.of(state, principal)
        session = self.create(state, principal)
        if session is None:
            return None
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._drop, session)
            await self.rows.create(session.id.decode(), row, self.mailbox.name)
            on_failure.pop_all()
        return session

    async def lookup(
        self, session_id: bytes, principal: Principal, *, sets: bool = False
    ) -> HttpSession | None:
        """Return a session from memory or from its row. Raises Busy and Failed.

        If the database does not answer, a copy that may be out of date serves requests that change
        no setting.
        """
        if session_id in self._sessions:
            try:
                await self._bring_up_to_date(session_id, needed=sets)
            except Failed:
                if sets:
                    raise
        if session_id not in self._sessions:
            if len(session_id) > ID_CHARS or not session_id.isalnum():
                return None
            await self._restore(session_id, principal)
        return self.find(session_id, principal)

    async def end(self, session: HttpSession) -> None:
        """End a session on all servers. Raises Failed."""
        await self.rows.delete(session.id.decode(), session.principal.name, self.mailbox.name)
        self._drop(session)

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """Close the sessions of this credential, and delete their rows if it can never return.

        No other server is informed: each closes its own copies with the reason.
        """
        super().revoke(credential, valid, reason)
        if kind_of(credential) not in (None, CredentialKind.LOGIN):
            self.mailbox.run_later(self.rows.delete_all(credential))

    async def _bring_up_to_date(self, session_id: bytes, *, needed: bool) -> None:
        """Apply to a copy what other servers have stored before. Raises Failed."""
        await self.mailbox.sync(needed=needed)
        session = self._sessions.get(session_id)
        if isinstance(session, SharedSession):
            await self._refresh([session])

    def _make(self, session_id: bytes, state: Session, principal: Principal) -> HttpSession:
        return SharedSession(self, session_id, state, principal)

    def _drop(self, session: HttpSession) -> None:
        """Close a copy, unless that has happened already."""
        if self._sessions.get(session.id) is session:
            self.close(session)

    async def _restore(self, session_id: bytes, principal: Principal) -> None:
        """Restore a session of this credential from its row, if it exists."""
        self._loading += 1
        try:
            row = await self.rows.load(session_id.decode())
        finally:
            self._loading -= 1
            has_ended = session_id in self._ended_ids
            has_changed = session_id in self._changed_ids
            if not self._loading:
                self._ended_ids.clear()
                self._changed_ids.clear()
        if row is None or has_ended or not principal.covers(row.principal):
            return
        if session_id in self._sessions:
            return  # another request has restored it meanwhile
        state = row.restore(self.server)
        if state is None:
            return
        session = self.create(state, row.principal, session_id)
        if session is None:
            raise Busy("All MCP sessions available on this server are in use. Try again later.")
        if has_changed and isinstance(session, SharedSession):
            session.is_stale = True
            await self._refresh([session])

    def evict_expired(self) -> None:
        """Drop expired copies and streams, and store which sessions are in use."""
        super().evict_expired()
        due = [each for each in self if isinstance(each, SharedSession) and each.is_touch_due()]
        if due:
            ids = [each.id.decode() for each in due]
            self.mailbox.run_later(self.rows.touch(ids))

    # --- messages of other servers ------------------------------------------------------------

    def on_letter(self, letter: Letter) -> None:
        """Handle a message of another server."""
        session_id = letter.recipient.encode()
        if letter.kind == ENDED and self._loading:
            self._ended_ids.add(session_id)
        elif letter.kind == CHANGED and self._loading:
            self._changed_ids.add(session_id)
        session = self._sessions.get(session_id)
        if not isinstance(session, SharedSession):
            return
        if letter.kind == ENDED:
            self._drop(session)
        elif letter.kind == CHANGED:
            session.is_stale = True
            self.mailbox.run_later(self._refresh([session]))
        elif letter.kind == MESSAGE:
            message = wire.decode(letter.body, self.limits)
            if isinstance(message, wire.Notification | wire.Response):
                session.deliver_here(message)
        elif letter.kind == TAKEN:
            server, _, number = letter.body.decode().partition(".")
            if server == self.mailbox.name:
                session.hand_over(int(number))

    def on_gap(self) -> None:
        """Check all sessions, because messages were lost."""
        copies = [each for each in self if isinstance(each, SharedSession)]
        for each in copies:
            each.is_stale = True
        self.mailbox.run_later(self._refresh(copies))

    async def _refresh(self, sessions: Iterable[SharedSession]) -> None:
        for session in sessions:
            if not await session.refresh():
                self._drop(session)


class SharedSession(HttpSession):
    """The copy of a session in one server."""

    __slots__ = ("_saving", "_shared", "_stored", "_touched_at", "is_stale")

    def __init__(
        self, sessions: SharedSessions, session_id: bytes, state: Session, principal: Principal
    ) -> None:
        super().__init__(sessions, session_id, state, principal)
        state.shared = True
        self._shared = sessions
        self._stored = Settings.of(state, principal)
        self._saving = asyncio.Lock()
        #: Whether another server has changed the row since it was read.
        self.is_stale = False
        self._touched_at = self.last_used

    def is_touch_due(self) -> bool:
        """Return whether the session was used since its time of use was stored, and note it."""
        now = self._shared.clock()
        used = bool(self.connections) or self.last_used > self._touched_at
        if not used or now - self._touched_at < TOUCH_INTERVAL_S:
            return False
        self._touched_at = now
        return True

    # --- the row ------------------------------------------------------------------------------

    @property
    def needs_save(self) -> bool:
        """Whether the client has changed something that is not stored yet."""
        return Settings.of(self.state, self.principal) != self._stored

    async def save(self) -> None:
        """Store what the client has changed. Raises Failed."""
        async with self._saving:
            await self._save()

    async def _save(self) -> None:
        before, after = self._stored, Settings.of(self.state, self.principal)
        if before != after:
            shared = self._shared
            name, sender = self.principal.name, shared.mailbox.name
            await shared.rows.save(self.id.decode(), name, before, after, sender)
            self._stored = after

    async def refresh(self) -> bool:
        """Take over what other servers have stored, if there is any.

        Waits for a refresh in progress. Returns False if the session has ended.
        """
        async with self._saving:
            while self.is_stale:
                await self._save()
                self.is_stale = False
                try:
                    row = await self._shared.rows.load(self.id.decode())
                except PlexusError:
                    self.is_stale = True
                    raise
                if row is None:
                    return False
                if self.needs_save:  # the client has changed something meanwhile
                    self.is_stale = True
                    continue
                row.settings.apply(self.state, self._shared.server, row.principal)
                self.principal = row.principal
                self._stored = Settings.of(self.state, self.principal)
            return True

    # --- requests of other servers ------------------------------------------------------------

    async def forward(self, message: wire.Notification | wire.Response) -> None:
        """Pass a message on to the server that handles its request. Raises Busy and Failed."""
        body: dict[str, object] = {"jsonrpc": "2.0"}
        if isinstance(message, wire.Notification):
            body |= {"method": message.method, "params": message.params}
        elif message.error is None:
            body |= {"id": message.id, "result": message.result}
        else:
            body |= {"id": message.id, "error": message.error}
        await self._send(MESSAGE, wire.encode(body))

    async def take_over(self, point: ResumePoint) -> None:
        """Have the server that has a stream leave its run to this one. Raises Busy and Failed."""
        await self._send(TAKEN, f"{point.server}.{point.stream}".encode())

    async def _send(self, kind: str, body: bytes) -> None:
        letter = Letter(self.id.decode(), kind, body)
        await self._shared.mailbox.send(self.principal.name, letter)

    def hand_over(self, number: int) -> None:
        """Leave a stream to another server, which continues it."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        if stream.timer is not None:
            stream.timer.cancel()
        if stream.peer is not None:
            stream.peer.dismiss()
            stream.peer = None
        connection = stream.connection
        del self.connections[connection]
        connection.perform(stream.view.hand_over())
        connection.lost()

    # --- streams ------------------------------------------------------------------------------

    def find_stream(self, event_id: bytes) -> tuple[SessionStream | EventLog, int] | None:
        """Return a stream of this server, as the base class does."""
        parsed = parse_event_id(event_id, self._shared.limits)
        if parsed is None or parsed.server != self._shared.mailbox.name:
            return None
        return super().find_stream(b"%d:%d" % (parsed.stream, parsed.number))

    def resume_point(self, event_id: bytes) -> ResumePoint | None:
        """Return where to continue the stream of another server; None if that is impossible."""
        parsed = parse_event_id(event_id, self._shared.limits)
        return None if parsed is None else parsed.point

    def _new_log(self, connection: Connection | None, view: McpConnection | None) -> EventLog:
        return SharedEventLog(
            self._shared.next_stream_number(),
            primes=self.revision.priming,
            server=self._shared.mailbox.name,
            connection=connection,
            call=None if view is None else view.movable_call(),
        )
