"""Sign-in to remote servers: who is asked, how often, and where tokens go."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from http_upstream import Answer, HttpRequest, listening
from protected_upstream import Protected
from upstream_sessions import WAIT_S, calling, text_of

from activations.gateway.transports.oauth import OAuth, SignIn
from activations.gateway.transports.oauth_flow import OAuthFlow
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.streamable_http import HttpTransport
from activations.gateway.transports.token_store import TokenStore
from activations.gateway.transports.transport import SessionLimits
from mcp_view.client.errors import SignInRequired, Unreachable

pytestmark = pytest.mark.anyio

FAST = SessionLimits(init_s=3.0, probe_s=1.0)


@asynccontextmanager
async def protected() -> AsyncIterator[Protected]:
    server = Protected()
    async with listening(server.handle) as upstream:
        server.upstream = upstream
        yield server


class Person:
    """A person with a browser on this machine."""

    def __init__(self) -> None:
        self.asked: list[SignIn] = []

    async def sign_in(self, pending: SignIn) -> None:
        self.asked.append(pending)
        async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S) as browser:
            page = await browser.get(pending.url, follow_redirects=True)
        assert page.status_code == 200
        assert "close this window" in page.text


def store_in(folder: Path) -> TokenStore:
    return TokenStore(folder / "tokens.json", keyring=False)


@asynccontextmanager
async def signed_in(
    server: Protected, folder: Path, person: Person | None, **options: Any
) -> AsyncIterator[UpstreamSession]:
    auth = OAuth(
        f"{server.url}/mcp",
        store_in(folder),
        on_sign_in=None if person is None else person.sign_in,
        **options,
    )
    session = UpstreamSession(HttpTransport(f"{server.url}/mcp", auth=auth), limits=FAST)
    try:
        async with asyncio.timeout(WAIT_S):
            await session.open()
            yield session
    finally:
        await session.close()


async def test_a_person_signs_in_once_and_the_token_is_kept(tmp_path: Path) -> None:
    person = Person()
    async with protected() as server:
        for _ in range(2):
            async with signed_in(server, tmp_path, person) as session:
                assert text_of(await calling(session)) == "ok"
        assert len(person.asked) == 1
        assert server.grants == ["authorization_code"]
        assert person.asked[0].url.startswith(f"{server.url}/authorize?")
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600


async def test_an_expired_token_is_refreshed_without_a_person(tmp_path: Path) -> None:
    person = Person()
    async with protected() as server:
        async with signed_in(server, tmp_path, person) as session:
            assert text_of(await calling(session)) == "ok"
        path = tmp_path / "tokens.json"
        entries = json.loads(path.read_text())
        entries[f"{server.url}/mcp"]["expires_at"] = 1.0
        path.write_text(json.dumps(entries))
        async with signed_in(server, tmp_path, person) as session:
            assert text_of(await calling(session)) == "ok"
        assert len(person.asked) == 1
        assert server.grants == ["authorization_code", "refresh_token"]


async def test_a_token_with_a_short_life_is_used(tmp_path: Path) -> None:
    async with protected() as server:
        server.lifetime = 5
        async with signed_in(server, tmp_path, Person()) as session:
            assert text_of(await calling(session)) == "ok"


async def test_a_revoked_token_is_refreshed_before_a_person_is_asked(tmp_path: Path) -> None:
    person = Person()
    async with protected() as server, signed_in(server, tmp_path, person) as session:
        server.valid.clear()
        assert text_of(await calling(session)) == "ok"
        assert len(person.asked) == 1
        assert server.grants == ["authorization_code", "refresh_token"]


async def test_a_refused_refresh_leads_to_a_sign_in(tmp_path: Path) -> None:
    person = Person()
    async with protected() as server, signed_in(server, tmp_path, person) as session:
        server.valid.clear()
        server.grants.append("another client used the refresh token")
        assert text_of(await calling(session)) == "ok"
        assert len(person.asked) == 2


async def test_a_missing_scope_is_added_by_another_sign_in(tmp_path: Path) -> None:
    person = Person()
    async with protected() as server, signed_in(server, tmp_path, person) as session:
        assert text_of(await calling(session, "write")) == "ok"
        assert len(person.asked) == 2
        scope = parse_qs(urlsplit(person.asked[1].url).query)["scope"][0]
        assert set(scope.split()) == {"read", "write"}


async def test_two_sessions_sign_in_once(tmp_path: Path) -> None:
    person = Person()

    async def use() -> None:
        async with signed_in(server, tmp_path, person) as session:
            assert text_of(await calling(session)) == "ok"

    async with protected() as server:
        await asyncio.gather(use(), use(), use())
    assert len(person.asked) == 1


async def test_calls_with_a_token_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with protected() as server, signed_in(server, tmp_path, Person()) as session:
        assert server.upstream is not None
        handle, released = server.upstream.handler, asyncio.Event()

        async def slow(request: HttpRequest) -> Answer:
            if request.message.get("params", {}).get("name") == "slow":
                await released.wait()
            return await handle(request)

        server.upstream.handler = slow
        waiting = session.start("tools/call", {"name": "slow"})
        assert text_of(await calling(session)) == "ok"
        assert not waiting.is_done
        released.set()
        assert text_of(await waiting.wait()) == "ok"


async def test_the_time_of_a_person_does_not_count(tmp_path: Path) -> None:
    class Slow(Person):
        async def sign_in(self, pending: SignIn) -> None:
            await asyncio.sleep(FAST.init_s + 0.5)
            await super().sign_in(pending)

    async with protected() as server, signed_in(server, tmp_path, Slow()) as session:
        assert text_of(await calling(session)) == "ok"


async def test_a_sign_in_that_is_not_completed_is_a_named_error(tmp_path: Path) -> None:
    class Absent(Person):
        async def sign_in(self, pending: SignIn) -> None:
            self.asked.append(pending)

    async with protected() as server:
        with pytest.raises(SignInRequired, match=r"not completed within 0\.2 s"):
            async with signed_in(server, tmp_path, Absent(), sign_in_s=0.2):
                pass


async def test_without_a_person_the_error_states_it(tmp_path: Path) -> None:
    async with protected() as server:
        with pytest.raises(SignInRequired, match="no person to ask"):
            async with signed_in(server, tmp_path, None):
                pass


async def test_an_address_is_pasted_and_one_of_another_sign_in_is_not_accepted(
    tmp_path: Path,
) -> None:
    class Elsewhere(Person):
        async def sign_in(self, pending: SignIn) -> None:
            assert not pending.complete("http://127.0.0.1/callback?code=evil&state=guessed")
            assert not pending.complete("http://127.0.0.1/callback?code=evil")
            async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S) as browser:
                redirect = await browser.get(pending.url, follow_redirects=False)
            assert pending.complete(redirect.headers["location"])
            assert not pending.complete(redirect.headers["location"])

    async with protected() as server, signed_in(server, tmp_path, Elsewhere()) as session:
        assert text_of(await calling(session)) == "ok"


async def test_a_refusal_of_the_authorization_server_is_shown(tmp_path: Path) -> None:
    class Refusing(Person):
        async def sign_in(self, pending: SignIn) -> None:
            state = parse_qs(urlsplit(pending.url).query)["state"][0]
            assert pending.complete(f"http://x/callback?error=access_denied&state={state}")

    async with protected() as server:
        with pytest.raises(SignInRequired, match="access_denied"):
            async with signed_in(server, tmp_path, Refusing()):
                pass


async def test_metadata_of_another_resource_is_refused(tmp_path: Path) -> None:
    person = Person()
    async with protected() as server:
        server.metadata = {"resource": "https://other.example/mcp"}
        with pytest.raises(SignInRequired, match="does not match"):
            async with signed_in(server, tmp_path, person):
                pass
    assert person.asked == []


async def test_a_token_is_never_sent_without_https(tmp_path: Path) -> None:
    auth = OAuth("http://example.com/mcp", store_in(tmp_path))
    with pytest.raises(Unreachable, match="requires https"):
        await UpstreamSession(HttpTransport("http://example.com/mcp", auth=auth)).open()


@pytest.mark.parametrize(
    "target",
    [
        "http://public.example/token",
        "https://127.0.0.1/token",
        "https://localhost/token",
        "https://10.0.0.1/token",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/token",
        "https://[fd00::1]/token",
    ],
)
async def test_a_remote_server_cannot_lead_a_sign_in_into_the_network(
    target: str, tmp_path: Path
) -> None:
    server = OAuth("https://mcp.example/mcp", store_in(tmp_path))
    flow = OAuthFlow(server).authorize(httpx2.Request("POST", "https://mcp.example/mcp"))
    own = await anext(flow)
    where = f'Bearer resource_metadata="{target}"'
    response = httpx2.Response(401, headers={"WWW-Authenticate": where}, request=own)
    with pytest.raises(SignInRequired, match="not a public https address"):
        await flow.asend(response)


# --- the store -----------------------------------------------------------------------------------


async def test_a_damaged_file_of_tokens_requires_a_new_sign_in(tmp_path: Path) -> None:
    person = Person()
    (tmp_path / "tokens.json").write_text("{broken")
    async with protected() as server, signed_in(server, tmp_path, person) as session:
        assert text_of(await calling(session)) == "ok"
    assert len(person.asked) == 1
    assert len(json.loads((tmp_path / "tokens.json").read_text())) == 1


async def test_a_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("{}")
    path.chmod(0o644)
    assert await store_in(tmp_path).load("https://a.example") == {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def unfinished_files(folder: Path) -> list[Path]:
    return list(folder.glob("*.new"))


async def test_concurrent_saves_lose_no_entry(tmp_path: Path) -> None:
    urls = [f"https://{number}.example" for number in range(40)]
    await asyncio.gather(*(store_in(tmp_path).save(url, {"n": url}) for url in urls))
    for url in urls:
        assert await store_in(tmp_path).load(url) == {"n": url}
    await store_in(tmp_path).save(urls[0], {})
    assert await store_in(tmp_path).load(urls[0]) == {}
    assert not unfinished_files(tmp_path)


async def test_a_lock_excludes_another_store_until_it_is_released(tmp_path: Path) -> None:
    order: list[str] = []

    async def second() -> None:
        async with store_in(tmp_path).lock("https://a.example"):
            order.append("second")

    async with store_in(tmp_path).lock("https://a.example"):
        waiting = asyncio.create_task(second())
        async with store_in(tmp_path).lock("https://b.example"):
            await asyncio.sleep(0.2)
        order.append("first")
    async with asyncio.timeout(WAIT_S):
        await waiting
    assert order == ["first", "second"]


async def test_a_keyring_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keyring

    def fail(*_: str) -> None:
        raise RuntimeError("locked")

    for name in ("get_password", "set_password", "delete_password"):
        monkeypatch.setattr(keyring, name, fail)
    store = TokenStore(tmp_path / "tokens.json")
    await store.save("https://a.example", {"n": 1})
    assert await store.load("https://a.example") == {"n": 1}


async def test_a_keyring_that_works_keeps_the_tokens_out_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keyring

    kept: dict[tuple[str, str], str] = {}
    monkeypatch.setattr(keyring, "get_password", lambda *key: kept.get(key))
    monkeypatch.setattr(keyring, "set_password", lambda a, b, text: kept.update({(a, b): text}))
    monkeypatch.setattr(keyring, "delete_password", lambda *key: kept.pop(key))
    store = TokenStore(tmp_path / "tokens.json")
    await store.save("https://a.example", {"n": 1})
    assert await store.load("https://a.example") == {"n": 1}
    assert not (tmp_path / "tokens.json").exists()
    await store.save("https://a.example", {})
    assert await store.load("https://a.example") == {}
