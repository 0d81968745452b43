"""The PostgreSQL engine: durability, notifications, unavailable servers, errors and migrations.

The tests use a real server. Tests that stop or stall it start their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import server
from postgres_server import GUEST_PASSWORD, MISSING, PostgresServer, programs

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

from activations.arbor.model import NewNode  # noqa: E402
from activations.arbor.schema import ARBOR  # noqa: E402
from activations.arbor.store import open_store  # noqa: E402
from plexus.errors import Busy, Failed, NotFound  # noqa: E402
from plexus.storage import Transaction  # noqa: E402
from plexus.storage.migrations import statements  # noqa: E402
from plexus.storage.postgres import engine, session  # noqa: E402
from plexus.storage.postgres.engine import PostgresEngine  # noqa: E402
from plexus.storage.postgres.session import convert_placeholders  # noqa: E402
from plexus.storage.postgres.writer import CREATE_WRITERS, lock_key  # noqa: E402

pytestmark = pytest.mark.anyio

Open = Callable[[str], Awaitable[PostgresEngine]]


async def open_arbor(url: str) -> PostgresEngine:
    return await engine.open_engine(url, ARBOR)


WAIT_S = 20


@pytest.fixture
async def open_for_test() -> AsyncIterator[Open]:
    """Open engines that are closed at the end."""
    opened: list[PostgresEngine] = []

    async def open_one(url: str) -> PostgresEngine:
        async with asyncio.timeout(WAIT_S):
            one = await open_arbor(url)
        opened.append(one)
        return one

    yield open_one
    async with asyncio.timeout(WAIT_S):
        for one in opened:
            await one.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Start a server that the test may stop."""
    if programs() is None:
        pytest.skip(MISSING)
    own = PostgresServer()
    own.start()
    yield own
    own.close()


@pytest.fixture
def url() -> str:
    shared = server()
    return shared.url(shared.new_database())


def add(value: str) -> Callable[[Transaction], int]:
    """Return a unit of work that adds a row to the table of changes."""

    def work(transaction: Transaction) -> int:
        row = transaction.one("UPDATE numbers SET value = value + 1 RETURNING value")
        assert row is not None
        transaction.run(
            "INSERT INTO changes (seq, tree, kind, node, at_ms) VALUES (?, 0, 'test', ?, 0)",
            (row[0], value),
        )
        return int(row[0])

    return work


def added(transaction: Transaction) -> list[str]:
    """Return the added rows, in order."""
    return [row[0] for row in transaction.all("SELECT node FROM changes ORDER BY seq")]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - another thread changes it
            await asyncio.sleep(0.01)


# --- statements ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("SELECT ?, ?", "SELECT $1, $2"),
        ("SELECT '?', ?", "SELECT '?', $1"),
        ("SELECT 'it''s ?', ?", "SELECT 'it''s ?', $1"),
        ('SELECT "?" FROM t WHERE a = ?', 'SELECT "?" FROM t WHERE a = $1'),
        ("SELECT a LIKE '%' || ? -- why?\n, ?", "SELECT a LIKE '%' || $1 -- why?\n, $2"),
        ("SELECT /* ? \n ? */ ? % 2", "SELECT /* ? \n ? */ $1 % 2"),
    ],
)
def test_a_question_mark_is_a_parameter_outside_of_text_only(sql: str, meant: str) -> None:
    assert convert_placeholders(sql) == meant.encode()


async def test_percent_signs_and_question_marks_are_stored_unchanged(
    open_for_test: Open, url: str
) -> None:
    one = await open_for_test(url)
    row = await one.read(
        lambda tx: tx.one("SELECT '100 %s? %(a)s', ? || '%', 7 % ?", ("%s ? $1", 4))
    )
    assert row == ("100 %s? %(a)s", "%s ? $1%", 3)


async def test_rows_can_be_iterated_and_abandoned_early(open_for_test: Open, url: str) -> None:
    def work(transaction: Transaction) -> tuple[list[int], int]:
        rows = transaction.each("SELECT * FROM generate_series(1, ?)", (10_000,))
        first = [next(rows)[0] for _ in range(3)]
        rows.close()  # type: ignore[attr-defined] # it is a generator
        rest = sum(1 for _ in transaction.each("SELECT * FROM generate_series(1, ?)", (1_500,)))
        return first, rest

    one = await open_for_test(url)
    assert await one.read(work) == ([1, 2, 3], 1_500)


