"""Any bytes become messages or an `Invalid`, whole or byte by byte, and nothing else happens.

The result is compared with that of the standard library: two decoders that agree on a million
mutated messages are probably both right.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fuzz_budget import SEED, TIMEOUT_S, rounds
from hypothesis import given
from hypothesis import strategies as st
from mutations import CORPUS, MCP_CORPUS, Mutator

from plexus.limits import Limits
from plexus.rpc import wire
from plexus.rpc.wire import Invalid, LineDecoder, Message, Notification, Request, Response

pytestmark = pytest.mark.timeout(TIMEOUT_S)

LIMITS = Limits()
#: Limits that a mutated message meets often.
TIGHT = Limits(message_bytes=300, message_depth=5, message_containers=12, batch_requests=2)
ALL = CORPUS + MCP_CORPUS
REFUSALS = (wire.PARSE_ERROR, wire.INVALID_REQUEST, wire.INVALID_PARAMS)


class NotJson(Exception):
    """The standard library in strict mode rejects this."""


def _refuse(text: str) -> Any:
    raise NotJson(text)


def _double(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotJson(text)
    return number


def _integer(text: str) -> int | float:
    # What does not fit into 64 bits is read as the nearest double, if there is one.
    if len(text) > 400:
        raise NotJson(text)
    number = int(text)
    return number if -(2**63) <= number < 2**64 else _double(text)


def is_exact(data: bytes) -> bool:
    """Return whether every integer in these bytes fits into 64 bits."""
    integers: list[int] = []
    json.loads(data.decode(), parse_int=lambda text: integers.append(int(text)))
    return all(-(2**63) <= number < 2**64 for number in integers)


def _check_text(value: Any) -> Any:
    """Check for lone surrogates. Raises UnicodeEncodeError, which is a ValueError."""
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Here, because a value whose key comes again is read too, and then lost.
    return dict(_check_text(pairs))


def decode_strictly(data: bytes) -> Any:
    """Return the meaning of these bytes in strict JSON, read by the standard library."""
    try:
        value = json.loads(
            data.decode(),
            parse_constant=_refuse,
            parse_float=_double,
            parse_int=_integer,
            object_pairs_hook=_object,
        )
        _check_text(value)
    except (ValueError, RecursionError, OverflowError) as error:
        raise NotJson from error
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether both are equal, with equal types at every level."""
    return repr(one) == repr(other)


def check_meaning(data: bytes, message: Message | list[Message]) -> None:
    """Fail if a message differs in meaning from its bytes."""
    if isinstance(message, Invalid):
        if message.code == wire.PARSE_ERROR:
            with pytest.raises(NotJson):
                decode_strictly(data)
        if message.code == wire.INVALID_PARAMS:
            assert not is_exact(data)
        return
    value = decode_strictly(data)
    if not is_exact(data):
        for each in message if isinstance(message, list) else [message]:
            assert isinstance(each, Invalid) or (isinstance(each, Response) and each.error)
        return
    entries = value if isinstance(value, list) else [value]
    for entry, each in zip(
        entries, message if isinstance(message, list) else [message], strict=True
    ):
        match each:
            case Request(request_id, method, params):
                assert same(entry["id"], request_id)
                assert (entry["method"], entry["jsonrpc"]) == (method, "2.0")
                assert same(entry.get("params"), params)
            case Notification(method, params):
                assert "id" not in entry
                assert entry["method"] == method
                assert same(entry.get("params"), params)
            case Response(request_id, result, error):
                assert same(entry["id"], request_id)
                assert same((entry.get("result"), entry.get("error")), (result, error))
            case Invalid():
                assert each.code == wire.INVALID_REQUEST


def check_answerable(message: Message | list[Message]) -> None:
    """Fail if the error for an invalid message cannot be encoded on one line."""
    for each in message if isinstance(message, list) else [message]:
        if isinstance(each, Invalid):
            error = wire.encode_error(each.id, each.code, each.message, each.data)
            assert b"\n" not in error
            assert json.loads(error)["error"]["code"] in REFUSALS


def test_every_mutated_message_means_what_its_bytes_say() -> None:
    mutator = Mutator(ALL, SEED)
    for number in rounds(0.15):
        data = mutator.next()
        try:
            message = wire.decode(data, LIMITS)
            check_meaning(data, message)
            check_answerable(message)
            check_answerable(wire.decode(data, TIGHT))
        except BaseException as error:
            error.add_note(f"FUZZ_SEED={SEED}, input {number}: {data!r}")
            raise


@pytest.mark.parametrize("limits", [LIMITS, TIGHT], ids=["usual", "tight"])
def test_a_stream_of_mutated_messages_is_the_same_byte_by_byte(limits: Limits) -> None:
    mutator = Mutator(ALL, SEED + 1)
    for number in rounds(0.075, inputs_a_round=8):
        stream = b"\n".join(mutator.next() for _ in range(8))
        try:
            whole, single = LineDecoder(limits), LineDecoder(limits)
            expected = whole.feed(stream) + whole.end()
            found = [
                message for at in range(len(stream)) for message in single.feed(stream[at : at + 1])
            ]
            assert same(found + single.end(), expected)
        except BaseException as error:
            error.add_note(f"FUZZ_SEED={SEED}, round {number}: {stream!r}")
            raise


@given(st.binary(max_size=300))
def test_any_bytes_mean_what_they_say(data: bytes) -> None:
    check_meaning(data, wire.decode(data, LIMITS))


@given(
    st.sampled_from(ALL),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5), st.binary(max_size=6)), max_size=5),
)
def test_any_message_with_some_bytes_replaced_means_what_it_says(
    message: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for at, length, instead in edits:
        message = message[:at] + instead + message[at + length :]
    check_meaning(message, wire.decode(message, LIMITS))
