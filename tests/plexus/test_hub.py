"""The hub: names, arguments, keys, principals, and changes of activations."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import OTHER, call, end_of, happened, local, read, settled, until

from plexus import (
    Activation,
    Change,
    Complete,
    Content,
    InvalidParams,
    NotFound,
    Plexus,
    PlexusError,
    ResourceInfo,
    method,
    prompt,
    resource,
)
from plexus.errors import RegistrationError, UnknownMethod
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.limits import Limits
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Tell(Activation):
    """Returns what it receives."""

    namespace = "tell"
    version = "1.0.0"

    def __init__(self) -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self.closings = 0

    @method
    async def back(self, text: str, times: int = 1) -> str:
        """Repeat TEXT, TIMES times."""
        self.calls += 1
        return text * times

    @method
    async def nothing(self) -> None:
        """Take nothing and return nothing."""

    @method
    async def shape(self, point: Point) -> int:
        """Take one object."""
        return point.x + point.y

    @method
    async def wait(self) -> AsyncIterator[Content]:
        """Yield a text, wait, and yield another."""
        self.calls += 1
        yield Content(text="one")
        await self.gate.wait()
        yield Content(text="two")

    async def close(self) -> None:
        self.closings += 1


class Luna(Activation):
    """A moon."""

    namespace = "luna"
    version = "1.0.0"

    @method
    async def info(self) -> str:
        """Return its name."""
        return "moon"


class Earth(Activation):
    """A planet."""

    namespace = "earth"
    version = "1.0.0"
    children = (Luna,)

    @method
    async def info(self) -> str:
        """Return its name."""
        return "planet"


class Solar(Activation):
    """A system that has only children."""

    namespace = "solar"
    version = "1.0.0"
    children = (Earth,)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["solar.earth.luna.info", "solar_earth_luna_info"])
async def test_nested_methods_are_found_by_either_spelling(name: str, open_hub: OpenHub) -> None:
    hub = open_hub(Solar)
    assert hub.resolve(name).name == "solar.earth.luna.info"
    assert await end_of(hub, name) == Result("moon")


async def test_a_run_has_the_dotted_name_however_it_was_spelt(open_hub: OpenHub) -> None:
    made = open_hub(Tell).call("tell_back", ["a"])
    assert made.run.method == "tell.back"
    await settled(made.run)


@pytest.mark.parametrize("name", ["", ".", "tell", "tell.", "tell.bakc", "TELL.BACK", "x" * 70_000])
async def test_an_unknown_name_is_refused(name: str, open_hub: OpenHub) -> None:
    with pytest.raises(UnknownMethod):
        open_hub(Tell).call(name)


async def test_an_unknown_name_is_refused_with_similar_names(open_hub: OpenHub) -> None:
    with pytest.raises(UnknownMethod, match=r"Did you mean tell\.back") as caught:
        open_hub(Tell).resolve("tell.bakc")
    assert caught.value.data["nearest"][0] == "tell.back"
    with pytest.raises(UnknownMethod) as caught:
        open_hub(Tell).resolve("0")
    assert caught.value.data == {"nearest": []}


async def test_the_methods_are_listed_by_name(open_hub: OpenHub) -> None:
    names = [spec.name for spec in open_hub(Tell, Solar).methods()]
    assert names == sorted(names)
    assert {"plexus.runs", "solar.earth.info", "tell.back"} <= set(names)


async def test_activations_are_listed_with_their_paths_parents_first(open_hub: OpenHub) -> None:
    paths = [path for path, _ in open_hub(Solar).activations()]
    assert paths == ["plexus", "solar", "solar.earth", "solar.earth.luna"]


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"text": "a", "times": 2},
        ["a", 2],
        [{"text": "a", "times": 2}],
    ],
)
async def test_arguments_come_by_name_by_position_or_as_one_object(
    params: Any, open_hub: OpenHub
) -> None:
    assert await end_of(open_hub(Tell), "tell.back", params) == Result("aa")


@pytest.mark.parametrize("params", [None, {}, [], [{}]])
async def test_a_method_without_arguments_takes_every_empty_form(
    params: Any, open_hub: OpenHub
) -> None:
    assert await end_of(open_hub(Tell), "tell.nothing", params) == Result(None)


async def test_an_omitted_argument_has_its_default(open_hub: OpenHub) -> None:
    assert await end_of(open_hub(Tell), "tell.back", ["a"]) == Result("a")


async def test_one_object_in_a_list_may_be_the_one_argument_itself(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    assert await end_of(hub, "tell.shape", [{"x": 1, "y": 2}]) == Result(3)
    assert await end_of(hub, "tell.shape", [{"point": {"x": 1, "y": 3}}]) == Result(4)


@pytest.mark.parametrize(
    ("params", "at", "fault"),
    [
        ({}, "text", "required"),
        ([], "text", "required"),
        ({"text": "a", "tmes": 2}, "tmes", "not known"),
        ({"text": 1}, "text", "string"),
        ({"text": "a", "times": "2"}, "times", "integer"),
        ({"text": "a", "times": 2.5}, "times", "integer"),
        ({"text": "a", "times": True}, "times", "integer"),
        ({"text": "a", "times": None}, "times", "integer"),
        ({"text": "a", "ctx": 1}, "ctx", "not known"),
    ],
)
async def test_a_wrong_argument_is_refused_with_its_place_and_its_fault(
    params: Any, at: str, fault: str, open_hub: OpenHub
) -> None:
    tell = Tell()
    with pytest.raises(InvalidParams, match=r"tell\.back") as caught:
        open_hub(tell).call("tell.back", params)
    [found] = caught.value.data["errors"]
    assert found["at"] == at
    assert fault in found["fault"]
    assert tell.calls == 0


async def test_every_fault_is_listed(open_hub: OpenHub) -> None:
    with pytest.raises(InvalidParams, match="1 more") as caught:
        open_hub(Tell).call("tell.back", {"text": 1, "times": "x"})
    assert [fault["at"] for fault in caught.value.data["errors"]] == ["text", "times"]


async def test_more_positions_than_parameters_are_refused(open_hub: OpenHub) -> None:
    with pytest.raises(InvalidParams, match="at most 2 parameters, not 3"):
        open_hub(Tell).call("tell.back", ["a", 1, 2])


async def test_the_callers_own_parameters_are_not_changed(open_hub: OpenHub) -> None:
    params = {"text": "a", "_run": "k", "_after": 0}
    await settled(open_hub(Tell).call("tell.back", params).run)
    assert params == {"text": "a", "_run": "k", "_after": 0}


async def test_a_lookup_is_a_control_call_only_for_a_read_only_method(open_hub: OpenHub) -> None:
    class Files(Activation):
        """Files."""

        namespace = "files"
        version = "1.0.0"

        @method(read_only=True)
        async def list(self) -> str:
            """List."""
            return "none"

        @method
        async def delete(self) -> str:
            """Delete."""
            return "gone"

    hub = open_hub(Files)
    for name, lookup, lookups, purpose in (
        ("files.list", True, True, "control"),
        ("files.list", True, False, "work"),
        ("files.list", False, True, "work"),
        ("files.delete", True, True, "work"),
    ):
        run = hub.call(name, {"_lookup": lookup}, lookups=lookups).run
        await settled(run)
        assert run.purpose == purpose
    listed = [run.method for run in hub.runs.list_for(LOCAL, system=False)]
    assert sorted(listed) == ["files.delete", "files.list", "files.list"]
    with pytest.raises(InvalidParams, match="_lookup must be true or false"):
        hub.call("files.list", {"_lookup": "yes"})


# --- keys ----------------------------------------------------------------------------------------


async def test_the_same_key_again_attaches_instead_of_running_twice(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    first = hub.call("tell.wait", {"_run": "k"})
    second = hub.call("tell.wait", {"_run": "k"})
    assert (first.fresh, second.fresh) == (True, False)
    assert second.run is first.run
    tell.gate.set()
    expected = [Content(text="one"), Content(text="two"), Complete()]
    assert await read(second) == expected
    after = hub.call("tell.wait", [{"_run": "k", "_after": 1}])
    assert await read(after) == expected[1:]
    assert tell.calls == 1


async def test_a_key_is_its_principals_own(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    mine = hub.call("tell.wait", {"_run": "k"})
    other = hub.call("tell.wait", {"_run": "k"}, OTHER)
    assert other.fresh
    assert other.run is not mine.run


async def test_a_key_used_for_another_method_is_refused(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    hub.call("tell.wait", {"_run": "k"})
    with pytest.raises(InvalidParams, match=r"tell\.wait"):
        hub.call("tell.nothing", {"_run": "k"})


@pytest.mark.parametrize("key", ["", "x" * 129, 5, True, [], {}])
async def test_a_key_must_be_a_short_text(key: Any, open_hub: OpenHub) -> None:
    with pytest.raises(InvalidParams, match="_run"):
        open_hub(Tell).call("tell.nothing", {"_run": key})


async def test_a_key_of_maximum_length_is_accepted(open_hub: OpenHub) -> None:
    await settled(open_hub(Tell).call("tell.nothing", {"_run": "x" * 128}).run)


@pytest.mark.parametrize("after", [-1, 1.5, "1", True, None])
async def test_the_item_to_resume_after_must_be_a_number(after: Any, open_hub: OpenHub) -> None:
    with pytest.raises(InvalidParams, match="_after"):
        open_hub(Tell).call("tell.nothing", {"_run": "k", "_after": after})


async def test_a_call_with_a_key_is_checked_like_any_other(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    with pytest.raises(InvalidParams):
        hub.call("tell.back", {"_run": "k", "text": 1})
    assert hub.call("tell.back", {"_run": "k", "text": "a"}).fresh


# --- registering ---------------------------------------------------------------------------------


class Other(Activation):
    """Takes the place of another."""

    namespace = "tell"
    version = "2.0.0"

    @method
    async def forth(self) -> str:
        """Say something else."""
        return "forth"


async def test_an_activation_of_the_same_namespace_replaces_the_old_one(
    open_hub: OpenHub,
) -> None:
    tell = Tell()
    hub = open_hub(tell)
    running = hub.call("tell.wait")
    before = hub.hash
    hub.register(Other)
    assert hub.hash != before
    assert await end_of(hub, "tell.forth") == Result("forth")
    with pytest.raises(UnknownMethod):
        hub.resolve("tell.back")
    with pytest.raises(UnknownMethod):
        hub.resolve("tell_back")
    # The run of the old one continues.
    tell.gate.set()
    assert (await read(running))[-1] == Complete()


async def test_an_activation_that_was_replaced_is_closed_once(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    hub.register(Other)
    await hub.close()
    await until(lambda: tell.closings > 0)
    assert tell.closings == 1


async def test_the_same_activation_may_be_registered_again(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    before = hub.hash
    hub.register(Tell)
    assert hub.hash == before


def named(namespace: str, name: str, *inner: type[Activation]) -> type[Activation]:
    """An activation class with one method."""

    async def answer(self: Any) -> str:  # noqa: ARG001
        """Answer."""
        return name

    answer.__name__ = name
    body = {
        "__doc__": "Something.",
        "namespace": namespace,
        "version": "1.0.0",
        "children": inner,
        name: method(answer),
    }
    return type("Named", (Activation,), body)


async def test_names_that_differ_only_in_dots_and_underscores_are_refused(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(named("a_b", "c"))
    with pytest.raises(RegistrationError, match=r"a\.b_c and a_b\.c"):
        hub.register(named("a", "b_c"))
    with pytest.raises(UnknownMethod):
        hub.resolve("a.b_c")
    assert hub.resolve("a_b_c").name == "a_b.c"


async def test_names_that_collide_within_one_activation_are_refused(open_hub: OpenHub) -> None:
    with pytest.raises(RegistrationError, match=r"x\.a\.b"):
        open_hub(named("x", "a_b", named("a", "b")))


async def test_two_children_of_the_same_name_are_refused(open_hub: OpenHub) -> None:
    with pytest.raises(RegistrationError, match="a"):
        open_hub(named("x", "m", named("a", "b"), named("a", "b")))


async def test_a_name_of_64_characters_passes_and_one_of_65_is_refused(open_hub: OpenHub) -> None:
    hub = open_hub(named("n", "m" * 62))
    assert len(hub.resolve(f"n.{'m' * 62}").name) == 64
    with pytest.raises(RegistrationError, match="64 characters"):
        hub.register(named("n", "m" * 63))


async def test_a_refused_activation_changes_nothing(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    received: list[str] = []
    hub.on_change(lambda _: received.append("changed"))
    before = hub.hash
    with pytest.raises(RegistrationError):
        hub.register(named("tell", "x" * 70))
    assert hub.hash == before
    assert hub.resolve("tell.back")
    assert received == []


async def test_a_listener_is_notified_of_changes_until_it_unsubscribes(open_hub: OpenHub) -> None:
    hub = open_hub()
    received: list[str] = []
    stop = hub.on_change(lambda _: received.append("a"))
    hub.on_change(lambda _: received.append("b"))
    hub.register(Tell)
    assert received == ["a", "b"]
    stop()
    hub.register(Solar)
    assert received == ["a", "b", "b"]


async def test_a_listener_that_unsubscribes_during_a_notification_hides_nothing_from_others(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    received: list[str] = []
    stops: list[Any] = []

    def once(_: Change) -> None:
        received.append("once")
        stops.pop()()

    stops.append(hub.on_change(once))
    hub.on_change(lambda _: received.append("other"))
    hub.register(Tell)
    assert received == ["once", "other"]


def with_role(mark: Any, name: str = "changing") -> type[Activation]:
    async def one(self: Any) -> str:  # noqa: ARG001
        """Answer."""
        return ""

    body = {"__doc__": "Changes.", "namespace": name, "version": "1", "one": mark(one)}
    return type("Changing", (Activation,), body)


async def test_a_change_names_the_list_that_changed(open_hub: OpenHub) -> None:
    hub = open_hub()
    received: list[Change] = []
    hub.on_change(received.append)
    steps = [
        (with_role(method), ["methods"]),
        (with_role(method), ["methods"]),
        (with_role(prompt), ["methods", "prompts"]),
        (with_role(resource("a://b")), ["prompts", "resources"]),
        (with_role(method, "other"), ["methods"]),
    ]
    for activation, kinds in steps:
        hub.register(activation)
        assert [change.kind for change in received] == kinds
        assert all(change.uri is None for change in received)
        received.clear()


async def test_an_activation_that_lists_resources_changes_that_list(open_hub: OpenHub) -> None:
    class Lists(Tell):
        """Has dynamic resources."""

        async def resources(self, *_: Any) -> list[ResourceInfo]:
            """Nothing yet."""
            return []

    hub = open_hub()
    received: list[Change] = []
    hub.on_change(received.append)
    hub.register(Lists)
    assert received == [Change("methods"), Change("resources")]


async def test_an_activation_can_notify_of_a_change(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    received: list[Change] = []
    hub.on_change(received.append)
    assert tell.plexus is hub
    tell.plexus.notify(Change("resource", "a://b"))
    assert received == [Change("resource", "a://b")]


async def test_children_know_their_hub_too(open_hub: OpenHub) -> None:
    hub = open_hub(Solar)
    assert all(activation.plexus is hub for _, activation in hub.activations())


# --- what a caller can be asked ------------------------------------------------------------------


async def test_a_run_has_the_question_kinds_of_its_caller(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    assert hub.call("tell.nothing").run.question_kinds is None
    kinds = frozenset({"form"})
    first = hub.call("tell.nothing", {"_run": "k"}, question_kinds=kinds)
    assert first.run.question_kinds == kinds
    again = hub.call("tell.nothing", {"_run": "k"})
    assert again.run is first.run
    assert first.run.question_kinds is None


# --- closing -------------------------------------------------------------------------------------


class Grumpy(Activation):
    """Does not close cleanly."""

    namespace = "grumpy"
    version = "1.0.0"

    @method
    async def hello(self) -> str:
        """Greet."""
        return "hm"

    async def close(self) -> None:
        raise RuntimeError("leave me alone")


async def test_closing_stops_every_run_and_closes_every_activation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub, tell = Plexus(), Tell()
    hub.register(Grumpy)
    hub.register(tell)
    runs = [hub.call("tell.wait").run for _ in range(3)]
    await until(lambda: tell.calls == 3)
    await hub.close(reason="good night")
    assert [run.terminal for run in runs] == [Cancelled("good night")] * 3
    assert tell.closings == 1
    assert "grumpy did not close cleanly" in caplog.text


async def test_closing_a_hub_without_runs_is_fast() -> None:
    hub = Plexus(limits=Limits(cancel_s=600))  # for which it would wait for runs
    async with asyncio.timeout(30):
        await hub.close()


async def test_a_closed_hub_starts_no_run(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    await hub.close()
    with pytest.raises(PlexusError, match="stopping"):
        hub.call("tell.nothing")


async def test_waiting_for_idleness_ends_when_the_last_run_does(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    assert await hub.runs.wait_idle(0) is True
    hub.call("tell.wait")
    assert await hub.runs.wait_idle(0.01) is False
    idle = asyncio.ensure_future(hub.runs.wait_idle(5))
    await until(lambda: tell.calls == 1)
    tell.gate.set()
    assert await idle is True


async def test_the_counts_contain_runs_in_progress_and_outcomes(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    await end_of(hub, "tell.nothing")
    running = hub.call("tell.wait").run
    counts = hub.runs.counts()
    assert (counts["running"], counts["complete"]) == (1, 1)
    running.cancel("enough")
    await settled(running)
    assert hub.runs.counts() == {"complete": 1, "error": 0, "cancelled": 1, "abandoned": 0}


# --- principals ----------------------------------------------------------------------------------


async def test_the_run_of_another_principal_is_not_found_by_any_method(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    mine = hub.call("tell.wait").run
    with pytest.raises(NotFound):
        hub.call("plexus.attach", [mine.id], OTHER)
    for name, params in (
        ("plexus.cancel", [mine.id]),
        ("plexus.respond", [mine.id, "1", True]),
    ):
        [end] = await call(hub, name, params, OTHER)
        assert isinstance(end, ErrorEvent)
        assert end.code == "not_found"
    [listed] = await call(hub, "plexus.runs", None, OTHER)
    assert isinstance(listed, Result)
    assert all(entry["run"] != mine.id for entry in listed.result)
    assert mine.terminal is None
    tell.gate.set()
    await settled(mine)


async def test_the_numbers_of_runs_can_be_injected() -> None:
    numbers: Iterator[int] = iter([5, 5, 6, 7])
    hub = Plexus(new_id=lambda: next(numbers))
    hub.register(Tell)
    first, second = hub.call("tell.nothing").run, hub.call("tell.nothing").run
    assert (first.id, second.id) == (5, 6)
    await settled(second)
    assert hub.runs.find(5, LOCAL) is first


async def test_a_run_starts_only_in_the_next_iteration_of_the_loop(open_hub: OpenHub) -> None:
    tell = Tell()
    hub = open_hub(tell)
    hub.call("tell.wait")
    assert tell.calls == 0
    tell.gate.set()
    await happened(tell.gate)
    await until(lambda: tell.calls == 1)


async def test_all_waiters_for_idleness_are_woken(open_hub: OpenHub) -> None:
    hub = open_hub(Tell)
    run = hub.call("tell.wait").run
    gives_up, *others = [asyncio.ensure_future(hub.runs.wait_idle(10)) for _ in range(3)]
    await until(lambda: run.log.last > 0 or local(run).task is not None)
    gives_up.cancel()
    run.cancel("enough")
    assert await asyncio.wait_for(asyncio.gather(*others), 5) == [True, True]
