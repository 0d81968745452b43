"""What a model sees of a tool's output through the real Claude Code CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claude_cli import run_claude
from conformance.node import NotInstalled, claude_code
from model_api import model_api

#: npm may have to fetch the CLI first.
pytestmark = pytest.mark.timeout(400)

BASH = "mcp__substrate__bash_execute"


@pytest.fixture(scope="module", autouse=True)
def _cli() -> None:
    try:
        claude_code()
    except NotInstalled as error:
        pytest.skip(str(error))


def seen_by_model(folder: Path, size: int, **settings: str) -> Any:
    """Return the content of the result of a command that writes this many characters."""
    command = f"seq 1 1000000 | head -c {size - 4}; echo END"
    with model_api(BASH, {"command": command}) as model:
        assert run_claude(folder, model.url, BASH, **settings).strip() == "done"
        assert BASH in model.offered, "the server did not connect"
        [content] = model.results
        return content


@pytest.mark.parametrize("size", [10_000, 47_900])
def test_a_result_within_the_limit_reaches_the_model_whole(tmp_path: Path, size: int) -> None:
    content = seen_by_model(tmp_path, size)
    [block] = content
    assert block["type"] == "text"
    assert len(block["text"]) == size
    assert block["text"].endswith("END\n")


@pytest.mark.parametrize("size", [49_000, 100_000, 5_000_000])
def test_a_larger_result_reaches_the_model_with_head_tail_marker_and_link(
    tmp_path: Path, size: int
) -> None:
    content = seen_by_model(tmp_path, size)
    assert isinstance(content, list), f"the model was shown {content[:200]}"
    text, link = (block["text"] for block in content)
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("END\n")
    assert f"[... {size - 48_000} characters omitted; full output: run://" in text
    uri = text.partition("full output: ")[2].partition(" ")[0]
    assert uri in link


def test_a_tool_that_allows_more_reaches_the_model_whole(tmp_path: Path) -> None:
    content = seen_by_model(tmp_path, 100_000, SUBSTRATE_MCP_RESULT_CHARS="200000")
    [block] = content
    assert len(block["text"]) == 100_000
