"""Clients of the MCP view in tests: over a real hub, or with runs that a test creates.

Every message of the view is validated against the official schema of its revision if that is
available, and always checked for nulls, which several clients reject.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import mcp_schema
from hub_calls import WAIT_S, ignore, quiet

from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions, McpServer
from mcp_view.session import Session
from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection
from plexus import Activation, Event, Plexus, Principal
from plexus.events import Terminal
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.rpc.effects import Effect, LeaveCall, Send, SetTimer, StartCall
from plexus.runtime.run import LocalRun
from substrate.driver import Connection
from substrate.server.mcp.responder import http_status

__all__ = (
    "CAPABLE",
    "HANDSHAKES",
    "PREFIX",
    "REVISIONS",
    "STATELESS",
    "TASKS",
    "Clock",
    "McpPeer",
    "Stage",
    "envelope",
    "make_server",
    "text_of",
)

REVISIONS = mcp_schema.REVISIONS
HANDSHAKES = REVISIONS[:-1]
STATELESS = REVISIONS[-1]
PREFIX = "io.modelcontextprotocol/"
#: The capabilities of a client that supports all requests of a server.
CAPABLE: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}
#: The capabilities of a client with the tasks extension.
TASKS: dict[str, Any] = {"extensions": {PREFIX + "tasks": {}}}

#: Properties that may contain nulls, because authors and clients write them.
FREE = {"inputSchema", "outputSchema", "structuredContent", "data", "arguments"}


class Clock:
    """A manual clock that starts at the real time, which runs use for their timestamps."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


