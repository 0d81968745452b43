"""Tool sets: what a client is offered, and what it can call in any case."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import OpenHub
from mcp_peer import HANDSHAKES, REVISIONS, Clock, McpPeer, make_server, text_of

from mcp_view.server import McpOptions
from mcp_view.session import Session
from mcp_view.tool_sets import ALL_TOOLS, STANDARD_TOOLS, ToolSet
from plexus import Activation, Content, Context, Plexus, method
from plexus.errors import Failed
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Notes(Activation):
    """Notes."""

    namespace = "notes"

    @method(read_only=True)
    async def find(self, text: str) -> str:
        """Find a note."""
        return f"found {text}"

    @method(audience="client", destructive=False)
    async def move(self, to: int) -> str:
        """Move a note."""
        return f"moved to {to}"

    @method(audience="client", destructive=True)
    async def burn(self) -> str:
        """Delete all notes."""
        return "burnt"

    @method(audience="client", scope="bash", destructive=False)
    async def shell(self) -> str:
        """Run something."""
        return "ran"

    @method(audience="client")
    async def unsaid(self) -> str:
        """Change something, without a hint of what."""
        return "changed"

    @method(read_only=True, audience="client")
    async def fail(self) -> str:
        """Fail."""
        raise Failed("no such note")

    @method(read_only=True, audience="client")
    async def report(self, ctx: Context) -> list[Content]:
        """Report progress."""
        await ctx.progress(1, 2, "half")
        return [Content("one"), Content("two")]


def listed(peer: McpPeer) -> list[str]:
    [answer] = peer.send({"id": 1, "method": "tools/list", "params": {}})
    return [tool["name"] for tool in answer["result"]["tools"]]


def peer_of(hub: Plexus, chosen: str | None = None, **options: Any) -> McpPeer:
    made = McpOptions(**options) if chosen is None else McpOptions(tools=ToolSet.parse(chosen))
    return McpPeer(hub, HANDSHAKES[-1], options=made)


async def test_the_standard_set_is_what_is_meant_for_models(open_hub: OpenHub) -> None:
    assert listed(peer_of(open_hub(Notes))) == [
        "notes.find",
        "plexus.call",
        "plexus.cancel",
        "plexus.respond",
        "plexus.runs",
        "plexus.search",
    ]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("notes.*", {"find", "move", "burn", "shell", "unsaid", "fail", "report"}),
        ("notes.m*,notes.burn", {"move", "burn"}),
        ("standard,notes.move", {"find", "move"}),
        ("notes", {"find", "move", "burn", "shell", "unsaid", "fail", "report"}),
        ("nothing.*", set()),
    ],
)
async def test_patterns_choose_tools(open_hub: OpenHub, chosen: str, expected: set[str]) -> None:
    names = listed(peer_of(open_hub(Notes), chosen))
    assert {name.removeprefix("notes.") for name in names if name.startswith("notes.")} == expected
    assert ("plexus.runs" in names) is ("standard" in chosen)


async def test_all_lists_everything_that_is_listed_at_all(open_hub: OpenHub) -> None:
    names = listed(peer_of(open_hub(Notes), "all"))
    assert {"notes.burn", "plexus.schema"} <= set(names)
    assert "plexus.unsubscribe" not in names


async def test_a_client_may_choose_for_itself(open_hub: OpenHub) -> None:
    hub = open_hub(Notes)
    server = make_server(hub)
    one, other = (
        McpPeer(hub, HANDSHAKES[-1], server=server),
        McpPeer(hub, HANDSHAKES[-1], server=server),
    )
    one.session.tools = ToolSet.parse("notes.burn")
    assert listed(one) == ["notes.burn"]
    assert "notes.find" in listed(other)
    assert Session().tools is None


def test_equal_choices_are_one_list() -> None:
    assert ToolSet.parse("b,a").key == ToolSet.parse(["a", "b "]).key == "a,b"
    assert ToolSet.parse("") is STANDARD_TOOLS
    assert ToolSet.parse("a,all") is ALL_TOOLS


@pytest.mark.parametrize("text", ["Notes", "a b", "notes;x", "x" * 500])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern"):
        ToolSet.parse(text)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_is_not_listed_can_be_called_by_its_name(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Notes), revision)
    assert text_of(await peer.tool("notes.burn")) == "burnt"


# --- plexus.search -------------------------------------------------------------------------------


async def test_search_finds_what_is_not_listed_with_its_schema(open_hub: OpenHub) -> None:
    hub = open_hub(Notes)
    peer = peer_of(hub)
    text = text_of(await peer.tool("plexus.search", {"query": "move a note", "limit": 1}))
    assert '"name":"notes.move"' in text
    assert '"to":{"type":"integer"}' in text


async def test_search_follows_what_is_registered(open_hub: OpenHub) -> None:
    hub = open_hub(Notes)
    peer = peer_of(hub)
    assert "notes" in text_of(await peer.tool("plexus.search", {"query": "note"}))
    hub.unregister("notes")
    assert "notes" not in text_of(await peer.tool("plexus.search", {"query": "note"}))


@pytest.mark.parametrize("limit", [0, 21, -1])
async def test_the_limit_of_a_search_is_in_its_schema(open_hub: OpenHub, limit: int) -> None:
    result = await peer_of(open_hub(Notes)).tool("plexus.search", {"query": "x", "limit": limit})
    assert result["isError"] is True
    assert "limit" in text_of(result)


# --- plexus.call ---------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_call_gives_what_a_direct_call_gives(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Notes), revision)
    for name, arguments in (
        ("notes.find", {"text": "a"}),
        ("notes.fail", {}),
        ("notes.report", {}),
    ):
        direct = await peer.tool(name, arguments)
        through = await peer.tool("plexus.call", {"method": name, "params": arguments})
        assert through == direct


async def test_call_reports_progress_and_its_run_is_that_of_the_method(open_hub: OpenHub) -> None:
    hub = open_hub(Notes)
    peer = peer_of(hub)
    await peer.tool("plexus.call", {"method": "notes.report"}, progressToken="t")
    steps = peer.notifications("notifications/progress")
    assert steps[0]["message"] == "half"
    assert [run.method for run in hub.runs.list_for(LOCAL)] == ["notes.report"]


@pytest.mark.parametrize("name", ["notes.burn", "notes.shell", "notes.unsaid", "plexus.call"])
async def test_call_refuses_what_may_do_damage_and_says_what_to_do(
    open_hub: OpenHub, name: str
) -> None:
    hub = open_hub(Notes)
    peer = peer_of(hub)
    result = await peer.tool("plexus.call", {"method": name, "params": {}})
    assert result["isError"] is True
    assert f"Call the tool {name} itself" in text_of(result)
    assert not list(hub.runs.list_for(LOCAL))


async def test_the_operator_may_allow_everything(open_hub: OpenHub) -> None:
    peer = peer_of(open_hub(Notes), call_all=True)
    assert text_of(await peer.tool("plexus.call", {"method": "notes.burn"})) == "burnt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs"),
        ({"method": 5}, "needs"),
        ({"method": "notes.find", "params": [1]}, "needs"),
        ({"method": "notes.find", "params": {"text": 5}}, "text"),
        ({"method": "notes.nosuch"}, "Unknown method 'notes.nosuch'. Find methods with"),
    ],
)
async def test_a_wrong_call_says_what_is_wrong(
    open_hub: OpenHub, arguments: dict[str, Any], message: str
) -> None:
    result = await peer_of(open_hub(Notes)).tool("plexus.call", arguments)
    assert result["isError"] is True
    assert message in text_of(result)


async def test_call_is_announced_as_destructive(open_hub: OpenHub) -> None:
    [answer] = peer_of(open_hub(Notes)).send({"id": 1, "method": "tools/list", "params": {}})
    [call] = [tool for tool in answer["result"]["tools"] if tool["name"] == "plexus.call"]
    assert call["annotations"]["destructiveHint"] is True


# --- the page ------------------------------------------------------------------------------------


async def test_the_first_result_of_a_long_run_says_where_runs_can_be_watched(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Notes)
    clock = Clock()
    peer = McpPeer(hub, HANDSHAKES[-1], server=make_server(hub, monotonic=clock))
    looked = 0

    def find_page() -> str:
        nonlocal looked
        looked += 1
        return "http://127.0.0.1:4444/"

    hub.find_page = find_page
    assert "watch" not in text_of(await peer.tool("notes.find", {"text": "a"}))
    assert looked == 0, "a short call reads no files to find the page"
    clock.now += 60
    result = await peer.tool("notes.find", {"text": "a"})
    assert "found a" in text_of(result)
    assert "can watch and stop this and other runs at http://127.0.0.1:4444/#/runs/" in text_of(
        result
    )
    assert "watch" not in text_of(await peer.tool("notes.find", {"text": "a"}))
