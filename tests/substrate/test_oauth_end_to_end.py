"""OAuth end to end: a real server, a real issuer, plain HTTP and the official client."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp
import pytest
from loopback_issuer import CLIENT, METADATA, Issuer, issuing, send
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from network import ANSWER_S, REPOSITORY, Server, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from substrate.security.tokens import TokenFile

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

META = "io.modelcontextprotocol/"
STATELESS = "2026-07-28"
SESSION = "2025-11-25"
#: What may be called with a token that has no scope at all, and what needs `demo`.
READS, DEMO = "health.check", "demo.echo"
DENIED = -31001


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: Any


class World(NamedTuple):
    """A server, and the issuer that it trusts."""

    issuer: Issuer
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/mcp"

    def token(self, scope: str, **claims: Any) -> str:
        return self.issuer.sign(self.issuer.claims(self.url, scope, **claims))

    def ask(self, verb: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request, with exactly these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=ANSWER_S)
        data = None if body is None else json.dumps(body)
        always = {} if data is None else {"Content-Type": "application/json"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(verb, path, data, always | named)
        with connection.getresponse() as response:
            text = response.read().decode()
        connection.close()
        if text.startswith(("id:", "event:", "data:", ":", "retry:")):
            text = [line[6:] for line in text.splitlines() if line.startswith("data: {")][-1]
        return Answer(response.status, response.headers, json.loads(text) if text else None)

    def mcp(self, method: str, params: dict[str, Any], **headers: str) -> Answer:
        """A request of the revision that has no handshake."""
        meta = {META + "protocolVersion": STATELESS, META + "clientCapabilities": {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": meta}}
        named = {"Mcp-Protocol-Version": STATELESS, "Mcp-Method": method}
        if "name" in params:
            named["Mcp-Name"] = params["name"]
        return self.ask("POST", "/mcp", message, Accept=BOTH, **named, **headers)

    def call(self, tool: str, token: str) -> Answer:
        arguments = {"text": "hello"} if tool == DEMO else {}
        params = {"name": tool, "arguments": arguments}
        return self.mcp("tools/call", params, Authorization=f"Bearer {token}")


BOTH = "application/json, text/event-stream"


def trusting(issuer: Issuer) -> dict[str, str]:
    """Return the settings of a server that accepts its tokens."""
    return {"SUBSTRATE_OAUTH_ISSUER": issuer.url}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with issuing() as issuer:
        issuer.publish()
        with serving(settings=trusting(issuer), auth="token") as server:
            yield World(issuer, server)


def challenge_of(answer: Answer) -> dict[str, str]:
    """Return the fields of the challenge."""
    challenge = answer.headers["WWW-Authenticate"]
    assert challenge.startswith("Bearer ")
    return dict(re.findall(r'(\w+)="([^"]*)"', challenge))


# --- plain HTTP -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mcp", "/rpc"])
def test_without_a_token_the_challenge_names_the_metadata(world: World, path: str) -> None:
    answer = world.ask("POST", path, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, Accept=BOTH)
    assert answer.status == 401
    challenge = challenge_of(answer)
    assert "error" not in challenge
    place = urlsplit(challenge["resource_metadata"])
    assert f"{place.scheme}://{place.netloc}" == world.url.removesuffix("/mcp")
    metadata = world.ask("GET", place.path)
    assert metadata.status == 200
    assert metadata.headers["Content-Type"] == "application/json"
    assert metadata.body["resource"] == world.url
    assert metadata.body["authorization_servers"] == [world.issuer.url]
    assert metadata.body["bearer_methods_supported"] == ["header"]
    assert {"read", "demo", "bash"} <= set(metadata.body["scopes_supported"])
    assert challenge["scope"].split() == metadata.body["scopes_supported"]


@pytest.mark.parametrize("below", ["", "/mcp"])
def test_the_metadata_are_at_both_paths_that_mcp_names(world: World, below: str) -> None:
    answer = world.ask("GET", f"/.well-known/oauth-protected-resource{below}")
    assert (answer.status, answer.body["resource"]) == (200, world.url)


@pytest.mark.parametrize("path", ["/other", "/mcp/x", "/../mcp"])
def test_no_other_path_has_metadata(world: World, path: str) -> None:
    assert world.ask("GET", f"/.well-known/oauth-protected-resource{path}").status == 404


def test_a_server_without_an_issuer_has_no_metadata() -> None:
    with serving(auth="token") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
        connection.request("GET", "/.well-known/oauth-protected-resource")
        with connection.getresponse() as response:
            assert response.status == 404
        connection.close()


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": 1}, "the token has expired"),
        ({"aud": "https://other.example/mcp"}, "the token is not for this server"),
        ({"iss": "https://other.example"}, "the token is from another issuer"),
    ],
)
def test_a_bad_token_is_refused_with_the_reason(
    world: World, claims: dict[str, Any], reason: str
) -> None:
    answer = world.call(READS, world.token("read", **claims))
    challenge = challenge_of(answer)
    assert answer.status == 401
    assert (challenge["error"], challenge["error_description"]) == ("invalid_token", reason)


def test_a_token_in_the_url_is_ignored(world: World) -> None:
    path = f"/mcp?access_token={world.token('demo')}"
    answer = world.ask("POST", path, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, Accept=BOTH)
    assert answer.status == 401


def listed(world: World, token: str) -> set[str]:
    answer = world.mcp("tools/list", {}, Authorization=f"Bearer {token}")
    assert answer.status == 200
    return {tool["name"] for tool in answer.body["result"]["tools"]}


def test_lists_show_what_the_scopes_allow(world: World) -> None:
    few, more = listed(world, world.token("")), listed(world, world.token("demo"))
    assert READS in few & more
    assert DEMO in more - few
    assert "bash.execute" not in few | more
    assert "bash.execute" in listed(world, world.token("demo bash"))


def test_a_call_that_the_scopes_allow_is_answered(world: World) -> None:
    answer = world.call(DEMO, world.token("demo"))
    assert answer.status == 200
    assert answer.body["result"]["content"][0]["text"] == "hello"


def check_denied(world: World, answer: Answer, scope: str = "demo") -> None:
    assert answer.status == 403
    challenge = challenge_of(answer)
    assert (challenge["error"], challenge["scope"]) == ("insufficient_scope", scope)
    assert challenge["resource_metadata"].startswith(world.url.removesuffix("/mcp"))


def test_a_call_without_the_scope_is_answered_with_the_missing_scope(world: World) -> None:
    answer = world.call(DEMO, world.token("read bash"))
    check_denied(world, answer)
    assert answer.body["error"]["code"] == DENIED
    assert answer.body["error"]["data"] == {"scope": "demo"}


def test_a_session_reports_the_missing_scope_too(world: World) -> None:
    bearer = {"Authorization": f"Bearer {world.token('read')}", "Accept": BOTH}
    client = {
        "protocolVersion": SESSION,
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    begun = world.ask("POST", "/mcp", message, **bearer)
    session = bearer | {"Mcp-Session-Id": begun.headers["Mcp-Session-Id"]}
    noted = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert world.ask("POST", "/mcp", noted, **session).status == 202
    params = {"name": DEMO, "arguments": {"text": "hello"}}
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    check_denied(world, world.ask("POST", "/mcp", message, **session))
    # The same client may return with more scopes, as a challenge requested.
    more = session | {"Authorization": f"Bearer {world.token('demo')}"}
    answer = world.ask("POST", "/mcp", message, **more)
    assert answer.status == 200
    assert answer.body["result"]["content"][0]["text"] == "hello"
    # From then on the session is one with those scopes: a token without them has no such session.
    assert world.ask("POST", "/mcp", message, **session).status == 404
    other = session | {"Authorization": f"Bearer {world.token('demo', sub='bob')}"}
    assert world.ask("POST", "/mcp", message, **other).status == 404


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_the_native_protocol_reports_the_missing_scope_too(world: World, accept: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": DEMO, "params": {"text": "hello"}}
    bearer = f"Bearer {world.token('read')}"
    check_denied(world, world.ask("POST", "/rpc", message, Accept=accept, Authorization=bearer))
    bearer = f"Bearer {world.token('demo')}"
    assert world.ask("POST", "/rpc", message, Accept=accept, Authorization=bearer).status == 200


def test_our_own_tokens_work_together_with_oauth(world: World) -> None:
    assert "bash.execute" in listed(world, world.server.token)


def test_our_own_token_without_a_scope_gets_no_step_up_challenge(world: World) -> None:
    """The issuer could not add the scope."""
    answer = world.call(DEMO, TokenFile().add("robot", frozenset({"read"})))
    assert answer.body["error"]["data"] == {"scope": "demo"}
    assert "WWW-Authenticate" not in answer.headers


def test_a_websocket_accepts_an_oauth_token(world: World) -> None:
    address = world.url.replace("http:", "ws:").replace("/mcp", "/rpc")
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": DEMO, "params": {"text": "hello"}})
    for scope, code in (("demo", None), ("read", "denied")):
        bearer = {"Authorization": f"Bearer {world.token(scope)}"}
        with connect(address, additional_headers=bearer) as socket:
            socket.send(message)
            reply = json.loads(socket.recv(ANSWER_S))
            assert ("error" in reply) == (code is not None), reply
    expired = {"Authorization": f"Bearer {world.token('demo', exp=1)}"}
    with connect(address, additional_headers=expired) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(ANSWER_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_without_keys_of_the_issuer_tokens_are_unavailable_not_invalid() -> None:
    with issuing() as issuer:
        issuer.answers[METADATA] = lambda handler: send(handler, {}, 500)
        with serving(settings=trusting(issuer), auth="token") as server:
            world = World(issuer, server)
            answer = world.call(READS, world.token("read"))
            assert answer.status == 503
            assert "WWW-Authenticate" not in answer.headers
            assert listed(world, server.token)


def test_behind_a_proxy_clients_get_the_public_url() -> None:
    with issuing() as issuer:
        issuer.publish()
        options = ("--allow-host", "tools.example")
        with serving(*options, settings=trusting(issuer), auth="token") as server:
            world, public = World(issuer, server), {"Host": "tools.example"}
            place = "/.well-known/oauth-protected-resource/mcp"
            challenge = challenge_of(world.ask("POST", "/mcp", {}, **public))
            assert challenge["resource_metadata"] == f"https://tools.example{place}"
            resource = world.ask("GET", place, **public).body["resource"]
            assert resource == "https://tools.example/mcp"
            message = {"jsonrpc": "2.0", "id": 1, "method": READS, "params": {}}
            for audience, status in ((resource, 200), (world.url, 401)):
                bearer = f"Bearer {issuer.sign(issuer.claims(audience))}"
                answer = world.ask("POST", "/rpc", message, Authorization=bearer, **public)
                assert answer.status == status


@pytest.mark.parametrize(
    ("options", "settings", "expected"),
    [
        ((), {"OAUTH_ISSUER": "http://login.example"}, "oauth_issuer cannot be"),
        (("--auth", "off"), {"OAUTH_ISSUER": "https://login.example"}, "requires authentication"),
    ],
)
def test_unsafe_settings_are_refused_at_the_start(
    options: tuple[str, ...], settings: dict[str, str], expected: str
) -> None:
    ours = {f"SUBSTRATE_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "substrate", "--port", "0", *options]
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | ours, capture_output=True, timeout=30
    )
    assert ran.returncode != 0
    assert expected in ran.stderr.decode()
    assert "Traceback" not in ran.stderr.decode()


# --- the official client --------------------------------------------------------------------------


class Storage:
    """The persistent storage of a client."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        raise AssertionError(client_info)


