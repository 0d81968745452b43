"""Lists of tools, prompts and templates, with exactly the fields of each revision."""

from __future__ import annotations

import string
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from mcp_activations import Show
from mcp_peer import REVISIONS, STATELESS, McpPeer

from mcp_view.catalogue import SPELLINGS, SpellingName, cursor_after
from mcp_view.revisions import REVISIONS as NAMED_REVISIONS
from mcp_view.server import McpOptions
from mcp_view.tool_sets import ALL_TOOLS
from plexus import Activation, Plexus, method, prompt, resource
from plexus.errors import RegistrationError
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

#: The first revision with each field of a tool.
SINCE = {
    "name": "2024-11-05",
    "description": "2024-11-05",
    "inputSchema": "2024-11-05",
    "annotations": "2025-03-26",
    "title": "2025-06-18",
    "outputSchema": "2025-06-18",
    "execution": "2025-11-25",
}


class Papers(Activation):
    """Prompts and resources."""

    namespace = "papers"
    version = "1.0.0"

    @prompt(title="Write a letter")
    async def letter(self, to: str, tone: str | None = None) -> str:
        """A letter.

        Args:
            to: Whom it is for.
        """
        return f"Dear {to}, {tone}"

    @prompt
    async def plain(self) -> str:
        """A prompt without arguments."""
        return "plain"

    @resource("paper://{number}{?page}", title="A paper", mime_type="text/markdown")
    async def paper(self, number: int, page: int = 1) -> str:
        """A paper by its number."""
        return f"{number}/{page}"

    @resource("paper://index")
    async def index(self) -> str:
        """All papers."""
        return "all"

    @method(listed=False)
    async def hidden(self) -> str:
        """Callable, but not listed."""
        return "hidden"

    @method(background="required")
    async def slow(self) -> str:
        """Runs only on its own."""
        return "slow"


async def tools_of(peer: McpPeer) -> dict[str, dict[str, Any]]:
    result = await peer.result("tools/list")
    return {tool["name"]: tool for tool in result["tools"]}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_tool_has_the_fields_of_its_revision(open_hub: OpenHub, revision: str) -> None:
    tools = await tools_of(McpPeer(open_hub(Show), revision))
    known = {key for key, since in SINCE.items() if since <= revision}
    if revision == STATELESS:
        known.remove("execution")
    words, found, value = (tools[f"show.{name}"] for name in ("words", "found", "value"))
    assert set(words) == known - {"outputSchema"}
    assert set(found) == known - {"annotations", "title"}
    assert set(value) == known - {"annotations", "title", "outputSchema"}
    assert words["description"] == "Say these texts."
    assert words["inputSchema"] == {
        "type": "object",
        "properties": {
            "texts": {"type": "array", "items": {"type": "string"}, "description": "What to say."}
        },
        "required": ["texts"],
        "additionalProperties": False,
    }
    if "annotations" in known:
        assert words["annotations"] == {
            "title": "Say it",
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        }
    if "title" in known:
        assert words["title"] == "Say it"
    if "outputSchema" in known:
        assert found["outputSchema"]["required"] == ["name", "size"]
    if "execution" in known:
        assert words["execution"] == {"taskSupport": "optional"}
        assert found["execution"] == {"taskSupport": "forbidden"}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_only_a_model_has_an_output_schema(open_hub: OpenHub, revision: str) -> None:
    tools = await tools_of(McpPeer(open_hub(Show), revision))
    described = [name for name, tool in tools.items() if "outputSchema" in tool]
    assert described == (["show.found"] if revision >= "2025-06-18" else [])


async def test_the_order_of_a_list_is_that_of_the_names(open_hub: OpenHub) -> None:
    names = list(await tools_of(McpPeer(open_hub(Show, Demo, Papers), "2025-11-25")))
    assert names == sorted(names)
    assert list(await tools_of(McpPeer(open_hub(Papers, Demo, Show), "2025-11-25"))) == names


async def test_prompts_resources_and_unlisted_methods_are_no_tools(open_hub: OpenHub) -> None:
    tools = await tools_of(McpPeer(open_hub(Papers), "2025-11-25"))
    assert [name for name in tools if name.startswith("papers.")] == ["papers.slow"]
    assert tools["papers.slow"]["execution"] == {"taskSupport": "required"}
    assert not {"plexus.unsubscribe", "plexus.resources", "plexus.complete"} & set(tools)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("revision", ["2024-11-05", STATELESS])
