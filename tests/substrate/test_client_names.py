"""Names of clients: how each transport learns them, and where runs show them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import stdio_process
from child_processes import clean_environment
from network import REPOSITORY, Server, serving
from websockets.sync.client import connect

from native_rpc import client as native_client
from plexus.version import __version__
from substrate.server.asgi import CLIENT_CHARS, client_name


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def scope(query: str = "", **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": pairs, "query_string": query.encode()}


def clients(server: Server, method: str) -> list[str | None]:
    """Return the clients of the runs of a method, newest first."""
    with server.call("plexus.runs") as response:
        runs = json.loads(response.read())["result"]["terminal"]["result"]
    return [run.get("client") for run in runs if run["method"] == method]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (scope("client=Browser"), "Browser"),
        (scope("tools=all&client=My%20page%202"), "My page 2"),
        (scope(substrate_client="tool 1.2"), "tool 1.2"),
        (scope("client=Page", substrate_client="tool 1.2"), "Page"),
        (scope(substrate_client="", user_agent="curl/8.0 x"), "curl/8.0"),
        (scope(user_agent="Mozilla/5.0 (X11)"), "browser"),
        (scope("client=%00%0a%1b", user_agent="curl/8.0"), "curl/8.0"),
        (scope("client=a%00b%0ac%ed%a0%80"), "abc\ufffd\ufffd\ufffd"),
        (scope(f"client={'x' * 500}"), "x" * CLIENT_CHARS),
        (scope(), None),
    ],
)
def test_a_client_names_itself_in_the_url_or_in_a_header(
    given: dict[str, Any], name: str | None
) -> None:
    assert client_name(given) == name


def test_runs_over_http_and_websocket_have_the_name_of_their_client(server: Server) -> None:
    headers = {"Substrate-Client": "tool 1.2"}
    server.call("demo.echo", {"text": "a"}, **headers).close()
    server.call("demo.echo", {"text": "a"}, Accept="text/event-stream", **headers).read()
    with connect(f"{server.ws}?client=Browser") as peer:
        request = {"jsonrpc": "2.0", "id": 1, "method": "demo.echo", "params": ["a"]}
        peer.send(json.dumps(request))
        while "complete" not in str(peer.recv(timeout=15)):
            pass
    assert clients(server, "demo.echo") == ["Browser", "tool 1.2", "tool 1.2"]


@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_the_client_library_sends_the_name_of_its_program(
    server: Server, scheme: str
) -> None:
    target = f"{scheme}://127.0.0.1:{server.port}"
    async with native_client.connect(target, client=f"program\n {scheme}") as plexus:
        await plexus.call("demo.count", {"to": 1})
        [newest, *_] = await plexus.runs()
    assert newest["client"] == f"program {scheme}"


def test_commands_name_themselves(server: Server) -> None:
    command = ["call", "--url", f"ws://127.0.0.1:{server.port}", "demo.shout", "a"]
    subprocess.run(
        [sys.executable, "-m", "substrate", *command],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert clients(server, "demo.shout") == [f"substrate call {__version__}"]


def test_a_client_on_stdio_is_stdio_and_belongs_to_the_session_of_its_agent() -> None:
    with stdio_process.serving(CLAUDE_CODE_SESSION_ID="session-7") as peer:
        waiting = peer.start("demo.wait")
        listed = peer.start("plexus.runs")
        # Servers of other tests have recorded their runs in the same folder.
        [run] = [each for each in peer.terminal(listed)["result"] if "process" not in each]
        assert (run["run"], run["client"], run["agent_session"]) == (waiting, "stdio", "session-7")
        assert "system" not in run
