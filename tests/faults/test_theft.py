"""The id of another principal's run, session or stream is useless.

The response is the same as for an id that does not exist, and the owner is not affected.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from mcp_network import BOTH, LATEST, SSE, Event, read_events, request
from network import Server, bearer, serving

from substrate.security.tokens import TokenFile

pytestmark = pytest.mark.timeout(60)

OWNER, THIEF = "theft-owner", "theft-thief"


class Tokens(NamedTuple):
    owner: str
    thief: str


@pytest.fixture(scope="module")
def tokens() -> Iterator[Tokens]:
    file = TokenFile()
    yield Tokens(file.add(OWNER, None), file.add(THIEF, None))
    for name in (OWNER, THIEF):
        file.revoke(name)


@pytest.fixture(scope="module")
def server(tokens: Tokens) -> Iterator[Server]:  # noqa: ARG001 - they are there when it starts
    with serving(auth="token", settings={"SUBSTRATE_LIMITS__DRAIN_S": "0.5"}) as running:
        yield running


class Ids(NamedTuple):
    """Ids of another principal's objects, or ids of the same form that do not exist."""

    run: int
    session: str
    event: str


def create_session(server: Server, token: str) -> str:
    params = {
        "protocolVersion": LATEST,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    headers = {"Accept": BOTH} | bearer(token)
    with server.request("POST", "/mcp", request("initialize", params), headers) as response:
        session = response.headers["Mcp-Session-Id"]
    message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    server.request("POST", "/mcp", message, in_session(token, session)).close()
    return str(session)


def in_session(token: str, session: str) -> dict[str, str]:
    settled = {"Mcp-Session-Id": session, "MCP-Protocol-Version": LATEST}
    return settled | {"Accept": BOTH} | bearer(token)


class Attempt(NamedTuple):
    """One request of an attacker."""

    verb: str
    path: str
    body: Any
    headers: dict[str, str]


def attempts(thief: str, own_session: str, goods: Ids) -> dict[str, Attempt]:
    """Return everything that can be tried with these ids."""
    native = bearer(thief) | {"Accept": "application/json"}
    stolen = in_session(thief, goods.session)
    own = in_session(thief, own_session)

    def call(method: str, **params: Any) -> Attempt:
        return Attempt("POST", "/rpc", request(method, {"run": goods.run} | params), native)

    def post(message: Any, headers: dict[str, str]) -> Attempt:
        return Attempt("POST", "/mcp", message, headers)

    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    named = {"requestId": 7, "reason": "stolen"}
    native_note = {"jsonrpc": "2.0", "method": "plexus.cancel", "params": {"run": goods.run}}
    return {
        "follow its run": Attempt("GET", f"/runs/{goods.run}/events", None, bearer(thief)),
        "attach to it": call("plexus.attach"),
        "cancel it": call("plexus.cancel"),
        "cancel it silently": Attempt("POST", "/rpc", native_note, native),
        "answer it": call("plexus.respond", request="1", answer=True),
        "read its output": post(request("resources/read", {"uri": f"run://{goods.run}"}), own),
        "its task": post(request("tasks/get", {"taskId": str(goods.run)}), own),
        "its task's end": post(request("tasks/cancel", {"taskId": str(goods.run)}), own),
        "list its tools": post(request("tools/list"), stolen),
        "call in its session": post(request("tools/call", {"name": "plexus.hash"}), stolen),
        "cancel in its session": post(cancelled | {"params": named}, stolen),
        "cancel in the own session": post(cancelled | {"params": named}, own),
        "listen in its session": Attempt("GET", "/mcp", None, stolen | {"Accept": SSE}),
        "go on with its stream": Attempt(
            "GET", "/mcp", None, stolen | {"Accept": SSE, "Last-Event-ID": goods.event}
        ),
        "end its session": Attempt("DELETE", "/mcp", None, stolen),
        "say something in its pair": Attempt(
            "POST", f"/messages?session_id={goods.session}", request("ping"), bearer(thief)
        ),
    }


def outcome(server: Server, attempt: Attempt, goods: Ids) -> tuple[int, str]:
    """Return the response without the ids of the request and the run of the response."""
    verb, path, body, headers = attempt
    with server.request(verb, path, body, headers) as response:
        text = response.read().decode()
    for number in (str(goods.run), goods.session, goods.event):
        text = text.replace(number, "it")
    # A lookup in the run store takes long enough for a stream, whose number is not secret.
    text = re.sub(r"^id: \d+:", "id: N:", text, flags=re.MULTILINE)
    # The call that asks a question is a separate run.
    return response.status, re.sub(r'"run":\d+', '"run":0', text)


def test_ids_of_another_principal_are_useless(server: Server, tokens: Tokens) -> None:
    session = create_session(server, tokens.owner)
    own_session = create_session(server, tokens.thief)
    wanted = {
        "name": "demo.wait",
        "arguments": {"seconds": 2.5},
        "_meta": {"progressToken": "t"},
    }
    headers = in_session(tokens.owner, session)
    mcp = server.request("POST", "/mcp", request("tools/call", wanted, 7), headers)
    events = read_events(mcp)
    first = next(events)
    stream = server.call("demo.wait", {"seconds": 2.5}, Accept=SSE, **bearer(tokens.owner))
    run = _next(read_events(stream))["result"]
    goods = Ids(run, session, str(first.id))
    nobodys = Ids(run ^ 1, secrets.token_hex(16), "9:9")
    theirs = attempts(tokens.thief, own_session, goods)
    for name, attempt in attempts(tokens.thief, own_session, nobodys).items():
        found = outcome(server, theirs[name], goods)
        assert found == outcome(server, attempt, nobodys), name
        assert "waiting" not in found[1], name
    # The owner's calls have continued to their ends.
    assert "waited" in stream.read().decode()
    answers = [event.message for event in events if event.data]
    assert answers[-1]["id"] == 7
    assert "waited" in json.dumps(answers[-1]["result"])
    assert server.status("DELETE", "/mcp", headers) == 204


def _next(events: Iterator[Event]) -> Any:
    return next(event.message for event in events if event.data)
