"""Browsers: what the server sends them, and what it permits pages of other origins."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator

import pytest
from network import Server, bearer, serving

FRIEND = "https://app.example"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--allow-origin", FRIEND, auth="token") as running:
        yield running


def own(server: Server) -> dict[str, str]:
    """Return the headers that our own page sends."""
    return {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}


# --- the page ------------------------------------------------------------------------------------


def test_a_browser_gets_a_page_and_other_clients_json(server: Server) -> None:
    with server.request("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        page = response.read().decode()
    assert server.token not in page
    with server.request("GET", "/", headers={"Accept": "*/*"}) as response:
        assert json.loads(response.read())["name"] == "substrate"
        assert response.headers["Content-Type"] == "application/json"


def test_no_code_of_another_origin_runs_in_the_page(server: Server) -> None:
    with server.request("GET", "/", headers={"Accept": "text/html"}) as response:
        headers = response.headers
        page = response.read().decode()
    stated = headers["Content-Security-Policy"].split(";")
    policy = dict(part.strip().partition(" ")[::2] for part in stated)
    assert policy["default-src"] == "'none'"
    # The only script in the page itself is the map of its modules.
    [script] = re.findall(r"<script(?! type=\"module\" src=)[^>]*>(.*?)</script>", page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert all(path.startswith("/page/") for path in json.loads(script)["imports"].values())
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in str(policy)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(\w+:|//)|\son\w+=""", page)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


# --- other origins -------------------------------------------------------------------------------

PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,last-event-id,mcp-param-x",
}


@pytest.mark.parametrize("path", ["/rpc", "/mcp", "/tickets", "/session", "/nowhere"])
def test_a_listed_origin_gets_preflight_headers(server: Server, path: str) -> None:
    with server.request("OPTIONS", path, headers={"Origin": FRIEND} | PREFLIGHT) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == FRIEND
        allowed = response.headers["Access-Control-Allow-Headers"]
        assert allowed == PREFLIGHT["Access-Control-Request-Headers"]
        assert response.headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
        assert response.headers["Vary"] == "origin"
        assert response.headers["Access-Control-Allow-Credentials"] is None


def test_a_listed_origin_needs_a_token_and_may_read_the_response(server: Server) -> None:
    for headers, status in (({}, 401), (bearer("wrong"), 401), (bearer(server.token), 200)):
        with server.call("health.check", **({"Origin": FRIEND} | headers)) as response:
            assert response.status == status
            assert response.headers["Access-Control-Allow-Origin"] == FRIEND
            assert "mcp-session-id" in response.headers["Access-Control-Expose-Headers"]


def test_a_listed_origin_gets_sessions_and_tickets_for_a_token(server: Server) -> None:
    friend = {"Origin": FRIEND}
    with server.request("POST", "/session", {}, friend | bearer(server.token)) as response:
        assert response.headers["Access-Control-Allow-Origin"] == FRIEND
        secret = json.loads(response.read())["session"]
    with server.request("POST", "/tickets", {}, friend | bearer(secret)) as response:
        assert response.headers["Access-Control-Allow-Origin"] == FRIEND
        assert response.headers["Access-Control-Allow-Credentials"] is None
        ticket = json.loads(response.read())["ticket"]
    # Let in; there is no such run. The page may read that.
    with server.request("GET", f"/runs/1/events?ticket={ticket}", headers=friend) as response:
        assert response.status == 404
        assert response.headers["Access-Control-Allow-Origin"] == FRIEND
    with server.request("DELETE", "/session", headers=friend | bearer(secret)) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == FRIEND


@pytest.mark.parametrize("origin", ["https://app.example.evil", "http://app.example", "null"])
def test_no_other_origin_gets_preflight_headers(server: Server, origin: str) -> None:
    with server.request("OPTIONS", "/rpc", headers={"Origin": origin} | PREFLIGHT) as response:
        assert response.status == 403
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_our_own_page_and_programs_get_no_cors_headers(server: Server) -> None:
    for headers in ({}, own(server)):
        with server.call("health.check", **(headers | bearer(server.token))) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] is None
        with server.request("OPTIONS", "/rpc", headers=headers | PREFLIGHT) as response:
            assert response.status == 401


def test_without_listed_origins_no_cors_headers_are_sent() -> None:
    with serving(auth="token") as server:
        headers = {"Origin": FRIEND} | PREFLIGHT | bearer(server.token)
        with server.request("OPTIONS", "/rpc", headers=headers) as response:
            assert response.status == 403
            assert response.headers["Access-Control-Allow-Origin"] is None
