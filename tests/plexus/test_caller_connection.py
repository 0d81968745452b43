"""The connection of a call: its end is notified once, to every listener."""

from __future__ import annotations

import logging

import pytest
from conftest import OpenHub
from hub_calls import read

from plexus import Activation, Context, method
from plexus.caller_connection import CallerConnection
from plexus.events import Result


class Inner(Activation):
    """Shows the connection of a call."""

    namespace = "inner"

    @method
    async def show(self, *, ctx: Context) -> str:
        """Return what the call knows of its client."""
        return f"{ctx.connection is not None} {ctx.outer_run_id}"

    @method
    async def nested(self, *, ctx: Context) -> str:
        """Call `show` from a run, and add the number of that run."""
        return f"{await ctx.call('inner.show')} {ctx.run_id}"


def test_every_listener_is_called_once_at_the_end() -> None:
    connection, called = CallerConnection(), []
    connection.on_close(lambda: called.append("first"))
    unsubscribe = connection.on_close(lambda: called.append("removed"))
    unsubscribe()
    unsubscribe()
    connection.on_close(lambda: called.append("second"))
    connection.close()
    connection.close()
    assert called == ["first", "second"]
    connection.on_close(lambda: called.append("late"))()
    assert called == ["first", "second", "late"]


def test_a_listener_that_fails_keeps_the_end_from_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, called = CallerConnection(), []

    def fail() -> None:
        raise ValueError("broken")

    connection.on_close(fail)
    connection.on_close(lambda: called.append("second"))
    with caplog.at_level(logging.ERROR, "plexus.connections"):
        connection.close()
    assert called == ["second"]
    assert "broken" in caplog.text


@pytest.mark.anyio
async def test_a_nested_call_has_the_connection_and_the_number_of_the_outermost_run(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Inner)
    call = hub.call("inner.nested", connection=CallerConnection())
    [end] = await read(call)
    assert isinstance(end, Result)
    assert end.result == f"True {call.run.id} {call.run.id}"
    [end] = await read(hub.call("inner.show"))
    assert isinstance(end, Result)
    assert end.result.startswith("False ")
