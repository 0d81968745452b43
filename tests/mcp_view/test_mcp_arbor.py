"""Trees and nodes over MCP: tools with structured results, resources, and notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hub_calls import register
from mcp_peer import HANDSHAKES, REVISIONS, STATELESS, McpPeer, text_of

from activations.arbor import Arbor
from mcp_view.server import McpOptions
from mcp_view.tool_sets import ALL_TOOLS
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

STRUCTURED = ("2025-06-18", "2025-11-25", STATELESS)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Plexus]:
    hub = Plexus()
    register(hub, PlexusActivation(hub), Arbor(str(tmp_path / "arbor.db")))
    yield hub
    await hub.close()


async def structured(peer: McpPeer, tool: str, **arguments: Any) -> Any:
    result = await peer.tool(f"arbor.{tool}", arguments)
    assert not result["isError"], result
    return result["structuredContent"]


@pytest.mark.parametrize("revision", STRUCTURED)
async def test_a_single_value_is_structured_content(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    tree = await structured(peer, "tree_create", metadata={"title": "x"})
    made = await structured(peer, "node_create_text", tree_id=tree["tree_id"], content="hello")
    page = await structured(
        peer, "node_get_children", tree_id=tree["tree_id"], node_id=made["parent"]
    )
    assert [node["content"] for node in page["nodes"]] == ["hello"]
    listed = await structured(peer, "tree_list")
    assert [each["tree_id"] for each in listed["trees"]] == [tree["tree_id"]]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_tool_describes_its_parameters(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision, options=McpOptions(tools=ALL_TOOLS))
    tools = (await peer.result("tools/list"))["tools"]
    ours = [tool for tool in tools if tool["name"].startswith("arbor.")]
    assert len(ours) == 29
    assert all("broken" not in tool["description"] for tool in ours)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_drawing_is_text_and_an_error_is_an_error(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    made = await peer.tool("arbor.tree_create", {"metadata": {"title": "Notes"}})
    listed = (await peer.result("resources/list"))["resources"]
    tree = listed[0]["uri"].removeprefix("arbor://tree/")
    assert tree in text_of(made)
    drawn = await peer.tool("arbor.tree_render", {"tree_id": tree})
    assert drawn["content"] == [{"type": "text", "text": "Notes\n"}]
    failed = await peer.tool("arbor.tree_render", {"tree_id": "nothing"})
    assert failed["isError"] is True


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_text_with_its_own_media_type_is_embedded(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision)
    arbor = dict(hub.activations())["arbor"]
    assert isinstance(arbor, Arbor)
    tree = await (await arbor.store()).create_tree("local", "local")
    made = await peer.tool(
        "arbor.node_create_text",
        {"tree_id": tree.id, "content": "# Hi", "metadata": {"media_type": "text/markdown"}},
    )
    children = await (await arbor.store()).children("local", tree.id, tree.root, None, 10)
    assert children[0].id in text_of(made)
    uri = f"arbor://tree/{tree.id}/node/{children[0].id}"
    result = await peer.tool("arbor.node_get", {"tree_id": tree.id, "node_id": children[0].id})
    [embedded] = [block for block in result["content"] if block["type"] == "resource"]
    assert embedded["resource"] == {"uri": uri, "mimeType": "text/markdown", "text": "# Hi"}
    read = await peer.result("resources/read", {"uri": uri})
    assert read["contents"] == [embedded["resource"]]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_resources_are_listed_page_by_page(revision: str, hub: Plexus) -> None:
    peer = McpPeer(hub, revision, options=McpOptions(page_size=4))
    arbor = dict(hub.activations())["arbor"]
    assert isinstance(arbor, Arbor)
    store = await arbor.store()
    for _ in range(5):
        await store.create_tree("local", "local")
    found: list[str] = []
    params: dict[str, Any] = {}
    while True:
        page = await peer.result("resources/list", params)
        found += [entry["uri"] for entry in page["resources"]]
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    ours = [uri for uri in found if uri.startswith("arbor:")]
    assert len(ours) == 10
    assert found == sorted(set(found))
    templates = (await peer.result("resources/templates/list"))["resourceTemplates"]
    assert {"arbor://tree/{tree}", "arbor://tree/{tree}/node/{node}"} <= {
        template["uriTemplate"] for template in templates
    }


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_a_subscriber_is_notified_of_changes_from_any_view(
    revision: str, hub: Plexus, tmp_path: Path
) -> None:
    peer = McpPeer(hub, revision)
    arbor = dict(hub.activations())["arbor"]
    assert isinstance(arbor, Arbor)
    tree = await (await arbor.store()).create_tree("local", "local")
    uri = f"arbor://tree/{tree.id}"
    await peer.result("resources/subscribe", {"uri": uri})
    await peer.tool("arbor.node_create_text", {"tree_id": tree.id, "content": "here"})
    assert (await peer.notification("notifications/resources/updated")) == {"uri": uri}
    elsewhere = Arbor(str(tmp_path / "arbor.db"))
    await (await elsewhere.store()).update_metadata("local", tree.id, {"title": "there"})
    assert (await peer.notification("notifications/resources/updated")) == {"uri": uri}
    await elsewhere.close()
    if not peer.notifications("notifications/resources/list_changed"):
        await peer.notification("notifications/resources/list_changed")


async def test_a_listen_stream_is_notified_too(hub: Plexus) -> None:
    peer = McpPeer(hub, STATELESS)
    arbor = dict(hub.activations())["arbor"]
    assert isinstance(arbor, Arbor)
    tree = await (await arbor.store()).create_tree("local", "local")
    uri = f"arbor://tree/{tree.id}"
    wanted = {"resourcesListChanged": True, "resourceSubscriptions": [uri]}
    peer.begin("subscriptions/listen", {"notifications": wanted})
    await peer.tool("arbor.node_create_text", {"tree_id": tree.id, "content": "a"})
    assert (await peer.notification("notifications/resources/updated"))["uri"] == uri
