"""Events and queues of connections behave like those of asyncio."""

import asyncio
from typing import Any

import pytest

from substrate.server.flow import ConnectionFlow, LeanEvent, MessageQueue

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


async def test_setting_an_event_wakes_every_task_that_waits_for_it() -> None:
    event = LeanEvent()
    tasks = [asyncio.create_task(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    event.set()
    await asyncio.gather(*tasks)
    assert event.is_set()
    await event.wait()


async def test_an_event_that_is_cleared_makes_the_next_task_wait() -> None:
    event = LeanEvent(is_set=True)
    event.clear()
    task = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    assert not task.done()
    event.set()
    await task


async def test_a_task_that_stops_waiting_does_not_keep_others_from_being_woken() -> None:
    event = LeanEvent()
    gone, stays = (asyncio.create_task(event.wait()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    event.set()
    await stays


async def test_a_task_that_is_cancelled_while_it_is_woken_ends() -> None:
    event = LeanEvent()
    task = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    event.set()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_queue_returns_messages_in_order_and_waits_for_the_next() -> None:
    queue = MessageQueue()
    first, second, third = ({"number": number} for number in range(3))
    queue.put_nowait(first)
    queue.put_nowait(second)
    assert not queue.empty()
    assert [await queue.get(), await queue.get()] == [first, second]
    assert queue.empty()
    task = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put_nowait(third)
    assert await task == third


async def test_a_writer_waits_while_the_connection_accepts_no_more() -> None:
    transport: Any = None  # writing does not need it
    flow = ConnectionFlow(transport)
    await flow.drain()
    flow.pause_writing()
    task = asyncio.create_task(flow.drain())
    await asyncio.sleep(0)
    assert not task.done()
    flow.resume_writing()
    await task
