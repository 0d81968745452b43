"""Worker threads: values and generators cross to the loop, are bounded, and can be given up."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator

import pytest

from plexus.errors import Busy
from plexus.runtime.threads import BUFFERED, ThreadIterator, WorkerThreads, sender_of_worker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nothing")


async def test_a_function_runs_on_another_thread_and_its_value_comes_back() -> None:
    threads = WorkerThreads(4)
    here = threading.get_ident()
    assert await threads.call(threading.get_ident) != here
    assert await threads.call(lambda first, second: first + second, first=1, second=2) == 3


async def test_the_context_variables_of_the_caller_are_seen_in_the_thread() -> None:
    NAME.set("caller")
    assert await WorkerThreads(1).call(NAME.get) == "caller"


async def test_a_worker_sends_events_to_the_loop_and_nothing_else_does() -> None:
    sent: list[str] = []

    def work() -> None:
        send = sender_of_worker()
        assert send is not None
        send(lambda: sent.append("event"), None)

    await WorkerThreads(1).call(work)
    assert sent == ["event"]
    assert sender_of_worker() is None


async def test_what_a_function_raises_reaches_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    def stop() -> None:
        raise StopIteration

    threads = WorkerThreads(1)
    with pytest.raises(ValueError, match="no"):
        await threads.call(fail)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(stop)
    assert threads.counts() == (0, 0)


async def test_threads_are_reused() -> None:
    threads = WorkerThreads(1)
    first = await threads.call(threading.get_ident)
    assert {await threads.call(threading.get_ident) for _ in range(20)} == {first}


async def test_past_the_limit_a_call_is_refused_and_says_how_many_were_abandoned() -> None:
    threads = WorkerThreads(1)
    release = threading.Event()
    waiting = asyncio.create_task(threads.call(release.wait))
    await asyncio.sleep(0)
    with pytest.raises(Busy) as caught:
        await threads.call(int)
    assert caught.value.data == {"limit": 1, "abandoned": 0}
    release.set()
    assert await waiting
    assert await threads.call(int) == 0


async def test_a_cancelled_call_waits_for_its_thread_and_is_counted_as_abandoned() -> None:
    threads = WorkerThreads(2)
    release = threading.Event()
    waiting = asyncio.create_task(threads.call(release.wait))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0.01)
    assert threads.counts() == (1, 1)
    assert not waiting.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert threads.counts() == (0, 0)


async def test_a_second_cancellation_leaves_the_thread_behind() -> None:
    threads = WorkerThreads(2)
    release = threading.Event()
    waiting = asyncio.create_task(threads.call(release.wait))
    for _ in range(2):
        await asyncio.sleep(0.01)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert threads.counts() == (1, 1)
    release.set()


def numbers(to: int) -> Iterator[int]:
    yield from range(to)


async def test_a_generator_yields_all_its_values_in_order() -> None:
    many = BUFFERED * 20
    values = [value async for value in ThreadIterator(WorkerThreads(1), lambda: numbers(many))]
    assert values == list(range(many))


async def test_a_generator_that_is_ahead_of_its_reader_waits() -> None:
    produced = 0

    def count() -> Iterator[int]:
        nonlocal produced
        for number in range(BUFFERED * 10):
            produced += 1
            yield number

    stream = ThreadIterator(WorkerThreads(1), count)
    assert await anext(stream) == 0
    await asyncio.sleep(0.1)
    assert produced <= BUFFERED + 2
    assert [value async for value in stream] == list(range(1, BUFFERED * 10))


async def test_what_a_generator_raises_comes_after_its_values() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("no")

    stream = ThreadIterator(WorkerThreads(1), broken)
    assert await anext(stream) == 1
    with pytest.raises(ValueError, match="no"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_closed_generator_runs_its_cleanup_before_close_returns() -> None:
    cleaned = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                time.sleep(0.001)
                yield 1
        finally:
            cleaned.set()

    threads = WorkerThreads(1)
    stream = ThreadIterator(threads, endless)
    await anext(stream)
    await stream.aclose()
    assert cleaned.is_set()
    assert threads.counts() == (0, 0)


async def test_a_generator_that_waits_for_its_reader_can_be_closed() -> None:
    stream = ThreadIterator(WorkerThreads(1), lambda: numbers(BUFFERED * 10))
    await anext(stream)
    await asyncio.sleep(0.05)  # it fills the buffer meanwhile
    await asyncio.wait_for(stream.aclose(), 5)


async def test_a_stream_that_was_never_read_starts_no_thread() -> None:
    threads = WorkerThreads(1)
    await ThreadIterator(threads, lambda: numbers(3)).aclose()
    assert threads.counts() == (0, 0)
