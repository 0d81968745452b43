"""Sessions with servers that are programs. Every wait has a timeout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.stdio import StdioTransport
from activations.gateway.transports.transport import SessionLimits
from activations.processes.process import Command, Launcher
from mcp_view.client.items import Notice
from mcp_view.client.options import ClientOptions

__all__ = ("HOSTILE", "WAIT_S", "calling", "hostile", "processes_with", "program", "text_of")

#: Timeout of every wait, sufficient on a busy machine.
WAIT_S = 30.0
REPOSITORY = Path(__file__).parents[3]
HOSTILE = Path(__file__).with_name("hostile_upstream.py")


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


@asynccontextmanager
async def program(
    *command: str,
    options: ClientOptions | None = None,
    limits: SessionLimits | None = None,
    notices: list[Notice] | None = None,
    opens: bool = True,
) -> AsyncIterator[UpstreamSession]:
    """Start a program as a server, and open a session with it."""
    launcher = Launcher()
    try:
        transport = StdioTransport(Command(command, str(REPOSITORY), dict(os.environ)), launcher)
        on_notice = None if notices is None else notices.append
        session = UpstreamSession(transport, options, on_notice=on_notice, limits=limits)
        async with asyncio.timeout(WAIT_S):
            if opens:
                await session.open()
        try:
            yield session
        finally:
            async with asyncio.timeout(WAIT_S):
                await session.close()
    finally:
        await launcher.close()


def hostile(behaviour: str, *more: str, **options: Any) -> Any:
    """Open a session with a server that misbehaves."""
    return program(sys.executable, str(HOSTILE), behaviour, *more, **options)


async def calling(session: UpstreamSession, name: str = "tool") -> dict[str, Any]:
    """Call a tool and return its result."""
    async with asyncio.timeout(WAIT_S):
        return await session.request("tools/call", {"name": name})


def processes_with(mark: str) -> list[int]:
    """Return the processes whose command line contains a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it has exited meanwhile
                continue
    return found
