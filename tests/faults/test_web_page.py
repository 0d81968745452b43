"""Requests that a web page can make a browser send to this machine have no effect.

Those that need no permission have no effect, and permission is never granted. The server requires
no token here, so nothing else protects it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from network import Server, serving

pytestmark = pytest.mark.timeout(60)

#: Content types that a form, or a script without permission, can send.
SIMPLE = (
    "text/plain",
    "text/plain;charset=UTF-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain; application/json",
    "",
)
PATHS = (
    *("/rpc", "/mcp", "/messages", "/sse", "/", "/runs/1/events"),
    *("/session", "/tickets", "/token/rotate"),
)
CALL = {"jsonrpc": "2.0", "id": 1, "method": "demo.echo", "params": {"text": "effect"}}
TOOL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "demo.echo",
        "arguments": {"text": "effect"},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def effects(server: Server) -> int:
    """Return the number of calls that were executed."""
    with server.call("plexus.runs") as response:
        runs = json.loads(response.read())["result"]["terminal"]["result"]
    return sum(run["method"] == "demo.echo" and "process" not in run for run in runs)


@pytest.mark.parametrize("kind", SIMPLE)
@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "https://127.0.0.1"])
def test_posts_without_permission_have_no_effect(
    server: Server, kind: str, origin: str | None
) -> None:
    headers = {"Content-Type": kind} | ({} if origin is None else {"Origin": origin})
    for path in PATHS:
        for body in (CALL, TOOL):
            with server.request("POST", path, json.dumps(body).encode(), headers) as response:
                assert response.status in (403, 405, 415), (path, response.status)
                assert not _allowances(response.headers)
    assert effects(server) == 0


@pytest.mark.parametrize("verb", ["GET", "HEAD", "OPTIONS", "TRACE"])
def test_fetches_have_no_effect(server: Server, verb: str) -> None:
    asked = quote(json.dumps(CALL))
    for path in ("/rpc", "/mcp", "/messages", "/", "/runs/1/events", "/rpc/demo.echo"):
        for query in (f"?{asked}", f"?message={asked}", "?method=demo.echo&text=effect"):
            response = server.request(verb, path + query, headers={"Accept": "*/*"})
            assert not _allowances(response.headers)
            response.close()
    assert effects(server) == 0


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_no_page_gets_permission_for_more(server: Server, origin: str) -> None:
    for path in PATHS:
        headers = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type, authorization",
            "Access-Control-Request-Private-Network": "true",
        }
        with server.request("OPTIONS", path, headers=headers) as response:
            assert response.status == 403
            assert not _allowances(response.headers)


def test_the_same_call_from_a_program_has_an_effect(server: Server) -> None:
    with server.request("POST", "/rpc", CALL) as response:
        assert response.status == 200
    assert effects(server) == 1


def _allowances(headers: object) -> list[str]:
    return [line for line in str(headers).lower().splitlines() if "access-control" in line]
