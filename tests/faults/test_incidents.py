"""Incidents of other projects, each as a test that it cannot happen here.

The name of a test names the incident. If another file tests it, the table says where, and a test
checks that it exists.
"""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_network import BOTH, request, stateless, stateless_headers
from network import ANSWER_S, REPOSITORY, Server, serving
from starlette.types import Message, Scope
from websockets.sync.client import connect

from activations.bash import Bash, Exit
from activations.processes.sandbox.confinement import LIMIT_PROCESSES, STAGE
from plexus.limits import Limits
from substrate.security.authentication import Access
from substrate.security.guard import Guard, allowed_names

pytestmark = pytest.mark.timeout(120)

GUARD = "substrate/test_guard.py"
LIMITS = "limits/test_every_limit.py"
#: Incidents whose tests are in other files.
OTHER_FILES: dict[str, tuple[str, ...]] = {
    # No check of Host and Origin on a local server: SDKs of five languages.
    "CVE-2025-66416, CVE-2025-66414, CVE-2026-34742, CVE-2026-42559": (
        f"{GUARD}::test_no_route_is_reached_by_a_foreign_host_or_origin",
        f"{GUARD}::test_no_route_is_reached_with_a_missing_or_repeated_name",
    ),
    # The guard of one handler was forgotten at its sibling.
    "the Go SDK's second handler": (
        f"{GUARD}::test_every_route_of_the_real_server_is_guarded",
        f"{GUARD}::test_a_web_page_cannot_open_a_websocket",
    ),
    # A local proxy that spawned commands for any client.
    "CVE-2025-49596 of the Inspector": (
        f"{GUARD}::test_no_route_but_the_public_ones_is_reached_without_the_token",
        "substrate/test_access_exposure.py::test_settings_that_would_admit_strangers_are_refused",
        "substrate/test_access_exposure.py::test_a_server_with_unsafe_settings_does_not_listen",
    ),
    # A local WebSocket that took any web page for its client.
    "CVE-2025-52882 of IDE extensions": (
        f"{GUARD}::test_a_web_page_cannot_open_a_websocket",
        f"{GUARD}::test_a_websocket_without_the_token_is_closed_with_a_policy_violation",
    ),
    # A link that led out of the allowed folder.
    "CVE-2025-53109 of the filesystem server": (
        "activations/bash/test_bash_sandbox.py::test_a_link_out_of_the_workspace_does_not_lead_out",
    ),
    # One transport for two clients whose ids were equal.
    "CVE-2026-25536 of the TypeScript SDK": (
        "load/test_crossing.py::test_no_client_gets_the_answer_of_another",
    ),
    # A bound that could be set and was never enforced.
    "CVE-2026-39313 of mcp-framework": (
        "limits/test_every_limit.py::test_a_limit_is_tested_at_it_past_it_and_after_a_release",
    ),
    # Ids of one client could be used by any other.
    "the ancestor's global tables": (
        "substrate/test_isolation.py::test_objects_of_another_principal_are_answered_like_missing_ones",
        "faults/test_theft.py::test_ids_of_another_principal_are_useless",
    ),
}
TESTS = Path(__file__).parents[1]
SOURCES = ("plexus", "activations", "mcp_view", "native_rpc", "substrate")
PORT = 4444


@pytest.mark.parametrize("incident", OTHER_FILES)
def test_the_test_of_an_incident_exists(incident: str) -> None:
    for place in OTHER_FILES[incident]:
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        assert name in {node.name for node in tree.body if isinstance(node, functions)}, place


# --- a shell where none was meant -----------------------------------------------------------------

#: Functions that pass a text to a shell.
SHELLS = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("asyncio.create_subprocess_shell", "pty.spawn", "commands.getoutput"),
}


def calls_in(package: str) -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path, node


@pytest.mark.parametrize("package", SOURCES)
def test_cve_2025_6514_of_mcp_remote_no_text_reaches_a_shell(package: str) -> None:
    for path, call in calls_in(package):
        where = f"{path}:{call.lineno}"
        assert ast.unparse(call.func) not in SHELLS, where
        assert not any(keyword.arg == "shell" for keyword in call.keywords), where