async def test_pages_contain_every_tool_once(open_hub: OpenHub, revision: str, size: int) -> None:
    hub = open_hub(Show, Demo)
    peer = McpPeer(hub, revision, options=McpOptions(page_size=size))
    walked: list[str] = []
    params: dict[str, Any] = {"cursor": None}
    while True:
        result = await peer.result("tools/list", params)
        assert len(result["tools"]) <= size
        walked += [tool["name"] for tool in result["tools"]]
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert walked == list(await tools_of(McpPeer(hub, revision)))


@pytest.mark.parametrize(
    "method_name",
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list"],
)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_unknown_cursor_is_refused(
    open_hub: OpenHub, revision: str, method_name: str
) -> None:
    peer = McpPeer(open_hub(Papers), revision)
    for cursor in ("nonsense", "", 5):
        error = await peer.error(method_name, {"cursor": cursor})
        assert error["code"] == -32602
    assert "result" in await peer.call(method_name, {"cursor": None})


@pytest.mark.parametrize("revision", REVISIONS)
async def test_prompts_are_listed_with_their_arguments(open_hub: OpenHub, revision: str) -> None:
    result = await McpPeer(open_hub(Papers), revision).result("prompts/list")
    letter, plain = result["prompts"]
    title = {"title": "Write a letter"} if revision >= "2025-06-18" else {}
    assert letter == title | {
        "name": "papers.letter",
        "description": "A letter.",
        "arguments": [
            {"name": "to", "description": "Whom it is for.", "required": True},
            {"name": "tone", "description": "tone", "required": False},
        ],
    }
    assert plain == {"name": "papers.plain", "description": "A prompt without arguments."}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_templates_are_the_resources_with_parameters(
    open_hub: OpenHub, revision: str
) -> None:
    result = await McpPeer(open_hub(Papers), revision).result("resources/templates/list")
    paper, run = result["resourceTemplates"]
    title = {"title": "A paper"} if revision >= "2025-06-18" else {}
    assert paper == title | {
        "uriTemplate": "paper://{number}{?page}",
        "name": "paper",
        "description": "A paper by its number.",
        "mimeType": "text/markdown",
    }
    assert run["uriTemplate"] == "run://{run}{?after}"


async def test_a_change_of_the_hub_changes_the_lists(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    peer = McpPeer(hub, "2025-11-25")
    before = await tools_of(peer)
    assert (await peer.error("tools/call", {"name": "show.silence"}))["code"] == -32602
    hub.register(Show())
    after = await tools_of(peer)
    assert set(before) < set(after)
    assert "show.silence" in after
    assert (await peer.tool("show.silence"))["isError"] is False


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "shown"),
    [
        ("dot", "demo.refuse_to_stop"),
        ("underscore", "demo_refuse_to_stop"),
        ("dash", "demo-refuse_to_stop"),
    ],
)
async def test_tools_and_prompts_have_the_configured_spelling(
    open_hub: OpenHub, spelling: SpellingName, shown: str
) -> None:
    options = McpOptions(names=SPELLINGS[spelling])
    peer = McpPeer(open_hub(Demo, Papers), "2025-11-25", options=options)
    tools = await tools_of(peer)
    assert shown in tools
    separator = SPELLINGS[spelling].name_of(".")
    assert f"papers{separator}slow" in tools
    prompts = (await peer.result("prompts/list"))["prompts"]
    assert [each["name"] for each in prompts] == [
        f"papers{separator}letter",
        f"papers{separator}plain",
    ]
    strict = {*string.ascii_letters, *string.digits, "_", "-"}
    if spelling != "dot":
        assert all(strict.issuperset(name) for name in tools)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ["demo.echo", "demo_echo", "demo-echo"])
async def test_every_spelling_is_accepted_whichever_is_listed(
    open_hub: OpenHub, spelling: SpellingName, name: str
) -> None:
    options = McpOptions(names=SPELLINGS[spelling])
    peer = McpPeer(open_hub(Demo, Papers), "2025-11-25", options=options)
    result = await peer.tool(name, {"text": "hi"})
    assert result["content"][0]["text"] == "hi"
    plain = name.replace("demo", "papers").replace("echo", "plain")
    assert (await peer.result("prompts/get", {"name": plain}))["messages"]


async def test_thousands_of_tools_are_listed_in_pages(open_hub: OpenHub) -> None:
    """A large server has several pages, and each tool is on one of them."""
    hub = open_hub()
    fill(hub, 25)
    peer = McpPeer(hub, "2025-11-25", options=McpOptions(page_size=10))
    result = await peer.result("tools/list")
    names = {tool["name"] for tool in result["tools"]}
    while "nextCursor" in result:
        result = await peer.result("tools/list", {"cursor": result["nextCursor"]})
        fresh = {tool["name"] for tool in result["tools"]}
        assert not names & fresh
        names |= fresh
    assert {f"many{number}.echo" for number in range(25)} < names


