"""Validation of sent messages against the official schema of their revision.

The official schemas allow additional properties. They are closed first: a message may contain only
properties that its revision names, except where the schema allows anything, as in `_meta` and in
the arguments and results of tools.

MCP_SCHEMA_DIR is the folder of the schemas, one file per revision (`2025-11-25.json`). They are
not part of this repository; without them these checks are skipped.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.jsonschema import specification_with

__all__ = ("REVISIONS", "STATELESS", "SchemaFault", "needs_schemas", "validate")

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
#: The revision whose results contain their type, and whose tasks are an extension.
STATELESS = "2026-07-28"
FOLDER = os.environ.get("MCP_SCHEMA_DIR")
DOCUMENT = "urn:mcp"

needs_schemas = pytest.mark.skipif(
    FOLDER is None,
    reason="MCP_SCHEMA_DIR is not set: it names the folder of the official schemas",
)

#: The definition of each request's result.
RESULTS = {
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "server/discover": "DiscoverResult",
    "logging/setLevel": "EmptyResult",
    "completion/complete": "CompleteResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "subscriptions/listen": "SubscriptionsListenResult",
    "tasks/get": "GetTaskResult",
    "tasks/list": "ListTasksResult",
    "tasks/cancel": "CancelTaskResult",
    # The schema does not define whose result it is; all our tasks are calls of tools.
    "tasks/result": "CallToolResult",
}
#: Errors with a separate definition, in the revisions that have it.
ERRORS = {
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
    -32042: "URLElicitationRequiredError",
}
#: Properties with content of the author of a tool, or of a client.
FREE = {"_meta", "arguments", "data", "input", "inputSchema", "metadata", "outputSchema"}
FREE |= {"structuredContent"}

Schema = dict[str, Any]
Frame = dict[str, Any]


class SchemaFault(AssertionError):
    """A message that its revision does not define."""


def validate(revision: str, frame: Frame, request_method: str | None = None) -> None:
    """Validate a sent message. Raises SchemaFault if the revision does not define it.

    `request_method` is the method of the request that a response belongs to.
    """
    if "method" in frame:
        _validate_call(revision, frame)
    elif "error" in frame:
        _validate_error(revision, frame)
    else:
        known = "JSONRPCResultResponse" in _definitions(revision)
        _check(revision, "JSONRPCResultResponse" if known else "JSONRPCResponse", frame)
        _check(revision, _result_name(revision, frame["result"], request_method), frame["result"])


#: Methods that we answer although no revision defines them.
UNSPECIFIED = frozenset({"server/info"})


def _validate_call(revision: str, frame: Frame) -> None:
    """Validate a request or a notification of the server."""
    method, is_request = frame["method"], "id" in frame
    _check(revision, "JSONRPCRequest" if is_request else "JSONRPCNotification", frame)
    if revision == STATELESS and method.startswith("notifications/tasks"):
        return  # of the extension
    definitions = _definitions(revision)
    union = definitions.get("ServerRequest" if is_request else "ServerNotification", {})
    for reference in union.get("anyOf", ()):
        name = reference["$ref"].rpartition("/")[2]
        properties = definitions[name]["properties"]
        if properties["method"]["const"] == method:
            # Older revisions define the envelope separately.
            envelope = {"jsonrpc", "id"} - set(properties)
            _check(revision, name, {key: frame[key] for key in frame if key not in envelope})
            return
    raise SchemaFault(f"{revision}: a server sends no {method}")


def _validate_error(revision: str, frame: Frame) -> None:
    definitions = _definitions(revision)
    if frame.get("id", 0) is None:
        # The schemas do not allow null, but JSON-RPC requires it if the request was unreadable.
        frame = frame | {"id": 0}
    error = frame["error"]
    name = ERRORS.get(error["code"], "") if isinstance(error, dict) and "code" in error else ""
    if name not in definitions:
        known = "JSONRPCErrorResponse" in definitions
        name = "JSONRPCErrorResponse" if known else "JSONRPCError"
    _check(revision, name, frame)


def _result_name(revision: str, result: Any, request_method: str | None) -> str:
    """Return the name of this result's definition."""
    if request_method is None or request_method in UNSPECIFIED:
        return "Result"
    stateless = revision == STATELESS
    if stateless and request_method.startswith("tasks/"):
        return "Result"  # of the extension
    if request_method not in _requests(revision):
        raise SchemaFault(f"{revision}: has no request {request_method}")
    if isinstance(result, dict):
        kind = result.get("resultType") if stateless else None
        if kind == "input_required":
            return "InputRequiredResult"
        if kind == "task":
            return "Result"
        if request_method == "tools/call" and "task" in result:
            return "CreateTaskResult"
    return RESULTS[request_method]


