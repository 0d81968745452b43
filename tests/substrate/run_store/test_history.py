"""History on both engines: pages, filters, searches, pins and deletions of recorded runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from activations_for_tests import Demo
from arbor_databases import ENGINES, new_database
from hub_calls import OTHER, read
from store_hubs import StoreHub, wait_until

from activations.bash.events import Stderr, Stdout
from plexus import Activation, Content, Context, Progress, method
from plexus.errors import Failed, InvalidParams, NotFound
from plexus.principal import LOCAL
from plexus.runtime.run_record import RunQuery
from plexus.storage.engine import Engine, Transaction, open_engine
from substrate.run_store import deletions
from substrate.run_store.history import count_runs, page
from substrate.run_store.run_history import RunHistory
from substrate.run_store.run_texts import ScanBounds, last_word, matcher_for, search_words
from substrate.run_store.schema import RUNS, STATE_NUMBERS

pytestmark = pytest.mark.anyio

OpenStore = Callable[..., Awaitable[StoreHub]]
COLUMNS = (
    "id, method, scope, principal, project, process, pid, host, client, agent_session, state,"
    " outcome, epoch, cancel_requested, started_ms, ended_ms, last_seq, bytes, recorded, arguments,"
    " summary, kept_until, pinned, restart, indexed, parent"
)


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    opened = await open_engine(database, RUNS)
    yield opened
    await opened.close()


@pytest.fixture
async def opened(database: str) -> AsyncIterator[OpenStore]:
    """Open hubs on one database, and close them at the end."""
    hubs: list[StoreHub] = []

    async def make(project: str = "/project") -> StoreHub:
        hub = await StoreHub.open(database, Demo, project=project)
        hubs.append(hub)
        return hub

    yield make
    for each in hubs:
        await each.close()


async def put(
    engine: Engine,
    run: int,
    *,
    method: str = "demo.echo",
    principal: str = "local",
    project: str = "/project",
    state: str = "complete",
    outcome: str | None = "succeeded",
    started_ms: int | None = None,
    parent: int | None = None,
    client: str = "",
    agent_session: str = "",
) -> None:
    """Store the row of a run, which starts at its number in milliseconds."""
    at_ms = run if started_ms is None else started_ms
    ended_ms = None if outcome is None else at_ms + 1
    number = STATE_NUMBERS[state]
    row: list[Any] = [run, method, "demo", principal, project, 1, 1, "host", client, agent_session]
    row += [number, outcome, 0, 0, at_ms, ended_ms, 1, 10, "all", "{}", "", None, 0, "never", 0]
    row.append(parent)
    marks = ", ".join("?" * len(row))
    await engine.write(lambda tx: tx.run(f"INSERT INTO runs ({COLUMNS}) VALUES ({marks})", row))


async def listed(
    engine: Engine, principal: str = "local", project: str | None = None, **query: Any
) -> list[int]:
    def work(tx: Transaction) -> list[int]:
        return [each.run for each in page(tx, principal, RunQuery(**query), project)]

    return await engine.read(work)


async def test_runs_are_listed_newest_first_in_pages_without_gaps(engine: Engine) -> None:
    for run in range(1, 8):
        # Runs that start in the same millisecond are ordered by their numbers.
        await put(engine, run, started_ms=100 + run // 3)
    assert await listed(engine, limit=3) == [7, 6, 5]
    assert await listed(engine, limit=3, before=5) == [4, 3, 2]
    assert await listed(engine, limit=3, before=2) == [1]
    assert await listed(engine, limit=3, before=1) == []
    with pytest.raises(NotFound, match="Unknown run 99"):
        await listed(engine, before=99)


async def test_only_the_runs_of_the_principal_and_its_project_are_listed(engine: Engine) -> None:
    await put(engine, 1)
    await put(engine, 2, project="/other")
    await put(engine, 3, principal="someone")
    assert await listed(engine) == [2, 1]
    assert await listed(engine, project="/project") == [1]
    assert await listed(engine, principal="someone") == [3]
    with pytest.raises(NotFound):
        await listed(engine, before=3)


async def test_methods_are_selected_by_patterns(engine: Engine) -> None:
    methods = ["bash.execute", "arbor.tree_list", "chat.send", "bash.kill", "bash.execute"]
    for run, name in enumerate(methods, 1):
        await put(engine, run, method=name)
    assert await listed(engine, methods=("bash.*",)) == [5, 4, 1]
    assert await listed(engine, methods=("bash",), limit=2) == [5, 4]
    assert await listed(engine, methods=("bash",), limit=2, before=4) == [1]
    assert await listed(engine, methods=("arbor.tree_*", "chat.send")) == [3, 2]
    assert await listed(engine, methods=("nothing.*",)) == []


async def test_runs_are_selected_by_state_outcome_and_time(engine: Engine) -> None:
    states = [
        ("running", None),
        ("asking", None),
        ("complete", "succeeded"),
        ("complete", "failed"),
        ("error", "failed"),
        ("cancelled", "cancelled"),
    ]
    for run, (state, outcome) in enumerate(states, 1):
        await put(engine, run, state=state, outcome=outcome, method=f"demo.m{run % 2}")
    expected = {
        "running": [1],
        "asking": [2],
        "cancelling": [],
        "complete": [4, 3],
        "error": [5],
        "cancelled": [6],
        "succeeded": [3],
        "failed": [5, 4],
    }
    for state, runs in expected.items():
        assert await listed(engine, state=state) == runs, state
        assert await listed(engine, state=state, project="/project") == runs, state
        odd = [run for run in runs if run % 2]
        assert await listed(engine, state=state, methods=("*.m1",)) == odd, state
    assert await listed(engine, since_ms=3, until_ms=5) == [4, 3]


async def test_runs_are_selected_by_parent_client_and_agent_session(engine: Engine) -> None:
    await put(engine, 1, client="Claude Code/2.1", agent_session="one")
    await put(engine, 2, parent=1, client="Claude Code/2.1", agent_session="one")
    await put(engine, 3, parent=1, method="demo.fail", state="error", outcome="failed")
    await put(engine, 4, parent=9, client="100% odd_name!", agent_session="two")
    await put(engine, 5, parent=1, principal="other")
    assert await listed(engine, parent=1) == [3, 2]
    assert await listed(engine, parent=1, state="failed") == [3]
    assert await listed(engine, parent=1, methods=("demo.e*",)) == [2]
    assert await listed(engine, parent=1, methods=("demo.*",), state="succeeded") == [2]
    assert await listed(engine, parent=1, before=3) == [2]
    assert await listed(engine, parent=1, project="/elsewhere") == []
    assert await listed(engine, client="claude") == [2, 1]
    assert await listed(engine, client="CODE/2", methods=("demo.echo",)) == [2, 1]
    assert await listed(engine, client="0% odd_name!") == [4]
    assert await listed(engine, client="%") == [4]
    assert await listed(engine, agent_session="one") == [2, 1]
    assert await listed(engine, agent_session="on") == []


async def test_runs_are_counted_by_state_since_a_time(engine: Engine) -> None:
    await put(engine, 1, state="error", outcome="failed")
    await put(engine, 10)
    await put(engine, 11, outcome="failed")
    await put(engine, 12, state="running", outcome=None)
    await put(engine, 13, state="asking", outcome=None)
    await put(engine, 14, state="cancelling", outcome=None)
    await put(engine, 15, state="cancelled", outcome="cancelled")
    await put(engine, 16, project="/elsewhere")
    await put(engine, 17, principal="other")

    async def counts(project: str | None, since_ms: int) -> tuple[int, ...]:
        found = await engine.read(lambda tx: count_runs(tx, "local", project, since_ms))
        assert list(found) == ["running", "asking", "failed", "total"]
        return tuple(found.values())

    assert await counts("/project", 10) == (2, 1, 1, 6)
    assert await counts("/project", 0) == (2, 1, 2, 7)
    assert await counts(None, 10) == (2, 1, 1, 7)
    assert await counts("/project", 18) == (0, 0, 0, 0)


async def test_counting_a_hundred_thousand_runs_is_fast(tmp_path: Path) -> None:
    engine = await open_engine(str(tmp_path / "runs.db"), RUNS)
    await put(engine, 0)
    copied = COLUMNS.removeprefix("id, ")

    def fill(tx: Transaction) -> None:
        tx.run(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
            f" INSERT INTO runs (id, {copied}) SELECT n.i, {copied} FROM n, runs WHERE id = 0"
        )

    await engine.write(fill)
    durations = []
    for _ in range(5):
        begun = time.process_time()
        found = await engine.read(lambda tx: count_runs(tx, "local", "/project", 0))
        durations.append(time.process_time() - begun)
    assert found["total"] == 100_001
    # Indexes have all columns: 5 ms of processor time, however busy the machine is.
    assert min(durations) < 0.05
    await engine.close()


async def test_a_run_is_in_the_history_while_it_is_in_progress_and_afterwards(
    opened: OpenStore,
) -> None:
    one, two = await opened(), await opened()
    call = one.hub.call("demo.wait", {"seconds": 0.5}, LOCAL)
    assert [each["state"] for each in await one.store.history.query(LOCAL, RunQuery())] == [
        "running"
    ]
    await read(call)
    await one.store.flushed()
    [found] = await two.store.history.query(LOCAL, RunQuery(state="succeeded"))
    assert (found["run"], found["method"]) == (call.run.id, "demo.wait")
    assert found["kept_until"] > time.time() * 1000
    record = await two.store.history.details(call.run.id)
    assert record is not None
    assert record.arguments == '{"seconds":0.5}'
    assert await two.store.history.details(1) is None


async def called(hub: StoreHub, method: str, params: dict[str, Any]) -> int:
    """Call a method to its end, and return its run. The next call starts in a later millisecond."""
    call = hub.hub.call(method, params, LOCAL)
    await read(call)
    started_ms = time.time_ns() // 1_000_000
    await wait_until(lambda: time.time_ns() // 1_000_000 > started_ms + 1)
    return call.run.id


async def found_by(hub: StoreHub, text: str, **query: Any) -> list[int]:
    entries = await hub.store.history.query(LOCAL, RunQuery(text=text, **query))
    return [entry["run"] for entry in entries]


@pytest.mark.parametrize("indexed", [False, True], ids=["recorded", "indexed"])
async def test_words_are_found_in_output_and_arguments(opened: OpenStore, *, indexed: bool) -> None:
    hub = await opened()
    first = await called(hub, "demo.echo", {"text": "The quick brown fox"})
    second = await called(hub, "demo.fail", {"code": "broken", "message": "fox gone"})
    await read(hub.hub.call("demo.echo", {"text": "quick fox"}, OTHER))
    if indexed:
        await hub.store.flushed()
        assert hub.store.maintenance is not None
        await hub.store.maintenance.index_runs()
    assert await found_by(hub, "fox") == [second, first]
    assert await found_by(hub, "FOX quick") == [first]
    assert await found_by(hub, "fo") == []
    assert await found_by(hub, "fox", state="failed") == [second]
    assert await found_by(hub, "fox", methods=("demo.echo",)) == [first]
    assert await found_by(hub, "fox", limit=1) == [second]
    assert await found_by(hub, "fox", before=second) == [first]
    assert await found_by(hub, "good") == [second]


async def test_any_other_text_is_found_by_a_scan(opened: OpenStore) -> None:
    hub = await opened()
    first = hub.hub.call("demo.echo", {"text": "path/to/file-1"}, LOCAL)
    await read(first)
    counted = hub.hub.call("demo.count", {"to": 12}, LOCAL)
    await read(counted)
    assert await found_by(hub, "to/file-") == [first.run.id]
    # The text is in several items.
    assert await found_by(hub, '"9 10 1"') == [counted.run.id]
    assert await found_by(hub, "O/FILE-1") == [first.run.id]
    assert await found_by(hub, "to/file-2") == []


class Divided(Activation):
    """Writes words in parts, which are recorded one by one."""

    namespace = "divided"
    version = "1.0.0"

    @method
    async def write(self, *, ctx: Context) -> AsyncIterator[Content | Progress | Stdout | Stderr]:
        """Write a sentence with progress in between, and an error in the middle of a word."""
        for part in ("say hel", "lo, won", "derful wor"):
            yield Content(text=part)
            yield Progress(done=1, message="still at it")
            await self.flushed(ctx)
        yield Content(text="ld!")
        await self.flushed(ctx)
        for event in (Stdout("gras"), Stderr("warning: rain"), Stdout("shopper")):
            yield event

    async def flushed(self, ctx: Context) -> None:
        """Wait until everything so far is a chunk of its own."""
        stored = ctx.plexus.runs.stored
        assert stored is not None
        await stored.query(LOCAL, RunQuery(limit=0))


@pytest.mark.parametrize("indexed", [False, True], ids=["recorded", "indexed"])
async def test_a_text_is_found_that_is_divided_by_other_items_and_between_two_chunks(
    database: str, *, indexed: bool
) -> None:
    hub = await StoreHub.open(database, Divided)
    run = await called(hub, "divided.write", {})
    await hub.store.flushed()
    sql = "SELECT COUNT(*) FROM run_chunks WHERE run = ?"
    assert (await hub.store.engine.read(lambda tx: tx.one(sql, (run,))) or (0,))[0] > 3
    if indexed:
        await hub.store.maintenance.index_runs()
    for text in ("hello", "wonderful world", "grasshopper", "warning", "say"):
        assert await found_by(hub, text) == [run], text
    for text in ('"say hello, wonderful world!"', "lo, wonderful w", '"grasshopper"', '"g: rain"'):
        assert await found_by(hub, text) == [run], text
    for text in ('"world!grass"', '"helhello"', "sayhello"):
        assert await found_by(hub, text) == [], text
    await hub.close()


async def test_a_scan_yields_what_it_finds_and_reports_where_it_stopped(
    opened: OpenStore,
) -> None:
    hub = await opened()
    runs = [await called(hub, "demo.echo", {"text": "some-text " * 100}) for _ in range(5)]
    runs.reverse()
    store = hub.store
    assert store.maintenance is not None
    small = RunHistory(
        store.engine, store.maintenance, None, store.flushed, ScanBounds(characters=3000)
    )
    parts = [part async for part in small.search(LOCAL, RunQuery(text="some-text"))]
    found = [record.run for part in parts for record in part.runs]
    stopped_at = parts[-1].stopped_at
    assert 0 < len(found) < 5
    assert found == runs[: len(found)]
    assert stopped_at == found[-1]
    rest = await found_by(hub, "some-text", before=stopped_at)
    assert found + rest == runs


async def test_the_query_is_checked(opened: OpenStore) -> None:
    history = (await opened()).store.history
    for query in (
        RunQuery(state="sleeping"),
        RunQuery(methods=("a b",)),
        RunQuery(text='""'),
        RunQuery(text="x" * 1001),
    ):
        with pytest.raises(InvalidParams):
            await history.query(LOCAL, query)


async def test_a_deleted_run_is_gone_for_every_process(opened: OpenStore) -> None:
    one, two = await opened(), await opened()
    call = one.hub.call("demo.echo", {"text": "secret words"}, LOCAL)
    await read(call)
    run = call.run.id
    await one.store.flushed()
    await two.hub.runs.fetch(run, LOCAL)
    assert await two.store.history.delete([run, 12345]) == 1
    assert await found_by(one, "secret") == []
    assert await one.store.history.details(run) is None
    with pytest.raises(NotFound):
        await two.hub.runs.fetch(run, LOCAL)
    assert await two.store.history.delete([run]) == 0


@pytest.mark.parametrize("listed", [deletions.MAX_RUNS, 1], ids=["few", "more than are listed"])
async def test_a_deleted_run_leaves_the_memory_of_every_process(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    monkeypatch.setattr(deletions, "MAX_RUNS", listed)
    one, two, three = await opened(), await opened(), await opened()
    params = [{"text": "x", "_run": f"k{number}"} for number in range(2)]
    calls = [one.hub.call("demo.echo", each, LOCAL) for each in params]
    for call in calls:
        await read(call)
    await one.store.flushed()
    runs = [call.run.id for call in calls]
    for run in runs:
        assert one.hub.runs.find(run, LOCAL)
        await two.hub.runs.fetch(run, LOCAL)
        assert two.hub.runs.find(run, LOCAL)
    assert await three.store.history.delete(runs) == 2
    _, gone = await three.store.engine.read(deletions._read)  # noqa: SLF001 - what is listed
    assert len(gone) == min(listed, 2)
    await wait_until(lambda: not any(run in two.store.loaded._runs for run in runs))  # noqa: SLF001
    # Of its own runs, a process forgets those that are listed.
    await wait_until(lambda: not {each.id for each in one.hub.runs.list_for(LOCAL)} & {*gone})
    for hub in (one, two, three):
        with pytest.raises(NotFound):
            await hub.hub.runs.fetch(gone[-1], LOCAL)
    again = one.hub.call("demo.echo", params[runs.index(gone[-1])], LOCAL)
    await read(again)
    assert again.run.id not in runs


@pytest.mark.parametrize("value", ["", "{", '["x"]', "7", "\\x00"])
async def test_a_damaged_list_of_deletions_is_replaced_by_the_next_one(
    engine: Engine, value: str
) -> None:
    sql = "INSERT INTO run_maintenance (name, value, until_ms) VALUES ('deleted', ?, 5)"
    await engine.write(lambda tx: tx.run(sql, (value,)))

    async def since(seen: int | None) -> deletions.Deletions:
        return await engine.read(lambda tx: deletions.read_deletions(tx, seen))

    assert await since(None) == (5, [], True)
    assert await since(3) == (5, [], False), "what is loaded is compared with the store"
    assert await since(9) == (5, [], False), "the database is another one"
    await engine.write(lambda tx: deletions.add_deletions(tx, [41, 42]))
    assert await since(5) == (7, [41, 42], True)
    assert await since(6) == (7, [42], True)
    assert await since(4) == (7, [41, 42], False)
    assert await since(7) == (7, [], True)


async def test_a_run_in_progress_is_not_deleted(opened: OpenStore) -> None:
    hub = await opened()
    call = hub.hub.call("demo.wait", None, LOCAL)
    with pytest.raises(Failed, match="in progress"):
        await hub.store.history.delete([call.run.id])
    call.run.cancel("enough")
    await read(call)
    assert await hub.store.history.delete([call.run.id]) == 1


def test_words_are_distinguished_from_other_texts() -> None:
    assert search_words("two words") == ["two", "words"]
    assert search_words("änderung_1") == ["änderung_1"]
    for text in ("a.b", '"two words"', "a-b"):
        assert search_words(text) is None


def test_a_text_is_matched_whatever_its_case() -> None:
    has_text = matcher_for('"hello world"')
    assert not has_text("say hel")
    assert not has_text("lo WORLD!")
    assert has_text("Hello WORLD!")
    single = matcher_for('"-"')
    assert not single("abc")
    assert single("a-b")


def test_the_word_at_the_end_of_a_text_may_continue() -> None:
    for text, word in (
        ("say hel", "hel"),
        ("path/to/fi", "fi"),
        ("snake_ca", "snake_ca"),
        ("done ", ""),
        ("x" * 70, ""),
        ("", ""),
        ("g\u0303", "g\u0303"),
    ):
        assert last_word(text) == word
