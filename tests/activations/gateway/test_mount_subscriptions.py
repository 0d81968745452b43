"""Updates of single resources of mounts: subscribed at the server while a client waits for them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from gateway_kit import MountedHub, entry, mounted, until

from activations.gateway import subscriptions
from plexus.principal import LOCAL, Principal
from plexus.runtime.changes import Change

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

URI = "mount://up/file:///a"
#: Timeout for a program to listen.
START_S = 30.0
HTTP_PROGRAM = Path(__file__).with_name("http_program.py")
OTHER = Principal("other", frozenset())


@asynccontextmanager
async def subscribable(
    folder: Path, session: str = "shared"
) -> AsyncIterator[tuple[MountedHub, list[Change]]]:
    """Run a hub with a mount of a server that reports updates, and collect those."""
    changes: list[Change] = []
    async with mounted(folder, {"up": entry("subscribe", session=session)}) as here:
        here.hub.on_change(lambda change: changes.append(change) if change.uri else None)
        yield here, changes


def free_port() -> int:
    """Return a port that a server can use repeatedly."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def http_program(port: int) -> Iterator[None]:
    """Run a server over HTTP on this port, and kill it."""
    with subprocess.Popen([sys.executable, str(HTTP_PROGRAM), str(port)]) as process:
        try:
            end = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                    break
                except OSError:
                    assert time.monotonic() < end, "the server did not start in time"
                    time.sleep(0.05)
            yield
        finally:
            process.kill()


async def subscribed(here: MountedHub, *expected: str) -> None:
    """Wait until the server has exactly these subscriptions."""
    async with asyncio.timeout(30):
        while json.loads(await here.text_of("up.subscribed")) != list(expected):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_resource_is_subscribed_from_the_first_watcher_to_the_last(tmp_path: Path) -> None:
    async with subscribable(tmp_path) as (here, changes):
        watched = here.hub.watched_resources
        watched.add(URI, LOCAL)
        watched.add(URI, LOCAL)
        watched.add("mount://up/file:///b", LOCAL)
        watched.add("mount://up/file:///refuse", LOCAL)
        watched.add("mount://elsewhere/file:///a", LOCAL)
        await subscribed(here, "file:///a", "file:///b")
        await here.text_of("up.touch", uri="file:///a")
        await here.text_of("up.touch", uri="file:///c")
        await until(lambda: changes)
        watched.remove("mount://up/file:///b", LOCAL)
        watched.remove(URI, LOCAL)
        await subscribed(here, "file:///a")
        assert changes == [Change("resource", URI)]

        changes.clear()
        watched.remove(URI, LOCAL)
        await subscribed(here)
        await here.text_of("up.touch", uri="file:///a", n=100)
        assert changes == []


async def test_an_update_below_a_subscribed_resource_is_one_of_it(tmp_path: Path) -> None:
    async with subscribable(tmp_path) as (here, changes):
        here.hub.watched_resources.add(URI, LOCAL)
        await subscribed(here, "file:///a")
        await here.text_of("up.touch", uri="file:///abc/d")
        await here.text_of("up.touch", uri="/" * 100_000)
        await here.text_of("up.touch", uri="file:///a/b/c")
        await until(lambda: changes)
        assert changes == [Change("resource", URI)]


async def test_a_flood_of_updates_becomes_a_few_and_the_last_is_not_lost(tmp_path: Path) -> None:
    async with subscribable(tmp_path) as (here, changes):
        here.hub.watched_resources.add(URI, LOCAL)
        await subscribed(here, "file:///a")
        began = time.monotonic()
        await here.text_of("up.touch", uri="file:///a", n=20_000)
        limit = 2 + (time.monotonic() - began) / subscriptions.SETTLE_S
        assert 1 <= len(changes) <= limit
        # What came after the last report is reported at the end of its interval.
        changes.clear()
        await here.text_of("up.touch", uri="file:///a", n=2)
        await until(lambda: changes)


