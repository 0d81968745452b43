"""The root of the command line: flags, settings and names of commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from plexus.version import __version__
from substrate.cli.main import COMMANDS, cli


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, with no settings around it."""
    for name in [name for name in os.environ if name.startswith("SUBSTRATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUBSTRATE_PORT", "0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="substrate")


def test_the_version_is_that_of_the_core() -> None:
    assert invoke("--version").stdout == f"substrate, version {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed_and_has_help(name: str) -> None:
    assert f"  {name}  " in invoke("--help").stdout
    assert f"Usage: substrate {name}" in invoke(name, "--help").stdout


def test_an_unknown_command_gets_a_suggestion() -> None:
    called = invoke("lsit")
    assert called.exit_code == 2
    assert "Did you mean 'list'?" in called.stderr


def test_a_bad_setting_is_a_usage_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBSTRATE_PORT", "many")
    by_variable = invoke("list")
    monkeypatch.delenv("SUBSTRATE_PORT")
    (project / "substrate.toml").write_text("port = 'many'")
    by_file = invoke("--trust", "list")

    assert (by_variable.exit_code, by_file.exit_code) == (2, 2)
    assert "SUBSTRATE_PORT: invalid value 'many' for port" in by_variable.stderr
    assert "substrate.toml: invalid value 'many' for port" in by_file.stderr


def test_an_unknown_variable_is_a_warning_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUBSTRATE_PROT", "1")
    called = invoke("list", "--json")
    assert called.exit_code == 0
    assert (
        "Unknown environment variable SUBSTRATE_PROT is ignored. Did you mean SUBSTRATE_PORT?"
        in called.stderr
    )
    assert "SUBSTRATE_PROT" not in called.stdout


def test_serving_on_stdio_imports_nothing_of_the_commands(project: Path) -> None:
    script = (
        "import sys, substrate.cli.main, substrate.stdio\n"
        "print([m for m in sys.modules if m.startswith(('substrate.cli.commands', 'rich'))])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, timeout=30
    )
    assert loaded.stdout == "[]\n", loaded.stderr
