"""Activations that misbehave in a real server: each call has exactly one terminal.

A method that hangs is ended at its deadline, internal errors are logged and not sent, and the
server continues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_network import Client, messages
from misbehaving_activation import SECRET, Odd
from network import ANSWER_S, Server, serving
from websockets.sync.client import connect

from plexus.activation import MARK

pytestmark = pytest.mark.timeout(120)

ACTIVATION = Path(__file__).parent / "misbehaving_activation.py"
TERMINALS = {"complete", "error", "cancelled"}

#: How each method ends: with which terminal and, if it is an error, with which code.
ENDS: dict[str, tuple[str, str | None]] = {
    "raises": ("error", "internal"),
    "raises_late": ("error", "internal"),
    "fails_oddly": ("error", "failed"),
    "raises_stray": ("error", "internal"),
    "exits": ("error", "internal"),
    "interrupts": ("error", "internal"),
    "stops": ("error", "internal"),
    "raises_what_closes": ("error", "internal"),
    "recurses": ("error", "internal"),
    "has_no_memory": ("error", "internal"),
    "cancels_itself": ("cancelled", None),
    "yields_nonsense": ("error", "invalid_event"),
    "returns_nonsense": ("error", "invalid_result"),
    "returns_a_surrogate": ("error", "invalid_result"),
    "yields_after_the_end": ("complete", None),
    "yields_too_much": ("error", "too_big"),
    "returns_too_much": ("error", "too_big"),
    "logs_after_the_end": ("complete", None),
    "prints": ("complete", None),
    "hangs": ("error", "deadline"),
    "never_waits": ("error", "deadline"),
    "ignores_the_end": ("cancelled", None),
    "yields_when_closed": ("cancelled", None),
    "never_finishes_cleanup": ("cancelled", None),
    "raises_when_cancelled": ("error", "internal"),
    "stands_still": ("complete", None),
    "calls_itself": ("complete", None),
}


def start() -> Iterator[Server]:
    limits = {"SUBSTRATE_LIMITS__CANCEL_S": "0.2", "SUBSTRATE_LIMITS__DRAIN_S": "0.5"}
    with serving("--activation", str(ACTIVATION), settings=limits) as running:
        yield running


server = pytest.fixture(start)
#: The same server for several tests.
shared = pytest.fixture(start, scope="module")


def healthy(server: Server) -> bool:
    with server.call("health.check") as response:
        answer = json.loads(response.read())["result"]["terminal"]["result"]
    return bool(answer["status"] == "healthy")


def test_every_misbehaviour_is_tested() -> None:
    assert {name for name, value in vars(Odd).items() if hasattr(value, MARK)} == ENDS.keys()


def test_all_misbehaving_calls_together_end_with_one_terminal_each(server: Server) -> None:
    subscriptions: dict[int, str] = {}
    received: dict[str, list[Any]] = {name: [] for name in ENDS}
    with connect(server.ws, compression=None, max_size=None, close_timeout=1) as socket:

        def hear() -> bool:
            """Take the next message; whether there was one."""
            try:
                text = str(socket.recv(ANSWER_S if open_() else 0.3))
            except TimeoutError:
                return False
            assert SECRET not in text
            message = json.loads(text)
            if "id" in message:
                subscriptions[message["result"]] = message["id"]
            else:
                name = subscriptions[message["params"]["subscription"]]
                received[name].append(message["params"]["result"])
            return True

        def open_() -> set[str]:
            return {
                name
                for name, items in received.items()
                if not items or items[-1]["type"] not in TERMINALS
            }

        for name in ENDS:
            message = {"jsonrpc": "2.0", "id": name, "method": f"odd.{name}"}
            socket.send(json.dumps(message))
        while open_():
            assert hear(), f"no terminal came of {open_()}"
        while hear():  # nothing should
            pass
    for name, (terminal, code) in ENDS.items():
        ends = [item for item in received[name] if item["type"] in TERMINALS]
        assert ends == received[name][-1:], name
        assert (ends[0]["type"], ends[0].get("code")) == (terminal, code), (name, ends)
    assert healthy(server)
    assert server.stop() == 0


@pytest.mark.parametrize("name", ENDS)
def test_each_misbehaving_call_is_answered_once_over_http_and_mcp(
    shared: Server, name: str
) -> None:
    with shared.call(f"odd.{name}") as response:
        text = response.read().decode()
    assert SECRET not in text
    answer = json.loads(text)
    ended_well = ENDS[name][0] == "complete"
    assert ("result" in answer) == ended_well
    client = Client(shared)
    with client.call(f"odd.{name}") as response:
        [answered] = [each for each in messages(response) if "id" in each]
    assert SECRET not in json.dumps(answered)
    assert answered["result"]["isError"] is not ended_well
    assert client.delete() == 204
    assert healthy(shared)


def test_other_calls_are_answered_while_one_misbehaves(server: Server) -> None:
    with (
        connect(server.ws, compression=None, close_timeout=0.1) as bad,
        connect(server.ws, compression=None) as good,
    ):
        for name in ("never_waits", "ignores_the_end", "hangs", "recurses"):
            bad.send(json.dumps({"jsonrpc": "2.0", "id": name, "method": f"odd.{name}"}))
        until = time.monotonic() + 1.0
        answered = 0
        while time.monotonic() < until:
            message = {"jsonrpc": "2.0", "id": 1, "method": "demo.echo", "params": ["x"]}
            good.send(json.dumps(message))
            assert "result" in json.loads(good.recv(ANSWER_S))
            assert json.loads(good.recv(ANSWER_S))["params"]["result"]["result"] == "x"
            answered += 1
    assert answered > 1
