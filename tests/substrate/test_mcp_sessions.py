"""Sessions and what they keep: every bound, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import OpenHub
from starlette.types import Message

from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions
from mcp_view.session import Session
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from substrate.driver import Connection
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access, Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.server.mcp.endpoint import McpEndpoint
from substrate.server.mcp.sessions import (
    ENDED_RETENTION_S,
    IDLE_TIMEOUT_S,
    MAX_ENDED_STREAMS,
    HttpSession,
    Sessions,
)
from substrate.server.mcp.streams import RETAINED_BYTES, EventLog
from substrate.server.peers import Peer
from substrate.server.shutdown import OpenStreams

pytestmark = pytest.mark.anyio


class Clock:
    """Time as the test has it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def settle(open_hub: OpenHub) -> Callable[[str], tuple[Connection, McpConnection]]:
    """Make a connection whose handshake has agreed on a revision."""
    hub = open_hub()
    server = make_mcp_server(hub, McpOptions())

    def make(revision: str) -> tuple[Connection, McpConnection]:
        view = McpConnection(server, Session(), change_notifications=False)
        connection = Connection(hub, view, LOCAL)
        connection.receive(wire.Request(1, "initialize", {"protocolVersion": revision}))
        connection.collect()
        return connection, view

    return make


Settle = Callable[[str], tuple[Connection, McpConnection]]


def begin(sessions: Sessions, settle: Settle, revision: str = "2025-11-25") -> HttpSession:
    session = sessions.create(settle(revision)[1].peer.session, LOCAL)
    assert session is not None
    return session


def hold(session: HttpSession, settle: Settle) -> Connection:
    """Have something open in a session."""
    connection, view = settle("2025-11-25")
    session.connections[connection] = view
    return connection


async def nothing() -> dict[str, str]:
    raise AssertionError("nobody may read here")


# --- the table -----------------------------------------------------------------------------------


async def test_a_session_belongs_to_its_principal(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(), clock=clock)
    session = begin(sessions, settle)
    assert sessions.find(session.id, LOCAL) is session
    assert sessions.find(session.id, Principal("somebody else")) is None
    assert sessions.find(b"", LOCAL) is None


async def test_the_one_that_was_idle_for_longest_makes_room(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(), 3, clock)
    first, second, third = (begin(sessions, settle) for _ in range(3))
    hold(first, settle)
    clock.now += 1
    sessions.find(second.id, LOCAL)
    fourth = begin(sessions, settle)
    assert sessions.find(third.id, LOCAL) is None
    assert all(sessions.find(session.id, LOCAL) for session in (first, second, fourth))


async def test_when_all_are_in_use_there_is_no_room(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(), 2, clock)
    for _ in range(2):
        hold(begin(sessions, settle), settle)
    assert sessions.create(Session(), LOCAL) is None


async def test_a_session_that_is_not_used_ends_and_one_with_a_stream_does_not(
    settle: Settle, clock: Clock
) -> None:
    sessions = Sessions(Limits(), clock=clock)
    unused, used, open_ = (begin(sessions, settle) for _ in range(3))
    connection = hold(open_, settle)
    clock.now += IDLE_TIMEOUT_S / 2
    sessions.find(used.id, LOCAL)
    clock.now += IDLE_TIMEOUT_S / 2 + 1
    sessions.evict_expired()
    assert sessions.find(unused.id, LOCAL) is None
    assert sessions.find(used.id, LOCAL) is used
    assert sessions.find(open_.id, LOCAL) is open_
    del open_.connections[connection]
    clock.now += IDLE_TIMEOUT_S + 1
    sessions.evict_expired()
    assert sessions.find(open_.id, LOCAL) is None


async def test_a_client_over_the_capacity_is_asked_to_retry(
    open_hub: OpenHub,
) -> None:
    hub = open_hub()
    endpoint = McpEndpoint(
        make_mcp_server(hub, McpOptions()),
        Sessions(hub.limits, 0),
        OpenStreams(),
        CredentialWatch(Access.open()),
    )
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    body = wire.encode_request(1, "initialize", params)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"method": "POST", "headers": headers, "credential": Credential(LOCAL)}
    await endpoint(scope, receive, send)
    assert sent[0]["status"] == 503
    assert dict(sent[0]["headers"])[b"retry-after"].isdigit()


ALICE, BOB = Principal("alice"), Principal("bob")


async def test_one_principal_loses_no_session_to_another_that_has_more(
    settle: Settle, clock: Clock
) -> None:
    sessions = Sessions(Limits(), 8, clock)

    def start(principal: Principal) -> HttpSession | None:
        clock.now += 1
        return sessions.create(settle("2025-11-25")[1].peer.session, principal)

    mine = [start(ALICE) for _ in range(2)]
    for _ in range(50):
        assert start(BOB) is not None
    assert all(each is not None and sessions.find(each.id, ALICE) is each for each in mine)
    for _ in range(50):  # and comes to as many as the other
        assert start(ALICE) is not None
    held = [session.principal.name for session in sessions]
    assert (held.count("alice"), held.count("bob")) == (4, 4)


