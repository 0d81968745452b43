"""Tickets: valid once, for seconds, for one stream, on behalf of the requesting credential."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Server, bearer, events, serving
from starlette.types import Message, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from plexus.principal import Principal
from substrate.security.authentication import Access, Credential
from substrate.security.errors import Unauthenticated
from substrate.security.guard import Guard, allowed_names
from substrate.security.page_sessions import SessionFile
from substrate.security.tickets import accepts_ticket, pop_ticket
from substrate.security.tokens import TokenFile
from substrate.server.limits import ServerLimits

pytestmark = pytest.mark.anyio

MAIN = "the-main-token"
PORT = 4444
FRIEND = "https://app.example"


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock)


@pytest.fixture
def access(tmp_path: Path, tokens: TokenFile, clock: Clock) -> Access:
    sessions = SessionFile(tmp_path / "sessions.json", wall=clock)
    published: list[str] = []
    return Access(MAIN, tokens, sessions, port=PORT, clock=clock, publish=published.append)


async def known(access: Access, secret: str) -> Credential:
    return await access.authenticate({b"authorization": f"Bearer {secret}".encode()})


async def is_valid(access: Access, ticket: str, path: str = "/rpc") -> bool:
    try:
        await access.redeem(ticket, path)
    except Unauthenticated:
        return False
    return True


# --- what a ticket is good for -------------------------------------------------------------------


async def test_a_ticket_is_valid_once_and_stands_for_its_credential(
    access: Access, tokens: TokenFile
) -> None:
    asked = await known(access, tokens.add("phone", frozenset({"chat"})))
    ticket = await access.issue_ticket(asked)
    assert len(ticket) >= 43  # 256 bits, six in a character
    assert await access.redeem(ticket, "/rpc") == asked
    assert not await is_valid(access, ticket)
    assert not await is_valid(access, "")
    assert not await is_valid(access, MAIN)


async def test_a_ticket_is_not_a_token_and_a_token_is_not_a_ticket(access: Access) -> None:
    ticket = await access.issue_ticket(await known(access, MAIN))
    with pytest.raises(Unauthenticated):
        await known(access, ticket)
    assert not await is_valid(access, MAIN)
    assert await is_valid(access, ticket), "it was not used with that"


async def test_a_ticket_is_valid_for_seconds(access: Access, clock: Clock) -> None:
    asked = await known(access, MAIN)
    late, soon = await access.issue_ticket(asked), await access.issue_ticket(asked)
    clock.now += ServerLimits().ticket_s - 0.001
    assert await is_valid(access, soon)
    clock.now += 0.001
    assert not await is_valid(access, late)


async def test_a_ticket_for_one_path_is_refused_and_used_up_at_another(
    access: Access,
) -> None:
    asked = await known(access, MAIN)
    for path in ("/rpc", "/mcp", "/runs/7/events"):
        ticket = await access.issue_ticket(asked, path)
        assert await is_valid(access, ticket, path)
        ticket = await access.issue_ticket(asked, path)
        assert not await is_valid(access, ticket, "/runs/8/events")
        assert not await is_valid(access, ticket, path)


async def test_a_ticket_ends_with_its_credential(
    access: Access, tokens: TokenFile, clock: Clock
) -> None:
    further = await known(access, tokens.add("phone", None))
    of_further = await access.issue_ticket(further)
    tokens.revoke("phone")
    assert not await is_valid(access, of_further)

    short = await known(access, tokens.add("short", None, lifetime_s=10))
    of_short = await access.issue_ticket(short)
    clock.now += 10
    assert not await is_valid(access, of_short)

    main = await known(access, MAIN)
    secret, _ = await access.create_session(main)
    session = await known(access, secret)
    of_session, of_main = await access.issue_ticket(session), await access.issue_ticket(main)
    await access.end_session(session)
    assert not await is_valid(access, of_session)
    await access.rotate(main)
    assert not await is_valid(access, of_main)


async def test_a_ticket_is_refused_if_the_scopes_have_changed(clock: Clock) -> None:
    """An issuer may have changed them, so the page's view of its permissions is outdated."""

    class Issuer:
        metadata_paths = frozenset({"/.well-known/oauth-protected-resource"})
        scopes = frozenset({"chat"})

        async def verify(self, bearer: str) -> tuple[Principal, float]:
            return Principal(f"{bearer}@issuer", self.scopes), math.inf

        def metadata(self) -> dict[str, str]:
            return {}

        def challenge(self, scope: str | None = None, error: str | None = None) -> bytes:
            return f"Bearer {scope} {error}".encode()

    issuer = Issuer()
    limits = ServerLimits(ticket_s=1000.0)
    access = Access(MAIN, oauth=issuer, clock=clock, limits=limits)
    asked = await known(access, "jwt")
    first, second = await access.issue_ticket(asked), await access.issue_ticket(asked)
    assert (await access.redeem(first, "/rpc")).principal == Principal("jwt@issuer")
    issuer.scopes = frozenset({"chat", "bash"})
    clock.now += 61
    assert not await is_valid(access, second)


