"""Mounts of servers that require a sign-in: who is asked, where, and whose token is used."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gateway_kit import MountedHub, mounted, until
from http_upstream import listening
from protected_upstream import ProtectedTools

from activations.gateway.mount_config import MountError, parse_mount
from activations.gateway.transports.oauth import SignIn
from plexus.errors import PlexusError
from plexus.events import Complete, ContentResult, ErrorEvent, Terminal
from plexus.principal import LOCAL, Principal
from plexus.runtime.question_feed import OpenQuestion
from plexus.runtime.run import Run

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(90)]


@asynccontextmanager
async def protected_mount(
    folder: Path, *, approved: bool = True, **options: Any
) -> AsyncIterator[tuple[ProtectedTools, MountedHub]]:
    """Run a hub with a mount `docs` of a protected server, which was listed before."""
    server = ProtectedTools()
    async with listening(server.handle) as upstream:
        server.upstream = upstream
        table = {"url": f"{server.url}/mcp", **options}
        async with mounted(folder, {"docs": table}, listed=False) as here:
            if approved:
                here.gateway.show_sign_in = browse
                await here.gateway.refresh("docs")
                here.gateway.show_sign_in = None
            yield server, here


async def visit(url: str) -> str:
    """Open an address as a browser does, and return the one that it ends at."""
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as browser:
        page = await browser.get(url, follow_redirects=True)
    assert page.status_code == 200
    return str(page.url)


async def browse(pending: SignIn) -> None:
    await visit(pending.url)


async def test_the_caller_of_a_run_is_asked_once_and_the_question_closes_by_itself(
    tmp_path: Path,
) -> None:
    async with protected_mount(tmp_path) as (server, here):
        ann = Principal("ann", None)
        call = here.hub.call("docs.read", {}, ann)
        await until(lambda: call.run.questions)
        [question] = _questions(call.run)
        details = question.question.details()
        assert details is not None
        await visit(details["url"])  # the person follows the address and answers nothing here
        await until(lambda: call.run.terminal is not None)
        assert isinstance(call.run.terminal, ContentResult), call.run.terminal
        assert not call.run.questions
        again = here.hub.call("docs.read", {}, ann)
        await until(lambda: again.run.terminal is not None)
        assert isinstance(again.run.terminal, ContentResult)
        assert server.grants.count("authorization_code") == 2  # one for the list, one for ann
        tokens = tmp_path / "mounts" / "tokens.json"
        assert stat.S_IMODE(tokens.stat().st_mode) == 0o600


async def test_each_principal_uses_its_own_account_unless_the_session_is_shared(
    tmp_path: Path,
) -> None:
    async with protected_mount(tmp_path / "own") as (_, here):
        call = here.hub.call("docs.read", {}, Principal("bob", None))
        await until(lambda: call.run.questions)
        call.run.cancel("no")
        own = here.hub.call("docs.read", {}, LOCAL)  # has signed in for the list
        await until(lambda: own.run.terminal is not None)
        assert isinstance(own.run.terminal, ContentResult)
    async with protected_mount(tmp_path / "shared", session="shared") as (_, here):
        call = here.hub.call("docs.read", {}, Principal("bob", None))
        await until(lambda: call.run.terminal is not None)
        assert isinstance(call.run.terminal, ContentResult)


async def test_a_caller_that_cannot_open_addresses_pastes_the_last_one(tmp_path: Path) -> None:
    async with protected_mount(tmp_path) as (server, here):
        ann = Principal("ann", None)
        call = here.hub.call("docs.read", {}, ann, question_kinds=frozenset())
        await until(lambda: call.run.questions)
        [question] = _questions(call.run)
        assert f"Open {server.url}/authorize" in question.question.message
        call.run.answer("1", "http://127.0.0.1:1/callback?code=x&state=forged")
        await until(lambda: "not the address" in _messages(call.run))
        # The browser of another machine ends at an address that it cannot open.
        address = question.question.message.split("Open ")[1].split(" ")[0]
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as browser:
            answer = await browser.get(address)
        call.run.answer("2", answer.headers["location"])
        await until(lambda: call.run.terminal is not None)
        assert isinstance(call.run.terminal, ContentResult), call.run.terminal


async def test_a_declined_sign_in_is_a_named_error_and_asks_again_in_the_next_call(
    tmp_path: Path,
) -> None:
    async with protected_mount(tmp_path) as (_, here):
        for _attempt in range(5):
            terminal = await _decline(here)
            assert isinstance(terminal, ErrorEvent)
            assert (terminal.code, "declined" in terminal.message) == ("sign_in", True)


async def test_a_list_in_the_background_asks_no_person_and_reports_what_to_do(
    tmp_path: Path,
) -> None:
    async with protected_mount(tmp_path, approved=False) as (_, here):
        mount = here.gateway.mounts["docs"]
        await until(lambda: mount.describe_state()["error"])
        assert "substrate mount refresh docs" in mount.describe_state()["error"]
        # A person can sign in from the page or a client: the method asks.
        refresh = here.hub.call("mounts.refresh", {"mount": "docs"}, LOCAL)
        await until(lambda: refresh.run.questions)
        [question] = _questions(refresh.run)
        await visit((question.question.details() or {})["url"])
        await until(lambda: refresh.run.terminal is not None)
        assert isinstance(refresh.run.terminal, Complete)
        assert mount.describe_state()["tools"] == 1


async def _decline(here: MountedHub) -> Terminal | None:
    call = here.hub.call("docs.read", {}, Principal("ann", None))
    await until(lambda: call.run.questions)
    call.run.answer("1", False)
    await until(lambda: call.run.terminal is not None)
    return call.run.terminal


def _questions(run: Run) -> list[OpenQuestion]:
    return list((run.questions or {}).values())


def _messages(run: Run) -> str:
    return " ".join(each.question.message for each in _questions(run))


async def test_a_mount_with_a_token_in_a_header_or_without_sign_in_asks_no_person(
    tmp_path: Path,
) -> None:
    for options in ({"sign_in": "off"}, {"headers": {"Authorization": "Bearer old"}}):
        async with protected_mount(tmp_path, approved=False, **options) as (_, here):
            with pytest.raises(PlexusError, match="sign-in or a token"):
                await here.gateway.refresh("docs")


@pytest.mark.parametrize(
    "oauth",
    [{"client": "x"}, {"client_id": 5}, {"grant": "password"}, "text"],
)
def test_an_invalid_table_of_oauth_is_refused(oauth: object) -> None:
    with pytest.raises(MountError, match="client_id, client_secret"):
        parse_mount("docs", {"url": "https://mcp.example/mcp", "oauth": oauth})
