"""Isolation of principals: data of one principal does not exist for another.

Every method of the real hub with a parameter that names an object is called by another principal,
and must answer as if the object did not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hub_calls import call, settled, until
from mcp_peer import STATELESS, TASKS, McpPeer, make_server

from plexus import Activation, Confirm, Context, NotFound, Plexus, PlexusError, Principal, method
from plexus.events import Result, Terminal
from plexus.rpc import wire
from plexus.runtime.run import Run
from substrate.build_hub import build_hub
from substrate.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

#: How long the messages of a stream without an end are collected.
WAIT_S = 5.0

ALICE = Principal("alice")
#: Another principal, with all scopes.
BOB = Principal("bob")
#: A word that occurs in all of Alice's data.
SECRET = "heliotrope"

#: The parameters that name an object of a principal.
OWNED = {"tree_id", "tree", "node_id", "node", "session", "session_name", "run", "approval_id"}
#: Methods that create the session they name, for the caller alone.
CREATING = {"python.evaluate", "python.restart"}
#: Other required parameters of methods.
NEEDED: dict[str, Any] = {
    "for_s": 1.0,
    "answer": True,
    "approve": True,
    "code": "le",
    "content": "text",
    "expression": "1",
    "handle": "plugin@1.0.0::method:meta",
    "message": "text",
    "metadata": {},
    "name": "len",
    "new_name": "another",
    "nodes": [{"content": "text"}],
    "query": "text",
    "text": SECRET,
}
#: Seconds to wait for the first item of an endless call that yields nothing.
SILENT_S = 0.3
#: The minimum number of such methods. Fewer mean that this test no longer finds them.
LEAST = 45


class Asks(Activation):
    """Asks a question and waits."""

    namespace = "asks"
    version = "1.0.0"

    @method(deadline_s=None)
    async def one(self, *, ctx: Context) -> bool:
        """Ask one question."""
        return await ctx.ask(Confirm(f"Is it {SECRET}?"))


class World:
    """All data of Alice."""

    def __init__(self, hub: Plexus) -> None:
        self.hub = hub
        self.ids: dict[str, Any] = {}

    async def fill(self) -> None:
        """Create a tree, a conversation and a run with an open question for Alice."""
        tree = await self.value("arbor.tree_create", metadata={"name": SECRET})
        node = await self.value("arbor.node_create_text", tree_id=tree["tree_id"], content=SECRET)
        await self.value("chat.create", name=f"{SECRET}-1", model="echo:echo")
        await self.value("chat.send", session=f"{SECRET}-1", message=SECRET)
        await self.value("python.evaluate", expression="1", session=f"{SECRET}-1")
        run = self.hub.call("asks.one", {}, ALICE).run
        await until(lambda: bool(run.questions))
        request = next(iter(run.questions or {}))
        self.ids = {
            "tree_id": tree["tree_id"],
            "tree": tree["tree_id"],
            "node_id": node["node_id"],
            "node": node["node_id"],
            "node_ids": [node["node_id"]],
            "parent": node["node_id"],
            "session": f"{SECRET}-1",
            "session_name": f"{SECRET}-1",
            "run": run.id,
            "runs": [run.id],
            "request": request,
            "approval_id": f"{run.id}.{request}",
        }

    async def value(self, name: str, /, **params: Any) -> Any:
        end = (await call(self.hub, name, params, ALICE))[-1]
        assert isinstance(end, Terminal)
        assert not end.failed, end
        return wire.decode_plain(end.result if isinstance(end, Result) else end)

    def made_up(self) -> dict[str, Any]:
        """Return ids of the same form that do not exist."""
        run = 2**53 - 1
        request = self.ids["request"]
        tree, node = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
        return {
            "tree_id": tree,
            "tree": tree,
            "node_id": node,
            "node": node,
            "node_ids": [node],
            "parent": node,
            "session": "nobodys",
            "session_name": "nobodys",
            "run": run,
            "runs": [run],
            "request": request,
            "approval_id": f"{run}.{request}",
        }

    def params(self, name: str, ids: dict[str, Any]) -> dict[str, Any]:
        """Return parameters that name these objects, with the other required ones."""
        known = NEEDED | ids
        spec = self.hub.resolve(name)
        return {
            parameter.name: known[parameter.name]
            for parameter in spec.parameters
            if parameter.required or parameter.name in {*OWNED, "content"}
        }

    async def outcome(self, name: str, ids: dict[str, Any], principal: Principal) -> str:
        """Return the first items of a call, or all if it ends soon, without the ids in them."""
        text = await self.answer_text(name, self.params(name, ids), principal)
        for key, value in sorted(ids.items(), key=lambda item: -len(str(item[1]))):
            if key != "request":
                text = text.replace(str(value), "...")
        return text

    async def answer_text(
        self, name: str, params: dict[str, Any], principal: Principal, within_s: float = WAIT_S
    ) -> str:
        """Return all items of a call or, if it does not end, the first ones."""
        try:
            started = self.hub.call(name, params, principal)
        except PlexusError as error:
            return f"{error.code}: {error.message}"
        run = started.run
        endless = self.is_endless(name)
        try:
            with suppress(TimeoutError):
                await until(
                    lambda: run.terminal is not None or (endless and bool(run.log.events)), within_s
                )
            return "\n".join(wire.encode_event(event).decode() for event in run.log.events)
        finally:
            if started.fresh:
                run.cancel("seen enough")
                await settled(run)

    def is_endless(self, name: str) -> bool:
        spec = self.hub.resolve(name)
        return spec.deadline_s is None or spec.kind == "follow"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings = Settings(database=str(tmp_path / "arbor.db"), chat_claude_command="/nowhere/claude")
    hub, broken = build_hub(settings, tmp_path)
    assert not broken
    hub.register(Asks)
    world = World(hub)
    await world.fill()
    yield world
    await hub.close()


def naming(hub: Plexus) -> list[str]:
    """Return the methods with a parameter that names an object of a principal."""
    return [
        spec.name for spec in hub.methods() if OWNED & set(spec.names) and spec.name not in CREATING
    ]


def all_names() -> list[str]:
    hub, _ = build_hub(Settings(), Path("/"))
    return naming(hub)


def test_every_method_that_takes_an_id_is_tested() -> None:
    assert len(all_names()) >= LEAST


@pytest.mark.parametrize("name", all_names())
async def test_objects_of_another_principal_are_answered_like_missing_ones(
    world: World, name: str
) -> None:
    absent = await world.outcome(name, world.made_up(), BOB)
    assert await world.outcome(name, world.ids, BOB) == absent
    assert SECRET not in absent
    # The objects exist for Alice, so the answers above mean something.
    # This hub has no run store, which pinning needs.
    if name not in {"approvals.permit", "plexus.pin"}:
        assert await world.outcome(name, world.ids, ALICE) != absent


@pytest.mark.parametrize("name", all_names())
async def test_with_fewer_scopes_another_principal_learns_no_more(world: World, name: str) -> None:
    reader = Principal("bob", frozenset())
    absent = await world.outcome(name, world.made_up(), reader)
    assert await world.outcome(name, world.ids, reader) == absent


async def test_no_list_shows_objects_of_another_principal(world: World) -> None:
    seen = {}
    for spec in world.hub.methods():
        if not spec.hints.read_only or any(
            p.required and p.name != "text" for p in spec.parameters
        ):
            continue
        params = {"text": SECRET} if "text" in spec.names else {}
        seen[spec.name] = {
            who.name: await world.answer_text(spec.name, params, who, within_s)
            for who, within_s in ((ALICE, WAIT_S), (BOB, SILENT_S))
        }
    hers = {name for name, text in seen.items() if SECRET in text["alice"]}
    assert hers >= {
        *("arbor.tree_list", "arbor.search", "chat.list", "chat.search"),
        *("approvals.pending", "approvals.watch", "plexus.resources", "plexus.prompts"),
    }
    assert {name for name, text in seen.items() if SECRET in text["bob"]} == set()
    owned = [str(world.ids[key]) for key in ("tree_id", "node_id", "run", "approval_id")]
    # A list of runs may contain the run of an endless call of Bob: only Alice's run is searched.
    assert not [n for n, text in seen.items() for each in owned if each in text["bob"]]


async def test_suggestions_do_not_reveal_names_of_other_principals(world: World) -> None:
    looked = 0
    for spec in world.hub.methods():
        for argument in spec.completers:
            looked += 1
            params = {
                "method": spec.name,
                "argument": argument,
                "value": "",
                "given": {"tree": world.ids["tree"]},
            }
            hers = await world.answer_text("plexus.complete", params, ALICE)
            assert '"values":[]' not in hers
            his = await world.answer_text("plexus.complete", params, BOB)
            if spec.name.startswith("templates."):  # they belong to the server
                assert his == hers
                assert SECRET not in his
            else:
                assert '"values":[]' in his
    assert looked >= 4


async def test_the_same_key_of_two_principals_is_two_runs(world: World) -> None:
    started = [
        world.hub.call("health.check", {"_run": "the key"}, who).run for who in (ALICE, BOB, ALICE)
    ]
    assert started[0] is started[2]
    assert started[0] is not started[1]
    # A cursor of one principal cannot be used by the other.
    world.hub.call("health.check", {"_run": "hers"}, ALICE)
    with pytest.raises(NotFound):
        world.hub.call("health.check", {"_run": "hers", "_after": 1}, BOB)


async def test_other_principals_cannot_change_a_run(world: World) -> None:
    run: Run = world.hub.runs.find(world.ids["run"], ALICE)
    for name in naming(world.hub):
        await world.outcome(name, world.ids, BOB)
    assert run.terminal is None
    assert run.cancel_reason is None
    assert len(run.questions or {}) == 1
    tree = await world.value("arbor.tree_get", tree_id=world.ids["tree_id"])
    assert tree
    assert (await world.value("chat.get", session=world.ids["session"]))["name"] == f"{SECRET}-1"


async def test_a_child_run_belongs_to_the_same_principal(world: World) -> None:
    outer = world.hub.call("plexus.call", {"method": "asks.one"}, ALICE).run

    def children() -> list[Run]:
        return [run for run in world.hub.runs.list_for(ALICE) if run.parent == outer.id]

    await until(lambda: bool(children()))
    [inner] = children()
    assert inner.principal == ALICE
    with pytest.raises(NotFound):
        world.hub.runs.find(inner.id, BOB)


# --- the same through a view ----------------------------------------------------------------------


@pytest.fixture
def server(world: World) -> Any:
    return make_server(world.hub)


async def test_a_task_of_another_principal_does_not_exist(world: World, server: Any) -> None:
    alice = McpPeer(world.hub, "2025-11-25", server=server, principal=ALICE)
    bob = McpPeer(world.hub, "2025-11-25", server=server, principal=BOB)
    created = await alice.result("tools/call", {"name": "asks.one", "arguments": {}, "task": {}})
    task = created["task"]["taskId"]
    assert [each["taskId"] for each in (await alice.result("tasks/list"))["tasks"]] == [task]
    assert (await bob.result("tasks/list"))["tasks"] == []
    for name in ("tasks/get", "tasks/cancel", "tasks/result"):
        error = await bob.error(name, {"taskId": task})
        absent = await bob.error(name, {"taskId": "9007199254740991"})
        assert (error["code"], error["message"]) == (absent["code"], absent["message"])
    assert (await alice.result("tasks/get", {"taskId": task}))["status"] != "cancelled"
    [run] = world.hub.runs.list_kept(ALICE)
    await until(lambda: bool(run.questions))
    assert run.cancel_reason is None


async def test_an_extension_task_cannot_be_answered_by_another_principal(
    world: World, server: Any
) -> None:
    alice = McpPeer(world.hub, "2025-11-25", server=server, principal=ALICE)
    made = await alice.result("tools/call", {"name": "asks.one", "arguments": {}, "task": {}})
    task = made["task"]["taskId"]
    bob = McpPeer(world.hub, STATELESS, server=server, principal=BOB, capabilities=TASKS)
    for name in ("tasks/get", "tasks/update", "tasks/cancel"):
        params = {"taskId": task, "inputResponses": {}}
        error = await bob.error(name, params)
        absent = await bob.error(name, params | {"taskId": "9007199254740991"})
        assert (error["code"], error["message"]) == (absent["code"], absent["message"])


async def test_resources_and_prompts_are_not_listed_for_other_principals(
    world: World, server: Any
) -> None:
    for who, hers in ((ALICE, True), (BOB, False)):
        peer = McpPeer(world.hub, "2025-06-18", server=server, principal=who)
        for name in ("resources/list", "prompts/list"):
            assert (SECRET in str(await peer.result(name))) is hers
        read = {"uri": f"arbor://tree/{world.ids['tree']}/node/{world.ids['node']}"}
        answer = await peer.call("resources/read", read)
        assert ("result" in answer) is hers
        gone = await peer.call("prompts/get", {"name": f"chat.session.{SECRET}-1"})
        assert ("result" in gone) is hers
        run = await peer.call("resources/read", {"uri": f"run://{world.ids['run']}"})
        assert ("result" in run) is hers


async def test_changes_of_a_tree_are_not_reported_to_other_principals(
    world: World, server: Any
) -> None:
    peers = {
        who.name: McpPeer(world.hub, "2025-06-18", server=server, principal=who)
        for who in (ALICE, BOB)
    }
    uri = f"arbor://tree/{world.ids['tree']}"
    for peer in peers.values():
        await peer.result("resources/subscribe", {"uri": uri})
    listening = McpPeer(world.hub, STATELESS, server=server, principal=BOB)
    listening.begin(
        "subscriptions/listen",
        {
            "notifications": {
                "resourceSubscriptions": [uri],
                "resourcesListChanged": True,
                "promptsListChanged": True,
            }
        },
    )
    await world.value(
        "arbor.node_create_text", tree_id=world.ids["tree"], content=f"{SECRET} again"
    )
    await peers["alice"].notification("notifications/resources/updated")
    await peers["alice"].notification("notifications/resources/list_changed")
    await world.value("chat.rename", session=world.ids["session"], new_name="another")
    await peers["alice"].notification("notifications/prompts/list_changed")
    await peers["bob"].quiet()
    await listening.quiet()
    notified = [frame["method"] for frame in peers["bob"].frames if "method" in frame]
    assert notified == []
    received = [frame["method"] for frame in listening.frames if "method" in frame]
    assert received == ["notifications/subscriptions/acknowledged"]