# --- where it may stand --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "ticket", "rest"),
    [
        (b"", None, b""),
        (b"after=1", None, b"after=1"),
        (b"ticket=abc", "abc", b""),
        (b"after=1&ticket=abc&x=", "abc", b"after=1&x="),
        (b"ticket=", "", b""),
        (b"ticket=a&ticket=b", "", b""),
        (b"ticket=a&ticket=a", "", b""),
        (b"xticket=a", None, b"xticket=a"),
        (b"Ticket=a", None, b"Ticket=a"),
    ],
)
def test_a_ticket_is_removed_from_the_url(query: bytes, ticket: str | None, rest: bytes) -> None:
    scope: Scope = {"type": "http", "query_string": query}
    assert pop_ticket(scope) == ticket
    assert scope["query_string"] == rest


@pytest.mark.parametrize(
    ("kind", "verb", "path", "taken"),
    [
        ("websocket", "", "/rpc", True),
        ("websocket", "", "/mcp", True),
        ("websocket", "", "/publish", False),
        ("websocket", "", "/runs/1/events", False),
        ("websocket", "", "/rpc/", False),
        ("http", "GET", "/runs/1/events", True),
        ("http", "HEAD", "/runs/1/events", False),
        ("http", "POST", "/runs/1/events", False),
        ("http", "DELETE", "/runs/1/events", False),
        ("http", "GET", "/runs/1/events/", False),
        ("http", "GET", "/runs/x/events", False),
        ("http", "GET", "/runs/\u0661/events", False),
        ("http", "GET", "/runs/1/events\n", False),
        ("http", "GET", "/rpc", False),
        ("http", "POST", "/rpc", False),
        ("http", "GET", "/mcp", False),
        ("http", "GET", "/sse", False),
        ("http", "POST", "/session", False),
        ("http", "POST", "/tickets", False),
        ("http", "GET", "/metrics", False),
    ],
)
async def test_a_ticket_is_accepted_only_where_a_stream_is_opened(
    access: Access, kind: str, verb: str, path: str, taken: bool
) -> None:
    scope: Scope = {"type": kind, "path": path, "method": verb}
    assert accepts_ticket(scope) is taken
    assert await passes_guard(access, kind, verb, path) is taken


async def passes_guard(
    access: Access, kind: str, verb: str, path: str, *headers: tuple[bytes, bytes], sent: int = 1
) -> bool:
    """Return whether a request with a new ticket passes the guard."""
    entered: list[Scope] = []

    async def app(scope: Scope, _: object, __: object) -> None:
        entered.append(scope)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        return None

    ticket = await access.issue_ticket(await known(access, MAIN))
    query = b"&".join([b"ticket=" + ticket.encode()] * sent)
    scope: Scope = {
        "type": kind,
        "path": path,
        "query_string": query,
        "headers": [
            (b"host", b"127.0.0.1:4444"),
            (b"content-type", b"application/json"),
            *headers,
        ],
        "subprotocols": [],
    }
    if kind == "http":
        scope["method"] = verb
    await Guard(app, allowed_names(PORT), access, ServerLimits())(scope, receive, send)
    assert ticket.encode() not in scope["query_string"]
    return bool(entered)