def _check(revision: str, name: str, value: Any) -> None:
    if name not in _definitions(revision):
        raise SchemaFault(f"{revision}: has no definition {name}")
    fault = best_match(_validator(revision, name).iter_errors(value))
    if fault is not None:
        raise SchemaFault(f"{revision}: {name}: {fault.json_path}: {fault.message}")


# --- the schemas, closed -------------------------------------------------------------------------


@cache
def _validator(revision: str, name: str) -> Validator:
    document = _document(revision)
    resource = specification_with(document["$schema"]).create_resource(document)
    registry: Registry[Any] = Registry().with_resource(DOCUMENT, resource)
    reference = {"$ref": f"{DOCUMENT}#/{_place(document)}/{name}"}
    return validator_for(document)(reference, registry=registry)


@cache
def _document(revision: str) -> Schema:
    """Return the schema of a revision with all definitions closed."""
    assert FOLDER is not None, "mark the test with needs_schemas"
    document: Schema = json.loads((Path(FOLDER) / f"{revision}.json").read_text())
    place = _place(document)
    official = document[place]
    closed = {
        # A `_meta` may contain anything, and Result is the base of every result.
        name: schema
        if name == "Result" or name.endswith("MetaObject")
        else _closed(schema, official)
        for name, schema in official.items()
    }
    closed["EmptyResult"] = _closed({"allOf": [{"$ref": f"#/{place}/Result"}]}, official)
    return document | {place: closed}


def _definitions(revision: str) -> dict[str, Schema]:
    document = _document(revision)
    definitions: dict[str, Schema] = document[_place(document)]
    return definitions


@cache
def _requests(revision: str) -> frozenset[str]:
    """Return the methods that a client of this revision can request."""
    definitions = _definitions(revision)
    names = (each["$ref"].rpartition("/")[2] for each in definitions["ClientRequest"]["anyOf"])
    return frozenset(definitions[name]["properties"]["method"]["const"] for name in names)


def _place(document: Schema) -> str:
    return "$defs" if "$defs" in document else "definitions"


def _closed(schema: Any, official: dict[str, Schema], inside: str = "") -> Any:
    """Return a schema without additional properties; `inside` is the property it describes."""
    if isinstance(schema, list):
        return [_closed(each, official) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "allOf" in schema:
        # Each part alone would reject the properties of the others.
        schema = _merged(schema, official)
    closed = {
        word: _closed(each, official)
        for word, each in schema.items()
        if word in ("items", "anyOf", "oneOf", "additionalProperties")
    }
    if "properties" in schema:
        closed["properties"] = {
            name: each if name in FREE else _closed(each, official, name)
            for name, each in schema["properties"].items()
        }
        closed.setdefault("additionalProperties", False)
        if inside == "params":  # every request and notification may carry it
            closed["properties"].setdefault("_meta", {"type": "object"})
    return schema | closed


def _merged(schema: Schema, official: dict[str, Schema]) -> Schema:
    """Merge the parts of `allOf` into one object schema."""
    properties: Schema = {}
    required: list[str] = []
    for part in schema["allOf"]:
        whole = official[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        properties |= whole["properties"]
        required += whole.get("required", ())
    return {"type": "object", "properties": properties, "required": sorted(set(required))}
