"""What a database must be able to do to hold arbor: the two protocols, and what its errors become.

An engine runs *works*: plain functions over a `Transaction`. The functions in `queries` are the
same for every engine; where databases differ, the `Dialect` holds the text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from plexus.errors import Busy, Failed

__all__ = (
    "POSTGRES",
    "SQLITE",
    "Dialect",
    "Engine",
    "Opener",
    "Row",
    "Transaction",
    "corrupt",
    "damaged",
    "locked",
    "newer",
    "read_only",
    "storage_failed",
    "storage_full",
)

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]


class Dialect(NamedTuple):
    """The few texts that differ between databases; everything else is written once."""

    name: Literal["sqlite", "postgres"]
    #: A search: what is read from, the condition that takes the words, and the node's number.
    search_from: str
    search_match: str
    search_n: str
    #: Written around each word of what the condition takes.
    quote: str
    #: Whether the index of words follows the nodes by itself.
    indexes_itself: bool


SQLITE: Final = Dialect(
    name="sqlite",
    search_from="search JOIN nodes ON nodes.n = search.rowid",
    search_match="search MATCH ?",
    search_n="search.rowid",
    quote='"',
    indexes_itself=False,
)

POSTGRES: Final = Dialect(
    name="postgres",
    search_from="nodes",
    # Words as the schema makes them of texts. With a collation of its own, because otherwise what
    # is a letter, and which one is its small form, depends on how the server was set up.
    search_match=(
        "nodes.words @@ plainto_tsquery('simple', lower(regexp_replace("
        "CAST(? AS TEXT) COLLATE \"und-x-icu\", '[^[:alnum:]]+', ' ', 'g')))"
    ),
    search_n="nodes.n",
    quote="",
    indexes_itself=True,
)


class Transaction(Protocol):
    """One transaction, seen from the thread that runs it. Placeholders are written `?`."""

    @property
    def dialect(self) -> Dialect:
        """Whose SQL is spoken here."""

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Every row."""

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        """The rows one by one, so that memory stays small; the caller may stop early."""

    def one(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        """The first row, or None. Also for `UPDATE ... RETURNING`."""

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement that changes something; returns how many rows it changed."""

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""


class Engine(Protocol):
    """A database that is open.

    The queries rely on this: **the works that write run one after another, over all processes**.
    What a work has read stays true until it is committed, and numbers are handed out in the order
    of commits. Several waiting works share one transaction; a work that raises has its own
    effects undone, and nobody else's. A work may be run more than once before it is committed.

    A `PlexusError` that a work raises reaches its caller as it is. Errors of the database become
    one of the errors below, with nothing half-written; the next call tries afresh.
    """

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run the work; when this returns, what it wrote is on the disk."""

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run the work over one snapshot; never waits for a writer."""

    def subscribe(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` on the loop whenever there may be changes, made here or in another process.

        A ring may come for nothing. Returns what ends it.
        """

    async def backup(self, path: Path) -> None:
        """Write a copy of everything, as it was at one moment, while others write."""

    async def check(self) -> None:
        """Look at what the database stands on. Raises Failed if it is not well."""

    async def close(self) -> None:
        """Finish what waits, and let go of the database."""


#: What the module of an engine offers as `open_engine`: it migrates, and is ready on return.
Opener: TypeAlias = Callable[[str], Awaitable[Engine]]


def storage_failed(reason: str) -> Failed:
    """The database could not do it, for a reason that has no name of its own."""
    return Failed(f"the store could not do this: {reason}", code="storage")


def storage_full(reason: str) -> Failed:
    """There is no room; nothing was written."""
    return Failed(f"the store's disk is full: {reason}", code="storage_full")


def read_only(reason: str) -> Failed:
    """The file, its folder or the disk cannot be written."""
    return Failed(f"the store cannot be written: {reason}", code="storage_read_only")


def corrupt(reason: str) -> Failed:
    """What is there is no store of ours, or a damaged one."""
    return Failed(f"the store cannot be read: {reason}", code="storage_corrupt")


def damaged(reason: str) -> Failed:
    """Files of the store were damaged, removed or replaced from outside."""
    return Failed(
        f"the store is damaged: {reason}; stop every process that uses it, and restore a backup"
        " or check what is there",
        code="storage_damaged",
    )


def newer(found: int, known: int) -> Failed:
    """The store was written by a later version of this program."""
    return Failed(
        f"the store has schema version {found}, and this program knows versions up to {known}:"
        " it was written by a later version of this program",
        code="storage_newer",
        data={"found": found, "known": known},
    )


def locked(seconds: float) -> Busy:
    """Other processes kept the store locked."""
    return Busy(f"the store was locked by others for {seconds:g} s; try again")