async def test_a_principal_whose_sessions_are_all_in_use_ends_none_of_one_that_has_fewer(
    settle: Settle, clock: Clock
) -> None:
    sessions = Sessions(Limits(), 4, clock)
    idle = sessions.create(settle("2025-11-25")[1].peer.session, ALICE)
    assert idle is not None
    for _ in range(3):
        session = sessions.create(settle("2025-11-25")[1].peer.session, BOB)
        assert session is not None
        hold(session, settle)
    assert sessions.create(Session(), BOB) is None
    assert sessions.create(Session(), ALICE) is not None  # it replaces a session of hers
    assert sessions.find(idle.id, ALICE) is None


async def test_what_ended_streams_of_one_principal_keep_costs_no_other(
    settle: Settle, clock: Clock
) -> None:
    sessions = Sessions(Limits(finished_bytes=100_000), clock=clock)
    mine = sessions.create(settle("2025-11-25")[1].peer.session, ALICE)
    assert mine is not None
    mine.complete_stream([b"x" * 10_000])
    for _ in range(10):
        theirs = sessions.create(settle("2025-11-25")[1].peer.session, BOB)
        assert theirs is not None
        for _ in range(5):
            theirs.complete_stream([b"y" * 20_000])
    assert sessions.ended.size <= 100_000
    assert mine.find_stream(b"1:0") is not None
    sessions.close(mine)
    assert sessions.ended.holders == 1


# --- what is kept --------------------------------------------------------------------------------


async def test_streams_that_have_ended_are_kept_for_a_while(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(), clock=clock)
    session = begin(sessions, settle)
    body = session.complete_stream([b"{}", b"[]"])
    assert body == b"id: 1:0\nretry: 300\ndata: \n\nid: 1:1\ndata: {}\n\nid: 1:2\ndata: []\n\n"
    found = session.find_stream(b"1:1")
    assert found is not None
    log, seen = found
    assert isinstance(log, EventLog)
    assert (log.after(seen), log.opening(seen)) == (
        b"id: 1:2\ndata: []\n\n",
        b"id: 1:1\nretry: 300\ndata: \n\n",
    )
    assert session.find_stream(b"1:2") is None
    clock.now += ENDED_RETENTION_S + 1
    sessions.evict_expired()
    assert session.find_stream(b"1:1") is None
    assert sessions.ended.size == 0


async def test_the_number_of_ended_streams_that_are_kept_is_limited(
    settle: Settle, clock: Clock
) -> None:
    sessions = Sessions(Limits(), clock=clock)
    session, other = begin(sessions, settle), begin(sessions, settle)
    other.complete_stream([b"{}"])
    for _ in range(MAX_ENDED_STREAMS + 5):
        session.complete_stream([b"{}"])
    kept = [n for n in range(200) if session.find_stream(b"%d:0" % n) is not None]
    assert kept == list(range(7, MAX_ENDED_STREAMS + 7))
    assert other.find_stream(b"1:0") is not None  # a busy client costs only itself


async def test_what_has_ended_is_bounded_in_bytes_too(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(finished_bytes=10_000), clock=clock)
    session = begin(sessions, settle)
    for _ in range(5):
        session.complete_stream([b"x" * 4000])
    assert sessions.ended.size <= 10_000
    assert session.find_stream(b"5:0") is not None
    assert session.find_stream(b"3:0") is None
    sessions.close(session)
    assert sessions.ended.size == 0


def test_a_log_keeps_the_newest_and_always_the_last() -> None:
    log = EventLog(7, primes=False)
    assert log.opening() == b"retry: 300\n\n"
    for _ in range(5000):
        log.append([b"x" * 1000])
    assert log.size <= 2 * RETAINED_BYTES
    assert log.last == 5000
    everything = log.after(0)
    assert everything.count(b"id: ") < 2100
    assert everything.endswith(b"id: 7:5000\ndata: %b\n\n" % (b"x" * 1000))
    log.append([b"y" * 5 * RETAINED_BYTES])
    assert log.after(0) == b"id: 7:5001\ndata: %b\n\n" % (b"y" * 5 * RETAINED_BYTES)


async def test_numbers_of_streams_are_not_used_twice(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(), clock=clock)
    first, second = begin(sessions, settle), begin(sessions, settle)
    ids = [session.complete_stream([b"{}"]).split(b":")[1] for session in (first, second, first)]
    assert len(set(ids)) == 3
    assert second.find_stream(b"1:0") is None


async def test_an_ended_session_stops_what_is_open(settle: Settle, clock: Clock) -> None:
    sessions = Sessions(Limits(), clock=clock)
    session = begin(sessions, settle)
    connection, view = settle("2025-11-25")
    peer = Peer(nothing, connection, CredentialWatch(Access.open()), Credential(LOCAL))
    stream = session.open_standalone(connection, view, peer)
    assert session.has_standalone_reader
    sessions.close(session)
    assert peer.gone
    assert not session.connections
    session.detach(stream, peer)  # and leaving afterwards is no mistake
    assert stream.timer is None
