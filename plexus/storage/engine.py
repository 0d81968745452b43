"""The interface of an open database, and opening one by its URL.

An engine runs *works*: plain functions over a `Transaction`. The same functions run on every
engine; a work can look at `Transaction.dialect` where the databases differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from plexus.errors import Failed
from plexus.registry.lazy import resolve
from plexus.storage.migrations import Component
from plexus.storage.transaction import Transaction

__all__ = ("Engine", "is_postgres", "open_engine", "sqlite_path")

T = TypeVar("T")

POSTGRES_URLS: Final = ("postgresql://", "postgres://")
SQLITE_URL: Final = "sqlite:///"

#: The engines, imported when a database of their kind is first opened: psycopg is optional and
#: takes long to import.
SQLITE_ENGINE: Final = "plexus.storage.sqlite.engine:open_engine"
POSTGRES_ENGINE: Final = "plexus.storage.postgres.engine:open_engine"


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
