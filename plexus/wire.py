"""Bytes to messages and messages to bytes: the only module that touches JSON.

Rules:
- Any bytes either become messages or an `Invalid` that carries its JSON-RPC error; nothing else
  is ever raised, so one bad line cannot end a connection.
- An id keeps its exact type and value. Integers beyond 64 bits would be read as floats and come
  back changed, so an id that is neither a string, an integer nor null is refused.
- Size, number of containers and depth are refused here, the first two before parsing.
- What is written contains no raw newline, so a line is a message.
- An event is encoded once and spliced, as finished bytes, into whatever envelope needs it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from plexus.errors import TooBig
from plexus.events import Event
from plexus.limits import Limits

__all__ = (
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "Id",
    "Invalid",
    "Lines",
    "Message",
    "Notification",
    "Request",
    "Response",
    "decode",
    "decode_plain",
    "decode_value",
    "encode",
    "encode_batch",
    "encode_canonical",
    "encode_error",
    "encode_error_raw",
    "encode_event",
    "encode_notification",
    "encode_pretty",
    "encode_request",
    "encode_result",
    "event_encoders",
    "validate",
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
        value = decode_value(data, limits)
    except TooBig as error:
        return Invalid(None, INVALID_REQUEST, error.message, error.data)
    except ValueError as error:
        return Invalid(None, PARSE_ERROR, f"not JSON: {error}")
    if value.__class__ is dict:
        return _envelope(value)
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
        _envelope(entry)
        if isinstance(entry, dict)
        else Invalid(None, INVALID_REQUEST, "each message of a batch must be an object")
        for entry in value
    ]


def decode_value(data: bytes | bytearray, limits: Limits) -> Any:
    """Read one JSON value; raises `TooBig` past the limits and ValueError for what is no JSON."""
    openers = data.count(b"{") + data.count(b"[")
    if openers > limits.message_containers:
        raise TooBig(
            f"more than {limits.message_containers} arrays and objects in one message",
            data={"limit": limits.message_containers},
        )
    value = orjson.loads(data)
    # Fewer openers than levels allowed cannot nest too deeply: nearly every message ends here.
    if openers > limits.message_depth and _deeper_than(value, limits.message_depth):
        raise TooBig(
            f"nested deeper than {limits.message_depth} levels",
            data={"limit": limits.message_depth},
        )
    return value


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _envelope(value: dict[str, Any]) -> Message:
    request_id = value.get("id")
    id_class = request_id.__class__
    if id_class is not int and id_class is not str and request_id is not None:
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


class Lines:
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


def _plain(value: Any) -> Any:
    """Turn what orjson does not know into what it knows."""
    if isinstance(value, Event):
        fields = value.__class__.fields
        return {"type": value.type} | {
            name.rstrip("_"): field
            for name, default in fields.items()
            if (field := getattr(value, name)) is not None or default is not None
        }
    dump = getattr(value, "model_dump", None)  # a pydantic model, without importing pydantic
    if dump is not None:
        return dump(mode="json", exclude_none=True)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, enum.Enum):
        return value.value
    fspath = getattr(value, "__fspath__", None)
    if fspath is not None:
        return fspath()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def encode(value: Any) -> bytes:
    """JSON bytes of any value; raises TypeError for what has no JSON form."""
    return orjson.dumps(value, _plain)


class EventEncoders(dict[type[Event], Callable[[Event], bytes]]):
    """For each class of events the function that writes one; made when first asked for."""

    def __missing__(self, event_class: type[Event]) -> Callable[[Event], bytes]:
        self[event_class] = encoder = _event_encoder(event_class)
        return encoder


def _event_encoder(event_class: type[Event]) -> Callable[[Event], bytes]:
    """Write the function that turns an event of this class into bytes.

    Its result is always a fresh copy in its right size: what orjson returns sits in a block of a
    kilobyte, and a log that keeps thousands of those spends its time on page faults. An optional
    field that is None is left out: clients choke on null.
    """
    scope: dict[str, Any] = {"dumps": orjson.dumps, "plain": _plain}
    required = [name for name, default in event_class.fields.items() if default is not None]
    optional = [name for name, default in event_class.fields.items() if default is None]
    if not optional and len(required) <= 2:
        keys = [orjson.dumps(name.rstrip("_")) for name in required]
        tag = orjson.dumps(event_class.type)
        head, *rest = (part.replace(b"%", b"%%") for part in (tag, *keys))
        template = b'{"type":' + head + b"".join(b"," + key + b":%b" for key in rest) + b"}"
        scope["template"] = template
        values = ", ".join(f"dumps(event.{name}, plain)" for name in required) or "()"
        body = f"return template % ({values})"
    else:
        scope["tag"] = event_class.type
        values = "".join(f", {name.rstrip('_')!r}: event.{name}" for name in required)
        lines = [f"value = {{'type': tag{values}}}"]
        lines += [
            f"if event.{name} is not None: value[{name.rstrip('_')!r}] = event.{name}"
            for name in optional
        ]
        body = "\n    ".join([*lines, 'return b"%b" % dumps(value, plain)'])
    exec(f"def encode(event):\n    {body}", scope)
    encoder: Callable[[Event], bytes] = scope["encode"]
    return encoder


event_encoders: Final = EventEncoders()


def encode_event(event: Event) -> bytes:
    """JSON bytes of an event; raises TypeError if it holds what has no JSON form."""
    return event_encoders[event.__class__](event)


def encode_canonical(value: Any) -> bytes:
    """The same bytes for equal values at every boot: what a hash is made of."""
    return orjson.dumps(value, _plain, orjson.OPT_SORT_KEYS)


def encode_pretty(value: Any) -> bytes:
    """Indented JSON for a person."""
    return orjson.dumps(value, _plain, orjson.OPT_INDENT_2)


def encode_result(request_id: Id, result: bytes) -> bytes:
    """A response around a result that is bytes already."""
    if request_id.__class__ is int:
        return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request_id, result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(request_id), result)


def encode_error(request_id: Id, code: int, message: str, data: Any = None) -> bytes:
    """An error response; `data` is left out when there is none."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (orjson.dumps(request_id), encode(error))


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


class JsonValidator(Protocol):
    """What this module asks of a pydantic validator."""

    def validate_json(self, data: bytes, /, *, strict: bool, extra: Literal["forbid"]) -> Any: ...


def validate(validator: JsonValidator, value: Any) -> Any:
    """Validate a decoded value by the rules for JSON, strictly: "5" is no number, and objects
    are closed at every level.

    pydantic is strict *and* reads dates, enums and paths from text only when it validates JSON,
    so the value goes through bytes once more; that costs a fifth of a microsecond.
    """
    return validator.validate_json(orjson.dumps(value), strict=True, extra="forbid")


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
