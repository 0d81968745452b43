"""The tables of the run store, for SQLite and PostgreSQL.

- `processes` has a row for every process with runs in progress. Its lease is renewed while the
  process lives; on one machine the pid and the start time decide.
- `runs` has one row per run. `epoch` fences writes: only the process with the current epoch of a
  run can change it.
- `run_chunks` has the items of one run and one flush. The items of a run that started and ended
  within one flush are in `runs.items` instead.
- `run_questions` has the open questions; an answered one is deleted.
- `run_requests` has calls for the process that executes a run: cancel it, answer its question.
- `run_deletions` has deleted runs that may still be in the search index.
- `run_maintenance` has the process that maintains the store, the search index that was filled, and
  the newest deletions.
"""

from __future__ import annotations

from typing import Final

from plexus.storage.engine import Component, Migration

__all__ = ("ENDED", "RUNS", "STATES", "STATE_NUMBERS", "storable_text")

#: The states of a run, by their numbers in the table. Those from `ENDED` on are final.
STATES: Final = ("running", "asking", "cancelling", "complete", "error", "cancelled")
STATE_NUMBERS: Final = {name: number for number, name in enumerate(STATES)}
ENDED: Final = STATE_NUMBERS["complete"]

_TABLES: Final = (
    """CREATE TABLE processes (
        id {key},
        host {name} NOT NULL,
        pid BIGINT NOT NULL,
        start_ticks BIGINT,
        project {name} NOT NULL,
        version {name} NOT NULL,
        watching INTEGER NOT NULL,
        lease_until BIGINT NOT NULL
    )""",
    # Not the key of the table in SQLite: numbers are random, and rows in the order of random keys
    # change a page each.
    """CREATE TABLE runs (
        id BIGINT NOT NULL UNIQUE,
        method {name} NOT NULL,
        scope {name} NOT NULL,
        principal {name} NOT NULL,
        project {name} NOT NULL,
        process BIGINT NOT NULL,
        pid BIGINT NOT NULL,
        host {name} NOT NULL,
        client {name} NOT NULL,
        agent_session {name} NOT NULL,
        parent BIGINT,
        state INTEGER NOT NULL,
        outcome {name},
        exit_code BIGINT,
        epoch INTEGER NOT NULL,
        cancel_requested INTEGER NOT NULL,
        started_ms BIGINT NOT NULL,
        ended_ms BIGINT,
        last_seq BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        recorded {name} NOT NULL,
        arguments TEXT NOT NULL,
        summary TEXT NOT NULL,
        kept_until BIGINT,
        pinned INTEGER NOT NULL,
        retention_s DOUBLE PRECISION,
        run_key {name},
        restart {name} NOT NULL,
        scopes TEXT,
        checkpoint TEXT,
        indexed INTEGER NOT NULL,
        items TEXT
    )""",
    "CREATE INDEX runs_by_start ON runs (principal, started_ms)",
    "CREATE INDEX runs_by_project ON runs (principal, project, started_ms)",
    # What else is filtered is in the index, because rows are large and far apart.
    "CREATE INDEX runs_by_method ON runs (principal, method, started_ms, project, outcome, state)",
    "CREATE INDEX runs_by_outcome ON runs (principal, outcome, started_ms, project, state)",
    "CREATE INDEX runs_by_end ON runs (ended_ms, bytes) WHERE ended_ms IS NOT NULL",
    "CREATE INDEX runs_by_expiry ON runs (kept_until) WHERE pinned = 0",
    f"CREATE INDEX runs_in_progress ON runs (process) WHERE state < {ENDED}",
    "CREATE INDEX runs_to_index ON runs (id) WHERE indexed = 0",
    """CREATE TABLE run_chunks (
        run BIGINT NOT NULL,
        from_seq BIGINT NOT NULL,
        to_seq BIGINT NOT NULL,
        epoch INTEGER NOT NULL,
        codec INTEGER NOT NULL,
        content {bytes} NOT NULL,
        PRIMARY KEY (run, from_seq)
    )""",
    """CREATE TABLE run_questions (
        run BIGINT NOT NULL,
        request {name} NOT NULL,
        event TEXT NOT NULL,
        asked_ms BIGINT NOT NULL,
        PRIMARY KEY (run, request)
    )""",
    """CREATE TABLE run_requests (
        id {key},
        run BIGINT NOT NULL,
        process BIGINT NOT NULL,
        requester BIGINT NOT NULL,
        method {name} NOT NULL,
        params TEXT NOT NULL,
        principal {name} NOT NULL,
        made_ms BIGINT NOT NULL,
        result TEXT
    )""",
    "CREATE INDEX run_requests_open ON run_requests (process) WHERE result IS NULL",
    "CREATE TABLE run_deletions (run {key})",
    """CREATE TABLE run_maintenance (
        name {name} PRIMARY KEY,
        value {name} NOT NULL,
        until_ms BIGINT NOT NULL
    )""",
)

#: What the children of a run are found by, and who made a request.
_CHILDREN: Final = (
    "CREATE INDEX runs_by_parent ON runs (parent, started_ms) WHERE parent IS NOT NULL",
    "ALTER TABLE run_requests ADD COLUMN client {name}",
)

#: The identifier of the credential of a run that can be restarted, in hexadecimal digits.
_CREDENTIALS: Final = ("ALTER TABLE runs ADD COLUMN credential {name}",)

RUNS: Final = Component(
    "runs",
    (Migration(both=_TABLES), Migration(both=_CHILDREN), Migration(both=_CREDENTIALS)),
    durability="normal",
    erases=True,
)


def storable_text(text: str) -> str:
    """Return the text with only what both databases can store.

    The name of a folder may contain bytes that are not text, and a client may send any name.
    """
    return text.encode(errors="replace").decode().replace("\0", "")
