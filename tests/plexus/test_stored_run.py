"""Runs of other processes and of the past: read, found, listed and controlled like local ones."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, call, follow, local, quiet, settled, until
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import MemoryStore, attach_store, record_run

from plexus import Plexus, Principal
from plexus.errors import Busy, Denied, Failed, InvalidParams, NotFound
from plexus.events import (
    Cancelled,
    Complete,
    Content,
    ErrorEvent,
    Event,
    Gap,
    Log,
    Progress,
    QuestionAsked,
    Result,
)
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.run import Run
from plexus.runtime.run_watch import RunsChanged
from plexus.runtime.runs import NotLoaded
from plexus.runtime.stored_events import read_event
from plexus.runtime.transcript import transcript

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

QUESTION = QuestionAsked("1", "prompt", "Name?", {"type": "string"}, 60.0)


def contents(count: int, first: int = 1) -> list[Event]:
    return [Content(f"{number} ") for number in range(first, first + count)]


async def numbered(run: Run, after: int = 0) -> list[tuple[int, Event]]:
    """Return the items of a run with their numbers, up to its terminal."""
    found: list[tuple[int, Event]] = []
    async with asyncio.timeout(30), aclosing(run.batches(after)) as batches:
        async for batch in batches:
            found += enumerate(batch.events, batch.first)
    return found


async def fetched(store: MemoryStore, hub: Plexus, number: int) -> Run:
    run = await hub.runs.fetch(number, LOCAL)
    assert run is store.loaded[number]
    return run


# --- reading -------------------------------------------------------------------------------------


@given(
    count=st.integers(0, 12),
    log_items=st.integers(1, 8),
    after=st.integers(0, 20),
    live=st.integers(0, 6),
)
@settings(deadline=None, max_examples=60)
async def test_a_stored_run_is_read_from_any_item_without_gap_or_repetition(
    count: int, log_items: int, after: int, live: int
) -> None:
    hub = Plexus()
    store = attach_store(hub, log_items=log_items)
    store.create(7, *contents(count))
    run = await fetched(store, hub, 7)
    reading = asyncio.create_task(numbered(run, after))
    await quiet(5)
    store.append(7, *contents(live, count + 1))
    await quiet(5)
    store.append(7, Complete())
    last = count + live + 1
    expected = list(enumerate([*contents(count + live), Complete()], 1))
    # A cursor may be ahead of the store, but not of the terminal.
    assert await reading == expected[min(after, last - 1) :]
    again = await numbered(run, min(after, last))
    assert again == expected[min(after, last - 1) :]


@given(
    count=st.integers(1, 400),
    log_items=st.integers(1, 40),
    after=st.integers(0, 400),
)
@settings(deadline=None, max_examples=40)
async def test_items_that_a_local_run_has_dropped_are_read_from_the_store(
    count: int, log_items: int, after: int
) -> None:
    hub = Plexus(limits=Limits(log_items=log_items))
    hub.register(Demo)
    store = attach_store(hub)
    run = local(hub.call("demo.count", {"to": count}).run)
    record_run(store, run)
    await settled(run)
    last = count + 2
    found = await numbered(run, after)
    assert [seq for seq, _ in found] == list(range(min(after, last - 1) + 1, last + 1))
    assert not any(isinstance(event, Gap) for _, event in found)
    texts = [event.text for _, event in found if isinstance(event, Content)]
    assert texts == [f"{number} " for number in range(min(after, count) + 1, count + 1)]
    await hub.close()


async def test_items_that_are_not_stored_are_a_gap(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub)
    history = store.create(7, Content("a"), Content("b"))
    history.add(Content("c"), Complete(), at=7)
    run = await fetched(store, hub, 7)
    found = await numbered(run)
    assert [seq for seq, _ in found] == [1, 2, 6, 7, 8]
    assert found[2][1] == Gap(3, 6)
    assert [seq for seq, _ in await numbered(run, 4)] == [6, 7, 8]
    assert [seq for seq, _ in await numbered(run, 7)] == [8]


async def test_a_run_that_is_no_longer_stored_ends_with_a_gap_and_an_error(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    store = attach_store(hub)
    history = store.create(7, Content("a"))
    await fetched(store, hub, 7)
    history.record.last_seq = 9
    store.loaded[7].end_without_items("owner_lost", "its process is gone")
    *_, gap, end = await numbered(store.loaded[7])
    assert gap == (8, Gap(2, 8))
    assert end == (9, ErrorEvent("owner_lost", "its process is gone"))


async def test_a_reader_that_cannot_read_the_store_gets_a_gap(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub, log_items=2)
    store.create(7, *contents(5), Complete())
    run = await fetched(store, hub, 7)
    store.error = Failed("the disk is full")
    assert [event for _, event in await numbered(run)] == [Gap(1, 4), Content("5 "), Complete()]


async def test_the_items_that_exist_now_are_read_without_waiting(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub, log_items=2)
    store.create(7, *contents(7))
    run = await fetched(store, hub, 7)
    for after in (0, 3, 6, 7, 99):
        found: list[tuple[int, Event]] = []
        async with asyncio.timeout(30), aclosing(run.available(after)) as batches:
            async for batch in batches:
                found += enumerate(batch.events, batch.first)
        assert found == list(enumerate(contents(7), 1))[after:]
    assert store.followed == []  # nothing is followed for that


# --- finding and listing -------------------------------------------------------------------------


async def test_a_run_is_found_after_it_was_loaded_and_by_its_principal_only(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    store = attach_store(hub)
    store.create(7, Content("a"), scope="bash")
    with pytest.raises(NotLoaded):
        hub.runs.find(7, LOCAL)
    run = await hub.fetch_run_to_control(7, LOCAL)
    assert hub.runs.find(7, LOCAL) is run
    assert hub.runs.list_for(LOCAL) == hub.runs.list_active(LOCAL) == [run]
    assert hub.runs.running() == []
    with pytest.raises(Denied, match="'bash'"):
        await hub.fetch_run_to_control(7, Principal("local", frozenset({"read"})))
    assert hub.runs.list_for(OTHER) == hub.runs.list_active(OTHER) == []
    with pytest.raises(NotFound) as foreign:
        await hub.runs.fetch(7, OTHER)
    with pytest.raises(NotFound) as unknown:
        await hub.runs.fetch(8, OTHER)
    assert foreign.value.message == unknown.value.message.replace("8", "7")
    await hub.close()
    assert run.state == "error"


async def test_listeners_are_notified_when_a_stored_question_opens_and_closes(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    store = attach_store(hub)
    changes: list[tuple[str, bool]] = []
    hub.questions.on_change(lambda _, request, opened: changes.append((request, opened)))
    history = store.create(7, Content("a"))
    store.ask(7, QUESTION)
    for _ in range(2):
        await store.refresh()
    questions = store.loaded[7].questions
    assert questions is not None
    assert questions["1"].event == QUESTION
    history.asked.clear()
    await store.refresh()
    assert changes == [("1", True), ("1", False)]


# --- the hub's own methods -----------------------------------------------------------------------


async def value(hub: Plexus, name: str, params: Any, principal: Principal = LOCAL) -> Any:
    end = (await call(hub, name, params, principal))[-1]
    return end.result if isinstance(end, Result) else end


async def test_runs_of_other_processes_are_listed_stopped_and_answered(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub)
    store.create(7, Content("a"), client="claude/2", summary="ls")
    listed = await value(hub, "plexus.runs", {})
    [entry] = [each for each in listed if each["run"] == 7]
    assert (entry["client"], entry["summary"], entry["last_seq"]) == ("claude/2", "ls", 1)
    assert await value(hub, "plexus.cancel", {"run": 7, "reason": "enough"}) is True
    assert await value(hub, "plexus.respond", {"run": 7, "request": "1", "answer": 3}) is True
    assert store.requests == [
        ("plexus.cancel", {"run": 7, "reason": "enough"}),
        ("plexus.respond", {"run": 7, "request": "1", "answer": 3}),
    ]
    store.answer = lambda *_: InvalidParams("not a number")
    refused = await value(hub, "plexus.respond", {"run": 7, "request": "1", "answer": "x"})
    assert (refused.code, refused.message) == ("invalid_params", "not a number")


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("plexus.cancel", {}),
        ("plexus.respond", {"request": "1", "answer": 1}),
        ("plexus.transcript", {}),
        ("plexus.call", None),
    ],
)
async def test_a_run_of_another_principal_is_not_found(
    name: str, params: Any, open_hub: OpenHub
) -> None:
    hub = open_hub()
    store = attach_store(hub)
    store.create(7, Content("secret"), principal=OTHER)
    ends = []
    for number in (7, 8):
        given_params = (
            {"method": "plexus.attach", "params": {"run": number}}
            if params is None
            else params | {"run": number}
        )
        ends.append(await value(hub, name, given_params))
    assert {end.code for end in ends} == {"not_found"}
    assert ends[0].message == ends[1].message.replace("8", "7")
    assert store.requests == []


async def test_a_nested_call_follows_a_stored_run(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub)
    store.create(7, Content("a"), Complete())
    answer = await value(hub, "plexus.call", {"method": "plexus.attach", "params": {"run": 7}})
    assert answer["events"] == [Content("a")]


async def test_a_transcript_includes_what_only_the_store_has(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub, log_items=2)
    history = store.create(7, *contents(7))
    text = await value(hub, "plexus.transcript", {"run": 7})
    assert text == "1 2 3 4 5 6 7 \n[still running: run://7?after=7]"
    history.add(Content("8"))
    await until(lambda: store.find(7) is None)  # it is no longer up to date, so it is loaded again
    assert (await value(hub, "plexus.transcript", {"run": 7, "after": 6})).startswith("7 8\n[still")
    del history.items[2], history.items[3]
    text = await transcript(await hub.runs.fetch(7, LOCAL))
    assert text.startswith("1 [items 2 to 3 are no longer available]\n4 5")


async def test_a_store_that_fails_does_not_hide_the_runs_of_this_process(
    open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    hub = open_hub(Demo)
    store = attach_store(hub)
    store.error = Failed("the disk is full")
    run = hub.call("demo.wait").run
    listed = await value(hub, "plexus.runs", {})
    assert run.id in [entry["run"] for entry in listed]
    assert "the disk is full" in caplog.text
    failed = await value(hub, "plexus.cancel", {"run": 7})
    assert failed.message == "the disk is full"


async def test_keep_and_release_act_on_runs_of_this_process(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(kept_runs=1))
    attach_store(hub).create(7, Content("a"))
    run = local(hub.call("demo.wait").run)
    assert await value(hub, "plexus.keep", {"run": run.id, "for_s": 5}) is True
    assert run.retention_s == 5
    await hub.runs.load(7, LOCAL)
    assert (await value(hub, "plexus.keep", {"run": 7, "for_s": 5})).code == "not_found"
    second = hub.call("demo.wait").run
    assert (await value(hub, "plexus.keep", {"run": second.id, "for_s": 5})).code == Busy("").code
    reader = run.reader(0, lambda _: None, owner=True)
    assert await value(hub, "plexus.release", {"run": run.id}) is False
    run.detach(reader)
    assert run.orphan_deadline is not None
    assert await value(hub, "plexus.release", {"run": run.id}) is True
    assert not run.owned_by(reader)
    assert await value(hub, "plexus.release", {"run": run.id}) is False


async def test_watch_waits_for_signals_and_lists_the_runs_of_other_processes(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Demo)
    store = attach_store(hub)
    store.create(7, Content("a"))
    watching = hub.call("plexus.watch", {"interval_s": 0.1}).run
    received: list[dict[str, Any]] = []

    async with aclosing(watching.batches(0, owner=True)) as batches:

        async def until_told(number: int, **fields: Any) -> None:
            async with asyncio.timeout(30):
                while not any(
                    entry["run"] == number and fields.items() <= entry.items() for entry in received
                ):
                    for event in (await anext(batches)).events:
                        assert isinstance(event, RunsChanged)
                        received.extend(event.runs)

        await until_told(7, state="running", last_seq=1)
        listings = 0
        list_for = hub.runs.list_for

        def counted(principal: Principal, *, system: bool = True) -> list[Run]:
            nonlocal listings
            listings += 1
            return list_for(principal, system=system)

        hub.runs.list_for = counted  # type: ignore[method-assign]  # counts the comparisons
        await asyncio.sleep(0.35)  # longer than several intervals
        assert listings <= 1
        store.histories[7].add(Content("b"))
        await store.refresh()
        store.notify()
        await until_told(7, last_seq=2)
        started = hub.call("demo.echo", ["x"]).run.id
        await until_told(started, state="complete")
    watching.cancel("enough")
    await settled(watching)
    assert store.listeners == []


# --- requests of readers -------------------------------------------------------------------------


async def test_an_owner_of_a_stored_run_releases_it_in_its_process(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub)
    store.create(7, Content("a"))
    run = await fetched(store, hub, 7)
    reader = run.reader(0, lambda _: None, owner=True)
    assert not run.owned_by(reader)
    await until(lambda: bool(store.requests))
    assert store.requests == [("plexus.release", {"run": 7})]
    run.detach(reader, 5.0)
    run.leave(reader)
    assert run.orphan_deadline is None
    assert store.followed == []
    assert store.requests == [("plexus.release", {"run": 7})]


async def test_a_stored_run_is_kept_by_its_process(open_hub: OpenHub) -> None:
    hub = open_hub()
    store = attach_store(hub)
    store.create(7, Content("a"))
    await fetched(store, hub, 7)
    await store.loaded[7].keep(30.0)
    assert store.requests == [("plexus.keep", {"run": 7, "for_s": 30.0})]
    assert store.loaded[7].retention_s == 30.0
    store.append(7, Complete())
    await store.load(7)
    with pytest.raises(NotFound, match="has ended"):
        await store.loaded[7].keep(30.0)
    assert await follow(store.loaded[7]) == [Content("a"), Complete()]


# --- recorded events -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        Content("a"),
        Progress(1.0, 2.0, "m"),
        Log(level="info", message="x"),
        Gap(1, 2),
        Result({"a": [1, None]}),
        ErrorEvent("code", "message", {"x": 1}),
        Cancelled("why"),
        Cancelled(),
    ],
    ids=lambda event: event.type,
)
async def test_a_common_event_is_read_as_what_it_was(event: Event) -> None:
    assert read_event(wire.encode_event(event)) == event


@pytest.mark.parametrize(
    ("raw", "text", "terminal"),
    [
        (b'{"type":"stdout","data":"hi\\n"}', "hi\n", False),
        (b'{"type":"odd","from":1,"class":null}', "", False),
        (b'{"type":"complete","exit_code":3,"duration_ms":5}', "", True),
        (b'{"type":"content","text":"a","more":[1]}', "a", False),
    ],
)
async def test_an_unknown_event_is_passed_on_unchanged(
    raw: bytes, text: str, terminal: bool
) -> None:
    event = read_event(raw)
    assert json.loads(wire.encode(event)) == json.loads(raw)
    assert (event.as_text(), event.terminal) == (text, terminal)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"type":1}', b'{"type":"a","b-c":1}', b"\xff"]
)
async def test_bytes_that_are_not_an_event_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_event(raw)
