"""Browsers: the page, the cookie that stands for a token, and pages of other origins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from network import Server, bearer, serving
from websockets.sync.client import connect

from substrate.access import sessions
from substrate.access.authentication import Access
from substrate.access.refusals import Forbidden, Unauthenticated
from substrate.access.tokens import TokenFile

pytestmark = pytest.mark.anyio

TOKEN = "the-main-token"
FRIEND = "https://app.example"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--allow-origin", FRIEND, auth="token") as running:
        yield running


def own(server: Server) -> dict[str, str]:
    """What a page of ours sends."""
    return {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}


def begin(server: Server, token: str) -> str:
    """Begin a session; the cookie as a browser sends it back."""
    with server.request("POST", "/session", {}, own(server) | bearer(token)) as response:
        assert response.status == 200, response.read()
        set_cookie = response.headers["Set-Cookie"]
        assert token not in set_cookie
    return str(set_cookie).partition(";")[0]


def call(server: Server, headers: dict[str, str]) -> int:
    with server.call("health.check", **headers) as response:
        return response.status


# --- the page ------------------------------------------------------------------------------------


def test_a_browser_gets_a_page_and_everybody_else_json(server: Server) -> None:
    with server.request("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        page = response.read().decode()
    assert server.token not in page
    with server.request("GET", "/", headers={"Accept": "*/*"}) as response:
        assert json.loads(response.read())["name"] == "substrate"
        assert response.headers["Content-Type"] == "application/json"


def test_nothing_of_another_origin_runs_in_the_page(server: Server) -> None:
    with server.request("GET", "/", headers={"Accept": "text/html"}) as response:
        headers = response.headers
        page = response.read().decode()
    stated = headers["Content-Security-Policy"].split(";")
    policy = dict(part.strip().partition(" ")[::2] for part in stated)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in str(policy)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(\w+:|//)|\son\w+=""", page)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


# --- the cookie ----------------------------------------------------------------------------------


def test_a_cookie_is_for_this_server_and_no_script(server: Server) -> None:
    with server.request("POST", "/session", {}, own(server) | bearer(server.token)) as response:
        name, *attributes = response.headers["Set-Cookie"].split("; ")
        assert response.headers["Cache-Control"] == "no-store"
        assert json.loads(response.read()) == {"principal": "local"}
    assert name.startswith(f"substrate_{server.port}=")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]


def test_a_cookie_lets_our_own_page_do_everything(server: Server) -> None:
    cookie = {"Cookie": "other=1; " + begin(server, server.token)}
    assert call(server, cookie | own(server)) == 200
    assert server.status("GET", "/runs/1/events", cookie) == 404  # let in; there is no such run
    with connect(server.ws, additional_headers=cookie | own(server)) as socket:
        socket.send('{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}')
        assert "result" in json.loads(socket.recv(timeout=10))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": FRIEND}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Sec-Fetch-Site": "same-site"}, 401),
    ],
)
def test_a_cookie_changes_nothing_for_another_page(
    server: Server, headers: dict[str, str], status: int
) -> None:
    cookie = {"Cookie": begin(server, server.token)}
    assert call(server, cookie | headers) == status


def test_a_cookie_is_no_token_and_a_token_is_no_cookie(server: Server) -> None:
    value = begin(server, server.token).partition("=")[2]
    assert call(server, bearer(value)) == 401
    name = f"substrate_{server.port}"
    assert call(server, {"Cookie": f"{name}={server.token}"} | own(server)) == 401
    # Nor can a session begin another, or replace the token.
    cookie = {"Cookie": f"{name}={value}"} | own(server)
    for path in ("/session", "/token/rotate"):
        with server.request("POST", path, {}, cookie) as response:
            assert response.status == 403


def test_a_session_ends_with_the_token_that_it_was_begun_with(server: Server) -> None:
    tokens = TokenFile()
    secret = tokens.add("browser", frozenset({"chat"}))
    cookie = {"Cookie": begin(server, secret)} | own(server)
    assert call(server, cookie) == 200
    tokens.revoke("browser")
    assert call(server, cookie) == 401


def test_a_new_token_ends_what_the_old_one_began() -> None:
    with serving(auth="token") as server:
        old = server.token
        cookie = {"Cookie": begin(server, old)} | own(server)
        with server.request("POST", "/token/rotate", {}, bearer(old)) as response:
            assert response.status == 200
            assert json.loads(response.read()) == {"rotated": True}
        assert server.token != old
        assert call(server, bearer(old)) == 401
        assert call(server, cookie) == 401
        assert call(server, bearer(server.token)) == 200


async def test_sessions_are_bounded_in_number_and_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    now = 0.0
    access = Access(TOKEN, port=1, clock=lambda: now)

    async def with_cookie(value: str) -> bool:
        cookie = {b"cookie": b"substrate_1=" + value.encode()}
        try:
            await access.authenticate(cookie, changes=False, own_origin=False)
        except Unauthenticated:
            return False
        return True

    token = {b"authorization": f"Bearer {TOKEN}".encode()}
    credential = await access.authenticate(token, changes=True, own_origin=True)
    first, second = access.begin_session(credential), access.begin_session(credential)
    assert await with_cookie(first)
    third = access.begin_session(credential)
    assert [await with_cookie(value) for value in (first, second, third)] == [True, False, True]
    now += sessions.IDLE_S
    assert await with_cookie(first)
    now += 1
    assert [await with_cookie(value) for value in (first, third)] == [True, False]
    cookie = {b"cookie": b"substrate_1=" + first.encode()}
    with pytest.raises(Forbidden):
        await access.authenticate(cookie, changes=True, own_origin=False)


# --- other origins -------------------------------------------------------------------------------

PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,mcp-param-x",
}


@pytest.mark.parametrize("path", ["/rpc", "/mcp", "/nowhere"])
def test_a_listed_origin_is_told_what_it_may_send(server: Server, path: str) -> None:
    with server.request("OPTIONS", path, headers={"Origin": FRIEND} | PREFLIGHT) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == FRIEND
        allowed = response.headers["Access-Control-Allow-Headers"]
        assert allowed == PREFLIGHT["Access-Control-Request-Headers"]
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Vary"] == "origin"
        assert response.headers["Access-Control-Allow-Credentials"] is None


def test_a_listed_origin_needs_a_token_and_may_read_the_answer(server: Server) -> None:
    for headers, status in (({}, 401), (bearer("wrong"), 401), (bearer(server.token), 200)):
        with server.call("health.check", **({"Origin": FRIEND} | headers)) as response:
            assert response.status == status
            assert response.headers["Access-Control-Allow-Origin"] == FRIEND
            assert "mcp-session-id" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("origin", ["https://app.example.evil", "http://app.example", "null"])
def test_no_other_origin_is_told_anything(server: Server, origin: str) -> None:
    with server.request("OPTIONS", "/rpc", headers={"Origin": origin} | PREFLIGHT) as response:
        assert response.status == 403
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_our_own_page_and_programs_get_no_such_header(server: Server) -> None:
    for headers in ({}, own(server)):
        with server.call("health.check", **(headers | bearer(server.token))) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] is None
        with server.request("OPTIONS", "/rpc", headers=headers | PREFLIGHT) as response:
            assert response.status == 401


def test_without_listed_origins_there_are_no_such_headers_at_all() -> None:
    with serving(auth="token") as server:
        headers = {"Origin": FRIEND} | PREFLIGHT | bearer(server.token)
        with server.request("OPTIONS", "/rpc", headers=headers) as response:
            assert response.status == 403
            assert response.headers["Access-Control-Allow-Origin"] is None
