"""The interface of a database: transactions, components, engines, and opening one by its URL.

An engine runs units of work: plain functions over a `Transaction`. The same functions run on every
engine; where the databases differ, a function can check `Transaction.dialect`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from plexus.errors import Failed
from plexus.registry.lazy import resolve
from plexus.storage.daemon_threads import run_in_daemon_thread

__all__ = (
    "Component",
    "Dialect",
    "Engine",
    "Migration",
    "Row",
    "Transaction",
    "is_postgres",
    "open_engine",
    "sqlite_path",
)

T = TypeVar("T")

#: Valid component names. The name becomes part of SQL, as the name of a channel.
NAME: Final = re.compile("[a-z][a-z_]{0,30}")

POSTGRES_URLS: Final = ("postgresql://", "postgres://")
SQLITE_URL: Final = "sqlite:///"

#: The engines. Each is imported when its first database is opened: psycopg is optional and slow to
#: import.
SQLITE_ENGINE: Final = "plexus.storage.sqlite.engine:open_engine"
POSTGRES_ENGINE: Final = "plexus.storage.postgres.engine:open_engine"

Row: TypeAlias = tuple[Any, ...]

#: The SQL dialect of an engine, for the few statements that differ between databases.
Dialect: TypeAlias = Literal["sqlite", "postgres"]


class Transaction(Protocol):
    """A transaction, used only on the thread that runs it. Placeholders are written `?`."""

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the database."""

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Return every row."""

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        """Iterate over the rows in constant memory. The caller may stop early."""

    def one(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        """Return the first row, or None. Also for `UPDATE ... RETURNING`."""

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement that changes rows. Returns the number of changed rows."""

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""


@dataclasses.dataclass(frozen=True)
class Migration:
    """The statements that migrate one schema version to the next. Never edited after a release."""

    #: Run on both databases. `{key}`, `{name}` and `{bytes}` are replaced by column types.
    both: tuple[str, ...] = ()
    #: Run after `both`, on one database only.
    sqlite: tuple[str, ...] = ()
    postgres: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Component:
    """A part of the program that stores data: its name and its migrations, oldest first."""

    name: str
    migrations: tuple[Migration, ...]
    #: Whether the schema version is stored as the database version. Only for the component that
    #: predates per-component versions; a database can have only one.
    uses_database_version: bool = False
    #: What acknowledged commits survive on SQLite: "full" a power failure, "normal" the crash of a
    #: process, but not a power failure. Components that share a file should agree: after a power
    #: failure, one with "full" would report what one with "normal" has lost as damage.
    durability: Literal["full", "normal"] = "full"
    #: Whether deleted rows must leave no bytes in the files of a SQLite database. Deletions then
    #: cost more, and are complete after `Engine.erase`. A PostgreSQL server decides this itself.
    erases: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"Invalid component name {self.name!r}. Use 1 to 31 lowercase letters and"
                " underscores, starting with a letter."
            )

    @property
    def version(self) -> int:
        """The schema version that this program reads and writes."""
        return len(self.migrations)


class Engine(Protocol):
    """A database that is open for one component.

    Queries rely on this guarantee: **write operations of a component are serialized across all
    processes**. What a unit of work has read stays true until it commits. Queued units of work
    share one transaction; if a unit of work raises, only its own changes are rolled back. A unit of
    work may run more than once before it is committed.

    A `PlexusError` raised by a unit of work reaches the caller unchanged. Database errors are
    translated to the errors of `plexus.storage.errors`; nothing is half-written, and the next call
    can succeed.
    """

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of work. On return, its changes are durable."""

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of work on a snapshot. Never waits for a writer."""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after commits by this or any other process.

        The listener may also be called without a change. Returns a function that unsubscribes.
        """

    async def backup(self, path: Path) -> None:
        """Write a consistent copy of the whole database, without blocking writers."""

    async def erase(self) -> None:
        """Remove the bytes of deleted rows from the files.

        Includes what other components have deleted from the same file. Other writers wait a few
        milliseconds at a time. Raises Busy if readers or writers prevent it for too long. Does
        nothing on PostgreSQL.
        """

    async def vacuum(self, pages: int) -> int:
        """Return up to this many free pages to the file system, and how many it was.

        Always 0 for a file that a component without `erases` has created, and on PostgreSQL.
        """

    async def check(self) -> None:
        """Check the disk and the database files. Raises Failed on damage or if the disk is full."""

    async def close(self) -> None:
        """Finish queued operations and close the database. Idempotent."""


#: The type of `open_engine` in an engine module. It migrates the tables before it returns.
Opener: TypeAlias = Callable[[str, Component], Awaitable[Engine]]


def is_postgres(database: str) -> bool:
    """Return whether a database URL refers to a PostgreSQL server."""
    return database.startswith(POSTGRES_URLS)


def sqlite_path(database: str) -> Path:
    """Return the file of a SQLite database, given as a path or as `sqlite:///path`."""
    return Path(database.removeprefix(SQLITE_URL)).expanduser()


async def open_engine(database: str, component: Component) -> Engine:
    """Open a database for a component and migrate the component's tables.

    `database` is a path, `sqlite:///path` or `postgresql://...`. Raises Failed.
    """
    if is_postgres(database):
        reference = POSTGRES_ENGINE
    elif database.startswith(SQLITE_URL) or not ("://" in database or database[:1] == ":"):
        reference = SQLITE_ENGINE
    else:
        raise Failed(
            f"Unsupported database URL {database.partition('://')[0]!r}. Use a path, sqlite:///path"
            " or postgresql://...",
            code="storage_unknown",
        )
    try:
        # In a thread: a driver takes up to 80 ms to import.
        opener: Opener = await run_in_daemon_thread(partial(resolve, reference), "driver import")
    except ImportError as error:
        raise Failed(
            f"{error}. PostgreSQL needs its driver: pip install plexus-substrate[postgres].",
            code="storage",
        ) from error
    return await opener(database, component)
