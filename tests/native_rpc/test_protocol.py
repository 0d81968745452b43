"""The native view alone: strict JSON-RPC 2.0, subscriptions, limits and buffered answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_rpc.errors import CODES, code_of
from native_rpc.framing import EVENT_STREAM, LINES, MESSAGES, Framing
from native_rpc.protocol import NativeConnection
from plexus import Complete, Content, Event
from plexus.errors import InvalidParams, NotFound, PlexusError, UnknownMethod
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.limits import CONTROL_CALLS, Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.rpc.effects import Effect, LeaveCall, Send, StartCall
from plexus.runtime.log import Batch
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.shares import connection_full

LIMITS = Limits()


def batch(*events: Event, first: int = 1) -> Batch:
    return Batch(first, list(events), [wire.encode(event) for event in events])


def started(number: int, *, keyed: bool = False) -> Run:
    run = LocalRun(number, "m", LOCAL, LIMITS, lambda _: None)
    run.key = "mine" if keyed else None
    return run


class Peer:
    """A view with a driver that starts every call immediately, in runs 1001, 1002 and so on."""

    def __init__(
        self,
        *,
        limits: Limits = LIMITS,
        framing: Framing = MESSAGES,
        buffered: bool = False,
        resumable: bool = False,
    ) -> None:
        fresh = itertools.count(5001)
        self.view = NativeConnection(
            framing, limits, lambda: next(fresh), buffered=buffered, resumable=resumable
        )
        self.limits = limits
        self._runs = itertools.count(1001)
        #: Errors for refused methods, by name.
        self.refused: dict[str, PlexusError] = {}
        self.keyed = False
        self.frames: list[bytes] = []
        self.effects: list[Effect] = []
        #: The calls that were started, by their run.
        self.calls: dict[int, Any] = {}
        self.started: list[StartCall] = []

    def say(self, message: Any) -> list[Any]:
        """Send a JSON value or a text, and return the answers."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.do(self.view.receive(wire.decode(data, self.limits)))

    def call(self, method: str, params: Any = None, request_id: Any = 1) -> list[Any]:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
        return self.say(message | ({} if params is None else {"params": params}))

    def items(self, run: int, *events: Event, first: int = 1) -> list[Any]:
        return self.do(self.view.on_items(self.calls[run], batch(*events, first=first)))

    def do(self, effects: list[Effect]) -> list[Any]:
        sent: list[bytes] = []
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Send):
                sent += effect.frames
            elif isinstance(effect, StartCall):
                self.started.append(effect)
                if effect.at_limit and effect.method != "control":  # as the driver does it
                    more = self.view.on_refused(effect.call, connection_full(3))
                elif effect.method in self.refused:
                    more = self.view.on_refused(effect.call, self.refused[effect.method])
                else:
                    run = next(self._runs)
                    self.calls[run] = effect.call
                    more = self.view.on_started(effect.call, started(run, keyed=self.keyed))
                sent += [frame for each in more if isinstance(each, Send) for frame in each.frames]
        self.frames += sent
        return [json.loads(frame) for frame in sent]


def result(request_id: Any, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def codes(answers: list[Any]) -> list[int]:
    return [answer["error"]["code"] for answer in answers]


# --- the examples of the specification -----------------------------------------------------------


def test_a_call_is_answered_with_its_subscription() -> None:
    peer = Peer()
    assert peer.call("subtract", [42, 23]) == [result(1, 1001)]
    assert peer.started[0].params == [42, 23]
    peer.call("subtract", {"subtrahend": 23, "minuend": 42})
    assert peer.started[1].params == {"subtrahend": 23, "minuend": 42}


def test_a_call_of_an_unknown_method_is_32601() -> None:
    peer = Peer()
    peer.refused["foobar"] = UnknownMethod("there is no method foobar", data={"nearest": []})
    [answer] = peer.call("foobar", request_id="1")
    assert answer == {
        "jsonrpc": "2.0",
        "id": "1",
        "error": {
            "code": -32601,
            "message": "there is no method foobar",
            "data": {"nearest": []},
        },
    }


def test_a_call_with_invalid_json_is_32700_with_a_null_id() -> None:
    [answer] = Peer().say(b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]')
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)


