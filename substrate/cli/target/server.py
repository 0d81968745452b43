"""A server that is running, as a target of commands."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from native_rpc.client import Call, Client, ConnectionLost, connect
from native_rpc.client import Item as ClientItem
from plexus.errors import Denied, PlexusError
from plexus.limits import Limits
from plexus.registry.plugins import BrokenPlugin
from plexus.rpc import wire
from substrate.cli.target.catalogue import SchemaCatalogue
from substrate.security.lockfile import find_running
from substrate.settings import TOKEN

__all__ = ("ServerTarget", "find_server", "identity_of", "server_url")

T = TypeVar("T")

#: What `substrate.server.app` says it is. A test sees that the two agree; importing it from there
#: would import the whole HTTP server.
IDENTITY: Final = "substrate"
#: How long a server on this machine may take to say who it is; every command waits for it.
PROBE_S: Final = 0.3
#: What this machine calls itself.
LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
#: More than enough for the answer that is expected.
PROBE_BYTES: Final = 64 * 1024


def find_server(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server of ours answers on this port."""
    return identity_of(port, host) is not None


def identity_of(port: int, host: str = "127.0.0.1") -> dict[str, Any] | None:
    """What a server of ours on this port says of itself; None if there is none."""
    if port == 0:
        return None
    try:
        # Mostly nobody is there; the HTTP client is imported only if somebody is.
        socket.create_connection((host, port), PROBE_S).close()
    except OSError:
        return None
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/", headers={"accept": "application/json"})
        body = wire.decode_value(connection.getresponse().read(PROBE_BYTES), Limits())
    except (OSError, HTTPException, PlexusError, ValueError):
        return None  # somebody else
    finally:
        connection.close()
    return body if isinstance(body, dict) and body.get("name") == IDENTITY else None


def server_url(address: str) -> str:
    """An address as the client takes it; raises ValueError for what is none."""
    url = address if "://" in address else f"ws://{address}"
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is not like ws://127.0.0.1:4444 or http://127.0.0.1:4444.")
    return url


@dataclasses.dataclass(frozen=True, slots=True)
class ServerItem:
    """An event as it came over the wire."""

    event: Mapping[str, Any]
    time_ms: int | None = None
    #: The server does not send how an event would be read.
    text: str | None = None


class ServerCall:
    """A run on the server, that this client began or follows."""

    def __init__(self, client: Client, call: Call) -> None:
        self._client = client
        self._call = call

    @property
    def run(self) -> int:
        """The run's number."""
        number = self._call.run
        assert number is not None, "the server has accepted the call"
        return number

    async def items(self) -> AsyncIterator[ServerItem]:
        """What the run says, up to and with its terminal."""
        terminal: ClientItem | None = None
        try:
            async with aclosing(self._call.__aiter__()) as items:
                async for item in items:
                    yield ServerItem(dict(item), item.time_ms)
        except PlexusError:
            # The client raises what a run failed with. Here that is an item like any other,
            # unless it failed without one: the server is gone.
            terminal = self._call.terminal
            if terminal is None:
                raise
        if terminal is not None:
            yield ServerItem(dict(terminal), terminal.time_ms)

    async def cancel(self, reason: str) -> None:
        """Stop the run; its terminal still comes."""
        await self._call.cancel(reason)

    async def answer(self, request: str, answer: Any) -> None:
        """Answer what the run asks."""
        await self._client.respond(self.run, request, answer)


class ServerTarget:
    """A server, reached over a connection for each thing that is asked of it."""

    #: A server reports its plugins itself, when it starts.
    broken: Sequence[BrokenPlugin] = ()

    def __init__(
        self, url: str, name: str, command: Sequence[str], token: str | None = None
    ) -> None:
        """`token` is sent to the server; without one, the one in the lock file of a server of
        this user on this machine."""
        self._url = url
        self._token = token or _token_of(url)
        #: For how long the server may be away in the middle of a call; None for as long as the
        #: client thinks right.
        self.reconnect_s: float | None = None
        self.name = name
        self.command = command

    @cached_property
    def catalogue(self) -> SchemaCatalogue:
        """What the server offers; raises ClickException if it cannot be reached."""
        return SchemaCatalogue(self.run(self._schema()))

    async def _schema(self) -> dict[str, Any]:
        async with connect(self._url, token=self._token, reconnect_s=0) as client:
            return await client.schema()

    @asynccontextmanager
    async def call(self, method: str, params: dict[str, Any]) -> AsyncIterator[ServerCall]:
        """Begin a call; leaving it stops the run. Raises PlexusError if it is refused."""
        async with (
            connect(self._url, token=self._token, reconnect_s=self.reconnect_s) as client,
            client.call(method, params) as call,
        ):
            yield ServerCall(client, call)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls; raises ClickException if the server is not there."""
        try:
            return asyncio.run(work)
        except ConnectionLost as error:
            raise click.ClickException(
                f"{error.message}. Is {self.name} running? --local does without one."
            ) from error
        except Denied as error:
            raise click.ClickException(
                f"{error.message}. Give its token with `substrate --token TOKEN` or in {TOKEN}."
            ) from error

    def close(self) -> None:
        """Nothing is held between calls."""


def _token_of(url: str) -> str | None:
    """The token of a server on this machine, as its lock file has it. No other machine is ever
    sent one from there."""
    parts = urlsplit(url)
    if parts.hostname not in LOCAL_NAMES:
        return None
    running = find_running(parts.port or 80)
    return None if running is None else running.token
