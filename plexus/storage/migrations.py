"""Versioned migrations, one sequence per component.

The schema version of a component is the number of its migrations that have run. It is stored in
the table `component_versions`, one row per component. A component that predates that table keeps
its version in the *database version*: `PRAGMA user_version` in SQLite, the table `schema_version`
in PostgreSQL. Databases therefore stay compatible in both directions: existing ones open
unchanged, and earlier programs can read what later ones wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from plexus.storage.engine import Component, Dialect, Transaction
from plexus.storage.errors import newer

__all__ = ("DatabaseVersion", "migrate", "statements", "stored_version")

VERSIONS: Final = "component_versions"

#: Column types that differ between databases, for shared statements: an integer primary key, text
#: that is compared bytewise, and binary data.
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
    """Callbacks by which an engine reads and writes the database version."""

    get: Callable[[Transaction], int]
    set: Callable[[Transaction, int], None]
    #: Return whether a table exists.
    has_table: Callable[[Transaction, str], bool]


def statements(component: Component, dialect: Dialect, version: int) -> list[str]:
    """Return the statements that migrate from this version to the current one."""
    found = []
    for migration in component.migrations[version:]:
        own = migration.sqlite if dialect == "sqlite" else migration.postgres
        for sql in migration.both + own:
            for mark, name in TYPES[dialect].items():
                sql = sql.replace(mark, name)
            found.append(sql)
    return found


def stored_version(tx: Transaction, component: Component, database: DatabaseVersion) -> int:
    """Return the stored schema version of a component, 0 if it has no tables yet.

    Raises Failed (`storage_newer`) if the version is newer than this program supports.
    """
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
    """Run the pending migrations of a component. The transaction must have the write lock."""
    version = stored_version(tx, component, database)
    if version == component.version:
        return  # another process has migrated meanwhile
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
