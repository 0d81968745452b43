"""Bytes to messages and messages to bytes: the codec of envelopes.

JSON is read and written here, and the bytes of events in `plexus.rpc.event_encoder`; no other
module does either.

Rules:
- Any bytes either become messages or an `Invalid` that carries its JSON-RPC error; nothing else
  is ever raised, so one bad line cannot end a connection.
- A number is read and written as it is, or refused. The decoder reads integers of more than 64
  bits as floats and refuses floats that are too large; the encoder writes NaN as null.
- An id keeps its exact type and value.
- Size, numbers of containers and members, and depth are limited here, all but the last before
  parsing. Every check takes linear time.
- An error answer is bounded where it is encoded, so no error can be larger, whatever it quotes.
- What is written contains no raw newline, so a line is a message.
- An event is encoded once and spliced, as finished bytes, into whatever envelope needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from plexus.errors import InvalidEvent, TooBig
from plexus.limits import Limits
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
    """Somebody wants an answer."""

    id: Id
    method: str
    params: dict[str, Any] | list[Any] | None


class Notification(NamedTuple):
    """Somebody says something and wants no answer."""

    method: str
    params: dict[str, Any] | list[Any] | None


class Response(NamedTuple):
    """An answer to a request of ours: `error` is None when it went well."""

    id: Id
    result: Any
    error: dict[str, Any] | None


class Invalid(NamedTuple):
    """Bytes that are no message, with the error to answer them by."""

    id: Id
    code: int
    message: str
    data: Any = None


Message: TypeAlias = Request | Notification | Response | Invalid


# --- reading ---------------------------------------------------------------------------------


def decode(data: bytes | bytearray, limits: Limits) -> Message | list[Message]:
    """Read one message, or a batch of them; never raises."""
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
        return _refused(value, fault, limits)
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
            f"a batch may hold at most {limits.batch_requests} messages",
            {"limit": limits.batch_requests},
        )
    return [
        _envelope(entry, limits)
        if isinstance(entry, dict)
        else Invalid(None, INVALID_REQUEST, "each message of a batch must be an object")
        for entry in value
    ]


def _refused(value: Any, fault: str, limits: Limits) -> Message | list[Message]:
    """Return what stands for a message with an integer that was read as another number: each
    request is answered, and what waits for an answer of the peer's gets an error."""
    if isinstance(value, list) and len(value) <= limits.batch_requests:
        entries = [each if isinstance(each, dict) else {} for each in value]
        return [_refused_envelope(each, fault, limits) for each in entries] or [
            Invalid(None, INVALID_REQUEST, fault)
        ]
    if not isinstance(value, dict):
        return Invalid(None, INVALID_REQUEST, fault)
    return _refused_envelope(value, fault, limits)


def _refused_envelope(value: dict[str, Any], fault: str, limits: Limits) -> Message:
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
    """Read one JSON value; raises `TooBig` past the limits and for integers of more than 64 bits,
    and ValueError for what is no JSON. If not `exact`, such an integer is read as a float."""
    value = read_value(data, limits)
    fault = find_large_integer(data) if exact else None
    if fault is not None:
        raise TooBig(fault, data={"limit": INTEGERS.stop - 1})
    return value


def decode_trusted(data: bytes) -> Any:
    """Read JSON that belongs to the program itself, without limits; raises ValueError."""
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
    """Cuts a stream of bytes into lines, at 0x0A only, however the bytes arrive.

    A line past the limit is not kept: its bytes are thrown away up to the next newline and one
    `Invalid` stands for it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[Message | list[Message]]:
        """Take what has arrived and return the messages that are complete by now."""
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
            # A blank line, or a carriage return before the newline, is no message and no fault,
            # unless it is too long to be kept until its end is known.
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
        """The stream is over: what stands there without a newline is a message too."""
        return self.feed(b"\n")


# --- writing ---------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """JSON bytes of any value; raises TypeError for what has no JSON form."""
    try:
        return orjson.dumps(value, plain)
    except TypeError:  # the option makes every other value slower
        return orjson.dumps(value, plain, orjson.OPT_NON_STR_KEYS)


def encode_exact(value: Any, subject: str) -> bytes:
    """JSON bytes of a value; raises InvalidEvent, with the subject, for what JSON cannot hold."""
    try:
        raw = encode(value)
    except TypeError as error:
        raise InvalidEvent(find_fault(value, subject) or f"{subject}: {error}") from error
    if b"null" in raw:
        fault = find_fault(value, subject)
        if fault is not None:
            raise InvalidEvent(fault)
    return raw


def encode_canonical(value: Any) -> bytes:
    """The same bytes for equal values at every boot: what a hash is made of."""
    return orjson.dumps(value, plain, orjson.OPT_SORT_KEYS)


def encode_pretty(value: Any) -> bytes:
    """Indented JSON for a person."""
    return orjson.dumps(value, plain, orjson.OPT_INDENT_2)


def encode_result(request_id: Id, result: bytes) -> bytes:
    """A response around a result that is bytes already."""
    if request_id.__class__ is int:
        return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request_id, result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(request_id), result)


def encode_error(
    request_id: Id,
    code: int,
    message: str,
    data: Any = None,
    *,
    limit: int = Limits.error_bytes,
) -> bytes:
    """An error response of at most `limit` bytes; `data` is left out when there is none."""
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
    """Cut an error down to about half of `limit` bytes as JSON: a quarter for the message, and
    of `data` those members that fit into another, the others by name in `left_out`."""
    # A character takes at most six bytes as JSON.
    message = shorten(message, limit // 24)
    if data is None:
        return message, None
    room = limit // 4
    if not isinstance(data, dict):
        return message, data if len(encode(data)) <= room else {"left_out": ["data"]}
    kept, left_out = {}, []
    for name, value in itertools.islice(data.items(), MEMBERS_KEPT):
        size = len(encode(name)) + len(encode(value)) + 2
        if size <= room:
            room -= size
            kept[name] = value
        else:
            left_out.append(name[:MEMBERS_KEPT])
    return message, kept | {"left_out": left_out or ["data"]}


#: How many members of an error's data are looked at, and how much of their names is quoted, where
#: the data is too large as a whole.
MEMBERS_KEPT: Final = 32


def encode_request(request_id: Id, method: str, params: Any) -> bytes:
    """A request of ours to a peer; without parameters if they are None."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return orjson.dumps(message if params is None else message | {"params": params})


def encode_notification(method: str, params: Any) -> bytes:
    """A notification of ours to a peer; without parameters if they are None."""
    message = {"jsonrpc": "2.0", "method": method}
    return orjson.dumps(message if params is None else message | {"params": params})


def encode_batch(messages: Iterable[bytes]) -> bytes:
    """A batch of messages that are bytes already."""
    return b"[%b]" % b",".join(messages)


def decode_plain(value: Any) -> Any:
    """The plain JSON value that this value becomes on a wire."""
    return orjson.loads(encode(value))


def encode_error_raw(request_id: Id, code: int, message: str, data: bytes) -> bytes:
    """An error response around data that is bytes already."""
    return b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b,"data":%b}}' % (
        orjson.dumps(request_id),
        code,
        orjson.dumps(message),
        data,
    )
