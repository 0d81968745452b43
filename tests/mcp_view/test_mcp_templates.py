"""Templates over MCP: the tools with their flat names, and the resources."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hub_calls import register
from mcp_peer import HANDSHAKES, REVISIONS, McpPeer, text_of

from activations.templates import Templates
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

URI = "template://makefile/rust/cli"
NAMED = {"project_name": "my-project", "has_tests": True}


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plexus]:
    monkeypatch.setattr("hub_calls.WAIT_S", 40.0)
    hub = Plexus()
    register(hub, PlexusActivation(hub), Templates())
    yield hub
    await hub.close()


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_generated_file_is_one_text(hub: Plexus, revision: str) -> None:
    peer = McpPeer(hub, revision)
    result = await peer.tool("generate_template", {"resource_uri": URI, "parameters": NAMED})
    [block] = result["content"]
    assert block["type"] == "text"
    assert block["text"].startswith("# The commands of my-project.")
    assert not result.get("isError")


async def test_failures_are_results_that_name_every_error(hub: Plexus) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    wrong = {"project_name": "A", "has_tests": 1, "x": 2}
    for uri, parameters, words in (
        (URI, wrong, ["project_name", "has_tests must be true or false", "x is not a parameter"]),
        ("template://makefile/rust/clo", NAMED, ["Did you mean template://makefile/rust/cli"]),
        ("template://../rust/cli", NAMED, ["is not the URI of a template"]),
    ):
        result = await peer.tool(
            "generate_template", {"resource_uri": uri, "parameters": parameters}
        )
        assert result["isError"] is True
        assert all(word in text_of(result) for word in words)


async def test_lists_and_searches_are_json_for_models(hub: Plexus) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    listed: list[dict[str, Any]] = json.loads(
        text_of(await peer.tool("list_templates", {"toolchain": "go"}))
    )
    assert len(listed) == 8
    found = json.loads(text_of(await peer.tool("search_templates", {"query": "docker node"})))
    assert found[0]["uri"] == "template://dockerfile/node/cli"
    assert found[0]["relevance"] == 0.95  # a tag and the toolchain: (0.9 + 1) / 2
    checked = await peer.tool("validate_template", {"resource_uri": URI, "parameters": {}})
    assert checked["structuredContent"] == {
        "valid": False,
        "errors": [{"parameter": "project_name", "fault": "is required"}],
    }


async def test_templates_are_resources(hub: Plexus) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    listed = (await peer.result("resources/list"))["resources"]
    [entry] = [each for each in listed if each["uri"] == URI]
    assert (entry["name"], entry["mimeType"]) == ("Rust CLI Makefile", "text/x-makefile")
    read = (await peer.result("resources/read", {"uri": URI}))["contents"]
    assert read[0]["uri"] == URI
    assert "{{ project_name }}" in read[0]["text"]
    kinds = (await peer.result("resources/templates/list"))["resourceTemplates"]
    assert "template://{category}/{toolchain}/{variant}" in [each["uriTemplate"] for each in kinds]
    missing = await peer.error("resources/read", {"uri": "template://makefile/rust/none"})
    assert missing["code"] == -32002
    hostile = await peer.error("resources/read", {"uri": "template://makefile/..%2F..%2Fetc/x"})
    assert "is not the URI of a template" in hostile["message"]


async def test_models_find_and_call_what_is_not_listed(hub: Plexus, tmp_path: Path) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    listed = {each["name"] for each in (await peer.result("tools/list"))["tools"]}
    assert not [name for name in listed if name.startswith("templates")]
    found = text_of(await peer.tool("plexus.search", {"query": "generate project templates"}))
    assert "templates.scaffold_project" in found
    given = {"toolchain": "go", "templates": ["manifest"], "parameters": NAMED}
    params = {"toolchain": "go", "templates": ["manifest"], "parameters": {"project_name": "x"}}
    done = await peer.tool(
        "plexus.call",
        {
            "method": "templates.scaffold_project",
            "params": params | {"target": str(tmp_path), "write": True},
        },
    )
    assert text_of(done) == "go.mod: created\n"
    refused = await peer.tool("plexus.call", {"method": "scaffold_project", "params": given})
    assert "has_tests is not a parameter" in text_of(refused)


async def test_a_project_is_shown_and_asks_before_it_replaces(hub: Plexus, tmp_path: Path) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    given = {"toolchain": "rust", "templates": ["readme", "makefile"], "parameters": NAMED}
    shown = await peer.tool("scaffold_project", given | {"target": str(tmp_path)})
    assert "README.md: would be created\n# my-project\n" in text_of(shown)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240
    written = await peer.tool("scaffold_project", given | {"target": str(tmp_path), "write": True})
    assert text_of(written) == "README.md: created\nMakefile: created\n"
