"""The official TypeScript clients, 1.x and 2.x, over every transport they support."""

from __future__ import annotations

import json

import pytest
from conformance.node import NotInstalled, node
from conformance.serving import serving
from other_clients import STDIO, check_session, run_node

#: npm may have to download the clients first.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module", autouse=True)
def clients() -> None:
    try:
        node()
    except NotInstalled as error:
        pytest.skip(str(error))


def at(url: str, kind: str) -> str:
    """Return the URL of a transport on the server with this endpoint."""
    if kind == "sse":
        return url.removesuffix("/mcp") + "/sse"
    return url.replace("http:", "ws:") if kind == "websocket" else url


@pytest.mark.parametrize("kind", ["http", "sse", "websocket"])
def test_the_client_1_has_a_whole_session_over(kind: str) -> None:
    with serving() as url:
        seen = json.loads(run_node("sdk_1.mjs", kind, at(url, kind)))
    check_session(seen, "2025-11-25")


def test_the_client_1_has_a_whole_session_over_stdio() -> None:
    check_session(json.loads(run_node("sdk_1.mjs", "stdio", *STDIO)), "2025-11-25")


MODES = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}


@pytest.mark.parametrize("mode", MODES)
def test_the_client_2_has_a_whole_session_over_http(mode: str) -> None:
    with serving() as url:
        seen = json.loads(run_node("client_2.mjs", mode, "http", url))
    check_session(seen, MODES[mode])


@pytest.mark.parametrize("mode", MODES)
def test_the_client_2_has_a_whole_session_over_stdio(mode: str) -> None:
    check_session(json.loads(run_node("client_2.mjs", mode, "stdio", *STDIO)), MODES[mode])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_client_2_has_a_whole_session_over_sse(mode: str) -> None:
    with serving() as url:
        seen = json.loads(run_node("client_2.mjs", mode, "sse", at(url, "sse")))
    check_session(seen, "2025-11-25")
