"""Unregistering: names become free, listeners are notified, and runs continue."""

from __future__ import annotations

import asyncio

import pytest
from conftest import OpenHub
from hub_calls import call, local, settled, until

from plexus import Activation, Change, Context, NotFound, method, prompt, resource
from plexus.errors import UnknownMethod

pytestmark = pytest.mark.anyio


class Child(Activation):
    """Inside."""

    namespace = "child"
    version = "1.0.0"

    @method
    async def inner(self) -> str:
        """Answer."""
        return "inner"


class Guest(Activation):
    """Comes and goes."""

    namespace = "guest"
    version = "1.0.0"
    children = (Child,)

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.closed = 0

    @method(scope="guest.only")
    async def wait(self) -> str:
        """Wait."""
        await self.go_on.wait()
        return "done"

    @prompt
    async def hint(self) -> str:
        """A prompt."""
        return "hint"

    @resource("guest://book")
    async def book(self) -> str:
        """A resource."""
        return "book"

    async def close(self) -> None:
        self.closed += 1


async def test_an_unregistered_activation_cannot_be_called_listed_or_read(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Guest)
    before = hub.hash
    hub.unregister("guest")
    for name in ("guest.wait", "guest_wait", "guest.child.inner"):
        with pytest.raises(UnknownMethod):
            hub.call(name)
    with pytest.raises(NotFound):
        hub.find_resource("guest://book")
    with pytest.raises(NotFound):
        hub.find_prompt("guest.hint")
    assert not [spec for spec in hub.methods() if spec.name.startswith("guest")]
    assert "guest.only" not in hub.scopes()
    assert hub.hash != before
    assert "guest" not in {path for path, _ in hub.activations()}


async def test_registering_it_again_restores_everything(open_hub: OpenHub) -> None:
    hub = open_hub(Guest)
    before = hub.hash
    hub.unregister("guest")
    hub.register(Guest)
    assert hub.hash == before
    assert [event.type for event in await call(hub, "guest.child.inner")] == ["complete"]


async def test_a_name_that_it_would_have_clashed_with_is_free(open_hub: OpenHub) -> None:
    class Flat(Activation):
        """Has a name that looks like the other's."""

        namespace = "guest_child"
        version = "1.0.0"

        @method
        async def inner(self, *, ctx: Context) -> int:
            """Answer."""
            return ctx.run_id

    hub = open_hub(Guest)
    hub.unregister("guest")
    hub.register(Flat)
    assert hub.resolve("guest_child_inner").name == "guest_child.inner"


async def test_its_runs_continue_and_it_is_closed_once_with_the_hub(open_hub: OpenHub) -> None:
    guest = Guest()
    hub = open_hub(guest)
    run = hub.call("guest.wait").run
    await until(lambda: local(run).task is not None)
    hub.unregister("guest")
    guest.go_on.set()
    assert (await settled(run)).type == "complete"
    hub.register(guest)
    hub.unregister("guest")
    assert guest.closed == 0
    await hub.close()
    assert guest.closed == 1


async def test_listeners_are_notified_of_every_list_that_contained_it(open_hub: OpenHub) -> None:
    hub = open_hub(Guest)
    told: list[Change] = []
    hub.on_change(told.append)
    hub.unregister("guest")
    assert told == [Change("methods"), Change("prompts"), Change("resources")]


async def test_an_unknown_activation_cannot_be_unregistered(open_hub: OpenHub) -> None:
    hub = open_hub(Guest)
    for name in ("unknown", "guest.child"):  # a child cannot be unregistered alone
        with pytest.raises(NotFound):
            hub.unregister(name)
