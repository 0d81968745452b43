"""Generated projects work: they pass the tools of their own toolchains.

Python, Node and Deno are installed for the tests. Cargo and Go are used where they are installed;
without them, the files of these projects are only parsed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.node import NotInstalled, deno, node
from template_folders import offering

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

TOOLCHAINS = ["deno", "go", "node", "python-uv", "rust"]
BIN = Path(sys.executable).parent
MANIFESTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "deno": ("deno.json", json.loads),
    "go": ("go.mod", str),
    "node": ("package.json", json.loads),
    "python-uv": ("pyproject.toml", tomllib.loads),
    "rust": ("Cargo.toml", tomllib.loads),
}
#: A value with everything that could end a text in one of the formats.
HOSTILE = 'A "quoted" \\ ${X} {{ 7 }} #: \'x\' <é \U0001f600> */ """'
PLAIN: dict[str, Any] = {"project_name": "my-project"}
FULL: dict[str, Any] = {
    "project_name": "a2-b_c",
    "description": HOSTILE,
    "author": HOSTILE,
    "license": "Apache-2.0",
}


async def project(
    folder: Path, toolchain: str, parameters: dict[str, Any], *, tests: bool = True
) -> Path:
    """Write a project and return its folder."""
    async with offering() as plexus:
        names = ["all"] if tests else [each for each in MAIN if each != "test"]
        known = [
            name
            for each in await plexus.call("list_templates", toolchain=toolchain)
            for name in (*each.required, *each.optional)
        ]
        given = {name: value for name, value in parameters.items() if name in known}
        await plexus.call(
            "scaffold_project",
            toolchain=toolchain,
            templates=names,
            parameters=given | ({} if tests else {"has_tests": False}),
            target=str(folder),
            write=True,
        )
    return folder


MAIN = ("makefile", "readme", "gitignore", "manifest", "ci", "dockerfile", "source", "test")


def run(folder: Path, *command: str | Path, **variables: str) -> str:
    """Run a command in a project, which must succeed, and return its output."""
    found = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("parameters", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("tests", [True, False], ids=["tests", "no-tests"])
@pytest.mark.parametrize("toolchain", TOOLCHAINS)
async def test_every_file_has_the_syntax_of_its_format(
    tmp_path: Path, toolchain: str, tests: bool, parameters: dict[str, Any]
) -> None:
    folder = await project(tmp_path / "p", toolchain, parameters, tests=tests)
    name, parse = MANIFESTS[toolchain]
    manifest = parse((folder / name).read_text())
    table = manifest
    for key in ("project", "package"):
        if isinstance(manifest, dict) and key in manifest:
            table = manifest[key]
    if parameters is FULL and toolchain in ("node", "python-uv", "rust"):
        assert table["description"] == HOSTILE
        author = table.get("author") or table["authors"][0]
        assert HOSTILE in (author, author["name"] if isinstance(author, dict) else None)
        assert table["license"] == "Apache-2.0"
    assert HOSTILE not in (folder / "Makefile").read_text()
    workflow = yaml.safe_load((folder / ".github/workflows/ci.yml").read_text())
    steps = [each.get("run", "") for each in workflow["jobs"]["check"]["steps"]]
    assert any("test" in each.split(" -")[0] for each in steps if "gofmt" not in each) is tests
    run(folder, "make", "--dry-run", "all")
    run(folder, BIN / "hadolint", "Dockerfile")
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert text.endswith("\n"), path
            assert "\n\n\n\n" not in text, path
            assert not any(line != line.rstrip() for line in text.splitlines()), path


@pytest.mark.parametrize("parameters", [PLAIN, FULL], ids=["plain", "full"])
async def test_a_python_project_passes_ruff_and_pytest_and_can_be_built(
    tmp_path: Path, parameters: dict[str, Any]
) -> None:
    folder = await project(tmp_path / "p", "python-uv", parameters)
    run(folder, BIN / "ruff", "check", "--no-cache", ".")
    run(folder, BIN / "ruff", "format", "--no-cache", "--check", ".")
    tested = run(folder, BIN / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "2 passed" in tested
    run(folder, BIN / "python", "-m", "hatchling", "build", "-t", "wheel")
    assert len(list((folder / "dist").glob("*.whl"))) == 1


@pytest.mark.parametrize("parameters", [PLAIN, FULL], ids=["plain", "full"])
async def test_a_node_project_passes_npm_test(tmp_path: Path, parameters: dict[str, Any]) -> None:
    try:
        program = node()
    except NotInstalled as error:
        pytest.skip(str(error))
    folder = await project(tmp_path / "p", "node", parameters)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    assert "pass 2" in run(folder, "npm", "test", PATH=path)
    run(folder, "npm", "run", "lint", PATH=path)
    assert run(folder, program, "src/main.js", "Ada") == "Hello, Ada!\n"
    (folder / "link").symlink_to("src/main.js")  # as npm installs it
    assert run(folder, program, "link", "Ada") == "Hello, Ada!\n"


@pytest.mark.parametrize("parameters", [PLAIN, FULL], ids=["plain", "full"])
async def test_a_deno_project_passes_its_tools(tmp_path: Path, parameters: dict[str, Any]) -> None:
    try:
        program = deno()
    except NotInstalled as error:
        pytest.skip(str(error))
    folder = await project(tmp_path / "p", "deno", parameters)
    own = {"DENO_DIR": str(tmp_path / "cache"), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    run(folder, program, "fmt", "--check", **own)
    run(folder, program, "lint", **own)
    run(folder, program, "check", ".", **own)
    assert "1 passed" in run(folder, program, "test", **own)
    assert run(folder, program, "task", "start", "Ada", **own) == "Hello, Ada!\n"


async def test_a_rust_project_passes_cargo_where_it_is_installed(tmp_path: Path) -> None:
    folder = await project(tmp_path / "p", "rust", FULL | {"rust_version": "1.56"})
    text = (folder / "src/main.rs").read_text()
    assert "fn main()" in text
    if shutil.which("cargo") is None:
        return
    assert "2 passed" in run(folder, "cargo", "test", "--offline")
    if shutil.which("cargo-fmt") is not None:
        run(folder, "cargo", "fmt", "--check")
    if shutil.which("cargo-clippy") is not None:
        run(folder, "cargo", "clippy", "--offline", "--all-targets", "--", "--deny", "warnings")


async def test_a_go_project_passes_go_where_it_is_installed(tmp_path: Path) -> None:
    folder = await project(tmp_path / "p", "go", PLAIN | {"go_version": "1.18"})
    assert (folder / "go.mod").read_text() == "module example.com/my-project\n\ngo 1.18\n"
    if shutil.which("go") is None:
        return
    own = {"GOCACHE": str(tmp_path / "cache"), "GOPATH": str(tmp_path / "path"), "GOFLAGS": ""}
    assert "ok" in run(folder, "go", "test", "./...", **own)
    run(folder, "go", "vet", "./...", **own)
    assert run(folder, "go", "run", ".", "Ada", **own) == "Hello, Ada!\n"
