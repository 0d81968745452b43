"""Ctrl-C while a command creates, starts or uses its event loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from substrate.cli.event_loop import open_runner, run_async, run_on


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_takes_effect_when_the_event_loop_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created: list[asyncio.AbstractEventLoop] = []
    create: Callable[[], asyncio.AbstractEventLoop] = asyncio.events.new_event_loop

    def interrupted() -> asyncio.AbstractEventLoop:
        press()
        created.append(create())
        return created[0]

    monkeypatch.setattr(asyncio.events, "new_event_loop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_runner()
    assert created[0].is_closed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_coroutine_that_was_cancelled_by_ctrl_c_ends_with_keyboard_interrupt() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError  # as when the runner has not counted the interrupt

    with open_runner() as runner, pytest.raises(KeyboardInterrupt):
        run_on(runner, cancelled())


def test_ctrl_c_during_the_work_ends_it() -> None:
    ended: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(press)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert ended == ["work"]


def test_the_result_of_the_work_is_returned() -> None:
    async def work() -> int:
        return 3

    assert run_async(work()) == 3
