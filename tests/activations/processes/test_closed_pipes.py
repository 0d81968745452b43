"""A pipe that is closed while it is read gives its number back, to be used at once."""

from __future__ import annotations

import asyncio
import os

import pytest

from activations.processes.pipes import InputPipe, OutputPipe

pytestmark = pytest.mark.anyio


async def test_the_number_of_a_pipe_that_is_closed_while_it_is_read_can_be_used_at_once() -> None:
    async with asyncio.timeout(30):
        first, first_writer = os.pipe()
        os.set_blocking(first, False)
        pipe = OutputPipe(first)
        reading = asyncio.create_task(pipe.read())
        await asyncio.sleep(0)  # it waits for data
        pipe.close()
        second, second_writer = os.pipe()
        assert second == first
        os.set_blocking(second, False)
        other = OutputPipe(second)
        other_reading = asyncio.create_task(other.read())
        assert await reading == b""
        await asyncio.sleep(0)
        os.write(second_writer, b"data")
        assert await other_reading == b"data"
        other.close()
        os.close(first_writer)
        os.close(second_writer)


async def test_an_input_can_have_the_number_of_an_output_that_was_just_closed() -> None:
    async with asyncio.timeout(30):
        first, first_writer = os.pipe()
        os.set_blocking(first, False)
        pipe = OutputPipe(first)
        reading = asyncio.create_task(pipe.read())
        await asyncio.sleep(0)
        kept, writer = os.pipe()
        pipe.close()
        os.dup2(writer, first)
        os.set_blocking(first, False)
        written = InputPipe(first, b"data", stays_open=True)
        assert await reading == b""
        assert await asyncio.to_thread(os.read, kept, 100) == b"data"
        written.close()
        os.close(writer)
        os.close(kept)
        os.close(first_writer)
