"""The codec: any bytes decode to messages or an `Invalid`, and values are never changed."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections import deque
from datetime import timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plexus import Content
from plexus.errors import TooBig
from plexus.limits import Limits
from plexus.registry.validation import validate_strictly
from plexus.rpc import wire
from plexus.rpc.wire import Invalid, LineDecoder, Message, Notification, Request, Response

LIMITS = Limits()

Decoded = Message | list[Message]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
#: Things that look like messages and mostly are not.
envelopes = st.dictionaries(
    st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "extra"]),
    st.sampled_from(["2.0", "m", 1, 1.5, None, True, [], {}, [1], {"a": 1}]),
)


def decode(text: str | bytes, limits: Limits = LIMITS) -> Decoded:
    return wire.decode(text if isinstance(text, bytes) else text.encode(), limits)


def invalid(text: str | bytes, limits: Limits = LIMITS) -> Invalid:
    message = decode(text, limits)
    assert isinstance(message, Invalid)
    return message


# --- envelopes -----------------------------------------------------------------------------------


def test_a_request_has_an_id_and_a_method() -> None:
    message = decode('{"jsonrpc":"2.0","id":7,"method":"a.b","params":{"x":1}}')
    assert message == Request(7, "a.b", {"x": 1})


def test_params_may_be_a_list_or_left_out() -> None:
    assert decode('{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}') == Request(1, "m", [1])
    assert decode('{"jsonrpc":"2.0","id":1,"method":"m"}') == Request(1, "m", None)


def test_a_message_without_an_id_is_a_notification() -> None:
    assert decode('{"jsonrpc":"2.0","method":"m"}') == Notification("m", None)


def test_an_id_of_null_still_makes_it_a_request() -> None:
    assert decode('{"jsonrpc":"2.0","id":null,"method":"m"}') == Request(None, "m", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"jsonrpc":"2.0","id":1,"result":null}', Response(1, None, None)),
        ('{"jsonrpc":"2.0","id":1,"result":[2]}', Response(1, [2], None)),
        ('{"jsonrpc":"2.0","id":"a","error":{"code":1}}', Response("a", None, {"code": 1})),
    ],
)
def test_a_response_has_a_result_or_an_error(text: str, expected: Response) -> None:
    assert decode(text) == expected


@pytest.mark.parametrize("value", ["true", "false", "1.0", "1.5", "[]", "{}", "[1]"])
def test_an_id_of_another_type_is_refused_and_not_echoed(value: str) -> None:
    message = invalid(f'{{"jsonrpc":"2.0","id":{value},"method":"m"}}')
    assert (message.id, message.code) == (None, wire.INVALID_REQUEST)


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"1.0","id":3,"method":"m"}',
        '{"jsonrpc":2.0,"id":3,"method":"m"}',
        '{"id":3,"method":"m"}',
        '{"jsonrpc":"2.0","id":3,"method":1}',
        '{"jsonrpc":"2.0","id":3,"method":null}',
        '{"jsonrpc":"2.0","id":3}',
        '{"jsonrpc":"2.0","id":3,"method":"m","params":"bar"}',
        '{"jsonrpc":"2.0","id":3,"method":"m","params":null}',
        '{"jsonrpc":"2.0","id":3,"method":"m","result":1}',
        '{"jsonrpc":"2.0","id":3,"method":"m","error":{}}',
        '{"jsonrpc":"2.0","id":3,"result":1,"error":{}}',
    ],
)
def test_a_bad_envelope_is_an_invalid_request_that_keeps_its_id(text: str) -> None:
    message = invalid(text)
    assert (message.id, message.code) == (3, wire.INVALID_REQUEST)


@pytest.mark.parametrize("text", ["1", '"text"', "null", "true", "[]", "{}", '{"foo":"boo"}'])
def test_json_that_is_no_message_is_an_invalid_request(text: str) -> None:
    message = invalid(text)
    assert (message.id, message.code) == (None, wire.INVALID_REQUEST)


def test_of_two_equal_keys_the_last_one_counts() -> None:
    assert decode('{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}') == Request(2, "m", None)


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_keeps_its_order_and_its_bad_entries() -> None:
    entries = decode(
        '[{"jsonrpc":"2.0","id":1,"method":"a"},2,{"jsonrpc":"2.0","method":"b"},[],{"x":1}]'
    )
    assert isinstance(entries, list)
    kinds = [type(entry) for entry in entries]
    assert kinds == [Request, Invalid, Notification, Invalid, Invalid]


def test_a_batch_of_the_limit_passes_and_one_more_is_refused() -> None:
    one = '{"jsonrpc":"2.0","method":"m"}'
    limit = LIMITS.batch_requests
    within = decode(f"[{','.join([one] * limit)}]")
    assert isinstance(within, list)
    assert len(within) == limit
    message = invalid(f"[{','.join([one] * (limit + 1))}]")
    assert (message.code, message.data) == (wire.INVALID_REQUEST, {"limit": limit})


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [0, -1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**53) - 1, -(2**63)],
)
def test_an_integer_of_64_bits_comes_back_as_it_came(number: int) -> None:
    message = decode(f'{{"jsonrpc":"2.0","id":{number},"method":"m","params":[{number}]}}')
    assert message == Request(number, "m", [number])
    assert wire.encode_result(number, wire.encode(number)) == (
        b'{"jsonrpc":"2.0","id":%d,"result":%d}' % (number, number)
    )


@pytest.mark.parametrize("number", [str(2**64), str(-(2**63) - 1), "9" * 300])
def test_an_integer_past_64_bits_is_refused_as_an_id(number: str) -> None:
    message = invalid(f'{{"jsonrpc":"2.0","id":{number},"method":"m"}}')
    assert (message.id, message.code) == (None, wire.INVALID_REQUEST)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("place", ["id", "params"])
def test_a_number_that_json_or_a_double_cannot_hold_is_a_parse_error(
    number: str, place: str
) -> None:
    entry = f"[{number}]" if place == "params" else number
    assert invalid(f'{{"jsonrpc":"2.0","method":"m","{place}":{entry}}}').code == wire.PARSE_ERROR


def test_minus_zero_as_an_id_is_zero() -> None:
    assert decode('{"jsonrpc":"2.0","id":-0,"method":"m"}') == Request(0, "m", None)


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"{",
        b"nonsense",
        b"\x00",
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","method":"\xff"}',
        b'{"jsonrpc":"2.0","method":"\xc0\x80"}',
        b'{"jsonrpc":"2.0","method":"\xed\xa0\x80"}',
        b'{"jsonrpc":"2.0","method":"\\ud800"}',
        b'{"jsonrpc":"2.0","method":"\\udc00\\ud800"}',
        b'{"jsonrpc":"2.0","method":"a\x00b"}',
        b'{"jsonrpc":"2.0","method":"a\nb"}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"m"}',
        b'{"jsonrpc":"2.0","method":"m"}\x00',
        b'{"jsonrpc":"2.0","method":"m",}',
        b"{'jsonrpc':'2.0','method':'m'}",
        b'{"jsonrpc":"2.0","method":"m"}{"jsonrpc":"2.0","method":"m"}',
    ],
)
def test_bytes_that_are_no_json_are_a_parse_error_without_an_id(line: bytes) -> None:
    message = invalid(line)
    assert (message.id, message.code) == (None, wire.PARSE_ERROR)


@pytest.mark.parametrize(
    "text", ["a\u2028b", "a\u2029b", "\x00", "\r\n", "\x85", "\ufeff", "\U0001f600", "\x7f", '"\\/']
)
def test_text_comes_back_as_it_came_and_on_one_line(text: str) -> None:
    line = wire.encode_request(text, text, [text])
    assert b"\n" not in line
    assert decode(line) == Request(text, text, [text])
    [message] = LineDecoder(LIMITS).feed(line + b"\n")
    assert message == Request(text, text, [text])


def test_a_method_name_of_64_kib_is_just_a_name() -> None:
    name = "x" * 65536
    assert decode(f'{{"jsonrpc":"2.0","id":1,"method":"{name}"}}') == Request(1, name, None)


# --- limits --------------------------------------------------------------------------------------


def nested(depth: int) -> str:
    """Return a request of this depth, including its own object and its list of params."""
    inner = depth - 1
    return f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{"[" * inner}{"]" * inner}}}'


def test_nesting_at_the_limit_passes() -> None:
    assert isinstance(decode(nested(64)), Request)


@pytest.mark.parametrize("depth", [65, 253, 254, 1024])
def test_nesting_past_the_limit_is_refused_and_names_it(depth: int) -> None:
    message = invalid(nested(depth))
    assert message.code == wire.INVALID_REQUEST
    assert message.data == {"limit": 64}


@pytest.mark.parametrize("depth", [1025, 5000, 40_000])
def test_nesting_past_any_parser_is_refused(depth: int) -> None:
    assert invalid(nested(depth)).code in (wire.INVALID_REQUEST, wire.PARSE_ERROR)


def test_brackets_inside_of_text_do_not_nest() -> None:
    assert isinstance(decode('{"jsonrpc":"2.0","id":1,"method":"%s"}' % ("[" * 1000)), Request)


def test_received_data_can_be_encoded_inside_an_envelope() -> None:
    message = decode(nested(64))
    assert isinstance(message, Request)
    assert wire.encode_result(1, wire.encode({"type": "content", "text": message.params}))


def many_containers(count: int) -> str:
    """Return a request with this many arrays and objects, including its own two."""
    lists = ",".join(["[]"] * (count - 2))
    return f'{{"jsonrpc":"2.0","id":1,"method":"m","params":[{lists}]}}'


def test_containers_at_the_limit_pass_and_one_more_is_refused() -> None:
    assert isinstance(decode(many_containers(20_000)), Request)
    message = invalid(many_containers(20_001))
    assert (message.code, message.data) == (wire.INVALID_REQUEST, {"limit": 20_000})


def of_size(size: int) -> bytes:
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def test_a_message_of_the_limit_passes_and_one_byte_more_is_refused() -> None:
    limit = LIMITS.message_bytes
    assert isinstance(decode(of_size(limit)), Request)
    message = invalid(of_size(limit + 1))
    assert (message.code, message.data) == (wire.INVALID_REQUEST, {"limit": limit})


def test_decode_takes_every_kind_of_buffer() -> None:
    line = b'{"jsonrpc":"2.0","method":"m"}'
    for buffer in (line, bytearray(line)):
        assert wire.decode(buffer, LIMITS) == Notification("m", None)


def test_a_value_alone_is_read_by_the_same_limits() -> None:
    assert wire.decode_value(b'{"a":[1]}', LIMITS) == {"a": [1]}
    with pytest.raises(TooBig):
        wire.decode_value(b"[" * 65 + b"]" * 65, LIMITS)
    with pytest.raises(TooBig):
        wire.decode_value(b"[" + b"[]," * 50_000 + b"[]]", LIMITS)
    with pytest.raises(ValueError, match=r"\w"):
        wire.decode_value(b"{", LIMITS)


# --- any bytes -----------------------------------------------------------------------------------


def kinds_of(message: Decoded) -> list[Message]:
    return message if isinstance(message, list) else [message]


@given(st.binary(max_size=200))
@example(b"[" * 3000)
@example(b'{"a":' * 3000)
def test_any_bytes_are_messages_or_invalid_and_nothing_is_raised(data: bytes) -> None:
    for message in kinds_of(wire.decode(data, LIMITS)):
        assert isinstance(message, Request | Notification | Response | Invalid)


@given(st.one_of(json_values, envelopes, st.lists(envelopes, max_size=4)))
def test_any_json_is_messages_or_invalid_requests(value: Any) -> None:
    for message in kinds_of(wire.decode(wire.encode(value), LIMITS)):
        assert isinstance(message, Request | Notification | Response | Invalid)
        if isinstance(message, Invalid):
            assert message.code == wire.INVALID_REQUEST
        if not isinstance(message, Notification):
            assert message.id is None or type(message.id) in (int, str)


@given(json_values)
def test_any_value_comes_back_equal_and_on_one_line(value: Any) -> None:
    line = wire.encode(value)
    assert b"\n" not in line
    assert wire.decode_plain(value) == value


# --- lines ---------------------------------------------------------------------------------------

SMALL = Limits(message_bytes=48)

pieces = st.lists(
    st.sampled_from(
        [
            b'{"jsonrpc":"2.0","id":1,"method":"m"}',
            b'{"jsonrpc":"2.0","method":"m"}',
            b'[{"jsonrpc":"2.0","method":"m"},3]',
            b"\n",
            b"\r\n",
            b"\n\n",
            b" ",
            b"\x00",
            b"x" * 40,
            b"x" * 60,
            "\u2028".encode(),
            b"\xff",
        ]
    )
    | st.binary(max_size=12),
    max_size=12,
)


def fed(data: bytes, cuts: list[int], limits: Limits) -> list[Decoded]:
    lines = LineDecoder(limits)
    messages: list[Decoded] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        messages += lines.feed(data[start:end])
    return messages + lines.end()


@given(pieces, st.lists(st.integers(0, 1000), max_size=20))
def test_however_a_stream_is_cut_the_messages_are_the_same(
    parts: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(parts)
    whole = fed(data, [], SMALL)
    assert fed(data, cuts, SMALL) == whole
    assert fed(data, list(range(len(data))), SMALL) == whole


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_blank_line_past_the_limit_is_the_same_however_it_is_cut(step: int) -> None:
    data = b" " * 60 + b"\n"
    assert fed(data, list(range(0, len(data), step)), SMALL) == fed(data, [], SMALL)


def test_lines_end_at_0x0a_only() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\rg"
    line = wire.encode_request(1, text, [])
    assert LineDecoder(LIMITS).feed(line + b"\n" + line + b"\n") == [Request(1, text, [])] * 2


def test_blank_lines_and_carriage_returns_are_ignored() -> None:
    line = b'{"jsonrpc":"2.0","method":"m"}'
    assert LineDecoder(LIMITS).feed(b"\n\r\n  \n" + line + b"\r\n\n") == [Notification("m", None)]


def test_the_last_line_needs_no_newline() -> None:
    lines = LineDecoder(LIMITS)
    assert lines.feed(b'{"jsonrpc":"2.0","method":"m"}') == []
    assert lines.end() == [Notification("m", None)]
    assert lines.end() == []


def test_a_line_past_the_limit_is_one_invalid_and_the_next_line_is_read() -> None:
    lines = LineDecoder(SMALL)
    good = b'{"jsonrpc":"2.0","method":"m"}\n'
    first = lines.feed(b"x" * 49)
    assert len(first) == 1
    assert isinstance(first[0], Invalid)
    assert first[0].data == {"limit": 48}
    assert lines.feed(b"x" * 1000) == []
    assert lines.feed(b"x\n" + good) == [Notification("m", None)]


def test_a_line_of_exactly_the_limit_is_read_whole_or_in_pieces() -> None:
    line = of_size(48)
    assert [type(m) for m in LineDecoder(SMALL).feed(line + b"\n")] == [Request]
    assert [type(m) for m in fed(line + b"\n", list(range(49)), SMALL)] == [Request]


# --- writing -------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    path: Path
    nothing: int | None = None


class Pair(NamedTuple):
    left: int
    right: int


class Share(float):
    """A float of another class, as NumPy's is."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Content(text="hi"), {"type": "content", "text": "hi"}),
        (Colour.RED, "red"),
        (Point(1), {"x": 1}),
        (Model(path=Path("a/b")), {"path": "a/b"}),
        ({"b", "a"}, ["a", "b"]),
        (frozenset([2, 1]), [1, 2]),
        (Path("x/y"), "x/y"),
        ((1, 2), [1, 2]),
        ({1: 2}, {"1": 2}),
        ({1, "a"}, ["a", 1]),
        (Pair(1, 2), [1, 2]),
        (deque([1]), [1]),
        (Decimal("1.50"), "1.50"),
        (timedelta(minutes=5), "PT5M"),
        (IPv4Address("127.0.0.1"), "127.0.0.1"),
        (Share(0.5), 0.5),
    ],
)
def test_values_of_python_have_their_json_form(value: Any, expected: Any) -> None:
    assert wire.decode_plain(value) == expected


