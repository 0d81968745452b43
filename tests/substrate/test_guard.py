"""The guard: foreign hosts and origins reach nothing, on no route and by no upgrade."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network import Server, serving
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Scope
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mcp_view.server import McpOptions
from plexus import Plexus
from substrate.app import HotRoute, build_app
from substrate.guard import Guard, local_names
from substrate.mcp import make_mcp_server

pytestmark = pytest.mark.anyio

PORT = 4444
ROUTES = [
    ("GET", "/"),
    ("POST", "/rpc"),
    ("GET", "/runs/1/events"),
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("GET", "/sse"),
    ("POST", "/messages"),
    ("GET", "/nowhere"),
]
EVIL_HOSTS = [
    "evil.example",
    "localhost.evil.example:4444",
    "127.0.0.1.evil.example",
    "127.0.0.1:1",
    "127.0.0.1",
    "localhost",
    "127.0.0.2:4444",
    "[::2]:4444",
    "127.0.0.1:4444 ",
    "",
]
EVIL_ORIGINS = [
    "null",
    "http://evil.example",
    "https://127.0.0.1:4444",
    "http://127.0.0.1",
    "http://127.0.0.1:44444",
    "http://localhost.evil.example:4444",
    "file://",
    "",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


async def ask(headers: list[tuple[bytes, bytes]], kind: str = "http") -> tuple[list[Message], bool]:
    """Send one request through a guard; what it answered, and whether the app was entered."""
    entered = False

    async def app(_: Scope, __: object, ___: object) -> None:
        nonlocal entered
        entered = True

    async def never() -> Message:
        raise AssertionError("nothing of the request may be read")

    answered: list[Message] = []

    async def send(message: Message) -> None:
        answered.append(message)

    scope = {"type": kind, "method": "POST", "path": "/rpc", "headers": headers}
    await Guard(app, local_names(PORT))(scope, never, send)
    return answered, entered


@pytest.mark.parametrize("host", EVIL_HOSTS)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_foreign_host_is_refused_before_anything_is_read(host: str, kind: str) -> None:
    answered, entered = await ask([(b"host", host.encode())], kind)
    assert not entered
    assert answered[0].get("status", answered[0].get("code")) in (421, 1008)


@pytest.mark.parametrize("origin", EVIL_ORIGINS)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_foreign_origin_is_refused_before_anything_is_read(origin: str, kind: str) -> None:
    headers = [(b"host", b"127.0.0.1:4444"), (b"origin", origin.encode())]
    answered, entered = await ask(headers, kind)
    assert not entered
    assert answered[0].get("status", answered[0].get("code")) in (403, 1008)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"127.0.0.1:4444"), (b"host", b"127.0.0.1:4444")],
        [
            (b"host", b"127.0.0.1:4444"),
            (b"origin", b"http://127.0.0.1:4444"),
            (b"origin", b"http://127.0.0.1:4444"),
        ],
    ],
)
async def test_a_missing_or_doubled_header_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    answered, entered = await ask(headers)
    assert not entered
    assert answered[0]["status"] in (403, 421)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4444", "localhost:4444", "LOCALHOST:4444", "[::1]:4444"]
)
async def test_the_servers_own_names_are_let_through(host: str) -> None:
    origin = f"http://{host}".encode()
    for headers in ([], [(b"origin", origin)]):
        _, entered = await ask([(b"host", host.encode()), *headers])
        assert entered


@pytest.mark.parametrize(("verb", "path"), ROUTES)
def test_every_route_of_the_real_server_is_guarded(server: Server, verb: str, path: str) -> None:
    assert server.status(verb, path, {"Host": "evil.example"}) == 421
    assert server.status(verb, path, {"Origin": "http://evil.example"}) == 403


def test_no_route_is_outside_of_the_guard() -> None:
    hub = Plexus()
    app = build_app(hub, PORT, make_mcp_server(hub, McpOptions()))
    assert isinstance(app, Guard)
    hot = vars(app)["_app"]
    assert isinstance(hot, HotRoute)
    assert isinstance(hot.app, Starlette)
    listed = {route.path for route in hot.app.routes if isinstance(route, Route | WebSocketRoute)}
    named = {path for _, path in ROUTES if path != "/nowhere"}
    assert {path.replace("{run:int}", "1") for path in listed | {hot.path}} == named


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
@pytest.mark.parametrize("path", ["/rpc", "/mcp"])
def test_a_web_page_cannot_open_a_websocket(server: Server, origin: str, path: str) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers={"Origin": origin}),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_the_server_listens_on_loopback_only(server: Server) -> None:
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - not a file, and there is no async here
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    ours = [address for address in listening if address.endswith(f":{server.port:04X}")]
    assert ours == [f"0100007F:{server.port:04X}"]
