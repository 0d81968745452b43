"""The tables, as a sequence of migrations. A released migration is never edited.

- `numbers` is the sequence for the numbers of trees, nodes and changes. The number of a node is
  therefore the number of the change that created it, and a cursor value is never reused.
- Parents are referenced by number, without a constraint: a subtree is marked as deleted in one step
  and removed in many. The queries keep the references valid, and the tests check every link. The
  same applies to the node of a head.
"""

from __future__ import annotations

from typing import Final

from plexus.storage import Component, Migration

__all__ = ("ARBOR", "SEARCHED_CHARACTERS")

#: Search covers only the beginning of a text: indexing megabytes would delay all writers, and
#: PostgreSQL has its own limit.
SEARCHED_CHARACTERS: Final = 100_000


MIGRATIONS: Final = (
    Migration(
        both=(
            "CREATE TABLE numbers (value BIGINT NOT NULL)",
            "INSERT INTO numbers (value) VALUES (0)",
            """CREATE TABLE trees (
                n {key},
                id {name} NOT NULL UNIQUE,
                principal {name} NOT NULL,
                owner TEXT NOT NULL,
                state TEXT NOT NULL
                    CHECK (state IN ('active', 'scheduled_delete', 'archived', 'gone')),
                root BIGINT NOT NULL,
                metadata TEXT,
                created_ms BIGINT NOT NULL,
                updated_ms BIGINT NOT NULL,
                scheduled_ms BIGINT,
                archived_ms BIGINT,
                seq BIGINT NOT NULL,
                forgotten BIGINT NOT NULL DEFAULT 0
            )""",
            "CREATE INDEX trees_listed ON trees (principal, id)",
            "CREATE INDEX trees_due ON trees (state, n)",
            """CREATE TABLE tree_refs (
                tree BIGINT NOT NULL REFERENCES trees (n) ON DELETE CASCADE,
                owner {name} NOT NULL,
                count BIGINT NOT NULL CHECK (count > 0),
                PRIMARY KEY (tree, owner)
            )""",
            """CREATE TABLE nodes (
                n {key},
                id {name} NOT NULL UNIQUE,
                tree BIGINT NOT NULL REFERENCES trees (n),
                parent BIGINT,
                position BIGINT NOT NULL,
                content TEXT,
                handle TEXT,
                metadata TEXT,
                created_ms BIGINT NOT NULL,
                replaces {name},
                replaced_by {name},
                deleted_ms BIGINT,
                CHECK ((content IS NULL) <> (handle IS NULL))
            )""",
            "CREATE INDEX nodes_walked ON nodes (tree, n)",
            "CREATE INDEX nodes_ordered ON nodes (parent, position, n)",
            "CREATE INDEX nodes_deleted ON nodes (deleted_ms) WHERE deleted_ms IS NOT NULL",
            """CREATE TABLE changes (
                seq {key},
                tree BIGINT NOT NULL,
                kind TEXT NOT NULL,
                node {name},
                at_ms BIGINT NOT NULL
            )""",
            "CREATE INDEX changes_followed ON changes (tree, seq)",
        ),
    ),
    Migration(
        # The index does not store the texts. Nodes are indexed in batches; `indexed` is the number
        # of the last indexed node.
        sqlite=(
            """CREATE VIRTUAL TABLE search USING fts5(
                content, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
            )""",
            "ALTER TABLE numbers ADD COLUMN indexed BIGINT NOT NULL DEFAULT 0",
            """CREATE TRIGGER nodes_removed AFTER DELETE ON nodes
            WHEN old.content <> '' AND old.n <= (SELECT indexed FROM numbers) BEGIN
                DELETE FROM search WHERE rowid = old.n;
            END""",
        ),
        postgres=(
            f"""ALTER TABLE nodes ADD COLUMN words tsvector GENERATED ALWAYS AS (
                to_tsvector('simple', lower(regexp_replace(
                    left(content, {SEARCHED_CHARACTERS}) COLLATE "und-x-icu",
                    '[^[:alnum:]]+', ' ', 'g'
                )))
            ) STORED""",
            "CREATE INDEX nodes_searched ON nodes USING gin (words)",
        ),
    ),
    Migration(
        # `last_piece` is the number of a head's last piece, so that adding one reads no other row.
        both=(
            """CREATE TABLE heads (
                n {key},
                id {name} NOT NULL UNIQUE,
                principal {name} NOT NULL,
                space {name} NOT NULL,
                name {name} NOT NULL,
                tree BIGINT NOT NULL REFERENCES trees (n) ON DELETE CASCADE,
                node BIGINT NOT NULL,
                data TEXT,
                created_ms BIGINT NOT NULL,
                updated_ms BIGINT NOT NULL,
                holder {name},
                held_ms BIGINT,
                last_piece BIGINT NOT NULL DEFAULT 0
            )""",
            "CREATE UNIQUE INDEX heads_named ON heads (principal, space, name)",
            "CREATE INDEX heads_of_tree ON heads (tree, space, name)",
            """CREATE TABLE pieces (
                head BIGINT NOT NULL REFERENCES heads (n) ON DELETE CASCADE,
                place BIGINT NOT NULL,
                content TEXT NOT NULL,
                PRIMARY KEY (head, place)
            )""",
        ),
    ),
)

#: Predates per-component versions, so its version is stored as the database version.
ARBOR: Final = Component("arbor", MIGRATIONS, uses_database_version=True)