@pytest.mark.parametrize("value", [object(), 1 + 2j, b"bytes", "\ud800", {(1,): 2}, 2**64])
def test_a_value_without_a_json_form_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        wire.encode(value)


def test_canonical_bytes_do_not_depend_on_the_order_of_keys() -> None:
    one = wire.encode_canonical({"b": 1, "a": {"d": 1, "c": 2}})
    other = wire.encode_canonical({"a": {"c": 2, "d": 1}, "b": 1})
    assert one == other == b'{"a":{"c":2,"d":1},"b":1}'


def test_pretty_bytes_are_for_people_and_mean_the_same() -> None:
    assert wire.decode_value(wire.encode_pretty({"a": [1]}), LIMITS) == {"a": [1]}
    assert b"\n" in wire.encode_pretty({"a": [1]})


def test_each_kind_of_message_has_its_bytes() -> None:
    assert wire.encode_error("a", -32600, "no") == (
        b'{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"no"}}'
    )
    assert wire.encode_error(None, 1, "no", [2]) == (
        b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no","data":[2]}}'
    )
    assert wire.encode_error_raw(1, 2, "\n", b"[3]") == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":2,"message":"\\n","data":[3]}}'
    )
    assert wire.encode_notification("m", {"a": 1}) == (
        b'{"jsonrpc":"2.0","method":"m","params":{"a":1}}'
    )
    assert wire.encode_batch([b"1", b"2"]) == b"[1,2]"