async def test_a_ticket_does_not_replace_a_wrong_token(access: Access) -> None:
    right = (b"authorization", f"Bearer {MAIN}".encode())
    wrong = (b"authorization", b"Bearer wrong")
    ide = (b"x-claude-code-ide-authorization", b"wrong")
    assert await passes_guard(access, "websocket", "", "/rpc", right)
    for headers in ((wrong,), (ide,), (right, right), (right, wrong)):
        assert not await passes_guard(access, "websocket", "", "/rpc", *headers)
    assert not await passes_guard(access, "websocket", "", "/rpc", sent=2)
    assert not await passes_guard(
        access, "websocket", "", "/rpc", (b"origin", b"http://evil.example")
    )


async def test_a_ticket_is_used_up_even_if_the_app_refuses(
    access: Access,
) -> None:
    """For example a stopping server, a rate limit, or an unknown run."""
    entered: list[Scope] = []
    answered: list[Message] = []

    async def refuse(scope: Scope, _: object, send: Send) -> None:
        entered.append(scope)
        await send({"type": "websocket.close", "code": 1013})

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        answered.append(message)

    guard = Guard(refuse, allowed_names(PORT), access, ServerLimits())
    ticket = await access.issue_ticket(await known(access, MAIN))
    query = b"ticket=" + ticket.encode()
    for code in (1013, 1008):
        headers = [(b"host", b"127.0.0.1:4444")]
        scope = {"type": "websocket", "path": "/rpc", "query_string": query, "headers": headers}
        await guard(scope | {"subprotocols": []}, receive, send)
        assert answered[-1]["code"] == code
    assert len(entered) == 1


# --- the real server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--allow-origin", FRIEND, auth="token") as running:
        yield running


def issue(server: Server, secret: str, body: object = None) -> str:
    with server.request("POST", "/tickets", body or {}, bearer(secret)) as response:
        assert response.status == 200, response.read()
        assert response.headers["Cache-Control"] == "no-store"
        answer = json.loads(response.read())
    assert set(answer) == {"ticket", "expires_in_s"}
    assert answer["expires_in_s"] == 30
    return str(answer["ticket"])


def get_hash(server: Server, path: str, query: str, origin: str | None = None) -> object:
    """Open a WebSocket with this query, and call a method."""
    url = f"ws://127.0.0.1:{server.port}{path}?{query}"
    headers = None if origin is None else {"Origin": origin}
    with connect(url, additional_headers=headers) as peer:
        peer.send('{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}')
        return json.loads(peer.recv(timeout=10))["result"]


@pytest.mark.parametrize("path", ["/rpc", "/mcp"])
@pytest.mark.parametrize("origin", [None, FRIEND])
def test_a_websocket_is_opened_with_a_ticket_once(
    server: Server, path: str, origin: str | None
) -> None:
    ticket = issue(server, server.token)
    assert get_hash(server, path, f"ticket={ticket}", origin)
    with pytest.raises(ConnectionClosed) as closed:
        get_hash(server, path, f"ticket={ticket}", origin)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert "ticket" in closed.value.rcvd.reason
    assert ticket not in closed.value.rcvd.reason


def test_a_ticket_of_a_foreign_page_is_refused(server: Server) -> None:
    ticket = issue(server, server.token)
    with pytest.raises(InvalidStatus):
        get_hash(server, "/rpc", f"ticket={ticket}", "http://evil.example")


