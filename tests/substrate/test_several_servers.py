"""Two servers on one PostgreSQL database: whichever answers, a client sees one server."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types as types
import pytest
from child_processes import clean_environment
from mcp.client.streamable_http import streamable_http_client
from mcp_network import (
    BOTH,
    ENVELOPE,
    LATEST,
    SSE,
    Client,
    body_of,
    messages,
    read_events,
    reading,
    request,
    runs,
    stateless,
    stateless_headers,
    wait_until,
)
from network import REPOSITORY, Server
from postgres_server import PostgresServer
from several_servers import Address, Replicas, create_token, replicas
from websockets.sync.client import connect

pytestmark = pytest.mark.timeout(120)

FORMS: dict[str, Any] = {"elicitation": {}}


@pytest.fixture(scope="module")
def token(_own_data_folder: None) -> str:
    return create_token("ada", "--scope", "*")


@pytest.fixture(scope="module")
def both(token: str) -> Iterator[Replicas]:
    """Two servers behind a proxy that sends each request to the next one."""
    with replicas(token=token) as found:
        yield found


@pytest.fixture(scope="module", params=["round_robin", "nginx"])
def proxied(request: pytest.FixtureRequest, token: str) -> Iterator[Replicas]:
    with replicas(request.param, token=token) as found:
        yield found


def session_at(address: Address, **options: Any) -> Client:
    return Client(address, **options)


def status(response: http.client.HTTPResponse) -> int:
    """Return the status of a response and close it."""
    with response:
        return response.status


def elsewhere(client: Client, address: Address) -> Client:
    """Return the same session, as a client that reaches another server."""
    moved = object.__new__(Client)
    moved._server = address
    moved.session, moved.headers, moved.settled = client.session, client.headers, client.settled
    return moved


# --- clients behind a proxy ----------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_official_client_works_whichever_server_answers(
    proxied: Replicas, mode: str
) -> None:
    asked: list[str] = []
    steps: list[float] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:  # noqa: ARG001
        asked.append(params.message)
        content: dict[str, Any] = {"answer": "there"} if "Where" in params.message else {}
        return types.ElicitResult(action="accept", content=content)

    async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
        steps.append(progress)

    url = f"http://127.0.0.1:{proxied.all.port}/mcp?tools=all"
    headers = {"Authorization": f"Bearer {proxied.token}"}
    with anyio.fail_after(60):
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(url, http_client=http)
            async with mcp.Client(transport, mode=mode, elicitation_callback=answer) as client:
                for _ in range(4):
                    listed = await client.list_tools()
                    assert "demo.count" in [tool.name for tool in listed.tools]
                    result = await client.call_tool(
                        "demo.count", {"to": 3}, progress_callback=report
                    )
                    assert "1 2 3" in str(result.content)
                if mode == "legacy":
                    result = await client.call_tool("demo.delete", {})
                    assert "deleted there" in str(result.content)
    assert steps
    if mode == "legacy":
        assert asked == ["Delete 3 files?", "Where?"]


def test_a_native_client_works_over_http_and_websocket(proxied: Replicas) -> None:
    for _ in range(4):
        with proxied.all.call("demo.echo", {"text": "hi"}) as response:
            assert body_of(response)["result"]["terminal"]["result"] == "hi"
        with proxied.all.stream("demo.count", {"to": 2}) as response:
            assert [event.message for event in read_events(response)]
    headers = {"Authorization": f"Bearer {proxied.token}"}
    for _ in range(2):
        url = f"ws://127.0.0.1:{proxied.all.port}/rpc"
        with connect(url, additional_headers=headers, proxy=None) as socket:
            socket.send(json.dumps(request("demo.echo", {"text": "hi"})))
            assert "result" in json.loads(socket.recv(10))


def test_events_pass_the_proxy_at_once(proxied: Replicas) -> None:
    client = session_at(proxied.all)
    # The call never ends: a proxy that collects events would send none.
    with client.call("demo.wait", token="t") as response:
        event = next(each for each in read_events(response) if each.data)
        assert event.message["params"]["message"] == "waiting"


# --- sessions ------------------------------------------------------------------------------------


def test_every_server_knows_a_session(both: Replicas) -> None:
    client = session_at(both.first)
    there = elsewhere(client, both.second)
    assert body_of(there.post(request("tools/list")))["result"]["tools"]
    assert status(there.call("demo.echo", {"text": "x"})) == 200


def test_a_session_keeps_its_revision_and_its_chosen_tools(both: Replicas) -> None:
    params = {"protocolVersion": "2025-03-26", "capabilities": {}}
    response = both.first.request(
        "POST", "/mcp?tools=demo.echo", request("initialize", params), {"Accept": BOTH}
    )
    headers = {"Mcp-Session-Id": response.headers["Mcp-Session-Id"], "Accept": BOTH}
    assert body_of(response)["result"]["protocolVersion"] == "2025-03-26"
    answer = both.second.request("POST", "/mcp", [request("tools/list")], headers)
    ((listed,),) = [messages(answer)[0]]
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["demo.echo"]


def test_what_a_client_sets_on_one_server_holds_on_the_others(both: Replicas) -> None:
    client = session_at(both.first)
    there = elsewhere(client, both.second)
    assert status(there.call("demo.echo", {"text": "restored there"})) == 200
    level = request("logging/setLevel", {"level": "error"})
    assert status(client.post(level)) == 200
    uri = "run://1"
    assert status(client.post(request("resources/subscribe", {"uri": uri}))) == 200
    row = f"SELECT level FROM mcp_sessions WHERE id = '{client.session}'"
    assert both.rows(row) == [(4,)]
    stored = (
        "SELECT convert_from(uri, 'UTF8') FROM mcp_subscriptions"
        f" WHERE session = '{client.session}'"
    )
    assert both.rows(stored) == [(uri,)]
    unsubscribe = request("resources/unsubscribe", {"uri": uri})
    assert status(there.post(unsubscribe)) == 200
    assert both.rows(stored) == []
    assert both.rows(row) == [(4,)], "the other server has not stored its earlier level again"


def test_a_setting_holds_on_every_server_when_it_is_acknowledged(both: Replicas) -> None:
    client = session_at(both.first)
    servers = [client, elsewhere(client, both.second)]
    assert status(servers[1].post(request("ping"))) == 200
    stored = f"SELECT uri FROM mcp_subscriptions WHERE session = '{client.session}'"
    for number in range(10):
        here, there = servers if number % 2 else reversed(servers)
        uri = {"uri": f"run://{number}"}
        assert status(here.post(request("resources/subscribe", uri))) == 200
        assert status(there.post(request("resources/unsubscribe", uri))) == 200
        assert both.rows(stored) == []
        for server, level in ((here, "error"), (there, "debug")):
            assert status(server.post(request("logging/setLevel", {"level": level}))) == 200
        row = f"SELECT level FROM mcp_sessions WHERE id = '{client.session}'"
        assert both.rows(row) == [(0,)]


def test_a_deleted_session_is_unknown_to_every_server(both: Replicas) -> None:
    client = session_at(both.first)
    there = elsewhere(client, both.second)
    assert status(there.call("demo.echo", {"text": "x"})) == 200
    with there.get() as stream:
        assert stream.status == 200
        assert client.delete() == 204
        list(read_events(stream))  # the stream on the other server ends
    assert status(there.call("demo.echo", {"text": "x"})) == 404
    assert status(client.call("demo.echo", {"text": "x"})) == 404
    assert there.delete() == 404
    assert both.rows(f"SELECT * FROM mcp_sessions WHERE id = '{client.session}'") == []


def test_a_session_is_not_found_with_another_token(both: Replicas) -> None:
    client = session_at(both.first)
    of_another = create_token("eve", "--scope", "*")
    of_the_same = create_token("ada2", "--scope", "*", "--as", "ada")
    for secret in (of_another, of_the_same):
        for address in (both.first, both.second):
            there = elsewhere(client, Address(address.port, secret))
            assert status(there.post(request("tools/list"))) == 404
            assert there.delete() == 404
    assert status(elsewhere(client, both.second).post(request("tools/list"))) == 200


def test_a_revoked_token_ends_its_sessions_on_every_server(both: Replicas) -> None:
    secret = create_token("brief", "--scope", "*")
    first, second = (Address(each.port, secret) for each in (both.first, both.second))
    client = session_at(first)
    with elsewhere(client, second).get() as stream:
        assert stream.status == 200
        command = [sys.executable, "-m", "substrate", "token", "revoke", "brief"]
        subprocess.run(command, cwd=REPOSITORY, env=clean_environment(), timeout=30, check=True)
        list(read_events(stream))
    for address in (first, second):
        assert status(elsewhere(client, address).post(request("ping"))) == 401
    wait_until(lambda: not both.rows(f"SELECT 1 FROM mcp_sessions WHERE id = '{client.session}'"))


def test_an_unused_session_expires(both: Replicas) -> None:
    client = session_at(both.first)
    both.rows(f"UPDATE mcp_sessions SET used_ms = used_ms - 3600001 WHERE id = '{client.session}'")
    assert status(elsewhere(client, both.second).post(request("ping"))) == 404
    session_at(both.second)
    assert both.rows(f"SELECT * FROM mcp_sessions WHERE id = '{client.session}'") == []


def test_a_client_that_declares_too_much_is_refused(both: Replicas) -> None:
    params = {"protocolVersion": LATEST, "capabilities": {"experimental": {"x": "y" * 70_000}}}
    response = both.first.request("POST", "/mcp", request("initialize", params), {"Accept": BOTH})
    assert response.status == 400
    assert body_of(response)["error"]["data"] == {"limit": 65536}


def test_an_invalid_session_id_is_unknown(both: Replicas) -> None:
    for wrong in ("x", "'; --", "a" * 5000, "\xff"):
        headers = {"Mcp-Session-Id": wrong, "Accept": BOTH}
        assert status(both.first.request("POST", "/mcp", request("ping"), headers)) == 404


# --- requests of another server ------------------------------------------------------------------


def test_a_cancellation_reaches_the_server_of_its_request(both: Replicas) -> None:
    client = session_at(both.first)
    with client.call("demo.wait", token="t", number=7) as response:
        stream = read_events(response)
        next(each for each in stream if each.data)
        there = elsewhere(client, both.second)
        assert there.notify("notifications/cancelled", {"requestId": 7}) == 202
        assert [each for each in stream if each.data] == [], "a cancelled request has no answer"
    assert runs(both.first, "demo.wait")[0] == "cancelled"


def test_an_answer_reaches_the_server_that_asked(both: Replicas) -> None:
    client = session_at(both.first, capabilities=FORMS)
    there = elsewhere(client, both.second)
    with client.call("demo.delete", number=3) as response:
        stream = (each.message for each in read_events(response) if each.data)
        for content in ({}, {"answer": "here"}):
            asked = next(stream)
            assert asked["method"] == "elicitation/create"
            assert re.fullmatch(r"\d+\.\d+", asked["id"]), "unique on all servers"
            answer = {"action": "accept", "content": content}
            assert (
                status(there.post({"jsonrpc": "2.0", "id": asked["id"], "result": answer})) == 202
            )
        assert "deleted here" in next(stream)["result"]["content"][0]["text"]


def test_a_refused_answer_reaches_the_server_that_asked(both: Replicas) -> None:
    client = session_at(both.first, capabilities=FORMS)
    with client.call("demo.delete", number=3) as response:
        stream = (each.message for each in read_events(response) if each.data)
        failed = {"jsonrpc": "2.0", "id": next(stream)["id"], "error": {"code": 1, "message": "no"}}
        assert status(elsewhere(client, both.second).post(failed)) == 202
        assert next(stream)["result"]["isError"]


def test_a_message_of_another_token_reaches_no_request(both: Replicas) -> None:
    client = session_at(both.first)
    stranger = Address(both.second.port, create_token("mallory", "--scope", "*"))
    with client.call("demo.wait", {"seconds": 1}, token="t", number=7) as response:
        stream = read_events(response)
        next(each for each in stream if each.data)
        there = elsewhere(client, stranger)
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        assert status(there.post(message | {"params": {"requestId": 7}})) == 404
        assert "waited" in [each.data for each in stream if each.data][-1]


def test_a_message_of_the_older_transport_reaches_the_server_of_its_stream(both: Replicas) -> None:
    response = both.first.request("GET", "/sse", headers={"Accept": SSE})
    with reading(response) as events:
        path = next(events).data
        params = {"protocolVersion": "2024-11-05", "capabilities": {}}
        params["clientInfo"] = {"name": "t", "version": "1"}
        assert status(both.second.request("POST", path, request("initialize", params))) == 202
        assert next(events).message["result"]["protocolVersion"] == "2024-11-05"
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert status(both.first.request("POST", path, ready)) == 202
        for number, address in enumerate((both.second, both.first) * 3):
            called = request("tools/call", {"name": "demo.echo", "arguments": {"text": "hi"}})
            assert status(address.request("POST", path, called | {"id": number})) == 202
        answers = [next(events).message for _ in range(6)]
        assert [answer["id"] for answer in answers] == list(range(6)), "in the order of arrival"
        assert "hi" in str(answers[0]["result"])
        stranger = Address(both.second.port, create_token("trudy", "--scope", "*"))
        assert status(stranger.request("POST", path, request("ping"))) == 404
        unknown = "/messages?session_id=" + "0" * 32
        assert status(both.second.request("POST", unknown, request("ping"))) == 404
        assert status(both.second.request("POST", path, "no JSON-RPC")) in (400, 404)
    wait_until(lambda: both.rows("SELECT id FROM sse_streams") == [])
    assert status(both.second.request("POST", path, request("ping"))) == 404


# --- request states and tickets ------------------------------------------------------------------


def ask_without_handshake(address: Address, **extra: Any) -> Any:
    name = "demo.delete"
    meta = ENVELOPE | {"io.modelcontextprotocol/clientCapabilities": FORMS}
    params = {"name": name, "arguments": {}, "_meta": meta} | extra
    headers = stateless_headers("tools/call", name)
    return messages(address.request("POST", "/mcp", request("tools/call", params), headers))[-1]


def test_every_server_verifies_a_request_state(both: Replicas) -> None:
    asked = ask_without_handshake(both.first)["result"]
    assert asked["resultType"] == "input_required"
    state = asked["requestState"]
    forged = base64.urlsafe_b64encode(bytes(40)).decode()
    refused = ask_without_handshake(both.second, requestState=forged)["error"]
    assert refused["message"] == "requestState is invalid."
    accepted = ask_without_handshake(both.second, requestState=state, inputResponses={})
    assert "invalid" not in json.dumps(accepted), "the signature is that of all servers"


def test_a_request_without_a_handshake_needs_no_session(both: Replicas) -> None:
    for address in (both.first, both.second):
        headers = stateless_headers("tools/list")
        answer = address.request("POST", "/mcp", stateless("tools/list"), headers)
        assert body_of(answer)["result"]["tools"]


def with_ticket(address: Address, ticket: str) -> int:
    """Return the status of a request for the events of an unknown run, with a ticket only."""
    with Server.request(address, "GET", f"/runs/1/events?ticket={ticket}") as response:
        return response.status


def test_any_server_redeems_a_ticket_once(both: Replicas) -> None:
    with both.first.request("POST", "/tickets", {"path": "/rpc"}) as response:
        ticket = body_of(response)["ticket"]
    digests = both.rows("SELECT count(*) FROM stream_tickets")
    assert digests == [(1,)]
    url = f"ws://127.0.0.1:{both.second.port}/rpc?ticket={ticket}"
    with connect(url, proxy=None) as socket:
        socket.send(json.dumps(request("demo.echo", {"text": "hi"})))
        assert "result" in json.loads(socket.recv(10))
    for address in (both.first, both.second):
        assert with_ticket(address, ticket) == 401
    assert both.rows("SELECT count(*) FROM stream_tickets") == [(0,)]


def test_the_database_holds_no_secret_of_a_client(both: Replicas) -> None:
    session_at(both.first)
    with both.first.request("POST", "/tickets", {}) as response:
        ticket = body_of(response)["ticket"]
    for table in ("mcp_sessions", "stream_tickets", "server_messages"):
        content = str(both.rows(f"SELECT * FROM {table}"))
        assert both.token not in content
        assert ticket not in content
    assert with_ticket(both.second, ticket) == 404, "the ticket is valid, the run is unknown"


# --- stopping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("proxy", ["round_robin", "nginx"])
def test_a_session_survives_the_restart_of_its_server(token: str, proxy: str) -> None:
    with replicas(proxy, token=token) as both:
        client = session_at(both.first)
        with client.call("demo.wait", {"seconds": 1}, token="t") as response:
            stream = read_events(response)
            next(each for each in stream if each.data)
            both.servers[0].process.send_signal(signal.SIGTERM)
            assert "waited" in [each.data for each in stream if each.data][-1], "it drains"
        assert both.servers[0].process.wait(15) == 0
        if proxy == "nginx":
            there = elsewhere(client, both.all)
            assert {status(there.post(request("tools/list"))) for _ in range(6)} == {200}
        assert status(elsewhere(client, both.second).post(request("tools/list"))) == 200


def test_a_server_does_not_start_without_its_database() -> None:
    url = "postgresql://substrate@127.0.0.1:1/none"
    command = [sys.executable, "-m", "substrate", "--port", "0", "--database", url]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Cannot use the database of --database" in done.stderr
    assert "Traceback" not in done.stderr


def test_sessions_in_memory_outlast_the_database_for_a_while(token: str) -> None:
    database = PostgresServer()
    try:
        database.start()
        name = database.new_database()
        server = Server("--database", database.url(name), auth="token")
        try:
            client = session_at(Address(server.port, token))
            database.stop()
            assert status(client.call("demo.echo", {"text": "hi"})) == 200
            level = request("logging/setLevel", {"level": "error"})
            with client.post(level) as refused:
                assert refused.status == 503
                assert refused.headers["Retry-After"]
            database.start()
            assert status(client.post(level)) == 200
            assert database.execute(name, "SELECT level FROM mcp_sessions") == [(4,)]
        finally:
            server.stop()
    finally:
        database.close()


def test_a_server_has_as_many_connections_as_documented(both: Replicas) -> None:
    for address in (both.first, both.second):
        for _ in range(20):
            session_at(address)
    ((found,),) = both.rows(
        "SELECT count(*) FROM pg_stat_activity"
        f" WHERE datname = '{both.database}' AND pid <> pg_backend_pid()"
    )
    # The shared state and the run store, with its index of words.
    assert int(str(found)) <= 2 * 6 * 3
