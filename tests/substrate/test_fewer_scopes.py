"""The same principal with fewer scopes: controlling a run needs the scope of its method.

This holds for every path by which a run can be answered, cancelled or taken over, and a session
belongs to the token that opened it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from mcp_network import (
    BOTH,
    JSON,
    LATEST,
    SSE,
    STATELESS,
    body_of,
    messages,
    read_events,
    reading,
    request,
    stateless_headers,
    wait_until,
)
from network import ANSWER_S, Server, bearer, serving
from websockets.sync.client import connect

from substrate.security.tokens import TokenFile

pytestmark = pytest.mark.timeout(120)

PRINCIPAL = "scopes-owner"
#: The tokens: the one that begins the runs, another with the same scopes, two with fewer, and one
#: of another principal.
TOKENS: dict[str, tuple[str, frozenset[str] | None]] = {
    "owner": (PRINCIPAL, None),
    "twin": (PRINCIPAL, None),
    "scoped": (PRINCIPAL, frozenset({"demo", "approvals"})),
    "reader": (PRINCIPAL, frozenset({"read"})),
    "approver": (PRINCIPAL, frozenset({"approvals"})),
    "stranger": ("scopes-stranger", None),
}
#: Those that may call what the runs are calls of.
ABLE = {"owner", "twin", "scoped"}
ELICITATION: dict[str, Any] = {"elicitation": {"form": {}}}
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
DECLINE = {"action": "accept", "content": {"answer": False}}


@pytest.fixture(scope="module")
def tokens() -> Iterator[dict[str, str]]:
    file = TokenFile()
    made = {
        name: file.add(f"scopes-{name}", scopes, principal=principal)
        for name, (principal, scopes) in TOKENS.items()
    }
    yield made
    for name in made:
        file.revoke(f"scopes-{name}")


@pytest.fixture(scope="module")
def server(tokens: dict[str, str]) -> Iterator[Server]:  # noqa: ARG001 - they are there when it starts
    settings = {"SUBSTRATE_LIMITS__DRAIN_S": "0.5", "SUBSTRATE_LIMITS__ORPHAN_S": "1.5"}
    with serving(auth="token", settings=settings) as running:
        yield running


# --- clients --------------------------------------------------------------------------------------


def create_session(server: Server, token: str) -> dict[str, str]:
    """Return the headers of a new session whose client supports elicitation."""
    params = {
        "protocolVersion": LATEST,
        "capabilities": ELICITATION,
        "clientInfo": {"name": "test", "version": "1"},
    }
    headers = {"Accept": BOTH} | bearer(token)
    with server.request("POST", "/mcp", request("initialize", params), headers) as answer:
        session = str(answer.headers["Mcp-Session-Id"])
    headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": LATEST}
    message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    server.request("POST", "/mcp", message, headers).close()
    return headers


def post(server: Server, path: str, message: Any, headers: dict[str, str]) -> str:
    """Return the response body."""
    with server.request("POST", path, message, headers) as answer:
        return f"{answer.status} {answer.read().decode()}"


def stateless_post(
    server: Server, token: str, method: str, params: dict[str, Any], name: str | None = None
) -> Any:
    """Return the single response to a request without a session."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": ELICITATION | TASKS,
    }
    headers = stateless_headers(method, name) | bearer(token) | {"Accept": BOTH}
    body = request(method, {"_meta": meta} | params)
    with server.request("POST", "/mcp", body, headers) as answer:
        return messages(answer)[-1]


def rpc(server: Server, token: str, method: str, params: Any = None) -> str:
    headers = {"Accept": JSON} | bearer(token)
    return post(server, "/rpc", request(method, params or {}), headers)


def states(server: Server, token: str) -> dict[int, str]:
    """Return the states of the runs of a principal, by number."""
    answer = body_of(server.call("plexus.runs", {"limit": 1000}, **bearer(token)))
    return {run["run"]: run["state"] for run in answer["result"]["terminal"]["result"]}


# --- runs that ask --------------------------------------------------------------------------------


class Asking(NamedTuple):
    """A run that waits for an answer, and everything that its client knows."""

    server: Server
    run: int
    #: The headers of its session.
    session: dict[str, str]
    #: The number of the question on the wire, where it is put there.
    question: Any = None
    event: str = ""
    state: str = ""
    path: str = ""


def newest_asking(server: Server, token: str, before: set[int]) -> int:
    def asking() -> list[int]:
        return [
            run
            for run, state in states(server, token).items()
            if run not in before and state == "asking"
        ]

    wait_until(lambda: bool(asking()))
    [run] = asking()
    return run


