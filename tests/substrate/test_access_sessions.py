"""Browser sessions: storage, ownership and expiry."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import json
import logging
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from network import Server, bearer, serving
from websockets.sync.client import connect

from plexus.principal import LOCAL, Principal
from substrate.security import private_files
from substrate.security.authentication import Access, Credential
from substrate.security.errors import Forbidden, TooMany, Unauthenticated
from substrate.security.page_sessions import AGENT_CHARS, SessionFile
from substrate.security.tokens import TokenFile, digest_of
from substrate.server.limits import ServerLimits

pytestmark = pytest.mark.anyio

MAIN = "the-main-token"
PORT = 4444
HOUR = 3600.0
DAY = 24 * HOUR


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """Token and session files, and the servers that read them."""

    def __init__(self, folder: Path, limits: ServerLimits | None = None) -> None:
        self.clock = Clock()
        self.folder = folder
        self.limits = limits or ServerLimits()
        self.tokens = TokenFile(folder / "tokens.json", self.clock)
        self.sessions = self.session_file()
        self.published: list[str] = []
        self.access = self.server(MAIN)

    def session_file(self) -> SessionFile:
        """Return the file as another process sees it."""
        return SessionFile(self.folder / "sessions.json", self.limits, self.clock)

    def server(self, token: str, port: int = PORT) -> Access:
        """Return a server. A new server on the same port is a restart of the old one."""
        return Access(
            token,
            TokenFile(self.folder / "tokens.json", self.clock),
            self.session_file(),
            port=port,
            publish=self.published.append,
            limits=self.limits,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "private")


async def credential(access: Access, secret: str) -> Credential | None:
    """Return the credential of this secret; None if it is refused."""
    try:
        return await access.authenticate({b"authorization": f"Bearer {secret}".encode()})
    except Unauthenticated:
        return None


async def new_session(access: Access, token: str, agent: str = "") -> str:
    """Exchange a token for a session."""
    found = await credential(access, token)
    assert found is not None
    secret, _ = await access.create_session(found, agent)
    return secret


# --- the file ------------------------------------------------------------------------------------


async def test_the_secret_is_not_in_the_file_and_only_its_owner_can_read_it(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    text = world.sessions.path.read_text()
    assert len(secret) >= 43  # 256 bits, six in a character
    assert secret not in text
    assert digest_of(secret).hex() in text
    assert stat.S_IMODE(world.sessions.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(world.sessions.path.parent.stat().st_mode) == 0o700


async def test_the_token_file_format_is_unchanged_by_sessions(
    world: World,
) -> None:
    further = world.tokens.add("phone", None)
    before = world.tokens.path.read_bytes()
    await new_session(world.access, further)
    assert world.tokens.path.read_bytes() == before
    assert set(json.loads(before)) == {"tokens"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sessions":[{}]}', '{"sessions":[{"token":null,"port":null}]}']
)
async def test_a_damaged_file_contains_no_session_and_is_replaced_by_the_next(
    world: World, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    former = await new_session(world.access, MAIN)
    world.sessions.path.write_text(text)
    with caplog.at_level(logging.ERROR):
        assert await credential(world.access, former) is None
        assert await credential(world.access, former) is None
    assert len(caplog.records) == 1
    found = await credential(world.access, MAIN)
    assert found is not None, "tokens go on"
    secret = await new_session(world.access, MAIN)
    assert await credential(world.access, secret) is not None
    assert await credential(world.access, former) is None
    world.sessions.path.write_text(text)
    await world.access.rotate(found)
    assert await credential(world.access, secret) is None


async def test_sessions_created_concurrently_in_two_processes_are_all_stored(
    world: World,
) -> None:
    servers = [world.server(MAIN, port) for port in (1, 2, 3)]
    secrets = await asyncio.gather(*(new_session(each, MAIN) for each in servers for _ in range(5)))
    assert len(world.sessions.read()) == len(set(secrets)) == 15


async def test_waiting_for_a_lock_of_another_process_times_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await new_session(world.access, MAIN)
    monkeypatch.setattr(private_files, "LOCK_S", 0.1)
    with world.sessions.path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = await credential(world.access, MAIN)
        assert found is not None
        with pytest.raises(TimeoutError, match="another process"):
            await world.access.create_session(found)
        with pytest.raises(TimeoutError):
            await world.access.rotate(found)
        assert world.published == [], "the token stays if its sessions cannot be ended"
        # A request only has its use not written.
        world.clock.now += HOUR
        assert await credential(world.access, secret) is not None
    assert await credential(world.access, secret) is not None


@pytest.mark.parametrize("agent", ["a\x1b[31mb\r\nc\x00\x9b2J", "x" * 5000, " \t ", ""])
async def test_the_user_agent_is_stored_as_one_short_line_without_controls(
    world: World, agent: str
) -> None:
    await new_session(world.access, MAIN, agent)
    [session] = world.sessions.read()
    assert session.user_agent.isprintable()
    assert len(session.user_agent) <= AGENT_CHARS
    assert session.user_agent.strip() == session.user_agent


async def test_no_user_agent_makes_the_file_unreadable(world: World) -> None:
    """Each bracket in it looks like another object before the file is parsed."""
    secret = await new_session(world.access, MAIN, "{[" * AGENT_CHARS)
    content = json.loads(world.sessions.path.read_text())
    [entry] = content["sessions"]
    others = [entry | {"name": f"session:{n:08x}", "sha256": f"{n:064x}"} for n in range(400)]
    world.sessions.path.write_text(json.dumps({"sessions": [entry, *others]}))
    assert world.sessions.path.read_bytes().count(b"{") > ServerLimits().message_containers / 2
    assert await credential(world.access, secret) is not None


# --- whose they are ------------------------------------------------------------------------------


async def test_a_session_stands_for_the_principal_and_the_scopes_of_its_token(
    world: World,
) -> None:
    own = await credential(world.access, await new_session(world.access, MAIN))
    assert own is not None
    assert (own.principal, own.principal.scopes, own.session) == (LOCAL, None, True)
    further = world.tokens.add("phone", frozenset({"chat"}), principal="ada")
    other = await credential(world.access, await new_session(world.access, further))
    assert other is not None
    assert other.principal == Principal("ada")
    assert other.principal.scopes == frozenset({"chat"})
    assert other.digest != own.digest


async def test_a_session_cannot_create_another_or_rotate_the_token(world: World) -> None:
    session = await credential(world.access, await new_session(world.access, MAIN))
    assert session is not None
    with pytest.raises(Forbidden):
        await world.access.create_session(session)
    with pytest.raises(Forbidden):
        await world.access.rotate(session)


async def test_a_session_survives_a_restart_with_a_new_token(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    again = world.server("the-token-of-the-next-start")
    found = await credential(again, secret)
    assert found is not None
    assert found.principal == LOCAL
    assert await credential(again, MAIN) is None


async def test_a_session_of_a_servers_own_token_is_valid_for_that_port_only(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    assert await credential(world.server("another", PORT + 1), secret) is None
    further = world.tokens.add("phone", None)
    everywhere = await new_session(world.access, further)
    assert await credential(world.server("another", PORT + 1), everywhere) is not None


async def test_a_session_ends_with_the_additional_token_that_created_it(world: World) -> None:
    for name, lifetime_s in (("revoked", None), ("expired", 60.0)):
        further = world.tokens.add(name, None, lifetime_s=lifetime_s)
        secret = await new_session(world.access, further)
        found = await credential(world.access, secret)
        assert found is not None
        world.clock.now += 60
        world.tokens.revoke("revoked")
        assert await credential(world.access, secret) is None
        assert await world.access.revalidate(found) is None
        # A new token of the same name is another one.
        if name == "revoked":
            world.tokens.add(name, None)
            assert await credential(world.access, secret) is None
            world.tokens.revoke(name)


async def test_rotating_the_token_ends_only_the_sessions_of_the_old_one(world: World) -> None:
    own = await new_session(world.access, MAIN)
    further = await new_session(world.access, world.tokens.add("phone", None))
    neighbour = world.server("another", PORT + 1)
    beside = await new_session(neighbour, "another")
    found = await credential(world.access, own)
    main = await credential(world.access, MAIN)
    assert found is not None
    assert main is not None
    await world.access.rotate(main)
    assert await credential(world.access, own) is None
    assert await world.access.revalidate(found) is None
    assert await credential(world.access, further) is not None
    assert await credential(neighbour, beside) is not None
    [new] = world.published
    again = await new_session(world.access, new)
    assert await credential(world.access, again) is not None


async def test_no_session_is_created_while_the_token_is_rotated(world: World) -> None:
    """The request was authenticated with the old token, and waits for the rotation."""
    main = await credential(world.access, MAIN)
    assert main is not None
    publishing, published = threading.Event(), threading.Event()

    def publish(token: str) -> None:
        publishing.set()
        assert published.wait(10)
        world.published.append(token)

    access = Access(MAIN, world.tokens, world.sessions, port=PORT, publish=publish)
    rotating = asyncio.create_task(access.rotate(main))
    assert await asyncio.to_thread(publishing.wait, 10)
    beginning = asyncio.create_task(access.create_session(main))
    await asyncio.sleep(0)
    published.set()
    await rotating
    with pytest.raises(Forbidden):
        await beginning
    assert world.sessions.read() == []


# --- the proof -----------------------------------------------------------------------------------

CHALLENGE = "0123456789abcdef" * 4


async def test_a_server_proves_that_it_knows_a_session_without_the_secret(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    name, _, random = secret.partition(".")
    assert name == world.sessions.read()[0].name
    assert len(random) >= 43
    proof = world.access.prove_session(name, CHALLENGE)
    key = hashlib.sha256(secret.encode()).digest()
    message = f"substrate session proof {CHALLENGE}".encode()
    assert proof == hmac.new(key, message, hashlib.sha256).hexdigest()
    assert proof != world.access.prove_session(name, "f" * 64)
    for each in (name, proof, random, f"{name}.{proof}", digest_of(secret).hex()):
        assert await credential(world.access, each) is None


async def test_only_a_server_that_accepts_the_session_proves_it(world: World) -> None:
    further = world.tokens.add("phone", None)
    own = (await new_session(world.access, MAIN)).partition(".")[0]
    other = (await new_session(world.access, further)).partition(".")[0]
    assert world.server("another", PORT + 1).prove_session(own, CHALLENGE) is None
    assert world.server("another", PORT + 1).prove_session(other, CHALLENGE) is not None
    assert Access.open().prove_session(own, CHALLENGE) is None
    assert world.access.prove_session("session:00000000", CHALLENGE) is None
    assert world.access.prove_session("", CHALLENGE) is None
    world.tokens.revoke("phone")
    assert world.access.prove_session(other, CHALLENGE) is None
    world.clock.now += 7 * DAY
    assert world.access.prove_session(own, CHALLENGE) is None


# --- their end -----------------------------------------------------------------------------------


async def test_logging_out_ends_one_session(world: World) -> None:
    first, second = await new_session(world.access, MAIN), await new_session(world.access, MAIN)
    found = await credential(world.access, first)
    main = await credential(world.access, MAIN)
    assert found is not None
    assert main is not None
    await world.access.end_session(found)
    assert await credential(world.access, first) is None
    assert await world.access.revalidate(found) is None
    assert await credential(world.access, second) is not None
    with pytest.raises(Forbidden):
        await world.access.end_session(main)


async def test_a_session_lasts_while_it_is_used_up_to_thirty_days(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    unused = await new_session(world.access, MAIN)
    for _ in range(29):
        world.clock.now += DAY
        assert await credential(world.access, secret) is not None
    assert await credential(world.access, unused) is None
    world.clock.now += DAY - 1
    assert await credential(world.access, secret) is not None
    world.clock.now += 1
    assert await credential(world.access, secret) is None


async def test_the_time_of_use_is_written_rarely_and_survives_a_restart(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    written = world.sessions.path.stat().st_ino
    for _ in range(50):
        world.clock.now += HOUR / 60
        assert await credential(world.access, secret) is not None
    assert world.sessions.path.stat().st_ino == written
    world.clock.now += HOUR / 2
    await asyncio.gather(*(credential(world.access, secret) for _ in range(20)))
    assert world.sessions.path.stat().st_ino != written
    world.clock.now += 7 * DAY - 1
    assert await credential(world.server("the-next"), secret) is not None


async def test_a_session_that_is_revoked_during_an_update_is_refused(world: World) -> None:
    secret = await new_session(world.access, MAIN)
    [session] = world.sessions.read()
    world.clock.now += HOUR
    slow = world.session_file()
    marking, revoked = threading.Event(), threading.Event()

    class Slow(SessionFile):
        def mark_used(self, digest: bytes) -> None:
            marking.set()
            assert revoked.wait(10)
            super().mark_used(digest)

    access = Access(MAIN, None, Slow(slow.path, world.limits, world.clock), port=PORT)
    asking = asyncio.create_task(credential(access, secret))
    assert await asyncio.to_thread(marking.wait, 10)
    assert world.sessions.revoke(session.name)
    revoked.set()
    assert await asking is None
    assert world.sessions.read() == []


async def test_one_principal_ends_its_own_sessions_only(tmp_path: Path) -> None:
    """Regardless of how many it creates, and through how many tokens."""
    limits = msgspec.structs.replace(ServerLimits(), sessions_per_principal=3, sessions=5)
    world = World(tmp_path, limits)
    own = await new_session(world.access, MAIN)
    tokens = [world.tokens.add(name, None, principal="ada") for name in ("one", "two")]
    secrets: list[str] = []
    for number in range(20):
        world.clock.now += 1
        secrets.append(await new_session(world.access, tokens[number % 2]))
    alive = [await credential(world.access, each) is not None for each in secrets]
    assert alive == [False] * 17 + [True] * 3
    assert await credential(world.access, own) is not None
    # Of its own sessions, the unused one is removed.
    world.clock.now += DAY
    for each in (own, secrets[17], secrets[19]):
        await credential(world.access, each)
    world.clock.now += 1
    secrets.append(await new_session(world.access, tokens[0]))
    alive = [await credential(world.access, each) is not None for each in secrets[17:]]
    assert alive == [True, False, True, True]
    # The fifth is of another principal, and for a sixth there is nothing that may end.
    await new_session(world.access, world.tokens.add("bob", None))
    with pytest.raises(TooMany) as refused:
        await new_session(world.access, world.tokens.add("eve", None))
    assert (refused.value.status, refused.value.limit) == (429, 5)
    assert await credential(world.access, own) is not None
    # Those that ended make room.
    world.tokens.revoke("bob")
    assert await new_session(world.access, world.tokens.add("zoe", None))


# --- the real server -----------------------------------------------------------------------------


@pytest.fixture
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use separate token and session files for this test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(auth="token") as running:
        yield running


def exchange(server: Server, token: str) -> str:
    with server.request("POST", "/session", {}, bearer(token)) as response:
        assert response.status == 200, response.read()
        assert response.headers["Set-Cookie"] is None
        assert response.headers["Cache-Control"] == "no-store"
        return str(json.loads(response.read())["session"])


def status(server: Server, secret: str) -> int:
    with server.call("health.check", **bearer(secret)) as response:
        assert response.headers["Set-Cookie"] is None
        return response.status


def test_a_token_is_exchanged_for_a_session_that_is_accepted_everywhere_else(
    server: Server,
) -> None:
    with server.request("POST", "/session", {}, bearer(server.token)) as response:
        answer = json.loads(response.read())
    secret = answer.pop("session")
    assert answer == {"principal": "local", "expires_in_s": 30 * 24 * 3600}
    assert secret != server.token
    assert status(server, secret) == 200
    assert server.status("GET", "/runs/1/events", bearer(secret)) == 404  # there is no such run
    with connect(server.ws, additional_headers=bearer(secret)) as socket:
        socket.send('{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}')
        assert "result" in json.loads(socket.recv(timeout=10))
    for path in ("/session", "/token/rotate"):
        with server.request("POST", path, {}, bearer(secret)) as response:
            assert response.status == 403
    assert server.status("GET", "/session", bearer(secret)) == 405
    assert server.status("DELETE", "/session", bearer(server.token)) == 403
    assert server.status("DELETE", "/session", bearer(secret)) == 204
    assert status(server, secret) == 401
    assert server.status("DELETE", "/session", bearer(secret)) == 401


def test_a_proof_needs_no_token_and_a_challenge_of_full_length(server: Server) -> None:
    name = exchange(server, server.token).partition(".")[0]
    place = "/session/proof"
    with server.request("GET", f"{place}?session={name}&challenge={CHALLENGE}") as response:
        assert response.status == 200
        assert response.headers["Cache-Control"] == "no-store"
        assert len(json.loads(response.read())["proof"]) == 64
    for challenge in ("", "0", CHALLENGE[1:], CHALLENGE + "0", "g" * 64, CHALLENGE + "%0a"):
        assert server.status("GET", f"{place}?session={name}&challenge={challenge}") == 400
    for other in ("", "session:00000000", "%ff", "local"):
        assert server.status("GET", f"{place}?session={other}&challenge={CHALLENGE}") == 404
    assert server.status("DELETE", place, bearer(server.token)) == 405


def test_no_cookie_authenticates(server: Server) -> None:
    secret = exchange(server, server.token)
    own = {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
    for value in (secret, server.token):
        cookie = {"Cookie": f"substrate_{server.port}={value}; session={value}"}
        with server.call("health.check", **(cookie | own)) as response:
            assert response.status == 401


@pytest.mark.usefixtures("_data")
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_session_survives_a_restart_of_the_server(*, kill: bool) -> None:
    with serving(auth="token") as former:
        secret = exchange(former, former.token)
        port = former.port
        former.stop(kill=kill)
    with serving("--port", str(port), auth="token") as again:
        assert status(again, secret) == 200
        with again.request("POST", "/token/rotate", {}, bearer(again.token)) as response:
            assert response.status == 200
        assert status(again, secret) == 401


@pytest.mark.usefixtures("_data")
def test_a_server_without_authentication_creates_no_session(tmp_path: Path) -> None:
    with serving() as server:
        with server.request("POST", "/session", {}, bearer("anything")) as response:
            assert json.loads(response.read()) == {"session": None, "principal": "local"}
        with server.request("DELETE", "/session") as response:
            assert response.status == 403
    assert not (tmp_path / "data" / "substrate" / "sessions.json").exists()


@pytest.mark.usefixtures("_data")
def test_a_session_that_cannot_be_stored_is_not_created(tmp_path: Path) -> None:
    with serving(auth="token") as server:
        folder = tmp_path / "data" / "substrate"
        folder.parent.mkdir(exist_ok=True)
        folder.write_text("this is no folder")
        with server.request("POST", "/session", {}, bearer(server.token)) as response:
            assert response.status == 500
            assert "session" in json.loads(response.read())["error"]
        assert status(server, server.token) == 200
