"""The generated Python client: checked by mypy, and run against a server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_files import COUNTING, codegen, mypy, shown
from network import REPOSITORY, Server, serving
from odd_schemas import ODD
from servers import proxied

from substrate.devtools.codegen.python import write_python

#: mypy has to read all that the client imports.
pytestmark = pytest.mark.timeout(180)

#: A program that uses the client. Not a module: what it imports is made here.
PROGRAM = Path(__file__).with_name("use_of_client.py.txt")
SCENARIO_S = 45.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the client and the code that uses it."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "made_client.py").write_text(codegen("python"))
    (folder / "use_of_client.py").write_text(PROGRAM.read_text())
    (folder / "plexus_client.py").write_text((folder / "made_client.py").read_text())
    (folder / "shown.py").write_text(shown("python"))
    (folder / "odd_client.py").write_text(write_python(ODD, [], ["substrate", "codegen"]))
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(COUNTING), auth="token") as server:
        yield server


async def play(
    folder: Path, server: Server, scenario: str, scheme: str = "ws", port: int | None = None
) -> Any:
    """Return the observations of a scenario."""
    url = f"{scheme}://127.0.0.1:{port or server.port}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(folder / "use_of_client.py")),
        *(scenario, url, server.token),
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SCENARIO_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def test_types_are_clean_and_wrong_uses_are_found(folder: Path) -> None:
    mypy(folder, ["made_client.py", "use_of_client.py", "odd_client.py", "shown.py"])


def test_the_client_of_an_unusual_schema_can_be_imported(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(folder / "odd_client.py")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=SCENARIO_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


SEEN: dict[str, Any] = {
    "stream": [
        ["1 ", "2 ", "2/2", "total 2"],
        {"type": "complete", "total": 3},
        {"type": "complete"},
        True,
    ],
    "plain": ["grüßegrüße", "healthy", "the moon"],
    "errors": [["content"], "no_planet", "no Vulcan", {"hint": "none"}],
    "left": "cancelled",
    "cancelled": [True, "enough"],
    "asked": [["Delete 3 files?", "Where?", "deleted there"], False],
}


@pytest.mark.anyio
@pytest.mark.parametrize("scenario", SEEN)
@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_a_program_observes_what_the_server_does(
    folder: Path, server: Server, scenario: str, scheme: str
) -> None:
    assert await play(folder, server, scenario, scheme) == SEEN[scenario]


@pytest.mark.anyio
async def test_a_stream_resumes_when_the_connection_is_cut(folder: Path, server: Server) -> None:
    async with proxied(server.port, [900, 2000]) as proxy:
        seen = await play(folder, server, "resumed", port=proxy.port)
        connections = proxy.connections
    assert seen == list(range(1, 201))
    assert connections > 2
