"""Additional tokens: storage, authentication, revocation and expiry."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network import Server, bearer, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from plexus.principal import LOCAL, Principal
from substrate.security.authentication import Access, Credential
from substrate.security.errors import AccessRefused, Forbidden, Unauthenticated
from substrate.security.tokens import TokenFile, digest_of, new_token

pytestmark = pytest.mark.anyio

MAIN = "the-main-token"


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> TokenFile:
    return TokenFile(tmp_path / "private" / "tokens.json", clock)


async def principal(access: Access, token: str) -> Principal | None:
    """Return the principal of this token; None if it is refused."""
    headers = {b"authorization": f"Bearer {token}".encode()}
    try:
        return (await access.authenticate(headers)).principal
    except Unauthenticated:
        return None


# --- the file ------------------------------------------------------------------------------------


def test_tokens_are_long_and_unique() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(len(token) >= 43 for token in made)  # 256 bits, six in a character


def test_the_secret_is_not_in_the_file_and_only_its_owner_can_read_it(tokens: TokenFile) -> None:
    secret = tokens.add("phone", frozenset({"chat"}))
    text = tokens.path.read_text()
    assert secret not in text
    assert digest_of(secret).hex() in text
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.path.parent.stat().st_mode) == 0o700
    assert {path.name for path in tokens.path.parent.iterdir()} == {"tokens.json", "tokens.lock"}


def test_a_folder_that_others_could_read_is_restricted(tokens: TokenFile) -> None:
    tokens.path.parent.mkdir(mode=0o755)
    tokens.add("phone", None)
    assert stat.S_IMODE(tokens.path.parent.stat().st_mode) == 0o700


def test_a_token_is_found_by_its_digest_only(tokens: TokenFile) -> None:
    secret = tokens.add("phone", frozenset({"chat"}), principal="local")
    tokens.add("laptop", None)
    found = tokens.find(digest_of(secret))
    assert found is not None
    assert (found.name, found.principal) == ("phone", LOCAL)
    assert found.principal.scopes == frozenset({"chat"})
    assert tokens.find(digest_of(secret[:-1])) is None
    assert tokens.find(b"") is None


def test_a_token_expires(tokens: TokenFile, clock: Clock) -> None:
    secret = tokens.add("phone", None, lifetime_s=60)
    clock.now += 59.9
    assert tokens.find(digest_of(secret)) is not None
    clock.now += 0.1
    assert tokens.find(digest_of(secret)) is None


def test_a_change_by_another_process_is_seen(tokens: TokenFile, clock: Clock) -> None:
    other = TokenFile(tokens.path, clock)
    assert other.find(b"") is None
    secret = tokens.add("phone", None)
    assert other.find(digest_of(secret)) is not None
    assert tokens.revoke("phone")
    assert other.find(digest_of(secret)) is None
    assert not tokens.revoke("phone")


@pytest.mark.parametrize(
    ("name", "scopes", "who"),
    [
        ("Phone", (), None),
        ("", (), None),
        ("-x", (), None),
        ("a@b", (), None),
        ("a" * 65, (), None),
        ("phone", ("Chat",), None),
        ("phone", ("a b",), None),
        ("phone", (), "ada@example.org"),
    ],
)
def test_an_invalid_name_or_scope_is_refused(
    tokens: TokenFile, name: str, scopes: tuple[str, ...], who: str | None
) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        tokens.add(name, frozenset(scopes), principal=who)
    assert not tokens.path.exists()


def test_a_name_is_used_once(tokens: TokenFile) -> None:
    tokens.add("phone", None)
    with pytest.raises(ValueError, match="already"):
        tokens.add("phone", None)


def test_tokens_created_concurrently_are_all_stored(tokens: TokenFile) -> None:
    def add(number: int) -> None:
        TokenFile(tokens.path).add(f"t{number}", None)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {token.name for token in tokens.read()} == {f"t{number}" for number in range(20)}


@pytest.mark.parametrize(
    "text", ["", "not JSON", "[]", '{"tokens":5}', '{"tokens":[{}]}', '{"tokens":["x"]}']
)
def test_a_damaged_file_admits_no_client_and_is_reported(
    tokens: TokenFile, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tokens.add("phone", None)
    tokens.path.write_text(text)
    with caplog.at_level(logging.ERROR):
        assert tokens.find(digest_of(secret)) is None
        assert tokens.find(digest_of(secret)) is None
    assert len(caplog.records) == 1
    with pytest.raises(ValueError, match=r"."):
        tokens.read()


# --- who is let in -------------------------------------------------------------------------------


async def test_without_authentication_every_client_is_the_local_user() -> None:
    access = Access.open()
    assert access.is_open
    assert await principal(access, "anything") == LOCAL
    with pytest.raises(Forbidden):
        await access.create_session(Credential(LOCAL))
    with pytest.raises(Forbidden):
        await access.rotate(Credential(LOCAL))


async def test_an_additional_token_stands_for_its_principal_with_its_scopes(
    tokens: TokenFile,
) -> None:
    access = Access(MAIN, tokens)
    secret = tokens.add("phone", frozenset({"chat"}))
    found = await principal(access, secret)
    assert found == Principal("phone")
    assert found.may("chat")
    assert not found.may("bash")
    main = await principal(access, MAIN)
    assert main == LOCAL
    assert main.may("bash")


async def test_only_the_servers_own_token_rotates_itself(tokens: TokenFile) -> None:
    published: list[str] = []
    access = Access(MAIN, tokens, publish=published.append)
    further = tokens.add("phone", None)
    for token, allowed in ((further, False), (MAIN, True)):
        headers = {b"authorization": f"Bearer {token}".encode()}
        credential = await access.authenticate(headers)
        if allowed:
            await access.rotate(credential)
        else:
            with pytest.raises(Forbidden):
                await access.rotate(credential)
    [new] = published
    assert await principal(access, MAIN) is None
    assert await principal(access, new) == LOCAL
    assert await access.revalidate(credential) is None


async def test_a_token_that_cannot_be_published_does_not_replace_the_old_one(
    tokens: TokenFile,
) -> None:
    def fail(_: str) -> None:
        raise OSError("no space")

    access = Access(MAIN, tokens, publish=fail)
    headers = {b"authorization": f"Bearer {MAIN}".encode()}
    credential = await access.authenticate(headers)
    with pytest.raises(OSError, match="no space"):
        await access.rotate(credential)
    assert await principal(access, MAIN) == LOCAL


class Issuer:
    """An OAuth issuer."""

    metadata_paths = frozenset({"/.well-known/oauth-protected-resource"})

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.revoked = False

    async def verify(self, bearer: str) -> tuple[Principal, float]:
        self.asked.append(bearer)
        if self.revoked or not bearer.startswith("jwt"):
            raise Unauthenticated("not one of ours", b'Bearer error="invalid_token"')
        return Principal(f"{bearer}@issuer", frozenset({"chat"})), float("inf")

    def metadata(self) -> dict[str, Any]:
        return {"resource": "here"}

    def challenge(self, scope: str | None = None, error: str | None = None) -> bytes:
        return f"Bearer {scope} {error}".encode()


async def test_only_tokens_that_are_not_ours_are_verified_by_the_issuer(tokens: TokenFile) -> None:
    issuer = Issuer()
    access = Access(MAIN, tokens, oauth=issuer)
    assert await principal(access, MAIN) == LOCAL
    assert await principal(access, tokens.add("phone", None)) == Principal("phone")
    assert await principal(access, "") is None
    assert issuer.asked == []
    assert await principal(access, "jwt1") == Principal("jwt1@issuer")
    assert await principal(access, "other") is None
    with pytest.raises(AccessRefused) as refused:
        await access.authenticate({})
    assert refused.value.challenge == b"Bearer None None"


async def test_an_oauth_token_is_checked_again_while_its_connection_is_open(
    clock: Clock,
) -> None:
    issuer = Issuer()
    access = Access(MAIN, oauth=issuer, clock=clock)
    headers = {b"authorization": b"Bearer jwt1"}
    credential = await access.authenticate(headers)
    issuer.revoked = True
    clock.now += 59
    assert await access.revalidate(credential) == credential
    assert len(issuer.asked) == 1
    clock.now += 1
    assert await access.revalidate(credential) is None
    with pytest.raises(Forbidden):
        await access.create_session(credential)


# --- the real server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--log-level", "debug", auth="token") as running:
        yield running


def status(server: Server, token: str, method: str = "health.check") -> int:
    with server.call(method, **bearer(token)) as response:
        return response.status


def echo(socket: ClientConnection) -> Any:
    """Call a method over a WebSocket and return the response."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "plexus.hash"}
    socket.send(json.dumps(call))
    return json.loads(socket.recv(timeout=10))


