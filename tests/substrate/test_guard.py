"""The guard: foreign hosts and origins, forms, and clients without a token reach no route.

This also applies to upgrades, and the body of a refused request is not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from socket import create_connection

import pytest
from network import Server, bearer, serving
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Scope
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mcp_view.server import McpOptions
from plexus import Plexus
from plexus.limits import Limits
from plexus.principal import Principal
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access
from substrate.security.guard import Guard, allowed_names
from substrate.server.app import ErrorBoundary, HotRoutes, build_app

pytestmark = pytest.mark.anyio

PORT = 4444
TOKEN = "the-token-of-this-server"
RIGHT = (b"authorization", f"Bearer {TOKEN}".encode())
HOST = (b"host", b"127.0.0.1:4444")
JSON = (b"content-type", b"application/json")
#: What needs no token.
PUBLIC = {"/", "/page/index.html", "/session/proof", "/.well-known/oauth-protected-resource"}
EVIL_HOSTS = [
    "evil.example",
    "localhost.evil.example:4444",
    "127.0.0.1.evil.example",
    "127.0.0.2:4444",
    "127.0.0.1:",
    "127.0.0.1:x",
    "127.0.0.1:999999",
    "127.1:4444",
    "localhost.:4444",
    "0.0.0.0:4444",
    "[::ffff:127.0.0.1]:4444",
    "[::2]:4444",
    "127.0.0.1:4444 ",
    "evil.example#127.0.0.1:4444",
    "evil@127.0.0.1:4444",
    "",
]
EVIL_ORIGINS = [
    "null",
    "http://evil.example",
    "https://127.0.0.1:4444",
    "http://127.0.0.1",
    "http://127.0.0.1:44444",
    "http://localhost.evil.example:4444",
    "http://127.0.0.1:4444@evil.example",
    "file://",
    "",
]
WRONG_TOKENS = [
    "",
    "Bearer",
    "Bearer ",
    f"Bearer {TOKEN[:-1]}",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN.upper()}",
    f"Bearer {'x' * len(TOKEN)}",
    f"Bearer {'x' * 10_000}",
    f"Basic {TOKEN}",
    TOKEN,
    f"Bearer {TOKEN} {TOKEN}",
    "Bearer \xff\xfe",
]

Headers = list[tuple[bytes, bytes]]


def routes() -> list[tuple[str, str]]:
    """Return every route of the app: the kind and the path."""
    app = build_app(hub := Plexus(), PORT, make_mcp_server(hub, McpOptions()), Access.open())
    assert isinstance(app, ErrorBoundary)
    inner: ASGIApp = vars(app)["_app"]
    assert isinstance(inner, Guard)
    found: list[tuple[str, str]] = []
    while not isinstance(inner, Router):
        if isinstance(inner, HotRoutes):
            found += inner.endpoints
            inner = inner.app
        else:
            inner = vars(inner)["_app"]
    for route in inner.routes:
        assert isinstance(route, Route), "a route that the tests do not know"
        path = route.path.replace("{run}", "1").replace("{path:path}", "")
        path = path.replace("{name:path}", "index.html")
        found.append(("http", path))
    return found


ROUTES = [*routes(), ("http", "/nowhere"), ("websocket", "/nowhere")]
VERBS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]
CASES = [
    (kind, verb, path) for kind, path in ROUTES for verb in (VERBS if kind == "http" else ["GET"])
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(auth="token") as running:
        yield running


class GuardedRequest:
    """One request through a guard."""

    def __init__(self) -> None:
        self.answered: list[Message] = []
        self.principal: Principal | None = None
        self.entered = False

    @property
    def status(self) -> int | None:
        """The status of the answer, or the code of the close."""
        if not self.answered:
            return None
        found: list[int | None] = [m.get("status", m.get("code")) for m in self.answered]
        return next(status for status in found if status is not None)


async def send_through_guard(
    headers: Headers,
    kind: str = "http",
    verb: str = "POST",
    path: str = "/rpc",
    query: bytes = b"",
    access: Access | None = None,
) -> GuardedRequest:
    """Send one request through a guard that requires a token."""
    asked = GuardedRequest()

    async def app(scope: Scope, __: object, ___: object) -> None:
        asked.entered = True
        asked.principal = scope.get("principal")

    async def receive() -> Message:
        answer = b"".join(message.get("body", b"") for message in asked.answered)
        assert answer, "nothing of the request may be read before it is answered"
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        asked.answered.append(message)

    scope: Scope = {"type": kind, "path": path, "headers": headers, "query_string": query}
    if kind == "http":
        scope["method"] = verb
    else:
        scope["subprotocols"] = []
    access = access or Access(TOKEN, port=PORT)
    names = allowed_names(PORT, access.hosts, access.origins)
    await Guard(app, names, access, Limits())(scope, receive, send)
    return asked


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "verb", "path"), CASES)
async def test_no_route_is_reached_by_a_foreign_host_or_origin(
    kind: str, verb: str, path: str
) -> None:
    for host in EVIL_HOSTS:
        asked = await send_through_guard([(b"host", host.encode()), RIGHT, JSON], kind, verb, path)
        assert not asked.entered, host
        assert asked.status in (421, 1008)
    for origin in EVIL_ORIGINS:
        headers = [HOST, (b"origin", origin.encode()), RIGHT, JSON]
        asked = await send_through_guard(headers, kind, verb, path)
        assert not asked.entered, origin
        assert asked.status in (403, 1008)


@pytest.mark.parametrize(("kind", "verb", "path"), CASES)
async def test_no_route_is_reached_with_a_missing_or_repeated_name(
    kind: str, verb: str, path: str
) -> None:
    origin = (b"origin", b"http://127.0.0.1:4444")
    for headers, status in (
        ([RIGHT, JSON], 421),
        ([HOST, HOST, RIGHT, JSON], 421),
        ([HOST, (b"host", b"evil.example"), RIGHT, JSON], 421),
        ([HOST, origin, origin, RIGHT, JSON], 403),
    ):
        asked = await send_through_guard(headers, kind, verb, path)
        assert not asked.entered
        assert asked.status in (status, 1008)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4444", "localhost:4444", "LOCALHOST:4444", "[::1]:4444"]
)
async def test_the_servers_own_names_are_accepted(host: str) -> None:
    origin = f"http://{host}".encode()
    for headers in ([], [(b"origin", origin)]):
        assert (await send_through_guard([(b"host", host.encode()), *headers, RIGHT, JSON])).entered


async def test_a_configured_host_is_accepted_with_and_without_the_port() -> None:
    access = Access(TOKEN, port=PORT, hosts=("Example.org", "other.example:8443"))
    for host, status in (
        ("example.org", None),
        ("example.org:4444", None),
        ("EXAMPLE.ORG", None),
        ("other.example:8443", None),
        ("other.example", 421),
        ("other.example:4444", 421),
        ("example.org:8443", 421),
        ("sub.example.org", 421),
        ("example.org.evil", 421),
    ):
        asked = await send_through_guard([(b"host", host.encode()), RIGHT, JSON], access=access)
        assert asked.status == status, host
        assert asked.entered == (status is None)


# --- forwarded ports ---------------------------------------------------------------------------

FORWARDED_HOSTS = ["127.0.0.1:9999", "localhost:9999", "LOCALHOST:1", "[::1]:9999", "localhost"]


@pytest.mark.parametrize(("kind", "verb", "path"), CASES)
async def test_a_loopback_name_with_another_port_needs_the_token(
    kind: str, verb: str, path: str
) -> None:
    public = kind == "http" and verb in ("GET", "HEAD") and path in PUBLIC
    for name in FORWARDED_HOSTS:
        host = (b"host", name.encode())
        own = (b"origin", f"http://{name.lower()}".encode())
        for origin in ([], [own]):
            asked = await send_through_guard([host, *origin, RIGHT, JSON], kind, verb, path)
            assert asked.entered, name
            wrong = (b"authorization", b"Bearer wrong")
            for credential in ([], [wrong], [RIGHT, RIGHT]):
                asked = await send_through_guard(
                    [host, *origin, *credential, JSON], kind, verb, path
                )
                assert asked.entered == public, name
                assert asked.principal is None
                if not public:
                    assert asked.status in (421, 1008)


@pytest.mark.parametrize(("kind", "verb", "path"), CASES)
async def test_a_page_on_another_local_port_reaches_nothing_through_a_forwarded_one(
    kind: str, verb: str, path: str
) -> None:
    for origin in (
        "http://localhost:6666",  # what else listens on the machine
        "http://localhost:4444",  # our own port: there it may be the port of another program
        "http://127.0.0.1:9999",  # the same port under another name is another origin
        "https://localhost:9999",
        "http://localhost",
        "null",
    ):
        headers = [(b"host", b"localhost:9999"), (b"origin", origin.encode()), JSON]
        for credential in ([], [RIGHT]):
            asked = await send_through_guard([*headers, *credential], kind, verb, path)
            assert not asked.entered, origin
            assert asked.status in (403, 1008)
    twice = [(b"host", b"localhost:9999"), (b"host", b"localhost:9999"), RIGHT, JSON]
    assert (await send_through_guard(twice, kind, verb, path)).status in (421, 1008)


async def test_without_authentication_no_other_port_is_accepted() -> None:
    for name in FORWARDED_HOSTS:
        asked = await send_through_guard(
            [(b"host", name.encode()), RIGHT, JSON], access=Access.open()
        )
        assert (asked.entered, asked.status) == (False, 421)


@pytest.mark.parametrize("host", ["localhost:9999", "tools.example", "x" * 5000, "\xff"])
async def test_the_refusal_of_a_host_names_the_flag_that_allows_it(host: str) -> None:
    asked = await send_through_guard([(b"host", host.encode("latin-1")), JSON])
    assert asked.status == 421
    body = asked.answered[1]["body"].decode()
    assert "--allow-host " in body
    assert len(body) < 500
    if "." in host or ":" in host:
        assert f"--allow-host {host}" in body
        assert ("token" in body) == host.startswith("localhost")


def test_the_session_of_a_forwarded_page_works_only_for_that_page(server: Server) -> None:
    """As behind `ssh -L 9999:localhost:PORT`: the browser knows only port 9999."""
    page = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    posts = {"Content-Type": "application/json"}
    with server.request("POST", "/session", b"", page | bearer(server.token)) as response:
        assert response.status == 200
        session = bearer(json.loads(response.read())["session"])
    message = {"jsonrpc": "2.0", "id": 1, "method": "demo.echo", "params": ["hi"]}
    with server.request("POST", "/rpc", message, page | session) as response:
        assert response.status == 200
    with server.request("POST", "/tickets", b"", page | session) as response:
        ticket = json.loads(response.read())["ticket"]
    with connect(
        f"ws://localhost:9999/rpc?ticket={ticket}",
        sock=create_connection(("127.0.0.1", server.port)),
        additional_headers={"Origin": page["Origin"]},
    ) as socket:
        socket.send(json.dumps(message))
        assert "result" in json.loads(socket.recv(timeout=10))
    for origin in ("http://localhost:6666", f"http://localhost:{server.port}"):
        stolen = page | session | posts | {"Origin": origin}
        assert server.status("POST", "/rpc", stolen) == 403


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x"],
)
async def test_a_form_post_reaches_no_route(kind: bytes) -> None:
    for _, path in ROUTES:
        asked = await send_through_guard([HOST, RIGHT, (b"content-type", kind)], path=path)
        assert (asked.entered, asked.status) == (False, 415)
        assert (await send_through_guard([HOST, RIGHT], path=path)).status == 415


@pytest.mark.parametrize("declared", [b"1048577", b"9" * 18, b"9" * 5000])
async def test_a_body_that_declares_too_many_bytes_reaches_no_route(declared: bytes) -> None:
    for _, path in ROUTES:
        asked = await send_through_guard(
            [HOST, JSON, (b"content-length", declared), RIGHT], path=path
        )
        assert (asked.entered, asked.status) == (False, 413)
        assert b'"limit":1048576' in asked.answered[1]["body"]


def test_a_client_that_is_refused_in_mid_body_still_gets_the_response(server: Server) -> None:
    """The connection is closed afterwards, which must not discard the response."""
    body = b" " * 1_000_000
    with server.request("POST", "/rpc", body, bearer("wrong")) as response:
        assert response.status == 401
        assert b"token" in response.read()
    with server.request("POST", "/rpc", body * 3, bearer(server.token)) as response:
        assert response.status == 413


# --- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "verb", "path"), CASES)
async def test_no_route_but_the_public_ones_is_reached_without_the_token(
    kind: str, verb: str, path: str
) -> None:
    public = kind == "http" and verb in ("GET", "HEAD") and path in PUBLIC
    refused: list[Headers] = [[HOST, JSON]]
    refused += [[HOST, JSON, (b"authorization", w.encode("latin-1"))] for w in WRONG_TOKENS]
    refused += [[HOST, JSON, RIGHT, RIGHT]]
    refused += [[HOST, JSON, (b"cookie", b"substrate_4444=" + TOKEN.encode())]]
    for headers in refused:
        query = f"token={TOKEN}&ticket={TOKEN}".encode()
        asked = await send_through_guard(headers, kind, verb, path, query=query)
        assert asked.entered == public, headers
        if not public:
            assert asked.status == (401 if kind == "http" else 1008)
        assert asked.principal is None
    asked = await send_through_guard([HOST, JSON, RIGHT], kind, verb, path)
    assert asked.entered
    assert asked.principal == (None if public else Principal("local"))


async def test_the_header_of_an_ide_is_accepted_too() -> None:
    ide = b"x-claude-code-ide-authorization"
    assert (await send_through_guard([HOST, JSON, (ide, TOKEN.encode())])).entered
    assert (await send_through_guard([HOST, JSON, (ide, b"wrong")])).status == 401
    assert (
        await send_through_guard([HOST, JSON, (ide, TOKEN.encode()), (ide, b"wrong")])
    ).status == 401
    # A wrong Authorization is not compensated.
    wrong = (b"authorization", b"Bearer wrong")
    assert (await send_through_guard([HOST, JSON, (ide, TOKEN.encode()), wrong])).status == 401


async def test_a_refusal_says_what_to_send() -> None:
    without, wrong = (
        await send_through_guard([HOST, JSON]),
        await send_through_guard([HOST, JSON, (b"authorization", b"Bearer x")]),
    )
    assert (b"www-authenticate", b"Bearer") in without.answered[0]["headers"]
    assert (b"www-authenticate", b'Bearer error="invalid_token"') in wrong.answered[0]["headers"]


async def test_a_websocket_without_a_token_is_accepted_only_to_send_the_reason() -> None:
    asked = await send_through_guard([HOST], "websocket")
    assert [message["type"] for message in asked.answered] == [
        "websocket.accept",
        "websocket.close",
    ]
    assert "token" in asked.answered[1]["reason"]


async def test_each_refusal_is_reported_without_secrets() -> None:
    told: list[tuple[str, str | None, int | None]] = []

    async def nothing(*_: object) -> None:
        return None

    def note(reason: str, address: str | None, status: int | None) -> None:
        told.append((reason, address, status))

    guard = Guard(nothing, allowed_names(PORT), Access(TOKEN), Limits(), note)
    wrong = (b"authorization", b"Bearer wrong")
    for headers in ([JSON], [HOST, (b"origin", b"null")], [HOST], [HOST, JSON, wrong]):
        scope = {"type": "http", "method": "POST", "path": "/rpc", "client": ("10.1.1.1", 9)}
        await guard(scope | {"headers": headers}, nothing, nothing)  # type: ignore[arg-type]
    assert told == [
        ("host", "10.1.1.1", 421),
        ("origin", "10.1.1.1", 403),
        ("content_type", "10.1.1.1", 415),
        ("token", "10.1.1.1", 401),
    ]


# --- the real server -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted({path for kind, path in ROUTES if kind == "http"}))
def test_every_route_of_the_real_server_is_guarded(server: Server, path: str) -> None:
    for verb in ("GET", "POST", "DELETE"):
        right = bearer(server.token)
        assert server.status(verb, path, right | {"Host": "evil.example"}) == 421
        assert server.status(verb, path, right | {"Origin": "http://evil.example"}) == 403
        posts = {"Content-Type": "application/json"} if verb == "POST" else {}
        if verb != "GET" or path not in PUBLIC:
            assert server.status(verb, path, posts) == 401
            assert server.status(verb, path, posts | bearer("wrong")) == 401
            assert server.status(verb, f"{path}?token={server.token}", posts) == 401


def test_the_real_server_accepts_clients_with_the_token(server: Server) -> None:
    with server.call("demo.echo", ["hi"], **bearer(server.token)) as response:
        assert response.status == 200
    with server.call("demo.echo", ["hi"]) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
@pytest.mark.parametrize("path", ["/rpc", "/mcp"])
def test_a_web_page_cannot_open_a_websocket(server: Server, origin: str, path: str) -> None:
    headers = bearer(server.token) | {"Origin": origin}
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers=headers),
    ):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("headers", [{}, bearer("wrong")])
@pytest.mark.parametrize("path", ["/rpc", "/mcp", "/nowhere"])
def test_a_websocket_without_the_token_is_closed_with_a_policy_violation(
    server: Server, path: str, headers: dict[str, str]
) -> None:
    url = f"ws://127.0.0.1:{server.port}{path}?token={server.token}"
    with connect(url, additional_headers=headers, subprotocols=["mcp"]) as socket:  # type: ignore[list-item]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_the_server_listens_on_loopback_only(server: Server) -> None:
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - not a file, and there is no async here
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    ours = [address for address in listening if address.endswith(f":{server.port:04X}")]
    assert ours == [f"0100007F:{server.port:04X}"]
