"""Lifespans: entered before the first call, left after the last, in one task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from plexus import Activation, Plexus, method
from plexus.errors import UnknownMethod
from plexus.runtime import lifespans
from plexus.testing import local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def with_lifespan(log: list[str], name: str = "span") -> Activation:
    """Return an activation that logs its lifespan."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        log.append(f"open {name}")
        # A task group must be left by the task that entered it.
        async with anyio.create_task_group():
            yield
        log.append(f"close {name}")

    activation = Activation(name, lifespan=opened)
    activation.method(name="one")(lambda: 1)
    return activation


class Classy(Activation):
    """An activation with a lifespan in class style."""

    namespace = "classy"

    def __init__(self) -> None:
        self.ready = False

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.ready = True
        yield
        self.ready = False

    @method
    async def is_ready(self) -> bool:
        """Say whether the lifespan was entered."""
        return self.ready


async def test_a_lifespan_surrounds_all_calls() -> None:
    log: list[str] = []
    async with local(with_lifespan(log)) as plexus:
        assert log == ["open span"]
        assert await plexus.call("span.one") == 1
    assert log == ["open span", "close span"]


async def test_a_class_may_have_one_too() -> None:
    classy = Classy()
    async with local(classy) as plexus:
        assert await plexus.call("classy.is_ready") is True
    assert classy.ready is False


async def test_the_last_started_is_the_first_stopped() -> None:
    log: list[str] = []
    async with local(with_lifespan(log, "first"), with_lifespan(log, "second")):
        pass
    assert log == ["open first", "open second", "close second", "close first"]


async def test_opening_again_starts_only_what_came_since() -> None:
    log: list[str] = []
    hub = Plexus()
    hub.register(with_lifespan(log, "first"))
    assert await hub.open() == []
    hub.register(with_lifespan(log, "second"))
    assert await hub.open() == []
    assert log == ["open first", "open second"]
    await hub.close()


async def _refuse() -> None:
    raise ConnectionError("no database")


async def test_one_that_fails_to_start_is_switched_off_and_the_others_serve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await _refuse()
        yield

    bad = Activation("bad", lifespan=broken)
    bad.method(name="one")(lambda: 1)
    hub = Plexus()
    hub.register(bad)
    hub.register(with_lifespan(log))
    assert await hub.open() == [("bad", "it did not start: ConnectionError: no database")]
    with pytest.raises(UnknownMethod, match="bad is switched off: it did not start"):
        hub.resolve("bad.one")
    assert hub.resolve("span.one")
    assert "bad did not start" in caplog.text
    await hub.close()


async def test_one_that_takes_too_long_to_start_is_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifespans, "START_S", 0.05)

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        await asyncio.sleep(60)
        yield

    late = Activation("late", lifespan=slow)
    late.method(name="one")(lambda: 1)
    hub = Plexus()
    hub.register(late)
    [(path, reason)] = await hub.open()
    assert (path, reason) == (
        "late",
        "it did not start: TimeoutError: it did not start within 0.05 s",
    )
    await hub.close()


async def test_one_that_fails_to_stop_is_logged_and_the_others_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespans, "STOP_S", 0.05)
    log: list[str] = []

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise ConnectionError("gone")

    @asynccontextmanager
    async def stuck() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(60)

    made: list[Any] = [broken, stuck]
    hub = Plexus()
    hub.register(with_lifespan(log))
    for index, lifespan in enumerate(made):
        bad = Activation(f"bad_{index}", lifespan=lifespan)
        bad.method(name="one")(lambda: 1)
        hub.register(bad)
    await hub.open()
    await hub.close()
    assert "bad_0 did not stop cleanly" in caplog.text
    assert "bad_1 did not stop within 0.05 s" in caplog.text
    assert log == ["open span", "close span"]
