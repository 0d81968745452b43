"""The example of docs/mounts.md works, and its tables name what the program has."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from child_processes import clean_environment
from document_blocks import Reader, blocks, write_programs
from documents import ROOT

from activations.gateway import breaker, catalogue, mount_config, mount_file
from substrate.cli.mcp_hosts.hosts import HOSTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DOCUMENT = (ROOT / "docs" / "mounts.md").read_text()
NAME = Path(__file__).name


def test_the_example_prints_what_the_document_shows(tmp_path: Path) -> None:
    programs = write_programs(tmp_path / "bin")
    home = str(tmp_path / "home")
    environment = clean_environment(
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        SUBSTRATE_PORT="0",
        HOME=home,
        TERM="dumb",
        COLUMNS="200",
        **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"), home),
    )
    start = DOCUMENT[: DOCUMENT.index("A server over HTTP is mounted")]
    assert len([each for each in blocks(start) if each.test == NAME]) == 2
    text = start.replace(f"<!-- tested by: {NAME} -->\n", "")
    faults = Reader(tmp_path, environment, {}).read(text)
    assert faults == [], "\n".join(faults)


def test_the_hosts_and_the_limits_are_those_of_the_program() -> None:
    section = DOCUMENT.partition("## Import from a host")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, re.M)) == set(HOSTS)
    assert f"at most {catalogue.MAX_TOOLS} tools" in DOCUMENT
    assert f"{catalogue.MAX_DEFINITION_BYTES // 1024} KiB each" in DOCUMENT
    assert f"{catalogue.MAX_ENTRIES} resources or prompts" in DOCUMENT
    assert f"at most {mount_file.MAX_MOUNTS} mounts" in DOCUMENT
    assert f"wait {breaker.FIRST_S:g} s to {breaker.LONGEST_S:g} s" in DOCUMENT
    config = mount_config.parse_mount("x", {"command": "x"})
    assert f"`max_sessions` ({config.max_sessions})" in DOCUMENT
    assert f"`idle_s` ({config.idle_s:g})" in DOCUMENT


def test_the_configuration_of_the_document_is_valid() -> None:
    [table] = [each for each in blocks(DOCUMENT) if each.language == "toml"]
    tables = mount_file.parse_mounts(table.text.encode())
    for name, each in tables.items():
        mount_config.parse_mount(name, each)