@given(st.one_of(st.none(), texts, st.integers(-(2**63), 2**64 - 1)))
def test_an_id_keeps_its_type_and_value_on_the_way_out(request_id: wire.Id) -> None:
    for line in (
        wire.encode_result(request_id, b"0"),
        wire.encode_error(request_id, 1, "m"),
        wire.encode_error_raw(request_id, 1, "m", b"0"),
    ):
        message = wire.decode(line, LIMITS)
        assert isinstance(message, Response)
        assert message.id == request_id
        assert type(message.id) is type(request_id)


def test_validation_is_strict_and_still_reads_types_that_json_encodes_as_text() -> None:
    number: Any = pydantic.TypeAdapter(int).validator
    path: Any = pydantic.TypeAdapter(Path).validator
    colour: Any = pydantic.TypeAdapter(Colour).validator
    with pytest.raises(ValueError, match="integer"):
        validate_strictly(number, "5")
    with pytest.raises(ValueError, match="integer"):
        validate_strictly(number, True)
    assert validate_strictly(path, "a") == Path("a")
    assert validate_strictly(colour, "red") is Colour.RED


# --- numbers that would be changed ----------------------------------------------------------------


def asked(number: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"n":%b}}' % number.encode()


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**25, -(10**300)])
@pytest.mark.parametrize("shape", ["{}", "[{}]", '{{"a":[1,{}]}}', '["5\\"",{}]'])
def test_an_integer_of_more_than_64_bits_is_refused_by_the_id_of_its_request(
    number: int, shape: str
) -> None:
    message = wire.decode(asked(shape.format(number)), Limits())
    assert isinstance(message, Invalid)
    assert (message.id, message.code) == (7, wire.INVALID_PARAMS)
    assert f"the integer {number}"[:30] in message.message
    assert "send it as a string" in message.message
    assert len(message.message) < 200