async def test_a_lost_session_is_replaced_and_a_missed_update_is_made_up_for(
    tmp_path: Path,
) -> None:
    async with subscribable(tmp_path) as (here, changes):
        here.hub.watched_resources.add(URI, LOCAL)
        await subscribed(here, "file:///a")
        assert changes == []
        await here.end_of("up.die")
        await until(lambda: changes)  # without any call
        assert changes == [Change("resource", URI)]
        await subscribed(here, "file:///a")


@pytest.mark.slow
async def test_a_session_that_the_server_has_forgotten_is_subscribed_again(tmp_path: Path) -> None:
    port, tea = free_port(), "mount://up/note://tea"
    changes: list[Change] = []
    table = {"url": f"http://127.0.0.1:{port}/mcp", "session": "shared"}
    async with AsyncExitStack() as stack:
        with http_program(port):
            here = await stack.enter_async_context(mounted(tmp_path, {"up": table}))
            here.hub.on_change(lambda change: changes.append(change) if change.uri else None)
            here.hub.watched_resources.add(tea, LOCAL)
            await subscribed(here, "note://tea")
            assert changes == []
        with http_program(port):  # it answers 404 to the session of the process before
            await subscribed(here, "note://tea")
            await until(lambda: changes)
            assert changes == [Change("resource", tea)]  # an update may have been missed
            changes.clear()
            await here.text_of("up.touch")
            await until(lambda: changes)
            assert here.gateway.mounts["up"].describe_state()["restarts"] == 0


async def test_a_principal_that_may_not_read_a_resource_subscribes_to_nothing(
    tmp_path: Path,
) -> None:
    async with subscribable(tmp_path) as (here, _):
        here.hub.watched_resources.add(URI, OTHER)
        here.hub.watched_resources.add("mount://up/file:///b", LOCAL)
        await subscribed(here, "file:///b")


async def test_sessions_of_principals_report_to_them_alone(tmp_path: Path) -> None:
    async with subscribable(tmp_path, "principal") as (here, changes):
        ann = Principal("ann", frozenset({"up"}))
        here.hub.watched_resources.add(URI, LOCAL)
        here.hub.watched_resources.add(URI, ann)
        await subscribed(here, "file:///a")
        calls = here.gateway.mounts["up"].calls
        await until(lambda: sum(bool(each.followed) for each in calls.pool.observing()) == 2)
        await here.caller(principal=ann).events("up.touch", uri="file:///a")
        await until(lambda: changes)
        assert changes == [Change("resource", URI, "ann")]


async def test_a_session_that_only_observes_ends_when_a_caller_has_one(tmp_path: Path) -> None:
    async with subscribable(tmp_path, "connection") as (here, changes):
        here.hub.watched_resources.add(URI, LOCAL)
        pool = here.gateway.mounts["up"].calls.pool
        await until(lambda: [each.key[0] for each in pool.observing() if each.followed])
        assert [each.key[0] for each in pool.observing()] == ["watch"]
        await subscribed(here, "file:///a")  # that of the caller
        await until(lambda: [each.key[0] for each in pool.observing()] == ["client"])
        await here.text_of("up.touch", uri="file:///a")
        await until(lambda: changes)
        here.hub.watched_resources.remove(URI, LOCAL)
        await subscribed(here)


async def test_a_subscription_that_is_not_answered_delays_neither_others_nor_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIBE_S", 0.3)
    monkeypatch.setattr(subscriptions, "RETRY_S", 0.05)
    async with subscribable(tmp_path) as (here, _):
        here.hub.watched_resources.add("mount://up/file:///0/never", LOCAL)
        here.hub.watched_resources.add(URI, LOCAL)
        assert await here.text_of("up.echo", text="hello") == "hello"
        await subscribed(here, "file:///a")


async def test_what_was_watched_before_the_server_was_listed_is_subscribed_then(
    tmp_path: Path,
) -> None:
    table = entry("subscribe", session="shared")
    async with mounted(tmp_path, {"up": table}, listed=False) as here:
        assert here.gateway.mounts["up"].catalogue is None
        here.hub.watched_resources.add(URI, LOCAL)
        await until(lambda: "up.subscribed" in here.names())
        await subscribed(here, "file:///a")
