"""Durable storage for components: SQLite and PostgreSQL behind one `Engine`.

A component (a package that stores data) declares a `Component`: its name and its ordered
migrations. `open_engine` opens a database for it, migrates its tables and returns an engine with
transactions, group commit, online backup and a change signal. Several components can share one
database. Each has its own schema version, engine and change signal; components must choose
distinct table names.

A database driver is imported when the first engine that needs it is opened.
"""

from __future__ import annotations

from plexus.storage.engine import (
    Component,
    Dialect,
    Engine,
    Migration,
    Row,
    Transaction,
    open_engine,
)

__all__ = (
    "Component",
    "Dialect",
    "Engine",
    "Migration",
    "Row",
    "Transaction",
    "open_engine",
)
