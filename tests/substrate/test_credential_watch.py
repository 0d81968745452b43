"""The credential watch: what it checks, when, and what it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hub_calls import until
from hypothesis import given
from hypothesis import strategies as st

from plexus.principal import LOCAL, Principal
from substrate.security.authentication import RECHECK_S, UNREACHABLE_S, Access, Credential
from substrate.security.credential_watch import CHECK_S, CredentialWatch
from substrate.security.errors import Unauthenticated, Unavailable
from substrate.security.page_sessions import SessionFile
from substrate.security.private_files import UNREADABLE_S
from substrate.security.tokens import TokenFile, digest_of
from substrate.server.peers import LAST_WRITE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

MAIN = "the-main-token"
#: So that the tests need not wait.
FAST_S = 0.005


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Issuer:
    """An issuer of tokens `login:end` that expire at this time; a login `x:y` has the scope y."""

    metadata_paths: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Event | None = None
        self.reachable = True

    async def verify(self, bearer: str) -> tuple[Principal, float]:
        self.asked += 1
        if self.answers is not None:
            await self.answers.wait()
        if not self.reachable:
            raise Unavailable("the issuer does not answer")
        if bearer.count(":") != 2:
            raise Unauthenticated("not one of ours")
        login, scopes, end = bearer.split(":")
        return Principal(login, frozenset(scopes.split("+")), digest_of(login)), float(end)

    def metadata(self) -> dict[str, Any]:
        return {}

    def challenge(self, scope: str | None = None, error: str | None = None) -> bytes:
        return f"Bearer {scope} {error}".encode()


class World:
    """An access with manual clocks, and a watch over it."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.issuer, self.held = Clock(), Issuer(), Held()
        self.tokens = TokenFile(folder / "private" / "tokens.json", self.clock, self.clock)
        self.access = Access(
            MAIN,
            self.tokens,
            SessionFile(folder / "private" / "sessions.json", wall=self.clock),
            oauth=self.issuer,
            publish=lambda _: None,
            clock=self.clock,
            wall=self.clock,
        )
        self.watch = CredentialWatch(self.access, [self.held], FAST_S)

    async def credential(self, secret: str) -> Credential:
        headers = {b"authorization": f"Bearer {secret}".encode()}
        return await self.access.authenticate(headers)

    async def open(self, secret: str) -> Open:
        """Return a request that is open with this token."""
        opened = Open()
        self.watch.add(await self.credential(secret), opened)
        return opened


