"""Durable storage for components: SQLite and PostgreSQL behind one `Engine`.

A component (a package that stores something) declares a `Component`: its name and its ordered
migrations. `open_engine` opens a database for it, migrates its tables and returns an engine with
transactions, group commit, online backup and a change signal. Several components can share one
database: each has its own version, its own engine and its own change signal, and table names are
theirs to keep apart.

The database drivers are imported when an engine of their kind is first opened.
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
