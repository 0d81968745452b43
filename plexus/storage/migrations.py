"""Versioned migrations, one sequence per component.

The version of a component is the number of its migrations that were run. It is kept in the table
`component_versions`, one row per component. A component that was there before that table keeps its
version where it has always been, in the *database version*: `PRAGMA user_version` of SQLite, the
table `schema_version` of PostgreSQL. So existing databases open unchanged, in both directions:
earlier programs go on reading what later ones wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from plexus.storage.engine import Component, Dialect, Transaction
from plexus.storage.errors import newer

__all__ = ("DatabaseVersion", "migrate", "statements", "stored_version")

VERSIONS: Final = "component_versions"

#: What databases call differently, for statements that are written once: an integer that is the
#: key of its row, a text that is compared by its bytes, and a string of bytes.
TYPES: Final[dict[Dialect, dict[str, str]]] = {
    "sqlite": {"{key}": "INTEGER PRIMARY KEY", "{name}": "TEXT", "{bytes}": "BLOB"},
    "postgres": {
        "{key}": "BIGINT PRIMARY KEY",
        "{name}": 'TEXT COLLATE "C"',
        "{bytes}": "BYTEA",
    },
}


@dataclasses.dataclass(frozen=True)
class DatabaseVersion:
    """How an engine reads and writes the version of the database itself."""

    get: Callable[[Transaction], int]
    set: Callable[[Transaction, int], None]
    #: Whether there is a table of this name.
    has_table: Callable[[Transaction, str], bool]


def statements(component: Component, dialect: Dialect, version: int) -> list[str]:
    """Return what leads from this version to the current one, statement by statement."""
    found = []
    for migration in component.migrations[version:]:
        own = migration.sqlite if dialect == "sqlite" else migration.postgres
        for sql in migration.both + own:
            for mark, name in TYPES[dialect].items():
                sql = sql.replace(mark, name)
            found.append(sql)
    return found


def stored_version(tx: Transaction, component: Component, database: DatabaseVersion) -> int:
    """Return the stored version of a component, 0 if it has no tables yet. Raises Failed
    (`storage_newer`) if that is later than this program's."""
    if component.uses_database_version:
        version = database.get(tx)
    elif database.has_table(tx, VERSIONS):
        row = tx.one(f"SELECT version FROM {VERSIONS} WHERE component = ?", (component.name,))
        version = 0 if row is None else int(row[0])
    else:
        version = 0
    if version > component.version:
        raise newer(version, component.version)
    return version


def migrate(tx: Transaction, component: Component, database: DatabaseVersion) -> None:
    """Run the missing migrations of a component, in a transaction that no other process shares."""
    version = stored_version(tx, component, database)
    if version == component.version:
        return  # another process was faster
    for sql in statements(component, tx.dialect, version):
        tx.run(sql)
    if component.uses_database_version:
        database.set(tx, component.version)
        return
    if not database.has_table(tx, VERSIONS):
        tx.run(f"CREATE TABLE {VERSIONS} (component TEXT PRIMARY KEY, version BIGINT NOT NULL)")
    tx.run(
        f"INSERT INTO {VERSIONS} (component, version) VALUES (?, ?)"
        " ON CONFLICT (component) DO UPDATE SET version = excluded.version",
        (component.name, component.version),
    )