async def test_pages_after_arbitrary_cursors_are_right_and_are_not_kept(open_hub: OpenHub) -> None:
    hub = open_hub(Show, Demo)
    peer = McpPeer(hub, "2025-11-25", options=McpOptions(page_size=2))
    entries = peer.server.catalogue.tools(NAMED_REVISIONS["2025-11-25"], LOCAL, ALL_TOOLS)
    peer.session.tools = ALL_TOOLS
    names = entries.keys
    for _ in range(2):
        for number, name in enumerate(names):
            page = await peer.result("tools/list", {"cursor": cursor_after(name)})
            assert [tool["name"] for tool in page["tools"]] == names[number + 1 : number + 3]
        assert all(start % 2 == 0 for start, _ in entries.pages)


async def test_a_list_is_encoded_again_after_the_hub_changed(open_hub: OpenHub) -> None:
    hub = open_hub(Papers)
    peer = McpPeer(hub, "2025-11-25")
    before = await tools_of(peer)
    assert await tools_of(peer) == before
    hub.register(Demo)
    assert {*await tools_of(peer)} > {*before}
    hub.unregister("demo")
    assert await tools_of(peer) == before


def fill(hub: Plexus, count: int) -> None:
    for number in range(count):
        hub.register(type(f"Many{number}", (Demo,), {"namespace": f"many{number}", "__doc__": "m"}))


class Talkative(Activation):
    """Results of all sizes."""

    namespace = "talkative"
    version = "1.0.0"

    @method
    async def usual(self, size: int) -> str:
        """Say as much as usual."""
        return "x" * size

    @method(max_result_chars=200_000)
    async def long(self, size: int) -> str:
        """Say more than usual."""
        return "x" * size

    @method(max_result_chars=9_000_000)
    async def longest(self) -> str:
        """Say more than any host takes."""
        return ""


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_tool_that_allows_more_than_claude_code_shows_declares_it(
    open_hub: OpenHub, revision: str
) -> None:
    tools = (await McpPeer(open_hub(Talkative), revision).result("tools/list"))["tools"]
    declared = {tool["name"]: tool.get("_meta") for tool in tools}
    if revision < "2025-06-18":
        assert set(declared.values()) == {None}
        return
    assert declared["talkative.usual"] is None
    assert declared["talkative.long"] == {"anthropic/maxResultSizeChars": 200_000}
    assert declared["talkative.longest"] == {"anthropic/maxResultSizeChars": 500_000}


async def test_a_higher_default_limit_is_declared_by_every_tool(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Talkative), "2025-11-25", options=McpOptions(result_chars=90_000))
    tools = (await peer.result("tools/list"))["tools"]
    declared = {tool["name"]: tool["_meta"]["anthropic/maxResultSizeChars"] for tool in tools}
    assert declared["talkative.usual"] == 90_000
    assert declared["talkative.long"] == 200_000


async def test_a_result_is_limited_by_its_tool(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Talkative), "2025-11-25")
    usual = await peer.tool("talkative.usual", {"size": 60_000})
    long = await peer.tool("talkative.long", {"size": 60_000})
    assert 48_000 < len(usual["content"][0]["text"]) < 48_200
    assert len(long["content"][0]["text"]) == 60_000


async def test_an_invalid_result_size_is_refused_at_registration(
    open_hub: OpenHub,
) -> None:
    class Tiny(Activation):
        """Too little to say anything."""

        namespace = "tiny"
        version = "1.0.0"

        @method(max_result_chars=10)
        async def say(self) -> str:
            """Say it."""
            return ""

    with pytest.raises(RegistrationError, match="max_result_chars is 10; it must be"):
        open_hub(Tiny)


class Choosy(Activation):
    """Optional parameters."""

    namespace = "choosy"
    version = "1.0.0"

    @method
    async def pick(
        self,
        must: int | None,
        count: int | None = None,
        either: int | str | None = None,
        tags: list[str] | None = None,
    ) -> str:
        """Pick something."""
        return repr((must, count, either, tags))


@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_optional_parameter_does_not_name_null_as_a_type(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Choosy), revision)
    tools = {tool["name"]: tool for tool in (await peer.result("tools/list"))["tools"]}
    properties = tools["choosy.pick"]["inputSchema"]["properties"]
    assert properties["must"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert properties["count"] == {"type": "integer"}
    assert properties["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert (properties["tags"]["type"], properties["tags"]["items"]) == (
        "array",
        {"type": "string"},
    )
    assert not any("default" in entry for entry in properties.values())
    result = await peer.tool("choosy.pick", {"must": None, "count": None})
    assert result["content"][0]["text"] == "(None, None, None, None)"
