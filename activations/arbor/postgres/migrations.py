"""Bringing a database to the version of this program, once, however many processes start."""

from __future__ import annotations

from activations.arbor.engine import Transaction, corrupt, newer
from activations.arbor.postgres.session import Session, scoped
from activations.arbor.postgres.writer import LOCK, WRITERS
from activations.arbor.schema import VERSION, statements

__all__ = ("migrate",)

#: The lock of the writers: nobody writes meanwhile, and who starts at the same time waits. It is
#: taken before the transaction begins, because one that began earlier may not see the new tables.
#: A large database may take its time.
TURN = f"SET statement_timeout = 0; SET lock_timeout = 0; SELECT pg_advisory_lock({LOCK})"


def migrate(session: Session) -> None:
    """Run the steps that are missing, all or none. A database that is current is only read.

    The session is of no use afterwards: it is dropped, and the lock with it.
    """
    try:
        with scoped(session, "BEGIN READ ONLY") as transaction:
            _check_encoding(transaction)
            if _version(transaction) == VERSION:
                return
        session.say(TURN)
        with scoped(session, "BEGIN") as transaction:
            _run_steps(transaction, _version(transaction))
    finally:
        session.drop()


def _run_steps(transaction: Transaction, version: int) -> None:
    if version == VERSION:
        return  # somebody else was here first
    if version == 0:
        transaction.run("CREATE TABLE schema_version (version BIGINT NOT NULL)")
        transaction.run("INSERT INTO schema_version (version) VALUES (0)")
        transaction.run(WRITERS)
    for statement in statements(transaction.dialect, version):
        transaction.run(statement)
    transaction.run("UPDATE schema_version SET version = ?", (VERSION,))


def _version(transaction: Transaction) -> int:
    """Which version is there; 0 if there is nothing yet."""
    found = transaction.one("SELECT to_regclass('schema_version') IS NOT NULL")
    if found != (True,):
        return 0
    row = transaction.one("SELECT version FROM schema_version")
    version = int(row[0]) if row else 0
    if version > VERSION:
        raise newer(version, VERSION)
    return version


def _check_encoding(transaction: Transaction) -> None:
    row = transaction.one("SELECT current_setting('server_encoding')")
    if row != ("UTF8",):
        found = row[0] if row else "unknown"
        raise corrupt(f"the database's encoding is {found}; create one with UTF8")
