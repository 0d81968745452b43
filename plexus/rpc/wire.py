"""The JSON-RPC codec: bytes to messages and messages to bytes.

JSON is encoded and decoded only here, in `plexus.rpc.json_values` and in
`plexus.rpc.event_encoder`.

Rules:
- Any bytes decode to messages or to an `Invalid` with its JSON-RPC error; decoding never raises, so
  one invalid line cannot end a connection.
- A number is encoded and decoded exactly, or refused. The decoder reads integers of more than 64
  bits as floats and refuses floats that are too large; the encoder writes NaN as null.
- An id keeps its exact type and value.
- Size, numbers of containers and members, and depth are limited here, all but the last before
  parsing. Every check takes linear time.
- The size of an error response is limited where it is encoded, whatever it quotes.
- Encoded messages contain no raw newline, so a line is a message.
- An event is encoded once and spliced, as bytes, into every envelope.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from plexus.errors import InvalidEvent, TooBig
from plexus.limits import DEFAULT_LIMITS, Limits
from plexus.rpc.event_encoder import encode_event, event_encoders, event_text
from plexus.rpc.json_values import INTEGERS, find_fault, find_large_integer, plain, read_value
from plexus.text import shorten

__all__ = (
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "Id",
    "Invalid",
    "LineDecoder",
    "Message",
    "Notification",
    "Request",
    "Response",
    "decode",
    "decode_plain",
    "decode_trusted",
    "decode_value",
    "encode",
    "encode_batch",
    "encode_canonical",
    "encode_error",
    "encode_error_raw",
    "encode_event",
    "encode_exact",
    "encode_notification",
    "encode_pretty",
    "encode_request",
    "encode_result",
    "encoded",
    "event_encoders",
    "event_text",
    "shorten_error",
)

Id: TypeAlias = str | int | None

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603


class Request(NamedTuple):
    """A message that requires a response."""

    id: Id
    method: str
    params: dict[str, Any] | list[Any] | None


class Notification(NamedTuple):
    """A message without a response."""

    method: str
    params: dict[str, Any] | list[Any] | None


class Response(NamedTuple):
    """A response to a request of ours: `error` is None on success."""

    id: Id
    result: Any
    error: dict[str, Any] | None


class Invalid(NamedTuple):
    """Bytes that are not a valid message, with the error to respond with."""

    id: Id
    code: int
    message: str
    data: Any = None


Message: TypeAlias = Request | Notification | Response | Invalid


# --- reading ---------------------------------------------------------------------------------


def decode(data: bytes | bytearray, limits: Limits) -> Message | list[Message]:
    """Decode one message or a batch. Never raises."""
    if len(data) > limits.message_bytes:
        return Invalid(
            None,
            INVALID_REQUEST,
            f"the message is larger than {limits.message_bytes} bytes",
            {"limit": limits.message_bytes},
        )
    try:
        value = read_value(data, limits)
    except TooBig as error:
        return Invalid(None, INVALID_REQUEST, error.message, error.data)
    except ValueError as error:
        return Invalid(None, PARSE_ERROR, f"not JSON: {error}")
    fault = find_large_integer(data)
    if fault is not None:
        return _reject(value, fault, limits)
    if value.__class__ is dict:
        return _envelope(value, limits)
    if not isinstance(value, list):
        return Invalid(None, INVALID_REQUEST, "a message must be an object or a batch of objects")
    if not value:
        return Invalid(None, INVALID_REQUEST, "a batch must not be empty")
    if len(value) > limits.batch_requests:
        return Invalid(
            None,
            INVALID_REQUEST,
            f"a batch may contain at most {limits.batch_requests} messages",
            {"limit": limits.batch_requests},
        )
    return [
        _envelope(entry, limits)
        if isinstance(entry, dict)
        else Invalid(None, INVALID_REQUEST, "each message of a batch must be an object")
        for entry in value
    ]


def _reject(value: Any, fault: str, limits: Limits) -> Message | list[Message]:
    """Replace a message that contains an integer which was decoded as another number.

    Each request gets an error, and a response becomes an error for the caller that waits for it.
    """
    if isinstance(value, list) and len(value) <= limits.batch_requests:
        entries = [each if isinstance(each, dict) else {} for each in value]
        return [_reject_envelope(each, fault, limits) for each in entries] or [
            Invalid(None, INVALID_REQUEST, fault)
        ]
    if not isinstance(value, dict):
        return Invalid(None, INVALID_REQUEST, fault)
    return _reject_envelope(value, fault, limits)


def _reject_envelope(value: dict[str, Any], fault: str, limits: Limits) -> Message:
    message = _envelope(value, limits)
    match message:
        case Request():
            return Invalid(message.id, INVALID_PARAMS, fault)
        case Response():
            return Response(message.id, None, {"code": INVALID_PARAMS, "message": fault})
        case Notification():
            return Invalid(None, INVALID_REQUEST, fault)
    return message


def decode_value(data: bytes | bytearray, limits: Limits, *, exact: bool = True) -> Any:
    """Decode one JSON value.

    Raises TooBig past the limits and for integers of more than 64 bits, and ValueError for invalid
    JSON. If not `exact`, such an integer is decoded as a float.
    """
    value = read_value(data, limits)
    fault = find_large_integer(data) if exact else None
    if fault is not None:
        raise TooBig(fault, data={"limit": INTEGERS.stop - 1})
    return value


def decode_trusted(data: bytes) -> Any:
    """Decode JSON of the program itself, without limits. Raises ValueError."""
    return orjson.loads(data)


def _envelope(value: dict[str, Any], limits: Limits) -> Message:
    request_id: Any = value.get("id")
    id_class = request_id.__class__
    if id_class is str:
        if len(request_id) > limits.id_chars:
            return Invalid(
                None,
                INVALID_REQUEST,
                f"an id may have at most {limits.id_chars} characters",
                {"limit": limits.id_chars},
            )
    elif id_class is not int and request_id is not None:
        return Invalid(None, INVALID_REQUEST, "an id must be a string, an integer or null")
    if value.get("jsonrpc") != "2.0":
        return Invalid(request_id, INVALID_REQUEST, 'jsonrpc must be "2.0"')
    method = value.get("method")
    if method.__class__ is str:
        params = value.get("params")
        params_class = params.__class__
        if params_class is not dict and params_class is not list and "params" in value:
            return Invalid(request_id, INVALID_REQUEST, "params must be an object or an array")
        if "result" in value or "error" in value:
            return Invalid(request_id, INVALID_REQUEST, "a request has no result and no error")
        if request_id is None and "id" not in value:
            return Notification(method, params)
        return Request(request_id, method, params)
    if "method" not in value and "id" in value and ("result" in value) is not ("error" in value):
        error = value.get("error")
        if "error" in value and not isinstance(error, dict):
            return Invalid(None, INVALID_REQUEST, "an error must be an object")
        return Response(request_id, value.get("result"), error)
    return Invalid(request_id, INVALID_REQUEST, "method must be a string")


class LineDecoder:
    """Splits a byte stream into lines, at 0x0A only, and decodes them.

    A line past the limit is not kept: its bytes are discarded up to the next newline, and one
    `Invalid` is returned for it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[Message | list[Message]]:
        """Add received bytes and return the messages that are complete."""
        *complete, rest = data.split(b"\n")
        messages: list[Message | list[Message]] = []
        for piece in complete:
            line: bytes | bytearray = piece
            if self._skipping:
                self._skipping = False
                continue
            if self._rest:
                self._rest += piece
                line, self._rest = self._rest, bytearray()
            # A blank line is ignored, unless it is too long to be kept until its end.
            if line and (len(line) > self._limits.message_bytes or not line.isspace()):
                messages.append(decode(line, self._limits))
        if not self._skipping:
            self._rest += rest
            if len(self._rest) > self._limits.message_bytes:
                messages.append(decode(self._rest, self._limits))
                self._rest = bytearray()
                self._skipping = True
        return messages

    def end(self) -> list[Message | list[Message]]:
        """Return the message at the end of the stream, which may lack its newline."""
        return self.feed(b"\n")


