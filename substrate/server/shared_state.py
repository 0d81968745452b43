"""State that all servers of one PostgreSQL database share, so that any of them answers a client.

It consists of the secret that signs request states, the sessions and legacy streams of MCP clients,
the tickets of web pages, and the mailbox through which servers pass messages to each other. A
server on SQLite is the only one of its address and keeps all of this in memory.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from mcp_view.server import McpServer
from plexus.storage.engine import Component, Engine, Migration, Transaction, open_engine
from substrate.security.ticket_rows import TicketRows
from substrate.server.limits import ServerLimits
from substrate.server.mailbox import Mailbox
from substrate.server.mcp.session_rows import SessionRows
from substrate.server.mcp.shared_sessions import SharedSessions
from substrate.server.mcp.shared_sse import SharedSseStreams

__all__ = ("COMPONENT", "SharedState", "open_shared_state")

SECRET_BYTES: Final = 32
#: The name of the secret that signs request states.
REQUEST_STATE: Final = "request_state"

COMPONENT: Final = Component(
    "server_state",
    (
        Migration(
            both=(
                """CREATE TABLE server_secrets (
                    name {name} PRIMARY KEY,
                    secret {bytes} NOT NULL
                )""",
                """CREATE TABLE mcp_sessions (
                    id {name} PRIMARY KEY,
                    principal {name} NOT NULL,
                    scopes TEXT,
                    credential {bytes},
                    revision {name} NOT NULL,
                    client {bytes} NOT NULL,
                    tools TEXT,
                    level INTEGER NOT NULL,
                    initialized INTEGER NOT NULL,
                    created_ms BIGINT NOT NULL,
                    used_ms BIGINT NOT NULL
                )""",
                "CREATE INDEX mcp_sessions_by_principal ON mcp_sessions (principal, used_ms)",
                """CREATE TABLE mcp_subscriptions (
                    session {name} NOT NULL REFERENCES mcp_sessions (id) ON DELETE CASCADE,
                    uri {bytes} NOT NULL,
                    PRIMARY KEY (session, uri)
                )""",
                """CREATE TABLE server_messages (
                    id {key},
                    sender {name} NOT NULL,
                    principal {name} NOT NULL,
                    recipient {name} NOT NULL,
                    kind {name} NOT NULL,
                    body {bytes} NOT NULL,
                    sent_ms BIGINT NOT NULL
                )""",
                "CREATE INDEX server_messages_by_principal ON server_messages (principal)",
                """CREATE TABLE stream_tickets (
                    digest {bytes} PRIMARY KEY,
                    identity {bytes} NOT NULL,
                    path {name},
                    holder {bytes} NOT NULL,
                    expires_ms BIGINT NOT NULL
                )""",
                "CREATE INDEX stream_tickets_by_identity ON stream_tickets (identity)",
            )
        ),
        Migration(
            both=(
                """CREATE TABLE sse_streams (
                    id {name} PRIMARY KEY,
                    principal {name} NOT NULL,
                    scopes TEXT,
                    credential {bytes},
                    used_ms BIGINT NOT NULL
                )""",
            )
        ),
    ),
)


class SharedState:
    """The shared state, open for one server."""

    def __init__(self, engine: Engine, secret: bytes, limits: ServerLimits) -> None:
        self._engine = engine
        #: Signs request states. Never logged.
        self.secret: Final = secret
        self.mailbox: Final = Mailbox(engine)
        self.sessions: Final = SessionRows(engine)
        self.sse_streams: Final = SharedSseStreams(engine, self.mailbox)
        self.tickets: Final = TicketRows(engine, limits)

    def open_sessions(self, server: McpServer) -> SharedSessions:
        """Return the sessions, as the clients of this MCP server use them."""
        return SharedSessions(server.hub.limits, server, self.sessions, self.mailbox)

    async def close(self) -> None:
        """Close the database. What other servers use stays there."""
        await self.mailbox.close()
        await self._engine.close()


async def open_shared_state(database: str, limits: ServerLimits) -> SharedState:
    """Open the shared state of a PostgreSQL database. Raises Failed."""
    engine = await open_engine(database, COMPONENT)
    async with contextlib.AsyncExitStack() as on_failure:
        on_failure.push_async_callback(engine.close)
        secret = await engine.read(_find_secret)
        if secret is None:
            secret = await engine.write(_make_secret)
        state = SharedState(engine, secret, limits)
        await state.mailbox.open()
        on_failure.pop_all()
    return state


def _find_secret(tx: Transaction) -> bytes | None:
    row = tx.one("SELECT secret FROM server_secrets WHERE name = ?", (REQUEST_STATE,))
    return None if row is None else bytes(row[0])


def _make_secret(tx: Transaction) -> bytes:
    """Return the secret, created by the first server of the database."""
    found = _find_secret(tx)  # writers are serialized: another server may have created it
    if found is not None:
        return found
    secret = os.urandom(SECRET_BYTES)
    tx.run("INSERT INTO server_secrets (name, secret) VALUES (?, ?)", (REQUEST_STATE, secret))
    return secret