@pytest.mark.parametrize("mode", ["legacy", "auto", STATELESS])
async def test_the_official_client_finds_the_issuer_and_requests_more_scopes_when_needed(
    world: World, mode: str
) -> None:
    issuer, storage = world.issuer, Storage()
    issuer.grants, issuer.asked = frozenset({"read"}), []
    name, secret = CLIENT
    provider = ClientCredentialsOAuthProvider(world.url, storage, name, secret, issuer=issuer.url)
    with anyio.fail_after(40):
        async with (
            httpx2.AsyncClient(auth=provider) as http_client,
            mcp.Client(
                streamable_http_client(world.url, http_client=http_client), mode=mode
            ) as client,
        ):
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert storage.tokens is not None
            assert storage.tokens.scope == "read"
            assert issuer.asked[0]["resource"] == world.url
            assert READS in tools
            assert DEMO not in tools
            await client.call_tool(READS, {})
            asked = len(issuer.asked)
            with pytest.raises(mcp.MCPError):
                await client.call_tool(DEMO, {"text": "hello"})
            assert len(issuer.asked) == asked + 1, "it asked for more, and got none"
            issuer.grants = frozenset({"read", "demo"})
            result = await client.call_tool(DEMO, {"text": "hello"})
            assert result.content[0].text == "hello"  # type: ignore[union-attr]
            assert len(issuer.asked) == asked + 2
            assert "demo" in issuer.asked[-1]["scope"].split()
