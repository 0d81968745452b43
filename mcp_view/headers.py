"""HTTP headers of a stateless request, which repeat fields of its body.

Proxies route by headers and do not read bodies, so a request whose headers differ from its body is
rejected. A value that is not plain ASCII is encoded as `=?base64?...?=`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from mcp_view.errors import HEADER_MISMATCH, ProtocolError
from mcp_view.meta_keys import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from mcp_view.server import McpServer
from plexus.errors import RegistrationError
from plexus.rpc import wire

__all__ = ("check",)

VERSION: Final = b"mcp-protocol-version"
METHOD: Final = b"mcp-method"
NAME: Final = b"mcp-name"
ROUTING: Final = (VERSION, METHOD, NAME)
PARAM: Final = b"mcp-param-"

#: The parameter that `Mcp-Name` repeats, by method.
NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}

ENCODED: Final = (b"=?base64?", b"?=")


def check(
    server: McpServer, request: wire.Request, headers: Sequence[tuple[bytes, bytes]]
) -> bytes | None:
    """Return the encoded error if the headers of a request do not match its body, or else None.

    Header names must be in lower case. The view rejects requests with an incomplete `_meta`.
    """
    params = request.params
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict):
        return None
    version = meta.get(PROTOCOL_VERSION)
    if not isinstance(version, str) or not isinstance(meta.get(CLIENT_CAPABILITIES), dict):
        return None
    try:
        found = dict(headers)
        if len(found) != len(headers):
            _refuse_repeated(headers, ROUTING)
        _compare(found, VERSION, version)
        _compare(found, METHOD, request.method)
        key = NAMED_BY.get(request.method)
        if key is not None and isinstance(params.get(key), str):
            _compare(found, NAME, params[key])
        if request.method == "tools/call":
            _check_arguments(server, params, found, headers)
    except ProtocolError as error:
        limit = server.hub.limits.error_bytes
        return wire.encode_error(request.id, error.code, error.message, error.data, limit=limit)
    return None


def _check_arguments(
    server: McpServer,
    params: dict[str, Any],
    found: dict[bytes, bytes],
    headers: Sequence[tuple[bytes, bytes]],
) -> None:
    """Compare the headers that repeat arguments of a tool. Raises ProtocolError."""
    tool, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(tool, str) or not isinstance(arguments, dict) or not server.find_tool(tool):
        return
    try:
        repeated = server.catalogue.headers_of(tool)
    except RegistrationError:  # a type without a schema, which the call reports
        return
    for argument, suffix in repeated.items():
        name = PARAM + suffix.lower().encode()
        if len(found) != len(headers):
            _refuse_repeated(headers, (name,))
        value = arguments.get(argument)
        if isinstance(value, str | int | float):
            _compare(found, name, value)
        elif name in found:
            raise _mismatch(name, "is present, but the body has no such value")


def _refuse_repeated(headers: Sequence[tuple[bytes, bytes]], names: Sequence[bytes]) -> None:
    """Raise ProtocolError for a repeated header: proxies may read another occurrence."""
    for name in names:
        if sum(key == name for key, _ in headers) > 1:
            raise _mismatch(name, "appears more than once")


def _compare(found: dict[bytes, bytes], name: bytes, value: str | int | float) -> None:
    raw = found.get(name)
    if raw is None:
        raise _mismatch(name, "is missing")
    plain = not raw.startswith(ENCODED[0])
    if plain and isinstance(value, str) and value.isascii() and raw == value.encode():
        return  # the common case
    text = _text(raw.strip(b" \t"))
    if text is None:
        raise _mismatch(name, "is not correctly encoded")
    if not _equal(text, value):
        raise _mismatch(name, "does not match the body")


def _text(raw: bytes) -> str | None:
    """Decode the value of a header; None if it is malformed."""
    if raw.startswith(ENCODED[0]) and raw.endswith(ENCODED[1]):
        payload = raw[len(ENCODED[0]) : -len(ENCODED[1])]
        try:
            decoded = base64.b64decode(payload, validate=True)
            # Accept only the canonical encoding: several texts decode to the same bytes.
            return decoded.decode() if base64.b64encode(decoded) == payload else None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return raw.decode("ascii") if raw.isascii() else None


def _equal(text: str, value: str | int | float) -> bool:
    if isinstance(value, str):
        return text == value
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    try:
        return Decimal(text) == Decimal(str(value))  # 42 is 42.0
    except InvalidOperation:
        return False


def _mismatch(name: bytes, what: str) -> ProtocolError:
    return ProtocolError(HEADER_MISMATCH, f"The header {name.decode('ascii', 'replace')} {what}.")