def test_the_events_of_a_run_are_opened_with_a_ticket_and_resume(
    server: Server,
) -> None:
    headers = bearer(server.token) | {"Accept": "text/event-stream"}
    with server.call("demo.count", {"to": 5}, **headers) as response:
        seen = [event_id for event_id, _ in events(response) if event_id]
    run = seen[0].partition(":")[0]
    place = f"/runs/{run}/events"
    ticket = issue(server, server.token, {"path": place})
    with server.request("GET", f"{place}?ticket={ticket}") as response:
        assert response.status == 200
        assert [event_id for event_id, _ in events(response)] == seen
    assert server.status("GET", f"{place}?ticket={ticket}") == 401
    # With another ticket, and both ways to pass the last event.
    for query, extra in (("&after=2", {}), ("", {"Last-Event-ID": seen[1]})):
        ticket = issue(server, server.token)
        with server.request("GET", f"{place}?ticket={ticket}{query}", headers=extra) as response:
            assert [event_id for event_id, _ in events(response)] == seen[2:]


def test_a_ticket_opens_only_what_its_principal_may_see(server: Server) -> None:
    headers = bearer(server.token) | {"Accept": "text/event-stream"}
    with server.call("demo.count", {"to": 1}, **headers) as response:
        run = next(event_id for event_id, _ in events(response) if event_id).partition(":")[0]
    other = TokenFile().add("ticket-other", None)
    ticket = issue(server, other)
    assert server.status("GET", f"/runs/{run}/events?ticket={ticket}") == 404
    reads = TokenFile().add("ticket-reads", frozenset({"read"}))
    url = f"{server.ws}?ticket={issue(server, reads)}"
    with connect(url) as peer:
        call = {"method": "bash.execute", "params": {"command": "true"}}
        peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, **call}))
        assert json.loads(peer.recv(timeout=10))["error"]["data"]["scope"] == "bash"


def test_a_socket_that_was_opened_with_a_ticket_ends_with_its_token(server: Server) -> None:
    tokens = TokenFile()
    secret = tokens.add("ticket-goes", None)
    with connect(f"{server.ws}?ticket={issue(server, secret)}") as peer:
        peer.send('{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}')
        assert "result" in json.loads(peer.recv(timeout=10))
        assert json.loads(peer.recv(timeout=10))["params"]["result"]["type"] == "complete"
        tokens.revoke("ticket-goes")
        peer.send('{"jsonrpc":"2.0","id":2,"method":"plexus.hash"}')
        with pytest.raises(ConnectionClosed) as closed:
            peer.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_ticket_is_issued_neither_without_a_token_nor_for_a_ticket(server: Server) -> None:
    ticket = issue(server, server.token)
    for headers in ({}, bearer("wrong"), bearer(ticket), {"Cookie": f"ticket={ticket}"}):
        with server.request("POST", f"/tickets?ticket={ticket}", {}, headers) as response:
            assert response.status == 401
    assert server.status("GET", "/tickets", bearer(server.token)) == 405
    assert get_hash(server, "/rpc", f"ticket={ticket}"), "none of that used it up"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{}", 200),
        (b'{"path":"/runs/12/events"}', 200),
        (b'{"path":"/nowhere"}', 400),
        (b'{"path":"/rpc","x":1}', 400),
        (b'{"path":5}', 400),
        (b'{"purpose":"/rpc"}', 400),
        (b"[]", 400),
        (b'"/rpc"', 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"path":"/rpc%b"}' % (b" " * 2000), 413),
    ],
)
def test_a_ticket_request_names_one_path_that_accepts_tickets(
    server: Server, body: bytes, status: int
) -> None:
    with server.request("POST", "/tickets", body, bearer(server.token)) as response:
        assert response.status == status, response.read()
        answer = json.loads(response.read())
    assert ("ticket" in answer) == (status == 200)
    if status == 400 and body.startswith(b'{"p'):
        assert "/runs/{run}/events" in answer["error"]


def test_a_server_without_authentication_issues_tickets_too() -> None:
    """So that a web UI needs no special case."""
    with serving() as server:
        with server.request("POST", "/tickets", {}) as response:
            ticket = json.loads(response.read())["ticket"]
        assert get_hash(server, "/rpc", f"ticket={ticket}")
