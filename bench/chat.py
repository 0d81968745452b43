"""Measures of chat: latency of the first token at a native client, and cost of a long history.

The latency is the time from sending the first token at a stand-in for the provider to receiving it
at the client. It includes the provider's library, the turn, the run's log and the transport. The
limit is a socket that reads the stand-in directly.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from importlib import util
from pathlib import Path

from activations.arbor.model import NewNode
from activations.arbor.store import Store, open_store
from bench.clients import CALL_READ, read_some, write_all
from bench.measure import Effort, Figure, Target, compare, interleave, single
from bench.servers import OURS_STDIO, Server, ServerExited, scratch_folder, start, start_http

__all__ = ("first_token", "history")

STAND_IN = (sys.executable, "-m", "bench.model_stand_in")
PRINCIPAL = "local"
MODEL = "anthropic:stand-in"
STAMP = re.compile(rb"@(\d+) ")
TEXT = "A message of a usual length, such as people and programs send to each other, no more."
REQUEST = b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}"
TERMINAL = re.compile(rb'"result":\{"type":"(complete|error|cancelled)"')


def first_token(effort: Effort) -> list[Figure]:
    """Measure the latency of the first token."""
    if util.find_spec("pydantic_ai") is None:
        return []
    with start_http(STAND_IN) as (_, port), scratch_folder() as folder:
        environment = {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "ANTHROPIC_API_KEY": "none",
        }
        command = (*OURS_STDIO, "--database", str(folder / "chat.db"))
        with start(command, environment) as server:
            _call(server, "chat.create", name="bench", model=MODEL)
            turn = _Turns(server)
            ours, limit = interleave(turn.take, lambda: _read_directly(port), effort.chat_rounds)
    note = "provider's first token to a native client on stdio; L is a socket to the provider"
    return [single("chat_first_token", "ms", ours, Target("value", 5.0), note, limit)]


def history(effort: Effort) -> list[Figure]:
    """Measure the time from a message to the first token of its answer in a long session."""
    count = effort.chat_messages
    with scratch_folder() as folder:
        for name, messages in (("long", count), ("short", 10)):
            asyncio.run(_create_history(folder / f"{name}.db", messages))
        with (
            start((*OURS_STDIO, "--database", str(folder / "long.db"))) as one,
            start((*OURS_STDIO, "--database", str(folder / "short.db"))) as other,
        ):
            mine, best = interleave(
                lambda: _first_word(one), lambda: _first_word(other), effort.chat_rounds
            )
    note = f"message to first token after {count:,} messages; L is the same after 10 messages"
    return [compare("chat_history", "ms", mine, best, None, note)]


# --- ours ----------------------------------------------------------------------------------------


class _Turns:
    """Ephemeral turns of one session, so that all turns are equal."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def take(self) -> float:
        """Return the milliseconds from sending the first token to receiving it."""
        _send(self._server, "chat.send", session="bench", message="Hello", ephemeral=True)
        seen, late = b"", 0.0
        while not TERMINAL.search(seen):
            seen += read_some(self._server.output_fd, CALL_READ)
            if not late and (stamp := STAMP.search(seen)):
                late = (time.monotonic_ns() - int(stamp[1])) / 1e6
        if not late:
            raise ServerExited(f"received no answer: {seen[-500:]!r}")
        return late


def _first_word(server: Server) -> float:
    started = time.perf_counter()
    _send(server, "chat.send", session="bench", message="Hello", ephemeral=True)
    seen, taken = b"", 0.0
    while not TERMINAL.search(seen):
        seen += read_some(server.output_fd, CALL_READ)
        if not taken and b'"type":"content"' in seen:
            taken = time.perf_counter() - started
    if not taken:
        raise ServerExited(f"received no answer: {seen[-500:]!r}")
    return taken * 1e3


def _call(server: Server, method: str, **params: object) -> None:
    _send(server, method, **params)
    seen = b""
    while (found := TERMINAL.search(seen)) is None:
        seen += read_some(server.output_fd, CALL_READ)
    if found[1] != b"complete":
        raise ServerExited(f"{method} failed: {seen[-500:]!r}")


def _send(server: Server, method: str, **params: object) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    write_all(server.input_fd, json.dumps(request).encode() + b"\n")


async def _create_history(path: Path, messages: int) -> None:
    """Create a session with this number of messages, which fit into its context window."""
    store: Store = await open_store(str(path), purge_every_s=None)
    try:
        data = {"model": "echo:echo", "context_tokens": 100_000_000}
        head = await store.create_head(PRINCIPAL, "chat", "bench", data)
        held = await store.acquire_head(PRINCIPAL, "chat", "bench", "bench")
        kinds = ("user", "assistant")
        nodes = [NewNode(TEXT, metadata={"kind": kinds[n % 2]}) for n in range(messages)]
        await store.advance(PRINCIPAL, held.id, "bench", nodes)
        await store.release_head(PRINCIPAL, head.id, "bench")
    finally:
        await store.close()


# --- the limit -----------------------------------------------------------------------------------


def _read_directly(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(REQUEST)
        seen, late = b"", 0.0
        while not seen.endswith(b"0\r\n\r\n"):
            data = connection.recv(CALL_READ)
            if not data:
                raise ServerExited("the stand-in closed the connection")
            seen += data
            if not late and (stamp := STAMP.search(seen)):
                late = (time.monotonic_ns() - int(stamp[1])) / 1e6
        return late
