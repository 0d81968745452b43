"""One use of each transport, view and store, through real processes.

The tests are few and fast, because `make lowest` runs them with the lowest allowed versions, in an
environment without the packages that other tests need.
"""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import ENGINES, new_database
from child_processes import clean_environment
from loopback_issuer import issuing
from network import ANSWER_S, DEMO, REPOSITORY, Server, bearer, events, serving
from websockets.sync.client import connect

from native_rpc import client

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(60)]

#: The events of `demo.wait`.
STREAMED = ["content", "content", "complete"]
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--log-level", "info") as running:
        yield running
        running.process.terminate()
        _, written = running.process.communicate(timeout=ANSWER_S)
        assert running.process.returncode == 0, written.decode()
        assert b"Traceback" not in written, written.decode()


def result_of(server: Server, method: str, params: Any = None) -> Any:
    """Call a method, and return its terminal and its events."""
    with server.call(method, params) as response:
        return json.loads(response.read())["result"]


def kinds_of(items: list[dict[str, Any]]) -> list[str]:
    """Return the types of the events in these notifications."""
    return [item["params"]["result"]["type"] for item in items]


def talk(messages: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    """Return the messages that `substrate --stdio` sends in response to these."""
    ended = subprocess.run(
        [sys.executable, "-m", "substrate", "--stdio", "--activation", str(DEMO), *options],
        input="".join(json.dumps(message) + "\n" for message in messages),
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_call_over_http_is_answered(server: Server) -> None:
    assert result_of(server, "demo.echo", ["x"])["terminal"]["result"] == "x"
    with server.request("GET", "/", headers={"Accept": "text/html"}) as page:
        assert b"<html" in page.read()
    with server.request("GET", "/metrics") as metrics:
        assert b"substrate_open_connections" in metrics.read()


def test_a_call_streams_over_http(server: Server) -> None:
    with server.stream("demo.wait", [0.1]) as response:
        found = [message for _, message in events(response) if "params" in message]
    assert kinds_of(found) == STREAMED


def test_a_call_streams_over_a_websocket(server: Server) -> None:
    with connect(server.ws) as peer:
        peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "demo.wait", "params": [0.1]}))
        assert "result" in json.loads(peer.recv(timeout=ANSWER_S))
        items = [json.loads(peer.recv(timeout=ANSWER_S)) for _ in STREAMED]
    assert kinds_of(items) == STREAMED


@pytest.mark.anyio
async def test_the_client_library_streams_a_call(server: Server) -> None:
    async with client.connect(server.ws) as peer:
        assert await peer.call("demo.echo", ["x"]) == "x"


def test_a_malformed_upgrade_is_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_S) as sock:
        sock.sendall(f"GET /rpc HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{UPGRADE}".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_a_call_streams_over_pipes() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "demo.wait", "params": [0.1]}
    answered, *items = talk([call])
    assert answered["id"] == 1
    assert kinds_of(items) == STREAMED


def test_a_tool_is_listed_and_called_over_mcp() -> None:
    client = {"name": "smoke", "version": "1"}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    call = {"name": "demo.echo", "arguments": {"text": "x"}}
    answers = talk(
        [
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
            {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call},
        ],
        "--mcp",
    )
    by_id = {answer["id"]: answer["result"] for answer in answers if "id" in answer}
    assert by_id[1]["serverInfo"]["name"]
    assert "demo.echo" in [tool["name"] for tool in by_id[2]["tools"]]
    assert by_id[3]["content"][0]["text"] == "x"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tree_is_written_and_read_by_the_next_process(engine: str, tmp_path: Path) -> None:
    settings = {"SUBSTRATE_DATABASE": new_database(engine, tmp_path)}
    with serving(settings=settings) as first:
        made = result_of(first, "arbor.tree_create", {"metadata": {"mine": True}})
        tree = made["terminal"]["result"]["tree_id"]
    with serving(settings=settings) as second:
        found = result_of(second, "arbor.tree_get", {"tree_id": tree})
    assert found["events"][0]["metadata"] == {"mine": True}


def test_the_built_in_model_answers_in_a_chat(server: Server) -> None:
    result_of(server, "chat.create", {"name": "smoke"})
    sent = result_of(server, "chat.send", {"session": "smoke", "message": "hello there"})
    assert "hello there" in "".join(event.get("text", "") for event in sent["events"])


def test_the_command_line_calls_a_server_and_lists_its_methods(server: Server) -> None:
    command = [sys.executable, "-m", "substrate", "--port", str(server.port)]
    for arguments, expected in ((["call", "demo.echo", "x"], "x"), (["list"], "demo")):
        ended = subprocess.run(
            [*command, *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert expected in ended.stdout


def test_a_token_of_an_issuer_is_accepted() -> None:
    with issuing() as issuer:
        issuer.publish()
        settings = {"SUBSTRATE_OAUTH_ISSUER": issuer.url}
        with serving(settings=settings, auth="token") as server:
            audience = f"http://127.0.0.1:{server.port}/mcp"
            token = issuer.sign(issuer.claims(audience, "demo"))
            with server.call("demo.echo", ["x"], **bearer(token)) as response:
                assert response.status == 200
            assert server.call("demo.echo", ["x"], **bearer(token + "x")).status == 401


def test_spans_are_sent_to_a_collector() -> None:
    received: queue.Queue[str] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.put(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            endpoint = f"http://127.0.0.1:{collector.server_port}"
            with serving(settings={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as server:
                result_of(server, "demo.echo", ["x"])
            assert received.get(timeout=ANSWER_S) == "/v1/traces"
        finally:
            collector.shutdown()
            thread.join()