class Open:
    """An open request that records how it ended."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self.refreshed = False

    def revoke(self, reason: str, *, refreshed: bool) -> None:
        assert self.ended is None, "it ends once"
        self.ended, self.refreshed = reason, refreshed


class Held:
    """A holder of state that belongs to credentials."""

    def __init__(self) -> None:
        self.principals: list[Principal] = []

    def credentials(self) -> set[bytes]:
        return {each.credential for each in self.principals if each.credential is not None}

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:  # noqa: ARG002
        self.principals = [
            each
            for each in self.principals
            if each.credential != credential or any(other.covers(each) for other in valid)
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def some_checks() -> None:
    """Wait for several rounds of checks."""
    await asyncio.sleep(10 * FAST_S)


def test_a_stream_ends_within_a_second() -> None:
    assert CHECK_S + LAST_WRITE_S < 1


# --- what ends a credential -----------------------------------------------------------------------


async def test_only_requests_of_the_invalid_credential_end(world: World) -> None:
    lost, kept = world.tokens.add("lost", None), world.tokens.add("kept", None)
    first, second, other = await world.open(lost), await world.open(lost), await world.open(kept)
    own = await world.open(MAIN)
    await some_checks()
    assert [each.ended for each in (first, second, other, own)] == [None] * 4
    world.tokens.revoke("lost")
    await until(lambda: first.ended is not None and second.ended is not None)
    assert not first.refreshed
    await world.access.rotate(await world.credential(MAIN))
    await until(lambda: own.ended is not None)
    assert other.ended is None


async def test_a_browser_session_ends_with_its_token(world: World) -> None:
    secret = world.tokens.add("page", None)
    session, _ = await world.access.create_session(await world.credential(secret))
    opened = await world.open(session)
    await some_checks()
    assert opened.ended is None
    world.tokens.revoke("page")
    await until(lambda: opened.ended is not None)


async def test_requests_of_a_browser_end_when_it_logs_out(world: World) -> None:
    session, _ = await world.access.create_session(await world.credential(MAIN))
    other, _ = await world.access.create_session(await world.credential(MAIN))
    opened, kept = await world.open(session), await world.open(other)
    await world.access.end_session(await world.credential(session))
    await until(lambda: opened.ended is not None)
    assert kept.ended is None


async def test_state_of_a_credential_ends_with_it_without_an_open_request(
    world: World,
) -> None:
    secret = world.tokens.add("lost", None)
    credential = await world.credential(secret)
    world.watch.record_use(credential)
    # A run starts some time after its request arrived, and before that nothing is in use.
    await asyncio.sleep(FAST_S / 2)
    world.held.principals = [credential.principal, LOCAL]
    await some_checks()
    assert len(world.held.principals) == 2
    world.tokens.revoke("lost")
    await until(lambda: world.held.principals == [LOCAL])


async def test_a_credential_that_cannot_be_checked_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = await world.open(MAIN)

    async def broken(_: Credential) -> Credential | None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(world.access, "revalidate", broken)
    with caplog.at_level(logging.ERROR):
        await until(lambda: opened.ended is not None)
    assert "cannot check a credential" in caplog.text


async def test_a_failure_to_end_one_request_keeps_no_other_open(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = world.tokens.add("lost", None)
    several = [await world.open(lost) for _ in range(10)]

    def broken(reason: str, *, refreshed: bool) -> None:  # noqa: ARG001 - it gets no further
        raise RuntimeError("a defect")

    for each in several[::2]:
        monkeypatch.setattr(each, "revoke", broken)
    world.held.principals = [(await world.credential(lost)).principal]
    with caplog.at_level(logging.ERROR):
        world.tokens.revoke("lost")
        await until(lambda: all(each.ended is not None for each in several[1::2]))
        await until(lambda: not world.held.principals)
    assert "cannot end an open request" in caplog.text


async def test_an_exception_in_one_round_does_not_stop_the_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await world.open(world.tokens.add("lost", None))
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    def broken() -> set[bytes]:
        raise RuntimeError("a defect")

    with monkeypatch.context() as broke:
        broke.setattr(world.held, "credentials", broken)
        await until(lambda: len(reported) > 1)
    loop.set_exception_handler(None)
    world.tokens.revoke("lost")
    await until(lambda: opened.ended is not None)


async def test_nothing_is_watched_without_authentication() -> None:
    watch = CredentialWatch(access := Access.open(), (), FAST_S)
    credential = await access.authenticate({})
    opened = Open()
    watch.add(credential, opened)
    watch.record_use(credential)
    assert not vars(watch)["_timer"]
    watch.discard(credential, opened)


# --- the cost -------------------------------------------------------------------------------------


async def test_a_credential_is_checked_once_a_round_regardless_of_its_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []
    real = world.access.revalidate

    async def counted(credential: Credential) -> Credential | None:
        checked.append(credential.digest)
        return await real(credential)

    monkeypatch.setattr(world.access, "revalidate", counted)
    monkeypatch.setattr(world.watch, "_check_s", 3600.0)  # only this one round
    secret = world.tokens.add("busy", None)
    for _ in range(100):
        await world.open(secret)
    vars(type(world.watch))["_tick"](world.watch)
    await until(lambda: bool(checked))
    await some_checks()
    assert len(checked) == 1


async def test_the_timer_does_not_run_while_nothing_is_open(world: World) -> None:
    credential = await world.credential(MAIN)
    opened = Open()
    world.watch.add(credential, opened)
    await some_checks()
    assert vars(world.watch)["_timer"]
    world.watch.discard(credential, opened)
    await until(lambda: not vars(world.watch)["_timer"])
    assert not vars(world.watch)["_known"]
    assert not vars(world.watch)["_open"]
    # It starts again with the next one.
    again = await world.open(MAIN)
    await world.access.rotate(credential)
    await until(lambda: again.ended is not None)


# --- tokens of an issuer --------------------------------------------------------------------------


async def test_an_oauth_token_ends_at_its_expiry(world: World) -> None:
    opened = await world.open(f"ada:read:{world.clock.now + 5}")
    await some_checks()
    assert opened.ended is None
    world.clock.now += 5
    await until(lambda: opened.ended is not None)
    assert world.issuer.asked == 1


async def test_a_slow_issuer_delays_no_other_credential(world: World) -> None:
    lost = world.tokens.add("lost", None)
    slow = await world.open(f"ada:read:{world.clock.now + 2 * RECHECK_S}")
    other = await world.open(lost)
    world.issuer.answers = asyncio.Event()
    world.clock.now += RECHECK_S
    await until(lambda: world.issuer.asked == 2)
    world.tokens.revoke("lost")
    await until(lambda: other.ended is not None)
    # Nor its own, when that is known.
    world.clock.now += RECHECK_S
    await until(lambda: slow.ended is not None)
    world.issuer.answers.set()
    await some_checks()


async def test_a_briefly_unreachable_issuer_ends_nothing(world: World) -> None:
    opened = await world.open("ada:read:inf")
    world.issuer.reachable = False
    world.clock.now += RECHECK_S
    await until(lambda: world.issuer.asked > 2)
    assert opened.ended is None
    world.issuer.reachable = True
    await some_checks()
    asked = world.issuer.asked
    await some_checks()
    assert world.issuer.asked == asked, "it was checked, and is not again for a while"
    assert opened.ended is None


async def test_a_permanently_unreachable_issuer_ends_everything(world: World) -> None:
    opened = await world.open("ada:read:inf")
    world.issuer.reachable = False
    world.clock.now += UNREACHABLE_S
    await until(lambda: opened.ended is not None)


async def test_a_refreshed_token_keeps_the_runs_of_the_previous_one(world: World) -> None:
    old, new = f"ada:bash:{world.clock.now + 5}", f"ada:bash+chat:{world.clock.now + 50}"
    first, second = await world.open(old), await world.open(new)
    principal = (await world.credential(old)).principal
    world.held.principals = [principal]
    world.clock.now += 5
    await until(lambda: first.ended is not None)
    assert first.refreshed
    assert second.ended is None
    assert world.held.principals == [principal]
    world.clock.now += 45
    await until(lambda: second.ended is not None)
    assert not second.refreshed
    assert not world.held.principals


async def test_tokens_that_expire_together_keep_nothing(world: World) -> None:
    ends = world.clock.now + 5
    several = [await world.open(f"ada:bash{'+chat' * number}:{ends}") for number in range(2)]
    world.clock.now = ends
    await until(lambda: all(each.ended is not None for each in several))
    assert not any(each.refreshed for each in several)


async def test_a_refreshed_token_with_fewer_scopes_keeps_nothing(world: World) -> None:
    old, new = f"ada:bash:{world.clock.now + 5}", f"ada:chat:{world.clock.now + 50}"
    first, second = await world.open(old), await world.open(new)
    world.held.principals = [(await world.credential(each)).principal for each in (old, new)]
    world.clock.now += 5
    await until(lambda: first.ended is not None)
    assert not first.refreshed
    assert second.ended is None
    assert [each.scopes for each in world.held.principals] == [frozenset({"chat"})]


NAMES = st.sampled_from(["ada", "bob"])
SCOPES = st.none() | st.frozensets(st.sampled_from(["read", "bash", "chat"]))
PRINCIPALS = st.builds(Principal, NAMES, SCOPES, st.sampled_from([None, b"1", b"2"]))


@given(PRINCIPALS, PRINCIPALS)
def test_a_principal_covers_another_only_if_it_may_do_everything_that_one_may(
    one: Principal, other: Principal
) -> None:
    assert one.covers(one)
    if one.covers(other):
        assert (one, one.credential) == (other, other.credential)
        assert all(one.may(scope) or not other.may(scope) for scope in ("read", "bash", "chat"))
        assert one.scopes is None or other.scopes is not None


# --- the file of tokens ---------------------------------------------------------------------------


async def test_a_file_that_cannot_be_read_for_a_moment_ends_nothing(world: World) -> None:
    secret = world.tokens.add("phone", None)
    opened = await world.open(secret)
    whole = world.tokens.path.read_text()
    world.tokens.path.write_text(whole[:20])  # as an editor that writes in place has it for a while
    world.clock.now += UNREADABLE_S / 2
    await some_checks()
    assert opened.ended is None
    assert await world.credential(secret)
    world.tokens.path.write_text(whole)
    await some_checks()
    world.clock.now += 2 * UNREADABLE_S
    await some_checks()
    assert opened.ended is None


@pytest.mark.parametrize("content", ["", "{", '{"tokens": 7}', '{"tokens": [{"name": "phone"}]}'])
async def test_a_file_that_stays_unreadable_ends_everything(
    world: World, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = world.tokens.add("phone", None)
    opened = await world.open(secret)
    own = await world.open(MAIN)
    await some_checks()
    with caplog.at_level(logging.ERROR):
        world.tokens.path.write_text(content)
        await some_checks()
        assert opened.ended is None
        world.clock.now += UNREADABLE_S
        await until(lambda: opened.ended is not None)
    assert str(world.tokens.path) in caplog.text
    assert own.ended is None, "the server's own token is not in the file"
    with pytest.raises(Unauthenticated):
        await world.credential(secret)


async def test_a_folder_instead_of_the_file_ends_everything(world: World) -> None:
    opened = await world.open(world.tokens.add("phone", None))
    await some_checks()
    world.tokens.path.unlink()
    world.tokens.path.mkdir()
    await some_checks()
    world.clock.now += UNREADABLE_S
    await until(lambda: opened.ended is not None)


async def test_deleting_the_file_revokes_its_tokens_immediately(world: World) -> None:
    opened = await world.open(world.tokens.add("phone", None))
    await some_checks()
    world.tokens.path.unlink()
    await until(lambda: opened.ended is not None)


async def test_a_failed_read_is_retried_even_if_the_file_is_unchanged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = world.tokens.add("phone", None)
    opened = await world.open(secret)
    await some_checks()
    file = vars(world.tokens)["_file"]
    real, failures = file.read, [OSError(24, "Too many open files")] * 3

    def read() -> Any:
        if failures:
            raise failures.pop()
        return real()

    other = TokenFile(world.tokens.path)
    monkeypatch.setattr(file, "read", read)
    other.add("other", None)
    await until(lambda: not failures)
    world.clock.now += 2 * UNREADABLE_S
    await some_checks()
    assert opened.ended is None
