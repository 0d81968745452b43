"""What the database's errors mean: to be tried again on a new connection, or told to the caller.

PostgreSQL names its errors by SQLSTATE, in every language alike. Only a connection that never
came about has none; there the server's text is all there is.
"""

from __future__ import annotations

import psycopg

from activations.arbor.engine import read_only, storage_failed, storage_full
from plexus.errors import Busy, Failed, PlexusError

__all__ = ("Gone", "fault_of", "refusal_of", "unknown_outcome")

READ_ONLY = "25006"
DISK_FULL = "53100"
#: A lock or a statement took longer than it may.
LATE = ("55P03", "57014")
#: The server, or our connection to it, ends or cannot begin: 08 connection, 57P shutdown and
#: crash, 25P03 and 25P04 a transaction that stood still, 53300 no connection left.
AWAY = ("08", "57P", "25P03", "25P04", "53300")
#: Another transaction was in the way; the same work succeeds in its next try.
CROSSED = ("40001", "40P01")
#: The role may not do this, or may not come in.
DENIED = ("28", "42501", "3D000")
#: In the text of a connection that was refused for good. A server that speaks another language
#: is waited for instead, and its text is told then.
REFUSED = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied")


class Gone(Exception):
    """The connection is lost, or there is none yet; what was not committed may be done again."""

    def __init__(self, failure: PlexusError) -> None:
        super().__init__(failure.message)
        #: What the caller is told once no more time is left to try again.
        self.failure = failure


def fault_of(error: psycopg.Error) -> Gone | PlexusError:
    """The meaning of an error on a connection that stood."""
    state = error.sqlstate or ""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if state == DISK_FULL:
        return storage_full(text)
    if state == READ_ONLY:
        return read_only(text)
    if state in LATE:
        return Busy(f"the database was too busy: {text}; try again")
    if state.startswith(DENIED):
        return _denied(text)
    lost = not state and isinstance(error, psycopg.OperationalError)
    if lost or state.startswith(AWAY) or state in CROSSED:
        return Gone(storage_failed(text))
    return storage_failed(text)


def refusal_of(error: psycopg.OperationalError) -> Gone | PlexusError:
    """The meaning of an error while connecting."""
    text = str(error).strip()
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    if needs_password or any(words in text for words in REFUSED):
        return _denied(text)
    return Gone(storage_failed(f"the database does not answer: {text}"))


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
