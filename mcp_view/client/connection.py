"""The state of one connection to a server, and what is sent on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from mcp_view.client.call import ClientCall
from mcp_view.client.effects import Effect, Notify, Send, Updated
from mcp_view.client.errors import UpstreamError
from mcp_view.client.headers import mirrored_arguments, request_headers
from mcp_view.client.items import Junk, LogMessage, Notice, Question, QuestionClosed
from mcp_view.client.options import ClientOptions, Server
from mcp_view.revisions import Revision
from plexus.rpc import wire
from plexus.text import shorten

__all__ = ("Asked", "Connection", "Expected")

#: Tools whose headers and task support are remembered. Past it: the oldest are forgotten.
MAX_TOOLS: Final = 20_000
#: Characters of a text that is reported as junk.
JUNK_CHARS: Final = 200


class Expected(NamedTuple):
    """What a response is for."""

    role: Literal["probe", "initialize", "call", "task", "task_result", "ignored", "listen"]
    call: ClientCall | None = None


class Asked(NamedTuple):
    """Where the answer to a question goes: to a request of the server, or into a call."""

    question: Question
    call: ClientCall | None
    request: wire.Id = None
    key: str | None = None


class Connection:
    """One connection to a server: its phase, its requests and its effects."""

    def __init__(self, options: ClientOptions, *, http: bool = False) -> None:
        self.options = options
        #: What the server declared; None until the connection is open.
        self.server: Server | None = None
        #: Whether each request has its own stream, with headers.
        self.is_http = http
        self._phase: Literal["new", "probing", "initializing", "open", "ended"] = "new"
        self._effects: list[Effect] = []
        self._last_id = 0
        self._expected: dict[wire.Id, Expected] = {}
        #: The calls in progress by the id of their request, in the order of their start.
        self._calls: dict[int, ClientCall] = {}
        #: Calls that wait until the connection is open.
        self._waiting: list[ClientCall] = []
        self._last_question = 0
        self._asked: dict[int, Asked] = {}
        self._tools: dict[str, tuple[dict[str, str], bool]] = {}
        self._uris: set[str] = set()
        self._listening: int | None = None
        self._meta: dict[str, Any] = {}
        self._may_fall_back = options.era == "auto"
        self._probes = 0
        #: The size of the message in progress.
        self._size = 0

    def take_effects(self) -> list[Effect]:
        """Return what to do, and forget it."""
        effects = self._effects
        self._effects = []
        return effects

    @property
    def is_open(self) -> bool:
        """Whether the handshake, or the probe, is complete."""
        return self._phase == "open"

    @property
    def is_probing(self) -> bool:
        """Whether the answer to the probe is missing."""
        return self._phase == "probing"

    @property
    def calls(self) -> list[ClientCall]:
        """The calls in progress."""
        return [*self._calls.values(), *self._waiting]

    @property
    def revision(self) -> Revision | None:
        """The negotiated revision."""
        return None if self.server is None else self.server.revision

    def expects(self, request_id: int) -> bool:
        """Whether the response to a request is missing."""
        return request_id in self._expected

    def junk(self, text: str) -> None:
        """Report something that is no message."""
        self._effects.append(Notify(Junk(shorten(text, JUNK_CHARS))))

    def learn_tools(self, tools: Iterable[Any]) -> list[dict[str, Any]]:
        """Remember what calls of these tools need, and return those that may be called."""
        valid = []
        for tool in tools:
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                continue
            mirrored: dict[str, str] | None = {}
            if self.is_http and (self.server is None or not self.server.revision.handshake):
                mirrored = mirrored_arguments(tool)
                if mirrored is None:
                    self.junk(f"the tool {tool['name']!r} has an invalid x-mcp-header")
                    continue
            execution = tool.get("execution")
            needs_task = isinstance(execution, dict) and execution.get("taskSupport") == "required"
            self._tools.pop(tool["name"], None)
            if len(self._tools) >= MAX_TOOLS:
                del self._tools[next(iter(self._tools))]
            self._tools[tool["name"]] = (mirrored or {}, needs_task)
            valid.append(tool)
        return valid

    # --- sending ----------------------------------------------------------------------------------

    def _request(
        self,
        method: str,
        params: dict[str, Any],
        expected: Expected,
        revision: Revision | None = None,
    ) -> int:
        self._last_id += 1
        request_id = self._last_id
        self._expected[request_id] = expected
        if self._meta:
            params = params | {"_meta": self._meta | params.get("_meta", {})}
        self._send(request_id, method, params, revision or self.revision)
        return request_id

    def _send(
        self, request_id: int, method: str, params: dict[str, Any], revision: Revision | None
    ) -> None:
        data = wire.encode_request(request_id, method, params or None)
        headers: tuple[tuple[str, str], ...] = ()
        if self.is_http:
            headers = self._headers(method, params, revision)
        self._effects.append(Send(data, request_id, method, headers))

    def _headers(
        self, method: str, params: dict[str, Any] | None, revision: Revision | None
    ) -> tuple[tuple[str, str], ...]:
        if revision is None:
            return ()
        found = [("MCP-Protocol-Version", revision.name)]
        if not revision.handshake:
            tool = None if params is None else params.get("name")
            mirrored = None
            if method == "tools/call" and isinstance(tool, str):
                mirrored = self._tools.get(tool, ({}, False))[0]
            found += request_headers(method, params, mirrored)
        return tuple(found)

    def _notify(self, method: str, params: dict[str, Any] | None) -> None:
        if self._meta:
            params = (params or {}) | {"_meta": self._meta}
        headers = self._headers(method, params, self.revision) if self.is_http else ()
        self._effects.append(Send(wire.encode_notification(method, params), None, method, headers))

    def _send_call(self, call: ClientCall) -> None:
        self._calls.pop(call.id, None)
        self._last_id += 1
        call.id = request_id = self._last_id
        self._calls[request_id] = call
        self._expected[request_id] = Expected("call", call)
        params = call.params
        meta = self._meta
        if call.meta:
            meta = call.meta | meta
        if call.tracks_progress:
            meta = meta | {"progressToken": request_id}
        given = params.get("_meta")
        if isinstance(given, dict):
            meta = given | meta
        if meta:
            params = params | {"_meta": meta}
        if call.responses:
            params = params | {"inputResponses": call.responses}
        if call.state is not None:
            params = params | {"requestState": call.state}
        server = self.server
        if (
            call.method == "tools/call"
            and server is not None
            and server.revision.tasks == "core"
            and "tasks" in self.options.capabilities
            and server.has("tasks")
            and self._tools.get(params.get("name", ""), ({}, False))[1]
        ):
            params = {"task": {}} | params
        self._send(request_id, call.method, params, self.revision)

    # --- calls ------------------------------------------------------------------------------------

    def _complete(self, call: ClientCall, result: dict[str, Any]) -> None:
        if call.method == "tools/list" and isinstance(result.get("tools"), list):
            result = result | {"tools": self.learn_tools(result["tools"])}
        call.end(result, None)
        self._forget(call)

    def _fail(self, call: ClientCall, error: UpstreamError) -> None:
        if not call.is_done:
            call.end(None, error)
            self._forget(call)

    def _forget(self, call: ClientCall) -> None:
        self._calls.pop(call.id, None)
        for asked in [each for each in self._asked.values() if each.call is call]:
            del self._asked[asked.question.id]
            call.add(QuestionClosed(asked.question), 0)
            if asked.key is None and self._phase == "open":
                # The server waits for the answer of its request, though the call has ended.
                reason = "The call has ended."
                self._effects.append(
                    Send(wire.encode_error(asked.request, wire.INTERNAL_ERROR, reason))
                )
        call.questions = {}
        self._announce(call)

    def _deliver(self, item: LogMessage | Question | QuestionClosed, to: ClientCall | None) -> None:
        if to is None or to.is_done:
            notice: Notice = item
            self._effects.append(Notify(notice))
        else:
            self._add(to, item)

    def _add(self, call: ClientCall, item: Any) -> None:
        call.add(item, self._size)
        self._announce(call)

    def _announce(self, call: ClientCall) -> None:
        if not call.is_announced:
            call.is_announced = True
            self._effects.append(Updated(call))
