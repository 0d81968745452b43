"""The examples in the documents work as shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from child_processes import clean_environment
from documents import DOCUMENTS, ROOT, filled
from project_folders import trust_always
from transcripts import MCP_TRANSCRIPTS, TRANSCRIPTS

from mcp_view.tool_sets import STANDARD_TOOLS
from substrate.build_hub import built_in_hub
from substrate.settings import Settings

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "writing-an-activation.md").read_text()
MCP = (ROOT / "docs" / "mcp.md").read_text()


#: What runs the command line.
SUBSTRATE = (sys.executable, "-m", "substrate")


def run(
    *arguments: str, cwd: Path, stdin: str = "", program: Sequence[str] = SUBSTRATE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments],
        cwd=cwd,
        env=clean_environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_shows_the_transcripts_as_they_are(document: Path) -> None:
    text = document.read_text()
    assert text == filled(text), "run `python tests/documents.py`"


def test_every_transcript_is_shown_somewhere() -> None:
    shown = "".join(document.read_text() for document in DOCUMENTS)
    assert [
        name
        for name in TRANSCRIPTS | MCP_TRANSCRIPTS
        if f"<!-- transcript: {name} -->" not in shown
    ] == []


@pytest.mark.parametrize("document", [ROOT / "README.md", *DOCUMENTS], ids=lambda path: path.name)
def test_a_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert (document.parent / link).exists(), link


def activation_in(text: str, file: str) -> str:
    block = re.search(rf"```python\n# {re.escape(file)}\n(.*?)```", text, re.S)
    assert block is not None, file
    return block[1]


def test_the_document_of_mcp_lists_the_standard_tools() -> None:
    table = re.search(r"<!-- standard tools -->\n(.*?)<!-- end", MCP, re.S)
    assert table is not None
    rows = re.findall(r"^\| `(.*?)` \| (.+) \|$", table[1], re.M)
    hub = built_in_hub(Settings(), ROOT)
    tools = [spec for spec in hub.methods() if spec.role == "method"]
    assert [name for name, _ in rows] == [
        spec.name for spec in tools if STANDARD_TOOLS.includes(spec)
    ]
    assert all(0 < len(purpose) <= 100 for _, purpose in rows)


def test_the_guides_activation_works_as_the_guide_says(tmp_path: Path) -> None:
    folder = trust_always(tmp_path) / "activations.d"
    folder.mkdir()
    (folder / "words.py").write_text(activation_in(GUIDE, "activations.d/words.py"))
    (tmp_path / "test_words.py").write_text(activation_in(GUIDE, "test_words.py"))
    called = run("call", "--json", "--local", "words.count", "test_words.py", cwd=tmp_path)
    kinds = [json.loads(line)["type"] for line in called.stdout.splitlines()]
    assert kinds[0] == "line"
    assert kinds[-1] == "complete"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout


def test_the_guides_prompts_and_resources_work_as_the_guide_says(tmp_path: Path) -> None:
    folder = trust_always(tmp_path) / "activations.d"
    folder.mkdir()
    (folder / "notes.py").write_text(activation_in(GUIDE, "activations.d/notes.py"))

    def value(*arguments: str) -> Any:
        done = run("call", "--json", "--local", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["result"]

    assert value("notes.write", "a b", "text") == "note://a%20b"
    assert value("notes.note", "welcome") == "Hello."
    assert {"uri": "note://welcome", "name": "welcome"} in value("plexus.resources")
    [message] = value("notes.improve", "welcome", "solemn")
    assert "solemn tone:\n\nHello." in message["content"]["text"]
    assert value("plexus.complete", "notes.improve", "name", "w")["values"] == ["welcome"]
    assert value("plexus.complete", "notes.improve", "tone", "s")["values"] == ["solemn"]


def test_the_guides_prompts_that_come_and_go_work_as_the_guide_says(tmp_path: Path) -> None:
    folder = trust_always(tmp_path) / "activations.d"
    folder.mkdir()
    (folder / "letters.py").write_text(activation_in(GUIDE, "activations.d/letters.py"))

    def request(number: int, method: str, params: dict[str, Any]) -> str:
        client = {"name": "test", "version": "1"}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": client,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body = {"id": number, "method": method, "params": params | {"_meta": meta}}
        return json.dumps({"jsonrpc": "2.0"} | body) + "\n"

    name = "letters.draft.to Dr. Ada"
    begin = {"name": "letters.begin", "arguments": {"name": "to Dr. Ada", "text": "Dear Ada,"}}
    get = {"name": name, "arguments": {"tone": "kind"}}
    with subprocess.Popen(
        [sys.executable, "-m", "substrate", "--stdio", "--mcp"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        results = []
        steps = [("tools/call", begin), ("prompts/list", {}), ("prompts/get", get)]
        for number, (method, params) in enumerate(steps):
            process.stdin.write(request(number, method, params))
            process.stdin.flush()
            results.append(json.loads(process.stdout.readline())["result"])
    begun, listed, made = results
    assert begun["content"][0]["text"] == name
    [draft] = [entry for entry in listed["prompts"] if entry["name"] == name]
    assert draft["title"] == "Continue a letter"
    assert [argument["name"] for argument in draft["arguments"]] == ["tone"]
    assert made["messages"][0]["content"]["text"] == "Continue in a kind tone:\n\nDear Ada,"
