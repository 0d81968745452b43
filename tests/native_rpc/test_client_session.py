"""The client side of the protocol, without a connection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_rpc.client.limits import READING, ClientLimits, UnreadCounter
from native_rpc.client.session import Exchange, Item, Params, Session
from native_rpc.errors import CODES, ConnectionLost, ProtocolError, RunCancelled, error_of_reply
from plexus import errors
from plexus.errors import Busy, Failed, InvalidParams, NotFound, PlexusError, TooBig, UnknownMethod
from plexus.rpc import wire

COMPLETE = {"type": "complete"}


def text(value: object) -> dict[str, Any]:
    return {"type": "content", "text": str(value)}


class Wire:
    """A session with one call, and the messages it would send."""

    def __init__(
        self, method: str = "count.up", params: Params = None, *, key: str | None = "k"
    ) -> None:
        self.unread = UnreadCounter(ClientLimits(unread_items=8, unread_bytes=1000))
        self.exchange = Exchange(
            method, params if params is not None else {}, self.unread, new_key=key
        )
        self.sent: list[wire.Message] = []
        self.connect()

    def connect(self) -> None:
        """Start the call on a new connection."""
        self.session = Session()
        self._send(self.session.start(self.exchange, 1000))

    def _send(self, frame: bytes | None) -> None:
        if frame is not None:
            message = wire.decode(frame, READING)
            assert not isinstance(message, list)
            self.sent.append(message)

    def reply(self, result: Any) -> None:
        request = self.sent[-1]
        assert isinstance(request, wire.Request)
        self._send(self.session.receive(wire.Response(request.id, result, None), 10))

    def refuse(self, word: str) -> None:
        request = self.sent[-1]
        assert isinstance(request, wire.Request)
        error = {"code": CODES[word], "message": word, "data": 7}
        self._send(self.session.receive(wire.Response(request.id, None, error), 10))

    def item(self, seq: int, event: dict[str, Any], number: int = 5) -> None:
        params = {"subscription": number, "seq": seq, "result": event}
        self._send(self.session.receive(wire.Notification("count.up", params), 10))

    def taken(self) -> list[int]:
        return [item.seq for item in iter(self.exchange.pop_item, None)]


def unsubscribe(number: int) -> wire.Notification:
    return wire.Notification("plexus.unsubscribe", {"subscription": number})


# --- items ------------------------------------------------------------------------------------


def test_an_item_is_a_read_only_mapping_with_attributes() -> None:
    item = Item(3, {"type": "stdout", "data": "hi", "get": 1})
    assert (item.type, item.seq, item["data"], item.data) == ("stdout", 3, "hi", "hi")
    assert item.get("nothing", 7) == 7
    assert item["get"] == 1
    assert dict(item) == {"type": "stdout", "data": "hi", "get": 1}
    assert item == {"type": "stdout", "data": "hi", "get": 1}
    assert not item.terminal
    for name in ("data", "seq", "new"):
        with pytest.raises(AttributeError):
            setattr(item, name, 1)
    with pytest.raises(AttributeError, match="no field 'nothing'"):
        _ = item.nothing


# --- one connection ---------------------------------------------------------------------------


def test_a_call_delivers_its_items_in_order_and_is_done() -> None:
    wired = Wire(params={"to": 2})
    assert wired.sent == [wire.Request(1, "count.up", {"to": 2, "_run": "k"})]
    wired.reply(5)
    assert wired.exchange.run == 5
    wired.item(1, text(1))
    wired.item(2, text(2))
    wired.item(3, COMPLETE)
    assert wired.exchange.done
    assert wired.exchange.error is None
    assert wired.taken() == [1, 2, 3]
    assert wired.session.idle
    assert wired.unread.items == wired.unread.bytes == 0


@pytest.mark.parametrize(
    ("terminal", "kind", "code"),
    [
        ({"type": "error", "code": "not_found", "message": "gone"}, NotFound, "not_found"),
        ({"type": "error", "code": "own_word", "message": "gone"}, Failed, "own_word"),
        ({"type": "cancelled", "reason": "gone"}, RunCancelled, "cancelled"),
    ],
)
def test_a_run_that_failed_ends_with_its_error_after_its_items(
    terminal: dict[str, Any], kind: type[PlexusError], code: str
) -> None:
    wired = Wire()
    wired.reply(5)
    wired.item(1, text(1))
    wired.item(2, terminal)
    assert wired.taken() == [1]
    error = wired.exchange.error
    assert type(error) is kind
    assert (error.code, error.message) == (code, "gone")


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("unknown_method", UnknownMethod),
        ("invalid_params", InvalidParams),
        ("busy", Busy),
        ("not_found", NotFound),
        ("too_big", TooBig),
        ("invalid_request", Failed),
    ],
)
def test_a_refused_call_ends_with_the_class_of_its_number(
    word: str, kind: type[PlexusError]
) -> None:
    wired = Wire()
    wired.refuse(word)
    error = wired.exchange.error
    assert type(error) is kind
    assert (error.code, error.data) == (word, 7)


def test_every_error_number_becomes_its_own_class() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind.default_code in CODES:
            found = error_of_reply({"code": CODES[kind.default_code], "message": "m"})
            assert type(found) is kind


def test_a_repeated_item_is_dropped() -> None:
    wired = Wire()
    wired.reply(5)
    for seq in (1, 2, 1, 2, 3):
        wired.item(seq, text(seq))
    assert wired.taken() == [1, 2, 3]


def test_a_missing_item_ends_the_call_and_its_subscription() -> None:
    wired = Wire()
    wired.reply(5)
    wired.item(1, text(1))
    wired.item(3, text(3))
    assert wired.taken() == [1]
    assert isinstance(wired.exchange.error, ProtocolError)
    assert wired.exchange.error.data == {"run": 5, "seq": 3, "expected": 2}
    assert wired.sent[-1] == unsubscribe(5)


def test_a_gap_is_delivered_and_numbers_continue_after_it() -> None:
    wired = Wire()
    wired.reply(5)
    wired.item(7, {"type": "gap", "from": 1, "to": 7})
    wired.item(8, text(8))
    assert wired.taken() == [7, 8]
    assert wired.exchange.error is None


def test_a_terminal_is_never_dropped() -> None:
    wired = Wire("plexus.attach", {"run": 5, "after": 100})
    wired.reply(5)
    wired.item(3, text(3))
    wired.item(4, COMPLETE)
    assert wired.taken() == [4]
    assert wired.exchange.done


def test_abandoning_a_call_unsubscribes_and_drops_later_items() -> None:
    wired = Wire()
    wired.reply(5)
    wired.item(1, text(1))
    wired.exchange.abandon()
    assert wired.session.unsubscribe(wired.exchange) is not None
    wired.item(2, text(2))
    assert wired.taken() == []
    assert wired.unread.items == 0
    assert wired.session.idle


def test_a_call_abandoned_before_its_reply_is_unsubscribed_with_the_reply() -> None:
    wired = Wire()
    wired.exchange.abandon()
    assert wired.session.unsubscribe(wired.exchange) is None
    wired.reply(5)
    assert wired.sent[-1] == unsubscribe(5)
    assert wired.session.idle


def test_invalid_messages_are_ignored() -> None:
    wired = Wire()
    wired.reply(5)
    for message in (
        wire.Response(99, 1, None),
        wire.Response("1", 1, None),
        wire.Notification("count.up", None),
        wire.Notification("count.up", {"subscription": 5, "seq": "1", "result": {}}),
        wire.Notification("count.up", {"subscription": 6, "seq": 1, "result": {}}),
        wire.Invalid(None, -32700, "not JSON"),
        wire.Request(1, "hello", None),
    ):
        assert wired.session.receive(message, 10) is None
    wired.item(1, text(1))
    assert wired.taken() == [1]


@pytest.mark.parametrize("result", [None, True, "5", 1.5, {}])
def test_a_reply_that_is_no_subscription_ends_the_call(result: Any) -> None:
    wired = Wire()
    wired.reply(result)
    assert isinstance(wired.exchange.error, ProtocolError)
    assert wired.session.idle


def test_a_request_without_json_form_or_too_big_is_never_sent() -> None:
    unread = UnreadCounter(ClientLimits())
    session = Session()
    for params, kind in (({"a": object()}, InvalidParams), ({"a": "x" * 1000}, TooBig)):
        exchange = Exchange("count.up", params, unread)
        assert session.start(exchange, 1000) is None
        assert type(exchange.error) is kind
    assert session.idle


# --- reconnecting -----------------------------------------------------------------------------


def test_a_call_resumes_after_its_last_item() -> None:
    wired = Wire(params={"to": 9})
    wired.reply(5)
    wired.item(1, text(1))
    assert wired.session.disconnect() == [wired.exchange]
    wired.connect()
    assert wired.sent[-1] == wire.Request(1, "count.up", {"to": 9, "_run": "k", "_after": 1})
    wired.reply(5)
    wired.item(2, text(2))
    assert wired.taken() == [1, 2]


def test_a_call_whose_reply_was_lost_repeats_its_key() -> None:
    wired = Wire()
    wired.session.disconnect()
    wired.connect()
    assert wired.sent[0] == wired.sent[1]


def test_an_attached_run_resumes_after_its_last_item() -> None:
    wired = Wire("plexus.attach", {"run": 5, "after": 2})
    wired.reply(6)
    assert wired.exchange.run == 5
    wired.item(3, text(3), number=6)
    wired.session.disconnect()
    wired.connect()
    assert wired.sent[-1] == wire.Request(1, "plexus.attach", {"run": 5, "after": 3})


def test_owners_of_runs_resume_before_other_readers() -> None:
    session, unread = Session(), UnreadCounter(ClientLimits())
    follower = Exchange("plexus.attach", {"run": 5}, unread)
    owner = Exchange("count.up", {}, unread, new_key="k")
    for exchange in (follower, owner):
        session.start(exchange, 1000)
    assert session.disconnect() == [owner, follower]


@pytest.mark.parametrize("how", ["another run", "not found"])
def test_a_server_without_the_run_is_detected(how: str) -> None:
    wired = Wire()
    wired.reply(5)
    wired.session.disconnect()
    wired.connect()
    if how == "another run":
        wired.reply(6)
        assert wired.sent[-1] == unsubscribe(6)
    else:
        wired.refuse("not_found")
    assert isinstance(wired.exchange.error, ConnectionLost)
    assert wired.session.idle


def test_only_calls_with_a_key_can_be_repeated_once_sent() -> None:
    unread = UnreadCounter(ClientLimits())
    cases: list[tuple[str, Params, bool]] = [
        ("count.up", {"to": 1}, True),
        ("count.up", [1], False),
        ("plexus.attach", {"run": 5}, True),
        ("plexus.attach", [5], False),
    ]
    for method, params, resumable in cases:
        exchange = Exchange(method, params, unread, new_key="k")
        assert exchange.resumable
        Session().start(exchange, 1000)
        assert exchange.resumable is resumable, (method, params)


def test_a_key_of_the_caller_is_used() -> None:
    assert Wire(params={"_run": "mine"}).exchange.key == "mine"


@given(st.lists(st.integers(0, 12), max_size=8))
def test_each_item_arrives_once_however_often_the_connection_breaks(breaks: list[int]) -> None:
    """A server sends 12 items; connections break after any number, and some items repeat."""
    wired = Wire()
    taken: list[int] = []
    for count in [*breaks, 99]:
        wired.reply(5)
        first = wired.exchange.seq + 1
        for seq in range(max(first - 2, 1), min(first + count, 13)):
            wired.item(seq, text(seq))
            taken += wired.taken()
        if count == 99:
            break
        wired.session.disconnect()
        wired.connect()
    wired.item(13, COMPLETE)
    taken += wired.taken()
    assert taken == list(range(1, 14))
    assert wired.exchange.error is None


# --- unread items -----------------------------------------------------------------------------


def test_the_unread_counter_is_full_from_its_limit_until_half_is_consumed() -> None:
    for bound in ({"unread_items": 4}, {"unread_bytes": 40}):
        unread = UnreadCounter(ClientLimits(**bound))
        for _ in range(4):
            assert not unread.full
            unread.add(10)
        assert unread.full
        unread.remove(10)
        assert unread.full
        unread.remove(10)
        assert not unread.full
