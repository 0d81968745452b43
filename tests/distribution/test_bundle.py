"""The MCP bundle for Claude Desktop: packed by the official packer, started as by a host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conformance.node import NotInstalled, packer
from installed_program import BIN, REPOSITORY, bare_environment, build
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from plexus.version import __version__

#: npm may have to fetch the packer first.
pytestmark = pytest.mark.timeout(400)

SOURCES = REPOSITORY / "packaging" / "mcpb"
BUILDER = SOURCES / "build_bundle.py"
#: Values of the host as it substitutes them: texts, or the placeholder of a missing one.
DEFAULTS = {"folder": "", "shell": "false", "background": "false", "record": "true"}


class Bundle(NamedTuple):
    """A bundle, and the folder in which a host has unpacked it."""

    file: Path
    folder: Path
    environment: dict[str, str]

    def command(self, **values: str) -> StdioServerParameters:
        """Return how a host starts the bundle with these values of the user."""
        manifest = json.loads((self.folder / "manifest.json").read_text())
        config = manifest["server"]["mcp_config"]

        def filled(text: str) -> str:
            text = text.replace("${__dirname}", str(self.folder))
            return re.sub(r"\$\{user_config\.(\w+)\}", lambda name: values[name[1]], text)

        return StdioServerParameters(
            command=config["command"],
            args=[filled(each) for each in config["args"]],
            env=self.environment | {name: filled(text) for name, text in config["env"].items()},
            cwd=self.folder,
        )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    try:
        command = packer()
    except NotInstalled as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("bundle")
    wheel = build(REPOSITORY, "wheel", folder / "dist")
    done = subprocess.run(
        [sys.executable, str(BUILDER), "--wheel", wheel, "--output", folder, "--packer", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file = Path(done.stdout.strip())
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(unpacked)
    return Bundle(file, unpacked, bare_environment(folder))


async def used(parameters: StdioServerParameters, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return the names of the tools, and the result of each call."""
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        begun = await session.initialize()
        assert begun.server_info.version == __version__
        listed = [tool.name for tool in (await session.list_tools()).tools]
        return [listed, *[await session.call_tool(name, values) for name, values in calls]]


def test_the_bundle_contains_the_wheel_and_its_licence(bundle: Bundle) -> None:
    assert bundle.file.name == f"substrate-{__version__}.mcpb"
    files = {
        path.relative_to(bundle.folder).as_posix()
        for path in bundle.folder.rglob("*")
        if path.is_file() and ".venv" not in path.parts
    }
    wheel = f"wheels/plexus_substrate-{__version__}-py3-none-any.whl"
    expected = {"LICENSE", "manifest.json", "pyproject.toml", "server/main.py", wheel}
    assert files - {"uv.lock"} == expected


def test_every_choice_of_the_user_reaches_the_server(bundle: Bundle) -> None:
    manifest = json.loads((bundle.folder / "manifest.json").read_text())
    used = re.findall(r"\$\{user_config\.(\w+)\}", json.dumps(manifest["server"]))
    assert sorted(used) == sorted(manifest["user_config"])
    entry_point = (bundle.folder / "server" / "main.py").read_text()
    for name in manifest["server"]["mcp_config"]["env"]:
        assert f'"{name.removeprefix("SUBSTRATE_BUNDLE_")}"' in entry_point


@pytest.mark.anyio
async def test_a_host_starts_the_bundle_with_uv_and_no_shell(
    bundle: Bundle, tmp_path: Path
) -> None:
    create = {"name": "t", "model": "claude-code:sonnet"}
    parameters = bundle.command(**DEFAULTS | {"folder": str(tmp_path)})
    assert parameters.command == "uv"
    tools, created = await used(parameters, ("chat_create", create))
    assert "plexus_search" in tools
    assert not [name for name in tools if name.startswith(("bash", "claudecode"))]
    assert created.is_error
    assert "sandbox" in str(created.content)


@pytest.mark.anyio
async def test_shell_commands_run_in_the_project_folder_if_the_user_allows_them(
    bundle: Bundle, tmp_path: Path
) -> None:
    parameters = bundle.command(**DEFAULTS | {"folder": str(tmp_path), "shell": "true"})
    tools, done = await used(parameters, ("bash_execute", {"command": "pwd"}))
    assert "bash_execute" in tools
    assert str(tmp_path) in str(done.content)


def test_a_missing_project_folder_is_an_error_with_its_name(bundle: Bundle) -> None:
    done = subprocess.run(
        [BIN / "python", bundle.folder / "server" / "main.py"],
        env=bundle.environment | {"SUBSTRATE_BUNDLE_FOLDER": "/nonexistent/folder"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot use the project folder /nonexistent/folder" in done.stderr


def test_a_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "plexus_substrate-9.9.9-py3-none-any.whl"
    other.touch()
    done = subprocess.run(
        [sys.executable, str(BUILDER), "--wheel", other, "--packer", "false"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "plexus_substrate-9.9.9-py3-none-any.whl is not plexus_substrate-" in done.stderr
