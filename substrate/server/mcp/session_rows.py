"""Sessions of MCP clients as rows of a database that several servers share.

A row holds what a handshake has negotiated and what the client has set since. Every server of the
database can rebuild the session from it. The rows of one principal are limited, and a row that was
not used for an hour is deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_view.revisions import REVISIONS
from mcp_view.server import McpServer
from mcp_view.session import Caller, ResourceSubscriptions, Session
from mcp_view.tool_sets import ToolSet
from plexus.errors import Busy, InvalidParams
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.storage.engine import Engine, Row, Transaction
from substrate.server.mailbox import NOW_MS, Letter, post

__all__ = ("CHANGED", "ENDED", "SessionRow", "SessionRows", "Settings")

#: How long a session lives without requests and open streams.
IDLE_TIMEOUT_MS: Final = 3_600_000
#: Maximum sessions of one principal. Above it, a new one ends the one that was idle longest.
MAX_SESSIONS: Final = 1024
#: Maximum size of what a client declares about itself.
CLIENT_BYTES: Final = 64 * 1024
#: Messages to the other servers: the settings of a session have changed, or it has ended.
CHANGED: Final = "changed"
ENDED: Final = "ended"

COLUMNS: Final = "principal, scopes, credential, revision, client, tools, level, initialized"


class Settings(NamedTuple):
    """What a client can change after the handshake."""

    scopes: str | None
    level: int
    initialized: bool
    subscriptions: frozenset[str]

    @classmethod
    def of(cls, state: Session, principal: Principal) -> Settings:
        """Return the settings of a session."""
        caller = state.caller
        assert caller is not None, "a session is created by a handshake"
        subscribed = frozenset() if state.subscribed is None else state.subscribed.uris
        return cls(_scopes_text(principal), caller.level, state.initialized, subscribed)

    def apply(self, state: Session, server: McpServer, principal: Principal) -> None:
        """Change a session to these settings.

        A subscription above the share of the principal on this server is left out.
        """
        caller, subscribed = state.caller, state.subscribed
        assert caller is not None, "a session is created by a handshake"
        caller.level = self.level
        state.initialized = self.initialized
        if subscribed is None and self.subscriptions:
            subscribed = state.subscribed = ResourceSubscriptions(server, principal)
        if subscribed is not None:
            for uri in subscribed.uris - self.subscriptions:
                subscribed.discard(uri)
            for uri in self.subscriptions - subscribed.uris:
                with contextlib.suppress(Busy):
                    subscribed.add(uri)


class SessionRow(NamedTuple):
    """One session as it is stored."""

    principal: Principal
    revision: str
    #: The capabilities and the name of the client, as JSON.
    client: bytes
    #: The chosen tools; None for the choice of the server.
    tools: str | None
    settings: Settings

    @classmethod
    def of(cls, state: Session, principal: Principal) -> SessionRow:
        """Return the row of a session. Raises InvalidParams if its client declares too much."""
        caller = state.caller
        assert caller is not None, "a session is created by a handshake"
        about = {"capabilities": caller.capabilities, "clientInfo": state.client_info}
        client = wire.encode(about)
        if len(client) > CLIENT_BYTES:
            raise InvalidParams(
                f"capabilities and clientInfo have {len(client)} bytes. The maximum is "
                f"{CLIENT_BYTES}.",
                data={"limit": CLIENT_BYTES},
            )
        tools = None if state.tools is None else state.tools.key
        return cls(principal, caller.revision.name, client, tools, Settings.of(state, principal))

    def restore(self, server: McpServer) -> Session | None:
        """Return the state of the session; None if this server does not know its revision."""
        revision = REVISIONS.get(self.revision)
        if revision is None:
            return None
        about = wire.decode_trusted(self.client)
        state = Session(None if self.tools is None else ToolSet.parse(self.tools))
        state.caller = Caller(revision, about["capabilities"], self.settings.level)
        state.client_info = about["clientInfo"]
        # The server that answered the first long call has named the page.
        state.names_page = False
        self.settings.apply(state, server, self.principal)
        return state


class SessionRows:
    """The sessions of all servers of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(self, session_id: str, row: SessionRow, sender: str) -> None:
        """Store a new session. Above the limit of its principal, another one ends."""

        def insert(tx: Transaction) -> None:
            _drop_expired(tx)
            _make_room(tx, row.principal.name, sender)
            owner, settings = row.principal, row.settings
            tx.run(
                f"INSERT INTO mcp_sessions (id, {COLUMNS}, created_ms, used_ms)"
                f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, {NOW_MS}, {NOW_MS})",
                (
                    session_id,
                    owner.name,
                    settings.scopes,
                    owner.credential,
                    row.revision,
                    row.client,
                    row.tools,
                    settings.level,
                    int(settings.initialized),
                ),
            )

        await self._engine.write(insert)

    async def load(self, session_id: str) -> SessionRow | None:
        """Return a session; None if it does not exist or has expired."""
        return await self._engine.read(lambda tx: _load(tx, session_id))

    async def load_all(self, session_ids: Sequence[str]) -> dict[str, SessionRow]:
        """Return those of these sessions that exist."""

        def select(tx: Transaction) -> dict[str, SessionRow]:
            found = {each: _load(tx, each) for each in session_ids}
            return {each: row for each, row in found.items() if row is not None}

        return await self._engine.read(select)

    async def save(
        self, session_id: str, name: str, before: Settings, after: Settings, sender: str
    ) -> None:
        """Store what has changed, unless the session has ended, and inform the other servers.

        Only the difference is stored: another server may have changed other settings meanwhile.
        """
        changed = {
            "scopes": (before.scopes, after.scopes),
            "level": (before.level, after.level),
            "initialized": (int(before.initialized), int(after.initialized)),
        }
        values = {column: new for column, (old, new) in changed.items() if old != new}
        columns = "".join(f"{column} = ?, " for column in values)

        def update(tx: Transaction) -> None:
            found = tx.run(
                f"UPDATE mcp_sessions SET {columns}used_ms = {NOW_MS} WHERE id = ?",
                (*values.values(), session_id),
            )
            if not found:
                return
            for uri in before.subscriptions - after.subscriptions:
                tx.run(
                    "DELETE FROM mcp_subscriptions WHERE session = ? AND uri = ?",
                    (session_id, uri.encode()),
                )
            for uri in after.subscriptions - before.subscriptions:
                tx.run(
                    "INSERT INTO mcp_subscriptions (session, uri) VALUES (?, ?)"
                    " ON CONFLICT DO NOTHING",
                    (session_id, uri.encode()),
                )
            post(tx, sender, name, Letter(session_id, CHANGED, b""))

        await self._engine.write(update)

    async def touch(self, session_ids: Sequence[str]) -> None:
        """Record that these sessions are in use, and delete those that have expired."""

        def update(tx: Transaction) -> None:
            _drop_expired(tx)
            tx.many(
                f"UPDATE mcp_sessions SET used_ms = {NOW_MS} WHERE id = ?",
                [(each,) for each in session_ids],
            )

        await self._engine.write(update)

    async def delete(self, session_id: str, name: str, sender: str) -> None:
        """End a session on all servers."""

        def remove(tx: Transaction) -> None:
            if tx.run("DELETE FROM mcp_sessions WHERE id = ?", (session_id,)):
                post(tx, sender, name, Letter(session_id, ENDED, b""))

        await self._engine.write(remove)

    async def delete_all(self, credential: bytes) -> None:
        """Delete the sessions of a credential that is no longer valid."""

        def remove(tx: Transaction) -> None:
            tx.run("DELETE FROM mcp_sessions WHERE credential = ?", (credential,))

        await self._engine.write(remove)