def test_a_call_with_an_invalid_request_object_is_32600_with_a_null_id() -> None:
    [answer] = Peer().say(b'{"jsonrpc": "2.0", "method": 1, "params": "bar"}')
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)


def test_a_batch_of_invalid_json_is_one_error_and_no_array() -> None:
    [answer] = Peer().say(b'[{"jsonrpc":"2.0","method":"sum","id":"1"},{"jsonrpc":"2.0","method"]')
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)


def test_an_empty_batch_is_one_error_and_no_array() -> None:
    [answer] = Peer().say([])
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)


@pytest.mark.parametrize("count", [1, 3])
def test_an_invalid_batch_has_an_error_for_each_entry(count: int) -> None:
    [answers] = Peer().say(list(range(count)))
    assert codes(answers) == [-32600] * count
    assert [answer["id"] for answer in answers] == [None] * count


def test_a_mixed_batch_is_answered_by_one_array_without_the_notifications() -> None:
    peer = Peer()
    peer.refused["foo.get"] = UnknownMethod("no")
    [answers] = peer.say(
        [
            {"jsonrpc": "2.0", "method": "sum", "params": [1, 2, 4], "id": "1"},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
            {"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": "2"},
            {"foo": "boo"},
            {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
            {"jsonrpc": "2.0", "method": "get_data", "id": "9"},
        ]
    )
    by_id = {answer["id"]: answer for answer in answers}
    assert set(by_id) == {"1", "2", "5", "9", None}
    assert len(answers) == 5
    assert codes([by_id["5"], by_id[None]]) == [-32601, -32600]
    assert [by_id[key]["result"] for key in ("1", "2", "9")] == [1001, 1003, 1004]
    assert len(peer.started) == 5


def test_a_batch_of_notifications_is_not_answered() -> None:
    peer = Peer()
    peer.refused["wrong"] = UnknownMethod("no")
    note = {"jsonrpc": "2.0", "method": "notify_sum", "params": [1, 2, 4]}
    assert peer.say([note, {"jsonrpc": "2.0", "method": "wrong"}, note]) == []
    assert len(peer.started) == 3


def test_a_batch_within_a_batch_is_invalid() -> None:
    [answers] = Peer().say([[{"jsonrpc": "2.0", "id": 1, "method": "m"}]])
    assert codes(answers) == [-32600]


def test_a_batch_of_only_refusals_is_one_array() -> None:
    peer = Peer()
    peer.refused["no"] = InvalidParams("no")
    request = {"jsonrpc": "2.0", "method": "no"}
    [answers] = peer.say([request | {"id": 1}, request | {"id": 2}])
    assert codes(answers) == [-32602, -32602]


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_id", [0, 1, -1, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), "", "1", "\u00e9\u2028", None]
)
def test_an_id_is_echoed_exactly(request_id: Any) -> None:
    peer = Peer()
    peer.refused["no"] = NotFound("no")
    [answer] = peer.call("yes", request_id=request_id)
    [error] = peer.call("no", request_id=request_id)
    for echoed in (answer["id"], error["id"]):
        assert echoed == request_id
        assert type(echoed) is type(request_id)


@pytest.mark.parametrize("request_id", [True, 1.0, 1.5, [], {}, 2**64])
def test_an_id_that_cannot_be_echoed_is_refused(request_id: Any) -> None:
    peer = Peer()
    [answer] = peer.call("m", request_id=request_id)
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    assert peer.started == []


def test_a_notification_starts_a_call_without_answers() -> None:
    peer = Peer()
    assert peer.say({"jsonrpc": "2.0", "method": "m", "params": {"a": 1}}) == []
    [start] = peer.started
    assert (start.method, start.params) == ("m", {"a": 1})
    assert not start.owns
    assert peer.view.idle


def test_a_refused_notification_is_not_answered() -> None:
    peer = Peer()
    peer.refused["m"] = InvalidParams("no")
    assert peer.say({"jsonrpc": "2.0", "method": "m"}) == []