def test_cve_2025_6514_of_mcp_remote_only_bash_runs_a_command_line() -> None:
    named = [
        str(path.relative_to(REPOSITORY))
        for package in SOURCES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "-c"
    ]
    assert {*named} == {
        # Options of git, with constant values.
        "activations/analysis/worker/git.py",
        # Our own Python programs; what varies is an argument.
        "activations/analysis/worker/import_graph.py",
        "activations/analysis/worker_process.py",
        "activations/processes/supervisor_client.py",
        # Bash, also for two scripts of ours, which take values as arguments only.
        "activations/processes/sandbox/confinement.py",
        "activations/processes/sandbox/launcher.py",
    }
    assert not any(mark in script for script in (STAGE, LIMIT_PROCESSES) for mark in "`%{")


# --- paths that begin alike -----------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.anyio
@pytest.mark.parametrize("place", ["../work-beside", "..", "sub/../..", "{outside}"])
async def test_cve_2025_53110_of_the_filesystem_server_a_sibling_is_not_inside(
    place: str, tmp_path: Path
) -> None:
    base = Path("/var/tmp") / f"incident-{tmp_path.parent.name}-{tmp_path.name}"  # /tmp is private
    inside, outside = base / "work", base / "work-beside"
    (inside / "sub").mkdir(parents=True)
    outside.mkdir()
    bash = Bash("workspace", str(inside))
    try:
        cwd = place.format(outside=outside)
        ends = [e async for e in bash.execute("touch stolen", cwd=cwd) if isinstance(e, Exit)]
        assert ends[0].exit_code != 0
        assert not list(base.rglob("stolen"))
        ends = [e async for e in bash.execute("touch mine") if isinstance(e, Exit)]
        assert ends[0].exit_code == 0
    finally:
        await bash.close()
        shutil.rmtree(base)


# --- names that begin alike -----------------------------------------------------------------------

OURS = [b"127.0.0.1:4444", b"localhost:4444", b"[::1]:4444"]
LABELS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.:@#/%\\[]_ ", min_size=1, max_size=20)


@given(st.sampled_from(OURS), LABELS, st.booleans(), st.sampled_from(["host", "origin"]))
def test_cve_2026_24052_of_claude_code_a_name_is_compared_whole(
    ours: bytes, more: str, before: bool, header: str
) -> None:
    name = more.encode() + ours if before else ours + more.encode()
    if name.lower() in OURS:
        return
    value = b"http://" + name if header == "origin" else name
    headers = [(b"host", OURS[0])] if header == "origin" else []
    assert not _enters([*headers, (header.encode(), value), (b"content-type", b"application/json")])


def test_cve_2026_24052_of_claude_code_our_own_names_do_enter() -> None:
    for ours in OURS:
        assert _enters([(b"host", ours), (b"content-type", b"application/json")])


def _enters(headers: list[tuple[bytes, bytes]]) -> bool:
    entered = False

    async def app(_: Scope, __: object, ___: object) -> None:
        nonlocal entered
        entered = True

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/rpc", "headers": headers}
    guard = Guard(app, allowed_names(PORT, (), ()), Access.open(), Limits())
    passing = guard(scope | {"query_string": b""}, receive, send)
    waits = passing.__await__()
    with contextlib.suppress(StopIteration):
        while True:
            next(waits)
    return entered


# --- clients that end the server ------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def sent(server: Server, data: bytes, *, reset: bool = False) -> None:
    """Send these bytes and disconnect, with or without a reset."""
    with socket.create_connection(("127.0.0.1", server.port), ANSWER_S) as sock:
        with contextlib.suppress(OSError):  # it may have hung up already
            sock.sendall(data)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        sock.settimeout(0.05)
        with contextlib.suppress(OSError):
            while sock.recv(65536):
                pass


