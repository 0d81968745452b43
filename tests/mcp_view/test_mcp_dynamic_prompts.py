"""Dynamic prompts: pages of their list, getting a prompt, and completion of arguments."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from conftest import OpenHub
from hub_calls import OTHER
from mcp_peer import HANDSHAKES, REVISIONS, STATELESS, McpPeer

from mcp_view.catalogue import SPELLINGS, SpellingName
from mcp_view.server import McpOptions
from plexus import (
    Activation,
    AskText,
    Change,
    Context,
    NotFound,
    Principal,
    PromptInfo,
    completer,
    prompt,
)
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Talks(Activation):
    """Conversations to continue."""

    namespace = "talks"
    version = "1.0.0"

    def __init__(self, *names: str) -> None:
        self.names = {*names}

    @prompt(title="Begin")
    async def begin(self, about: str) -> str:
        """Begin a conversation.

        Args:
            about: What about.
        """
        return about

    @prompt(title="Go on", template="talks.with.{name}")
    async def go_on(
        self, name: str, tone: Literal["kind", "harsh"] = "kind", place: str | None = None
    ) -> str:
        """Go on with a conversation.

        Args:
            tone: How.
            place: Where.
        """
        if name not in self.names:
            raise NotFound(f"there is no conversation with {name}")
        return f"{name}, {tone}, {place}"

    @prompt
    async def end(self) -> str:
        """End all conversations."""
        return "end"

    @completer("go_on", "place")
    async def places(self, value: str, given: dict[str, str]) -> list[str]:
        """Where they were."""
        return [f"{value} at {given['name']}'s", given.get("tone", "")]

    async def prompts(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[PromptInfo]:
        """Whom one talked with."""
        if principal == OTHER:
            return []
        found = [
            PromptInfo(f"talks.with.{name}", f"With {name}", f"The conversation with {name}.")
            for name in sorted(self.names)
        ]
        return [each for each in found if after is None or each.name > after][:limit]


class Bare(Activation):
    """Prompts with few details, and a listed prompt without a method."""

    namespace = "bare"
    version = "1.0.0"

    @prompt(title="Any", template="bare.any.{name}")
    async def any_name(self, name: str, *, ctx: Context) -> str:
        """Whatever it is called."""
        return name + await ctx.ask(AskText("And?"))

    async def prompts(self, *_: Any) -> list[PromptInfo]:
        """Two."""
        return [PromptInfo("bare.any.x"), PromptInfo("no.such.method")]


async def walked(peer: McpPeer) -> list[str]:
    """Return the names on all pages."""
    names: list[str] = []
    params: dict[str, Any] = {}
    while True:
        result = await peer.result("prompts/list", params)
        assert len(result["prompts"]) <= peer.server.options.page_size
        names += [entry["name"] for entry in result["prompts"]]
        if "nextCursor" not in result:
            return names
        params = {"cursor": result["nextCursor"]}


def text_in(result: dict[str, Any]) -> str:
    [message] = result["messages"]
    text: str = message["content"]["text"]
    return text


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_dynamic_prompts_are_listed_with_static_prompts(
    open_hub: OpenHub, revision: str
) -> None:
    result = await McpPeer(open_hub(Talks("Ada")), revision).result("prompts/list")
    begin, end, ada = result["prompts"]
    titled = revision >= "2025-06-18"
    assert begin == ({"title": "Begin"} if titled else {}) | {
        "name": "talks.begin",
        "description": "Begin a conversation.",
        "arguments": [{"name": "about", "description": "What about.", "required": True}],
    }
    assert end == {"name": "talks.end", "description": "End all conversations."}
    assert ada == ({"title": "With Ada"} if titled else {}) | {
        "name": "talks.with.Ada",
        "description": "The conversation with Ada.",
        "arguments": [
            {"name": "tone", "description": "How.", "required": False},
            {"name": "place", "description": "Where.", "required": False},
        ],
    }
    assert "nextCursor" not in result
    if revision == STATELESS:
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_method_provides_fields_missing_in_the_list(
    open_hub: OpenHub, revision: str
) -> None:
    result = await McpPeer(open_hub(Bare), revision).result("prompts/list")
    title = {"title": "Any"} if revision >= "2025-06-18" else {}
    assert result["prompts"] == [
        title | {"name": "bare.any.x", "description": "Whatever it is called."},
        {"name": "no.such.method"},
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("revision", ["2024-11-05", STATELESS])
async def test_pages_contain_every_prompt_once(open_hub: OpenHub, revision: str, size: int) -> None:
    hub = open_hub(Talks("Zoe", "Ada", "a.b c", "\u00e9"), Bare)
    peer = McpPeer(hub, revision, options=McpOptions(page_size=size))
    assert await walked(peer) == [
        *("bare.any.x", "no.such.method", "talks.begin", "talks.end"),
        *("talks.with.Ada", "talks.with.Zoe", "talks.with.a.b c", "talks.with.\u00e9"),
    ]


async def test_prompts_that_remain_are_neither_lost_nor_repeated(open_hub: OpenHub) -> None:
    talks = Talks("b", "d", "f", "h")
    peer = McpPeer(open_hub(talks), "2025-11-25", options=McpOptions(page_size=2))
    first = await peer.result("prompts/list")
    second = await peer.result("prompts/list", {"cursor": first["nextCursor"]})
    assert [entry["name"] for entry in second["prompts"]] == ["talks.with.b", "talks.with.d"]
    talks.names -= {"d"}
    talks.names |= {"a", "e"}
    third = await peer.result("prompts/list", {"cursor": second["nextCursor"]})
    assert [entry["name"] for entry in third["prompts"]] == ["talks.with.e", "talks.with.f"]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("cursor", ["nonsense", "", 5])
async def test_an_unknown_cursor_is_refused(open_hub: OpenHub, revision: str, cursor: Any) -> None:
    error = await McpPeer(open_hub(Talks), revision).error("prompts/list", {"cursor": cursor})
    assert error["code"] == -32602


async def test_each_principal_sees_its_own_prompts(open_hub: OpenHub) -> None:
    hub = open_hub(Talks("Ada"))
    assert await walked(McpPeer(hub, "2025-11-25", principal=OTHER)) == ["talks.begin", "talks.end"]


async def test_the_method_of_dynamic_prompts_is_not_listed(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Talks("Ada")), "2025-11-25")
    assert "talks.go_on" not in await walked(peer)
    tools = (await peer.result("tools/list"))["tools"]
    assert not {tool["name"] for tool in tools} & {"talks.go_on", "plexus.prompts"}


async def test_a_template_without_listed_prompts_shows_none(open_hub: OpenHub) -> None:
    class Silent(Activation):
        """Makes prompts and does not say which."""

        namespace = "silent"
        version = "1.0.0"

        @prompt(template="silent.{name}")
        async def any_name(self, name: str) -> str:
            """Whatever it is called."""
            return name

    hub = open_hub(Silent)
    peer = McpPeer(hub, "2025-11-25")
    assert (await peer.result("prompts/list"))["prompts"] == []
    assert hub.runs.list_for(LOCAL) == []
    assert text_in(await peer.result("prompts/get", {"name": "silent.night"})) == "night"


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_session_is_notified_when_prompts_change(open_hub: OpenHub, revision: str) -> None:
    hub = open_hub(Talks("Ada"))
    peer = McpPeer(hub, revision)
    hub.notify(Change("prompts"))
    assert await peer.notification("notifications/prompts/list_changed") is None


async def test_a_listen_stream_is_notified_when_prompts_change(open_hub: OpenHub) -> None:
    hub = open_hub(Talks("Ada"))
    peer = McpPeer(hub, STATELESS)
    peer.begin("subscriptions/listen", {"notifications": {"promptsListChanged": True}})
    await peer.notification("notifications/subscriptions/acknowledged")
    hub.notify(Change("prompts"))
    assert await peer.notification("notifications/prompts/list_changed")


# --- getting a prompt ----------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("name", ["Ada", "a.b c", "with.with.", "%41", "a-b_c", "\u00e9"])
async def test_the_rest_of_the_name_is_an_argument(
    open_hub: OpenHub, revision: str, name: str
) -> None:
    peer = McpPeer(open_hub(Talks(name)), revision)
    result = await peer.result("prompts/get", {"name": f"talks.with.{name}"})
    assert result["description"] == "Go on with a conversation."
    assert text_in(result) == f"{name}, kind, None"
    params = {"name": f"talks.with.{name}", "arguments": {"tone": "harsh", "place": "home"}}
    assert text_in(await peer.result("prompts/get", params)) == f"{name}, harsh, home"


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    "params",
    [
        {"name": "talks.with."},
        {"name": "talks.with"},
        {"name": "talks.go_on"},
        {"name": "talks.go_on", "arguments": {"name": "Ada"}},
        {"name": "talks_with_Ada"},
        {"name": "talks.with.Ada", "arguments": {"name": "Ada"}},
        {"name": "talks.with.Ada", "arguments": {"name": "Zoe"}},
        {"name": "talks.with.Ada", "arguments": {"tone": "loud"}},
        {"name": "talks.with.Ada", "arguments": {"other": "x"}},
        {"name": "talks.with.Ada", "arguments": ["x"]},
    ],
)
async def test_an_unknown_prompt_or_an_invalid_request_is_refused(
    open_hub: OpenHub, revision: str, params: dict[str, Any]
) -> None:
    error = await McpPeer(open_hub(Talks("Ada", "Zoe")), revision).error("prompts/get", params)
    assert error["code"] == -32602


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_deleted_prompt_is_an_error(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Talks), revision)
    error = await peer.error("prompts/get", {"name": "talks.with.Ada"})
    assert error["message"] == "there is no conversation with Ada"


async def test_a_prompt_that_asks_a_question_continues_with_the_answer(open_hub: OpenHub) -> None:
    capable: dict[str, Any] = {"elicitation": {}}
    peer = McpPeer(open_hub(Bare), STATELESS, capabilities=capable)
    asked = await peer.result("prompts/get", {"name": "bare.any.x"})
    [key] = asked["inputRequests"]
    answer = {"action": "accept", "content": {"answer": "so on"}}
    params = {"name": "bare.any.x", "requestState": asked["requestState"]}
    again = params | {"inputResponses": {key: answer}}
    assert text_in(await peer.result("prompts/get", again)) == "xso on"
    other = await peer.error("prompts/get", again | {"name": "bare.any.y"})
    assert other["message"] == "requestState belongs to another request."


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("size", [1, 100])
async def test_dynamic_prompts_keep_their_names_in_every_spelling(
    open_hub: OpenHub, spelling: SpellingName, size: int
) -> None:
    options = McpOptions(names=SPELLINGS[spelling], page_size=size)
    peer = McpPeer(open_hub(Talks("a-b", "a_b", "a.b")), "2025-11-25", options=options)
    separator = SPELLINGS[spelling].name_of(".")
    names = await walked(peer)
    assert names == [
        *(f"talks{separator}begin", f"talks{separator}end"),
        *("talks.with.a-b", "talks.with.a.b", "talks.with.a_b"),
    ]
    for name in names[1:]:
        assert (await peer.result("prompts/get", {"name": name}))["messages"]
    assert text_in(await peer.result("prompts/get", {"name": names[2]})).startswith("a-b,")


# --- completion ----------------------------------------------------------------------------------


async def complete(peer: McpPeer, argument: str, value: str, **more: Any) -> list[str]:
    params = {
        "ref": {"type": "ref/prompt", "name": "talks.with.Ada"},
        "argument": {"name": argument, "value": value},
    }
    result = await peer.result("completion/complete", params | more)
    values: list[str] = result["completion"]["values"]
    return values


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_other_arguments_are_completed(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Talks("Ada")), revision)
    assert await complete(peer, "tone", "h") == ["harsh"]
    assert await complete(peer, "place", "home") == ["home at Ada's", ""]


async def test_a_completer_gets_the_name_and_the_other_arguments(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Talks("Ada")), "2025-11-25")
    context = {"arguments": {"tone": "harsh", "name": "Zoe"}}
    assert await complete(peer, "place", "x", context=context) == ["x at Ada's", "harsh"]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("talks.with.Ada", "name"),
        ("talks.with.Ada", "no_such"),
        ("talks.with.", "tone"),
        ("talks.go_on", "tone"),
    ],
)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_invalid_completion_request_is_refused(
    open_hub: OpenHub, revision: str, name: str, argument: str
) -> None:
    params = {
        "ref": {"type": "ref/prompt", "name": name},
        "argument": {"name": argument, "value": ""},
    }
    error = await McpPeer(open_hub(Talks("Ada")), revision).error("completion/complete", params)
    assert error["code"] == -32602