def _load(tx: Transaction, session_id: str) -> SessionRow | None:
    row = tx.one(
        f"SELECT {COLUMNS} FROM mcp_sessions WHERE id = ? AND used_ms > {NOW_MS} - ?",
        (session_id, IDLE_TIMEOUT_MS),
    )
    if row is None:
        return None
    uris = tx.all("SELECT uri FROM mcp_subscriptions WHERE session = ?", (session_id,))
    return _row(row, frozenset(bytes(uri).decode() for (uri,) in uris))


def _row(row: Row, subscriptions: frozenset[str]) -> SessionRow:
    name, scopes, credential, revision, client, tools, level, initialized = row
    allowed = None if scopes is None else frozenset(scopes.split())
    owner = Principal(name, allowed, None if credential is None else bytes(credential))
    settings = Settings(scopes, level, bool(initialized), subscriptions)
    return SessionRow(owner, revision, bytes(client), tools, settings)


def _scopes_text(principal: Principal) -> str | None:
    return None if principal.scopes is None else " ".join(sorted(principal.scopes))


def _drop_expired(tx: Transaction) -> None:
    tx.run(f"DELETE FROM mcp_sessions WHERE used_ms <= {NOW_MS} - ?", (IDLE_TIMEOUT_MS,))


def _make_room(tx: Transaction, name: str, sender: str) -> None:
    """End the sessions of a principal that were idle longest, down to one below the limit."""
    surplus = tx.all(
        "SELECT id FROM mcp_sessions WHERE principal = ? ORDER BY used_ms DESC, id"
        f" OFFSET {MAX_SESSIONS - 1}",
        (name,),
    )
    for (session_id,) in surplus:
        tx.run("DELETE FROM mcp_sessions WHERE id = ?", (session_id,))
        post(tx, sender, name, Letter(session_id, ENDED, b""))
