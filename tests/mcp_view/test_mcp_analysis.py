"""Code analysis over MCP: the tools with their flat names, and reports that fit into a result."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub_calls import register
from mcp_peer import HANDSHAKES, REVISIONS, McpPeer, text_of

from activations.analysis.activation import Analysis
from plexus import Plexus
from plexus.runtime.builtin import PlexusActivation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.slow]

COMPLEX = "def f(a):\n" + "    if a:\n        a = 1\n" * 20


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Plexus]:
    monkeypatch.setattr("hub_calls.WAIT_S", 60.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hub = Plexus()
    register(hub, PlexusActivation(hub), Analysis())
    yield hub
    await hub.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project whose events are longer than a result of MCP may be."""
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(150):
        (folder / f"module{number}.py").write_text(COMPLEX)
    return folder


@pytest.mark.parametrize("revision", [REVISIONS[0], REVISIONS[-1]])
async def test_the_report_alone_is_the_result_and_is_complete(
    hub: Plexus, project: Path, revision: str
) -> None:
    peer = McpPeer(hub, revision)
    arguments = {"project_path": str(project), "toolchain": "python-uv", "top_files": 5}
    result = await peer.tool("analyze_complexity", arguments)
    report = json.loads(text_of(result))
    assert report["summary"]["violations"] == 300
    assert len(report["violations"]) + report["omitted"]["violations"] == 300
    assert report["top_files"]["returned"] == 5
    row = report["top_files"]["rankings"][0]
    assert {
        *("rank", "file", "function_count", "max_cyclomatic", "avg_cognitive"),
        *("halstead_effort", "total_score"),
    } == row.keys()


async def test_each_format_of_the_deep_context_is_one_text(hub: Plexus, project: Path) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    arguments = {"project_path": str(project), "include_analyses": ["complexity", "satd"]}
    for form in ("json", "sarif"):
        result = await peer.tool("analyze_deep_context", arguments | {"format": form})
        value = json.loads(text_of(result))
        assert ("quality_scorecard" in value) == (form == "json")
        assert ("runs" in value) == (form == "sarif")
    result = await peer.tool("analyze_deep_context", arguments | {"format": "markdown"})
    assert text_of(result).startswith("# Deep context: ")


async def test_failures_are_results_that_name_every_error(hub: Plexus, tmp_path: Path) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    for tool, arguments, words in (
        (
            "analyze_complexity",
            {"project_path": 3, "toolchain": [], "format": "pdf", "max_cognitive": "many"},
            ["project_path", "toolchain", "format", "max_cognitive"],
        ),
        (
            "analyze_complexity",
            {"project_path": "/no/such", "toolchain": "rast"},
            ["does not exist", "Did you mean 'rust'"],
        ),
        ("analyze_code_churn", {"project_path": str(tmp_path)}, ["not in a git repository"]),
        ("analyze_deep_context", {"include_analyses": ["magic"]}, ["include_analyses"]),
    ):
        result = await peer.tool(tool, arguments)
        assert result["isError"] is True
        assert all(word in text_of(result) for word in words), text_of(result)


async def test_progress_is_reported_to_a_client_that_asks_for_it(
    hub: Plexus, project: Path
) -> None:
    peer = McpPeer(hub, HANDSHAKES[-1])
    request = peer.begin_tool(
        "analyze_deep_context", {"project_path": str(project)}, progressToken="token"
    )
    await peer.answer_to(request)
    sent = peer.notifications("notifications/progress")
    assert {each["progressToken"] for each in sent} == {"token"}
    amounts = [each["progress"] for each in sent]
    assert amounts == sorted(set(amounts))