def by_stream(server: Server, token: str, stack: ExitStack) -> Asking:
    """Start it by `POST /rpc`."""
    headers = {"Accept": SSE} | bearer(token)
    stream = server.request("POST", "/rpc", request("demo.delete"), headers)
    events = stack.enter_context(reading(stream))
    run = next(events).message["result"]
    assert "request" in next(events).data
    return Asking(server, run, {})


def in_session(server: Server, token: str, stack: ExitStack) -> Asking:
    """Start it by `tools/call` in a session."""
    before = set(states(server, token))
    headers = create_session(server, token)
    call = request("tools/call", {"name": "demo.delete"}, "call")
    events = stack.enter_context(reading(server.request("POST", "/mcp", call, headers)))
    first = next(events)
    asked = next(events).message
    run = newest_asking(server, token, before)
    return Asking(server, run, headers, asked["id"], str(first.id))


def as_task(server: Server, token: str, stack: ExitStack) -> Asking:  # noqa: ARG001 - nothing is open
    """Start it as a task."""
    headers = create_session(server, token)
    call = request("tools/call", {"name": "demo.delete", "task": {"ttl": 60_000}})
    with server.request("POST", "/mcp", call, headers) as answer:
        run = int(messages(answer)[-1]["result"]["task"]["taskId"])
    wait_until(lambda: states(server, token)[run] == "asking")
    return Asking(server, run, headers)


def without_session(server: Server, token: str, stack: ExitStack) -> Asking:  # noqa: ARG001
    """Start it by a request whose response says which input it needs."""
    before = set(states(server, token))
    call = {"name": "demo.delete", "arguments": {}}
    result = stateless_post(server, token, "tools/call", call, "demo.delete")["result"]
    run = newest_asking(server, token, before)
    [key] = result["inputRequests"]
    return Asking(server, run, {}, key, state=result["requestState"])


def by_pair(server: Server, token: str, stack: ExitStack) -> Asking:
    """Start it over the legacy SSE routes."""
    before = set(states(server, token))
    stream = server.request("GET", "/sse", None, {"Accept": SSE} | bearer(token))
    events = stack.enter_context(reading(stream))
    path = next(events).data
    params = {"protocolVersion": LATEST, "capabilities": ELICITATION}
    params["clientInfo"] = {"name": "test", "version": "1"}
    post(server, path, request("initialize", params), bearer(token))
    next(events)
    post(server, path, request("tools/call", {"name": "demo.delete"}, "call"), bearer(token))
    asked = next(events).message
    return Asking(server, newest_asking(server, token, before), {}, asked["id"], path=path)


# --- what can be tried ----------------------------------------------------------------------------


def respond(asking: Asking, token: str) -> Any:
    params = {"run": asking.run, "request": "1", "answer": False}
    return rpc(asking.server, token, "plexus.respond", params)


def respond_through_call(asking: Asking, token: str) -> Any:
    params = {"run": asking.run, "request": "1", "answer": False}
    call = {"method": "plexus.respond", "params": params}
    return rpc(asking.server, token, "plexus.call", call)


def respond_by_tool(asking: Asking, token: str) -> Any:
    arguments = {"run": asking.run, "request": "1", "answer": False}
    call = request("tools/call", {"name": "plexus.respond", "arguments": arguments})
    return post(asking.server, "/mcp", call, create_session(asking.server, token))


def respond_by_socket(asking: Asking, token: str) -> Any:
    params = {"run": asking.run, "request": "1", "answer": False}
    with connect(asking.server.ws, additional_headers=bearer(token)) as peer:
        peer.send(json.dumps(request("plexus.respond", params)))
        received = ""
        while "terminal" not in received and "complete" not in received and "error" not in received:
            received += str(peer.recv(ANSWER_S))
        return received


def approve(asking: Asking, token: str) -> Any:
    params = {"approval_id": f"{asking.run}.1", "approve": False}
    return rpc(asking.server, token, "approvals.respond", params)


def reply_in_its_session(asking: Asking, token: str) -> Any:
    reply = {"jsonrpc": "2.0", "id": asking.question, "result": DECLINE}
    return post(asking.server, "/mcp", reply, asking.session | bearer(token))


def reply_in_its_pair(asking: Asking, token: str) -> Any:
    reply = {"jsonrpc": "2.0", "id": asking.question, "result": DECLINE}
    return post(asking.server, asking.path, reply, bearer(token))


