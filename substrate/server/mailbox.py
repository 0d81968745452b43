"""Messages between the servers of one database: rows, and the change signal of the database.

A server sends what another one has to act on: a message of a client about a request that is in
progress there, or the end of a session. Each server reads every message, in order and once, and
passes it to its listeners, which ignore what concerns others. A message is retained for a minute.
Numbers are consecutive, so a server that could not read the database for longer notices the gap,
and its listeners check what they hold. A server that must know what others
have sent before it acts waits for the next read.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from plexus.errors import Busy, Failed, PlexusError
from plexus.storage.engine import Engine, Row, Transaction

__all__ = ("NOW_MS", "Letter", "Listener", "Mailbox", "post")

logger = logging.getLogger(__name__)

#: The time of the database in milliseconds. The clocks of the servers may differ.
NOW_MS: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
#: How long a message is retained.
RETAINED_S: Final = 60.0
#: Limits of the retained messages of one principal.
MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 16 * 1024 * 1024
#: How many messages are read at a time.
PAGE: Final = 500
#: Seconds that a server waits for the database to know what others have sent: before it acts on
#: what it knows, and if it cannot act otherwise.
SYNC_S: Final = 1.0
NEEDED_SYNC_S: Final = 10.0
UNKNOWN: Final = "The database of the servers does not answer. Try again."
#: Delay before reading is tried again after an error, in seconds.
RETRY_S: Final = 1.0


class Letter(NamedTuple):
    """A message from another server."""

    #: The session that the message is about.
    recipient: str
    kind: str
    body: bytes


class Listener(Protocol):
    """A part of this server that acts on messages."""

    def on_letter(self, letter: Letter) -> None:
        """Handle a message of another server."""

    def on_gap(self) -> None:
        """Handle the loss of messages: check everything that another server may have changed."""


class Mailbox:
    """The messages that this server sends and receives."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Identifies this server in messages, and in the ids of its streams.
        self.name: Final = os.urandom(6).hex()
        self._listeners: list[Listener] = []
        self._last = 0
        self._unsubscribe: Callable[[], None] | None = None
        self._reading: asyncio.Task[None] | None = None
        #: Whether another message may have arrived since the last read began.
        self._changed = False
        #: What waits for the next read, and whether the database does not answer.
        self._waiters: list[asyncio.Future[None]] = []
        self._is_failing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start receiving messages that are sent from now on."""
        self._last = await self._engine.read(_last_id)
        self._unsubscribe = self._engine.subscribe(self._on_change)

    async def close(self) -> None:
        """Stop receiving, and finish what is being sent."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._reading is not None:
            self._reading.cancel()
        _resolve(self._waiters, UNKNOWN)
        pending = [*self._tasks, *([] if self._reading is None else [self._reading])]
        if pending:
            await asyncio.wait(pending)

    def listen(self, listener: Listener) -> None:
        """Pass every message of other servers to this listener."""
        self._listeners.append(listener)

    async def send(self, principal: str, letter: Letter) -> None:
        """Send a message about something of this principal to all other servers.

        Raises Busy if the principal has sent too many, and Failed.
        """
        sender = self.name

        def insert(tx: Transaction) -> None:
            row = tx.one(
                "SELECT count(*), coalesce(sum(length(body)), 0) FROM server_messages"
                " WHERE principal = ?",
                (principal,),
            )
            count, size = row or (0, 0)
            if count >= MAX_MESSAGES or size + len(letter.body) > MAX_BYTES:
                raise Busy("Too many messages for requests on other servers. Retry in a minute.")
            post(tx, sender, principal, letter)

        await self._engine.write(insert)

    async def sync(self, *, needed: bool = False) -> None:
        """Return when every message that was sent before has been passed on.

        Concurrent calls share a read. Raises Failed if the database does not answer soon; then the
        next calls that do not need it raise immediately, until it answers again.
        """
        if self._unsubscribe is None or (self._is_failing and not needed):
            raise Failed(UNKNOWN)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._on_change()
        try:
            async with asyncio.timeout(NEEDED_SYNC_S if needed else SYNC_S):
                await waiter
        except TimeoutError:
            self._is_failing = True
            raise Failed(UNKNOWN) from None

    def run_later(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work that no request waits for. An error of the database is logged."""
        task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except PlexusError as error:
            logger.warning("shared state cannot be written: %s", error.message)

    # --- receiving ----------------------------------------------------------------------------

    def _on_change(self) -> None:
        self._changed = True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_all())

    async def _read_all(self) -> None:
        """Read until nothing has changed since the last read began."""
        try:
            while self._changed:
                self._changed = False
                waiters, self._waiters = self._waiters, []
                try:
                    is_complete = await self._read_new()
                except PlexusError as error:
                    self._is_failing = True
                    self._waiters += waiters
                    logger.warning("messages of other servers cannot be read: %s", error.message)
                    await asyncio.sleep(RETRY_S)
                    self._changed = True
                    continue
                self._is_failing = False
                if is_complete:
                    _resolve(waiters)
                else:
                    self._waiters += waiters
                    self._changed = True
        finally:
            self._reading = None

    async def _read_new(self) -> bool:
        """Pass on what has arrived. Returns whether that is everything."""
        after = self._last
        newest, rows = await self._engine.read(lambda tx: _read_after(tx, after))
        # A newest number below ours means that the database was replaced by an earlier copy.
        if newest < after or (rows and rows[0][0] != after + 1):
            for listener in self._listeners:
                listener.on_gap()
        self._last = rows[-1][0] if rows else newest
        for _, sender, recipient, kind, body in rows:
            if sender != self.name:
                self._pass_on(Letter(recipient, kind, bytes(body)))
        return len(rows) < PAGE

    def _pass_on(self, letter: Letter) -> None:
        for listener in self._listeners:
            try:
                listener.on_letter(letter)
            except Exception:  # a defect of one listener must not keep messages from the others
                logger.exception("a message of another server could not be handled")


def _resolve(waiters: list[asyncio.Future[None]], failure: str | None = None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue  # it has waited too long
        if failure is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(Failed(failure))


def post(tx: Transaction, sender: str, principal: str, letter: Letter) -> None:
    """Insert a message. Numbers increase in commit order, because writers are serialized."""
    _drop_old(tx)
    tx.run(
        "INSERT INTO server_messages (id, sender, principal, recipient, kind, body, sent_ms)"
        f" VALUES (?, ?, ?, ?, ?, ?, {NOW_MS})",
        (_last_id(tx) + 1, sender, principal, *letter),
    )


def _read_after(tx: Transaction, after: int) -> tuple[int, list[Row]]:
    """Return the newest number, and the oldest messages after this one."""
    newest = _last_id(tx)
    return newest, [] if newest == after else _messages(tx, after)


def _messages(tx: Transaction, after: int) -> list[Row]:
    return tx.all(
        "SELECT id, sender, recipient, kind, body FROM server_messages WHERE id > ?"
        f" ORDER BY id LIMIT {PAGE}",
        (after,),
    )


def _last_id(tx: Transaction) -> int:
    row = tx.one("SELECT coalesce(max(id), 0) FROM server_messages")
    return int(row[0]) if row else 0


def _drop_old(tx: Transaction) -> None:
    # The newest message stays, so that its number is not given to another one.
    tx.run(
        f"DELETE FROM server_messages WHERE sent_ms < {NOW_MS} - {round(RETAINED_S * 1000)}"
        " AND id < (SELECT max(id) FROM server_messages)"
    )
