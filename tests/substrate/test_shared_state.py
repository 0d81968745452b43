"""What servers share in a database: a secret, messages to each other, sessions and tickets."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import server as postgres
from postgres_server import PostgresServer

from mcp_view.server import McpOptions
from plexus import Plexus
from plexus.errors import Busy, Failed
from plexus.principal import Principal
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Credential
from substrate.security.errors import TooMany
from substrate.security.secret_file import read_secret
from substrate.security.tokens import CredentialKind, credential_of
from substrate.server import mailbox as mailbox_module
from substrate.server.limits import ServerLimits
from substrate.server.mailbox import Letter
from substrate.server.mcp import session_rows
from substrate.server.mcp.session_rows import SessionRow, Settings
from substrate.server.shared_state import SharedState, open_shared_state

pytestmark = pytest.mark.anyio

ADA = Principal("ada", frozenset({"bash"}), b"c" * 32)
LIMITS = ServerLimits(tickets_per_credential=2, tickets=3)


class Inbox:
    """A listener that records what it gets."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.gaps = 0
        self._arrived = asyncio.Event()

    def on_letter(self, letter: Letter) -> None:
        self.letters.append(letter)
        self._arrived.set()

    async def wait_for(self, count: int) -> None:
        """Wait until this number of messages has arrived."""
        async with asyncio.timeout(10):
            while len(self.letters) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def on_gap(self) -> None:
        self.gaps += 1


class Servers:
    """The shared state of two servers, and the database."""

    def __init__(self, states: list[SharedState], name: str) -> None:
        self.one, self.other = states
        self.name = name
        self.running: PostgresServer = postgres()

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        return self.running.execute(self.name, sql)


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    name = postgres().new_database()
    url = postgres().url(name)
    states = list(await asyncio.gather(*(open_shared_state(url, LIMITS) for _ in range(2))))
    yield Servers(states, name)
    for state in states:
        await state.close()


# --- the secret ----------------------------------------------------------------------------------


async def test_servers_that_start_together_have_one_secret(servers: Servers) -> None:
    assert servers.one.secret == servers.other.secret
    assert len(servers.one.secret) == 32
    later = await open_shared_state(servers.running.url(servers.name), LIMITS)
    assert later.secret == servers.one.secret
    await later.close()


def test_the_secret_of_a_user_is_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "new" / "request_state.key"
    secret = read_secret(file)
    assert len(secret) == 32
    assert read_secret(file) == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_damaged_secret_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "request_state.key"
    file.write_bytes(b"short")
    secret = read_secret(file)
    assert len(secret) == 32
    assert file.read_bytes() == secret


def test_without_a_usable_file_the_secret_lasts_as_long_as_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / "request_state.key"
    secret = read_secret(path)
    assert len(secret) == 32
    assert "request states end with this process" in caplog.text
    assert secret.hex() not in caplog.text


# --- messages ------------------------------------------------------------------------------------


async def test_a_message_reaches_every_other_server_once_and_in_order(servers: Servers) -> None:
    here, there = Inbox(), Inbox()
    servers.one.mailbox.listen(here)
    servers.other.mailbox.listen(there)
    letters = [Letter("s", "message", b"%d" % number) for number in range(20)]
    for letter in letters:
        await servers.one.mailbox.send("ada", letter)
    await there.wait_for(len(letters))
    assert there.letters == letters
    assert here.letters == [], "a server does not receive its own messages"
    assert there.gaps == 0


async def test_a_server_has_read_what_was_sent_before_it_synchronized(servers: Servers) -> None:
    inbox = Inbox()
    servers.other.mailbox.listen(inbox)
    for number in range(1, 20):
        await servers.one.mailbox.send("ada", Letter("s", "message", b"%d" % number))
        await asyncio.gather(*(servers.other.mailbox.sync() for _ in range(3)))
        assert len(inbox.letters) == number


