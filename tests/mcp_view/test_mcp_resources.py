"""Resources: lists, templates, reading, unknown resources, and notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, until
from mcp_activations import Show
from mcp_peer import HANDSHAKES, REVISIONS, STATELESS, McpPeer, text_of

from mcp_view.server import McpOptions
from plexus import (
    Activation,
    Change,
    Context,
    Failed,
    NotFound,
    Principal,
    Resource,
    ResourceInfo,
    resource,
)
from plexus.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Shelf(Activation):
    """Things that can be read."""

    namespace = "shelf"
    version = "1.0.0"

    def __init__(self) -> None:
        self.notes = {f"note{number}": f"text {number}" for number in range(5)}

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - the list is the same for all principals
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """The notes."""
        found = [
            ResourceInfo(
                f"note://{name}", name, f"Note {name}", "A note.", "text/markdown", len(text)
            )
            for name, text in sorted(self.notes.items())
        ]
        return [each for each in found if after is None or each.uri > after][:limit]

    @resource("note://{name}", mime_type="text/markdown")
    async def note(self, name: str) -> str:
        """A note."""
        if name not in self.notes:
            raise NotFound(f"there is no note {name}")
        return self.notes[name]

    @resource("shelf://index", title="Index")
    async def index(self) -> str:
        """All there is."""
        return "\n".join(self.notes)

    @resource("shelf://bytes", mime_type="application/x-bytes")
    async def binary(self) -> Resource:
        """What is no text."""
        return Resource.of_bytes("shelf://bytes", b"\x00\x01")

    @resource("shelf://both")
    async def both(self) -> list[Resource]:
        """Return two resources."""
        return [
            Resource("shelf://a", mime_type="text/html", content="<p>"),
            Resource("shelf://b", content="b"),
        ]

    @resource("shelf://stream")
    async def stream(self) -> AsyncIterator[Resource]:
        """One after the other."""
        yield Resource("shelf://1", content="1")
        yield Resource("shelf://2", content="")

    @resource("shelf://endless")
    async def endless(self) -> AsyncIterator[Resource]:
        """Yield more than the limit."""
        while True:
            yield Resource("shelf://much", content="x" * 10_000)

    @resource("shelf://broken")
    async def broken(self) -> str:
        """Cannot be read."""
        raise Failed("it is stained")

    @resource("shelf://defect")
    async def defect(self) -> str:
        """Has a defect."""
        raise RuntimeError("this text must stay in the log")

    @resource("shelf://mine")
    async def mine(self, *, ctx: Context) -> str:
        """Whoever asks."""
        return ctx.principal.name


async def read(peer: McpPeer, uri: str) -> list[dict[str, Any]]:
    result = await peer.result("resources/read", {"uri": uri})
    contents: list[dict[str, Any]] = result["contents"]
    return contents


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_resources_are_listed_with_the_fields_of_the_revision(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Shelf), revision)
    result = await peer.result("resources/list")
    listed = {entry["uri"]: entry for entry in result["resources"]}
    title = {"title": "Note note0"} if revision >= "2025-06-18" else {}
    assert listed["note://note0"] == title | {
        "uri": "note://note0",
        "name": "note0",
        "description": "A note.",
        "mimeType": "text/markdown",
        "size": 6,
    }
    title = {"title": "Index"} if revision >= "2025-06-18" else {}
    assert listed["shelf://index"] == title | {
        "uri": "shelf://index",
        "name": "index",
        "description": "All there is.",
        "mimeType": "text/plain",
    }
    assert list(listed) == sorted(listed)
    assert "nextCursor" not in result
    if revision == STATELESS:
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_pages_contain_every_resource_once(open_hub: OpenHub, size: int) -> None:
    hub = open_hub(Shelf)
    peer = McpPeer(hub, "2025-11-25", options=McpOptions(page_size=size))
    walked: list[str] = []
    params: dict[str, Any] = {}
    while True:
        result = await peer.result("resources/list", params)
        assert len(result["resources"]) <= size
        walked += [entry["uri"] for entry in result["resources"]]
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    whole = await McpPeer(hub, "2025-11-25").result("resources/list")
    assert walked == [entry["uri"] for entry in whole["resources"]]


async def test_runs_are_resources_of_their_principal(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    peer = McpPeer(hub, "2025-11-25")
    await peer.tool("demo.echo", {"text": "hello"})
    [entry] = (await peer.result("resources/list"))["resources"]
    assert entry["name"] == "demo.echo (complete)"
    [contents] = await read(peer, entry["uri"])
    assert contents == {"uri": entry["uri"], "mimeType": "text/plain", "text": "hello"}
    other = McpPeer(hub, "2025-11-25", principal=OTHER)
    assert (await other.result("resources/list"))["resources"] == []
    assert (await other.error("resources/read", {"uri": entry["uri"]}))["code"] == -32002


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_text_is_read_with_the_type_that_was_declared(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Shelf), revision)
    assert await read(peer, "note://note3") == [
        {"uri": "note://note3", "mimeType": "text/markdown", "text": "text 3"}
    ]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_bytes_are_read_as_base64(open_hub: OpenHub, revision: str) -> None:
    assert await read(McpPeer(open_hub(Shelf), revision), "shelf://bytes") == [
        {"uri": "shelf://bytes", "mimeType": "application/x-bytes", "blob": "AAE="}
    ]


async def test_several_contents_are_read_together(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Shelf), "2025-11-25")
    assert await read(peer, "shelf://both") == [
        {"uri": "shelf://a", "mimeType": "text/html", "text": "<p>"},
        {"uri": "shelf://b", "mimeType": "text/plain", "text": "b"},
    ]
    assert [each["text"] for each in await read(peer, "shelf://stream")] == ["1", ""]


async def test_a_resource_that_never_ends_is_refused_and_stopped(open_hub: OpenHub) -> None:
    hub = open_hub(Shelf, limits=Limits(answer_bytes=100_000))
    peer = McpPeer(hub, "2025-11-25")
    error = await peer.error("resources/read", {"uri": "shelf://endless"})
    assert error["code"] == -32603
    assert error["data"] == {"limit": 100_000}
    await until(lambda: not hub.runs.running())
    assert peer.view.idle


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    "uri", ["note://none", "nothing://at/all", "run://1", "run://x", "run://1?after=x", "", "x"]
)
async def test_an_unknown_resource_has_the_error_number_of_the_revision(
    open_hub: OpenHub, revision: str, uri: str
) -> None:
    peer = McpPeer(open_hub(Shelf), revision)
    error = await peer.error("resources/read", {"uri": uri})
    assert error["code"] == (-32602 if revision == STATELESS else -32002)
    assert error["data"] == {"uri": uri}


@pytest.mark.parametrize("uri", [None, 5, ["note://note0"], {}])
@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
async def test_a_uri_that_is_no_string_is_refused(open_hub: OpenHub, method: str, uri: Any) -> None:
    error = await McpPeer(open_hub(Shelf), "2025-11-25").error(method, {"uri": uri})
    assert error["code"] == -32602


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_failing_resource_is_a_server_error(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Shelf), revision)
    error = await peer.error("resources/read", {"uri": "shelf://broken"})
    assert (error["code"], error["message"]) == (-32603, "it is stained")
    error = await peer.error("resources/read", {"uri": "shelf://defect"})
    assert error["code"] == -32603
    assert "this text" not in error["message"]


async def test_a_read_can_be_cancelled(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Shelf), "2025-11-25")
    call = peer.begin("resources/read", {"uri": "shelf://endless"})
    peer.notify("notifications/cancelled", {"requestId": call})
    await until(lambda: not peer.hub.runs.running())
    assert await peer.quiet() == []


async def test_a_resource_gets_its_principal(open_hub: OpenHub) -> None:
    hub = open_hub(Shelf)
    [contents] = await read(McpPeer(hub, STATELESS, principal=OTHER), "shelf://mine")
    assert contents["text"] == OTHER.name


# --- output of runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_full_output_of_a_long_run_is_read_in_pages(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Show), revision, options=McpOptions(result_chars=100))
    texts = [f"{number:06d} " + "x" * 993 for number in range(500)]
    result = await peer.tool("show.words", {"texts": texts})
    uri = text_of(result).partition("full output: ")[2].partition(" ")[0]
    whole, pages = "", 0
    while uri:
        [contents] = await read(peer, uri)
        assert contents["uri"] == uri
        page, _, more = contents["text"].partition("\n[continues: ")
        whole += page
        pages += 1
        uri = more.rstrip("]")
    assert whole == "".join(texts)
    assert pages == 3


# --- notifications -------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_client_is_notified_of_subscribed_resources(
    open_hub: OpenHub, revision: str
) -> None:
    hub = open_hub(Shelf)
    peer = McpPeer(hub, revision)
    assert await peer.result("resources/subscribe", {"uri": "note://note1"}) == {}
    hub.notify(Change("resource", "note://note1"))
    hub.notify(Change("resource", "note://note2"))
    assert peer.collect() == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "note://note1"},
        }
    ]
    assert await peer.result("resources/unsubscribe", {"uri": "note://note1"}) == {}
    hub.notify(Change("resource", "note://note1"))
    assert peer.collect() == []
    assert await peer.result("resources/unsubscribe", {"uri": "note://never"}) == {}


async def test_subscribing_twice_is_subscribing_once(open_hub: OpenHub) -> None:
    hub = open_hub(Shelf, limits=Limits(subscriptions=1))
    peer = McpPeer(hub, "2025-11-25")
    for _ in range(2):
        assert await peer.result("resources/subscribe", {"uri": "note://note1"}) == {}
    hub.notify(Change("resource", "note://note1"))
    assert len(peer.collect()) == 1


async def test_subscriptions_are_limited(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Shelf, limits=Limits(subscriptions=1)), "2025-11-25")
    await peer.result("resources/subscribe", {"uri": "note://note1"})
    error = await peer.error("resources/subscribe", {"uri": "note://note2"})
    assert (error["code"], error["data"]) == (-32602, {"limit": 1})


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_client_is_notified_of_every_changed_list(open_hub: OpenHub, revision: str) -> None:
    hub = open_hub()
    peer = McpPeer(hub, revision)
    hub.register(Demo())
    assert [frame["method"] for frame in peer.collect()] == ["notifications/tools/list_changed"]
    hub.register(Shelf())
    assert [frame["method"] for frame in peer.collect()] == ["notifications/resources/list_changed"]
    hub.notify(Change("prompts"))
    assert peer.collect() == [{"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}]


async def test_no_notification_before_the_handshake_or_after_the_end(open_hub: OpenHub) -> None:
    hub = open_hub()
    peer = McpPeer(hub)
    stateless = McpPeer(hub, STATELESS)
    await stateless.result("tools/list")
    gone = McpPeer(hub, "2025-11-25")
    gone.connection.lost()
    hub.register(Demo())
    assert peer.collect() == stateless.collect() == gone.collect() == []
