"""The rate limit over HTTP and WebSocket, and its token bucket."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest
from network import ANSWER_S, Server, serving
from raw_peer import RawPeer, call_of
from websockets.sync.client import ClientConnection, connect

from plexus.token_bucket import TokenBucket
from substrate.security.exposure import is_local
from substrate.security.rate_limit import MAX_BUCKETS, Buckets

ECHO = call_of("demo.echo", ["x"])


class Clock:
    """A clock that a test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def settings(burst: int, per_s: float, local: str = "on") -> dict[str, str]:
    return {
        "SUBSTRATE_LIMITS__RATE_BURST": str(burst),
        "SUBSTRATE_LIMITS__RATE_PER_S": str(per_s),
        "SUBSTRATE_RATE_LOCAL": local,
    }


def post(server: Server, message: Any = ECHO) -> tuple[int, http.client.HTTPMessage, Any]:
    with RawPeer(server.port) as peer:
        peer.post(message)
        status, headers, body = peer.response()
        return status, headers, json.loads(body)


@pytest.mark.limit("rate_burst", "at", "past", "after")
def test_requests_past_the_burst_are_refused_until_there_is_room_again() -> None:
    with serving(settings=settings(5, 1)) as server:
        assert [post(server)[0] for _ in range(5)] == [200] * 5
        status, headers, refused = post(server)
        assert status == 429
        assert refused["id"] is None
        error = refused["error"]
        assert (error["code"], error["message"]) == (-32003, "rate limit exceeded")
        assert error["data"]["limit"] == 1
        assert 0 < error["data"]["retry_after_s"] <= 1
        assert headers["Retry-After"] == "1"
        time.sleep(error["data"]["retry_after_s"] + 0.05)
        assert post(server)[0] == 200


def receive(peer: ClientConnection) -> Any:
    """Return the next message that is not an item of a run."""
    while "method" in (message := json.loads(peer.recv(timeout=ANSWER_S))):
        pass
    return message


def test_messages_of_a_websocket_are_refused_by_their_ids() -> None:
    with serving(settings=settings(4, 0.2)) as server, connect(server.ws) as peer:
        for number in range(3):  # the upgrade counts as a request
            peer.send(json.dumps(ECHO | {"id": number}))
            assert receive(peer)["id"] == number
        peer.send(json.dumps(ECHO | {"id": "late"}))
        refused = receive(peer)
        assert (refused["id"], refused["error"]["code"]) == ("late", -32003)
        assert refused["error"]["data"]["retry_after_s"] > 0
        peer.send(json.dumps({"jsonrpc": "2.0", "method": "demo.echo", "params": ["x"]}))
        peer.send(json.dumps([ECHO | {"id": 8}, ECHO | {"id": 9}]))
        assert [answer["id"] for answer in receive(peer)] == [8, 9]


@pytest.mark.parametrize("over", ["http", "websocket"])
def test_a_batch_is_paid_for_like_as_many_requests(over: str) -> None:
    batch = [ECHO | {"id": number} for number in range(5)]
    with serving(settings=settings(4, 0.1)) as server:
        if over == "http":
            assert len(post(server, batch)[2]) == 5
        else:
            with connect(server.ws) as peer:
                peer.send(json.dumps(batch))
                assert len(receive(peer)) == 5
        status, headers, _ = post(server)
        assert status == 429
        assert int(headers["Retry-After"]) >= 20  # two tokens are owed, and one more is needed


def test_clients_on_this_machine_have_no_rate_limit_unless_configured() -> None:
    with serving(settings=settings(2, 0.1, "off")) as server:
        assert [post(server)[0] for _ in range(20)] == [200] * 20


@pytest.mark.limit("rate_per_s", "at", "past", "after")
def test_a_bucket_grants_its_rate_indefinitely() -> None:
    clock = Clock()
    bucket = TokenBucket(burst=10, per_s=4, now=clock.now)
    assert [bucket.take(clock.now) for _ in range(10)] == [0.0] * 10
    granted = refused = 0
    for _ in range(100):  # at the rate, and past it at the same time
        clock.now += 0.25
        granted += bucket.take(clock.now) == 0
        refused += bucket.take(clock.now) == pytest.approx(0.25)
    assert (granted, refused) == (100, 100)
    clock.now += 3600
    assert [bucket.take(clock.now) for _ in range(11)] == [0.0] * 10 + [pytest.approx(0.25)]


def test_what_is_owed_is_paid_before_anything_is_granted() -> None:
    clock = Clock()
    bucket = TokenBucket(burst=2, per_s=1, now=clock.now)
    bucket.charge(5)
    assert bucket.take(clock.now) == pytest.approx(4)
    clock.now += 4
    assert bucket.take(clock.now) == 0


def test_each_principal_at_each_address_has_a_bucket_of_its_own() -> None:
    buckets = Buckets(1, 1)
    assert buckets.get("a", "10.0.0.1", 0.0).take(0.0) == 0
    assert buckets.get("a", "10.0.0.1", 0.0).take(0.0) > 0
    assert buckets.get("b", "10.0.0.1", 0.0).take(0.0) == 0
    assert buckets.get("a", "10.0.0.2", 0.0).take(0.0) == 0


def test_the_number_of_remembered_clients_is_limited_and_the_newest_stay() -> None:
    buckets = Buckets(1, 1)
    mine = buckets.get("me", "10.0.0.1", 0.0)
    for number in range(3 * MAX_BUCKETS):
        buckets.get("others", str(number), 0.0)
        assert buckets.get("me", "10.0.0.1", 0.0) is mine
    assert len(buckets) == MAX_BUCKETS


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
        ("127.0.0.1.evil", False),
        ("", False),
    ],
)
def test_only_addresses_of_this_machine_are_local(address: str, local: bool) -> None:
    assert is_local(address) is local