# --- writing and reading -------------------------------------------------------------------------


async def test_work_that_raises_is_rolled_back_without_the_rest_of_its_group(
    open_for_test: Open, url: str
) -> None:
    one = await open_for_test(url)
    held = threading.Event()

    def wait(_: Transaction) -> None:
        held.wait(WAIT_S)

    def refuse(transaction: Transaction) -> None:
        add("refused")(transaction)
        raise NotFound("no such thing")

    def fail_in_database(transaction: Transaction) -> None:
        add("broken")(transaction)
        transaction.run("SELECT no_such_column FROM changes")

    def refuse_before_writing(_: Transaction) -> None:
        raise NotFound("no such thing either")

    def raise_unexpected_error(transaction: Transaction) -> None:
        add("defect")(transaction)
        raise ZeroDivisionError

    first = asyncio.ensure_future(one.write(wait))
    await asyncio.sleep(0.05)  # so that the others are queued behind it
    units: list[Callable[[Transaction], Any]] = [
        add("a"), refuse_before_writing, refuse, add("b"), fail_in_database, add("c"),
        raise_unexpected_error, add("d"), refuse,
    ]  # fmt: skip
    others = asyncio.gather(*map(one.write, units), return_exceptions=True)
    await asyncio.sleep(0.05)
    held.set()
    await first
    results = await others
    assert [type(result) for result in results] == [
        int, NotFound, NotFound, int, Failed, int, ZeroDivisionError, int, NotFound,
    ]  # fmt: skip
    assert await one.read(added) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("error", [NotFound("no"), ZeroDivisionError()])
async def test_work_that_raises_alone_leaves_nothing(
    open_for_test: Open, url: str, error: Exception
) -> None:
    one = await open_for_test(url)

    def work(transaction: Transaction) -> None:
        add("undone")(transaction)
        raise error

    with pytest.raises(type(error)):
        await one.write(work)
    await one.write(add("kept"))
    assert await one.read(added) == ["kept"]


async def test_a_read_sees_a_snapshot_and_cannot_write(open_for_test: Open, url: str) -> None:
    one = await open_for_test(url)
    await one.write(add("first"))
    seen, go_on = threading.Event(), threading.Event()

    def look_twice(transaction: Transaction) -> tuple[list[str], list[str]]:
        before = added(transaction)
        seen.set()
        go_on.wait(WAIT_S)
        return before, added(transaction)

    reading = asyncio.ensure_future(one.read(look_twice))
    await eventually(seen.is_set)
    await one.write(add("second"))  # it does not wait for the reader
    go_on.set()
    assert await reading == (["first"], ["first"])
    with pytest.raises(Failed) as caught:
        await one.read(add("third"))
    assert caught.value.code == "storage_read_only"


async def test_work_of_a_cancelled_caller_is_not_started(open_for_test: Open, url: str) -> None:
    one = await open_for_test(url)
    held = threading.Event()
    first = asyncio.ensure_future(one.write(lambda _: held.wait(WAIT_S)))
    await asyncio.sleep(0.05)
    left = asyncio.ensure_future(one.write(add("left")))
    await asyncio.sleep(0.05)
    left.cancel()
    await asyncio.sleep(0)
    held.set()
    await first
    await one.write(add("kept"))
    assert await one.read(added) == ["kept"]


async def test_writers_of_two_processes_number_their_changes_in_the_order_of_commits(
    open_for_test: Open, url: str
) -> None:
    one, two = await open_for_test(url), await open_for_test(url)
    seen: list[int] = []
    done = False

    async def follow() -> None:
        while not done or not seen or seen[-1] < 200:
            after = seen[-1] if seen else 0
            rows = await one.read(
                lambda tx, after=after: tx.all(  # type: ignore[misc] # mypy and defaults
                    "SELECT seq FROM changes WHERE seq > ? ORDER BY seq", (after,)
                )
            )
            seen.extend(row[0] for row in rows)

    following = asyncio.ensure_future(follow())
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(each.write(add("x")) for each in [one, two] * 100))
        done = True
        await following
    assert seen == list(range(1, 201))  # never out of order


# --- notifications -------------------------------------------------------------------------------