def test_a_response_is_ignored() -> None:
    peer = Peer()
    assert peer.say({"jsonrpc": "2.0", "id": 1, "result": 1}) == []
    assert peer.say({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m"}}) == []
    assert peer.effects == []


@pytest.mark.parametrize("word", CODES)
def test_every_error_code_of_the_core_has_its_number(word: str) -> None:
    peer = Peer()
    peer.refused["m"] = PlexusError("message", code=word, data={"a": 1})
    [answer] = peer.call("m")
    assert answer["error"] == {"code": CODES[word], "message": "message", "data": {"a": 1}}


def test_the_five_codes_of_the_specification_are_where_they_belong() -> None:
    words = ("parse", "invalid_request", "unknown_method", "invalid_params", "internal")
    assert [code_of(word) for word in words] == [-32700, -32600, -32601, -32602, -32603]
    assert -32099 <= code_of("a word of an activation's own") <= -32000
    numbers = list(CODES.values())
    assert len(set(numbers)) == len(numbers)
    assert all(-32768 <= number <= -32000 for number in numbers)


# --- items ---------------------------------------------------------------------------------------


def test_items_name_their_method_subscription_and_number() -> None:
    peer = Peer()
    peer.call("count.up")
    assert peer.items(1001, Content(text="a"), Complete(), first=7) == [
        {
            "jsonrpc": "2.0",
            "method": "count.up",
            "params": {
                "subscription": 1001,
                "seq": 7,
                "result": {"type": "content", "text": "a"},
            },
        },
        {
            "jsonrpc": "2.0",
            "method": "count.up",
            "params": {"subscription": 1001, "seq": 8, "result": {"type": "complete"}},
        },
    ]


def test_a_subscription_ends_with_its_terminal() -> None:
    peer = Peer()
    peer.call("m")
    idle = [peer.view.idle]
    peer.items(1001, Content(text="a"))
    idle.append(peer.view.idle)
    peer.items(1001, Complete(), first=2)
    idle.append(peer.view.idle)
    assert idle == [False, False, True]
    assert peer.call("plexus.unsubscribe", [1001]) == [result(1, False)]
    assert peer.view.on_disconnect() == []


def test_the_bytes_of_an_event_are_unchanged() -> None:
    peer = Peer()
    peer.call("m")
    raw = b'{"type":"content","text":"100%d %b \\u0000 %%"}'
    call = peer.calls[1001]
    [effect] = peer.view.on_items(call, Batch(1, [Content(text="x")], [raw]))
    assert isinstance(effect, Send)
    assert raw in effect.frames[0]


def test_a_run_that_is_read_twice_on_one_connection_has_two_numbers() -> None:
    peer = Peer()
    peer.call("m")
    [start] = peer.view.receive(wire.Request(2, "plexus.attach", [1001]))
    assert isinstance(start, StartCall)
    [reply] = peer.do(peer.view.on_started(start.call, started(1001)))
    assert reply == result(2, 5001)
    [item] = peer.do(peer.view.on_items(start.call, batch(Complete())))
    assert item["params"]["subscription"] == 5001
    [item] = peer.items(1001, Complete())
    assert item["params"]["subscription"] == 1001


def test_each_framing_frames_messages_for_its_transport() -> None:
    for framing, before, after in (
        (LINES, b"", b"\n"),
        (MESSAGES, b"", b""),
        (EVENT_STREAM, b"data: ", b"\n\n"),
    ):
        view = NativeConnection(framing, LIMITS, lambda: 1)
        [start] = view.receive(wire.Request(1, "m", None))
        assert isinstance(start, StartCall)
        [reply] = view.on_started(start.call, started(9))
        assert isinstance(reply, Send)
        assert reply.frames == [before + b'{"jsonrpc":"2.0","id":1,"result":9}' + after]


def test_an_event_stream_has_ids_to_resume_from() -> None:
    view = NativeConnection(EVENT_STREAM, LIMITS, lambda: 1)
    [start] = view.receive(wire.Request(1, "m", None))
    assert isinstance(start, StartCall)
    view.on_started(start.call, started(9))
    [items] = view.on_items(start.call, batch(Content(text="a\nb"), Complete(), first=4))
    assert isinstance(items, Send)
    *blocks, rest = b"".join(items.frames).split(b"\n\n")
    assert rest == b""
    assert [block.split(b"\n")[0] for block in blocks] == [b"id: 9:4", b"id: 9:5"]
    for block in blocks:
        assert len(block.split(b"\n")) == 2
        assert json.loads(block.split(b"data: ")[1])["params"]["subscription"] == 9


# --- unsubscribing -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["plexus.unsubscribe", "plexus_unsubscribe"])
@pytest.mark.parametrize("params", [{"subscription": 1001}, [1001], [{"subscription": 1001}]])
def test_unsubscribing_stops_a_subscription_and_its_run(method: str, params: Any) -> None:
    peer = Peer()
    peer.call("m")
    assert peer.call(method, params, "bye") == [result("bye", True)]
    [leave] = [effect for effect in peer.effects if isinstance(effect, LeaveCall)]
    assert leave.call is peer.calls[1001]
    assert leave.cancel == "unsubscribed"
    assert peer.view.idle
    assert peer.call(method, params, "again") == [result("again", False)]


def test_the_run_is_released_before_the_answer() -> None:
    peer = Peer()
    peer.call("m")
    effects = peer.view.receive(wire.Request(2, "plexus.unsubscribe", [1001]))
    assert [type(effect) for effect in effects] == [LeaveCall, Send]


def test_unsubscribing_an_unknown_number_is_false() -> None:
    peer = Peer()
    assert peer.call("plexus.unsubscribe", [5]) == [result(1, False)]
    assert not any(isinstance(effect, LeaveCall) for effect in peer.effects)


@pytest.mark.parametrize(
    "params", [None, [], {}, ["1"], [True], [1.5], [None], {"subscription": "1"}, {"other": 1}]
)
def test_unsubscribing_with_a_wrong_number_is_32602(params: Any) -> None:
    assert codes(Peer().call("plexus.unsubscribe", params)) == [-32602]


def test_unsubscribing_by_notification_has_no_answer() -> None:
    peer = Peer()
    peer.call("m")
    note = {"jsonrpc": "2.0", "method": "plexus.unsubscribe"}
    assert peer.say(note | {"params": [1001]}) == []
    assert peer.view.idle
    assert peer.say(note | {"params": ["x"]}) == []
    assert peer.say(note) == []


def test_unsubscribing_within_a_batch_is_part_of_its_array() -> None:
    peer = Peer()
    peer.call("m")
    request = {"jsonrpc": "2.0", "method": "plexus.unsubscribe", "params": [1001]}
    [answers] = peer.say([request | {"id": 1}, request | {"id": 2}])
    assert [answer["result"] for answer in answers] == [True, False]


# --- calls in progress ---------------------------------------------------------------------------


def test_calls_in_progress_are_limited() -> None:
    peer = Peer(limits=Limits(calls_in_flight=3))
    for number in range(3):
        assert peer.call("m", request_id=number) == [result(number, 1001 + number)]
    [answer] = peer.call("m", request_id="more")
    assert answer["id"] == "more"
    assert answer["error"]["code"] == CODES["busy"]
    assert answer["error"]["data"] == {"limit": 3, "name": "calls_in_flight"}
    # A call that ended, was unsubscribed or did not start no longer counts.
    peer.items(1001, Complete())
    assert peer.call("m", request_id=4) == [result(4, 1004)]
    assert codes(peer.call("m")) == [CODES["busy"]]
    peer.call("plexus.unsubscribe", [1002])
    peer.refused["no"] = NotFound("no")
    assert codes(peer.call("no")) == [CODES["not_found"]]
    assert peer.call("m", request_id=5) == [result(5, 1005)]


def test_unsubscribing_is_possible_at_the_limit() -> None:
    peer = Peer(limits=Limits(calls_in_flight=1))
    peer.call("m")
    assert peer.call("plexus.unsubscribe", [1001]) == [result(1, True)]


def test_a_few_control_calls_are_possible_at_the_limit_and_not_one_more() -> None:
    peer = Peer(limits=Limits(calls_in_flight=3))
    for _ in range(3):
        peer.call("m")
    for number in range(CONTROL_CALLS):
        assert peer.call("control") == [result(1, 1004 + number)]
        assert codes(peer.call("m")) == [CODES["busy"]]
    assert codes(peer.call("control")) == [CODES["busy"]]
    assert peer.say({"jsonrpc": "2.0", "method": "control"}) == []
    peer.items(1004, Complete())
    assert peer.call("control") == [result(1, 1004 + CONTROL_CALLS)]


def test_the_limit_holds_within_a_batch() -> None:
    peer = Peer(limits=Limits(calls_in_flight=2))
    request = {"jsonrpc": "2.0", "method": "m"}
    [answers] = peer.say([request | {"id": number} for number in range(4)])
    by_id = {answer["id"]: answer for answer in answers}
    assert [by_id[0]["result"], by_id[1]["result"]] == [1001, 1002]
    assert codes([by_id[2], by_id[3]]) == [CODES["busy"]] * 2


# --- disconnects ---------------------------------------------------------------------------------


def test_a_disconnect_cancels_calls_that_cannot_be_resumed() -> None:
    peer = Peer()
    peer.call("a")
    peer.keyed = True
    peer.call("b")
    gone = peer.view.on_disconnect()
    kept = [(leave.cancel, leave.keep) for leave in gone if isinstance(leave, LeaveCall)]
    assert kept == [("disconnected", False), (None, True)]
    assert peer.view.idle
    assert peer.view.on_disconnect() == []


def test_a_resumable_transport_can_resume_every_call() -> None:
    peer = Peer(resumable=True)
    peer.call("a")
    [leave] = peer.view.on_disconnect()
    assert isinstance(leave, LeaveCall)
    assert (leave.cancel, leave.keep) == (None, True)


# --- buffered ------------------------------------------------------------------------------------


def test_a_buffered_call_is_answered_once_when_its_run_has_ended() -> None:
    peer = Peer(buffered=True)
    assert peer.call("m", request_id="x") == []
    assert peer.items(1001, Content(text="a")) == []
    [answer] = peer.items(1001, Content(text="b"), Result(5), first=2)
    assert answer == result(
        "x",
        {
            "run": 1001,
            "events": [{"type": "content", "text": "a"}, {"type": "content", "text": "b"}],
            "terminal": {"type": "complete", "result": 5},
        },
    )
    assert peer.view.idle


@pytest.mark.parametrize(
    ("terminal", "code"),
    [
        (ErrorEvent("no_planet", "no Vulcan", {"x": 1}), -32000),
        (ErrorEvent("internal", "no Vulcan"), -32603),
        (ErrorEvent("deadline", "no Vulcan"), -32006),
        (Cancelled("enough"), -32007),
        (Cancelled(), -32007),
    ],
)
def test_a_failed_buffered_call_is_an_error_with_all_events(terminal: Event, code: int) -> None:
    peer = Peer(buffered=True)
    peer.call("m")
    [answer] = peer.items(1001, Content(text="a"), terminal)
    assert answer["id"] == 1
    error = answer["error"]
    assert (error["code"], error["message"]) == (code, terminal.as_text())
    assert error["data"]["run"] == 1001
    assert error["data"]["events"] == [{"type": "content", "text": "a"}]
    assert error["data"]["terminal"]["type"] == terminal.type


def test_a_buffered_answer_above_the_limit_keeps_head_and_tail_and_is_marked() -> None:
    peer = Peer(buffered=True, limits=Limits(answer_bytes=1000))
    peer.call("m")
    for number in range(1, 101):
        assert peer.items(1001, Content(text=f"{number:03d}"), first=number) == []
    [answer] = peer.items(1001, Complete(), first=101)
    body = answer["result"]
    gap = next(event for event in body["events"] if event["type"] == "gap")
    place = body["events"].index(gap)
    head, tail = body["events"][:place], body["events"][place + 1 :]
    assert [event["text"] for event in head] == [f"{n:03d}" for n in range(1, gap["from"])]
    assert [event["text"] for event in tail] == [f"{n:03d}" for n in range(gap["to"] + 1, 101)]
    assert len(head) > 5
    assert len(tail) > 5
    assert body["terminal"] == {"type": "complete"}
    assert body["truncated"] is True
    assert len(peer.frames[-1]) <= 1000
    assert not [effect for effect in peer.effects if isinstance(effect, LeaveCall)]
    assert peer.view.idle


def test_a_buffered_answer_within_the_limit_is_complete_and_not_marked() -> None:
    peer = Peer(buffered=True, limits=Limits(answer_bytes=1000))
    peer.call("m")
    assert peer.items(1001, Content(text="x" * 300)) == []
    [answer] = peer.items(1001, Content(text="x" * 300), Complete(), first=2)
    assert len(answer["result"]["events"]) == 2
    assert "truncated" not in answer["result"]


def test_the_terminal_of_a_buffered_answer_is_kept_whatever_its_size() -> None:
    peer = Peer(buffered=True, limits=Limits(answer_bytes=1000))
    peer.call("m")
    for number in range(1, 21):
        peer.items(1001, Content(text="x" * 100), first=number)
    [answer] = peer.items(1001, Result("y" * 2000), first=21)
    assert answer["result"]["terminal"]["result"] == "y" * 2000
    assert answer["result"]["events"] == [{"type": "gap", "from": 1, "to": 20}]


def test_a_buffered_batch_is_answered_when_the_last_run_has_ended() -> None:
    peer = Peer(buffered=True)
    request = {"jsonrpc": "2.0", "method": "m"}
    assert peer.say([request | {"id": 1}, 5, request | {"id": 2}]) == []
    assert peer.items(1002, Result("second")) == []
    [answers] = peer.items(1001, Result("first"))
    results = {a["id"]: a["result"]["terminal"]["result"] for a in answers if "result" in a}
    assert results == {1: "first", 2: "second"}
    assert codes([a for a in answers if "error" in a]) == [-32600]


def test_a_refusal_is_the_same_on_a_buffered_connection() -> None:
    peer = Peer(buffered=True)
    peer.refused["m"] = InvalidParams("no", data={"errors": []})
    [answer] = peer.call("m")
    assert answer["error"] == {"code": -32602, "message": "no", "data": {"errors": []}}


# --- arbitrary sequences -------------------------------------------------------------------------

messages = st.one_of(
    st.binary(max_size=30),
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "method": st.sampled_from(["a", "no", "plexus.unsubscribe"])},
        optional={
            "id": st.one_of(st.none(), st.integers(), st.text(max_size=3), st.booleans()),
            "params": st.one_of(
                st.lists(st.integers(1000, 1005), max_size=2),
                st.dictionaries(st.just("subscription"), st.integers(1000, 1005)),
                st.integers(),
            ),
        },
    ).map(lambda value: json.dumps(value).encode()),
)
entries = st.one_of(
    messages,
    st.lists(messages, max_size=4).map(lambda parts: b"[" + b",".join(parts) + b"]"),
    st.tuples(st.integers(1001, 1008), st.booleans()),
    st.just("gone"),
)


@given(st.lists(entries, max_size=25), st.booleans())
def test_any_sequence_gives_effects_and_never_raises(steps: list[Any], buffered: bool) -> None:
    peer = Peer(limits=Limits(calls_in_flight=4), buffered=buffered)
    peer.refused["no"] = NotFound("no")
    left: set[int] = set()
    for step in steps:
        match step:
            case bytes():
                peer.say(step)
            case "gone":
                peer.do(peer.view.on_disconnect())
            case (run, last):
                live = peer.calls.get(run)
                if live is not None and run not in left:
                    peer.items(run, Complete() if last else Content(text="x"))
                    left |= {run} if last else set()
        # The driver does not read a call that was left.
        for effect in peer.effects:
            if isinstance(effect, LeaveCall):
                left |= {run for run, call in peer.calls.items() if call is effect.call}
    for frame in peer.frames:
        answer = json.loads(frame)
        for message in answer if isinstance(answer, list) else [answer]:
            assert message["jsonrpc"] == "2.0"
            assert ("result" in message) + ("error" in message) + ("method" in message) == 1
