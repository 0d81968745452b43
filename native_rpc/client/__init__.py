"""A client for the native protocol, over stdio, WebSocket or HTTP.

    async with connect() as plexus:
        async for event in plexus.bash.execute(command="ls"):
            print(event.type, event.get("data"))
        report = await plexus.health.check()

Rules:
- Without a target, the client finds the running server of the current folder, and its token.
- A target is a URL (`ws://`, `wss://`, `http://`, `https://`; the default path is `/rpc`) or a
  command that uses stdin and stdout: a list, or "stdio:command".
- Over a URL, every call with named parameters contains an idempotency key. When the connection is
  lost, the client reconnects for up to `reconnect_s` seconds and resumes each open call after its
  last item: no item is lost or repeated, and nothing runs twice. Positional parameters cannot
  contain a key, so those calls fail with `ConnectionLost`, as do all open calls of a process that
  died.
- All tasks belong to the `async with`; leaving it cancels all open calls.
- Proxies from the environment are not used.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import anyio
from anyio.abc import TaskGroup

from native_rpc.client.call import Call, Items
from native_rpc.client.http import HttpTransport
from native_rpc.client.limits import ClientLimits
from native_rpc.client.local_server import find_local_server
from native_rpc.client.pipes import StdioPipe, WebSocketPipe
from native_rpc.client.session import Item, Params
from native_rpc.client.transport import PipeTransport, Transport
from native_rpc.errors import ConnectionLost, ProtocolError, RunCancelled
from plexus.text import printable_name

__all__ = (
    "Call",
    "Client",
    "ClientLimits",
    "ConnectionLost",
    "Item",
    "Items",
    "Namespace",
    "ProtocolError",
    "RunCancelled",
    "connect",
)

STDIO = "stdio:"
PATH = "/rpc"
#: The header with the name and version of a client, and the maximum characters of its value.
CLIENT_HEADER = "Substrate-Client"
CLIENT_CHARS = 100


def connect(
    target: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    client: str | None = None,
    reconnect_s: float | None = None,
    limits: ClientLimits | None = None,
) -> Client:
    """Return a client for this target, to be entered with `async with`.

    Without a target it is the running server of the current folder, of the nearest folder above it,
    or the only one that you run, with its token. Raises ConnectionLost if there is none.

    `token` is the server token that `substrate token` prints, or an additional token. `client` is
    the name and version of your program, which the server shows with its runs.

    Entering the client raises ConnectionLost if the server cannot be reached, and Denied if it
    rejects the token; over HTTP the first call raises Denied. Raises ValueError for an invalid
    target.
    """
    if target is None:
        server = find_local_server()
        target, token = server.url, server.token if token is None else token
    limits = limits or ClientLimits()
    if reconnect_s is not None:
        limits = dataclasses.replace(limits, reconnect_s=reconnect_s)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if client is not None:
        name = printable_name(client, CLIENT_CHARS)
        headers[CLIENT_HEADER] = name.encode("ascii", "replace").decode()
    return Client(_transport(target, headers, limits))


def _transport(
    target: str | Sequence[str], headers: Mapping[str, str], limits: ClientLimits
) -> Transport:
    if isinstance(target, str) and not target.startswith(STDIO):
        url = _parse_url(target)
        if url.path in ("", "/"):
            url = url._replace(path=PATH)
        resumable = limits.reconnect_s > 0
        if url.scheme in ("ws", "wss"):
            open_socket = partial(WebSocketPipe.open, url.geturl(), headers, limits)
            return PipeTransport(url.geturl(), open_socket, limits, resumable=resumable)
        return HttpTransport(url, headers, limits, resumable=resumable)
    command = shlex.split(target.removeprefix(STDIO)) if isinstance(target, str) else list(target)
    if not command:
        raise ValueError("The command of a target must not be empty.")
    open_process = partial(StdioPipe.open, command, limits)
    return PipeTransport(shlex.join(command), open_process, limits, resumable=False)


def _parse_url(target: str) -> SplitResult:
    """Return the parts of the address of a server. Raises ValueError."""
    fault = ""
    try:
        target.encode()  # an argument that is not UTF-8 cannot be sent as a path
        url = urlsplit(target)
        host = (url.hostname or "").encode("idna")
        port = url.port
    # Besides ValueError, which says what is wrong, encoding raises UnicodeError, which does not.
    except UnicodeError:
        host, port, fault = b"", None, " The host name is invalid."
    except ValueError as error:
        host, port, fault = b"", None, f" {error}."
    if host and port != 0 and url.scheme in ("ws", "wss", "http", "https"):
        return url
    raise ValueError(
        f"Invalid target {target!r}.{fault} Use ws://, http://, 'stdio:command' or a list of words."
    )


class Client:
    """A client of one server. `client.bash.execute(...)` calls `bash.execute`.

    Use `call("runs.method")` for a namespace with the name of a method of this class.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Client:
        if self._tasks is not None:
            raise RuntimeError("A client can be entered only once. Call connect() again.")
        await self._transport.open()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._transport.serve)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        with anyio.CancelScope(shield=True):
            await self._transport.close()
        self._tasks.cancel_scope.cancel()
        # Do not pass the exception of the block: the group would wrap it in an ExceptionGroup, and
        # the caller could not catch it by its class.
        await self._tasks.__aexit__(None, None, None)

    def __getattr__(self, name: str) -> Namespace:
        if name.startswith("_"):
            raise AttributeError(name)
        return Namespace(self, name)

    # --- calls --------------------------------------------------------------------------------

    def call(self, method: str, params: Params = None) -> Call:
        """Return a call of this method, with named (dict) or positional (list) parameters.

        Nothing is sent before the call is iterated, awaited or entered.
        """
        if self._tasks is None:
            raise RuntimeError("Enter the client first: async with connect(...) as client")
        return Call(self._transport, method, params)

    def attach(self, run: int, after: int = 0) -> Call:
        """Read a run from the item after this one. Closing the call does not stop the run."""
        return self.call("plexus.attach", {"run": run, "after": after})

    async def respond(self, run: int, request: str, answer: Any) -> bool:
        """Answer a question of a run, by the `request` of its event; None declines."""
        params = {"run": run, "request": request, "answer": answer}
        return bool(await self.call("plexus.respond", params))

    async def cancel(self, run: int, reason: str | None = None) -> bool:
        """Cancel a run. Returns whether it was still in progress."""
        return bool(await self.call("plexus.cancel", {"run": run, "reason": reason}))

    async def runs(self, state: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return your runs, newest first."""
        runs: list[dict[str, Any]] = await self.call(
            "plexus.runs", {"state": state, "limit": limit}
        )
        return runs

    async def schema(self, namespace: str | None = None) -> dict[str, Any]:
        """Return the activations of the server with the JSON Schemas of their methods."""
        schema: dict[str, Any] = await self.call("plexus.schema", {"namespace": namespace})
        return schema

    async def hash(self) -> str:
        """Return the hash of the schema, which changes exactly when the schema does."""
        return str(await self.call("plexus.hash"))


class Namespace:
    """A prefix of a method name. Calling it returns a call of that method."""

    __slots__ = ("_client", "_path")

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path

    def __getattr__(self, name: str) -> Namespace:
        if name.startswith("_"):
            raise AttributeError(name)
        return Namespace(self._client, f"{self._path}.{name}")

    def __call__(self, *positional: Any, **named: Any) -> Call:
        """Return the call, with either named or positional parameters."""
        if positional and named:
            raise TypeError(f"{self._path}: use named or positional parameters, not both.")
        return self._client.call(self._path, list(positional) if positional else named)

    def __repr__(self) -> str:
        return f"<{self._path} of {self._client!r}>"
