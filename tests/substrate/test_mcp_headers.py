"""Headers that repeat the body: what fits is let through, and everything else is refused."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_network import BOTH, ENVELOPE, STATELESS, Client, body_of, request, stateless
from network import DEMO, Server, serving

REMOTE = DEMO.parent / "substrate" / "remote_activation.py"
MISMATCH = -32020

Headers = list[tuple[str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(REMOTE)) as running:
        yield running


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def post(server: Server, message: Any, headers: Headers) -> tuple[int, Any]:
    """POST a message with exactly these headers, repeated ones too."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)
    body = json.dumps(message).encode()
    connection.putrequest("POST", "/mcp")
    always = [("Content-Type", "application/json"), ("Accept", BOTH)]
    for name, value in [*always, ("Content-Length", str(len(body))), *headers]:
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def code_of(answered: tuple[int, Any]) -> int | None:
    """The code of a refusal, None for an answer; a refusal is always a bad request here."""
    status, answer = answered
    assert status == (400 if "error" in answer else 200), answer
    assert answer["id"] == 1
    code: int | None = answer.get("error", {}).get("code")
    return code


LIST = stateless("tools/list")
ECHO = stateless("tools/call", {"name": "demo.echo", "arguments": {"text": "a"}})
VERSION = ("MCP-Protocol-Version", STATELESS)
LISTS = [VERSION, ("Mcp-Method", "tools/list")]
CALLS = [VERSION, ("Mcp-Method", "tools/call")]


@pytest.mark.parametrize(
    ("message", "headers", "code"),
    [
        (LIST, LISTS, None),
        (LIST, [("mcp-protocol-version", STATELESS), ("MCP-METHOD", "tools/list")], None),
        (LIST, [VERSION, ("Mcp-Method", "  tools/list \t")], None),
        (LIST, [VERSION, ("Mcp-Method", encoded("tools/list"))], None),
        (LIST, [], MISMATCH),
        (LIST, [VERSION], MISMATCH),
        (LIST, [("Mcp-Method", "tools/list")], MISMATCH),
        (LIST, [VERSION, ("Mcp-Method", "prompts/list")], MISMATCH),
        (LIST, [VERSION, ("Mcp-Method", "TOOLS/LIST")], MISMATCH),
        (LIST, [VERSION, ("Mcp-Method", "")], MISMATCH),
        (LIST, [("MCP-Protocol-Version", "2025-11-25"), ("Mcp-Method", "tools/list")], MISMATCH),
        (LIST, [("MCP-Protocol-Version", "1999-01-01"), ("Mcp-Method", "tools/list")], MISMATCH),
        (LIST, [*LISTS, ("Mcp-Method", "tools/list")], MISMATCH),
        (LIST, [*LISTS, VERSION], MISMATCH),
        (LIST, [*LISTS, ("Mcp-Name", "whatever")], None),
        (LIST, [*LISTS, ("Mcp-Name", "a"), ("Mcp-Name", "b")], MISMATCH),
        (ECHO, [*CALLS, ("Mcp-Name", "demo.echo")], None),
        (ECHO, [*CALLS, ("Mcp-Name", encoded("demo.echo"))], None),
        (ECHO, CALLS, MISMATCH),
        (ECHO, [*CALLS, ("Mcp-Name", "demo_echo")], MISMATCH),
        (ECHO, [*CALLS, ("Mcp-Name", "=?base64?ZGVtby5lY2hv?")], MISMATCH),
    ],
)
def test_routing_headers_must_say_what_the_body_says(
    server: Server, message: Any, headers: Headers, code: int | None
) -> None:
    assert code_of(post(server, message, headers)) == code


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("resources/read", "uri"),
        ("tasks/get", "taskId"),
        ("tasks/update", "taskId"),
        ("tasks/cancel", "taskId"),
    ],
)
def test_each_method_is_named_by_its_own_parameter(server: Server, method: str, key: str) -> None:
    message = stateless(method, {key: "ä thing"})
    headers = [VERSION, ("Mcp-Method", method)]
    assert code_of(post(server, message, headers)) == MISMATCH
    assert code_of(post(server, message, [*headers, ("Mcp-Name", "another")])) == MISMATCH
    fits = post(server, message, [*headers, ("Mcp-Name", encoded("ä thing"))])
    assert fits[1]["error"]["code"] != MISMATCH


def test_what_is_no_whole_envelope_is_refused_as_that(server: Server) -> None:
    for meta in ({}, {"io.modelcontextprotocol/protocolVersion": STATELESS}):
        answered = post(server, request("tools/list", {"_meta": meta}), [VERSION])
        assert code_of(answered) == -32602