def head(server: Server, path: str, length: int, *more: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Content-Type: application/json",
        f"Accept: {BOTH}",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


UPGRADE = (
    "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
#: Frames that no client should send.
FRAMES = (
    b"\xff\xff\xff\xff",
    b"\x83\x80\x00\x00\x00\x00",
    b"\x81\xff" + b"\xff" * 8,
    b"\x81\x05hello",
    b"\x88\x01x",
    b"\x80\x80\x00\x00\x00\x00",
    b"\x09\x80\x00\x00\x00\x00",
    b"\x81\x82\x00\x00\x00\x00\xff\xfe",
)
#: Messages whose parameters are not what the method takes.
WRONG: tuple[Any, ...] = (
    request("initialize"),
    request("initialize", {"protocolVersion": 5}),
    request("initialize", {"protocolVersion": "2025-11-25", "capabilities": 7}),
    request("tools/call"),
    request("tools/call", {"name": 5, "arguments": []}),
    stateless("tools/call", {"name": "demo.echo", "arguments": "x"}),
    stateless("tools/call", {"_meta": 7}),
    stateless("resources/read", {"uri": {}}),
    stateless("completion/complete", {"ref": 5, "argument": []}),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": 5},
    {"jsonrpc": "2.0", "id": 5, "result": {}},
    {"jsonrpc": "2.0", "id": 5, "error": {"code": "x"}},
    request("demo.echo", {"text": 5}),
    request("plexus.attach", {"run": -1}),
    [],
    5,
)


def bad_inputs(server: Server) -> Iterator[tuple[bytes, bool]]:
    """Yield the bytes to send, and whether the connection is then reset."""
    whole = json.dumps(request("demo.wait")).encode()
    for path in ("/rpc", "/mcp", "/messages"):
        for message in WRONG:
            body = json.dumps(message).encode()
            yield head(server, path, len(body)) + body, False
        for cut in (0, 1, len(whole) // 2):  # it declares more than it sends
            yield head(server, path, len(whole)) + whole[:cut], True
        yield head(server, path, len(whole), "Accept: text/event-stream") + whole, True
        yield head(server, path, 2, "Transfer-Encoding: chunked") + b"zz\r\n", False
    for garbage in (b"\x00" * 100, b"\xff" * 2000, b"GET\r\n\r\n", b"\r\n" * 50, b"PRI * HTTP/2.0"):
        yield garbage, False
        yield garbage, True
    for path in ("rpc", "mcp"):
        for frame in FRAMES:
            yield UPGRADE.format(path=path, port=server.port).encode() + frame, False
            yield UPGRADE.format(path=path, port=server.port).encode() + frame, True


def test_cve_2025_53365_and_53366_of_the_python_sdk_no_client_ends_the_server(
    server: Server,
) -> None:
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    with connect(f"ws://127.0.0.1:{server.port}/mcp", compression=None) as other:
        for data, reset in bad_inputs(server):
            sent(server, data, reset=reset)
            other.send(ping)
            assert json.loads(other.recv(ANSWER_S)) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    headers = stateless_headers("tools/list")
    with server.request("POST", "/mcp", stateless("tools/list"), headers) as response:
        assert response.status == 200
    assert server.process.poll() is None


# --- bytes that are no text -----------------------------------------------------------------------

NO_TEXT = (
    b"\xff\xfe{}",
    b'{"jsonrpc":"2.0","id":1,"method":"\xc3\x28"}',
    b"\xed\xa0\x80",
    b"\x80" * 100,
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xf4\x90\x80\x80"}}',
    b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
)


@pytest.mark.parametrize(
    ("command", "pinged"), [(["--stdio"], -32601), (["--stdio", "--mcp"], None)]
)
def test_issue_2328_of_the_python_sdk_bytes_that_are_no_text_are_answered_on_stdio(
    command: list[str], pinged: int | None
) -> None:
    lines = [line for bad in NO_TEXT for line in (bad, b'{"jsonrpc":"2.0","id":2,"method":"ping"}')]
    done = subprocess.run(
        [sys.executable, "-m", "substrate", *command],
        input=b"\n".join(lines) + b"\n",
        capture_output=True,
        cwd=REPOSITORY,
        timeout=30,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == [-32700, pinged] * len(NO_TEXT)
    assert [answer["id"] for answer in answers] == [None, 2] * len(NO_TEXT)
    assert done.returncode == 0
