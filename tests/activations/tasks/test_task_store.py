"""The store of tasks on both engines: rows, links, readiness, claims and leases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import ENGINES, new_database
from hub_calls import WAIT_S

from activations.tasks import lease_monitor, model
from activations.tasks.feed import follow
from activations.tasks.lease_monitor import LeaseMonitor
from activations.tasks.model import Caller, Filter, Listed
from activations.tasks.queries import claims, rows
from activations.tasks.queries.tasks import NewTask, Patch
from activations.tasks.store import Store, open_store, own_process
from plexus.errors import Busy, Failed, InvalidParams, NotFound, PlexusError, TooBig
from plexus.storage import Transaction

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HERE = "/project"
ANN = Caller("me", "ann", "connection", "1")
BOB = Caller("me", "bob", "connection", "2")
TIMED = Caller("me", "web", "time", "web")
PERSON = Caller("me", "Browser", "kept", "")
STRANGER = Caller("you", "ann", "connection", "1")


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = await open_store(database)
    yield opened
    await opened.close()


async def add(store: Store, description: str, caller: Caller = ANN, **more: Any) -> str:
    name: str = (await store.create(caller, HERE, NewTask(description, **more)))["id"]
    return name


async def listed(store: Store, status: Listed, **more: Any) -> list[str]:
    page, _, total = await store.list_tasks("me", Filter(HERE, status, **more), None, 100)
    assert total == len(page)
    return [each["description"] for each in page]


async def refused(call: Awaitable[object], error: type[PlexusError], code: str) -> PlexusError:
    with pytest.raises(error) as caught:
        await call
    assert caught.value.code == code
    return caught.value


async def expire(store: Store, sql: str, *params: Any) -> None:
    """Change the rows as time or another machine would have."""
    await store._engine.write(lambda tx: tx.run(sql, params))  # noqa: SLF001 - there is no other way


# --- tasks ----------------------------------------------------------------------------------------


async def test_a_task_with_only_a_description_has_only_that(store: Store) -> None:
    task = await store.create(ANN, HERE, NewTask("Fix parser bug"))
    assert list(task) == ["id", "description", "status"]
    assert rows.is_id(task["id"])
    assert task["status"] == "pending"


async def test_everything_given_is_stored_and_read_again(store: Store) -> None:
    parent = await add(store, "Release", kind="epic")
    first = await add(store, "First")
    made = await store.create(
        ANN,
        HERE,
        NewTask("Ünïcode\n\n𝄞", "bug", 0, ["UI", "a_b", "ui"], ["Works", "Fast"], parent, [first]),
    )
    found = await store.get("me", made["id"])
    assert found["description"] == "Ünïcode\n\n𝄞"
    assert (found["type"], found["priority"], found["labels"]) == ("bug", 0, ["a_b", "ui"])
    assert found["acceptance"] == [{"text": "Works", "met": False}, {"text": "Fast", "met": False}]
    assert found["blocked_by"] == made["blocked_by"] == [first]
    assert found["project"] == HERE
    assert found["creator"] == "ann"
    assert {(each["kind"], each["source"]) for each in found["links"]} == {
        ("parent", parent),
        ("blocks", first),
    }


async def test_an_id_may_be_shortened_while_it_is_unique(store: Store) -> None:
    name = await add(store, "One")
    assert (await store.get("me", name[:12]))["id"] == name
    assert (await store.get("me", name.removeprefix("task_")[:7]))["id"] == name
    twins = name[:-1] + ("0" if name[-1] != "0" else "1")
    await expire(store, "UPDATE tasks SET id = ? WHERE n = ?", twins, -1)
    other = await add(store, "Two")
    await expire(store, "UPDATE tasks SET id = ? WHERE id = ?", twins, other)
    error = await refused(store.get("me", name[:-1]), InvalidParams, "ambiguous")
    assert name in error.message
    assert twins in error.message


@pytest.mark.parametrize("name", ["task_xyz", "", "x", "%", "task_%", "task_00000000", "ä" * 99])
async def test_an_unknown_task_is_named_in_the_error(store: Store, name: str) -> None:
    await add(store, "One")
    for call in (
        store.get("me", name),
        store.close_task(ANN, name),
        store.claim(ANN, name),
        store.history("me", name, 0, 10),
        store.delete(ANN, [name]),
        store.unlink(ANN, name, "blocks", name),
    ):
        error = await refused(call, NotFound, "not_found")
        assert error.message == f"error: task not found: {name[:64]}"


async def test_tasks_of_another_principal_do_not_exist(store: Store) -> None:
    name = await add(store, "Mine", key="k")
    await refused(store.get("you", name), NotFound, "not_found")
    await refused(store.claim(STRANGER, name), NotFound, "not_found")
    await refused(store.close_task(STRANGER, name), NotFound, "not_found")
    assert await store.next_task(STRANGER, Filter(HERE), claim=True) is None
    assert await store.changed("you", None, 0, 10) == []
    assert await store.projects("you") == []
    other = await store.create(STRANGER, HERE, NewTask("Yours", key="k"))
    assert other["id"] != name


async def test_a_repeated_key_creates_nothing(store: Store) -> None:
    made = await asyncio.gather(
        *(store.create(ANN, HERE, NewTask("Once", key="k")) for _ in range(10))
    )
    assert len({task["id"] for task in made}) == 1
    assert await listed(store, "all") == ["Once"]
    error = await refused(store.create(ANN, HERE, NewTask("Else", key="k")), Failed, "key_used")
    assert made[0]["id"] in error.message
    assert (await store.create(ANN, "/elsewhere", NewTask("Else", key="k")))["id"]


async def test_the_most_urgent_is_first_and_pages_have_no_gap(store: Store) -> None:
    for number in range(23):
        await add(store, f"t{number}", priority=number % 5)
    seen: list[str] = []
    after = None
    while True:
        page, after, total = await store.list_tasks("me", Filter(HERE), after, 5)
        assert total == 23
        seen += [each["description"] for each in page]
        if after is None:
            break
    assert seen == [f"t{n}" for n in sorted(range(23), key=lambda n: (n % 5, n))]


async def test_lists_are_filtered_and_wildcards_are_text(store: Store) -> None:
    await add(store, "100% sure", labels=["a_b"])
    await add(store, "1000 sure", labels=["axb"])
    await store.create(ANN, "/elsewhere", NewTask("Other project"))
    assert await listed(store, "open", label="A_B") == ["100% sure"]
    assert await listed(store, "open", text="100% S") == ["100% sure"]
    assert await listed(store, "open", text="0!") == []
    assert await listed(store, "open", text="\0\ud800") == ["100% sure", "1000 sure"]
    page, _, _ = await store.list_tasks("me", Filter(None), None, 100)
    assert len(page) == 3
    assert await store.projects("me") == [
        {"project": "/elsewhere", "tasks": 1, "open": 1},
        {"project": HERE, "tasks": 2, "open": 2},
    ]


# --- links ----------------------------------------------------------------------------------------


async def test_ready_means_open_without_an_open_blocker(store: Store) -> None:
    a, b = await add(store, "a"), await add(store, "b")
    c = await add(store, "c", blocked_by=[a, b])
    assert await listed(store, "ready") == ["a", "b"]
    assert await listed(store, "blocked") == ["c"]
    error = await refused(store.claim(ANN, c), Failed, "blocked")
    assert error.data["blocked_by"] == [a, b]
    assert "unblocked" not in await store.close_task(ANN, a)
    assert (await store.close_task(ANN, b, "cancelled"))["unblocked"] == [c]
    assert await listed(store, "ready") == ["c"]
    await store.update(ANN, b, Patch("pending"))
    assert await listed(store, "blocked") == ["c"]
    await store.unlink(ANN, b, "blocks", c)
    assert await listed(store, "ready") == ["b", "c"]


@pytest.mark.parametrize("kind", ["blocks", "parent", "discovered_from"])
async def test_a_cycle_is_refused_at_any_length(store: Store, kind: str) -> None:
    names = [await add(store, str(number)) for number in range(12)]
    for left, right in pairwise(names):
        await store.link(ANN, left, kind, right)
    for start in (0, 5, 10):
        error = await refused(store.link(ANN, names[-1], kind, names[start]), Failed, "cycle")
        assert names[start] in error.message
    await refused(store.link(ANN, names[0], kind, names[0]), Failed, "cycle")
    assert len((await store.get("me", names[-1]))["links"]) == 1


async def test_related_tasks_have_one_link_without_a_direction(store: Store) -> None:
    a, b = await add(store, "a"), await add(store, "b")
    await store.link(ANN, b, "related", a)
    await store.link(ANN, a, "related", b)
    assert len((await store.get("me", a))["links"]) == 1
    assert await store.unlink(ANN, b, "related", a)
    assert not await store.unlink(ANN, b, "related", a)
    assert "links" not in await store.get("me", a)


async def test_a_task_has_one_parent(store: Store) -> None:
    a, b, c = [await add(store, name) for name in "abc"]
    await store.link(ANN, a, "parent", c)
    error = await refused(store.link(ANN, b, "parent", c), Failed, "has_parent")
    assert a in error.message


async def test_runs_and_diffs_are_linked_by_their_uris(store: Store) -> None:
    name = await add(store, "a")
    for kind, uri in (("run", "run://42"), ("diff", "diff://7"), ("run", "run://42")):
        await store.link(ANN, name, kind, uri)
    found = await store.get("me", name)
    assert {(each["kind"], each["uri"]) for each in found["refs"]} == {
        ("run", "run://42"),
        ("diff", "diff://7"),
    }
    assert await store.unlink(ANN, name, "run", "run://42")
    for kind, uri in (("run", "run://x"), ("run", "task_1"), ("diff", "no scheme"), ("diff", "a")):
        await refused(store.link(ANN, name, kind, uri), InvalidParams, "bad_uri")


# --- claims ---------------------------------------------------------------------------------------


async def test_one_of_several_callers_gets_a_task_and_the_others_learn_who(store: Store) -> None:
    name = await add(store, "a")
    callers = [Caller("me", f"agent {n}", "connection", str(n)) for n in range(8)]
    results = await asyncio.gather(
        *(store.claim(caller, name) for caller in callers), return_exceptions=True
    )
    [won] = [each for each in results if isinstance(each, dict)]
    losers = [each for each in results if isinstance(each, Busy)]
    assert len(losers) == 7
    assert {error.code for error in losers} == {"claimed"}
    assert {error.data["holder"] for error in losers} == {won["holder"]}
    assert all(won["holder"] in error.message for error in losers)


async def test_only_the_holder_closes_or_releases_a_task_without_force(store: Store) -> None:
    name = await add(store, "a")
    await store.claim(ANN, name)
    await store.claim(ANN, name)  # again is no change
    await refused(store.close_task(BOB, name), Busy, "claimed")
    await refused(store.update(BOB, name, Patch("pending")), Busy, "claimed")
    await refused(store.claim(BOB, name), Busy, "claimed")
    await store.update(BOB, name, Patch(note="A note needs no claim"))
    taken = await store.claim(BOB, name, force=True)
    assert taken["holder"] == "bob"
    assert (await store.update(BOB, name, Patch("pending")))["status"] == "pending"
    await store.claim(ANN, name)
    closed = await store.close_task(BOB, name, "done", "Finished elsewhere", force=True)
    assert closed["reason"] == "Finished elsewhere"
    assert (await store.close_task(ANN, name))["status"] == "done"  # again is no change
    await refused(store.claim(ANN, name), Failed, "closed")


async def test_claims_end_with_their_connection_run_process_or_time(store: Store) -> None:
    run = Caller("me", "agent", "run", "77")
    names = [await add(store, str(number)) for number in range(5)]
    for caller, name in zip((ANN, run, TIMED, PERSON, BOB), names, strict=True):
        await store.claim(caller, name)
    assert await store.release_of("connection", "1", "gone") == 1
    assert await store.release_of("run", "77", "gone") == 1
    assert await store.release_of("run", "1", "gone") == 0
    await expire(store, "UPDATE tasks SET lease_until = 1 WHERE id = ?", names[2])
    assert await listed(store, "in_progress") == ["3", "4"]
    process = "UPDATE task_processes SET {} WHERE id = ?"
    own = store.process.id
    # On this machine, a lease that expired is that of a process that was stopped for a while.
    await expire(store, process.format("lease_until = 1"), own)
    assert await listed(store, "in_progress") == ["3", "4"]
    await expire(store, process.format("host = 'elsewhere'"), own)
    assert await listed(store, "in_progress") == ["3"]  # a person keeps it
    lost = await store.get("me", names[4])
    assert lost["lost"] == 1


async def test_any_call_renews_a_lease_by_time(store: Store) -> None:
    name = await add(store, "a")
    await store.claim(TIMED, name)
    soon = "UPDATE tasks SET lease_until = lease_until - 600000 WHERE id = ?"
    await expire(store, soon, name)
    _, before = await store.leases()
    await store.touch(Caller("me", "other", "time", "other"))
    assert (await store.leases())[1] == before
    await store.touch(TIMED)
    _, after = await store.leases()
    assert before is not None
    assert after is not None
    assert after > before


async def test_a_task_that_three_holders_left_is_stuck_until_it_is_offered_again(
    store: Store,
) -> None:
    name = await add(store, "a")
    for _ in range(model.LOST_LIMIT):
        assert await store.next_task(ANN, Filter(HERE), claim=True)
        await store.release_of("connection", "1", "gone")
    assert await store.next_task(ANN, Filter(HERE), claim=True) is None
    assert (await store.get("me", name))["stuck"] is True
    await refused(store.claim(ANN, name), Failed, "stuck")
    await store.update(ANN, name, Patch("pending"))
    assert (await store.claim(ANN, name))["status"] == "in_progress"


async def test_a_store_that_closes_releases_its_claims(database: str, store: Store) -> None:
    name = await add(store, "a")
    other = await open_store(database)
    await other.claim(ANN, name)
    assert (await store.get("me", name))["status"] == "in_progress"
    await other.close()
    assert (await store.get("me", name))["status"] == "pending"


async def test_the_release_of_a_dead_holder_reaches_watchers(
    database: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_monitor, "CHECK_S", 0.02)
    name = await add(store, "a")
    # Another process that has already ended, as a store that was not closed.
    gone = own_process()._replace(pid=os.getpid(), start_ticks=1)
    other = await open_store(database, gone)
    monitor = LeaseMonitor(store)
    try:
        after = await store.last_change()
        async with asyncio.timeout(WAIT_S), aclosing(follow(store, "me", HERE, after)) as changes:
            await other.claim(ANN, name)
            async for tasks, _ in changes:
                if tasks[-1]["status"] == "pending":
                    break
    finally:
        await monitor.stop()
        await other.close()
    assert (await store.history("me", name, 0, 10))[-1]["change"] == "lost"


async def test_a_lease_of_this_process_is_renewed_while_it_holds_tasks(store: Store) -> None:
    assert not await store.renew()
    name = await add(store, "a")
    await store.claim(ANN, name)
    await expire(store, "UPDATE task_processes SET lease_until = 1")
    assert await store.renew()

    def until(tx: Transaction) -> int:
        row = tx.one("SELECT lease_until FROM task_processes")
        assert row is not None
        return int(row[0])

    remaining = (
        await store._engine.read(until)  # noqa: SLF001 - there is no other way
        - await store._engine.read(rows.database_ms)  # noqa: SLF001
    )
    assert 0 < remaining <= claims.LEASE_S * 1000


# --- changes --------------------------------------------------------------------------------------


async def test_the_history_keeps_former_values(store: Store) -> None:
    name = await add(store, "First text", acceptance=["one", "two"])
    await store.update(ANN, name, Patch(description="Second text", kind="bug", priority=0))
    await store.update(BOB, name, Patch(met=[2], labels=["x"], note="Half done"))
    await store.update(BOB, name, Patch(labels=["x"]))  # no change
    await store.update(BOB, name, Patch(acceptance=["two", "three"]))
    found = await store.get("me", name)
    assert found["acceptance"] == [{"text": "two", "met": True}, {"text": "three", "met": False}]
    assert [(note["author"], note["text"]) for note in found["notes"]] == [("bob", "Half done")]
    changes = await store.history("me", name, 0, 100)
    assert [each["change"] for each in changes] == [
        "created",
        "updated",
        "updated",
        "noted",
        "updated",
    ]
    assert changes[1]["details"] == {"description": "First text", "type": "task", "priority": 2}
    assert changes[2]["actor"] == "bob"
    assert (await store.close_task(BOB, name))["unmet"] == ["three"]
    await refused(store.update(BOB, name, Patch(met=[3])), InvalidParams, "bad_criterion")


async def test_a_watcher_that_lags_gets_each_task_once_as_it_is_now(store: Store) -> None:
    names = [await add(store, str(number)) for number in range(150)]
    for number in range(20):
        await store.update(ANN, names[0], Patch(description=f"change {number}"))
    seen: list[dict[str, Any]] = []
    seq = 0
    async with asyncio.timeout(WAIT_S), aclosing(follow(store, "me", HERE, 0)) as changes:
        async for tasks, last in changes:
            seen += tasks
            seq = last
            if len(seen) >= 150:
                break
    assert sorted(each["id"] for each in seen) == sorted(names)
    assert seen[-1]["description"] == "change 19"
    async with asyncio.timeout(WAIT_S), aclosing(follow(store, "me", HERE, seq)) as changes:
        following = asyncio.ensure_future(anext(changes))
        await store.delete(ANN, [names[0]])
        [gone], _ = await following
    assert gone == {"id": names[0], "description": "", "status": "deleted"}


async def test_two_windows_see_the_changes_of_each_other(database: str, store: Store) -> None:
    other = await open_store(database)
    try:
        after = await store.last_change()
        async with asyncio.timeout(WAIT_S), aclosing(follow(store, "me", HERE, after)) as changes:
            following = asyncio.ensure_future(anext(changes))
            name = await add(other, "From the other window")
            [task], _ = await following
        assert task["id"] == name
    finally:
        await other.close()


async def test_deleting_erases_texts_and_unblocks_others(store: Store) -> None:
    a = await add(store, "secret", labels=["hidden"])
    b = await add(store, "b", blocked_by=[a])
    await store.update(ANN, a, Patch(note="secret"))
    assert await store.delete(ANN, [a, a]) == 1
    await refused(store.get("me", a), NotFound, "not_found")
    assert await listed(store, "ready") == ["b"]
    assert "links" not in await store.get("me", b)
    for table in ("task_notes", "task_changes", "tasks"):
        found = await store._engine.read(lambda tx, table=table: tx.all(f"SELECT * FROM {table}"))  # type: ignore[misc]  # noqa: SLF001
        assert "secret" not in str(found)
    line = {"id": a, "description": "back again"}
    assert await store.import_tasks(ANN, HERE, [line]) == {"imported": 0, "existing": 1}


async def test_the_history_of_a_task_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHANGES_KEPT", 50)
    name = await add(store, "a")
    for number in range(150):
        await store.update(ANN, name, Patch(description=f"{number}"))
    changes = await store.history("me", name, 0, 500)
    assert 50 <= len(changes) < 50 + 64
    assert changes[-1]["details"] == {"description": "148"}


# --- limits ---------------------------------------------------------------------------------------

LIMITS: dict[str, tuple[NewTask | Patch, int]] = {
    "description": (NewTask("x" * (model.DESCRIPTION_BYTES + 1)), model.DESCRIPTION_BYTES),
    "wide description": (
        NewTask("ä" * (model.DESCRIPTION_BYTES // 2 + 1)),
        model.DESCRIPTION_BYTES,
    ),
    "key": (NewTask("a", key="k" * (model.KEY_BYTES + 1)), model.KEY_BYTES),
    "labels": (NewTask("a", labels=[f"l{n}" for n in range(model.LABELS + 1)]), model.LABELS),
    "criteria": (NewTask("a", acceptance=["x"] * (model.ACCEPTANCE_ITEMS + 1)), 50),
    "criterion": (NewTask("a", acceptance=["x" * 2049]), 2048),
    "note": (Patch(note="x" * (model.NOTE_BYTES + 1)), model.NOTE_BYTES),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_past_a_limit_the_error_names_it_and_nothing_is_stored(
    store: Store, name: str
) -> None:
    task = await add(store, "before")
    given, limit = LIMITS[name]
    call = (
        store.create(ANN, HERE, given)
        if isinstance(given, NewTask)
        else store.update(ANN, task, given)
    )
    error = await refused(call, TooBig, "too_big")
    assert error.data == {"limit": limit}
    assert str(limit) in error.message
    assert await listed(store, "all") == ["before"]


@pytest.mark.parametrize(
    ("constant", "module", "limit"),
    [("NOTES", "tasks", 3), ("REFS", "links", 3), ("LINKS", "links", 3), ("TASKS", "tasks", 6)],
)
async def test_counts_are_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch, constant: str, module: str, limit: int
) -> None:
    monkeypatch.setattr(f"activations.tasks.queries.{module}.{constant}", limit)
    first = await add(store, "first")
    others = [await add(store, str(number)) for number in range(4)]

    async def one_more(number: int) -> None:
        if constant == "NOTES":
            await store.update(ANN, first, Patch(note="x"))
        elif constant == "REFS":
            await store.link(ANN, first, "run", f"run://{number + 1}")
        elif constant == "LINKS":
            await store.link(ANN, first, "blocks", others[number])
        else:
            await add(store, "more")

    free = 1 if constant == "TASKS" else 3
    for number in range(free):
        await one_more(number)
    error = await refused(one_more(free), TooBig, "too_big")
    assert error.data == {"limit": limit}


@pytest.mark.parametrize(
    "new",
    [
        NewTask(""),
        NewTask(" \n"),
        NewTask("a\0b"),
        NewTask("\ud800"),
        NewTask("a", labels=["a,b"]),
        NewTask("a", labels=[""]),
        NewTask("a", labels=["x" * 41]),
        NewTask("a", acceptance=[""]),
        NewTask("a", key=""),
    ],
)
async def test_hostile_texts_are_refused_with_their_name(store: Store, new: NewTask) -> None:
    with pytest.raises(InvalidParams) as caught:
        await store.create(ANN, HERE, new)
    assert caught.value.code in ("bad_text", "bad_label")
    assert await listed(store, "all") == []


# --- import ---------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"id": "task_00000001", "description": "imported"}


async def test_an_export_is_imported_into_another_database_as_it_was(
    store: Store, tmp_path: Path
) -> None:
    a = await add(store, "a", priority=0, labels=["x"], acceptance=["one"])
    b = await add(store, "b", blocked_by=[a])
    await store.update(ANN, a, Patch(met=[1], note="A note"))
    await store.link(ANN, a, "run", "run://4")
    await store.close_task(ANN, await add(store, "c"), "cancelled", "Not needed")
    await store.claim(ANN, a)
    lines = [task for _, task in await store.export_page("me", None, None, 0, 100)]
    other = await open_store(str(tmp_path / "other.db"))
    try:
        assert await other.import_tasks(ANN, HERE, lines) == {"imported": 3, "existing": 0}
        again = [task for _, task in await other.export_page("me", None, None, 0, 100)]
        assert await other.import_tasks(ANN, HERE, lines) == {"imported": 0, "existing": 3}
    finally:
        await other.close()
    assert again[0]["status"] == "pending"  # a claim is not imported
    ignored = {"updated_ms", "seq", "holder", "claimed_ms", "status", "creator"}
    for before, after in zip(lines, again, strict=True):
        for each in (*before.get("refs", ()), *after.get("refs", ())):
            del each["at_ms"]
        assert {k: v for k, v in before.items() if k not in ignored} == {
            k: v for k, v in after.items() if k not in ignored
        }
    assert again[1]["blocked_by"] == [a]
    assert again[1]["id"] == b


async def test_an_old_file_undoes_no_work(store: Store) -> None:
    name = await add(store, "a")
    [(_, line)] = await store.export_page("me", None, None, 0, 10)
    await store.update(ANN, name, Patch(description="newer"))
    await store.close_task(ANN, name)
    assert await store.import_tasks(ANN, HERE, [line]) == {"imported": 0, "existing": 1}
    found = await store.get("me", name)
    assert (found["description"], found["status"]) == ("newer", "done")


@pytest.mark.parametrize(
    "line",
    [
        None,
        [],
        "text",
        {},
        {"id": "task_00000002"},
        {**GOOD, "id": "nonsense"},
        {**GOOD, "id": "task_00000001"},
        {**GOOD, "id": "task_00000002", "status": "deleted"},
        {**GOOD, "id": "task_00000002", "status": 5},
        {**GOOD, "id": "task_00000002", "type": "x"},
        {**GOOD, "id": "task_00000002", "priority": 9},
        {**GOOD, "id": "task_00000002", "priority": True},
        {**GOOD, "id": "task_00000002", "labels": [1]},
        {**GOOD, "id": "task_00000002", "labels": ["a b"]},
        {**GOOD, "id": "task_00000002", "acceptance": ["x"]},
        {**GOOD, "id": "task_00000002", "notes": [5]},
        {**GOOD, "id": "task_00000002", "created_ms": -1},
        {**GOOD, "id": "task_00000002", "description": "\0"},
        {**GOOD, "id": "task_00000002", "links": ["x"]},
        {**GOOD, "id": "task_00000002", "links": [{"kind": "blocks", "source": 1, "target": {}}]},
        {**GOOD, "id": "task_00000002", "refs": [{"kind": "run", "uri": "javascript"}]},
        {
            **GOOD,
            "id": "task_00000002",
            "links": [
                {"kind": "blocks", "source": "task_00000002", "target": "task_00000001"},
                {"kind": "blocks", "source": "task_00000001", "target": "task_00000002"},
            ],
        },
    ],
)
async def test_a_broken_line_is_named_and_nothing_is_imported(store: Store, line: Any) -> None:
    error = await refused(store.import_tasks(ANN, HERE, [GOOD, line]), InvalidParams, "bad_import")
    assert error.message.startswith("Line 2: ")
    assert error.data == {"line": 2}
    assert await listed(store, "all") == []
