"""Scopes in the MCP view: unlisted methods are denied by name."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import until
from mcp_peer import CAPABLE, HANDSHAKES, REVISIONS, STATELESS, TASKS, McpPeer, make_server, text_of

from mcp_view.catalogue import MAX_VARIANTS
from mcp_view.errors import DENIED
from mcp_view.revisions import REVISIONS as NAMED_REVISIONS
from mcp_view.server import McpServer
from mcp_view.tool_sets import ALL_TOOLS
from plexus import (
    Activation,
    Change,
    Confirm,
    Context,
    Denied,
    Plexus,
    Principal,
    PromptInfo,
    ResourceInfo,
    completer,
    method,
    prompt,
    resource,
)
from substrate.server.mcp.responder import http_status, missing_scope

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

CORE = "2025-11-25"
READER = Principal("ada", frozenset())
BAKER = Principal("ada", frozenset({"bakery"}))
OWNER = Principal("ada")
BOB = Principal("bob")

#: The names that each principal sees. The principals have the same name, so this is no dict.
OPEN = {"bakery.smell", "bakery.private"}
ALL = {*OPEN, "bakery.bake", "bakery.sure"}


class Bakery(Activation):
    """Bread, some of it for all scopes."""

    namespace = "bakery"
    version = "1.0.0"

    def __init__(self) -> None:
        self.baked = 0

    @method
    async def bake(self) -> str:
        """Bake a loaf."""
        self.baked += 1
        return "a loaf"

    @method(read_only=True)
    async def smell(self) -> str:
        """How it smells."""
        return "good"

    @method
    async def sure(self, *, ctx: Context) -> str:
        """Ask first."""
        return "baked" if await ctx.ask(Confirm("Sure?"), key="sure") else "not baked"

    @method(read_only=True)
    async def private(self) -> str:
        """Refuse with its own reason."""
        raise Denied("closed on Sundays")

    @prompt
    async def greeting(self) -> str:
        """Say hello."""
        return "hello"

    @prompt(scope="bakery")
    async def recipe(self, name: str) -> str:
        """How it is made."""
        return name

    @prompt(template="bakery.order.{name}", scope="bakery")
    async def order(self, name: str) -> str:
        """An order."""
        return name

    @completer("recipe", "name")
    async def suggest(self, value: str, _given: dict[str, str]) -> list[str]:
        """Names of recipes."""
        return [value + "bread"]

    @resource("shop://window")
    async def window(self) -> str:
        """What is in the window."""
        return "buns"

    @resource("shop://till", scope="bakery")
    async def till(self) -> str:
        """What is in the till."""
        return "coins"

    @resource("shop://shelf/{number}")
    async def shelf(self, number: str) -> str:
        """What is on a shelf."""
        return number

    @resource("shop://ledger/{page}", scope="bakery")
    async def ledger(self, page: str) -> str:
        """A page of the ledger."""
        return page

    @completer("ledger", "page")
    async def suggest_pages(self, value: str, _given: dict[str, str]) -> list[str]:
        """Pages."""
        return [value + "1"]

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - the hub decides
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """Pages and shelves."""
        there = ["shop://ledger/1", "shop://ledger/2", "shop://shelf/1"]
        return [ResourceInfo(uri, uri) for uri in there if after is None or uri > after][:limit]

    async def prompts(
        self,
        principal: Principal,  # noqa: ARG002 - the hub decides
        after: str | None,
        limit: int,
    ) -> list[PromptInfo]:
        """One order."""
        there = ["bakery.order.1"]
        return [PromptInfo(name) for name in there if after is None or name > after][:limit]


class Still(Bakery):
    """The same, with prompts that are always there only."""

    prompts = Activation.prompts


@pytest.fixture
def bakery() -> Bakery:
    return Bakery()


@pytest.fixture
def hub(open_hub: OpenHub, bakery: Bakery) -> Plexus:
    return open_hub(bakery)


@pytest.fixture
def server(hub: Plexus) -> McpServer:
    return make_server(hub)


def peer_of(server: McpServer, revision: str, principal: Principal, **more: Any) -> McpPeer:
    return McpPeer(server.hub, revision, server=server, principal=principal, **more)


async def listed(peer: McpPeer, name: str, key: str, field: str) -> set[str]:
    """Return the entries of the bakery in a list."""
    entries = (await peer.result(name))[key]
    return {entry[field] for entry in entries if not entry[field].startswith(("plexus", "run:"))}


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_tools_are_listed_for_principals_that_may_call_them(
    server: McpServer, revision: str
) -> None:
    for _ in range(2):  # the second time from the cache
        for principal, names in ((READER, OPEN), (BAKER, ALL), (OWNER, ALL)):
            peer = peer_of(server, revision, principal)
            assert await listed(peer, "tools/list", "tools", "name") == names


@pytest.mark.parametrize("revision", REVISIONS)
async def test_prompts_are_listed_for_principals_that_may_get_them(
    server: McpServer, revision: str
) -> None:
    peer = peer_of(server, revision, READER)
    assert await listed(peer, "prompts/list", "prompts", "name") == {"bakery.greeting"}
    peer = peer_of(server, revision, BAKER)
    assert await listed(peer, "prompts/list", "prompts", "name") == {
        *("bakery.greeting", "bakery.recipe", "bakery.order.1")
    }


async def test_static_prompts_are_listed_by_scope_too(open_hub: OpenHub) -> None:
    server = make_server(open_hub(Still()))
    for principal, names in (
        (READER, {"bakery.greeting"}),
        (BAKER, {"bakery.greeting", "bakery.recipe"}),
        (READER, {"bakery.greeting"}),
    ):
        peer = peer_of(server, CORE, principal)
        assert await listed(peer, "prompts/list", "prompts", "name") == names


@pytest.mark.parametrize("revision", REVISIONS)
async def test_resources_and_templates_are_listed_for_principals_that_may_read_them(
    server: McpServer, revision: str
) -> None:
    for principal, resources, templates in (
        (READER, {"shop://window", "shop://shelf/1"}, {"shop://shelf/{number}"}),
        (
            BAKER,
            {
                *("shop://window", "shop://till", "shop://shelf/1"),
                *("shop://ledger/1", "shop://ledger/2"),
            },
            {"shop://shelf/{number}", "shop://ledger/{page}"},
        ),
    ):
        peer = peer_of(server, revision, principal)
        assert await listed(peer, "resources/list", "resources", "uri") == resources
        found = await listed(peer, "resources/templates/list", "resourceTemplates", "uriTemplate")
        assert found == templates


async def test_lists_follow_the_hub(server: McpServer) -> None:
    class Oven(Activation):
        """Comes later."""

        namespace = "oven"
        version = "1.0.0"

        @method
        async def heat(self) -> str:
            """Heat it."""
            return "hot"

        @method(read_only=True)
        async def look(self) -> str:
            """Look at it."""
            return "cold"

    cook = Principal("ada", frozenset({"oven"}))
    reader, cooks = peer_of(server, CORE, READER), peer_of(server, CORE, cook)
    for peer in (reader, cooks):
        assert await listed(peer, "tools/list", "tools", "name") == OPEN
    server.hub.register(Oven)
    assert await listed(cooks, "tools/list", "tools", "name") == {*OPEN, "oven.heat", "oven.look"}
    assert await listed(reader, "tools/list", "tools", "name") == {*OPEN, "oven.look"}


async def test_arbitrary_scopes_do_not_fill_the_cache(server: McpServer) -> None:
    revision = NAMED_REVISIONS[CORE]
    kept = server.catalogue.tools(revision, READER, ALL_TOOLS)
    for number in range(2 * MAX_VARIANTS):
        odd = Principal(f"p{number}", frozenset({f"odd{number}"}))
        assert server.catalogue.tools(revision, odd, ALL_TOOLS) is kept


# --- by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("spelling", ["bakery.bake", "bakery_bake", "bakery-bake"])
async def test_an_unlisted_tool_is_denied_by_name(
    server: McpServer, bakery: Bakery, revision: str, spelling: str
) -> None:
    peer = peer_of(server, revision, READER)
    error = await peer.error("tools/call", {"name": spelling, "arguments": {}})
    assert (error["code"], error["data"]) == (DENIED, {"scope": "bakery"})
    assert "'bakery'" in error["message"]
    assert (peer.status, missing_scope(peer.view.refusal)) == (403, "bakery")
    assert bakery.baked == 0
    baker = peer_of(server, revision, BAKER)
    assert text_of(await baker.tool(spelling)) == "a loaf"
    assert (baker.status, missing_scope(baker.view.refusal)) == (200, None)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_unlisted_prompts_and_resources_are_denied_too(
    server: McpServer, revision: str
) -> None:
    peer, baker = peer_of(server, revision, READER), peer_of(server, revision, BAKER)
    for name, params in (
        ("prompts/get", {"name": "bakery.recipe", "arguments": {"name": "x"}}),
        ("prompts/get", {"name": "bakery.order.1"}),
        ("resources/read", {"uri": "shop://till"}),
        ("resources/read", {"uri": "shop://ledger/1"}),
    ):
        error = await peer.error(name, params)
        assert (error["code"], error["data"]) == (DENIED, {"scope": "bakery"})
        await baker.result(name, params)
    await peer.result("prompts/get", {"name": "bakery.greeting"})
    await peer.result("resources/read", {"uri": "shop://shelf/1"})


@pytest.mark.parametrize("revision", REVISIONS[1:])
async def test_unlisted_prompts_and_resources_have_no_completions(
    server: McpServer, revision: str
) -> None:
    peer, baker = peer_of(server, revision, READER), peer_of(server, revision, BAKER)
    for ref, argument in (
        ({"type": "ref/prompt", "name": "bakery.recipe"}, "name"),
        ({"type": "ref/prompt", "name": "bakery.order.1"}, "name"),
        ({"type": "ref/resource", "uri": "shop://ledger/{page}"}, "page"),
    ):
        params = {"ref": ref, "argument": {"name": argument, "value": "a"}}
        absent = {k: v if k == "type" else "shop://no" for k, v in ref.items()}
        error = await peer.error("completion/complete", params)
        assert error == await peer.error("completion/complete", params | {"ref": absent})
        answer = await baker.call("completion/complete", params)
        assert answer.get("error", {}).get("message") != error["message"]


async def test_a_denial_by_an_activation_is_a_failed_result(
    server: McpServer,
) -> None:
    for principal in (READER, OWNER):
        peer = peer_of(server, STATELESS, principal)
        result = await peer.tool("bakery.private")
        assert result["isError"] is True
        assert missing_scope(peer.view.refusal) is None


async def test_native_methods_on_the_same_connection_are_denied_too(
    server: McpServer, bakery: Bakery
) -> None:
    peer = peer_of(server, CORE, READER, native=True)
    answer = await peer.answer_to(peer.begin("bakery.bake"))
    assert (answer["error"]["code"], answer["error"]["data"]) == (-32001, {"scope": "bakery"})
    assert bakery.baked == 0


def test_a_denial_has_its_own_status() -> None:
    assert http_status(DENIED) == 403
    assert not -32768 <= DENIED <= -32000  # the protocol's own names


# --- fewer scopes than the run --------------------------------------------------------------------


async def asking_task(server: McpServer) -> tuple[str, Any]:
    """Return a task of the baker that waits for an answer."""
    baker = peer_of(server, CORE, BAKER)
    params = {"name": "bakery.sure", "arguments": {}, "task": {}}
    task = (await baker.result("tools/call", params))["task"]["taskId"]
    run = server.hub.runs.find(int(task), BAKER)
    await until(lambda: bool(run.questions))
    return task, run


@pytest.mark.parametrize(
    ("revision", "name"),
    [
        (CORE, "tasks/cancel"),
        (CORE, "tasks/result"),
        (STATELESS, "tasks/cancel"),
        (STATELESS, "tasks/update"),
    ],
)
async def test_a_task_is_read_by_its_owner_and_controlled_with_its_scope(
    server: McpServer, revision: str, name: str
) -> None:
    task, run = await asking_task(server)
    params = {"taskId": task, "inputResponses": {"sure": {"action": "accept"}}}
    reader = peer_of(server, revision, READER, capabilities=TASKS)
    got = await reader.result("tasks/get", {"taskId": task})
    assert got["status"] == "input_required"
    error = await reader.error(name, params)
    assert (error["code"], error["data"]) == (DENIED, {"scope": "bakery"})
    assert run.cancel_reason is None
    assert run.questions
    stranger = peer_of(server, revision, BOB, capabilities=TASKS)
    assert (await stranger.error(name, params))["message"] == "Unknown task. It may have expired."


async def test_a_suspended_request_resumes_only_with_its_scope(
    server: McpServer,
) -> None:
    baker = peer_of(server, STATELESS, BAKER, capabilities=CAPABLE)
    params: dict[str, Any] = {"name": "bakery.sure", "arguments": {}}
    asked = await baker.result("tools/call", params)
    assert asked["resultType"] == "input_required"
    params |= {
        "requestState": asked["requestState"],
        "inputResponses": {"sure": {"action": "accept", "content": {"answer": True}}},
    }
    reader = peer_of(server, STATELESS, READER, capabilities=CAPABLE)
    error = await reader.error("tools/call", params)
    assert (error["code"], error["data"]) == (DENIED, {"scope": "bakery"})
    stranger = peer_of(server, STATELESS, BOB, capabilities=CAPABLE)
    gone = await stranger.error("tools/call", params)
    assert "no longer exists" in gone["message"]
    [run] = [run for run in server.hub.runs.list_for(BAKER) if run.method == "bakery.sure"]
    assert run.questions
    assert run.cancel_reason is None


# --- changes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_changes_of_unreadable_resources_are_not_sent(
    server: McpServer, revision: str
) -> None:
    uris = ("shop://till", "shop://window", "shop://nothing")
    peers = {who.scopes: peer_of(server, revision, who) for who in (READER, BAKER, OWNER)}
    for peer in peers.values():
        for uri in uris:
            await peer.result("resources/subscribe", {"uri": uri})
    for uri in uris:
        server.hub.notify(Change("resource", uri))
    sent = {}
    for scopes, peer in peers.items():
        await peer.quiet()
        updates = peer.notifications("notifications/resources/updated")
        sent[scopes] = [params["uri"] for params in updates]
    assert sent[READER.scopes] == ["shop://window"]
    assert sent[BAKER.scopes] == ["shop://till", "shop://window"]
    assert sent[None] == list(uris)


async def test_a_listen_stream_gets_no_changes_of_unreadable_resources(server: McpServer) -> None:
    uris = ["shop://till", "shop://window"]
    received = {}
    peers = {who.scopes: peer_of(server, STATELESS, who) for who in (READER, BAKER)}
    for peer in peers.values():
        peer.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
    for uri in uris:
        server.hub.notify(Change("resource", uri))
    for scopes, peer in peers.items():
        await peer.quiet()
        updates = peer.notifications("notifications/resources/updated")
        received[scopes] = [params["uri"] for params in updates]
    assert received == {READER.scopes: ["shop://window"], BAKER.scopes: uris}


@pytest.mark.parametrize("kind", ["prompts", "resources"])
async def test_a_change_for_one_principal_is_sent_to_it_only(server: McpServer, kind: Any) -> None:
    peers = {who.name: peer_of(server, CORE, who) for who in (READER, BOB)}
    server.hub.notify(Change(kind, None, "bob"))
    for peer in peers.values():
        await peer.quiet()
    name = f"notifications/{kind}/list_changed"
    assert [len(peers[who].notifications(name)) for who in ("ada", "bob")] == [0, 1]
    server.hub.notify(Change(kind))
    for peer in peers.values():
        await peer.quiet()
    assert [len(peers[who].notifications(name)) for who in ("ada", "bob")] == [1, 2]
