"""Any bytes sent to both views: a response or none, never an exception, and no lost connection."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from fuzz_budget import SEED, TIMEOUT_S, rounds
from fuzzed_activation import Fuzzed
from hub_calls import WAIT_S
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_peer import REVISIONS, STATELESS, make_server
from mutations import CORPUS, MCP_CORPUS, Mutator

from mcp_view.methods import METHODS
from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions
from mcp_view.session import Session
from native_rpc.framing import LINES, MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Plexus
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.rpc.effects import View
from plexus.rpc.wire import Invalid, LineDecoder, Message, Request
from plexus.runtime.builtin import PlexusActivation
from substrate.driver import Connection

pytestmark = pytest.mark.timeout(TIMEOUT_S)

#: How many inputs one connection gets, and how many connections one hub.
INPUTS = 25
CONNECTIONS = 40

PROBE = {"jsonrpc": "2.0", "id": "the probe", "method": "plexus.hash"}

#: Makes the view of a new peer.
Make = Callable[[Plexus], View]


def native(hub: Plexus) -> NativeConnection:
    return NativeConnection(LINES, hub.limits, hub.new_id)


def buffered(hub: Plexus) -> View:
    return NativeConnection(MESSAGES, hub.limits, hub.new_id, buffered=True)


def speaking(revision: str) -> Make:
    """Return the MCP view, after its handshake if the revision has one."""

    def make(hub: Plexus) -> View:
        server = make_server(hub, McpOptions(page_size=2, progress_rate=0))
        view = McpConnection(server, Session(), fallback=native(hub))
        if revision != STATELESS:
            params = {"protocolVersion": revision, "capabilities": {"elicitation": {}}}
            view.receive(Request(0, "initialize", params))
        return view

    return make


#: What is fuzzed: a view, with the messages that it knows.
VIEWS: dict[str, tuple[Make, list[bytes]]] = {
    "native": (native, CORPUS),
    "buffered": (buffered, CORPUS),
    **{revision: (speaking(revision), MCP_CORPUS + CORPUS) for revision in REVISIONS},
}


class Peer:
    """A client that sends arbitrary bytes and validates the responses."""

    def __init__(self, hub: Plexus, make: Make) -> None:
        self._lines = LineDecoder(hub.limits)
        self._connection = Connection(hub, make(hub), LOCAL)
        self._asked: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send these bytes in pieces, and read the available responses."""
        for piece in pieces:
            for message in self._lines.feed(piece):
                self._note(message)
                self._connection.receive(message)
        self.receive()

    def _note(self, message: Message | list[Message]) -> None:
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, Request | Invalid):
                self._asked[repr(each.id)] += 1

    def receive(self) -> None:
        """Read the available frames; each must be one line with one message or one batch."""
        for frame in self._connection.collect():
            for line in frame.removesuffix(b"\n").split(b"\n"):
                decoded = json.loads(line)
                for message in decoded if isinstance(decoded, list) else [decoded]:
                    self._check(message)

    def _check(self, message: Any) -> None:
        assert message["jsonrpc"] == "2.0"
        assert ("result" in message) + ("error" in message) + ("method" in message) == 1
        if "method" in message:
            return
        if "error" in message:
            assert message["error"]["code"] != wire.INTERNAL_ERROR, message
        asked = repr(message["id"])
        if message["id"] is not None:  # an error may have no id because it could not be read
            self._answered[asked] += 1
            assert self._answered[asked] <= self._asked[asked], message

    async def end(self) -> None:
        """Check that a valid request is still answered, then disconnect."""
        self.send([b"\n" + json.dumps(PROBE).encode() + b"\n"])
        async with asyncio.timeout(WAIT_S):
            while not self._answered[repr(PROBE["id"])]:
                await self._connection.ready()
                self.receive()
        self._connection.lost()


def open_hub() -> Plexus:
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    hub.register(Fuzzed())
    return hub


def cut(data: bytes, chance: random.Random) -> Iterable[bytes]:
    """Yield the same bytes: mostly whole, sometimes one by one."""
    if chance.random() > 0.1:
        return (data,)
    return (data[at : at + 1] for at in range(len(data)))


async def one_hub(mutator: Mutator, chance: random.Random, make: Make) -> None:
    """Open a number of consecutive connections, each with a number of inputs."""
    hub = open_hub()
    data = b""
    try:
        for _ in range(CONNECTIONS):
            peer = Peer(hub, make)
            for number in range(INPUTS):
                data = mutator.next() + b"\n"
                peer.send(cut(data, chance))
                if number % 5 == 0:
                    await asyncio.sleep(0)
            await peer.end()
    except BaseException as error:
        error.add_note(f"FUZZ_SEED={SEED}, the last input was {data!r}")
        raise
    await hub.close()
    assert hub.runs.running() == []
    assert not [task for task in hub.pump.tasks if not task.done()]


@pytest.mark.parametrize("name", VIEWS)
def test_mutated_messages_are_answered_or_ignored_and_the_connection_works(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, corpus = VIEWS[name]
    mutator = Mutator(corpus, SEED)
    chance = random.Random(SEED)
    loop_errors: list[dict[str, Any]] = []

    async def fuzz() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: loop_errors.append(what))
        for _ in rounds(0.06, INPUTS * CONNECTIONS):
            await one_hub(mutator, chance, make)

    with caplog.at_level(logging.ERROR):
        asyncio.run(fuzz())
    assert loop_errors == []
    assert [record.getMessage() for record in caplog.records] == []


def test_the_mutated_messages_cover_every_method_of_mcp() -> None:
    known = b"".join(MCP_CORPUS)
    assert [name for name in METHODS if json.dumps(name).encode() not in known] == []


EDITS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 20), st.binary(max_size=8)), max_size=3
)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(VIEWS)),
    st.lists(
        st.one_of(st.binary(max_size=60), st.tuples(st.sampled_from(MCP_CORPUS + CORPUS), EDITS)),
        max_size=8,
    ),
)
def test_any_bytes_are_answered_or_ignored_and_the_connection_works(
    name: str, inputs: list[bytes | tuple[bytes, list[tuple[int, int, bytes]]]]
) -> None:
    async def session() -> None:
        hub = open_hub()
        peer = Peer(hub, VIEWS[name][0])
        for entry in inputs:
            data, edits = (entry, []) if isinstance(entry, bytes) else entry
            for at, length, instead in edits:
                data = data[:at] + instead + data[at + length :]
            peer.send([data, b"\n"])
            await asyncio.sleep(0)
        await peer.end()
        await hub.close()

    asyncio.run(session())
