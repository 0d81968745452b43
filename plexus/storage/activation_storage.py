"""Durable storage for activations: key-value pairs, and a separate database for SQL.

Every activation has, for every principal, a set of keys and a database in which it can create
tables. On SQLite the database is a separate file; on PostgreSQL it is a schema of the shared
database. What is written is on the disk when the call returns.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from plexus.errors import InvalidParams, TooBig
from plexus.principal import Principal
from plexus.private_files import make_folders
from plexus.rpc import wire
from plexus.storage.engine import (
    Component,
    Engine,
    Migration,
    Transaction,
    is_postgres,
    open_engine,
)

__all__ = ("ActivationStorage", "ActivationStores")

T = TypeVar("T")

#: The longest key, in characters.
KEY_CHARS: Final = 512
#: The largest value, in bytes of JSON.
VALUE_BYTES: Final = 1024 * 1024
#: The longest page of keys.
PAGE: Final = 1000
#: How many databases for SQL are open at a time; idle ones are closed first.
OPEN_DATABASES: Final = 32

VALUES: Final = Component(
    "activation_values",
    (
        Migration(
            both=(
                """CREATE TABLE activation_values (
                    activation {name} NOT NULL,
                    principal {name} NOT NULL,
                    key {name} NOT NULL,
                    value TEXT NOT NULL,
                    PRIMARY KEY (activation, principal, key)
                )""",
            )
        ),
    ),
)
#: A database whose tables the activation creates itself.
OWN_TABLES: Final = Component("activation_tables", ())


class _Database:
    """One engine, opened when it is first used."""

    def __init__(self, open_now: Callable[[], Any]) -> None:
        self._open_now = open_now
        self._lock = asyncio.Lock()
        self._engine: Engine | None = None
        self.users = 0

    async def engine(self) -> Engine:
        async with self._lock:
            if self._engine is None:
                self._engine = await self._open_now()
            return self._engine

    async def close(self) -> None:
        async with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


class ActivationStores:
    """The storage of every activation, in one database or in additional files."""

    def __init__(self, database: str, folder: Path) -> None:
        """Take the shared database, and the folder for the SQLite files of activations."""
        self._database = database
        self._folder = folder
        self._values = _Database(lambda: open_engine(database, VALUES))
        self._own: dict[str, _Database] = {}

    def of(self, activation: str, principal: Principal) -> ActivationStorage:
        """Return the storage of an activation for a principal. Nothing is opened yet."""
        return ActivationStorage(self, activation, principal.name)

    async def write_values(self, work: Callable[[Transaction], T]) -> T:
        """Run a work over the table of key-value pairs."""
        return await (await self._values.engine()).write(work)

    async def read_values(self, work: Callable[[Transaction], T]) -> T:
        """Run a work that only reads over the table of key-value pairs."""
        return await (await self._values.engine()).read(work)

    async def run_own(self, name: str, work: Callable[[Transaction], T], *, reads: bool) -> T:
        """Run a work over the tables of one activation and principal."""
        if is_postgres(self._database):
            within = _in_schema(name, work, creates=not reads)
            return await (self.read_values(within) if reads else self.write_values(within))
        database = await self._own_database(name)
        database.users += 1
        try:
            engine = await database.engine()
            return await (engine.read(work) if reads else engine.write(work))
        finally:
            database.users -= 1

    async def _own_database(self, name: str) -> _Database:
        database = self._own.pop(name, None)
        if database is None:
            path = self._folder / f"{name}.db"

            async def open_file() -> Engine:
                await asyncio.to_thread(make_folders, path.parent)
                return await open_engine(str(path), OWN_TABLES)

            database = _Database(open_file)
        self._own[name] = database  # the most recently used is the last
        if len(self._own) > OPEN_DATABASES:
            idle = next((key for key, each in self._own.items() if not each.users), name)
            if idle != name:
                await self._own.pop(idle).close()
        return database

    async def close(self) -> None:
        """Close every database."""
        for database in (self._values, *self._own.values()):
            await database.close()
        self._own.clear()


class ActivationStorage:
    """The storage of one activation for one principal."""

    def __init__(self, stores: ActivationStores, activation: str, principal: str) -> None:
        self._stores = stores
        self._owner = (activation, principal)
        digest = hashlib.sha256(principal.encode()).hexdigest()[:16]
        self._name = f"{activation.replace('.', '_')}_{digest}"

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default if it has none."""
        where = (*self._owner, _checked_key(key))
        row = await self._stores.read_values(
            lambda tx: tx.one(
                "SELECT value FROM activation_values"
                " WHERE activation = ? AND principal = ? AND key = ?",
                where,
            )
        )
        return default if row is None else wire.decode_trusted(row[0].encode())

    async def set(self, key: str, value: Any) -> None:
        """Store a value that has a JSON form, in place of the one before.

        Raises InvalidEvent for a value without a JSON form, and TooBig for one of more than a
        mebibyte.
        """
        raw = wire.encode_exact(value, f"the value of {key!r}")
        if len(raw) > VALUE_BYTES:
            raise TooBig(
                f"the value of {key!r} has {len(raw)} bytes of JSON; at most {VALUE_BYTES} are "
                "stored under one key",
                data={"limit": VALUE_BYTES},
            )
        row = (*self._owner, _checked_key(key), raw.decode())
        await self._stores.write_values(
            lambda tx: tx.run(
                "INSERT INTO activation_values (activation, principal, key, value)"
                " VALUES (?, ?, ?, ?)"
                " ON CONFLICT (activation, principal, key) DO UPDATE SET value = excluded.value",
                row,
            )
        )

    async def delete(self, key: str) -> bool:
        """Delete a key. Returns whether it existed."""
        where = (*self._owner, _checked_key(key))
        deleted = await self._stores.write_values(
            lambda tx: tx.run(
                "DELETE FROM activation_values WHERE activation = ? AND principal = ? AND key = ?",
                where,
            )
        )
        return bool(deleted)

    async def keys(self, prefix: str = "", *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` keys that start with `prefix` and sort after the key `after`.

        The maximum is 1,000.
        """
        # A prefix is compared by its characters: LIKE ignores case on SQLite.
        where = (*self._owner, after, prefix, min(max(limit, 0), PAGE))
        rows = await self._stores.read_values(
            lambda tx: tx.all(
                "SELECT key FROM activation_values"
                " WHERE activation = ? AND principal = ? AND key > ?"
                f" AND substr(key, 1, {len(prefix)}) = ?"
                " ORDER BY key LIMIT ?",
                where,
            )
        )
        return [row[0] for row in rows]

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run a function over a transaction of the activation's own database.

        It runs on another thread, and may be run again if the transaction has to be repeated.
        """
        return await self._stores.run_own(self._name, work, reads=False)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function that only reads, over one snapshot of the activation's own database."""
        return await self._stores.run_own(self._name, work, reads=True)


def _checked_key(key: str) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= KEY_CHARS or "\0" in key:
        raise InvalidParams(
            f"a key is a text of 1 to {KEY_CHARS} characters without NUL, not {key!r:.100}"
        )
    return key


def _in_schema(
    name: str, work: Callable[[Transaction], T], *, creates: bool
) -> Callable[[Transaction], T]:
    """Return a work that runs with the PostgreSQL schema of an activation as its search path."""

    def within(tx: Transaction) -> T:
        if creates:
            tx.run(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
        tx.run(f'SET LOCAL search_path TO "{name}"')
        value = work(tx)
        # The transaction is shared with other works. After an error its savepoint undoes this.
        tx.run("SET LOCAL search_path TO DEFAULT")
        return value

    return within
