"""A sign-in at a mounted server from a terminal: commands ask for it, and continue after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from command_line import Terminal, terminal, without_colours
from http_upstream import listening
from protected_upstream import ProtectedTools

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(180)]

ADDRESS = r"http://127\.0\.0\.1:\d+/authorize\?[^\s\x1b]+"
QUESTION = r"docs requires you to sign in\. Open the address in a browser\. \[y/n\]"

#: What a person does while a command runs.
Act = Callable[[Terminal], None]


class Person:
    """A person at a terminal, whose files are all in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HOME")
        self._variables = {name: str(folder / name.lower()) for name in names}

    async def run(self, *arguments: str, act: Act) -> tuple[int, str]:
        """Run a command on a terminal. Returns its exit code and what the terminal shows."""
        return await asyncio.to_thread(self._run, arguments, act)

    def _run(self, arguments: tuple[str, ...], act: Act) -> tuple[int, str]:
        with terminal(*arguments, cwd=self._folder, **self._variables) as command:
            act(command)
            code, text = command.end()
            return code, without_colours(text)


@asynccontextmanager
async def mounted_by(person: Person) -> AsyncIterator[ProtectedTools]:
    """Run a protected server that a person has mounted as `docs`, signed in, and is signed out."""
    server = ProtectedTools()
    async with listening(server.handle) as upstream:
        server.upstream = upstream
        added = await person.run("mount", "add", "docs", f"{server.url}/mcp", act=visit)
        assert "docs offers 1 tools" in added[1], added
        server.revoke()
        yield server


def address_on(command: Terminal) -> str:
    """Return the address of the sign-in that the terminal shows."""
    address: str = command.screen.wait_for(ADDRESS)[0]
    return address


def visit(command: Terminal) -> None:
    """Sign in with a browser on this machine."""
    page = httpx2.get(address_on(command), follow_redirects=True, trust_env=False, timeout=30)
    assert page.status_code == 200


async def test_a_call_asks_in_the_terminal_and_continues_when_the_person_has_signed_in(
    tmp_path: Path,
) -> None:
    def sign_in(command: Terminal) -> None:
        command.screen.wait_for(QUESTION)
        visit(command)  # and types nothing: the question closes by itself

    person = Person(tmp_path)
    async with mounted_by(person) as server:
        code, shown = await person.run("call", "docs.read", act=sign_in)
        assert (code, shown.splitlines()[-1]) == (0, "ok"), shown
        grants = list(server.grants)
        code, shown = await person.run("call", "docs.read", act=lambda _: None)
        assert (code, shown) == (0, "ok\n")  # the token is kept
        assert server.grants == grants


async def test_an_answer_in_the_terminal_waits_for_the_browser_or_declines(tmp_path: Path) -> None:
    def agree(command: Terminal) -> None:
        command.screen.wait_for(QUESTION)
        command.type("y\n")
        visit(command)

    def decline(command: Terminal) -> None:
        command.screen.wait_for(QUESTION)
        command.type("n\n")

    person = Person(tmp_path)
    async with mounted_by(person) as server:
        code, shown = await person.run("call", "docs.read", act=decline)
        assert code == 1
        assert "The sign-in was declined." in shown
        assert server.valid == set()
        code, shown = await person.run("call", "docs.read", act=agree)
        assert (code, shown.splitlines()[-1]) == (0, "ok"), shown


async def test_the_address_at_the_end_of_a_sign_in_elsewhere_is_pasted_into_the_terminal(
    tmp_path: Path,
) -> None:
    def paste(command: Terminal) -> None:
        # The browser of another machine ends at an address that it cannot open.
        page = httpx2.get(address_on(command), trust_env=False, timeout=30)
        command.screen.wait_for("paste its address here:")
        command.type("http://127.0.0.1:1/callback?code=x&state=forged\n")
        command.screen.wait_for("That is not the address")
        command.type(page.headers["location"] + "\n")

    person = Person(tmp_path)
    async with mounted_by(person):
        code, shown = await person.run("mount", "refresh", "docs", act=paste)
        assert code == 0, shown