async def test_subscribers_in_another_process_are_notified(open_for_test: Open, url: str) -> None:
    one, two = await open_for_test(url), await open_for_test(url)
    notified = asyncio.Event()
    unsubscribe = two.subscribe(notified.set)
    await asyncio.sleep(0.3)  # until it listens and has polled the table
    notified.clear()
    begun = time.monotonic()
    await one.write(add("news"))
    async with asyncio.timeout(WAIT_S):
        await notified.wait()
    assert time.monotonic() - begun < WAIT_S
    unsubscribe()


async def test_subscribers_are_notified_of_local_writes(open_for_test: Open, url: str) -> None:
    one = await open_for_test(url)
    calls: list[None] = []
    unsubscribe = one.subscribe(lambda: calls.append(None))
    await one.write(add("news"))
    assert calls  # immediately, not through the server
    unsubscribe()
    before = len(calls)
    await one.write(add("more"))
    assert len(calls) == before


async def test_a_lost_notification_is_compensated_by_polling(open_for_test: Open, url: str) -> None:
    one = await open_for_test(url)
    notified = asyncio.Event()
    one.subscribe(notified.set)
    await asyncio.sleep(0.3)
    notified.clear()
    # As if a process died between its commit and its notification.
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO changes VALUES (77, 0, 'test', 'x', 0)")
        connection.execute("INSERT INTO writers VALUES ('another', 1, 0)")
    async with asyncio.timeout(WAIT_S):
        await notified.wait()


async def test_a_listener_that_lost_its_connection_reconnects(
    open_for_test: Open, url: str
) -> None:
    one, two = await open_for_test(url), await open_for_test(url)
    notified = asyncio.Event()
    two.subscribe(notified.set)
    await asyncio.sleep(0.3)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    notified.clear()
    await one.write(add("news"))
    async with asyncio.timeout(WAIT_S):
        await notified.wait()


async def test_many_writes_notify_other_processes_rarely(open_for_test: Open, url: str) -> None:
    one = await open_for_test(url)
    notices: list[str] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN arbor_changes")
        begun = time.monotonic()
        for _ in range(100):
            await one.write(add("x"))
        took = time.monotonic() - begun
        notices += [n.payload for n in connection.notifies(timeout=0.5)]
    assert 1 <= len(notices) <= took / 0.01 + 2


# --- an unavailable server -----------------------------------------------------------------------


async def test_calls_wait_for_a_server_that_restarts(
    open_for_test: Open, own_server: PostgresServer
) -> None:
    one = await open_for_test(own_server.url(own_server.new_database()))
    acknowledged: list[str] = []
    stop = False

    async def write(name: int) -> None:
        number = 0
        while not stop:
            number += 1
            await one.write(add(f"{name}-{number}"))
            acknowledged.append(f"{name}-{number}")

    async def read() -> None:
        while not stop:
            await one.read(added)

    async with asyncio.timeout(2 * WAIT_S):
        tasks = [asyncio.ensure_future(write(name)) for name in range(4)]
        tasks.append(asyncio.ensure_future(read()))
        for how in (signal.SIGINT, signal.SIGQUIT):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own_server.stop, how)
            await asyncio.sleep(0.2)
            before = len(acknowledged)
            await asyncio.to_thread(own_server.start)
            await eventually(lambda before=before: len(acknowledged) > before + 8)  # type: ignore[misc]
        stop = True
        await asyncio.gather(*tasks)
        stored = await one.read(added)
    # Nothing was lost or written twice, although commits were interrupted.
    assert sorted(stored) == sorted(acknowledged)


async def test_an_unavailable_server_is_a_typed_error_until_it_returns(
    open_for_test: Open, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "UNAVAILABLE_S", 0.5)
    one = await open_for_test(own_server.url(own_server.new_database()))
    await one.write(add("before"))
    own_server.stop()
    async with asyncio.timeout(WAIT_S):
        results = await asyncio.gather(
            *(one.write(add("lost")) for _ in range(5)),
            *(one.read(added) for _ in range(5)),
            return_exceptions=True,
        )
    assert [getattr(result, "code", result) for result in results] == ["storage"] * 10
    own_server.start()
    await one.write(add("after"))
    assert await one.read(added) == ["before", "after"]


async def test_opening_a_store_without_a_server_fails_before_the_timeout(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "UNAVAILABLE_S", 0.3)
    own_server.stop()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Failed) as caught:
            await open_arbor(own_server.url("postgres"))
    assert caught.value.code == "storage"


