"""A transaction as queries see it, the same for every engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

__all__ = ("Dialect", "Row", "Transaction")

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
