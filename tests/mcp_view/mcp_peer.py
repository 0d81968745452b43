"""How these tests talk to the MCP view: over a real hub, or alone with runs that a test makes up.

Every message that the view sends is checked against the official schema of its revision, where
the schemas are there, and in any case for nulls, which several clients choke on.
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
#: A client that can be asked everything.
CAPABLE: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}
#: A client that knows the tasks extension.
TASKS: dict[str, Any] = {"extensions": {PREFIX + "tasks": {}}}

#: Where nulls may be: in what authors and clients wrote, and in an error to an unread request.
FREE = {"inputSchema", "outputSchema", "structuredContent", "data", "arguments"}


class Clock:
    """A clock that a test turns. It starts with the real one, which runs are stamped with."""

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
    """Parameters that say by themselves who they are from; `meta` adds to what they say."""
    params = params or {}
    said = {
        PREFIX + "protocolVersion": revision,
        PREFIX + "clientCapabilities": capabilities or {},
        PREFIX + "clientInfo": {"name": "test", "version": "1"},
    }
    return params | {"_meta": said | params.get("_meta", {}) | meta}


def text_of(result: dict[str, Any]) -> str:
    """All texts in a tool's result."""
    return "".join(block.get("text", "") for block in result["content"])


def check_nulls(value: Any, where: str) -> None:
    """Fail if there is a null in a message of ours."""
    assert value is not None, f"there is a null at {where}"
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in FREE:
                check_nulls(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            check_nulls(inner, f"{where}[{place}]")


class Checker:
    """Looks at every message that a view sends."""

    def __init__(self) -> None:
        self._asked: dict[Any, tuple[str, str]] = {}

    def sent(self, message: Any, revision: str) -> None:
        """A client has sent this."""
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and "method" in each and "id" in each:
                enveloped = PREFIX in str(each.get("params")) and each["method"] != "initialize"
                speaks = STATELESS if enveloped else revision
                self._asked[_key(each["id"])] = (each["method"], speaks)

    def check(self, frame: Any, revision: str) -> None:
        """Fail if the view must not send this."""
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
    """A client of the view over a real hub, with nothing but the driver between them."""

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
        """With a `revision`, the handshake is made if it has one. A client that mixes revisions
        at random cannot be `checked`."""
        self.hub = hub
        #: The revision that this client speaks, or is going to.
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
        #: Everything that the view has sent, the handshake left out.
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
        """The HTTP status that the last answer would have without a session."""
        return 200 if self.view.refusal is None else http_status(self.view.refusal.code)

    # --- saying -------------------------------------------------------------------------------

    def send(self, message: Any) -> list[Any]:
        """Send a message, a batch or exactly these bytes; return what is said at once."""
        if isinstance(message, dict):
            message = {"jsonrpc": "2.0"} | message
        elif isinstance(message, list):
            message = [{"jsonrpc": "2.0"} | e if isinstance(e, dict) else e for e in message]
        self._checker.sent(message, self.revision)
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.connection.receive(wire.decode(data, self.hub.limits))
        return self.collect()

    def collect(self) -> list[Any]:
        """What the view has to say now."""
        frames = [json.loads(frame) for frame in self.connection.collect()]
        for frame in frames if self._checked else ():
            self._checker.check(frame, self.revision)
        self.frames += frames
        return frames

    def notify(self, method: str, params: dict[str, Any] | None = None) -> list[Any]:
        return self.send({"method": method} | ({} if params is None else {"params": params}))

    def begin(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> int:
        """Send a request and return its id; what is said at once is in `frames`."""
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

    # --- hearing ------------------------------------------------------------------------------

    async def heard(self, wanted: Callable[[Any], bool]) -> Any:
        """Wait for the next message that is wanted; none is looked at twice."""
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
        """Wait for the answer to a request, wherever it stands in `frames`."""
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
        request = await self.heard(
            lambda frame: isinstance(frame, dict) and "id" in frame and "method" in frame
        )
        assert request["method"] == method
        return request

    async def told(self, method: str) -> Any:
        """Wait for a notification of the server, and return its parameters."""
        frame = await self.heard(lambda f: isinstance(f, dict) and f.get("method") == method)
        return frame.get("params")

    async def quiet(self) -> list[Any]:
        """Let everything go on that can, and return what was said meanwhile."""
        before = len(self.frames)
        for _ in range(5):
            await quiet()
            self.collect()
        return self.frames[before:]

    def said(self, method: str) -> list[Any]:
        """The parameters of all notifications of this kind so far."""
        return [f.get("params") for f in self.frames if f.get("method") == method]

    async def call(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request and wait for its answer."""
        return await self.answer_to(self.begin(method, params, **meta))

    async def result(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request that must succeed."""
        answer = await self.call(method, params, **meta)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request that must be refused."""
        answer = await self.call(method, params, **meta)
        assert "error" in answer, answer
        return answer["error"]

    async def tool(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Call a tool; its result."""
        return await self.result("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)


class Stage:
    """The view alone: a test makes up the events of its one call and turns the clock."""

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
        #: The run of the call, and when the view wants to be reminded of it.
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
        """Call a tool by a request with the id 1; `meta` is what its `_meta` says."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
        if self.revision == STATELESS:
            params = envelope(params, self._capabilities, **meta)
        elif meta:
            params["_meta"] = meta
        return self.send({"id": 1, "method": "tools/call", "params": params})

    def say(self, *events: Event) -> list[Any]:
        """The run says this, all at once."""
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
        """Let time pass, with what the view wanted to be reminded of."""
        end = self.clock.now + seconds
        frames = []
        while self._due is not None and self._due <= end:
            self.clock.now, self._due = self._due, None
            frames += self._do(self.view.on_timer(self._call))
        self.clock.now = end
        return frames

    def _do(self, effects: list[Effect]) -> list[Any]:
        said = [json.loads(frame) for frame in self._carry_out(effects)]
        for frame in said:
            self._checker.check(frame, self.revision)
        self.frames += said
        return said

    def _carry_out(self, effects: list[Effect]) -> list[bytes]:
        said: list[bytes] = []
        for effect in effects:
            if isinstance(effect, Send):
                said += effect.frames
            elif isinstance(effect, StartCall):
                self.started.append(effect)
                self.run = run = LocalRun(7, effect.method, LOCAL, self.limits, lambda _: None)
                run.asks = effect.asks
                self._call = effect.call
                self._reader = run.reader(0, ignore, owner=True)
                said += self._carry_out(self.view.on_started(effect.call, run))
            elif isinstance(effect, LeaveCall):
                self.left.append(effect)
                self._due = None
            elif isinstance(effect, SetTimer):
                self._due = self.clock.now + effect.after_s
        return said