async def test_a_server_without_its_database_waits_once_before_it_reports_that(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox, answers = servers.other.mailbox, asyncio.Event()
    read = mailbox._engine.read  # noqa: SLF001 - the database hangs

    async def read_late(work: Any) -> Any:
        await answers.wait()
        return await read(work)

    with monkeypatch.context() as patch:
        patch.setattr(mailbox_module, "SYNC_S", 0.1)
        patch.setattr(mailbox._engine, "read", read_late)  # noqa: SLF001 - as above
        with pytest.raises(Failed, match="does not answer"):
            await mailbox.sync()
        patch.setattr(mailbox_module, "SYNC_S", 60.0)
        async with asyncio.timeout(10):
            with pytest.raises(Failed):
                await mailbox.sync()
        needed = asyncio.ensure_future(mailbox.sync(needed=True))
        await asyncio.sleep(0)
        assert not needed.done(), "what cannot act otherwise waits for the database"
        answers.set()
        await needed
    await mailbox.sync()


async def test_a_failed_listener_keeps_nothing_from_the_others(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    class Defective(Inbox):
        def on_letter(self, letter: Letter) -> None:
            raise RuntimeError(letter.kind)

    inbox = Inbox()
    servers.other.mailbox.listen(Defective())
    servers.other.mailbox.listen(inbox)
    await servers.one.mailbox.send("ada", Letter("s", "message", b""))
    await inbox.wait_for(1)
    assert "a message of another server could not be handled" in caplog.text


async def test_messages_that_expired_unread_are_a_gap(servers: Servers) -> None:
    inbox = Inbox()
    servers.execute(
        "INSERT INTO server_messages (id, sender, principal, recipient, kind, body, sent_ms)"
        " VALUES (7, 'x', 'ada', 's', 'message', '', 1)"
    )
    servers.other.mailbox.listen(inbox)
    await servers.one.mailbox.send("ada", Letter("s", "message", b"next"))
    await inbox.wait_for(2)
    assert inbox.gaps == 1
    assert inbox.letters[-1].body == b"next"
    assert servers.execute("SELECT id FROM server_messages ORDER BY id") == [(7,), (8,)]
    await servers.one.mailbox.send("ada", Letter("s", "message", b"last"))
    assert servers.execute("SELECT id FROM server_messages ORDER BY id") == [(8,), (9,)]
    await inbox.wait_for(3)
    assert inbox.gaps == 1


async def test_a_principal_has_a_limited_number_of_messages(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "MAX_MESSAGES", 2)
    send = servers.one.mailbox.send
    for _ in range(2):
        await send("ada", Letter("s", "message", b""))
    with pytest.raises(Busy, match="Retry in a minute"):
        await send("ada", Letter("s", "message", b""))
    await send("eve", Letter("s", "message", b""))


# --- sessions ------------------------------------------------------------------------------------


def row(principal: Principal = ADA) -> SessionRow:
    settings = Settings("bash", 1, initialized=False, subscriptions=frozenset())
    return SessionRow(
        principal, "2025-11-25", b'{"capabilities":{},"clientInfo":null}', None, settings
    )


async def test_a_session_is_loaded_as_it_was_stored(servers: Servers) -> None:
    await servers.one.sessions.create("s1", row(), "x")
    found = await servers.other.sessions.load("s1")
    assert found is not None
    assert found == row()
    assert (found.principal.scopes, found.principal.credential) == (ADA.scopes, ADA.credential)


async def test_changes_of_two_servers_at_once_are_both_kept(servers: Servers) -> None:
    await servers.one.sessions.create("s1", row(), "x")
    before = row().settings
    louder = before._replace(level=4, subscriptions=frozenset({"a:1"}))
    ready = before._replace(initialized=True, subscriptions=frozenset({"a:\0"}))
    await asyncio.gather(
        servers.one.sessions.save("s1", "ada", before, louder, "x"),
        servers.other.sessions.save("s1", "ada", before, ready, "y"),
    )
    found = await servers.one.sessions.load("s1")
    assert found is not None
    assert found.settings == Settings("bash", 4, True, frozenset({"a:1", "a:\0"}))


async def test_a_principal_has_a_limited_number_of_sessions(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_rows, "MAX_SESSIONS", 2)
    inbox = Inbox()
    servers.other.mailbox.listen(inbox)
    rows = servers.one.sessions
    await rows.create("of_eve", row(Principal("eve")), "x")
    for name in ("s1", "s2", "s3"):
        await rows.create(name, row(), "x")
        servers.execute("UPDATE mcp_sessions SET used_ms = used_ms - 1000")
    found = servers.execute("SELECT id FROM mcp_sessions ORDER BY id")
    assert found == [("of_eve",), ("s2",), ("s3",)]
    await inbox.wait_for(1)
    assert inbox.letters == [Letter("s1", "ended", b"")]


@pytest.mark.parametrize("kind", CredentialKind)
async def test_the_rows_of_a_revoked_credential_stay_only_for_a_login(
    servers: Servers, kind: CredentialKind
) -> None:
    sessions = servers.one.open_sessions(make_mcp_server(Plexus(), McpOptions()))
    lost = Principal("ada", ADA.scopes, credential_of(kind, b"lost", "ada", ADA.scopes))
    kept = Principal("ada", ADA.scopes, credential_of(kind, b"kept", "ada", ADA.scopes))
    await servers.one.sessions.create("s1", row(lost), "x")
    await servers.other.sessions.create("s2", row(kept), "x")
    assert lost.credential is not None
    sessions.revoke(lost.credential, (), "revoked")
    await servers.one.mailbox.close()  # when it has written
    is_login = kind is CredentialKind.LOGIN
    assert (await servers.other.sessions.load("s1") is not None) == is_login
    assert await servers.other.sessions.load("s2") is not None


# --- tickets -------------------------------------------------------------------------------------

CREDENTIAL = Credential(ADA, b"d" * 32, bearer="very.secret.token", expires_s=5e9)


async def test_a_ticket_stands_for_its_credential_on_another_server(servers: Servers) -> None:
    ticket = await servers.one.tickets.issue(CREDENTIAL, CREDENTIAL.digest, "/rpc")
    ((stored,),) = servers.execute("SELECT holder FROM stream_tickets")
    assert isinstance(stored, bytes)
    assert b"secret" not in stored
    holder = await servers.other.tickets.redeem(ticket, "/rpc")
    assert holder is not None
    assert (holder.principal, holder.principal.scopes) == (ADA, ADA.scopes)
    assert (holder.digest, holder.bearer) == (CREDENTIAL.digest, CREDENTIAL.bearer)
    assert await servers.one.tickets.redeem(ticket, "/rpc") is None


async def test_a_ticket_is_redeemed_once_by_servers_at_the_same_time(servers: Servers) -> None:
    ticket = await servers.one.tickets.issue(CREDENTIAL, b"i", None)
    both = (servers.one, servers.other) * 4
    found = await asyncio.gather(*(each.tickets.redeem(ticket, "/rpc") for each in both))
    assert sum(holder is not None for holder in found) == 1


async def test_a_ticket_is_valid_for_its_path_and_its_time(servers: Servers) -> None:
    tickets = servers.one.tickets
    bound = await tickets.issue(CREDENTIAL, b"i", "/rpc")
    assert await tickets.redeem(bound, "/mcp") is None
    assert await tickets.redeem(bound, "/rpc") is None, "the first attempt has used it up"
    late = await tickets.issue(CREDENTIAL, b"i", None)
    servers.execute("UPDATE stream_tickets SET expires_ms = 1")
    assert await tickets.redeem(late, "/rpc") is None


async def test_unused_tickets_are_limited_until_they_expire(servers: Servers) -> None:
    tickets = servers.one.tickets
    for _ in range(2):
        await tickets.issue(CREDENTIAL, b"one", None)
    with pytest.raises(TooMany, match=r"this credential .* the limit is 2"):
        await servers.other.tickets.issue(CREDENTIAL, b"one", None)
    await tickets.issue(CREDENTIAL, b"two", None)
    with pytest.raises(TooMany, match="the limit is 3"):
        await tickets.issue(CREDENTIAL, b"three", None)
    servers.execute("UPDATE stream_tickets SET expires_ms = 1")
    await tickets.issue(CREDENTIAL, b"one", None)