def follow_and_reply(asking: Asking, token: str, message: Any) -> Any:
    """Follow the run in a separate session, and reply to its questions there."""
    headers = create_session(asking.server, token)
    with asking.server.request("POST", "/mcp", message, headers) as answer:
        if answer.headers["Content-Type"] == JSON:
            return answer.read().decode()
        for event in read_events(answer):
            received = json.loads(event.data or "{}")
            if received.get("method") == "elicitation/create":
                reply = {"jsonrpc": "2.0", "id": received["id"], "result": DECLINE}
                return post(asking.server, "/mcp", reply, headers)
            if "id" in received:
                return received
    return None


def attach_and_reply(asking: Asking, token: str) -> Any:
    params = {
        "name": "plexus.attach",
        "arguments": {"run": asking.run},
        "_meta": {"progressToken": "t"},
    }
    return follow_and_reply(asking, token, request("tools/call", params))


def attach_with_an_answer(asking: Asking, token: str) -> Any:
    call = {"name": "plexus.attach", "arguments": {"run": asking.run}}
    call |= {"inputResponses": {"1": DECLINE}}
    return stateless_post(asking.server, token, "tools/call", call, "plexus.attach")


def task_result_and_reply(asking: Asking, token: str) -> Any:
    return follow_and_reply(
        asking, token, request("tasks/result", {"taskId": str(asking.run)}, "result")
    )


def update_task(asking: Asking, token: str) -> Any:
    params = {"taskId": str(asking.run), "inputResponses": {"1": DECLINE}}
    return stateless_post(asking.server, token, "tasks/update", params, str(asking.run))


def retry_with_its_state(asking: Asking, token: str) -> Any:
    call = {
        "name": "demo.delete",
        "arguments": {},
        "requestState": asking.state,
        "inputResponses": {asking.question: DECLINE},
    }
    return stateless_post(asking.server, token, "tools/call", call, "demo.delete")


def cancel(asking: Asking, token: str) -> Any:
    return rpc(asking.server, token, "plexus.cancel", {"run": asking.run})


def cancel_silently(asking: Asking, token: str) -> Any:
    note = {"jsonrpc": "2.0", "method": "plexus.cancel", "params": {"run": asking.run}}
    received = post(asking.server, "/rpc", note, bearer(token))
    rpc(asking.server, token, "plexus.hash")  # what was started before it has run by then
    return received


def cancel_task(asking: Asking, token: str) -> Any:
    headers = create_session(asking.server, token)
    message = request("tasks/cancel", {"taskId": str(asking.run)})
    return post(asking.server, "/mcp", message, headers)


def cancel_extended_task(asking: Asking, token: str) -> Any:
    params = {"taskId": str(asking.run)}
    return stateless_post(asking.server, token, "tasks/cancel", params, str(asking.run))


CANCELLED = {
    "jsonrpc": "2.0",
    "method": "notifications/cancelled",
    "params": {"requestId": "call"},
}


def cancel_in_its_session(asking: Asking, token: str) -> Any:
    return post(asking.server, "/mcp", CANCELLED, asking.session | bearer(token))


def cancel_in_its_pair(asking: Asking, token: str) -> Any:
    return post(asking.server, asking.path, CANCELLED, bearer(token))


def delete_its_session(asking: Asking, token: str) -> Any:
    return asking.server.status("DELETE", "/mcp", asking.session | bearer(token))


class Path(NamedTuple):
    """One way to control a run: how it was started, what is tried, and which token may."""

    begin: Callable[[Server, str, ExitStack], Asking]
    attempt: Callable[[Asking, str], Any]
    able: set[str]