async def test_an_unresponsive_server_is_disconnected(
    open_for_test: Open, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "UNAVAILABLE_S", 0.5)
    monkeypatch.setattr(session, "UNRESPONSIVE_S", 0.5)
    database = own_server.new_database()
    one = await open_for_test(own_server.url(database))
    await one.write(add("before"))
    await one.read(added)
    stopped = own_server.backends(database)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(WAIT_S):
            # New connections have new server processes, so these calls succeed or raise Failed.
            results = await asyncio.gather(
                one.write(add("during")), one.read(added), return_exceptions=True
            )
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert all(
        not isinstance(result, BaseException) or isinstance(result, Failed) for result in results
    )
    await one.write(add("after"))
    stored = await one.read(added)
    assert stored[0] == "before"
    assert stored[-1] == "after"


async def test_a_commit_whose_response_was_lost_is_neither_lost_nor_repeated(
    open_for_test: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await open_for_test(url)
    await one.write(add("before"))
    say = session.PostgresSession.execute
    cuts = ["after", "before"]

    def say_and_lose(self: session.PostgresSession, sql: str) -> Any:
        if not sql.endswith("COMMIT") or "INSERT INTO writers" not in sql or not cuts:
            return say(self, sql)
        if cuts.pop() == "after":
            say(self, sql)
        self.connection.close()
        return say(self, "SELECT 1")

    monkeypatch.setattr(session.PostgresSession, "execute", say_and_lose)
    async with asyncio.timeout(WAIT_S):
        await one.write(add("not yet stored when it was cut"))
        await one.write(add("stored when it was cut"))
    assert cuts == []
    assert await one.read(added) == [
        "before",
        "not yet stored when it was cut",
        "stored when it was cut",
    ]


# --- errors --------------------------------------------------------------------------------------


async def test_a_wrong_password_is_reported_immediately() -> None:
    shared = server()
    database = shared.new_database()
    shared.execute(
        "postgres",
        f"DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN PASSWORD '{GUEST_PASSWORD}'",
    )
    shared.execute(database, "GRANT CREATE ON SCHEMA public TO guest")
    for secret in ("wrong", ""):
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(Failed) as caught:
                await open_arbor(shared.tcp_url(database, "guest", secret))
        assert caught.value.code == "storage_denied"
        assert "wrong" not in caught.value.message
    right = await open_arbor(shared.tcp_url(database, "guest", GUEST_PASSWORD))
    await right.write(add("welcome"))
    await right.close()
    shared.execute(database, "REVOKE ALL ON SCHEMA public FROM guest; DROP OWNED BY guest CASCADE")


@pytest.mark.parametrize("change", ["/no_such_database", "@nobody"])
async def test_an_unknown_database_or_role_is_reported_immediately(change: str) -> None:
    shared = server()
    url = shared.url("no_such_database")
    if change == "@nobody":
        url = shared.url("postgres").replace("substrate@", "nobody@")
    with pytest.raises(Failed) as caught:
        await open_arbor(url)
    assert caught.value.code == "storage_denied"


async def test_an_invalid_url_is_reported() -> None:
    with pytest.raises(Failed):
        await open_arbor("postgresql://host/db?no_such_option=1")


async def test_a_database_that_becomes_read_only_refuses_writes_and_recovers(
    open_for_test: Open, url: str
) -> None:
    name = url.rpartition("/")[2]
    server().execute("postgres", f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(Failed) as caught:
        await open_arbor(url)
    assert caught.value.code == "storage_read_only"
    server().execute("postgres", f"ALTER DATABASE {name} RESET default_transaction_read_only")
    writable = await open_for_test(url)
    await writable.write(add("stored"))
    server().execute("postgres", f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    one = await open_for_test(url)  # a current database is only read
    with pytest.raises(Failed) as caught:
        await one.write(add("refused"))
    assert caught.value.code == "storage_read_only"
    assert await one.read(added) == ["stored"]


async def test_a_full_disk_is_reported_and_recovers(open_for_test: Open, url: str) -> None:
    # The server's own error, raised while a row is written.
    one = await open_for_test(url)
    await one.write(add("before"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER full_disk BEFORE INSERT ON changes EXECUTE FUNCTION full_disk()"
        )
        with pytest.raises(Failed) as caught:
            await one.write(add("lost"))
        assert caught.value.code == "storage_full"
        connection.execute("DROP TRIGGER full_disk ON changes")
    await one.write(add("after"))
    assert await one.read(added) == ["before", "after"]


async def test_a_writer_that_holds_the_lock_too_long_makes_others_busy(
    open_for_test: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SETTINGS", "SET lock_timeout = '200ms'")
    one = await open_for_test(url)
    with psycopg.connect(url) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({lock_key(ARBOR)})".encode())
        with pytest.raises(Busy):
            await one.write(add("refused"))
    await one.write(add("stored"))
    assert await one.read(added) == ["stored"]


async def test_a_statement_that_takes_too_long_is_cancelled(
    open_for_test: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SETTINGS", "SET statement_timeout = '200ms'")
    one = await open_for_test(url)
    with pytest.raises(Busy):
        await one.read(lambda tx: tx.one("SELECT pg_sleep(20)"))
    await one.write(add("stored"))


# --- versions ------------------------------------------------------------------------------------


async def test_engines_that_start_concurrently_migrate_once(open_for_test: Open, url: str) -> None:
    await asyncio.gather(*(open_for_test(url) for _ in range(8)))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [
            (ARBOR.version,)
        ]
        assert connection.execute("SELECT count(*) FROM numbers").fetchall() == [(1,)]


@pytest.mark.parametrize("version", range(1, ARBOR.version))
async def test_a_database_of_an_older_version_is_migrated_and_reads_back(
    url: str, version: int
) -> None:
    later = statements(ARBOR, "postgres", version)
    with psycopg.connect(url) as connection:
        for sql in [sql for sql in statements(ARBOR, "postgres", 0) if sql not in later]:
            connection.execute(sql)
        connection.execute("CREATE TABLE schema_version (version BIGINT NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (%s)", (version,))
        connection.execute(CREATE_WRITERS)
        tree, root = "0" * 36, "1" * 36
        connection.execute(
            "INSERT INTO trees (n, id, principal, owner, state, root, created_ms, updated_ms, seq)"
            " VALUES (1, %s, 'me', 'o', 'active', 2, 0, 0, 2)",
            (tree,),
        )
        connection.execute(
            "INSERT INTO nodes (n, id, tree, position, content, created_ms)"
            " VALUES (2, %s, 1, 0, 'an old text', 0)",
            (root,),
        )
        connection.execute("UPDATE numbers SET value = 2")
    store = await open_store(url)
    assert (await store.get_tree("me", tree)).root == root
    [new] = await store.append("me", tree, None, [NewNode("a new text")])
    found = [hit.node.id for hit in await store.search("me", "text", None, None, 10)]
    assert found == [new.id, root]
    head = await store.create_head("me", "chat", "new")
    assert await store.list_heads("me", "chat", None, 10) == [head]
    await store.close()


async def test_a_failed_migration_leaves_nothing_and_can_be_repeated(
    open_for_test: Open, url: str
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE changes (in_the_way int)"
        )  # makes the migration fail half-way
        with pytest.raises(Failed):
            await open_arbor(url)
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        assert tables == [("changes",)]
        connection.execute("DROP TABLE changes")
    one = await open_for_test(url)
    await one.write(add("stored"))


async def test_a_database_of_a_later_version_is_refused(open_for_test: Open, url: str) -> None:
    await open_for_test(url)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE schema_version SET version = version + 1")
    with pytest.raises(Failed) as caught:
        await open_arbor(url)
    assert caught.value.code == "storage_newer"


async def test_a_database_without_utf8_is_refused() -> None:
    shared = server()
    name = shared.new_database("ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(Failed, match="UTF8"):
        await open_arbor(shared.url(name))


async def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("plexus.storage.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Failed, match=r"pip install plexus-substrate\[postgres\]"):
        await open_store("postgresql://host/database")


async def test_a_backup_of_a_server_is_refused(open_for_test: Open, url: str) -> None:
    one = await open_for_test(url)
    with pytest.raises(Failed, match="pg_dump"):
        await one.backup(Path("copy"))


async def test_a_closed_engine_refuses_calls_and_can_be_closed_again(url: str) -> None:
    one = await open_arbor(url)
    waiting = [asyncio.ensure_future(one.write(add("x"))) for _ in range(20)]
    await asyncio.sleep(0)
    await one.close()
    await one.close()
    await asyncio.gather(*waiting)  # queued work was finished
    with pytest.raises(Failed):
        await one.write(add("late"))
    again = await open_arbor(url)
    assert len(await again.read(added)) == 20
    await again.close()
