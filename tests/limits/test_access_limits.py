"""Limits of browser sessions and tickets: at the limit, past it, and after it is freed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from child_processes import limit_settings
from mcp_network import wait_until
from network import ANSWER_S, Server, bearer, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from substrate.security.tokens import TokenFile


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own tokens and sessions."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@contextmanager
def limited(**limits: float) -> Iterator[Server]:
    """Run a server that requires a token, with these limits."""
    with serving(settings=limit_settings(**limits), auth="token") as server:
        yield server


def post(server: Server, path: str, secret: str) -> tuple[int, Any]:
    with server.request("POST", path, {}, bearer(secret)) as response:
        return response.status, json.loads(response.read())


def start_session(server: Server, token: str) -> str:
    status, answer = post(server, "/session", token)
    assert status == 200, answer
    return str(answer["session"])


def statuses(server: Server, *secrets: str) -> list[int]:
    found = []
    for secret in secrets:
        with server.call("health.check", **bearer(secret)) as response:
            found.append(response.status)
    return found


def opens(server: Server, ticket: str) -> bool:
    """Whether a ticket opens a WebSocket."""
    with connect(f"{server.ws}?ticket={ticket}") as peer:
        try:
            peer.send('{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}')
            return "result" in json.loads(peer.recv(timeout=ANSWER_S))
        except ConnectionClosed:
            return False


@pytest.mark.limit("sessions_per_principal", "at", "past", "after")
def test_past_its_limit_a_principal_loses_the_least_recently_used_session() -> None:
    with limited(sessions_per_principal=2) as server:
        other = start_session(server, TokenFile().add("other", None))
        first, second = start_session(server, server.token), start_session(server, server.token)
        assert statuses(server, first, second) == [200, 200]
        third = start_session(server, server.token)
        assert statuses(server, first, second, third, other) == [401, 200, 200, 200]
        assert server.status("DELETE", "/session", bearer(second)) == 204
        fourth = start_session(server, server.token)
        assert statuses(server, third, fourth, other) == [200, 200, 200]


@pytest.mark.limit("sessions", "at", "past", "after")
def test_past_the_total_limit_no_session_of_another_principal_ends() -> None:
    with limited(sessions=2) as server:
        ada, bob, eve = (TokenFile().add(name, None) for name in ("ada", "bob", "eve"))
        of_ada, of_bob = start_session(server, ada), start_session(server, bob)
        assert statuses(server, of_ada, of_bob) == [200, 200]
        status, answer = post(server, "/session", eve)
        assert (status, answer["limit"]) == (429, 2)
        assert statuses(server, of_ada, of_bob) == [200, 200]
        newer = start_session(server, ada)
        assert statuses(server, of_ada, of_bob, newer) == [401, 200, 200]
        assert server.status("DELETE", "/session", bearer(newer)) == 204
        assert statuses(server, start_session(server, eve), of_bob) == [200, 200]


@pytest.mark.limit("session_s", "at", "past", "after")
def test_a_session_ends_in_the_end_though_it_is_used() -> None:
    with limited(session_s=2.0) as server:
        secret = start_session(server, server.token)
        assert statuses(server, secret) == [200]
        wait_until(lambda: statuses(server, secret) == [401])
        assert statuses(server, start_session(server, server.token)) == [200]


@pytest.mark.limit("session_idle_s", "at", "past", "after")
def test_a_session_that_is_not_used_ends() -> None:
    with limited(session_idle_s=2.0) as server:
        used, unused = start_session(server, server.token), start_session(server, server.token)

        started = newest_use()

        def is_time_over() -> bool:
            """Whether the session has expired by the server's clock, although it is used often."""
            return statuses(server, used) == [200] and newest_use() > started + 2.0

        wait_until(is_time_over)
        assert statuses(server, used, unused) == [200, 401]
        assert statuses(server, start_session(server, server.token)) == [200]


def newest_use() -> float:
    """Return the time of the last use of any session, as stored by the server."""
    content = json.loads(TokenFile().path.with_name("sessions.json").read_text())
    return max(float(each["used"]) for each in content["sessions"])


@pytest.mark.limit("tickets_per_credential", "at", "past", "after")
def test_the_unused_tickets_of_a_credential_are_limited() -> None:
    with limited(tickets_per_credential=2) as server:
        tickets = [post(server, "/tickets", server.token)[1]["ticket"] for _ in range(2)]
        status, answer = post(server, "/tickets", server.token)
        assert (status, answer["limit"]) == (429, 2)
        # Another credential has its own limit, even of the same principal.
        assert post(server, "/tickets", start_session(server, server.token))[0] == 200
        assert opens(server, tickets[0])
        assert post(server, "/tickets", server.token)[0] == 200
        assert opens(server, tickets[1])


@pytest.mark.limit("tickets", "at", "past", "after")
def test_the_unused_tickets_of_all_credentials_are_limited() -> None:
    with limited(tickets=2) as server:
        other = TokenFile().add("other", None)
        status, answer = post(server, "/tickets", server.token)
        assert status == 200
        assert post(server, "/tickets", other)[0] == 200
        status, refused = post(server, "/tickets", other)
        assert (status, refused["limit"]) == (429, 2)
        assert opens(server, answer["ticket"])
        assert post(server, "/tickets", other)[0] == 200


@pytest.mark.limit("ticket_s", "at", "past", "after")
def test_a_ticket_expires_and_frees_its_place() -> None:
    with limited(ticket_s=1.0, tickets_per_credential=1) as server:
        _, answer = post(server, "/tickets", server.token)
        assert answer["expires_in_s"] == 1.0
        assert opens(server, answer["ticket"])
        _, answer = post(server, "/tickets", server.token)
        # The first ticket has expired when another one is issued.
        wait_until(lambda: post(server, "/tickets", server.token)[0] == 200)
        assert not opens(server, answer["ticket"])
