"""The engine on a PostgreSQL server, through psycopg: for more than one machine.

Waits are bounded everywhere: a server that is away, locks, statements, and a server that takes a
connection and says nothing.
"""

from __future__ import annotations

from activations.arbor.postgres.engine import PostgresEngine, open_engine

__all__ = ("PostgresEngine", "open_engine")
