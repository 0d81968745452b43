"""A real server as a process, over its pipes, that can be killed."""

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

#: No wait for a process needs longer, on a busy machine either.
PROCESS_S = 30.0
#: Starts a program, and writes down its number.
NUMBERED = ["sh", "-c", 'echo $$ > "$0"; exec "$@"']


class Server:
    """A server and a client of it."""

    def __init__(self, client: Client, pid_file: Path) -> None:
        self.client = client
        self._pid_file = pid_file

    async def value(self, method: str, **params: Any) -> Any:
        """What a call gives."""
        async with asyncio.timeout(PROCESS_S):
            return await self.client.call(f"chat.{method}", params)

    async def said(self, session: str = "s") -> list[Any]:
        """The latest messages of a session."""
        messages: list[Any] = (await self.value("history", session=session))["messages"]
        return messages

    def kill(self) -> None:
        """End it as the machine's owner would in despair."""
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)


@asynccontextmanager
async def serving(database: Path | str, name: str, folder: Path) -> AsyncIterator[Server]:
    """`substrate --stdio` over this database, for as long as the block lasts."""
    pid_file = folder / f"{name}.pid"
    project = folder / name
    project.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "substrate", "--stdio"]
    settings = ["env", f"SUBSTRATE_DATABASE={database}"]
    async with asyncio.timeout(PROCESS_S * 2):
        async with connect([*NUMBERED, str(pid_file), *settings, *command]) as client:
            yield Server(client, pid_file)
