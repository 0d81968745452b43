"""A broken replacement of a built-in activation is reported everywhere, and the built-in is off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import add_plugin, lines, run

RESTRICTED = '''
from activations.bash import Bash

class Restricted(Bash):
    """Runs commands, but only some."""

raise RuntimeError("the list of commands cannot be read")
'''
PLUGIN = """
from plexus import Activation, method

class Plugin(Activation):
    'A plugin.'
    namespace = "{namespace}"
    version = "1.0.0"

    @method
    async def greet(self) -> str:
        'Greet.'
        return "hello"
"""
OFF = "the built-in bash, which it replaces, is switched off"


def test_every_command_reports_that_the_built_in_is_switched_off(tmp_path: Path) -> None:
    add_plugin(tmp_path, "restricted", RESTRICTED)
    listed = run("list", "--all", cwd=tmp_path)
    assert "bash.execute" not in listed.stdout
    assert OFF in listed.stderr
    called = run("call", "--json", "bash.execute", "echo hi", cwd=tmp_path)
    assert called.returncode != 0
    assert "bash is switched off" in called.stderr
    examined = run("doctor", "--json", cwd=tmp_path)
    assert examined.returncode == 1
    assert OFF in examined.stdout
    checked = run("call", "health.check", "--json", cwd=tmp_path)
    [report] = [each for each in lines(checked.stdout) if "result" in each]
    probes = {each["namespace"]: each for each in report["result"]["activations"]}
    assert report["result"]["status"] == "degraded"
    assert probes["bash"]["ok"] is False
    assert json.dumps(probes["bash"]).count("switched off") == 1


def test_check_reports_it_before_a_server_starts(tmp_path: Path) -> None:
    add_plugin(tmp_path, "restricted", RESTRICTED)
    checked = run("check", "--json", "activations.d/restricted.py", cwd=tmp_path)
    assert checked.returncode == 1
    [found] = lines(checked.stdout)
    assert "cannot be read" in found["message"]
    assert OFF in found["message"]


@pytest.mark.parametrize(
    "source",
    [
        "from activations.bash import Bash\n\nclass Restricted(Bash):\n    'Runs some commands.'\n",
        PLUGIN.format(namespace="bash"),
    ],
    ids=["subclass", "namespace"],
)
@pytest.mark.parametrize("change", ["changed", "removed", "unreadable"])
def test_a_built_in_stays_off_while_its_trusted_replacement_is_skipped(
    tmp_path: Path, source: str, change: str
) -> None:
    folder = tmp_path / "activations.d"
    folder.mkdir()
    plugin = folder / "restricted.py"
    plugin.write_text(source)
    assert run("trust", cwd=tmp_path).returncode == 0
    assert "bash." in run("list", "--all", cwd=tmp_path).stdout
    if change == "changed":
        plugin.write_text(PLUGIN.format(namespace="other"))
    else:
        plugin.unlink()
        if change == "unreadable":
            os.mkfifo(plugin)
    listed = run("list", "--all", cwd=tmp_path)
    assert "bash.execute" not in listed.stdout
    called = run("call", "--json", "bash.execute", "echo hi", cwd=tmp_path)
    assert called.returncode != 0
    assert "bash is switched off" in called.stderr


def test_a_built_in_stays_on_while_a_plugin_that_replaces_nothing_is_skipped(
    tmp_path: Path,
) -> None:
    plugin = tmp_path / "activations.d" / "count.py"
    plugin.parent.mkdir()
    plugin.write_text(PLUGIN.format(namespace="count"))
    assert run("trust", cwd=tmp_path).returncode == 0
    plugin.write_text(PLUGIN.format(namespace="bash"))
    assert run("call", "--json", "bash.execute", "echo hi", cwd=tmp_path).returncode == 0
