"""Headers of a stateless request over HTTP, which repeat what its body says.

A proxy between client and server routes by headers and does not read bodies, so a header
that says something else than the body is refused. A value that is no plain ASCII text comes as
`=?base64?...?=`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from mcp_view.errors import HEADER_MISMATCH, ProtocolError
from mcp_view.server import McpServer
from mcp_view.session import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from plexus.errors import RegistrationError
from plexus.rpc import wire

__all__ = ("check",)

VERSION: Final = b"mcp-protocol-version"
METHOD: Final = b"mcp-method"
NAME: Final = b"mcp-name"
ROUTING: Final = (VERSION, METHOD, NAME)
PARAM: Final = b"mcp-param-"

#: Which parameter `Mcp-Name` repeats.
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
    """The error that answers a request whose headers do not fit it, names in lower case; None if
    they do. What is not a whole envelope is left to the view to refuse."""
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
    """Compare the arguments that a tool wants to be repeated; raises ProtocolError."""
    tool, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(tool, str) or not isinstance(arguments, dict) or not server.find_tool(tool):
        return
    try:
        wanted = server.catalogue.headers_of(tool)
    except RegistrationError:  # a type without a schema: the tool's own answer says so
        return
    for argument, suffix in wanted.items():
        name = PARAM + suffix.lower().encode()
        if len(found) != len(headers):
            _refuse_repeated(headers, (name,))
        value = arguments.get(argument)
        if isinstance(value, str | int | float):
            _compare(found, name, value)
        elif name in found:
            raise _mismatch(name, "is there, but the body has no such value")


def _refuse_repeated(headers: Sequence[tuple[bytes, bytes]], names: Sequence[bytes]) -> None:
    """The first and the last of several may differ, and who reads which is anybody's guess."""
    for name in names:
        if sum(key == name for key, _ in headers) > 1:
            raise _mismatch(name, "is there more than once")


def _compare(found: dict[bytes, bytes], name: bytes, value: str | int | float) -> None:
    raw = found.get(name)
    if raw is None:
        raise _mismatch(name, "is missing")
    plain = not raw.startswith(ENCODED[0])
    if plain and isinstance(value, str) and value.isascii() and raw == value.encode():
        return  # nearly always
    text = _text(raw.strip(b" \t"))
    if text is None:
        raise _mismatch(name, "is not well encoded")
    if not _equal(text, value):
        raise _mismatch(name, "does not match the body")


def _text(raw: bytes) -> str | None:
    """What a header says; None if that cannot be read."""
    if raw.startswith(ENCODED[0]) and raw.endswith(ENCODED[1]):
        payload = raw[len(ENCODED[0]) : -len(ENCODED[1])]
        try:
            decoded = base64.b64decode(payload, validate=True)
            # Several texts decode to the same bytes, but only one of them is encoded like this.
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
    return ProtocolError(HEADER_MISMATCH, f"the header {name.decode('ascii', 'replace')} {what}")
