"""HTTP headers of a request, which repeat fields of its body for proxies."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ("encode_value", "mirrored_arguments", "request_headers")

#: The parameter that `Mcp-Name` repeats, by method.
NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
#: A token of HTTP, which a header's name must be.
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
PLAIN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
MIRRORED_TYPES: Final = ("string", "integer", "boolean")


def mirrored_arguments(tool: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the arguments of a tool that headers repeat, with the names of the headers.

    None if an annotation is invalid: such a tool must not be offered.
    """
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    found: dict[str, str] = {}
    for argument, described in properties.items():
        if not isinstance(described, dict) or "x-mcp-header" not in described:
            continue
        name = described["x-mcp-header"]
        valid = isinstance(name, str) and TOKEN.fullmatch(name) is not None
        if not valid or described.get("type") not in MIRRORED_TYPES:
            return None
        found[argument] = name
    if len({name.lower() for name in found.values()}) != len(found):
        return None
    return found


def request_headers(
    method: str, params: Mapping[str, Any] | None, mirrored: Mapping[str, str] | None
) -> list[tuple[str, str]]:
    """Return the headers of a request without a handshake, apart from its revision."""
    headers = [("Mcp-Method", encode_value(method))]
    if params is None:
        return headers
    key = NAMED_BY.get(method)
    if key is not None and isinstance(params.get(key), str):
        headers.append(("Mcp-Name", encode_value(params[key])))
    arguments = params.get("arguments")
    if mirrored and isinstance(arguments, dict):
        for argument, name in mirrored.items():
            value = arguments.get(argument)
            if isinstance(value, bool):
                headers.append((f"Mcp-Param-{name}", "true" if value else "false"))
            elif isinstance(value, str | int | float):
                headers.append((f"Mcp-Param-{name}", encode_value(str(value))))
    return headers


def encode_value(text: str) -> str:
    """Return a value as it is, or in Base64 if it is not plain ASCII or would be misread."""
    if PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    encoded = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"=?base64?{encoded}?="
