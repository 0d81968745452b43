"""New databases for tests, on each engine: a file, or a database on a shared server."""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

import pytest
from postgres_server import MISSING, PostgresServer, programs

__all__ = ("ENGINES", "new_database", "server")

ENGINES = ("sqlite", "postgres")


@functools.cache
def _started() -> PostgresServer:
    server = PostgresServer()
    atexit.register(server.close)
    server.start()
    return server


def server() -> PostgresServer:
    """Return the server of this test session, started at the first call."""
    if programs() is None:
        pytest.skip(MISSING)
    return _started()


def new_database(engine: str, folder: Path) -> str:
    """Return the address of a new database."""
    if engine == "sqlite":
        return str(folder / "arbor.db")
    running = server()
    return running.url(running.new_database())
