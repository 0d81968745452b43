"""What the server's errors mean: retry on a new connection, or raise to the caller.

PostgreSQL names its errors by SQLSTATE, in every language alike. Only a connection that never
came about has none; there the server's text is all there is.
"""

from __future__ import annotations

import psycopg

from plexus.errors import Busy, Failed, PlexusError
from plexus.storage.errors import read_only, storage_failed, storage_full

__all__ = ("ConnectionLost", "connect_error_of", "error_of", "unknown_outcome")

READ_ONLY = "25006"
DISK_FULL = "53100"
#: A lock or statement timeout.
TIMED_OUT = ("55P03", "57014")
#: The server, or our connection to it, ends or cannot begin: 08 connection, 57P shutdown and
#: crash, 25P03 and 25P04 an idle transaction, 53300 no connection left.
UNAVAILABLE = ("08", "57P", "25P03", "25P04", "53300")
#: A conflict with another transaction; a retry succeeds.
SERIALIZATION = ("40001", "40P01")
#: The role lacks a permission, or may not log in.
DENIED = ("28", "42501", "3D000")
#: In the text of a connection that was refused for good. With a server in another language the
#: connection is retried until the timeout, and its text is reported then.
REFUSED = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied")


class ConnectionLost(Exception):
    """The connection is lost, or there is none yet; what was not committed can be retried."""

    def __init__(self, failure: PlexusError) -> None:
        super().__init__(failure.message)
        #: What the caller gets once no time is left to retry.
        self.failure = failure


def error_of(error: psycopg.Error) -> ConnectionLost | PlexusError:
    """Return the meaning of an error on an established connection."""
    state = error.sqlstate or ""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if state == DISK_FULL:
        return storage_full(text)
    if state == READ_ONLY:
        return read_only(text)
    if state in TIMED_OUT:
        return Busy(f"the database was too busy: {text}; try again")
    if state.startswith(DENIED):
        return _denied(text)
    lost = not state and isinstance(error, psycopg.OperationalError)
    if lost or state.startswith(UNAVAILABLE) or state in SERIALIZATION:
        return ConnectionLost(storage_failed(text))
    return storage_failed(text)


def connect_error_of(error: psycopg.OperationalError) -> ConnectionLost | PlexusError:
    """Return the meaning of an error while connecting."""
    text = str(error).strip()
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    if needs_password or any(words in text for words in REFUSED):
        return _denied(text)
    return ConnectionLost(storage_failed(f"the database does not answer: {text}"))


def unknown_outcome(failure: PlexusError) -> Failed:
    """The connection was lost in mid-commit, and did not come back in time to ask."""
    return Failed(
        f"the connection was lost while this was committed, so it may be stored or not:"
        f" {failure.message}",
        code="storage",
        data={"outcome": "unknown"},
    )


def _denied(text: str) -> Failed:
    return Failed(f"the database refuses us: {text}", code="storage_denied")
