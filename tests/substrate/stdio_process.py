"""`substrate --stdio` as a process with pipes, for tests."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from child_processes import clean_environment

__all__ = ("DEMO", "MIB", "ROOT", "WAIT_S", "Server", "ends", "events", "line", "of", "serving")

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
DEMO = ("--activation", "tests.activations_for_tests:Demo")
MIB = 1024 * 1024


class Server:
    """The command and its pipes, with a timeout for every read."""

    def __init__(
        self,
        *options: str,
        stdin: int | IO[bytes] = subprocess.PIPE,
        folder: Path = ROOT,
        **variables: str,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "substrate", "--stdio", *DEMO, *options],
            cwd=folder,
            env=clean_environment(**variables),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._buffer = b""
        self._ids = iter(range(1, 1_000_000))

    # --- writing -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def request(self, method: str, params: Any = None) -> int:
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        self.write(json.dumps(message).encode() + b"\n")
        return number

    def start(self, method: str, params: Any = None) -> int:
        """Call a method and return the subscription."""
        number = self.request(method, params)
        reply = self.read_until(lambda message: message.get("id") == number)[-1]
        subscription: int = reply["result"]
        return subscription

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    # --- reading -------------------------------------------------------------------------------

    def fill(self, within_s: float = WAIT_S) -> bool:
        """Read more output. Returns False at its end."""
        ready, _, _ = select.select([self._out], [], [], within_s)
        assert ready, "the server says nothing"
        data = os.read(self._out, MIB)
        self._buffer += data
        return bool(data)

    def read(self) -> Any:
        """Return the next message."""
        while b"\n" not in self._buffer:
            assert self.fill(), "the output ended"
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def read_until(self, matches: Any) -> list[Any]:
        """Return messages up to and including the first match."""
        messages = [self.read()]
        while not matches(messages[-1]):
            messages.append(self.read())
        return messages

    def item(self, subscription: int) -> Any:
        """Return the next event of a subscription."""
        return self.read_until(lambda message: of(message, subscription))[-1]["params"]["result"]

    def terminal(self, subscription: int) -> Any:
        while not ends(event := self.item(subscription)):
            pass
        return event

    def rest(self, within_s: float = WAIT_S) -> list[Any]:
        """Return all messages up to the end of the output."""
        end = time.monotonic() + within_s
        while self.fill(max(end - time.monotonic(), 0)):
            pass
        *lines, last = self._buffer.split(b"\n")
        assert last == b"", "the output ended in the middle of a message"
        self._buffer = b""
        return [json.loads(line) for line in lines]

    def ends_within(self, seconds: float) -> int:
        return self.process.wait(seconds)

    def stderr(self) -> str:
        """Return everything written to stderr, after the server has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1])


def of(message: Any, subscription: int) -> bool:
    return bool(message.get("params", {}).get("subscription") == subscription)


def ends(event: Any) -> bool:
    return event["type"] in ("complete", "error", "cancelled")


def events(messages: list[Any], subscription: int) -> list[Any]:
    return [m["params"]["result"] for m in messages if of(m, subscription)]


@contextmanager
def serving(
    *options: str,
    stdin: int | IO[bytes] = subprocess.PIPE,
    folder: Path = ROOT,
    **variables: str,
) -> Iterator[Server]:
    """Start the command, and kill it at the end of the block."""
    server = Server(*options, stdin=stdin, folder=folder, **variables)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        for pipe in (server.process.stdin, server.process.stdout, server.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def line(number: int, method: str, params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"