def read_without_answer(socket: ClientConnection, number: int) -> None:
    """Read to the end, and assert that this request gets no response."""
    while True:
        assert json.loads(socket.recv(timeout=10)).get("id") != number


def test_a_token_is_accepted_from_its_creation_to_its_revocation(server: Server) -> None:
    tokens = TokenFile()
    secret = tokens.add("comes-and-goes", None)
    assert status(server, secret) == 200
    with connect(server.ws, additional_headers=bearer(secret)) as socket:
        assert "result" in echo(socket)
        assert tokens.revoke("comes-and-goes")
        assert status(server, secret) == 401
        socket.send('{"jsonrpc":"2.0","id":2,"method":"plexus.hash"}')
        with pytest.raises(ConnectionClosed) as closed:
            read_without_answer(socket, 2)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_an_expired_token_is_refused(server: Server) -> None:
    secret = TokenFile().add("short", None, lifetime_s=0.0)
    assert status(server, secret) == 401


def test_principals_do_not_see_each_others_runs(server: Server) -> None:
    tokens = TokenFile()
    ada, bob = tokens.add("ada", None), tokens.add("bob", None)
    with server.stream("demo.count", {"to": 3}) as refused:
        assert refused.status == 401
    headers = bearer(ada) | {"Accept": "text/event-stream"}
    with server.call("demo.echo", ["hi"], **headers) as response:
        run = json.loads(response.read().partition(b"data: ")[2].partition(b"\n")[0])["result"]
    for token, expected in ((ada, 200), (bob, 404), (server.token, 404), ("wrong", 401)):
        with server.request("GET", f"/runs/{run}/events", headers=bearer(token)) as response:
            assert response.status == expected


