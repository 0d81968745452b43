"""The tables, as a sequence of migrations. A released migration is never edited.

- `task_numbers` is the sequence for the numbers of tasks and changes. `tasks.seq` is the number of
  the last change of a task, so a watch reads the current state of what changed after a number.
- A claim is a part of the row of its task. `lease_process` refers to the process that must be alive
  for it, `lease_until` is set if the lease expires by time.
- A deleted task stays as a row without texts, so that watchers see that it is gone.
"""

from __future__ import annotations

from typing import Final

from plexus.storage import Component, Migration

__all__ = ("TASKS",)

MIGRATIONS: Final = (
    Migration(
        both=(
            "CREATE TABLE task_numbers (value BIGINT NOT NULL)",
            "INSERT INTO task_numbers (value) VALUES (0)",
            """CREATE TABLE tasks (
                n {key},
                id {name} NOT NULL UNIQUE,
                principal {name} NOT NULL,
                project {name} NOT NULL,
                status {name} NOT NULL CHECK (
                    status IN ('pending', 'in_progress', 'done', 'cancelled', 'deleted')
                ),
                description TEXT NOT NULL,
                kind {name} NOT NULL,
                priority BIGINT NOT NULL,
                labels TEXT NOT NULL,
                acceptance TEXT,
                reason TEXT,
                create_key {name},
                creator TEXT NOT NULL,
                created_ms BIGINT NOT NULL,
                updated_ms BIGINT NOT NULL,
                closed_ms BIGINT,
                seq BIGINT NOT NULL,
                holder TEXT,
                lease {name} CHECK (lease IN ('connection', 'run', 'time', 'kept')),
                lease_ref {name},
                lease_process BIGINT,
                lease_until BIGINT,
                claimed_ms BIGINT,
                lost BIGINT NOT NULL DEFAULT 0
            )""",
            "CREATE INDEX tasks_listed ON tasks (principal, project, status, priority, n)",
            "CREATE UNIQUE INDEX tasks_keyed ON tasks (principal, project, create_key)",
            "CREATE INDEX tasks_followed ON tasks (principal, seq)",
            "CREATE INDEX tasks_leased ON tasks (lease_process) WHERE lease_process IS NOT NULL",
            "CREATE INDEX tasks_timed ON tasks (lease_until) WHERE lease_until IS NOT NULL",
            """CREATE TABLE task_links (
                source BIGINT NOT NULL REFERENCES tasks (n),
                target BIGINT NOT NULL REFERENCES tasks (n),
                kind {name} NOT NULL,
                PRIMARY KEY (source, target, kind)
            )""",
            "CREATE INDEX task_links_back ON task_links (target, kind)",
            """CREATE TABLE task_refs (
                task BIGINT NOT NULL REFERENCES tasks (n),
                uri {name} NOT NULL,
                kind {name} NOT NULL,
                at_ms BIGINT NOT NULL,
                PRIMARY KEY (task, uri)
            )""",
            """CREATE TABLE task_notes (
                n {key},
                task BIGINT NOT NULL REFERENCES tasks (n),
                author TEXT NOT NULL,
                content TEXT NOT NULL,
                at_ms BIGINT NOT NULL
            )""",
            "CREATE INDEX task_notes_read ON task_notes (task, n)",
            """CREATE TABLE task_changes (
                seq {key},
                task BIGINT NOT NULL REFERENCES tasks (n),
                kind TEXT NOT NULL,
                actor TEXT NOT NULL,
                at_ms BIGINT NOT NULL,
                details TEXT
            )""",
            "CREATE INDEX task_changes_read ON task_changes (task, seq)",
            """CREATE TABLE task_processes (
                id {key},
                host TEXT NOT NULL,
                pid BIGINT NOT NULL,
                start_ticks BIGINT,
                lease_until BIGINT NOT NULL
            )""",
        ),
    ),
)

TASKS: Final = Component("tasks", MIGRATIONS)
