"""Real servers for the client's tests, and a proxy that can be cut."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import network

from native_rpc.client import Call, ClientLimits, Item

T = TypeVar("T")

#: Timeout of a scenario, sufficient on a busy machine.
SCENARIO_S = 30.0
#: Limits of a client whose scenario times out if it waits for one of them.
PATIENT = ClientLimits(connect_s=600, reply_s=600, reconnect_s=600, close_s=600)

PLUGIN = Path(__file__).with_name("counting.py")


def play(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run a scenario on a separate loop, with a timeout."""

    async def bounded() -> T:
        async with asyncio.timeout(SCENARIO_S):
            return await scenario()

    return asyncio.run(bounded())


def command(*options: str) -> list[str]:
    """Return the command line of a server with the plugin."""
    return [sys.executable, "-m", "substrate", *options, "--activation", str(PLUGIN)]


class Server(network.Server):
    """A server with the plugin, in a folder, on any port or a given one."""

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        settings: dict[str, str] | None = None,
        auth: str = "off",
    ) -> None:
        super().__init__(
            "--port", str(port), settings=settings, auth=auth, activation=PLUGIN, cwd=folder
        )


@contextmanager
def serving(
    folder: Path, settings: dict[str, str] | None = None, auth: str = "off"
) -> Iterator[Server]:
    """Run a server for the duration of the block."""
    server = Server(folder, settings=settings, auth=auth)
    try:
        yield server
    finally:
        server.stop()


class Proxy:
    """Forwards bytes to a server, and cuts connections on request.

    `cuts` contains, for each connection in turn, the number of bytes from the server after which it
    is cut; later connections are not cut.
    """

    def __init__(self, to_port: int, cuts: list[int]) -> None:
        self._to_port = to_port
        self._cuts = iter(cuts)
        self._open: set[asyncio.StreamWriter] = set()
        self._mute: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        #: Whether new connections are refused.
        self.down = False

    def cut(self) -> None:
        """Cut every open connection."""
        for writer in self._open:
            writer.transport.abort()

    def mute(self) -> None:
        """Keep every open connection open, but forward nothing more."""
        self._mute |= self._open

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.connections += 1
        if self.down:
            writer.transport.abort()
            return
        limit = next(self._cuts, None)
        upstream, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        both = {writer, back}
        self._open |= both
        names = (b"127.0.0.1:%d" % self.port, b"127.0.0.1:%d" % self._to_port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, back, None, names))
                tasks.create_task(self._pass_on(upstream, writer, limit, None))
        except* OSError:
            pass
        finally:
            self._open -= both
            for end in both:
                end.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int | None,
        names: tuple[bytes, bytes] | None,
    ) -> None:
        passed = 0
        while data := await reader.read(65536):
            if writer in self._mute:
                continue
            if names is not None:  # the server accepts only its own host name
                data = data.replace(*names)
            if limit is not None and passed + len(data) >= limit:
                writer.write(data[: limit - passed])
                with suppress(OSError):
                    await writer.drain()
                raise ConnectionAbortedError
            passed += len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionAbortedError

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection, in a task that `stop` cancels."""
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cut all connections and wait for their end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def proxied(to_port: int, cuts: list[int] | None = None) -> AsyncIterator[Proxy]:
    """Run a proxy for the duration of the block."""
    proxy = Proxy(to_port, cuts or [])
    listener = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.stop()


async def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Return whether a condition becomes true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


async def consume(call: Call, each: Callable[[Item], object]) -> None:
    """Iterate over a call to its end."""
    async for item in call:
        each(item)


def numbers(items: list[Any]) -> list[int]:
    """Return the numbers of a count."""
    return [int(item.text.rstrip("x")) for item in items if item.type == "content"]
