"""A server with runs, for tests of the commands about runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from command_line import Process, add_plugin, eventually, lines, run, server, started

from native_rpc.client import connect
from plexus.errors import PlexusError
from substrate.security.lockfile import find_running

ASKS = '''
    from collections.abc import AsyncIterator
    from plexus import Activation, AskText, Confirm, Content, Context, Select, method

    class Asks(Activation):
        """Methods that ask the user."""
        namespace = "asks"
        version = "1.0.0"

        @method
        async def confirm(self, *, ctx: Context) -> bool:
            """Ask yes or no."""
            return await ctx.ask(Confirm("Really?"))

        @method
        async def colour(self, *, ctx: Context) -> str:
            """Ask for one of two options."""
            return await ctx.ask(Select("Colour?", options=["red", "blue"]))

        @method
        async def twice(self, *, ctx: Context) -> AsyncIterator[Content]:
            """Ask twice."""
            yield Content(f"sure: {await ctx.ask(Confirm('Really?'))}\\n")
            yield Content(f"name: {await ctx.ask(AskText('Your name?'))}\\n")
'''


class Running:
    """A server, with shortcuts for its commands and methods."""

    def __init__(self, project: Path, port: str) -> None:
        self.project = project
        self.port = port
        self.flags = ["--port", port]

    def run(self, *arguments: str, stdin: str = "") -> Any:
        """Run a command that calls the server."""
        return run(*self.flags, *arguments, cwd=self.project, stdin=stdin)

    def ask(self, method: str, **params: Any) -> Any:
        """Call a method of the server without starting a process."""
        return asyncio.run(self._call_in_time(method, params))

    async def _call_in_time(self, method: str, params: dict[str, Any]) -> Any:
        server = find_running(int(self.port))
        assert server is not None
        async with connect(f"ws://127.0.0.1:{self.port}", token=server.token) as client:
            return await client.call(method, params)

    def runs(self, *flags: str) -> list[dict[str, Any]]:
        """Return the output of `substrate runs`."""
        listed = self.run("runs", "--json", *flags)
        assert listed.returncode == 0, listed.stderr
        return lines(listed.stdout)

    @contextmanager
    def called(self, *arguments: str, state: str = "running") -> Iterator[tuple[Process, int]]:
        """Start a call, wait until its run has this state, and yield its process and run id.

        The run is cancelled at the end of the block.
        """
        before = {entry["run"] for entry in self.ask("plexus.runs")}
        with started(*self.flags, "call", "--json", *arguments, cwd=self.project) as process:
            found: list[int] = []

            def has_state() -> bool:
                found[:] = [
                    entry["run"]
                    for entry in self.ask("plexus.runs", state=state)
                    if entry["run"] not in before and entry["method"] == arguments[0]
                ]
                return bool(found)

            eventually(has_state, f"{arguments[0]} is {state}")
            try:
                yield process, found[0]
            finally:
                # A run whose caller was killed waits for the caller to resume it.
                with suppress(PlexusError):
                    self.ask("plexus.cancel", run=found[0])


@contextmanager
def running(project: Path) -> Iterator[Running]:
    """Start a server that has `asks`."""
    add_plugin(project, "asks", ASKS)
    with server(project) as port:
        yield Running(project, port)