def make_server(
    hub: Plexus,
    options: McpOptions | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> McpServer:
    server = McpServer(hub, options, secret=b"s" * 32, monotonic=monotonic, wall=wall)
    hub.on_change(server.on_change)
    return server


def envelope(
    params: dict[str, Any] | None = None,
    capabilities: dict[str, Any] | None = None,
    revision: str = STATELESS,
    **meta: Any,
) -> dict[str, Any]:
    """Return parameters with the stateless envelope; `meta` adds to it."""
    params = params or {}
    fields = {
        PREFIX + "protocolVersion": revision,
        PREFIX + "clientCapabilities": capabilities or {},
        PREFIX + "clientInfo": {"name": "test", "version": "1"},
    }
    return params | {"_meta": fields | params.get("_meta", {}) | meta}


def text_of(result: dict[str, Any]) -> str:
    """Return all texts of a tool's result."""
    return "".join(block.get("text", "") for block in result["content"])


def check_nulls(value: Any, where: str) -> None:
    """Fail if a sent message contains a null."""
    assert value is not None, f"null at {where}"
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in FREE:
                check_nulls(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            check_nulls(inner, f"{where}[{place}]")


class Checker:
    """Validator of every message that a view sends."""

    def __init__(self) -> None:
        self._asked: dict[Any, tuple[str, str]] = {}

    def sent(self, message: Any, revision: str) -> None:
        """Record the requests that a client has sent."""
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and "method" in each and "id" in each:
                enveloped = PREFIX in str(each.get("params")) and each["method"] != "initialize"
                used = STATELESS if enveloped else revision
                self._asked[_key(each["id"])] = (each["method"], used)

    def check(self, frame: Any, revision: str) -> None:
        """Fail if the view must not send this message."""
        if isinstance(frame, list):
            for each in frame:
                self.check(each, revision)
            return
        method = frame.get("method")
        if method is None:
            method, revision = self._asked.get(_key(frame["id"]), (None, revision))
            if "error" in frame:
                method = method or "/"
        if method is None or ("/" not in method and method not in ("initialize", "ping")):
            return  # of the native view
        check_nulls(frame if frame.get("id") is not None else frame | {"id": 0}, "")
        if method == "initialize" and "result" in frame:
            revision = frame["result"]["protocolVersion"]
        if mcp_schema.FOLDER is not None:
            mcp_schema.validate(revision, frame, method if "result" in frame else None)


def _key(request_id: Any) -> str:
    return json.dumps(request_id)


class McpPeer:
    """A client of the view over a real hub, through the driver only."""

    def __init__(
        self,
        hub: Plexus,
        revision: str | None = None,
        *,
        capabilities: dict[str, Any] | None = None,
        options: McpOptions | None = None,
        server: McpServer | None = None,
        principal: Principal = LOCAL,
        native: bool = False,
        streaming: bool = True,
        stateless: bool = False,
        checked: bool = True,
    ) -> None:
        """Connect, with the handshake if `revision` has one.

        The messages of a client that mixes revisions cannot be `checked`.
        """
        self.hub = hub
        #: The revision of this client.
        self.revision = revision or HANDSHAKES[-1]
        self.capabilities = capabilities or {}
        self.server = server or make_server(hub, options)
        fallback = NativeConnection(MESSAGES, hub.limits, hub.new_id) if native else None
        self.session = Session()
        self.view = McpConnection(
            self.server,
            self.session,
            principal=principal,
            fallback=fallback,
            streaming=streaming,
            stateless=stateless,
        )
        self.connection = Connection(hub, self.view, principal)
        #: All messages of the view, without the handshake.
        self.frames: list[Any] = []
        self._taken = 0
        self._ids = itertools.count(100)
        self._checker = Checker()
        self._checked = checked
        if revision is not None and revision != STATELESS:
            params = {
                "protocolVersion": revision,
                "capabilities": self.capabilities,
                "clientInfo": {"name": "test", "version": "1"},
            }
            [answer] = self.send({"id": "init", "method": "initialize", "params": params})
            assert answer["result"]["protocolVersion"] == revision
            self.notify("notifications/initialized")
            self.frames.clear()
            self._taken = 0

    @property
    def status(self) -> int:
        """The HTTP status of the last response in a request without a session."""
        return 200 if self.view.refusal is None else http_status(self.view.refusal.code)

    # --- sending ------------------------------------------------------------------------------

    def send(self, message: Any) -> list[Any]:
        """Send a message, a batch or raw bytes, and return the immediate replies."""
        if isinstance(message, dict):
            message = {"jsonrpc": "2.0"} | message
        elif isinstance(message, list):
            message = [{"jsonrpc": "2.0"} | e if isinstance(e, dict) else e for e in message]
        self._checker.sent(message, self.revision)
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.connection.receive(wire.decode(data, self.hub.limits))
        return self.collect()

    def collect(self) -> list[Any]:
        """Return the messages that the view sends now."""
        frames = [json.loads(frame) for frame in self.connection.collect()]
        for frame in frames if self._checked else ():
            self._checker.check(frame, self.revision)
        self.frames += frames
        return frames

    def notify(self, method: str, params: dict[str, Any] | None = None) -> list[Any]:
        return self.send({"method": method} | ({} if params is None else {"params": params}))

    def begin(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> int:
        """Send a request and return its id; immediate replies are in `frames`."""
        request_id = next(self._ids)
        params = params or {}
        if self.revision == STATELESS:
            params = envelope(params, self.capabilities, **meta)
        elif meta:
            params = params | {"_meta": params.get("_meta", {}) | meta}
        self.send({"id": request_id, "method": method, "params": params})
        return request_id

    def begin_tool(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> int:
        """Call a tool and return the request's id."""
        return self.begin("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)

    def respond(self, request: dict[str, Any], result: Any) -> list[Any]:
        """Answer a request of the server."""
        return self.send({"id": request["id"], "result": result})

    # --- receiving ----------------------------------------------------------------------------

    async def receive(self, wanted: Callable[[Any], bool]) -> Any:
        """Wait for the next matching message; no message is examined twice."""
        async with asyncio.timeout(WAIT_S):
            while True:
                while self._taken < len(self.frames):
                    frame = self.frames[self._taken]
                    self._taken += 1
                    if wanted(frame):
                        return frame
                await self.connection.ready()
                self.collect()

    async def answer_to(self, request_id: Any) -> Any:
        """Wait for the response to a request, anywhere in `frames`."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for frame in self.frames:
                    if isinstance(frame, dict) and "method" not in frame:
                        same_type = type(frame["id"]) is type(request_id)
                        if same_type and frame["id"] == request_id:
                            return frame
                await self.connection.ready()
                self.collect()

    async def asked(self, method: str) -> Any:
        """Wait for a request of the server."""
        request = await self.receive(
            lambda frame: isinstance(frame, dict) and "id" in frame and "method" in frame
        )
        assert request["method"] == method
        return request

    async def notification(self, method: str) -> Any:
        """Wait for a notification of the server, and return its parameters."""
        frame = await self.receive(lambda f: isinstance(f, dict) and f.get("method") == method)
        return frame.get("params")

    async def quiet(self) -> list[Any]:
        """Let all pending work run, and return the messages sent meanwhile."""
        before = len(self.frames)
        for _ in range(5):
            await quiet()
            self.collect()
        return self.frames[before:]

    def notifications(self, method: str) -> list[Any]:
        """Return the parameters of all notifications of this method so far."""
        return [f.get("params") for f in self.frames if f.get("method") == method]

    async def call(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request and wait for its response."""
        return await self.answer_to(self.begin(method, params, **meta))

    async def result(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request that must succeed, and return its result."""
        answer = await self.call(method, params, **meta)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request that must fail, and return its error."""
        answer = await self.call(method, params, **meta)
        assert "error" in answer, answer
        return answer["error"]

    async def tool(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Call a tool, and return its result."""
        return await self.result("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)


class Stage:
    """The view without a hub: a test creates the events of one call and sets the clock."""

    def __init__(
        self,
        activation: Activation | type[Activation],
        revision: str,
        *,
        options: McpOptions | None = None,
        capabilities: dict[str, Any] | None = None,
        streaming: bool = True,
    ) -> None:
        self.revision = revision
        self.clock = Clock()
        self.limits = Limits()
        hub = Plexus()
        hub.register(activation)
        server = make_server(hub, options, monotonic=self.clock)
        self.view = McpConnection(server, Session(), streaming=streaming)
        self._capabilities = capabilities or {}
        self._checker = Checker()
        self.frames: list[Any] = []
        #: The run of the call.
        self.run: LocalRun | None = None
        self.started: list[StartCall] = []
        self.left: list[LeaveCall] = []
        self._reader: Any = None
        self._call: Any = None
        self._due: float | None = None
        if revision != STATELESS:
            params = {"protocolVersion": revision, "capabilities": self._capabilities}
            self.send({"id": 0, "method": "initialize", "params": params})
            self.frames.clear()

    def send(self, message: dict[str, Any]) -> list[Any]:
        message = {"jsonrpc": "2.0"} | message
        self._checker.sent(message, self.revision)
        return self._do(self.view.receive(wire.decode(json.dumps(message).encode(), self.limits)))

    def call(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> list[Any]:
        """Call a tool with the request id 1; `meta` is its `_meta`."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
        if self.revision == STATELESS:
            params = envelope(params, self._capabilities, **meta)
        elif meta:
            params["_meta"] = meta
        return self.send({"id": 1, "method": "tools/call", "params": params})

    def emit(self, *events: Event) -> list[Any]:
        """Append events to the run, and return the messages of the view."""
        assert self.run is not None
        for event in events:
            if isinstance(event, Terminal):
                self.run.finish(event)
            else:
                self.run.append(event)
        frames = []
        while (batch := self._reader.take()).events:
            frames += self._do(self.view.on_items(self._call, batch))
            if batch.terminal is not None:
                self._due = None
                break
        return frames

    def wait(self, seconds: float) -> list[Any]:
        """Advance the clock, and run the timers of the view that become due."""
        end = self.clock.now + seconds
        frames = []
        while self._due is not None and self._due <= end:
            self.clock.now, self._due = self._due, None
            frames += self._do(self.view.on_timer(self._call))
        self.clock.now = end
        return frames

    def _do(self, effects: list[Effect]) -> list[Any]:
        messages = [json.loads(frame) for frame in self._carry_out(effects)]
        for message in messages:
            self._checker.check(message, self.revision)
        self.frames += messages
        return messages

    def _carry_out(self, effects: list[Effect]) -> list[bytes]:
        frames: list[bytes] = []
        for effect in effects:
            if isinstance(effect, Send):
                frames += effect.frames
            elif isinstance(effect, StartCall):
                self.started.append(effect)
                self.run = run = LocalRun(7, effect.method, LOCAL, self.limits, lambda _: None)
                run.question_kinds = effect.question_kinds
                self._call = effect.call
                self._reader = run.reader(0, ignore, owner=True)
                frames += self._carry_out(self.view.on_started(effect.call, run))
            elif isinstance(effect, LeaveCall):
                self.left.append(effect)
                self._due = None
            elif isinstance(effect, SetTimer):
                self._due = self.clock.now + effect.after_s
        return frames
