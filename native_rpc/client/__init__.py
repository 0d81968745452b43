"""A client for the native protocol, over stdio, WebSocket or HTTP.

    async with connect("ws://127.0.0.1:4444/rpc") as plexus:
        async for event in plexus.bash.execute(command="ls"):
            print(event.type, event.get("data"))
        report = await plexus.health.check()

Rules:
- A target is an address (`ws://`, `wss://`, `http://`, `https://`; the path is `/rpc` unless it
  says otherwise) or a command that speaks on its stdin and stdout: a list, or "stdio:command".
- Over an address, every call by name carries a key by which the server knows it again. When the
  connection breaks it is sought again for `reconnect_s` seconds, and each open call goes on after
  its last item: nothing is lost, nothing comes twice, nothing runs twice. Positional parameters
  have no place for a key, so those calls fail with `ConnectionLost`, and so does every open call
  of a process that died.
- All tasks belong to the `async with`; leaving it cancels what is still open.
- Proxies of the environment are not used.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from native_rpc.client.call import Call, Items
from native_rpc.client.http import HttpTransport
from native_rpc.client.limits import ClientLimits
from native_rpc.client.pipes import StdioPipe, WebSocketPipe
from native_rpc.client.session import Item, Params
from native_rpc.client.transport import PipeTransport, Transport
from native_rpc.errors import ConnectionLost, ProtocolError, RunCancelled

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


def connect(
    target: str | Sequence[str],
    *,
    token: str | None = None,
    reconnect_s: float | None = None,
    limits: ClientLimits | None = None,
) -> Client:
    """A client for this target, to be entered with `async with`.

    `token` is what `substrate token` prints, or one that was made for this program. Entering raises
    ConnectionLost if there is no server, and Denied if it does not take the token, which over
    HTTP is found out by the first call; this raises ValueError for a target that is none.
    """
    limits = limits or ClientLimits()
    if reconnect_s is not None:
        limits = dataclasses.replace(limits, reconnect_s=reconnect_s)
    return Client(_transport(target, token, limits))


def _transport(target: str | Sequence[str], token: str | None, limits: ClientLimits) -> Transport:
    if isinstance(target, str) and not target.startswith(STDIO):
        url = urlsplit(target)
        if url.path in ("", "/"):
            url = url._replace(path=PATH)
        resumable = limits.reconnect_s > 0
        if url.scheme in ("ws", "wss") and url.hostname:
            open_socket = partial(WebSocketPipe.open, url.geturl(), token, limits)
            return PipeTransport(url.geturl(), open_socket, limits, resumable=resumable)
        if url.scheme in ("http", "https") and url.hostname:
            return HttpTransport(url, token, limits, resumable=resumable)
        raise ValueError(
            f"{target!r} is no target: use ws://, http://, 'stdio:command' or a list of arguments"
        )
    command = shlex.split(target.removeprefix(STDIO)) if isinstance(target, str) else list(target)
    if not command:
        raise ValueError("a command to start must not be empty")
    open_process = partial(StdioPipe.open, command, limits)
    return PipeTransport(shlex.join(command), open_process, limits, resumable=False)


class Client:
    """A server, as a program sees it. `client.bash.execute(...)` calls `bash.execute`.

    A namespace that is named like a method of this class is reached with `call("runs.method")`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Client:
        if self._tasks is not None:
            raise RuntimeError("a client is entered once; connect again for another")
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
        # Not told of the error in the block: the group would wrap it in an ExceptionGroup, and
        # whoever waits for it by its class would wait in vain.
        await self._tasks.__aexit__(None, None, None)

    def __getattr__(self, name: str) -> Namespace:
        if name.startswith("_"):
            raise AttributeError(name)
        return Namespace(self, name)

    # --- calls --------------------------------------------------------------------------------

    def call(self, method: str, params: Params = None) -> Call:
        """A call of this method, with parameters by name (a dict) or by position (a list).

        Nothing is sent before it is looped over, awaited or entered.
        """
        if self._tasks is None:
            raise RuntimeError("enter the client first: async with connect(...) as client")
        return Call(self._transport, method, params)

    def attach(self, run: int, after: int = 0) -> Call:
        """Follow a run of yours from the item after this one; leaving it does not stop it."""
        return self.call("plexus.attach", {"run": run, "after": after})

    async def respond(self, run: int, request: str, answer: Any) -> bool:
        """Answer what a run asks, by the `request` of its event; None declines."""
        params = {"run": run, "request": request, "answer": answer}
        return bool(await self.call("plexus.respond", params))

    async def cancel(self, run: int, reason: str | None = None) -> bool:
        """Stop a run of yours; True if it was still running."""
        return bool(await self.call("plexus.cancel", {"run": run, "reason": reason}))

    async def runs(self, state: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Your runs, the newest first."""
        runs: list[dict[str, Any]] = await self.call(
            "plexus.runs", {"state": state, "limit": limit}
        )
        return runs

    async def schema(self, namespace: str | None = None) -> dict[str, Any]:
        """What the server offers, with the JSON Schemas of its methods."""
        schema: dict[str, Any] = await self.call("plexus.schema", {"namespace": namespace})
        return schema

    async def hash(self) -> str:
        """The hash of the schema: it changes when, and only when, the schema does."""
        return str(await self.call("plexus.hash"))


class Namespace:
    """A part of a method's name; calling it makes the call."""

    __slots__ = ("_client", "_path")

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path

    def __getattr__(self, name: str) -> Namespace:
        if name.startswith("_"):
            raise AttributeError(name)
        return Namespace(self._client, f"{self._path}.{name}")

    def __call__(self, *positional: Any, **named: Any) -> Call:
        """The call, with parameters by name or by position but not both."""
        if positional and named:
            raise TypeError(f"{self._path}: give parameters by name or by position, not both")
        return self._client.call(self._path, list(positional) if positional else named)

    def __repr__(self) -> str:
        return f"<{self._path} of {self._client!r}>"
