"""A real server as a process on stdio, that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from native_rpc.client import Client, connect

__all__ = ("PROCESS_S", "Server", "serving")

#: Timeout of a wait for a process, sufficient on a busy machine.
PROCESS_S = 30.0
#: Starts a program, and writes its pid to a file.
NUMBERED = ["sh", "-c", 'echo $$ > "$0"; exec "$@"']


class Server:
    """A server process and its client."""

    def __init__(self, client: Client, pid_file: Path) -> None:
        self.client = client
        self._pid_file = pid_file

    async def value(self, method: str, **params: Any) -> Any:
        """Return the result of a call."""
        async with asyncio.timeout(PROCESS_S):
            return await self.client.call(f"chat.{method}", params)

    async def messages(self, session: str = "s") -> list[Any]:
        """Return the latest messages of a session."""
        messages: list[Any] = (await self.value("history", session=session))["messages"]
        return messages

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)


@asynccontextmanager
async def serving(database: Path | str, name: str, folder: Path) -> AsyncIterator[Server]:
    """Run `substrate --stdio` over this database for the duration of the block."""
    pid_file = folder / f"{name}.pid"
    project = folder / name
    project.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "substrate", "--stdio"]
    settings = ["env", f"SUBSTRATE_DATABASE={database}"]
    async with asyncio.timeout(PROCESS_S * 2):
        async with connect([*NUMBERED, str(pid_file), *settings, *command]) as client:
            yield Server(client, pid_file)
