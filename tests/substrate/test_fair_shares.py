"""Fair shares over real sockets: one principal uses as much as it can.

Another principal still gets its share, and the operator can always inspect and cancel runs.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from child_processes import limit_settings
from mcp_network import BOTH, LATEST, SSE, request, wait_until
from network import ANSWER_S, Server, bearer, serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from substrate.security.tokens import TokenFile

pytestmark = pytest.mark.timeout(120)

BUSY = -32003
MANY = 20
WATCHES = 8
#: Small pools that are soon exhausted. A sixteenth of each is reserved for the operator.
LIMITS = {
    "runs_in_flight": 64,
    "watches_in_flight": 64,
    "connection_watches": WATCHES,
    "calls_in_flight": 32,
    "finished_runs": 32,
    "all_subscriptions": 64,
}


@contextlib.contextmanager
def guarded(**limits: int) -> Iterator[Server]:
    """Run a server that requires tokens, with these limits."""
    with serving(settings=limit_settings(**limits), auth="token") as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with guarded(**LIMITS) as running:
        yield running


NAMES = itertools.count()


@pytest.fixture
def tokens() -> Iterator[Callable[[], str]]:
    """Create tokens for separate principals. They are revoked after the test."""
    file = TokenFile()
    made: list[str] = []

    def make() -> str:
        name = f"client{next(NAMES)}"
        made.append(name)
        return file.add(name, None)

    yield make
    for name in made:
        file.revoke(name)


class Peer:
    """A WebSocket of a principal."""

    def __init__(self, server: Server, token: str, path: str = "/rpc") -> None:
        url = f"ws://127.0.0.1:{server.port}{path}"
        self._open = contextlib.ExitStack()
        self.socket = self._open.enter_context(connect(url, additional_headers=bearer(token)))
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self._open.close()

    def ask(self, method: str, params: Any = None) -> Any:
        """Return the reply to a request; other messages are skipped."""
        number = next(self._numbers)
        self.socket.send(json.dumps(request(method, params or {}, number)))
        while (message := json.loads(self.socket.recv(timeout=ANSWER_S))).get("id") != number:
            pass
        return message

    def end_of(self, method: str, params: Any = None) -> Any:
        """Return the last event of a call."""
        reply = self.ask(method, params)
        assert "result" in reply, reply
        while True:
            message = json.loads(self.socket.recv(timeout=ANSWER_S))
            params = message.get("params", {})
            if params.get("subscription") == reply["result"]:
                event = params["result"]
                if event["type"] in ("complete", "result", "error", "cancelled"):
                    return event


@pytest.fixture
def open_peer(server: Server) -> Iterator[Callable[..., Peer]]:
    """Open WebSockets. After the test they are closed, and the server has noticed."""
    peers: list[Peer] = []

    def open_(token: str, path: str = "/rpc") -> Peer:
        peers.append(Peer(server, token, path))
        return peers[-1]

    yield open_
    for peer in peers:
        peer.close()
    operator = bearer(server.token)
    wait_until(lambda: running(server, operator) == 0)


def post(server: Server, token: str, method: str, params: Any = None) -> Any:
    """Return the answer to one call over HTTP."""
    message = request(method, params or {})
    with server.request("POST", "/rpc", message, bearer(token)) as response:
        return json.loads(response.read())


def running(server: Server, headers: dict[str, str]) -> int:
    """Return how many runs of all principals are in progress, watches included."""
    with server.request("GET", "/metrics", headers=headers) as response:
        lines = response.read().decode().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("substrate_runs_in_flight ")]
    return int(float(value))


def flood(peer: Peer, method: str, params: Any = None) -> tuple[list[int], Any]:
    """Call until a call is refused. Returns the runs and the refusal."""
    started: list[int] = []
    while "result" in (reply := peer.ask(method, params)):
        started.append(reply["result"])
    assert reply["error"]["code"] == BUSY, reply
    return started, reply["error"]


def assert_operator_is_in_control(server: Server) -> None:
    """Check that the operator can inspect the server, start a run and cancel it."""
    peer = Peer(server, server.token)
    with contextlib.closing(peer):
        run = peer.ask("demo.wait")["result"]
        for method in ("plexus.runs", "plexus.schema", "health.check"):
            assert peer.end_of(method)["type"] in ("complete", "result"), method
        question = peer.ask("demo.delete")["result"]
        wait_until(lambda: "error" not in answered(peer, question))
        assert peer.end_of("plexus.cancel", {"run": run})["result"] is True
    assert "result" in post(server, server.token, "health.check")


def answered(peer: Peer, run: int) -> Any:
    """Answer the question of a run."""
    return peer.ask("plexus.respond", {"run": run, "request": "1", "answer": False})


# --- runs under way ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["demo.wait", "health.watch"])
def test_a_principal_that_floods_leaves_others_their_share_and_the_operator_in_control(
    server: Server,
    tokens: Callable[[], str],
    open_peer: Callable[..., Peer],
    method: str,
) -> None:
    attacker, other = tokens(), tokens()
    held = 0
    for _ in range(10):
        held += len(flood(open_peer(attacker), method)[0])
    assert 40 <= held < 60, "alone it gets nearly everything"
    peer = open_peer(other)
    assert peer.end_of("demo.echo", ["x"])["type"] == "complete"
    assert flood(peer, method)[0], "another gets some"
    assert_operator_is_in_control(server)


@pytest.mark.parametrize("method", ["demo.wait", "health.watch"])
def test_many_principals_together_cannot_lock_the_operator_out(
    server: Server, tokens: Callable[[], str], open_peer: Callable[..., Peer], method: str
) -> None:
    for _ in range(MANY):
        flood(open_peer(tokens()), method)
        flood(open_peer(tokens()), method)
    assert_operator_is_in_control(server)


def test_standing_watches_leave_a_connection_and_its_principal_all_other_calls(
    tokens: Callable[[], str], open_peer: Callable[..., Peer]
) -> None:
    token = tokens()
    peer = open_peer(token)
    started, error = flood(peer, "health.watch", {"interval": 60})
    assert len(started) == WATCHES
    assert error["data"] == {"limit": WATCHES, "name": "connection_watches"}
    assert "standing watches" in error["message"]
    assert peer.end_of("demo.echo", ["x"])["type"] == "complete"
    assert peer.ask("plexus.unsubscribe", [started[0]])["result"] is True
    assert "result" in peer.ask("health.watch", {"interval": 60})


def test_a_principal_that_used_its_share_and_its_connection_can_still_cancel_its_runs(
    tokens: Callable[[], str], open_peer: Callable[..., Peer]
) -> None:
    token = tokens()
    first, second = open_peer(token), open_peer(token)
    started, error = flood(first, "demo.wait")
    assert (len(started), error["data"]) == (32, {"limit": 32, "name": "calls_in_flight"})
    more, error = flood(second, "demo.wait")
    assert error["data"]["name"] == "runs_in_flight"
    assert error["data"]["held"] == len(started) + len(more)
    assert "plexus.cancel" in error["message"]
    assert first.end_of("plexus.cancel", {"run": started[0]})["result"] is True
    assert second.end_of("plexus.cancel", {"run": started[1]})["result"] is True
    assert second.end_of("plexus.runs")["type"] in ("complete", "result")
    wait_until(lambda: "result" in first.ask("demo.wait"))


def test_a_call_through_plexus_call_counts_like_any_other(
    tokens: Callable[[], str], open_peer: Callable[..., Peer]
) -> None:
    token = tokens()
    held = 0
    for _ in range(5):
        started, _ = flood(open_peer(token), "plexus.call", {"method": "demo.wait", "params": {}})
        held += len(started)
    assert held < 60


# --- what has ended ------------------------------------------------------------------------------


def test_cheap_calls_of_one_principal_do_not_evict_the_runs_of_another(
    tokens: Callable[[], str],
) -> None:
    attacker, other = tokens(), tokens()
    with guarded(finished_runs=32) as server:
        mine = [post(server, other, "demo.echo", ["mine"])["result"]["run"] for _ in range(5)]
        with contextlib.closing(Peer(server, attacker)) as peer:
            for number in range(40):
                peer.end_of("demo.echo", [str(number)])
        for run in mine:
            assert "result" in post(server, other, "plexus.attach", {"run": run})


def test_inspecting_the_server_does_not_evict_finished_runs(
    tokens: Callable[[], str], open_peer: Callable[..., Peer]
) -> None:
    peer = open_peer(tokens())
    done = peer.ask("demo.echo", ["done"])["result"]
    looks = ("plexus.runs", "plexus.schema", "plexus.hash", "health.check", "approvals.pending")
    for method in looks * 20:
        peer.end_of(method)
    for method in ("health.watch", "plexus.watch"):
        for _ in range(20):
            number = peer.ask(method)["result"]
            peer.ask("plexus.unsubscribe", [number])
    assert "result" in peer.ask("plexus.attach", {"run": done})


# --- MCP -----------------------------------------------------------------------------------------


def initialize(connection: http.client.HTTPConnection, token: str) -> str:
    """Start a session and return its id."""
    params = {
        "protocolVersion": LATEST,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    headers = bearer(token) | {"Accept": BOTH, "Content-Type": "application/json"}
    body = json.dumps(request("initialize", params))
    connection.request("POST", "/mcp", body, headers)
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    return str(response.headers["Mcp-Session-Id"])


def test_many_sessions_of_one_principal_do_not_end_those_of_another(
    server: Server, tokens: Callable[[], str]
) -> None:
    attacker, other = tokens(), tokens()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
    with contextlib.closing(connection):
        mine = initialize(connection, other)
        first = initialize(connection, attacker)
        for _ in range(1100):
            initialize(connection, attacker)

    def status(token: str, session: str) -> int:
        headers = bearer(token) | {"Mcp-Session-Id": session, "Accept": BOTH}
        with server.request("POST", "/mcp", request("ping"), headers) as response:
            return response.status

    assert status(other, mine) == 200
    assert status(attacker, first) == 404


def test_subscriptions_of_one_principal_leave_some_to_others_until_released(
    tokens: Callable[[], str], open_peer: Callable[..., Peer]
) -> None:
    attacker, other = tokens(), tokens()

    def subscribe_all(peer: Peer) -> tuple[int, Any]:
        params = {"protocolVersion": LATEST, "capabilities": {}}
        assert "result" in peer.ask("initialize", params)
        for number in itertools.count():
            reply = peer.ask("resources/subscribe", {"uri": f"a://{number}"})
            if "error" in reply:
                return number, reply["error"]
        raise AssertionError("unreachable")

    greedy = open_peer(attacker, "/mcp")
    count, error = subscribe_all(greedy)
    assert count >= 48
    assert (error["code"], error["data"]["name"]) == (BUSY, "all_subscriptions")
    assert subscribe_all(open_peer(other, "/mcp"))[0] > 0
    greedy.close()
    wait_until(lambda: subscribe_all(open_peer(attacker, "/mcp"))[0] > 8)


# --- connections ---------------------------------------------------------------------------------


def sockets_of(server: Server, token: str, most: int) -> list[Peer]:
    """Open as many WebSockets as this principal is allowed."""
    opened: list[Peer] = []
    while len(opened) < most:
        refused: InvalidStatus | None = None
        try:
            opened.append(Peer(server, token))
        except InvalidStatus as error:
            refused = error
        if refused is not None:
            answer = json.loads(refused.response.body or b"")["error"]
            assert refused.response.status_code == 503
            assert (answer["code"], answer["data"]["name"]) == (BUSY, "connections")
            break
    return opened


def test_sockets_of_one_principal_leave_some_to_others_and_to_the_operator(
    tokens: Callable[[], str],
) -> None:
    attacker, other = tokens(), tokens()
    with guarded(connections=64) as server:
        opened = sockets_of(server, attacker, 70)
        assert 48 <= len(opened) < 60
        some = sockets_of(server, other, 70)
        assert some
        for _ in range(10):
            some += sockets_of(server, tokens(), 70)
        assert_operator_is_in_control(server)
        for each in opened:
            each.close()
        wait_until(lambda: bool(sockets_of(server, other, 1)))
        for each in some:
            each.close()


def test_streams_of_the_legacy_transport_are_shared_like_other_connections(
    tokens: Callable[[], str],
) -> None:
    attacker, other = tokens(), tokens()
    with guarded(connections=32) as server:

        def open_streams(token: str) -> list[http.client.HTTPResponse]:
            streams: list[http.client.HTTPResponse] = []
            while True:
                response = server.request("GET", "/sse", None, bearer(token) | {"Accept": SSE})
                if response.status != 200:
                    assert response.status == 503
                    response.close()
                    return streams
                streams.append(response)

        opened = open_streams(attacker)
        assert 20 <= len(opened) < 30
        some = open_streams(other)
        assert some
        assert_operator_is_in_control(server)
        for response in opened + some:
            response.close()


def test_idle_connections_without_a_token_lock_no_client_out(tokens: Callable[[], str]) -> None:
    other = tokens()
    with guarded(connections=16) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
        assert "result" in post(server, other, "demo.echo", ["x"])
        assert_operator_is_in_control(server)
        silent[0].settimeout(ANSWER_S)
        assert b" 503 " in silent[0].recv(4096), "the oldest made room"
        for each in silent:
            each.close()


def test_requests_without_a_token_do_not_evict_authenticated_connections(
    tokens: Callable[[], str],
) -> None:
    with guarded(connections=16) as server, contextlib.ExitStack() as opened:
        peer = opened.enter_context(contextlib.closing(Peer(server, tokens())))
        for _ in range(50):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
            opened.enter_context(contextlib.closing(connection))
            connection.request("GET", "/")
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, True)
        assert peer.end_of("demo.echo", ["x"])["type"] == "complete"


def test_a_connection_that_is_used_for_several_principals_counts_for_the_last(
    tokens: Callable[[], str],
) -> None:
    first, second = tokens(), tokens()
    with guarded(connections=16) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            for token in (first, second) * 20:
                headers = bearer(token) | {"Content-Type": "application/json"}
                body = json.dumps(request("demo.echo", ["x"]))
                connection.request("POST", "/rpc", body, headers)
                response = connection.getresponse()
                assert (response.status, bool(response.read())) == (200, True)
        sockets = sockets_of(server, first, 20)
        assert len(sockets) >= 10
        for each in sockets:
            each.close()