def test_a_legacy_sse_stream_accepts_messages_of_its_owner_only(server: Server) -> None:
    other = TokenFile().add("other", None)
    with server.request("GET", "/sse", headers=bearer(server.token)) as stream:
        stream.readline()
        place = stream.readline().decode().removeprefix("data: ").strip()
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for token, expected in ((other, 404), ("wrong", 401), (server.token, 202)):
            with server.request("POST", place, ping, bearer(token)) as response:
                assert response.status == expected


def test_an_mcp_session_is_accessible_to_its_owner_only(server: Server) -> None:
    other = TokenFile().add("another", None)
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    accept = {"Accept": "application/json, text/event-stream"}
    with server.request("POST", "/mcp", message, accept | bearer(server.token)) as response:
        session = {"Mcp-Session-Id": response.headers["Mcp-Session-Id"]}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    for token, expected in ((other, 404), ("wrong", 401), (server.token, 200)):
        headers = accept | session | bearer(token)
        with server.request("POST", "/mcp", ping, headers) as response:
            assert response.status == expected
        if expected != 200:
            assert server.status("GET", "/mcp", headers) == expected
            assert server.status("DELETE", "/mcp", headers) == expected


def test_the_token_of_an_earlier_start_is_refused(server: Server) -> None:
    with serving(auth="token") as former:
        old = former.token
        assert status(former, old) == 200
        assert status(former, server.token) == 401
    with serving("--port", str(former.port), auth="token") as again:
        assert again.port == former.port
        assert again.token != old
        assert status(again, old) == 401


def test_no_token_is_ever_logged() -> None:
    server = Server("--log-level", "debug", auth="token")
    token = server.token
    secret = TokenFile().add("not-logged", None)
    for each in (token, secret, "a-wrong-token"):
        status(server, each)
        with connect(server.ws, additional_headers=bearer(each)):
            pass
    secrets: list[str] = []
    with server.request("POST", "/session", {}, bearer(secret)) as response:
        secrets.append(json.loads(response.read())["session"])
    for path in ("/rpc", "/mcp", "/runs/1/events"):
        for _ in range(2):
            with server.request("POST", "/tickets", {}, bearer(secrets[0])) as response:
                secrets.append(json.loads(response.read())["ticket"])
            ticket = f"ticket={secrets[-1]}"
            if path.startswith("/runs"):
                server.status("GET", f"{path}?{ticket}")
                continue
            # It is used once, and is refused then; both are logged at this level.
            for query in (ticket, f"x=1&{ticket}&y", ticket):
                with connect(f"ws://127.0.0.1:{server.port}{path}?{query}"):
                    pass
    assert server.process.stderr is not None
    server.process.terminate()
    logged = server.process.stderr.read().decode()
    server.stop()
    assert "connection" in logged.lower(), "the log is not empty"
    assert "/mcp" in logged, "addresses are logged"
    for each in (token, secret, "a-wrong-token", *secrets):
        assert each not in logged
