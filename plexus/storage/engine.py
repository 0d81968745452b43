"""The interface of a database: transactions, components, engines, and opening one by its URL.

An engine runs *works*: plain functions over a `Transaction`. The same functions run on every
engine; a work can look at `Transaction.dialect` where the databases differ.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from plexus.errors import Failed
from plexus.registry.lazy import resolve

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

#: What a component can be called: the name is part of SQL, as that of a channel.
NAME: Final = re.compile("[a-z][a-z_]{0,30}")

POSTGRES_URLS: Final = ("postgresql://", "postgres://")
SQLITE_URL: Final = "sqlite:///"

#: The engines, imported when a database of their kind is first opened: psycopg is optional and
#: takes long to import.
SQLITE_ENGINE: Final = "plexus.storage.sqlite.engine:open_engine"
POSTGRES_ENGINE: Final = "plexus.storage.postgres.engine:open_engine"

Row: TypeAlias = tuple[Any, ...]

#: Whose SQL an engine speaks, for the few statements that cannot be written once.
Dialect: TypeAlias = Literal["sqlite", "postgres"]


class Transaction(Protocol):
    """One transaction, used only on the thread that runs it. Placeholders are written `?`."""

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
    """The statements that lead from one version to the next. Never edited after a release."""

    #: For both databases; `{key}`, `{name}` and `{bytes}` stand for their types.
    both: tuple[str, ...] = ()
    #: After those, for one of them only.
    sqlite: tuple[str, ...] = ()
    postgres: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Component:
    """A part of the program that stores something: its name and its migrations, oldest first."""

    name: str
    migrations: tuple[Migration, ...]
    #: Whether its version is the database version. Only for a component that is older than the
    #: versions of components, of which a database can have one.
    uses_database_version: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a component is named by small letters and _, not {self.name!r}")

    @property
    def version(self) -> int:
        """The version that this program reads and writes."""
        return len(self.migrations)


class Engine(Protocol):
    """A database that is open for one component.

    Queries rely on this: **the works of a component that write run one after another, over all
    processes**. What a work has read stays true until it is committed. Several waiting works share
    one transaction; a work that raises has its own effects undone, and no others. A work may be
    run more than once before it is committed.

    A `PlexusError` that a work raises reaches its caller unchanged. Errors of the database become
    one of those in `plexus.storage.errors`, with nothing half-written; the next call starts afresh.
    """

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run the work. When this returns, what it wrote is on the disk."""

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run the work over one snapshot. Never waits for a writer."""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the loop after commits, of this process or another one.

        It may also be called when nothing has changed. Returns a function that unsubscribes.
        """

    async def backup(self, path: Path) -> None:
        """Write a copy of the whole database, as of one moment, while others write."""

    async def check(self) -> None:
        """Check the disk and the files. Raises Failed if they are damaged or nearly full."""

    async def close(self) -> None:
        """Finish what waits, and close the database. May be called twice."""


#: What the module of an engine offers as `open_engine`: it migrates, and is ready on return.
Opener: TypeAlias = Callable[[str, Component], Awaitable[Engine]]


def is_postgres(database: str) -> bool:
    """Whether a database is on a PostgreSQL server, and not a file."""
    return database.startswith(POSTGRES_URLS)


def sqlite_path(database: str) -> Path:
    """Return the file of a SQLite database, given as a path or as `sqlite:///path`."""
    return Path(database.removeprefix(SQLITE_URL)).expanduser()


async def open_engine(database: str, component: Component) -> Engine:
    """Open a database for a component, and migrate the component's tables.

    `database` is a path, `sqlite:///path` or `postgresql://...`.
    """
    if is_postgres(database):
        reference = POSTGRES_ENGINE
    elif database.startswith(SQLITE_URL) or not ("://" in database or database[:1] == ":"):
        reference = SQLITE_ENGINE
    else:
        raise Failed(
            "a database is a path, sqlite:///path or postgresql://...", code="storage_unknown"
        )
    try:
        opener: Opener = resolve(reference)
    except ImportError as error:
        raise Failed(
            f"{error}; for PostgreSQL, pip install plexus-substrate[postgres]", code="storage"
        ) from error
    return await opener(database, component)
