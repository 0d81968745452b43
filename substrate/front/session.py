"""One front of a server: its view, and its end.

Rules:
- The server reads and writes the front's own stdin and stdout.
- The front's connection to the server stays open as long as the front exists. If it ends, the front
  was closed or killed; the runs then continue or are cancelled as `on_disconnect` requires.
- If the input ends first, calls in progress may finish within the front's grace period.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from types import MappingProxyType
from typing import Final

from native_rpc.framing import LINES
from native_rpc.protocol import NativeConnection
from plexus.caller_environment import CallerEnvironment
from plexus.principal import LOCAL
from plexus.rpc.effects import View
from plexus.runtime.hub import Plexus
from substrate.driver import Connection
from substrate.front.hello import Hello
from substrate.line_server import STDIO_CLIENT, LineServer
from substrate.settings import Settings

__all__ = ("FrontSession", "native_view")

STOPPED: Final = "The server that executed the runs has stopped."
#: Bytes that are discarded at a time: a front sends nothing after its descriptors.
DISCARD_BYTES: Final = 4096


def native_view(hub: Plexus) -> View:
    """Create the view of a client of the native protocol."""
    return NativeConnection(LINES, hub.limits, hub.new_id)


class FrontSession(LineServer):
    """Serves the client of one front. It owns the front's socket and descriptors."""

    def __init__(
        self,
        hub: Plexus,
        view: View,
        settings: Settings,
        hello: Hello,
        front: socket.socket,
        descriptors: tuple[int, int],
    ) -> None:
        """Prepare to serve a front with its own settings."""
        connection = Connection(
            hub,
            view,
            LOCAL,
            client=STDIO_CLIENT,
            caller=CallerEnvironment(hello.directory, MappingProxyType({**hello.variables})),
            on_disconnect=settings.on_disconnect,
            lasting=True,
        )
        super().__init__(connection, hub.limits, *descriptors)
        self._front = front
        self._eof_grace_s = settings.eof_grace_s
        self._shut_down = False

    async def serve(self) -> None:
        """Serve until the input ends, the front is gone, or the server stops."""
        self._loop.add_reader(self._front, self._on_readable)
        try:
            await super().serve()
        finally:
            self._connection.lost()
            self._loop.remove_reader(self._front)
            os.close(self._input)
            os.close(self._output)
        end = f"END 1 {STOPPED}\n" if self._shut_down else "END 0\n"
        with contextlib.suppress(OSError):  # the front is gone
            self._front.send(end.encode())

    def shut_down(self) -> None:
        """End the session because the server stops. Terminals of runs are written first."""
        self._shut_down = True
        self.stop("the server is stopping")

    def _on_readable(self) -> None:
        try:
            data = self._front.recv(DISCARD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._front)
            self.stop("the front is gone")

    async def _wait_for_calls(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._eof_grace_s):
                while self._connection.reading:
                    await self._connection.collected()

    async def _end_calls(self, why: str) -> None:  # noqa: ARG002 - a kept run needs no reason
        if self._shut_down:
            return
        if self._stop_reason.done():
            self._connection.lost()
        else:
            self._connection.leave()