@pytest.mark.parametrize(
    "number",
    [
        *map(str, (2**64 - 1, -(2**63), 10**18, -(10**18))),
        "0.123456789012345678901234567890",
        "-12345678901234567890.5",
        "12345678901234567890e2",
        "1e-20000000000000000000",
        "1E+0000000000000000000001",
        '"123456789012345678901234567890"',
        '"a\\"123456789012345678901234567890"',
        '"\\\\","123456789012345678901234567890"',
    ],
)
def test_other_digits_than_a_large_integer_are_decoded(number: str) -> None:
    message = wire.decode(asked(f"[{number}]"), Limits())
    assert isinstance(message, Request), message


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "9" * 400, "9" * 400 + ".5"])
def test_a_number_that_would_be_infinite_is_refused(number: str) -> None:
    assert isinstance(wire.decode(asked(number), Limits()), Invalid)


def test_in_a_batch_every_request_is_refused_by_its_id() -> None:
    batch = b"[%b,%b,5]" % (asked("1"), asked(str(2**70)).replace(b'"id":7', b'"id":8'))
    messages = wire.decode(batch, Limits())
    assert isinstance(messages, list)
    assert [getattr(each, "id", None) for each in messages] == [7, 8, None]
    assert all(isinstance(each, Invalid) for each in messages)


