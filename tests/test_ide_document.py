"""Example, settings, tools and limits of docs/ide.md are as the program has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import clean_environment
from documents import ROOT
from network import Server

from activations.ide import checks, comments, diff, state, text_diff, workspace
from activations.ide.methods import diffs, editor
from plexus import diff_question
from substrate.server.ide import endpoint
from substrate.server.ide.tools import EDITOR_TOOLS
from substrate.settings import setting_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DOCUMENT = (ROOT / "docs" / "ide.md").read_text()
KIB, MIB = 1024, 1024 * 1024
WAIT = "Claude Code waits before each of its edits"
KEPT = "those that a program opened in the background are closed for others"
LIMITS = {
    "size of a document": f"{workspace.DOCUMENT_BYTES // KIB} KiB of UTF-8 text",
    "each text of a change": f"{diff.DIFF_BYTES // MIB} MiB",
    "lines that are compared": f"{text_diff.MAX_PRODUCT:,} pairs; larger changes are a single hunk",
    "changes that wait": f"{state.MAX_DIFFS}",
    "open documents": f"{state.MAX_DOCUMENTS}; {KEPT}",
    "comments on a change": f"{comments.MAX_COMMENTS} of {diffs.COMMENT_CHARS:,} characters",
    "reason of a rejection": f"{diff_question.REASON_CHARS:,} characters",
    "diagnostics of a file": f"{checks.MAX_DIAGNOSTICS}, the most severe first",
    "wait for diagnostics": f"{editor.DIAGNOSTICS_S:g} s; {WAIT}",
    "connections": f"{endpoint.CONNECTIONS}",
    "message from a program": f"{endpoint.MESSAGE_BYTES // MIB} MiB",
}


def section(title: str) -> str:
    """Return the text of a section."""
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_command_prints_what_the_document_shows(tmp_path: Path) -> None:
    [block] = re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL)
    _, _, expected = block.partition("\n")
    variables = {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    server = Server(settings=variables, cwd=tmp_path)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "substrate", "ide", "on"],
            cwd=tmp_path,
            env=clean_environment(SUBSTRATE_PORT=str(server.port), **variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    printed = done.stdout.replace(os.path.realpath(tmp_path), "PROJECT")
    assert re.sub(r"port \d+|PORT=\d+", "PORT", printed) == re.sub(
        r"port \d+|PORT=\d+", "PORT", expected
    )


def test_the_limits_are_those_of_the_program() -> None:
    rows = dict(re.findall(r"^\| ([a-z][^|]*?) \| ([^|]*?) \|$", section("Know the limits"), re.M))
    assert rows == LIMITS


def test_every_tool_and_every_setting_is_documented() -> None:
    tools = section("Tools")
    assert [each.name for each in EDITOR_TOOLS if f"`{each.name}`" not in tools] == []
    settings = [each for each in setting_names() if each == "ide" or each.startswith("ide_")]
    assert len(settings) == 4
    assert [each for each in settings if f"`{each}" not in section("Connect")] == []


def test_a_change_waits_as_long_as_the_document_states() -> None:
    assert diffs.WAIT_S == 7 * 24 * 3600
    assert "for up to seven days" in DOCUMENT
    assert f"a timeout of {checks.CHECK_S:g} seconds" in DOCUMENT
