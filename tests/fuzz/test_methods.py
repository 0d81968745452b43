"""Every method of the real server, driven from its own schema.

Arguments that match a schema are accepted, and never cause an internal error: a method may still
reject a number out of range, or two arguments that exclude each other. Arguments with any single
fault are refused before the method is called, by the hub and by both views.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fuzz_budget import SEED, TIMEOUT_S, rounds
from hub_calls import call
from mcp_peer import HANDSHAKES, STATELESS, McpPeer
from schema_values import Generator, broken

from plexus import Event, InvalidParams, Plexus
from plexus.events import ErrorEvent, Result
from plexus.registry.schema import parameters_schema
from plexus.runtime.calls import Call
from substrate.build_hub import build_hub
from substrate.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

#: Timeout after which a call is cancelled; watches never end.
CALL_S = 0.1
#: Timeout for its end after that.
END_S = 20.0
CONCURRENT = 20
#: A call of a real method costs as much as this many messages, so the long form makes fewer.
WORTH = 100

#: Harmless commands, with any other arguments.
HARMLESS = ("true", "false", "exit 3", "echo x", "cat", "", "sleep 0.01", "echo x >&2", "printf é")
#: Arguments that are not random.
GIVEN = {
    ("bash.execute", "command"): HARMLESS,
    ("plexus.call", "method"): ("plexus.hash", "health.check", "no.such", ""),
}


class Entered:
    """A hub that counts the calls of its methods."""

    def __init__(self, hub: Plexus) -> None:
        self.hub = hub
        self.count: Counter[str] = Counter()
        for spec in hub.methods():
            self._wrap(spec)

    def _wrap(self, spec: Any) -> None:
        function = spec.function

        def entering(**arguments: Any) -> Any:
            self.count[spec.name] += 1
            return function(**arguments)

        spec.function = entering

    def schemas(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each method with its published schema."""
        for spec in self.hub.methods():
            yield spec.name, parameters_schema(spec)


@asynccontextmanager
async def real_hub(folder: Path) -> AsyncIterator[Entered]:
    """Return the hub that `substrate` serves, with a separate database."""
    settings = Settings(
        database=str(folder / "arbor.db"),
        bash_sandbox="workspace",
        chat_claude_command=str(folder / "no claude here"),
    )
    hub, broken_plugins = build_hub(settings, folder)
    assert broken_plugins == []
    try:
        yield Entered(hub)
    finally:
        await hub.close()


async def _value(hub: Plexus, method: str, **params: Any) -> Any:
    end = (await call(hub, method, params))[-1]
    assert not isinstance(end, ErrorEvent), end
    return end.result if isinstance(end, Result) else end


async def create_objects(hub: Plexus) -> list[str]:
    """Create objects to work on, and return their names."""
    tree = await _value(hub, "arbor.tree_create")
    node = await _value(hub, "arbor.node_create_text", tree_id=tree.tree_id, content="x")
    await _value(hub, "chat.create", name="s")
    return [tree.tree_id, tree.tree_id, node.node_id, "s", "s"]


async def ended(made: Call) -> Event:
    """Return how a call ends, or that it was cancelled after the timeout."""
    try:
        async with asyncio.timeout(CALL_S):
            async for batch in made.run.batches(made.after, owner=made.owned):
                if batch.terminal is not None:
                    return batch.terminal
    except TimeoutError:
        made.run.cancel("long enough")
    async with asyncio.timeout(END_S):
        async for batch in made.run.batches():
            if batch.terminal is not None:
                return batch.terminal
    raise AssertionError("a run ended without a terminal")


async def try_out(entered: Entered, method: str, arguments: dict[str, Any]) -> Event | None:
    """Make one call with valid arguments, and return how it ended, if it started."""
    hub = entered.hub
    try:
        made = hub.call(method, arguments)
    except InvalidParams as error:
        raise AssertionError(f"{method} refused what its schema allows: {error.message}") from error
    except Exception as error:
        # Following an unknown run is refused before a new run is created.
        if method == "plexus.attach" and getattr(error, "code", None) == "not_found":
            return None
        raise
    return await ended(made)


async def test_valid_arguments_are_accepted_and_cause_no_internal_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(SEED)
    async with real_hub(tmp_path) as entered:
        generator = Generator(chance, await create_objects(entered.hub))
        schemas = list(entered.schemas())
        assert len(schemas) > 50

        async def one(method: str, schema: dict[str, Any]) -> None:
            arguments = generator.arguments(schema)
            for (name, argument), values in GIVEN.items():
                if name == method and argument in arguments:
                    arguments[argument] = chance.choice(values)
            try:
                end = await try_out(entered, method, arguments)
                assert getattr(end, "code", None) != "internal", caplog.text[-3000:]
            except BaseException as error:
                error.add_note(f"FUZZ_SEED={SEED}: {method} {arguments!r}")
                raise

        with caplog.at_level(logging.ERROR):
            for _ in rounds(0.2, CONCURRENT * WORTH):
                async with asyncio.TaskGroup() as group:
                    for method, schema in chance.choices(schemas, k=CONCURRENT):
                        group.create_task(one(method, schema))
        assert (await _value(entered.hub, "health.check")).status == "healthy"


async def test_arguments_with_one_fault_are_refused_before_the_method(
    tmp_path: Path,
) -> None:
    tried = 0
    async with real_hub(tmp_path) as entered:
        for method, schema in entered.schemas():
            for what, arguments in broken(schema):
                tried += 1
                try:
                    entered.hub.call(method, arguments)
                except InvalidParams:
                    continue
                pytest.fail(f"{method} was called although {what}: {arguments}")
        await asyncio.sleep(0)
        assert entered.count == {}
        assert entered.hub.runs.running() == []
    assert tried > 500


@pytest.mark.parametrize("revision", [HANDSHAKES[0], HANDSHAKES[-1], STATELESS])
async def test_arguments_with_one_fault_are_refused_over_both_views(
    revision: str, tmp_path: Path
) -> None:
    async with real_hub(tmp_path) as entered:
        peer = McpPeer(entered.hub, revision, native=True, checked=False)
        tools = {spec.name for spec in entered.hub.methods() if spec.listed}
        for method, schema in entered.schemas():
            for what, arguments in list(broken(schema))[:3]:
                note = f"{method}: {what}"
                answer = await peer.answer_to(_native(peer, method, arguments))
                assert "error" in answer, note
                assert answer["error"]["code"] == -32602, note
                if method not in tools:
                    continue
                answer = await peer.call("tools/call", {"name": method, "arguments": arguments})
                if "error" in answer:
                    assert answer["error"]["code"] == -32602, note
                else:
                    assert answer["result"]["isError"] is True, note
        assert entered.count == {}


def _native(peer: McpPeer, method: str, arguments: dict[str, Any]) -> str:
    request = f"native {len(peer.frames)}"
    peer.send({"id": request, "method": method, "params": arguments})
    return request