#: Whose session it is, is decided by the token: no other has it.
ITS_OWN = {"owner"}
PATHS: dict[str, Path] = {
    "plexus.respond": Path(by_stream, respond, ABLE),
    "plexus.respond through plexus.call": Path(by_stream, respond_through_call, ABLE),
    "plexus.respond as a tool": Path(by_stream, respond_by_tool, ABLE),
    "plexus.respond over WebSocket": Path(by_stream, respond_by_socket, ABLE),
    "approvals.respond": Path(by_stream, approve, ABLE),
    "approvals.respond to a call in a session": Path(in_session, approve, ABLE),
    "a reply to an elicitation": Path(in_session, reply_in_its_session, ITS_OWN),
    "a reply in the pair": Path(by_pair, reply_in_its_pair, ITS_OWN),
    "a reply to a run that is followed": Path(by_stream, attach_and_reply, ABLE),
    "an answer that comes with following": Path(by_stream, attach_with_an_answer, ABLE),
    "a reply to a task's question": Path(as_task, task_result_and_reply, ABLE),
    "tasks/update": Path(as_task, update_task, ABLE),
    "a retry with the signed state": Path(without_session, retry_with_its_state, ABLE),
    "plexus.cancel": Path(by_stream, cancel, ABLE),
    "plexus.cancel as a notification": Path(by_stream, cancel_silently, ABLE),
    "tasks/cancel": Path(as_task, cancel_task, ABLE),
    "tasks/cancel of the extension": Path(as_task, cancel_extended_task, ABLE),
    "notifications/cancelled": Path(in_session, cancel_in_its_session, ITS_OWN),
    "notifications/cancelled in the pair": Path(by_pair, cancel_in_its_pair, ITS_OWN),
    "DELETE /mcp": Path(in_session, delete_its_session, ITS_OWN),
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("who", TOKENS)
def test_controlling_a_run_needs_the_scope_of_its_method(
    server: Server, tokens: dict[str, str], who: str, name: str
) -> None:
    path = PATHS[name]
    owner = tokens["owner"]
    with ExitStack() as stack:
        asking = path.begin(server, owner, stack)
        received = path.attempt(asking, tokens[who])
        if who in path.able:
            wait_until(lambda: states(server, owner)[asking.run] in ("complete", "cancelled"))
        else:
            assert states(server, owner)[asking.run] == "asking", received
            rpc(server, owner, "plexus.cancel", {"run": asking.run})


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", sorted(set(TOKENS) - {"owner"}))
def test_a_session_of_another_token_does_not_exist(
    server: Server, tokens: dict[str, str], who: str
) -> None:
    with ExitStack() as stack:
        asking = in_session(server, tokens["owner"], stack)
        paired = by_pair(server, tokens["owner"], stack)
        theirs = asking.session | bearer(tokens[who])
        missing = theirs | {"Mcp-Session-Id": "0" * 32}

        def outcomes(headers: dict[str, str], path: str) -> list[tuple[int, bytes]]:
            last = {"Accept": SSE, "Last-Event-ID": asking.event}
            ping = request("ping")
            tried: list[tuple[str, str, Any, dict[str, str]]] = [
                ("POST", "/mcp", ping, headers),
                ("POST", "/mcp", CANCELLED, headers),
                ("GET", "/mcp", None, headers | {"Accept": SSE}),
                ("GET", "/mcp", None, headers | last),
                ("DELETE", "/mcp", None, headers),
                ("POST", path, ping, bearer(tokens[who])),
            ]
            answers = []
            for each in tried:
                with server.request(*each) as answer:
                    answers.append((answer.status, answer.read()))
            return answers

        nobodys = "/messages?session_id=" + "0" * 32
        assert outcomes(theirs, paired.path) == outcomes(missing, nobodys)
        assert states(server, tokens["owner"])[asking.run] == "asking"
        for each in (asking, paired):
            rpc(server, tokens["owner"], "plexus.cancel", {"run": each.run})


# --- becoming the owner ---------------------------------------------------------------------------


@pytest.mark.parametrize("who", sorted(set(TOKENS) - {"stranger"}))
def test_only_a_client_that_could_have_started_a_run_becomes_its_owner(
    server: Server, tokens: dict[str, str], who: str
) -> None:
    owner = tokens["owner"]
    cut = server.request("POST", "/rpc", request("demo.wait"), {"Accept": SSE} | bearer(owner))
    run = next(read_events(cut)).message["result"]
    cut.close()
    began = time.monotonic()
    headers = {"Accept": SSE} | bearer(tokens[who])
    with reading(server.request("GET", f"/runs/{run}/events", None, headers)) as events:
        assert "waiting" in next(events).data  # every token of this principal may read it
        if who in ABLE:
            # The server gives a run without an owner up after 1.5 s; this one has an owner.
            wait_until(lambda: time.monotonic() > began + 3.0)
            assert states(server, owner)[run] == "running"
        else:
            wait_until(lambda: states(server, owner)[run] == "cancelled")


@pytest.mark.parametrize("who", TOKENS)
def test_a_key_leads_back_to_a_run_only_with_the_scope_of_its_method(
    server: Server, tokens: dict[str, str], who: str
) -> None:
    key = f"key-{who}"
    headers = {"Accept": SSE} | bearer(tokens["owner"])
    call = request("demo.delete", {"_run": key})
    with reading(server.request("POST", "/rpc", call, headers)) as events:
        run = next(events).message["result"]
        headers = {"Accept": SSE} | bearer(tokens[who])
        with server.request("POST", "/rpc", call, headers) as answer:
            found = next(read_events(answer)).message
        if who in ABLE:
            assert found["result"] == run
        elif who == "stranger":
            assert found["result"] != run  # a separate run with the same key
        else:
            assert found["error"]["data"] == {"scope": "demo"}
