"""Streams of the legacy SSE transport as rows of a database that several servers share.

The server of a stream has its connection. Another server to which a client posts a message finds
the row of the stream, and passes the message on to the server of the stream, which answers on the
stream. The row is deleted when the stream ends, and does not count any more when its server has not
renewed it for some time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from plexus.errors import Failed
from plexus.principal import Principal
from plexus.storage.engine import Engine, Transaction
from substrate.server.mailbox import NOW_MS, Letter, Mailbox

__all__ = ("SharedSseStreams",)

logger = logging.getLogger(__name__)

#: The kind of a message to another server: a message that a client has posted.
POSTED: Final = "posted"
#: Seconds between two renewals of the rows, and milliseconds that a row is valid.
RENEW_S: Final = 60.0
VALID_MS: Final = 180_000
#: Maximum length of the id of a stream.
ID_CHARS: Final = 64


class SharedSseStreams:
    """The streams of one of several servers, and the messages for those of the others."""

    def __init__(self, engine: Engine, mailbox: Mailbox) -> None:
        self._engine = engine
        self._mailbox = mailbox
        #: The streams of this server.
        self._own: set[str] = set()
        self._on_message: Callable[[bytes, bytes], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def on_message(self, listener: Callable[[bytes, bytes], None]) -> None:
        """Call this with a stream of this server and a message that was posted elsewhere."""
        self._on_message = listener
        self._mailbox.listen(self)

    async def add(self, name: bytes, principal: Principal) -> None:
        """Store a stream that begins. Raises Failed."""
        stream = name.decode()
        scopes = None if principal.scopes is None else " ".join(sorted(principal.scopes))

        def insert(tx: Transaction) -> None:
            tx.run(f"DELETE FROM sse_streams WHERE used_ms <= {NOW_MS} - ?", (VALID_MS,))
            tx.run(
                "INSERT INTO sse_streams (id, principal, scopes, credential, used_ms)"
                f" VALUES (?, ?, ?, ?, {NOW_MS})",
                (stream, principal.name, scopes, principal.credential),
            )

        await self._engine.write(insert)
        self._own.add(stream)
        if self._timer is None:
            self._renew_later()

    def remove(self, name: bytes) -> None:
        """Delete a stream that has ended."""
        stream = name.decode()
        self._own.discard(stream)
        self._mailbox.run_later(
            self._engine.write(lambda tx: tx.run("DELETE FROM sse_streams WHERE id = ?", (stream,)))
        )
        if not self._own and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def sync(self) -> None:
        """Handle what was posted elsewhere before, unless the database does not answer."""
        with contextlib.suppress(Failed):
            await self._mailbox.sync()

    async def pass_on(self, name: bytes, principal: Principal, message: bytes) -> bool:
        """Pass a message on to the server of a stream. Raises Busy and Failed.

        Returns False if the stream does not exist or this principal may not post to it.
        """
        if len(name) > ID_CHARS or not name.isalnum():
            return False
        stream = name.decode()
        owner = await self._engine.read(lambda tx: _find(tx, stream))
        if owner is None or not principal.covers(owner):
            return False
        await self._mailbox.send(principal.name, Letter(stream, POSTED, message))
        return True

    # --- messages of other servers ------------------------------------------------------------

    def on_letter(self, letter: Letter) -> None:
        """Handle a message that a client has posted to another server."""
        if letter.kind == POSTED and letter.recipient in self._own and self._on_message is not None:
            self._on_message(letter.recipient.encode(), letter.body)

    def on_gap(self) -> None:
        """Report that posted messages may be lost: their clients wait for answers."""
        if self._own:
            logger.warning("messages for streams of GET /sse may be lost")

    # --- renewal ------------------------------------------------------------------------------

    def _renew_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        own = list(self._own)
        self._mailbox.run_later(self._engine.write(lambda tx: _touch(tx, own)))
        self._renew_later()


def _find(tx: Transaction, stream: str) -> Principal | None:
    """Return the principal that has opened a stream; None if there is no such stream."""
    row = tx.one(
        "SELECT principal, scopes, credential FROM sse_streams"
        f" WHERE id = ? AND used_ms > {NOW_MS} - ?",
        (stream, VALID_MS),
    )
    if row is None:
        return None
    name, scopes, credential = row
    allowed = None if scopes is None else frozenset(scopes.split())
    return Principal(name, allowed, None if credential is None else bytes(credential))


def _touch(tx: Transaction, streams: Sequence[str]) -> None:
    tx.many(
        f"UPDATE sse_streams SET used_ms = {NOW_MS} WHERE id = ?", [(each,) for each in streams]
    )
