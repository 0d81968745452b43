"""Target that calls methods on a running server."""

from __future__ import annotations

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
from substrate.cli.event_loop import run_async
from substrate.cli.target.catalogue import SchemaCatalogue
from substrate.security.lockfile import find_running
from substrate.settings import TOKEN

__all__ = ("ServerTarget", "find_server", "identity_of", "server_url")

T = TypeVar("T")

#: Name in the identity document of `substrate.server.app`. A test compares the two; importing the
#: constant would import the whole HTTP server.
IDENTITY: Final = "substrate"
#: Timeout for the identity of a local server. Every command waits for it.
PROBE_S: Final = 0.3
#: Host names of this machine.
LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
#: What the address of a server begins with.
SCHEMES: Final = ("ws://", "wss://", "http://", "https://")
#: Maximum size of the identity document.
PROBE_BYTES: Final = 64 * 1024


def find_server(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a Substrate server answers on this port."""
    return identity_of(port, host) is not None


def identity_of(port: int, host: str = "127.0.0.1") -> dict[str, Any] | None:
    """Return the identity document of the Substrate server on this port, or None."""
    if port == 0:
        return None
    try:
        # Usually nothing listens, and the import of the HTTP client is saved.
        socket.create_connection((host, port), PROBE_S).close()
    except (OSError, UnicodeError):  # no host has this name
        return None
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/", headers={"accept": "application/json"})
        body = wire.decode_value(connection.getresponse().read(PROBE_BYTES), Limits())
    except (OSError, HTTPException, PlexusError, ValueError):
        return None  # another program
    finally:
        connection.close()
    return body if isinstance(body, dict) and body.get("name") == IDENTITY else None


def server_url(address: str) -> str:
    """Return the URL for the client library. Raises ValueError for an invalid address."""
    url = address if "://" in address else f"ws://{address}"
    fault = None if url.lower().startswith(SCHEMES) else ValueError("another scheme")
    try:
        connect(url)  # checks the address, and connects when it is entered
    except ValueError as error:
        fault = error
    if fault is not None:
        raise ValueError(
            f"{address!r} is not a server URL, as in ws://127.0.0.1:4444 or http://127.0.0.1:4444."
        ) from fault
    return url


@dataclasses.dataclass(frozen=True, slots=True)
class ServerItem:
    """Event as received from the server."""

    event: Mapping[str, Any]
    time_ms: int | None = None
    #: The server does not send a readable form.
    text: str | None = None


class ServerCall:
    """Call of a method on the server."""

    def __init__(self, client: Client, call: Call) -> None:
        self._client = client
        self._call = call

    @property
    def run(self) -> int:
        """Number of the run."""
        number = self._call.run
        assert number is not None, "the server has accepted the call"
        return number

    async def items(self) -> AsyncIterator[ServerItem]:
        """Yield the events of the run, up to and including its terminal."""
        terminal: ClientItem | None = None
        try:
            async with aclosing(self._call.__aiter__()) as items:
                async for item in items:
                    yield ServerItem(dict(item), item.time_ms)
        except PlexusError:
            # The client library raises the error of a failed run. Here the terminal is an item
            # like any other. Without a terminal, the connection to the server was lost.
            terminal = self._call.terminal
            if terminal is None:
                raise
        if terminal is not None:
            yield ServerItem(dict(terminal), terminal.time_ms)

    async def cancel(self, reason: str) -> None:
        """Cancel the run. Its terminal still arrives."""
        await self._call.cancel(reason)

    async def answer(self, request: str, answer: Any) -> None:
        """Answer a question of the run."""
        await self._client.respond(self.run, request, answer)


class ServerTarget:
    """Server, with a separate connection for each call."""

    #: A server reports its plugins when it starts.
    broken: Sequence[BrokenPlugin] = ()

    def __init__(
        self,
        url: str,
        name: str,
        command: Sequence[str],
        token: str | None = None,
        client: str | None = None,
    ) -> None:
        """Set the server and how to reach it.

        Without `token`, the token from the lock file of a local server of this user is used.
        `client` is the name of this program, which the server shows with its runs.
        """
        self._url = url
        self._client = client
        self._token = token or _token_of(url)
        #: How long to reconnect during a call; None for the default of the client library.
        self.reconnect_s: float | None = None
        self.name = name
        self.command = command

    @cached_property
    def catalogue(self) -> SchemaCatalogue:
        """Catalogue of the server. Raises ClickException if the server cannot be reached."""
        return SchemaCatalogue(self.run(self._schema()))

    async def _schema(self) -> dict[str, Any]:
        async with self._connect(reconnect_s=0) as client:
            return await client.schema()

    def _connect(self, *, reconnect_s: float | None) -> Client:
        return connect(self._url, token=self._token, client=self._client, reconnect_s=reconnect_s)

    @asynccontextmanager
    async def call(self, method: str, params: dict[str, Any]) -> AsyncIterator[ServerCall]:
        """Start a call. Leaving the context cancels the run. Raises PlexusError if rejected."""
        async with (
            self._connect(reconnect_s=self.reconnect_s) as client,
            client.call(method, params) as call,
        ):
            yield ServerCall(client, call)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls methods.

        Raises ClickException if the server is unreachable or rejects the token.
        """
        try:
            return run_async(work)
        except ConnectionLost as error:
            raise click.ClickException(
                f"{error.message}. Is {self.name} running? --local works without a server."
            ) from error
        except Denied as error:
            raise click.ClickException(
                f"{error.message}. Pass its token with `substrate --token TOKEN` or in {TOKEN}."
            ) from error

    def close(self) -> None:
        """Do nothing: no resources are held between calls."""


def _token_of(url: str) -> str | None:
    """Return the token from the lock file of a server on this machine.

    A token from a lock file is never sent to another machine.
    """
    parts = urlsplit(url)
    if parts.hostname not in LOCAL_NAMES:
        return None
    running = find_running(parts.port or 80)
    return None if running is None else running.token