# --- writing ---------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Return the JSON bytes of any value. Raises TypeError for a value without a JSON form."""
    try:
        return orjson.dumps(value, plain)
    except TypeError:  # only here, because the option slows down all other values
        return orjson.dumps(value, plain, orjson.OPT_NON_STR_KEYS)


def encode_exact(value: Any, subject: str) -> bytes:
    """Return the JSON bytes of a value. Raises InvalidEvent, which names the subject."""
    try:
        raw = encode(value)
    except TypeError as error:
        raise InvalidEvent(find_fault(value, subject) or f"{subject}: {error}") from error
    if b"null" in raw:
        fault = find_fault(value, subject)
        if fault is not None:
            raise InvalidEvent(fault)
    return raw


def encoded(raw: bytes) -> Any:
    """Return a value that is encoded as these bytes, which must be JSON.

    It has no other use: a caller in this process reads it with `decode_plain`.
    """
    return orjson.Fragment(raw)


def encode_canonical(value: Any) -> bytes:
    """Return the same bytes for equal values at every start, for hashes."""
    return orjson.dumps(value, plain, orjson.OPT_SORT_KEYS)


def encode_pretty(value: Any) -> bytes:
    """Return indented JSON."""
    return orjson.dumps(value, plain, orjson.OPT_INDENT_2)


