"""A token that is revoked, reduced, expired or replaced ends everything that is open with it.

That is every kind of stream, every pending response, every socket, and the runs behind them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from loopback_issuer import Issuer, issuing
from mcp_network import (
    BOTH,
    JSON,
    LATEST,
    SSE,
    body_of,
    read_events,
    request,
    stateless,
    stateless_headers,
    wait_until,
)
from network import ANSWER_S, Server, bearer, serving
from raw_peer import RawPeer
from starlette.routing import BaseRoute, Route
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mcp_view.server import McpOptions
from plexus import Plexus
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access
from substrate.security.guard import Guard
from substrate.security.oauth import LEEWAY_S
from substrate.security.tokens import TokenFile
from substrate.server.app import HotRoutes, build_app

pytestmark = pytest.mark.timeout(120)

#: Nothing else ends what the tests open: their runs never end.
FOREVER: dict[str, Any] = {}
ECHO = {"text": "x"}
OWNER = "revocation-owner"
NOTIFICATION = {"jsonrpc": "2.0", "method": "demo.wait", "params": FOREVER}
#: A stream ends within a second; a busy machine may need longer to show it.
BOUND_S = 4.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(auth="token", settings={"SUBSTRATE_LIMITS__DRAIN_S": "0.5"}) as running:
        yield running


class Opened:
    """An open request, read to its end in a thread."""

    def __init__(self, read: Callable[[], str]) -> None:
        self.received = ""
        self._read = read
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.received = self._read()

    def ended(self, until: float) -> bool:
        """Wait for its end, up to this time."""
        self._thread.join(max(until - time.monotonic(), 0))
        return not self._thread.is_alive()


# --- everything that can be open ------------------------------------------------------------------


def response(server: Server, *given: Any, begun: str | None = None) -> Opened:
    """Open a response that is read to its end; it has started when this text has arrived."""
    answer = server.request(*given)
    received = ""
    while begun is not None and begun not in received:
        line = answer.readline().decode()
        assert line, received
        received += line

    def read() -> str:
        return f"{answer.status} {received}{answer.read().decode()}"

    return Opened(read)


def waiting(server: Server, *given: Any) -> Opened:
    """Open a request whose response has not started."""

    def read() -> str:
        with server.request(*given) as answer:
            return f"{answer.status} {answer.read().decode()}"

    return Opened(read)


def native_stream(server: Server, token: str) -> Opened:
    body = request("demo.wait", FOREVER)
    return response(server, "POST", "/rpc", body, {"Accept": SSE} | bearer(token), begun="waiting")


def native_answer(server: Server, token: str) -> Opened:
    body = request("demo.wait", FOREVER)
    before = set(runs(server, token, "demo.wait"))
    opened = waiting(server, "POST", "/rpc", body, {"Accept": JSON} | bearer(token))
    # start_run identifies its run as the only new one, so this one must be listed before.
    wait_until(lambda: set(runs(server, token, "demo.wait")) > before)
    return opened


def native_watch(server: Server, token: str) -> Opened:
    body = request("plexus.watch")
    return response(server, "POST", "/rpc", body, {"Accept": SSE} | bearer(token), begun="runs")


def run_events(server: Server, token: str) -> Opened:
    path = f"/runs/{start_run(server, token)}/events"
    return response(server, "GET", path, None, {"Accept": SSE} | bearer(token), begun="waiting")


def create_session(server: Server, token: str, revision: str = LATEST) -> dict[str, str]:
    params = {
        "protocolVersion": revision,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    headers = {"Accept": BOTH} | bearer(token)
    with server.request("POST", "/mcp", request("initialize", params), headers) as answer:
        session = str(answer.headers["Mcp-Session-Id"])
    headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": revision}
    message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    server.request("POST", "/mcp", message, headers).close()
    return headers


CALL = {"name": "demo.wait", "arguments": FOREVER, "_meta": {"progressToken": "t"}}


def mcp_stream(server: Server, token: str) -> Opened:
    headers = create_session(server, token)
    return response(
        server, "POST", "/mcp", request("tools/call", CALL, "asked"), headers, begun="waiting"
    )


def mcp_answer(server: Server, token: str) -> Opened:
    headers = create_session(server, token) | {"Accept": JSON}
    return waiting(server, "POST", "/mcp", request("tools/call", CALL, "asked"), headers)


def mcp_standing(server: Server, token: str) -> Opened:
    headers = create_session(server, token) | {"Accept": SSE}
    return response(server, "GET", "/mcp", None, headers, begun="id:")


def mcp_resumed(server: Server, token: str) -> Opened:
    headers = create_session(server, token)
    cut = server.request("POST", "/mcp", request("tools/call", CALL, "asked"), headers)
    first = next(read_events(cut))
    cut.close()
    headers |= {"Accept": SSE, "Last-Event-ID": str(first.id)}
    return response(server, "GET", "/mcp", None, headers, begun="waiting")


def mcp_stateless(server: Server, token: str) -> Opened:
    call = {"name": "demo.wait", "arguments": FOREVER}
    headers = stateless_headers("tools/call", "demo.wait") | bearer(token)
    return waiting(server, "POST", "/mcp", stateless("tools/call", call, "asked"), headers)


def mcp_listening(server: Server, token: str) -> Opened:
    body = stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "asked")
    headers = stateless_headers("subscriptions/listen") | bearer(token)
    return response(server, "POST", "/mcp", body, headers, begun="acknowledged")


def pair(server: Server, token: str) -> Opened:
    stream = server.request("GET", "/sse", None, {"Accept": SSE} | bearer(token))
    path = next(read_events(stream)).data
    for message in (request("initialize", INITIALIZE), request("tools/call", CALL, "asked")):
        server.request("POST", path, message, bearer(token)).close()
    events = read_events(stream)
    assert any("waiting" in event.data for event in iter(lambda: next(events), None))
    return Opened(lambda: f"200 {stream.read().decode()}")


INITIALIZE = {
    "protocolVersion": LATEST,
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def socket(path: str, *sent: Any) -> Callable[[Server, str], Opened]:
    """Open a WebSocket that sends this and then only listens."""

    def open_it(server: Server, token: str) -> Opened:
        ready = threading.Event()
        url = f"ws://127.0.0.1:{server.port}{path}"

        def read() -> str:
            received = ""
            with connect(url, additional_headers=bearer(token)) as peer:
                for message in sent:
                    peer.send(json.dumps(message))
                    peer.recv(ANSWER_S)
                ready.set()
                with suppress(ConnectionClosed):
                    while True:
                        received += str(peer.recv(ANSWER_S))
                return f"{peer.close_code} {peer.close_reason} {received}"

        opened = Opened(read)
        assert ready.wait(ANSWER_S)
        return opened

    return open_it


#: Open requests, and what they must have sent by their end: the error of the pending request, if
#: the protocol has one, or the close code of a WebSocket.
KINDS: dict[str, tuple[Callable[[Server, str], Opened], tuple[str, ...]]] = {
    "POST /rpc as a stream": (native_stream, ("200 ", "-32001", "no longer")),
    "POST /rpc as one answer": (native_answer, ("401 ", '"id":1', "-32001", "no longer")),
    "plexus.watch": (native_watch, ("200 ", "-32001", "no longer")),
    "GET /runs/N/events": (run_events, ("200 ", "-32001", "no longer")),
    "POST /mcp as a stream": (mcp_stream, ("200 ", '"id":"asked"', "-31001", "no longer")),
    "POST /mcp as one answer": (mcp_answer, ("401 ", '"id":"asked"', "-31001", "no longer")),
    "GET /mcp": (mcp_standing, ("200 ",)),
    "GET /mcp with Last-Event-ID": (mcp_resumed, ("200 ", '"id":"asked"', "-31001", "no longer")),
    "POST /mcp without a session": (mcp_stateless, ("200 ", '"id":"asked"', "-31001")),
    "subscriptions/listen": (mcp_listening, ("200 ", '"id":"asked"', "-31001", "no longer")),
    "GET /sse": (pair, ("200 ", '"id":"asked"', "-31001", "no longer")),
    "WebSocket /rpc, silent": (socket("/rpc"), ("1008 ", "no longer")),
    "WebSocket /rpc": (
        socket("/rpc", request("demo.wait", FOREVER)),
        ("1008 ", "-32001", "no longer"),
    ),
    "WebSocket /mcp": (socket("/mcp", request("initialize", INITIALIZE)), ("1008 ", "no longer")),
}


def runs(server: Server, token: str, method: str) -> dict[int, str]:
    """Return the states of all runs of a method, by number, without those of other servers."""
    answer = body_of(server.call("plexus.runs", {"limit": 1000}, **bearer(token)))
    found = answer["result"]["terminal"]["result"]
    return {
        run["run"]: run["state"]
        for run in found
        if run["method"] == method and "process" not in run
    }


# --- what ends a credential -----------------------------------------------------------------------


@contextmanager
def tokens_of(principal: str, **more: Any) -> Iterator[tuple[TokenFile, str, str]]:
    """Return a token to revoke, and another of the same principal to observe with."""
    file = TokenFile()
    lost = file.add("revocation-lost", None, principal=principal, **more)
    kept = file.add("revocation-kept", None, principal=principal)
    try:
        yield file, lost, kept
    finally:
        for name in ("revocation-lost", "revocation-kept"):
            file.revoke(name)


def reduce_scopes(file: TokenFile) -> None:
    """Remove scopes from a token, as an editor would."""
    content = json.loads(file.path.read_text())
    for entry in content["tokens"]:
        if entry["name"] == "revocation-lost":
            entry["scopes"] = ["read"]
    file.path.write_text(json.dumps(content))


def check_all_ended(server: Server, opened: dict[str, Opened], kept: str, since: float) -> None:
    """Check that everything ended with the reason, and that no run continues."""
    late = [kind for kind, each in opened.items() if not each.ended(since + BOUND_S)]
    assert not late, f"still open: {late}"
    for kind, each in opened.items():
        missing = [part for part in KINDS[kind][1] if part not in each.received]
        assert not missing, f"{kind} ended without {missing}: {each.received}"
    wait_until(lambda: set(runs(server, kept, "demo.wait").values()) == {"cancelled"})


def open_everything(server: Server, token: str) -> dict[str, Opened]:
    return {kind: open_it(server, token) for kind, (open_it, _) in KINDS.items()}


def test_revoking_a_token_ends_everything_that_is_open_with_it(server: Server) -> None:
    with tokens_of("local") as (file, lost, kept):
        opened = open_everything(server, lost)
        bystander = native_stream(server, kept)
        file.revoke("revocation-lost")
        since = time.monotonic()
        late = [kind for kind, each in opened.items() if not each.ended(since + BOUND_S)]
        assert not late
        assert not bystander.ended(time.monotonic() + 1.0)
        states = list(runs(server, kept, "demo.wait").values())
        assert states.count("running") == 1
        file.revoke("revocation-kept")
        assert bystander.ended(time.monotonic() + BOUND_S)
        with_server = server.token
        check_all_ended(server, opened, with_server, since)


def test_taking_scopes_from_a_token_ends_everything_that_is_open_with_it(server: Server) -> None:
    with tokens_of("local") as (file, lost, kept):
        opened = open_everything(server, lost)
        reduce_scopes(file)
        check_all_ended(server, opened, kept, time.monotonic())
        # The token itself is still good, for less.
        assert server.call("demo.echo", {"text": "x"}, **bearer(lost)).status == 200


def test_a_token_that_expires_ends_everything_that_is_open_with_it(server: Server) -> None:
    lifetime_s = 8.0
    began = time.monotonic()
    with tokens_of("local", lifetime_s=lifetime_s) as (_, lost, kept):
        opened = open_everything(server, lost)
        assert time.monotonic() < began + lifetime_s, "opening took too long to test anything"
        check_all_ended(server, opened, kept, began + lifetime_s)


def test_rotating_the_servers_token_ends_everything_that_is_open_with_it(server: Server) -> None:
    old = server.token
    opened = open_everything(server, old)
    with server.request("POST", "/token/rotate", {}, bearer(old)) as answer:
        assert answer.status == 200
    check_all_ended(server, opened, server.token, time.monotonic())


def test_every_route_is_tested_here_or_responds_immediately() -> None:
    app = build_app(hub := Plexus(), 1, make_mcp_server(hub, McpOptions()), access=Access("x"))
    assert isinstance(vars(app)["_app"], Guard)
    at_once = {"/", "/page/{name:path}", "/session", "/token/rotate", "/metrics", "/messages"}
    at_once |= {"/.well-known/oauth-protected-resource{path:path}"}
    at_once |= {"/session/proof", "/tickets"}
    ended = {"/rpc", "/mcp", "/sse", "/runs/{run}/events"}
    inner: Any = app
    while not isinstance(inner, HotRoutes):
        inner = vars(inner)["_app"]
    found: list[BaseRoute] = vars(inner.app)["routes"]
    paths = {route.path for route in found if isinstance(route, Route)}
    assert paths | {path for _, path in inner.endpoints} == at_once | ended


@pytest.mark.parametrize("path", ["/rpc", "/mcp"])
def test_every_request_of_a_batch_that_waits_gets_the_error(server: Server, path: str) -> None:
    with tokens_of(f"{OWNER}-batch-{path[1:]}") as (file, lost, kept):
        headers = bearer(lost)
        batch: list[Any] = [request("demo.wait", FOREVER, number) for number in ("a", "b")]
        batch.append(request("demo.echo", {"text": "x"}, "c"))
        if path == "/mcp":
            headers = create_session(server, lost, "2025-03-26")
            calls = [("a", "demo.wait", {}), ("b", "demo.wait", {}), ("c", "demo.echo", ECHO)]
            batch = [
                request("tools/call", {"name": name, "arguments": arguments}, number)
                for number, name, arguments in calls
            ]
        opened = waiting(server, "POST", path, batch, headers | {"Accept": JSON})
        wait_until(lambda: len(runs(server, kept, "demo.wait")) == 2)
        file.revoke("revocation-lost")
        assert opened.ended(time.monotonic() + BOUND_S)
        status, _, body = opened.received.partition(" ")
        answers = {answer["id"]: answer for answer in json.loads(body)}
        assert status == "401"
        assert {number: "error" in answer for number, answer in answers.items()} == {
            "a": True,
            "b": True,
            "c": False,
        }


# --- tokens of an issuer --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        running.publish()
        yield running


@pytest.fixture(scope="module")
def trusting(issuer: Issuer) -> Iterator[Server]:
    settings = {"SUBSTRATE_OAUTH_ISSUER": issuer.url, "SUBSTRATE_LIMITS__DRAIN_S": "0.5"}
    with serving(auth="token", settings=settings) as running:
        yield running


def issued(issuer: Issuer, server: Server, lives_s: int, scope: str = "demo") -> str:
    """Return a token that expires after this many seconds."""
    ends = int(time.time()) + lives_s - LEEWAY_S
    audience = f"http://127.0.0.1:{server.port}/mcp"
    return issuer.sign(issuer.claims(audience, scope, exp=ends, iat=0, nbf=0, client_id="robot"))


def test_an_oauth_token_that_expires_ends_everything_that_is_open_with_it(
    issuer: Issuer, trusting: Server
) -> None:
    lifetime_s = 8
    began = time.monotonic()
    token = issued(issuer, trusting, lifetime_s)
    opened = open_everything(trusting, token)
    assert time.monotonic() < began + lifetime_s, "opening took too long to test anything"
    late = [kind for kind, each in opened.items() if not each.ended(began + lifetime_s + BOUND_S)]
    assert not late
    looking = issued(issuer, trusting, 60)
    check_all_ended(trusting, opened, looking, began + lifetime_s)


def test_a_client_that_refreshes_its_token_resumes(issuer: Issuer, trusting: Server) -> None:
    old = issued(issuer, trusting, 4)
    headers = create_session(trusting, old)
    cut = trusting.request("POST", "/mcp", request("tools/call", CALL, "asked"), headers)
    events = read_events(cut)
    last = next(events)
    new = bearer(issued(issuer, trusting, 60))
    with trusting.request("POST", "/mcp", request("ping"), headers | new) as answer:
        assert answer.status == 200
    for event in events:  # to its end, which comes with the end of the old token
        assert "error" not in event.data
        last = event
    again = headers | new | {"Accept": SSE, "Last-Event-ID": str(last.id)}
    with trusting.request("GET", "/mcp", None, again) as answer:
        assert answer.status == 200
        states = runs(trusting, new["Authorization"].removeprefix("Bearer "), "demo.wait")
        assert next(iter(states.values())) == "running"
        # One with fewer scopes has no such session.
        less = headers | bearer(issued(issuer, trusting, 60, "read"))
        assert trusting.status("DELETE", "/mcp", less) == 404
        assert trusting.status("DELETE", "/mcp", headers | new) == 204


# --- runs without a stream ------------------------------------------------------------------------


def test_runs_without_a_reader_are_cancelled_with_their_token(server: Server) -> None:
    with tokens_of(OWNER) as (file, lost, kept):
        # A notification, which is never answered.
        server.request("POST", "/rpc", NOTIFICATION, bearer(lost)).close()
        # A stream that was cut off, and waits for its client to come back.
        cut = server.request(
            "POST", "/rpc", request("demo.wait", FOREVER), {"Accept": SSE} | bearer(lost)
        )
        next(read_events(cut))
        cut.close()
        # The same in a session, and a task, which is kept by promise.
        headers = create_session(server, lost)
        cut = server.request("POST", "/mcp", request("tools/call", CALL), headers)
        next(read_events(cut))
        cut.close()
        task = request("tools/call", {"name": "demo.wait", "arguments": {}, "task": {}}, 2)
        server.request("POST", "/mcp", task, headers).close()
        wait_until(lambda: list(runs(server, kept, "demo.wait").values()) == ["running"] * 4)
        file.revoke("revocation-lost")
        wait_until(lambda: set(runs(server, kept, "demo.wait").values()) == {"cancelled"})


def start_run(server: Server, token: str) -> int:
    """Start a run with this token without a reader."""
    before = set(runs(server, token, "demo.wait"))
    server.request("POST", "/rpc", NOTIFICATION, bearer(token)).close()
    wait_until(lambda: set(runs(server, token, "demo.wait")) > before)
    [run] = set(runs(server, token, "demo.wait")) - before
    return run


def test_following_the_run_of_another_token_ends_only_with_the_followers_token(
    server: Server,
) -> None:
    with tokens_of(OWNER + "-follows") as (file, lost, kept):
        theirs, mine = start_run(server, lost), start_run(server, kept)

        def follow(run: int, token: str) -> Opened:
            headers = {"Accept": SSE} | bearer(token)
            return response(server, "GET", f"/runs/{run}/events", None, headers, begun="waiting")

        lost_follows, kept_follows = follow(mine, lost), follow(theirs, kept)
        file.revoke("revocation-lost")
        until = time.monotonic() + BOUND_S
        assert lost_follows.ended(until)
        assert "no longer" in lost_follows.received
        assert runs(server, kept, "demo.wait") == {theirs: "cancelled", mine: "running"}
        assert kept_follows.ended(until)
        assert '"cancelled"' in kept_follows.received


def test_a_body_that_is_completed_after_its_token_ended_starts_nothing(server: Server) -> None:
    with tokens_of(OWNER + "-slow") as (file, lost, kept):
        body = json.dumps(NOTIFICATION).encode()
        head = (
            f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Authorization: Bearer {lost}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with RawPeer(server.port) as peer:
            peer.send(head.encode() + body[:-1])
            # The guard has passed the head on when another request of the same client is answered.
            assert server.call("demo.echo", {"text": "x"}, **bearer(lost)).status == 200
            time.sleep(0.3)  # a body that arrives quickly is not checked again
            file.revoke("revocation-lost")
            peer.send(body[-1:])
            assert peer.read_until(b"\r\n").split()[1] in (b"400", b"401")
        assert runs(server, kept, "demo.wait") == {}


def test_a_client_that_does_not_read_is_disconnected_with_its_token(server: Server) -> None:
    with tokens_of(OWNER + "-stuck") as (file, lost, kept):
        body = json.dumps(request("demo.flood", {"size": 10_000})).encode()
        head = (
            f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Authorization: Bearer {lost}\r\nContent-Type: application/json\r\n"
            f"Accept: {SSE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with RawPeer(server.port, receive_bytes=4096) as stuck:
            stuck.send(head.encode() + body)
            wait_until(lambda: "running" in runs(server, kept, "demo.flood").values())
            file.revoke("revocation-lost")
            wait_until(lambda: set(runs(server, kept, "demo.flood").values()) == {"cancelled"})


def test_a_socket_that_does_not_read_is_closed_with_its_token(server: Server) -> None:
    with (
        tokens_of(OWNER + "-deaf") as (file, lost, kept),
        RawPeer(server.port, receive_bytes=4096) as stuck,
    ):
        stuck.send(
            f"GET /rpc HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
            f"Authorization: Bearer {lost}\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert b" 101 " in stuck.read_until(b"\r\n\r\n")
        stuck.send_json(request("demo.flood", {"size": 10_000}))
        wait_until(lambda: "running" in runs(server, kept, "demo.flood").values())
        file.revoke("revocation-lost")
        wait_until(lambda: set(runs(server, kept, "demo.flood").values()) == {"cancelled"})