def test_a_response_with_such_an_integer_is_an_error_for_its_caller() -> None:
    answer = b'{"jsonrpc":"2.0","id":3,"result":%d}' % (2**70)
    message = wire.decode(answer, Limits())
    assert isinstance(message, Response)
    assert message.id == 3
    assert message.error is not None
    assert "send it as a string" in message.error["message"]


def test_an_id_of_more_than_64_bits_is_still_no_id() -> None:
    message = wire.decode(b'{"jsonrpc":"2.0","id":%d,"method":"m"}' % (2**70), Limits())
    assert isinstance(message, Invalid)
    assert message.id is None


def test_a_value_with_such_an_integer_is_too_big() -> None:
    with pytest.raises(TooBig, match="18446744073709551616 has more than 64 bits"):
        wire.decode_value(b"[18446744073709551616]", Limits())
    assert wire.decode_value(b"[18446744073709551616]", Limits(), exact=False) == [2.0**64]


@given(st.integers(min_value=-(2**80), max_value=2**80))
def test_an_integer_is_decoded_exactly_or_refused(number: int) -> None:
    message = wire.decode(asked(str(number)), Limits())
    if -(2**63) <= number < 2**64:
        assert isinstance(message, Request)
        assert message.params == {"n": number}
    else:
        assert isinstance(message, Invalid)
