"""A server of a project and processes on stdio in the same project, for tests."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from child_processes import clean_environment
from project_folders import trust_always
from project_servers import WAIT_S, eventually

from native_rpc.client import connect
from plexus.errors import Failed
from plexus.private_files import make_folders, state_folder
from substrate.build_hub import RECORDING_MARKER
from substrate.security.lockfile import find_running

__all__ = (
    "WAIT_S",
    "Host",
    "ProjectServer",
    "ask",
    "eventually",
    "hosted",
    "make_project",
    "serving",
    "skip_announcement",
)

PLUGIN = '''
import asyncio
from collections.abc import AsyncIterator
from plexus import Activation, AskText, Confirm, Content, Context, method


class Asks(Activation):
    """Asks questions."""

    namespace = "asks"
    version = "1.0.0"

    @method
    async def confirm(self, *, ctx: Context) -> bool:
        """Ask for a confirmation."""
        return await ctx.ask(Confirm("Really?"))

    @method
    async def name(self, *, ctx: Context) -> str:
        """Ask for a name."""
        return await ctx.ask(AskText("Your name?"))

    @method
    async def steps(self, number: int, every_s: float = 0.0) -> AsyncIterator[Content]:
        """Count."""
        for each in range(number):
            yield Content(f"{each}\\n")
            await asyncio.sleep(every_s)

    @method
    async def large(self, size: int) -> AsyncIterator[Content]:
        """Yield a large event."""
        yield Content("x" * size)
        yield Content("y" * size)
        await asyncio.sleep(3600)
'''


def make_project(folder: Path) -> Path:
    """Create a trusted project with an activation that asks and counts."""
    (folder / "activations.d").mkdir(parents=True)
    (folder / "activations.d" / "asks.py").write_text(PLUGIN)
    return trust_always(folder)


def skip_announcement() -> None:
    """Make the next start a later one, which does not announce that runs are recorded."""
    make_folders(state_folder())
    (state_folder() / RECORDING_MARKER).touch()


# --- a server -------------------------------------------------------------------------------------


class ProjectServer:
    """`substrate` in a project."""

    def __init__(self, project: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "substrate", "--port", "0", *flags],
            cwd=project,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", self.process.stderr.readline())
        assert found is not None
        self.port = int(found[1])

    @property
    def token(self) -> str:
        running = find_running(self.port)
        assert running is not None
        return running.token

    @property
    def address(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def ask(self, method: str, **params: Any) -> Any:
        return ask(self.port, method, **params)

    def request(self, verb: str, path: str, body: Any = None, **headers: str) -> HTTPResponse:
        """Send a request on a separate connection, and return the unread response."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        given = {"Authorization": f"Bearer {self.token}", "Connection": "close"} | headers
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            given["Content-Type"] = "application/json"
        connection.request(verb, path, data, given)
        return connection.getresponse()

    def runs(self, method: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the runs of a method in other processes."""
        return [
            run
            for run in self.ask("plexus.runs")
            if run["method"] == method
            and "process" in run
            and all(run.get(name) == value for name, value in fields.items())
        ]

    def run(self, method: str, **fields: Any) -> dict[str, Any]:
        """Wait for the only run of a method, and return it."""
        found = eventually(lambda: self.runs(method, **fields), f"{method} {fields}")
        assert len(found) == 1
        return found[0]

    def approvals(self) -> list[dict[str, Any]]:
        """Return the open questions."""
        found: list[dict[str, Any]] = self.ask("approvals.pending")["approvals"]
        return found

    def items(self, run: int, after: int = 0) -> list[dict[str, Any]]:
        """Return all items of a run up to its terminal, whatever that is."""

        async def followed() -> list[dict[str, Any]]:
            items: list[dict[str, Any]] = []
            async with (
                asyncio.timeout(WAIT_S),
                connect(self.address, token=self.token) as client,
                client.attach(run, after) as call,
            ):
                with suppress(Failed):
                    async for item in call:
                        items.append({"seq": item.seq, **item})  # noqa: PERF401 - kept if it raises
                last = call.terminal
            assert last is not None
            if not items or items[-1]["seq"] != last.seq:  # the error was raised
                items.append({"seq": last.seq, **last})
            return items

        return asyncio.run(followed())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


def ask(port: int, method: str, **params: Any) -> Any:
    """Call a method of the server on this port."""

    async def answer() -> Any:
        running = find_running(port)
        assert running is not None
        async with connect(f"ws://127.0.0.1:{port}", token=running.token) as client:
            async with asyncio.timeout(WAIT_S):
                return await client.call(method, params)

    return asyncio.run(answer())


@contextmanager
def serving(project: Path, *flags: str) -> Iterator[ProjectServer]:
    """Run a server of a project, and kill it at the end of the block."""
    server = ProjectServer(project, *flags)
    try:
        yield server
    finally:
        server.kill()


# --- a process on stdio ---------------------------------------------------------------------------


class Host:
    """`substrate --stdio`, with or without `--mcp`, as a host starts it."""

    def __init__(
        self, project: Path, *flags: str, program: Sequence[str] = ("-m", "substrate")
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, "--stdio", *flags],
            cwd=project,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._called = 0
        if "--mcp" in flags:
            client = {"name": "test", "version": "1"}
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
            self.send("initialize", hello)
            self.answer()
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any]) -> None:
        self._called += 1
        self.write({"jsonrpc": "2.0", "id": self._called, "method": method, "params": params})

    def use(self, tool: str, **arguments: Any) -> None:
        """Call a tool over MCP."""
        self.send("tools/call", {"name": tool, "arguments": arguments})

    def call(self, method: str, **arguments: Any) -> None:
        """Call a method over the native protocol."""
        self.send(method, arguments)

    def answer(self) -> dict[str, Any]:
        """Return the next answer; other messages are skipped."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, "it has ended"
            message: dict[str, Any] = json.loads(line)
            if "id" in message and "method" not in message:
                return message

    def read_until(self, text: str) -> None:
        """Read lines up to one that contains this text."""
        assert self.process.stdout is not None
        until = time.monotonic() + WAIT_S
        while text.encode() not in self.process.stdout.readline():
            assert time.monotonic() < until, text

    def error_line(self) -> str:
        """Return the next line of stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def close_input(self) -> int:
        """End the input, and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def hosted(
    project: Path, *flags: str, program: Sequence[str] = ("-m", "substrate")
) -> Iterator[Host]:
    """Run a process on stdio, and kill it at the end of the block."""
    host = Host(project, *flags, program=program)
    try:
        yield host
    finally:
        host.kill()