def test_a_mismatch_comes_before_a_revision_that_is_not_supported(server: Server) -> None:
    meta = ENVELOPE | {"io.modelcontextprotocol/protocolVersion": "v9"}
    message = request("tools/list", {"_meta": meta})
    assert code_of(post(server, message, LISTS)) == MISMATCH
    headers = [("MCP-Protocol-Version", "v9"), ("Mcp-Method", "tools/list")]
    assert code_of(post(server, message, headers)) == -32022


def deploy(arguments: Any) -> Any:
    return stateless("tools/call", {"name": "remote.deploy", "arguments": arguments})


@pytest.mark.parametrize(
    ("arguments", "headers", "code"),
    [
        ({}, [], None),
        ({"region": "eu"}, [("Mcp-Param-Region", "eu")], None),
        ({"region": "eu"}, [("mcp-param-region", " eu ")], None),
        ({"region": "Hello"}, [("Mcp-Param-Region", "=?base64?SGVsbG8=?=")], None),
        ({"region": "SGVsbG8="}, [("Mcp-Param-Region", "SGVsbG8=")], None),
        ({"region": "=?base64?SGVsbG8="}, [("Mcp-Param-Region", "=?base64?SGVsbG8=")], None),
        ({"region": "größer"}, [("Mcp-Param-Region", encoded("größer"))], None),
        ({"copies": 3}, [("Mcp-Param-Copies", "3")], None),
        ({"copies": 3}, [("Mcp-Param-Copies", "3.0")], None),
        ({"fast": True}, [("Mcp-Param-Fast", "true")], None),
        ({"copies": None, "fast": None}, [], None),
        ({}, [("Mcp-Param-Unknown", "x")], None),
        ({"region": "eu"}, [], MISMATCH),
        ({"region": "eu"}, [("Mcp-Param-Region", "us")], MISMATCH),
        ({"region": "eu"}, [("Mcp-Param-Region", "EU")], MISMATCH),
        ({"region": "eu"}, [("Mcp-Param-Region", "eu"), ("Mcp-Param-Region", "eu")], MISMATCH),
        ({"region": "Hello"}, [("Mcp-Param-Region", "=?base64?SGVsbG8?=")], MISMATCH),
        ({"region": "Hello"}, [("Mcp-Param-Region", "=?base64?SGVs!!!bG8=?=")], MISMATCH),
        ({"region": "Hello"}, [("Mcp-Param-Region", "=?base64?/w==?=")], MISMATCH),
        ({"region": "größer"}, [("Mcp-Param-Region", "größer")], MISMATCH),
        ({}, [("Mcp-Param-Region", "eu")], MISMATCH),
        ({"region": None}, [("Mcp-Param-Region", "eu")], MISMATCH),
        ({"region": ["eu"]}, [("Mcp-Param-Region", "eu")], MISMATCH),
        ({"copies": 3}, [("Mcp-Param-Copies", "4")], MISMATCH),
        ({"copies": 3}, [("Mcp-Param-Copies", "three")], MISMATCH),
        ({"copies": 3}, [("Mcp-Param-Copies", "NaN")], MISMATCH),
        ({"fast": True}, [("Mcp-Param-Fast", "True")], MISMATCH),
        ({"fast": False}, [("Mcp-Param-Fast", "0")], MISMATCH),
    ],
)
def test_arguments_that_a_tool_wants_repeated_are_compared(
    server: Server, arguments: Any, headers: Headers, code: int | None
) -> None:
    always = [*CALLS, ("Mcp-Name", "remote.deploy")]
    assert code_of(post(server, deploy(arguments), always + headers)) == code


def test_what_is_no_call_of_a_known_tool_is_left_to_the_view(server: Server) -> None:
    for params in (
        {"name": "no.such"},
        {"name": "remote.deploy", "arguments": ["eu"]},
        {"name": 5},
    ):
        headers = [*CALLS, ("Mcp-Name", str(params["name"])), ("Mcp-Param-Region", "us")]
        assert code_of(post(server, stateless("tools/call", params), headers)) == -32602


def test_in_a_session_no_header_is_compared(server: Server) -> None:
    client = Client(server)
    wrong = {"Mcp-Method": "prompts/list", "Mcp-Name": "another", "Mcp-Param-Region": "us"}
    params = {"name": "remote.deploy", "arguments": {"region": "eu"}}
    response = client.post(request("tools/call", params), headers=wrong)
    assert body_of(response)["result"]["content"][0]["text"] == "eu None None"
