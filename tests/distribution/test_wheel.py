"""The wheel and the sdist: their contents, and the program that they install."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest
from installed_program import (
    BIN,
    REPOSITORY,
    bare_environment,
    build,
    documented,
    install,
    run,
)
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from plexus.version import __version__

PACKAGES = ("activations", "mcp_view", "native_rpc", "plexus", "substrate")
ASSETS = Path("substrate/server/page/assets")
NAME = f"plexus_substrate-{__version__}"
START_S = 30.0


class Installed(NamedTuple):
    """What was built, and where it is installed."""

    folder: Path
    wheel: Path
    sdist: Path
    bin: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    wheel = build(REPOSITORY, "wheel", folder / "dist")
    sdist = build(REPOSITORY, "sdist", folder / "dist")
    programs = install(wheel, folder / "venv")
    return Installed(folder, wheel, sdist, programs, bare_environment(folder))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_the_files_of_the_packages_and_nothing_else(installed: Installed) -> None:
    found = contents(installed.wheel)
    metadata = f"{NAME}.dist-info/"
    files = {name: text for name, text in found.items() if not name.startswith(metadata)}
    sources = {
        path.relative_to(REPOSITORY).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == sources
    licences = sorted(ASSETS.joinpath("vendor").glob("*.LICENSE"))
    assert {f"{package}/py.typed" for package in PACKAGES} <= files.keys()
    assert {"substrate/manifest.json", f"{ASSETS}/index.html"} <= files.keys()
    assert f"{metadata}licenses/LICENSE" in found
    assert all(f"{metadata}licenses/{path}" in found for path in licences)


def test_the_files_of_every_vendored_library_have_a_licence() -> None:
    vendor = REPOSITORY / ASSETS / "vendor"
    licensed = {path.stem for path in vendor.glob("*.LICENSE")}
    libraries = {path.stem.partition("-")[0] for path in vendor.glob("*.mjs")}
    assert libraries == licensed


def test_the_index_accepts_both_files(installed: Installed) -> None:
    checked = run(
        BIN / "twine", "check", "--strict", installed.wheel, installed.sdist, cwd=installed.folder
    )
    assert checked.count("PASSED") == 2


def test_the_sdist_builds_the_same_wheel(installed: Installed) -> None:
    with tarfile.open(installed.sdist) as archive:
        archive.extractall(installed.folder, filter="data")
    source = installed.folder / NAME
    rebuilt = build(source, "wheel", installed.folder / "rebuilt")
    assert contents(rebuilt) == contents(installed.wheel)
    for name in ("tests/conftest.py", "packaging/server.json", ".claude-plugin/marketplace.json"):
        assert (source / name).is_file()


def test_the_installed_program_runs_without_the_repository(installed: Installed) -> None:
    program, environment = installed.bin / "substrate", installed.environment
    version = run(program, "--version", cwd=installed.folder, environment=environment)
    assert version.split()[-1] == __version__
    called = run(
        *(program, "call", "--local", "bash.execute", "echo $((6 * 7))"),
        cwd=installed.folder,
        environment=environment,
    )
    assert "42" in called
    python = installed.bin / "python"
    run(BIN / "uv", "pip", "check", "--python", python, cwd=installed.folder)


def test_the_installed_manifest_is_current(installed: Installed) -> None:
    """Otherwise every start would import all activations."""
    code = (
        "import sys; from substrate.build_hub import built_in_hub;"
        "from substrate.settings import Settings; from pathlib import Path;"
        "hub = built_in_hub(Settings(), Path.cwd());"
        "print(sum(1 for _ in hub.methods()), 'activations.bash.activation' in sys.modules)"
    )
    printed = run(
        *(installed.bin / "python", "-I", "-c", code),
        cwd=installed.folder,
        environment=installed.environment,
    )
    methods, imported = printed.split()
    assert int(methods) > 50
    assert imported == "False"


@pytest.mark.anyio
async def test_the_official_mcp_client_uses_the_installed_program(installed: Installed) -> None:
    server = StdioServerParameters(
        command=str(installed.bin / "substrate"),
        args=["--stdio", "--mcp"],
        env=installed.environment,
        cwd=installed.folder,
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        begun = await session.initialize()
        assert begun.server_info.version == __version__
        result = await session.call_tool("bash.execute", {"command": "echo installed"})
    assert not result.is_error
    assert "installed" in str(result.content)


@pytest.fixture
def address(installed: Installed) -> Iterator[str]:
    with subprocess.Popen(
        [str(installed.bin / "substrate"), "--port", "0"],
        cwd=installed.folder,
        env=installed.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            found = None
            for line in server.stdout:
                if found := re.search(r"http://[\d.]+:\d+", line):
                    break
            assert found, "the server printed no address"
            yield found[0]
        finally:
            server.kill()


def test_the_installed_page_has_all_of_its_files(address: str) -> None:
    index = Request(f"{address}/", headers={"Accept": "text/html"})
    with urlopen(index, timeout=START_S) as answer:
        assert b"<!doctype html>" in answer.read().lower()
    assets = REPOSITORY / ASSETS
    served = [path for path in assets.rglob("*") if path.suffix in (".js", ".mjs", ".css")]
    assert len(served) > 50
    for path in served:
        name = path.relative_to(assets).as_posix()
        with urlopen(f"{address}/page/{name}", timeout=START_S) as answer:
            assert answer.read() == path.read_bytes(), name


@pytest.mark.parametrize("title", ["pipx", "uv", "After installing"])
def test_the_commands_of_the_manual_work(title: str, installed: Installed) -> None:
    folder = installed.folder / title.replace(" ", "-")
    folder.mkdir()
    own = {
        "PIPX_HOME": str(folder / "pipx"),
        "PIPX_BIN_DIR": str(folder / "bin"),
        "PIPX_DEFAULT_BACKEND": "uv",  # much faster than pip
        "UV_TOOL_DIR": str(folder / "tools"),
        "WHEEL": str(installed.wheel),
    }
    environment = bare_environment(folder) | own
    commands = documented(title)
    if title == "After installing":
        environment["PATH"] = os.pathsep.join([str(installed.bin), environment["PATH"]])
        # Nothing that another test serves.
        commands = [line.replace("substrate ", "substrate --port 1 ", 1) for line in commands]
    printed = run("bash", "-euxc", "\n".join(commands), cwd=folder, environment=environment)
    if title == "After installing":
        assert "healthy" in printed
    else:
        assert printed.count(f"substrate, version {__version__}") == len(
            [line for line in commands if "--version" in line]
        )
        assert not (folder / "bin" / "substrate").exists()
