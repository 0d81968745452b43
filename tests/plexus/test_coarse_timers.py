"""Coarse timers: they are called once, never early, and not after they were cancelled."""

import asyncio
from collections.abc import Callable

import pytest

from plexus.runtime.coarse_timers import CoarseTimer, CoarseTimers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

WAIT_S = 20


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the timers set no event
            await asyncio.sleep(0.001)


async def test_timers_are_called_in_the_order_of_their_times_and_never_early() -> None:
    timers, called = CoarseTimers(0.01), list[tuple[str, float]]()
    loop = asyncio.get_running_loop()

    def note(name: str) -> None:
        called.append((name, loop.time()))

    start = loop.time()
    timers.set(0.05, note, "later")
    timers.set(0.02, note, "first")
    await until(lambda: len(called) == 2)
    assert [name for name, _ in called] == ["first", "later"]
    assert called[0][1] - start >= 0.02
    assert called[1][1] - start >= 0.05


async def test_a_cancelled_timer_is_not_called_even_by_a_callback_of_the_same_moment() -> None:
    timers, called = CoarseTimers(0.05), list[str]()
    timers.set(0.001, called.append, "cancelled").cancel()
    pair: list[CoarseTimer] = []

    def cancel_others(name: str) -> None:
        called.append(name)
        for timer in pair:
            timer.cancel()

    pair += [timers.set(0.001, cancel_others, name) for name in ("one", "two")]
    timers.set(0.2, called.append, "end")
    await until(lambda: "end" in called)
    assert called in (["one", "end"], ["two", "end"])


async def test_a_callback_may_set_the_next_timer() -> None:
    timers, called = CoarseTimers(0.001), list[int]()

    def again(number: int) -> None:
        called.append(number)
        if number < 5:
            timers.set(0.001, again, number + 1)

    timers.set(0.001, again, 1)
    await until(lambda: len(called) == 5)
    assert called == [1, 2, 3, 4, 5]


async def test_a_callback_that_raises_does_not_keep_others_from_being_called() -> None:
    timers, called, errors = CoarseTimers(0.05), list[str](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail(name: str) -> None:
        called.append(name)
        raise ZeroDivisionError

    for name in ("one", "two", "three"):
        timers.set(0.001, fail, name)
    await until(lambda: len(called) == 3)
    assert sorted(called) == ["one", "three", "two"]
    assert len(errors) == 3
