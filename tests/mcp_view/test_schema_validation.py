"""The validator of messages accepts messages of a revision and refuses all others."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_schema import REVISIONS, SchemaFault, needs_schemas, validate

pytestmark = needs_schemas

SERVER = {"name": "substrate", "version": "1.0.0"}
TOOL: dict[str, Any] = {"name": "count.up", "inputSchema": {"type": "object", "x": 1}}
TEXT = {"type": "text", "text": "hello"}
TASK = {
    "taskId": "7",
    "status": "working",
    "createdAt": "2026-01-02T03:04:05Z",
    "lastUpdatedAt": "2026-01-02T03:04:05Z",
    "ttl": None,
}
LEGACY = REVISIONS[:-1]
STATELESS = REVISIONS[-1]


def answer(result: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "result": result} | more


def tell(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def ask(method: str, **params: Any) -> dict[str, Any]:
    return tell(method, **params) | {"id": "ask-1"}


def refuse(code: int, **data: Any) -> dict[str, Any]:
    error = {"code": code, "message": "no"} | ({"data": data} if data else {})
    return {"jsonrpc": "2.0", "id": 1, "error": error}


def called(revision: str, **more: Any) -> dict[str, Any]:
    """Return a minimal tool result of this revision."""
    kind = {"resultType": "complete"} if revision == STATELESS else {}
    return {"content": [TEXT]} | kind | more


def listed(revision: str, **more: Any) -> dict[str, Any]:
    cached = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}
    return {"tools": [TOOL]} | (cached if revision == STATELESS else {}) | more


GOOD: list[tuple[str, tuple[str, ...], dict[str, Any], str | None]] = [
    (
        "a handshake",
        LEGACY,
        answer(
            {
                "protocolVersion": "2025-11-25",
                "serverInfo": SERVER,
                "capabilities": {"tools": {"listChanged": True}, "logging": {}},
            }
        ),
        "initialize",
    ),
    ("a pong", LEGACY, answer({}), "ping"),
    ("progress", REVISIONS, tell("notifications/progress", progressToken=0, progress=1), None),
    (
        "progress with meta",
        REVISIONS,
        tell("notifications/progress", progressToken="x", progress=1, _meta={"k": 1}),
        None,
    ),
    (
        "a remark",
        REVISIONS,
        tell("notifications/message", level="info", data={"any": ["thing"]}),
        None,
    ),
    ("a changed list", REVISIONS, tell("notifications/tools/list_changed"), None),
    (
        "a question to a model",
        LEGACY,
        ask(
            "sampling/createMessage",
            messages=[{"role": "user", "content": TEXT}],
            maxTokens=10,
        ),
        None,
    ),
    ("a question about roots", LEGACY, ask("roots/list"), None),
    ("an error", REVISIONS, refuse(-32602, any="thing"), "tools/call"),
    ("an error without an id", REVISIONS, refuse(-32700) | {"id": None}, None),
    (
        "a form",
        ("2025-06-18", "2025-11-25"),
        ask(
            "elicitation/create",
            message="Who?",
            requestedSchema={"type": "object", "properties": {"name": {"type": "string"}}},
        ),
        None,
    ),
    ("a new task", ("2025-11-25",), answer({"task": TASK}), "tools/call"),
    ("a task", ("2025-11-25",), answer(TASK), "tasks/get"),
    ("a result of a task", ("2025-11-25",), answer({"content": [TEXT]}), "tasks/result"),
    ("the state of a task", ("2025-11-25",), tell("notifications/tasks/status", **TASK), None),
    (
        "a task of the extension",
        (STATELESS,),
        answer({"resultType": "task", "taskId": "7", "ttlMs": 1}),
        "tools/call",
    ),
    ("an answer of the extension", (STATELESS,), answer({"resultType": "complete"}), "tasks/get"),
    (
        "a question in a result",
        (STATELESS,),
        answer(
            {
                "resultType": "input_required",
                "requestState": "abc",
                "inputRequests": {"where": {"method": "roots/list", "params": {}}},
            }
        ),
        "tools/call",
    ),
    (
        "a discovery",
        (STATELESS,),
        answer(
            {
                "resultType": "complete",
                "supportedVersions": [STATELESS],
                "capabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
                "ttlMs": 0,
                "cacheScope": "public",
                "_meta": {"io.modelcontextprotocol/serverInfo": SERVER, "more": 1},
            }
        ),
        "server/discover",
    ),
    (
        "a missing capability",
        (STATELESS,),
        refuse(-32021, requiredCapabilities={"sampling": {}}, more=1),
        "tools/call",
    ),
]

CASES = [
    pytest.param(revision, frame, method, id=f"{about} of {revision}")
    for about, revisions, frame, method in GOOD
    for revision in revisions
]


@pytest.mark.parametrize(("revision", "frame", "method"), CASES)
def test_a_message_of_the_revision_is_accepted(
    revision: str, frame: dict[str, Any], method: str | None
) -> None:
    validate(revision, frame, method)


@pytest.mark.parametrize(("revision", "frame", "method"), CASES)
def test_a_message_with_additional_fields_is_refused(
    revision: str, frame: dict[str, Any], method: str | None
) -> None:
    with pytest.raises(SchemaFault, match="extra"):
        validate(revision, frame | {"extra": 1}, method)


@pytest.mark.parametrize("revision", REVISIONS)
def test_results_of_tools_are_accepted_in_every_revision(revision: str) -> None:
    validate(revision, answer(called(revision, isError=True)), "tools/call")
    validate(revision, answer(listed(revision, nextCursor="2")), "tools/list")
    validate(revision, answer(called(revision, _meta={"anything": {"at": "all"}})), "tools/call")


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    ("frame", "method"),
    [
        pytest.param(answer({"content": "text"}), "tools/call", id="content that is no list"),
        pytest.param(answer({}), "tools/call", id="no content"),
        pytest.param(answer({"extra": 1}), "ping", id="more than an empty result"),
        pytest.param(tell("notifications/progress", progressToken=1), None, id="no progress"),
        pytest.param(
            tell("notifications/progress", progressToken=None, progress=1), None, id="no token"
        ),
        pytest.param(tell("notifications/unheard_of"), None, id="an unknown notification"),
        pytest.param(tell("notifications/initialized"), None, id="what clients say"),
        pytest.param(ask("tools/call", name="x"), None, id="what clients ask"),
        pytest.param(answer({}), "unheard/of", id="an answer to nothing"),
        pytest.param(answer({}) | {"id": None}, "ping", id="a result without an id"),
        pytest.param(answer({}) | {"jsonrpc": "1.0"}, "ping", id="another protocol"),
        pytest.param(refuse(-32602) | {"id": 1.5}, None, id="an id that is no integer"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "error": "no"}, None, id="an error of text"),
    ],
)
def test_a_broken_message_is_refused(
    revision: str, frame: dict[str, Any], method: str | None
) -> None:
    with pytest.raises(SchemaFault, match=revision):
        validate(revision, frame, method)


@pytest.mark.parametrize("revision", REVISIONS)
def test_null_is_not_the_same_as_absent(revision: str) -> None:
    with pytest.raises(SchemaFault, match="nextCursor"):
        validate(revision, answer(listed(revision, nextCursor=None)), "tools/list")
    undescribed = listed(revision, tools=[TOOL | {"description": None}])
    with pytest.raises(SchemaFault, match="description"):
        validate(revision, answer(undescribed), "tools/list")


@pytest.mark.parametrize(
    ("since", "frame", "method"),
    [
        (
            "2025-03-26",
            tell("notifications/progress", progressToken=1, progress=1, message="m"),
            None,
        ),
        (
            "2025-03-26",
            answer({"tools": [TOOL | {"annotations": {"readOnlyHint": True}}]}),
            "tools/list",
        ),
        ("2025-03-26", answer({"content": [{"type": "audio", "data": "", "mimeType": "a/b"}]}), ""),
        ("2025-06-18", answer({"tools": [TOOL | {"title": "Up"}]}), "tools/list"),
        (
            "2025-06-18",
            answer({"tools": [TOOL | {"outputSchema": {"type": "object"}}]}),
            "tools/list",
        ),
        ("2025-06-18", answer({"content": [TEXT], "structuredContent": {"a": 1}}), ""),
        (
            "2025-06-18",
            answer({"content": [{"type": "resource_link", "name": "n", "uri": "u"}]}),
            "",
        ),
        ("2025-06-18", answer({"content": [TEXT | {"_meta": {}}]}), ""),
        ("2025-11-25", answer({"tools": [TOOL | {"icons": []}]}), "tools/list"),
        (
            "2025-11-25",
            answer({"tools": [TOOL | {"execution": {"taskSupport": "optional"}}]}),
            "tools/list",
        ),
        ("2025-11-25", answer(TASK), "tasks/get"),
        (
            "2025-11-25",
            ask(
                "elicitation/create",
                message="Who?",
                requestedSchema={
                    "type": "object",
                    "properties": {"name": {"type": "string", "default": "me"}},
                },
            ),
            None,
        ),
    ],
)
def test_a_field_is_refused_before_the_revision_that_introduced_it(
    since: str, frame: dict[str, Any], method: str | None
) -> None:
    method = "tools/call" if method == "" else method
    for revision in LEGACY:
        if revision >= since:
            validate(revision, frame, method)
        else:
            with pytest.raises(SchemaFault):
                validate(revision, frame, method)


@pytest.mark.parametrize(
    ("frame", "method"),
    [
        pytest.param(answer({"content": [TEXT]}), "tools/call", id="no kind of result"),
        pytest.param(answer({"tools": [], "resultType": "complete"}), "tools/list", id="no ttl"),
        pytest.param(answer({"resultType": "complete"}), "ping", id="a pong"),
        pytest.param(ask("roots/list"), None, id="a request of the server"),
        pytest.param(refuse(-32021, requiredCapabilities=["sampling"]), None, id="a list of names"),
        pytest.param(refuse(-32022), None, id="no word on what is supported"),
        pytest.param(
            answer({"resultType": "input_required", "inputRequests": {"a": {"method": "ping"}}}),
            "tools/call",
            id="an unknown question",
        ),
        pytest.param(
            answer(listed(STATELESS, tools=[TOOL | {"execution": {"taskSupport": "required"}}])),
            "tools/list",
            id="a field that is gone",
        ),
    ],
)
def test_the_revision_without_a_handshake_is_as_strict(
    frame: dict[str, Any], method: str | None
) -> None:
    with pytest.raises(SchemaFault):
        validate(STATELESS, frame, method)


def test_a_schema_error_names_its_location() -> None:
    frame = answer({"content": [{"type": "text", "text": 5}]})
    with pytest.raises(SchemaFault, match=r"2025-11-25: CallToolResult: \$\.content\[0\]"):
        validate("2025-11-25", frame, "tools/call")
