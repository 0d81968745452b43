"""The plugin in the real Claude Code CLI: validated, installed, used and removed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from claude_cli import KEY, private_environment
from conformance.node import NotInstalled, claude_code
from installed_program import documented
from model_api import model_api
from reference import described

#: npm may have to fetch the CLI first.
pytestmark = pytest.mark.timeout(400)

REPOSITORY = Path(__file__).parents[2]
PLUGIN = REPOSITORY / "packaging" / "claude_plugin"
SKILL = PLUGIN / "skills" / "substrate-runs" / "SKILL.md"
BASH = "mcp__plugin_substrate_substrate__bash_execute"
#: By default the CLI may begin a turn before the servers of plugins are connected.
CONNECTED_FIRST = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "60000"}


class Cli(NamedTuple):
    """The CLI with a separate home folder, and `substrate` on its PATH."""

    folder: Path

    def run(self, *arguments: str, api: str = "http://127.0.0.1:9") -> str:
        environment = private_environment(self.folder / "home", api, KEY)
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            [str(claude_code()), *arguments],
            cwd=self.folder,
            env=environment | CONNECTED_FIRST | {"PATH": programs},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    try:
        claude_code()
    except NotInstalled as error:
        pytest.skip(str(error))
    (tmp_path / "home").mkdir()
    return Cli(tmp_path)


def test_the_plugin_is_installed_used_and_removed(cli: Cli) -> None:
    for manifest in (REPOSITORY, PLUGIN):
        cli.run("plugin", "validate", "--strict", str(manifest))
    add, install, *later = (shlex.split(line) for line in documented("Claude Code"))
    for command in (add, install):
        cli.run(*(word.replace("$PWD", str(REPOSITORY)) for word in command[1:]))

    with model_api(BASH, {"command": "echo from the plugin"}) as model:
        output = cli.run("-p", "go", "--allowedTools", BASH, api=model.url)
        assert output.strip() == "done"
        [[block]] = model.results
        assert "from the plugin" in block["text"]
        assert "substrate:substrate-runs" in model.requested

    for command in later:
        cli.run(*command[1:])
    settings = json.loads((cli.folder / "home" / ".claude" / "settings.json").read_text())
    assert not settings.get("enabledPlugins")


def test_the_skill_names_methods_and_parameters_that_exist(tmp_path: Path) -> None:
    methods = {
        method["name"]: method["params"].get("properties", {})
        for activation in described(tmp_path)
        for method in activation["methods"]
    }
    text = SKILL.read_text()
    named = set(re.findall(r"`((?:plexus|bash|approvals)\.\w+)`", text))
    assert {"bash.execute", "plexus.search", "plexus.history", "plexus.respond"} <= named
    assert named <= methods.keys()
    parameters = {parameter for name in named for parameter in methods[name]}
    words = set(re.findall(r"`([a-z_]+)`", text)) - {"substrate", "bash_execute", "cd"}
    assert words <= parameters
