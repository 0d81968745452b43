"""`/mcp` by a plain HTTP client against the real server: both eras, and each status."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_network import (
    BOTH,
    ENVELOPE,
    JSON,
    LATEST,
    SSE,
    STATELESS,
    Client,
    body_of,
    messages,
    read_events,
    reading,
    request,
    runs,
    send_raw,
    stateless,
    stateless_headers,
    wait_for_state,
    wait_until,
)
from network import DEMO, Server, serving

MIB = 1024 * 1024
REMOTE = DEMO.parent / "substrate" / "remote_activation.py"
INITIALIZE = request(
    "initialize",
    {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(REMOTE)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def ask(server: Server, message: Any, **headers: str) -> Any:
    """POST a message without a session: the status, and what came."""
    with server.request("POST", "/mcp", message, {"Accept": BOTH} | headers) as response:
        body = response.read()
        return response.status, json.loads(body) if body else None


def ask_stateless(server: Server, method: str, params: Any = None, name: str | None = None) -> Any:
    return ask(server, stateless(method, params), **stateless_headers(method, name))


# --- what is refused before a message is looked at ---------------------------------------------


@pytest.mark.parametrize(
    ("verb", "headers", "status", "allow"),
    [
        ("PUT", {}, 405, "GET, POST, DELETE"),
        ("OPTIONS", {}, 405, "GET, POST, DELETE"),
        ("GET", {"Accept": SSE}, 405, "POST"),
        ("GET", {"Accept": SSE, "MCP-Protocol-Version": STATELESS}, 405, "POST"),
        ("DELETE", {"MCP-Protocol-Version": STATELESS}, 405, "POST"),
        ("GET", {"Mcp-Session-Id": "nobody", "MCP-Protocol-Version": STATELESS}, 405, "POST"),
        ("GET", {"Mcp-Session-Id": "nobody"}, 404, None),
        ("DELETE", {"Mcp-Session-Id": "nobody"}, 404, None),
        ("DELETE", {}, 400, None),
    ],
)
def test_an_unsupported_verb_is_reported_by_its_status(
    server: Server, verb: str, headers: dict[str, str], status: int, allow: str | None
) -> None:
    with server.request(verb, "/mcp", headers=headers) as response:
        assert (response.status, response.headers["Allow"]) == (status, allow)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Accept": "image/png"}, 406),
        ({"Accept": "application/json;q=0"}, 406),
        ({"Accept": "image/png", "Content-Type": "text/plain"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ({"Accept": "application/*"}, 200),
        ({"Accept": "*/*"}, 200),
        ({"Accept": "text/*"}, 200),
        ({}, 200),
    ],
)
def test_types_that_are_not_spoken_here_are_refused(
    server: Server, headers: dict[str, str], status: int
) -> None:
    with server.request("POST", "/mcp", request("ping"), headers) as response:
        assert response.status == status


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_past_the_limit_is_refused_and_one_at_it_is_read(
    server: Server, declared: bool
) -> None:
    ping = json.dumps(request("ping")).encode()
    at_limit = ping + b" " * (MIB - len(ping))
    assert ask(server, at_limit)[0] == 200
    body, headers = at_limit + b" ", {}
    if not declared:
        headers = {"Transfer-Encoding": "chunked"}
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert ask(server, body, **headers) == (
        413,
        {"error": f"The body is larger than {MIB} bytes.", "limit": MIB},
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"", -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'{"jsonrpc":"1.0","id":4,"method":"ping"}', -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    ],
)
@pytest.mark.parametrize("revision", [None, LATEST, STATELESS])
def test_what_is_no_message_is_a_bad_request_in_both_eras(
    server: Server, body: bytes, code: int, revision: str | None
) -> None:
    headers = {} if revision is None else {"MCP-Protocol-Version": revision}
    status, answer = ask(server, body, **headers)
    assert (status, answer["error"]["code"]) == (400, code)
    assert answer["id"] == (4 if b"1.0" in body else None)


# --- sessions ----------------------------------------------------------------------------------


def test_a_handshake_begins_a_session_whose_name_cannot_be_guessed(server: Server) -> None:
    names = {Client(server).session for _ in range(5)}
    assert len(names) == 5
    assert all(len(name) >= 32 and name.isalnum() and name.isascii() for name in names)


def test_a_handshake_is_answered_as_a_stream_for_those_who_take_nothing_else(
    server: Server,
) -> None:
    with server.request("POST", "/mcp", INITIALIZE, {"Accept": SSE}) as response:
        assert response.headers["Mcp-Session-Id"]
        assert messages(response)[0]["result"]["protocolVersion"] == LATEST


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_revision_with_a_handshake_has_sessions(server: Server, revision: str) -> None:
    client = Client(server, revision)
    assert client.settled["protocolVersion"] == revision
    assert "tools" in body_of(client.post(request("tools/list")))["result"]


@pytest.mark.parametrize("revision", ["1999-01-01", STATELESS])
def test_a_handshake_for_another_revision_is_answered_with_our_newest(
    server: Server, revision: str
) -> None:
    params = INITIALIZE["params"] | {"protocolVersion": revision}
    status, answer = ask(
        server, request("initialize", params), **{"MCP-Protocol-Version": revision}
    )
    assert (status, answer["result"]["protocolVersion"]) == (200, LATEST)


def test_a_bad_handshake_begins_no_session(server: Server) -> None:
    response = server.request("POST", "/mcp", request("initialize", {}), {"Accept": BOTH})
    assert (response.status, response.headers["Mcp-Session-Id"]) == (400, None)
    assert body_of(response)["error"]["code"] == -32602


def test_a_second_handshake_in_a_session_is_a_bad_request(client: Client) -> None:
    response = client.post(INITIALIZE)
    assert response.status == 400
    assert body_of(response)["error"]["code"] == -32600


@pytest.mark.parametrize(
    "message",
    [
        request("tools/list", number="mine"),
        request("server/discover", number="mine"),
        request("nothing", number="mine"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 5, "result": {}},
    ],
)
def test_without_a_session_a_message_is_a_bad_request(server: Server, message: Any) -> None:
    status, answer = ask(server, message)
    assert (status, answer["error"]["code"]) == (400, -32002)
    assert answer["error"]["message"] == "Server not initialized"
    assert answer["id"] == ("mine" if "id" in message and "method" in message else None)


def test_ping_is_answered_without_a_session(server: Server) -> None:
    assert ask(server, request("ping")) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})


def test_a_session_that_is_not_there_is_not_found(server: Server) -> None:
    status, answer = ask(server, request("tools/list", number=7), **{"Mcp-Session-Id": "0" * 32})
    assert status == 404
    assert answer == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32001, "message": "Session not found"},
    }


def test_ending_a_session_stops_what_runs_in_it_and_nothing_else(server: Server) -> None:
    first, second = Client(server), Client(server)
    with reading(first.call("demo.wait", token=1)) as events:
        next(events)
        assert first.delete() == 204
        assert [event for event in events if event.data and "id" in event.message] == []
    wait_for_state(server, "demo.wait", "cancelled")
    assert first.delete() == 404
    assert first.post(request("ping")).status == 404
    assert first.get().status == 404
    assert second.post(request("ping")).status == 200


def test_ending_a_session_answers_those_who_wait_for_json(server: Server) -> None:
    client = Client(server)
    statuses: list[int] = []

    def wait() -> None:
        with client.call("demo.wait", accept=JSON) as response:
            statuses.append(response.status)

    waiting = threading.Thread(target=wait)
    before = runs(server, "demo.wait").count("running")
    waiting.start()
    wait_for_state(server, "demo.wait", "running")
    assert runs(server, "demo.wait").count("running") == before + 1
    client.delete()
    waiting.join(15)
    assert statuses == [202]


@pytest.mark.parametrize("named", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_a_header_with_another_revision_that_has_handshakes_is_let_be(
    client: Client, named: str
) -> None:
    response = client.post(request("ping"), headers={"MCP-Protocol-Version": named})
    assert response.status == 200


@pytest.mark.parametrize("named", ["invalid", "2000-01-01", "2099-01-01", ""])
def test_a_header_with_an_unknown_revision_is_a_bad_request(client: Client, named: str) -> None:
    response = client.post(request("tools/list"), headers={"MCP-Protocol-Version": named})
    assert response.status == 400


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "method": "notifications/unheard_of"},
        {"jsonrpc": "2.0", "id": 99, "result": {"anything": 1}},
        {"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "no"}},
    ],
)
def test_what_needs_no_answer_is_accepted_without_a_body(client: Client, message: Any) -> None:
    response = client.post(message)
    assert (response.status, response.read()) == (202, b"")


@pytest.mark.parametrize("number", [0, "uuid:0", 2**53])
def test_an_id_comes_back_as_it_was(client: Client, number: Any) -> None:
    assert body_of(client.post(request("ping", number=number)))["id"] == number


def test_errors_in_a_session_are_answers_like_any_other(client: Client) -> None:
    for message, code in (
        (request("no/such/method"), -32601),
        (request("tools/call", {"name": "no.such"}), -32602),
        (request("resources/read", {"uri": "no://such"}), -32002),
    ):
        response = client.post(message)
        assert response.status == 200  # 404 would say that the session is gone
        assert body_of(response)["error"]["code"] == code


# --- one answer or a stream --------------------------------------------------------------------


def test_a_short_call_is_answered_by_one_text(client: Client) -> None:
    response = client.call("demo.echo", {"text": "hi"})
    assert response.headers["Content-Type"] == JSON
    assert body_of(response)["result"]["content"] == [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize(("accept", "token"), [(SSE, None), (SSE, 1), (BOTH, 0), (BOTH, "t")])
def test_a_short_call_is_a_stream_for_those_who_want_one(
    client: Client, accept: str, token: Any
) -> None:
    response = client.call("demo.echo", {"text": "hi"}, accept=accept, token=token)
    assert response.headers["Content-Type"].startswith(SSE)
    *before, last = messages(response)
    assert last["result"]["content"] == [{"type": "text", "text": "hi"}]
    assert all(message["method"] == "notifications/progress" for message in before)


@pytest.mark.parametrize("accept", [JSON, "*/*", "application/*"])
def test_a_long_call_is_one_text_for_those_who_take_no_stream(client: Client, accept: str) -> None:
    response = client.call("remote.steps", {"to": 3}, token=1, accept=accept)
    assert body_of(response)["result"]["content"] == [{"type": "text", "text": "arrived"}]


def test_a_stream_begins_before_the_call_ends(server: Server, client: Client) -> None:
    with reading(client.call("remote.pass_gate")) as events:
        assert next(events).data == ""
        assert runs(server, "remote.pass_gate")[0] == "running"
        client.call("remote.open_gate").read()
        assert next(events).message["result"]["content"][0]["text"] == "through"


def test_the_headers_of_a_stream_keep_proxies_from_collecting_it(client: Client) -> None:
    response = client.call("remote.steps", {"to": 1})
    assert response.headers["X-Accel-Buffering"] == "no"
    assert "no-cache" in response.headers["Cache-Control"]
    response.read()


def test_progress_comes_with_the_clients_token_and_before_the_answer(client: Client) -> None:
    *progress, answer = messages(client.call("remote.steps", {"to": 3}, token="mine"))
    assert {message["params"]["progressToken"] for message in progress} == {"mine"}
    values = [message["params"]["progress"] for message in progress]
    assert values == sorted(set(values))
    assert [message["params"]["message"] for message in progress][:3] == [
        "step 1",
        "step 2",
        "step 3",
    ]
    assert "result" in answer


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    settings = {"SUBSTRATE_LIMITS__KEEP_ALIVE_S": "0.1"}
    with serving(settings=settings) as server, Client(server).call("demo.wait") as response:
        seen = b""
        while seen.count(b": keep-alive\n\n") < 3:
            seen += response.read1(100)


def test_a_cancelled_call_is_never_answered(server: Server, client: Client) -> None:
    with reading(client.call("demo.wait", token=1, number="c")) as events:
        assert next(events).data == ""
        assert next(events).message["method"] == "notifications/progress"
        assert client.notify("notifications/cancelled", {"requestId": "c"}) == 202
        assert list(events) == []
    wait_for_state(server, "demo.wait", "cancelled")


def test_a_cancel_for_another_session_cancels_nothing(server: Server, client: Client) -> None:
    with reading(client.call("demo.wait", number="c")) as events:
        next(events)
        Client(server).notify("notifications/cancelled", {"requestId": "c"})
        assert client.post(request("ping")).status == 200
        assert runs(server, "demo.wait")[0] == "running"


def test_a_question_is_asked_in_the_stream_and_answered_by_a_post(server: Server) -> None:
    client = Client(server, capabilities={"elicitation": {"form": {}}})
    other = Client(server, capabilities={"elicitation": {"form": {}}})
    with reading(client.call("remote.burn")) as events:
        assert next(events).data == ""
        asked = next(events).message
        assert asked["method"] == "elicitation/create"
        answer = {"jsonrpc": "2.0", "id": asked["id"]}
        schema = asked["params"]["requestedSchema"]["properties"]
        content = dict.fromkeys(schema, True)
        result = {"action": "accept", "content": content}
        assert other.post(answer | {"result": result}).status == 202  # not asked, not heard
        assert runs(server, "remote.burn")[0] == "asking"
        assert client.post(answer | {"result": result}).status == 202
        assert next(events).message["result"]["content"][0]["text"] == "burnt"
        assert list(events) == []


# --- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [BOTH, JSON, SSE])
def test_a_batch_is_answered_by_one_array(server: Server, accept: str) -> None:
    client = Client(server, "2025-03-26")
    call = {"name": "remote.steps", "arguments": {"to": 1}}
    batch = [
        request("ping", number="a"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}},
        request("tools/call", call, number="b"),
        request("no/such", number="c"),
    ]
    response = client.post(batch, accept)
    assert response.status == 200
    (answers,) = messages(response)
    assert {answer["id"] for answer in answers} == {"a", "b", "c"}


def test_a_batch_that_asks_nothing_is_accepted_without_a_body(server: Server) -> None:
    client = Client(server, "2025-03-26")
    with reading(client.call("demo.wait", number="c")) as events:
        cancel = {"method": "notifications/cancelled", "params": {"requestId": "c"}}
        response = client.post([{"jsonrpc": "2.0"} | cancel])
        assert (response.status, response.read()) == (202, b"")
        assert list(events) == []


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_batch_is_a_bad_request_where_there_are_none(server: Server, revision: str) -> None:
    client = Client(server, revision)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    for batch in ([request("ping")], [note], [request("ping"), note]):
        response = client.post(batch)
        assert response.status == 400
        assert body_of(response)["error"]["code"] == -32600


# --- without a handshake -----------------------------------------------------------------------


def test_a_stateless_request_needs_no_session_and_begins_none(server: Server) -> None:
    message = stateless("server/discover")
    headers = stateless_headers("server/discover")
    for extra in ({}, {"Mcp-Session-Id": "nobody", "Last-Event-ID": "1:1"}):
        response = server.request("POST", "/mcp", message, headers | extra)
        assert (response.status, response.headers["Mcp-Session-Id"]) == (200, None)
        assert STATELESS in body_of(response)["result"]["supportedVersions"]


def test_a_stateless_call_is_answered_at_once_or_as_a_stream_without_ids(server: Server) -> None:
    status, answer = ask_stateless(
        server, "tools/call", {"name": "demo.echo", "arguments": {"text": "a"}}, "demo.echo"
    )
    assert (status, answer["result"]["resultType"]) == (200, "complete")
    params = {
        "name": "remote.steps",
        "arguments": {"to": 2},
        "_meta": ENVELOPE | {"progressToken": "t"},
    }
    message, headers = (
        request("tools/call", params),
        stateless_headers("tools/call", "remote.steps"),
    )
    with server.request("POST", "/mcp", message, headers) as response:
        assert response.headers["Content-Type"].startswith(SSE)
        events = list(read_events(response))
    assert {event.id for event in events} == {None}
    assert [event.message.get("method") for event in events][-2:] == [
        "notifications/progress",
        None,
    ]


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("no/such", {}, 404, -32601),
        ("ping", {}, 404, -32601),
        ("initialize", {}, 404, -32601),
        ("logging/setLevel", {"level": "info"}, 404, -32601),
        ("resources/subscribe", {"uri": "a://b"}, 404, -32601),
        ("tools/list", {"_meta": {}}, 400, -32602),
        ("tools/list", {"_meta": None}, 400, -32602),
        ("tools/call", {"name": "no.such"}, 400, -32602),
        ("resources/read", {"uri": "no://such"}, 400, -32602),
        ("subscriptions/listen", {}, 400, -32602),
    ],
)
def test_a_stateless_refusal_has_its_status(
    server: Server, method: str, params: Any, status: int, code: int
) -> None:
    answered = ask_stateless(server, method, params, params.get("name", params.get("uri")))
    assert (answered[0], answered[1]["error"]["code"]) == (status, code)
    assert answered[1]["id"] == 1


def test_the_error_for_an_unknown_revision_lists_the_supported_ones(server: Server) -> None:
    named = "v999.0.0"
    meta = ENVELOPE | {"io.modelcontextprotocol/protocolVersion": named}
    headers = stateless_headers("tools/list") | {"MCP-Protocol-Version": named}
    status, answer = ask(server, request("tools/list", {"_meta": meta}), **headers)
    assert (status, answer["error"]["code"]) == (400, -32022)
    assert answer["error"]["data"]["requested"] == named
    assert STATELESS in answer["error"]["data"]["supported"]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}, 202),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400),
        ([stateless("tools/list")], 400),
    ],
)
def test_without_a_handshake_a_body_is_a_request_or_a_notification(
    server: Server, message: Any, status: int
) -> None:
    assert ask(server, message, **{"MCP-Protocol-Version": STATELESS})[0] == status


@pytest.mark.parametrize("accept", [BOTH, JSON])
def test_hanging_up_without_a_handshake_cancels_at_once(server: Server, accept: str) -> None:
    params = {"name": "demo.wait", "_meta": ENVELOPE | {"progressToken": 1}}
    headers = stateless_headers("tools/call", "demo.wait") | {"Accept": accept}
    before = len(runs(server, "demo.wait"))
    with send_raw(server, request("tools/call", params), headers):
        wait_until(lambda: len(runs(server, "demo.wait")) > before)
        wait_for_state(server, "demo.wait", "running")
    wait_for_state(server, "demo.wait", "cancelled")


def test_a_listening_stream_is_acknowledged_and_notified_of_changes() -> None:
    with serving("--activation", str(REMOTE)) as server:
        params = {"notifications": {"toolsListChanged": True}}
        message = stateless("subscriptions/listen", params, number="mine")
        headers = stateless_headers("subscriptions/listen")
        with reading(server.request("POST", "/mcp", message, headers)) as events:
            acknowledged = next(events).message
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            Client(server).call("remote.grow").read()
            changed = next(events).message
            assert changed["method"] == "notifications/tools/list_changed"
            assert list(changed["params"]["_meta"].values()) == ["mine"]
            server.process.terminate()
            farewell = next(events).message
            assert (farewell["id"], farewell["result"]["resultType"]) == ("mine", "complete")
            assert list(events) == []


def test_listening_needs_a_client_that_takes_a_stream(server: Server) -> None:
    message = stateless("subscriptions/listen", {"notifications": {}})
    headers = stateless_headers("subscriptions/listen")
    for accept, status in ((JSON, 406), ("*/*", 200)):
        with server.request("POST", "/mcp", message, headers | {"Accept": accept}) as response:
            assert response.status == status


# --- methods of the hub ------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [None, LATEST, STATELESS])
def test_methods_of_the_hub_are_called_without_a_session(
    server: Server, revision: str | None
) -> None:
    headers = {} if revision is None else {"MCP-Protocol-Version": revision}
    message = request("demo.echo", {"text": "a"})
    once = server.request("POST", "/mcp", message, headers | {"Accept": JSON})
    assert body_of(once)["result"]["terminal"] == {"type": "complete", "result": "a"}
    reply, item = messages(server.request("POST", "/mcp", message, headers | {"Accept": BOTH}))
    assert reply["result"] == item["params"]["subscription"]
    assert item["params"]["result"] == {"type": "complete", "result": "a"}


def test_methods_of_the_hub_are_streamed_as_they_are(server: Server, client: Client) -> None:
    message = request("remote.steps", {"to": 2})
    for response in (
        server.request("POST", "/mcp", message, {"Accept": SSE}),
        client.post(message),
    ):
        reply, *items = messages(response)
        types = [item["params"]["result"]["type"] for item in items]
        assert reply["id"] == 1
        assert types == ["progress", "progress", "content", "complete"]


def test_a_notification_for_a_method_of_the_hub_runs_it_once(
    server: Server, client: Client
) -> None:
    message = {"jsonrpc": "2.0", "method": "demo.count", "params": {"to": 1}}
    with reading(client.call("demo.wait")) as events:
        next(events)
        before = len(runs(server, "demo.count"))
        assert client.post(message).status == 202
        assert ask(server, message) == (202, None)
        assert ask(server, message, **{"MCP-Protocol-Version": STATELESS}) == (202, None)
        assert len(runs(server, "demo.count")) == before + 3
