"""Accepts fronts in a server.

Rules:
- A front must be a process of the same user, and must introduce itself within a deadline. What it
  sends is bounded; if it is invalid, the front receives the reason and the connection is closed.
- Fronts with the same settings share one MCP server, with its catalogue and its secret.
- A server that stops makes room for the next one immediately, and ends its fronts after its runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

from mcp_view.server import McpServer
from plexus.rpc.effects import View
from plexus.runtime.hub import Plexus
from substrate.front.address import FrontSocket, is_same_user
from substrate.front.hello import LENGTH_BYTES, MAX_HELLO_BYTES, Hello, apply_view_settings
from substrate.front.session import FrontSession, native_view
from substrate.mcp_server import create_mcp_server, line_view, mcp_options
from substrate.server.listener import Listener
from substrate.settings import Settings
from substrate.telemetry.tracing import ORIGIN, STDIO

__all__ = ("FrontListener",)

logger = logging.getLogger("substrate.front")

#: Seconds that a front may take to introduce itself.
HELLO_S: Final = 5.0
#: Unused MCP servers of different settings that are kept for the next front.
KEPT_MCP_SERVERS: Final = 8
READ_BYTES: Final = 256 * 1024
#: Stdin and stdout.
DESCRIPTORS: Final = 2


class FrontListener:
    """The fronts of one server."""

    def __init__(self, hub: Plexus, settings: Settings, port: int) -> None:
        self._hub = hub
        self._settings = settings
        self._port = port
        self._mcp_servers = _McpServers(hub)
        self._socket: FrontSocket | None = None
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: set[FrontSession] = set()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._tasks)

    def open(self, key: str) -> None:
        """Accept fronts with this digest, unless another server does.

        A server that cannot do so still serves its other clients.
        """
        front_socket = FrontSocket(key)
        try:
            sock = front_socket.open()
        except OSError as error:
            logger.warning("processes with --background cannot use this server: %s", error)
            return
        if sock is None:
            logger.info("another server executes the runs of processes with --background")
            return
        self._socket = front_socket
        self._listener = Listener(sock, self._open_front)

    def stop_accepting(self) -> None:
        """Accept no more fronts. Those that are connected stay connected."""
        self._stopping = True
        if self._socket is not None:
            self._socket.release()
            self._socket = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def finish(self, within_s: float) -> None:
        """End all fronts after their pending output, and wait up to `within_s`."""
        for session in self._sessions:
            session.shut_down()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _open_front(self, front: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None, "called by the listener in a task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ORIGIN.set(STDIO)
        with front:
            if not is_same_user(front):
                logger.warning("refused a front of another user")
                return
            try:
                async with asyncio.timeout(HELLO_S):
                    hello, settings = await self._read_hello(front)
                    if self._stopping:
                        return  # the front starts another server
                    await _send(front, f"OK {self._port}")
                    descriptors = await _receive_descriptors(front)
            except ValueError as error:
                logger.warning("refused a front: %s", error)
                with contextlib.suppress(OSError):
                    front.send(f"NO {error}\n".encode())
                return
            except TimeoutError:
                logger.warning("closed a front that did not introduce itself in %g s", HELLO_S)
                return
            except OSError:  # the front is gone
                return
            await self._serve(front, hello, settings, descriptors)

    async def _serve(
        self, front: socket.socket, hello: Hello, settings: Settings, descriptors: tuple[int, int]
    ) -> None:
        with self._view(hello, settings) as view:
            session = FrontSession(self._hub, view, settings, hello, front, descriptors)
            self._sessions.add(session)
            if self._stopping:
                session.shut_down()
            try:
                await session.serve()
            finally:
                self._sessions.discard(session)

    async def _read_hello(self, front: socket.socket) -> tuple[Hello, Settings]:
        """Return the hello and the settings of a front. Raises ValueError and OSError."""
        length = int.from_bytes(await _read(front, LENGTH_BYTES), "big")
        if length > MAX_HELLO_BYTES:
            raise ValueError(f"the hello has {length} bytes; the limit is {MAX_HELLO_BYTES}")
        hello = Hello.decode(await _read(front, length))
        return hello, apply_view_settings(self._settings, hello.settings)

    @contextlib.contextmanager
    def _view(self, hello: Hello, settings: Settings) -> Iterator[View]:
        if hello.protocol == "native":
            yield native_view(self._hub)
            return
        with self._mcp_servers.use(hello.settings, settings) as server:
            yield line_view(server)


class _McpServers:
    """The MCP servers of fronts, by the settings of the fronts."""

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub
        self._servers: dict[tuple[str, ...], tuple[McpServer, Callable[[], None]]] = {}
        self._users: dict[tuple[str, ...], int] = {}

    @contextlib.contextmanager
    def use(self, key: tuple[str, ...], settings: Settings) -> Iterator[McpServer]:
        """Yield the server for these settings."""
        if key not in self._servers:
            server = create_mcp_server(self._hub, mcp_options(settings))
            self._servers[key] = server, self._hub.on_change(server.on_change)
        self._users[key] = self._users.get(key, 0) + 1
        try:
            yield self._servers[key][0]
        finally:
            self._users[key] -= 1
            self._evict()

    def _evict(self) -> None:
        """Remove the oldest unused servers beyond the limit."""
        unused = [key for key in self._servers if not self._users[key]]
        for key in unused[: max(len(unused) - KEPT_MCP_SERVERS, 0)]:
            _, unsubscribe = self._servers.pop(key)
            unsubscribe()
            del self._users[key]


# --- sockets ----------------------------------------------------------------------------------


async def _read(front: socket.socket, size: int) -> bytes:
    """Return exactly this many bytes. Raises OSError at the end of the connection."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        received = await loop.sock_recv(front, min(size - len(data), READ_BYTES))
        if not received:
            raise ConnectionResetError("the front is gone")
        data += received
    return bytes(data)


async def _send(front: socket.socket, line: str) -> None:
    await asyncio.get_running_loop().sock_sendall(front, f"{line}\n".encode())


async def _receive_descriptors(front: socket.socket) -> tuple[int, int]:
    """Return the front's stdin and stdout. Raises ValueError and OSError."""
    await _wait_readable(front)
    # Commands must not inherit them: they would keep the pipes of the host open.
    data, descriptors, _, _ = socket.recv_fds(
        front, 1, DESCRIPTORS, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    )
    if data and len(descriptors) == DESCRIPTORS:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return descriptors[0], descriptors[1]
    for descriptor in descriptors:
        os.close(descriptor)
    if not data:
        raise ConnectionResetError("the front is gone")
    raise ValueError("stdin and stdout are missing")


async def _wait_readable(front: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(front, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(front)