def encode_result(request_id: Id, result: bytes) -> bytes:
    """Return a response with an encoded result."""
    if request_id.__class__ is int:
        return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request_id, result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(request_id), result)


def encode_error(
    request_id: Id,
    code: int,
    message: str,
    data: Any = None,
    *,
    limit: int = DEFAULT_LIMITS.error_bytes,
) -> bytes:
    """Return an error response of at most `limit` bytes, without `data` if it is None."""
    reply = _error_reply(request_id, code, message, data)
    if len(reply) <= limit:
        return reply
    message, data = shorten_error(message, data, limit)
    reply = _error_reply(request_id, code, message, data)
    if len(reply) <= limit:
        return reply
    return _error_reply(request_id, code, f"an error of more than {limit} bytes", None)


def _error_reply(request_id: Id, code: int, message: str, data: Any) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (orjson.dumps(request_id), encode(error))


def shorten_error(message: str, data: Any, limit: int) -> tuple[str, Any]:
    """Shorten an error to about half of `limit` bytes as JSON.

    The message gets a quarter. `data` keeps the members that fit into another quarter, and lists
    the names of the others in `left_out`.
    """
    # A character needs at most six bytes as JSON.
    message = shorten(message, limit // 24)
    if data is None:
        return message, None
    capacity = limit // 4
    if not isinstance(data, dict):
        return message, data if len(encode(data)) <= capacity else {"left_out": ["data"]}
    kept, left_out = {}, []
    for name, value in itertools.islice(data.items(), MEMBERS_KEPT):
        size = len(encode(name)) + len(encode(value)) + 2
        if size <= capacity:
            capacity -= size
            kept[name] = value
        else:
            left_out.append(name[:MEMBERS_KEPT])
    return message, kept | {"left_out": left_out or ["data"]}


#: Maximum members of an error's data that are considered, and maximum characters of their names, if
#: the data as a whole is too large.
MEMBERS_KEPT: Final = 32


def encode_request(request_id: Id, method: str, params: Any) -> bytes:
    """Return a request to a peer, without `params` if they are None."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return orjson.dumps(message if params is None else message | {"params": params})


def encode_notification(method: str, params: Any) -> bytes:
    """Return a notification to a peer, without `params` if they are None."""
    message = {"jsonrpc": "2.0", "method": method}
    return orjson.dumps(message if params is None else message | {"params": params})


def encode_batch(messages: Iterable[bytes]) -> bytes:
    """Return a batch of encoded messages."""
    return b"[%b]" % b",".join(messages)


def decode_plain(value: Any) -> Any:
    """Return the plain JSON value that this value is encoded as."""
    return orjson.loads(encode(value))


def encode_error_raw(request_id: Id, code: int, message: str, data: bytes) -> bytes:
    """Return an error response with encoded data."""
    return b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b,"data":%b}}' % (
        orjson.dumps(request_id),
        code,
        orjson.dumps(message),
        data,
    )
