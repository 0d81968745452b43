"""The client's side of a connection, sans-IO: messages in, effects out.

A driver passes received messages to `receive`, performs what `take_effects` returns, and calls
`lost` when the connection ended. It owns the clock: deadlines, delays and retries are its part.

The connection begins with a probe, unless the options name an era: a server that answers
`server/discover` needs no handshake, any other answer, or none in time, leads to `initialize`. All
that differs between revisions is read from their row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from mcp_view.client.call import ClientCall
from mcp_view.client.effects import (
    Abort,
    Effect,
    End,
    ListenLater,
    Notify,
    Opened,
    Poll,
    Send,
    Updated,
)
from mcp_view.client.errors import (
    BadMessage,
    Cancelled,
    Lost,
    NotReady,
    Refused,
    UpstreamError,
)
from mcp_view.client.headers import mirrored_arguments, request_headers
from mcp_view.client.items import (
    ElicitationComplete,
    Junk,
    ListChanged,
    LogMessage,
    Notice,
    Progress,
    Question,
    QuestionClosed,
    QuestionKind,
    Reinitialized,
    ResourceUpdated,
    TaskStatus,
)
from mcp_view.client.options import ClientOptions, Server, client_capabilities
from mcp_view.errors import UNSUPPORTED_REVISION
from mcp_view.meta_keys import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
)
from mcp_view.revisions import HANDSHAKES, REVISIONS, STATELESS, Revision
from plexus.rpc import wire
from plexus.text import shorten

__all__ = ("McpClient",)

#: Requests of a server that are open at once. Past it: the next gets an error.
MAX_QUESTIONS: Final = 64
#: Rounds of `input_required` of one call. A server that never has enough is in a loop.
MAX_ROUNDS: Final = 32
#: Tools whose headers and task support are remembered. Past it: the oldest are forgotten.
MAX_TOOLS: Final = 20_000
#: Bounds of the interval at which a task is polled.
POLL_S: Final = (0.05, 30.0)
DEFAULT_POLL_S: Final = 1.0
#: Characters of a text that is reported as junk.
JUNK_CHARS: Final = 200

#: Requests that the server may report progress of.
LONG_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
QUESTIONS: Final[dict[str, QuestionKind]] = {
    "elicitation/create": "form",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
LISTS: Final[dict[str, Literal["tools", "resources", "prompts"]]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}
#: The states of a task that has ended.
ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class _Expected(NamedTuple):
    """What a response is for."""

    role: Literal["probe", "initialize", "call", "task", "task_result", "ignored", "listen"]
    call: ClientCall | None = None


class _Asked(NamedTuple):
    """Where the answer to a question goes: to a request of the server, or into a call."""

    question: Question
    call: ClientCall | None
    request: wire.Id = None
    key: str | None = None


class McpClient:
    """One connection to a server."""

    def __init__(self, options: ClientOptions, *, http: bool = False) -> None:
        self.options = options
        #: What the server declared; None until the connection is open.
        self.server: Server | None = None
        #: Whether each request has its own stream, with headers.
        self.is_http = http
        self._phase: Literal["new", "probing", "initializing", "open", "ended"] = "new"
        self._effects: list[Effect] = []
        self._last_id = 0
        self._expected: dict[wire.Id, _Expected] = {}
        #: The calls in progress by the id of their request, in the order of their start.
        self._calls: dict[int, ClientCall] = {}
        #: Calls that wait until the connection is open.
        self._waiting: list[ClientCall] = []
        self._last_question = 0
        self._asked: dict[int, _Asked] = {}
        self._tools: dict[str, tuple[dict[str, str], bool]] = {}
        self._uris: set[str] = set()
        self._listening: int | None = None
        self._meta: dict[str, Any] = {}
        self._may_fall_back = options.era == "auto"
        self._probes = 0
        #: The size of the message in progress.
        self._size = 0

    # --- for the driver -------------------------------------------------------------------------

    def take_effects(self) -> list[Effect]:
        """Return what to do, and forget it."""
        effects = self._effects
        self._effects = []
        return effects

    def open(self) -> None:
        """Begin the connection."""
        if self.options.era == "legacy":
            self._initialize()
        else:
            self._probe()

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

    def probe_timed_out(self) -> None:
        """Fall back to `initialize`, because the probe got no answer."""
        if self._phase == "probing":
            self._fall_back(NotReady("The server did not answer server/discover."))

    def receive(
        self, message: wire.Message | list[wire.Message], size: int, via: int | None = None
    ) -> None:
        """Handle a message or a batch of this size.

        `via` is the request on whose HTTP stream it arrived.
        """
        if self._phase == "ended":
            return
        if isinstance(message, list):
            for entry in message:
                self.receive(entry, size // len(message), via)
            return
        self._size = size
        kind = message.__class__
        if kind is wire.Notification:
            self._on_notification(message.method, message.params, via)  # type: ignore[union-attr]
        elif kind is wire.Response:
            self._on_response(message)  # type: ignore[arg-type]
        elif kind is wire.Request:
            self._on_request(message, via)  # type: ignore[arg-type]
        elif isinstance(message, wire.Invalid):
            self.junk(f"{message.message}")

    def junk(self, text: str) -> None:
        """Report something that is no message."""
        self._effects.append(Notify(Junk(shorten(text, JUNK_CHARS))))

    def request_failed(self, request_id: int, error: UpstreamError) -> None:
        """End a request whose message could not be sent or whose response cannot arrive."""
        expected = self._expected.pop(request_id, None)
        if expected is None:
            return
        if expected.role == "probe":
            self._fall_back(error)
        elif expected.role == "initialize":
            self._end(error)
        elif expected.call is not None:
            self._fail(expected.call, error)
        elif expected.role == "listen":
            self._listening = None
            self._effects.append(ListenLater())

    def session_lost(self, request_id: int | None) -> bool:
        """Negotiate a new session, because the server does not know the old one.

        The request that the server refused is sent again, once. Returns False if that is no use.
        """
        call = None
        if request_id is not None:
            expected = self._expected.pop(request_id, None)
            call = None if expected is None else expected.call
            if expected is not None and expected.role == "initialize":
                return False
        if call is not None:
            if call.is_resent:
                return False
            call.is_resent = True
            self._calls.pop(call.id, None)
            self._waiting.append(call)
        if self._phase == "open":
            self._close_server_questions()
            self._effects.append(Notify(Reinitialized()))
            self.server = None
            self._initialize()
        return True

    def lost(self, error: UpstreamError) -> None:
        """End everything, because the connection has ended."""
        if self._phase != "ended":
            self._phase = "ended"
            for call in self.calls:
                self._fail(call, error)
            self._close_server_questions()
            self._expected.clear()

    def poll(self, call: ClientCall) -> None:
        """Ask for the status of a task, after the delay of `Poll`."""
        if not call.is_done and call.task is not None and self._phase == "open":
            self._request("tasks/get", {"taskId": call.task}, _Expected("task", call))

    # --- for callers ----------------------------------------------------------------------------

    def start(
        self, method: str, params: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> ClientCall:
        """Start a request. Before the connection is open it waits."""
        call = ClientCall(method, {} if params is None else params, meta)
        call.tracks_progress = method in LONG_METHODS
        if self._phase == "open":
            self._send_call(call)
        elif self._phase == "ended":
            self._fail(call, Lost("The connection is closed."))
        else:
            self._waiting.append(call)
        return call

    def cancel(self, call: ClientCall, reason: str | None = None) -> None:
        """Cancel a call. Its response is not waited for."""
        if call.is_done:
            return
        revision = self.revision
        if call in self._waiting:
            self._waiting.remove(call)
        elif revision is not None and self._phase == "open":
            if call.task is not None:
                self._request("tasks/cancel", {"taskId": call.task}, _Expected("ignored"))
            elif call.id in self._expected:
                if not (self.is_http and revision.disconnect_cancels):
                    given = {} if reason is None else {"reason": reason}
                    self._notify("notifications/cancelled", {"requestId": call.id} | given)
                if self.is_http:
                    self._effects.append(Abort(call.id))
            self._expected.pop(call.id, None)
        self._fail(call, Cancelled(reason or "The call was cancelled."))

    def answer(self, question: Question, result: dict[str, Any]) -> None:
        """Answer a question with a result of MCP. A closed question is ignored."""
        asked = self._asked.pop(question.id, None)
        if asked is None or self._phase == "ended":
            return
        if asked.key is None:
            self._effects.append(Send(wire.encode_result(asked.request, wire.encode(result))))
        elif asked.call is not None:
            call = asked.call
            del call.questions[asked.key]
            call.responses[asked.key] = result
            if not call.questions:
                self._continue(call)

    def refuse(self, question: Question, reason: str) -> None:
        """Refuse to answer a question: it cannot be asked, or nobody is there to answer."""
        asked = self._asked.get(question.id)
        if asked is None:
            return
        if asked.key is None:
            del self._asked[question.id]
            self._effects.append(
                Send(wire.encode_error(asked.request, wire.INTERNAL_ERROR, reason))
            )
        elif question.kind in ("form", "url"):
            self.answer(question, {"action": "cancel"})
        elif question.kind == "roots":
            self.answer(question, {"roots": []})
        elif asked.call is not None:
            self.cancel(asked.call, reason)

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

    def roots_changed(self) -> None:
        """Report that the roots have changed, to a server that could have asked for them."""
        if self.server is not None and self.server.revision.handshake:
            self._notify("notifications/roots/list_changed", None)

    def set_subscriptions(self, uris: Iterable[str]) -> None:
        """Listen for changes of these resources, and of the lists, in a revision without a
        handshake. Replaces what was listened for."""
        self._uris = set(uris)
        if self.server is not None and not self.server.revision.handshake:
            self._listen()

    # --- the beginning --------------------------------------------------------------------------

    def _probe(self) -> None:
        self._phase = "probing"
        self._probes += 1
        self._set_meta(STATELESS)
        self._request("server/discover", {}, _Expected("probe"), STATELESS)

    def _set_meta(self, revision: Revision) -> None:
        self._meta = {}
        if not revision.handshake:
            self._meta = {
                PROTOCOL_VERSION: revision.name,
                CLIENT_INFO: self.options.info,
                CLIENT_CAPABILITIES: client_capabilities(self.options, revision),
            }

    def _initialize(self) -> None:
        self._phase = "initializing"
        self._meta = {}
        revision = REVISIONS[self.options.revision]
        params = {
            "protocolVersion": revision.name,
            "capabilities": client_capabilities(self.options, revision),
            "clientInfo": self.options.info,
        }
        self._request("initialize", params, _Expected("initialize"), None)

    def _on_probed(self, message: wire.Response) -> None:
        if self._phase != "probing":
            return  # an answer after the timeout: `initialize` is on its way
        if message.error is not None:
            self._on_probe_refused(Refused.of(message.error))
            return
        result = message.result
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        if not isinstance(versions, list) or STATELESS.name not in versions:
            self._fall_back(BadMessage("server/discover did not name a supported version."))
            return
        self._opened(STATELESS, result)

    def _on_probe_refused(self, error: Refused) -> None:
        if error.number == UNSUPPORTED_REVISION:
            data = error.data.get("data")
            supported = data.get("supported") if isinstance(data, dict) else None
            if isinstance(supported, list):
                if STATELESS.name in supported and self._probes < 2:
                    self._probe()
                    return
                if not any(name in HANDSHAKES for name in supported if isinstance(name, str)):
                    names = ", ".join(str(name)[:40] for name in supported[:10])
                    self._end(BadMessage(f"The server supports no common revision: {names}."))
                    return
        self._fall_back(error)

    def _fall_back(self, error: UpstreamError) -> None:
        """Continue with a handshake, if the options allow it."""
        if self._may_fall_back and isinstance(error, Refused | BadMessage | NotReady):
            self._may_fall_back = False
            self._initialize()
        else:
            self._end(error)

    def _on_initialized(self, message: wire.Response) -> None:
        if message.error is not None:
            error = Refused.of(message.error)
            late = error.number == UNSUPPORTED_REVISION and self.options.era == "auto"
            if late and self._probes < 2:
                # The probe was answered too late, and the server has chosen its era by it.
                self._probe()
            else:
                self._end(error)
            return
        result = message.result
        name = result.get("protocolVersion") if isinstance(result, dict) else None
        revision = REVISIONS.get(name) if isinstance(name, str) else None
        if revision is None or not revision.handshake:
            self._end(BadMessage(f"The server chose an unknown revision: {str(name)[:40]!r}."))
            return
        self._opened(revision, result)

    def _opened(self, revision: Revision, result: dict[str, Any]) -> None:
        capabilities, info = result.get("capabilities"), result.get("serverInfo")
        meta, instructions = result.get("_meta"), result.get("instructions")
        if not isinstance(info, dict) and isinstance(meta, dict):
            info = meta.get(SERVER_INFO)
        self.server = Server(
            revision,
            capabilities if isinstance(capabilities, dict) else {},
            info if isinstance(info, dict) else {},
            instructions if isinstance(instructions, str) else None,
        )
        self._phase = "open"
        self._set_meta(revision)
        level = self.options.log_level
        if revision.handshake:
            self._notify("notifications/initialized", None)
            if level is not None and self.server.has("logging"):
                self._request("logging/setLevel", {"level": level}, _Expected("ignored"))
        elif level is not None:
            self._meta[LOG_LEVEL] = level
        self._effects.append(Opened())
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._send_call(call)
        if not revision.handshake:
            self._listen()
        else:
            for uri in self._uris:
                self._request("resources/subscribe", {"uri": uri}, _Expected("ignored"))

    def _listen(self) -> None:
        """Open the stream of changes that the server can report, instead of the one before."""
        server = self.server
        if server is None:
            return
        wanted: dict[str, Any] = {
            f"{kind}ListChanged": True
            for kind in ("tools", "prompts", "resources")
            if server.has(kind, "listChanged")
        }
        if self._uris:
            wanted["resourceSubscriptions"] = sorted(self._uris)
        before = self._listening
        self._listening = None
        if wanted:
            params = {"notifications": wanted}
            self._listening = self._request("subscriptions/listen", params, _Expected("listen"))
        if before is not None and self._expected.pop(before, None) is not None:
            if self.is_http:
                self._effects.append(Abort(before))
            else:
                self._notify("notifications/cancelled", {"requestId": before})

    def listen_again(self) -> None:
        """Open the stream of changes again, if it has ended."""
        server = self.server
        if self._listening is None and server is not None and not server.revision.handshake:
            self._listen()

    def _end(self, error: UpstreamError) -> None:
        self.lost(error)
        self._effects.append(End(error))

    # --- sending --------------------------------------------------------------------------------

    def _request(
        self,
        method: str,
        params: dict[str, Any],
        expected: _Expected,
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
        self._expected[request_id] = _Expected("call", call)
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

    # --- responses ------------------------------------------------------------------------------

    def _on_response(self, message: wire.Response) -> None:
        expected = self._expected.pop(message.id, None)
        if expected is None:
            if message.id is None and message.error is not None:
                self.junk(f"the server rejected a message: {Refused.of(message.error).message}")
            return
        role, call = expected
        if role == "probe":
            self._on_probed(message)
        elif role == "initialize":
            self._on_initialized(message)
        elif role == "listen":
            if message.id == self._listening:
                self._listening = None
                if message.error is None:
                    self._effects.append(ListenLater())
        elif call is not None and not call.is_done:
            if message.error is not None:
                self._fail(call, Refused.of(message.error))
            elif not isinstance(message.result, dict):
                self._fail(call, BadMessage("The server answered with a result that is no object."))
            elif role == "task":
                self._on_task(call, message.result)
            else:
                self._on_result(call, message.result)

    def _on_result(self, call: ClientCall, result: dict[str, Any]) -> None:
        kind = result.get("resultType", "complete")
        revision = self.revision
        if revision is not None and revision.tasks == "core":
            task = result.get("task")
            if isinstance(task, dict) and isinstance(task.get("taskId"), str) and not call.task:
                call.task = task["taskId"]
                self._add(call, TaskStatus(task))
                # Its response arrives when the task has ended.
                self._request("tasks/result", {"taskId": call.task}, _Expected("task_result", call))
                return
        if revision is None or revision.handshake or kind == "complete":
            self._complete(call, result)
        elif kind == "input_required":
            self._on_input_required(call, result)
        elif kind == "task" and "tasks" in self.options.capabilities and call.task is None:
            if not isinstance(result.get("taskId"), str):
                self._fail(call, BadMessage("The server created a task without a taskId."))
                return
            call.task = result["taskId"]
            self._on_task(call, result)
        else:
            self._fail(call, BadMessage(f"The server sent an unknown resultType: {kind!r:.40}."))

    def _complete(self, call: ClientCall, result: dict[str, Any]) -> None:
        if call.method == "tools/list" and isinstance(result.get("tools"), list):
            result = result | {"tools": self.learn_tools(result["tools"])}
        call.end(result, None)
        self._forget(call)

    def _on_task(self, call: ClientCall, task: dict[str, Any]) -> None:
        status = task.get("status")
        self._add(call, TaskStatus(task))
        if status in ENDED:
            self._on_task_ended(call, task, status)
            return
        requests = task.get("inputRequests")
        asks = status == "input_required" and isinstance(requests, dict)
        if asks and not self._ask_all(call, requests):  # type: ignore[arg-type]
            return
        every = task.get("pollIntervalMs", task.get("pollInterval"))
        delay = every / 1000 if isinstance(every, int | float) else DEFAULT_POLL_S
        self._effects.append(Poll(call, min(max(delay, POLL_S[0]), POLL_S[1])))

    def _on_task_ended(self, call: ClientCall, task: dict[str, Any], status: str) -> None:
        result, error = task.get("result"), task.get("error")
        if status == "completed" and isinstance(result, dict):
            self._complete(call, result)
        elif status == "cancelled":
            self._fail(call, Cancelled("The server cancelled the task."))
        elif isinstance(error, dict):
            self._fail(call, Refused.of(error))
        else:
            text = task.get("statusMessage")
            self._fail(call, BadMessage(f"The task ended without a result: {text or status}"))

    def _on_input_required(self, call: ClientCall, result: dict[str, Any]) -> None:
        call.rounds += 1
        if call.rounds > MAX_ROUNDS:
            self._fail(call, BadMessage(f"The server asked more than {MAX_ROUNDS} times."))
            return
        state, requests = result.get("requestState"), result.get("inputRequests", {})
        if not isinstance(requests, dict) or not (state is None or isinstance(state, str)):
            self._fail(call, BadMessage("The server sent an invalid input_required result."))
            return
        call.state = state
        call.responses = {}
        if self._ask_all(call, requests) and not requests:
            self._continue(call)

    def _ask_all(self, call: ClientCall, requests: Mapping[str, Any]) -> bool:
        """Ask what is not asked yet. Returns False if a request was invalid and the call failed."""
        for key, request in requests.items():
            if key in call.questions:
                continue
            method = request.get("method") if isinstance(request, dict) else None
            params: Any = request.get("params", {}) if isinstance(request, dict) else None
            kind = self._kind_of(method, params)
            if kind is None or len(self._asked) >= MAX_QUESTIONS:
                reason = "asked for too much" if kind else f"asked for {method!r:.60}"
                self._fail(call, BadMessage(f"The server {reason}, which was not declared."))
                return False
            question = self._new_question(kind, params)
            call.questions[key] = question
            self._asked[question.id] = _Asked(question, call, key=key)
            self._add(call, question)
        return True

    def _continue(self, call: ClientCall) -> None:
        """Send the answers of a round: with the request again, or to the task."""
        if call.task is None:
            self._send_call(call)
            return
        params = {"taskId": call.task, "inputResponses": call.responses}
        call.responses = {}
        self._request("tasks/update", params, _Expected("ignored"))

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
                # The server waits for the answer of its own request, though the call has ended.
                reason = "The call has ended."
                self._effects.append(
                    Send(wire.encode_error(asked.request, wire.INTERNAL_ERROR, reason))
                )
        call.questions = {}
        self._announce(call)

    # --- notifications --------------------------------------------------------------------------

    def _on_notification(self, method: str, params: Any, via: int | None) -> None:
        if params.__class__ is not dict:
            params = {}
        if method == "notifications/progress":
            self._on_progress(params)
        elif method == "notifications/message":
            level, logger = params.get("level"), params.get("logger")
            log = LogMessage(
                level if isinstance(level, str) else "info",
                logger if isinstance(logger, str) else None,
                params.get("data"),
            )
            self._deliver(log, self._call_of(via, guess=False))
        elif method in LISTS:
            self._effects.append(Notify(ListChanged(LISTS[method])))
        elif method == "notifications/resources/updated":
            if isinstance(params.get("uri"), str):
                self._effects.append(Notify(ResourceUpdated(params["uri"])))
        elif method == "notifications/cancelled":
            self._on_cancelled(params.get("requestId"))
        elif method == "notifications/elicitation/complete":
            if isinstance(params.get("elicitationId"), str):
                self._effects.append(Notify(ElicitationComplete(params["elicitationId"])))
        elif method == "notifications/tasks/status":
            for call in self._calls.values():
                if call.task is not None and call.task == params.get("taskId"):
                    self._add(call, TaskStatus(params))
                    break
        # Others belong to extensions, or acknowledge what was asked for.

    def _on_progress(self, params: dict[str, Any]) -> None:
        call = self._calls.get(params.get("progressToken"))  # type: ignore[arg-type]
        value: Any = params.get("progress")
        if call is None or (value.__class__ is not int and value.__class__ is not float):
            return
        total, message = params.get("total"), params.get("message")
        item = Progress(
            value,
            total if total.__class__ is int or total.__class__ is float else None,
            message if message.__class__ is str else None,
            params.get("_meta"),
        )
        call.add(item, self._size)
        if not call.is_announced:
            self._announce(call)

    def _on_cancelled(self, request_id: Any) -> None:
        for asked in self._asked.values():
            if asked.key is None and asked.request == request_id:
                del self._asked[asked.question.id]
                self._deliver(QuestionClosed(asked.question), asked.call)
                return
        if request_id == self._listening and self._listening is not None:
            self._expected.pop(self._listening, None)
            self._listening = None
            self._effects.append(ListenLater())

    # --- requests of the server -----------------------------------------------------------------

    def _on_request(self, message: wire.Request, via: int | None) -> None:
        method, params = message.method, message.params
        revision = self.revision
        if message.id is None:
            return
        if method == "ping" and (revision is None or revision.handshake):
            self._effects.append(Send(wire.encode_result(message.id, b"{}")))
            return
        kind = None
        if revision is not None and revision.handshake:
            kind = self._kind_of(method, params or {})
        if kind is None:
            self._reject(message.id, wire.METHOD_NOT_FOUND, f"Method not found: {method[:128]}")
        elif len(self._asked) >= MAX_QUESTIONS:
            reason = f"At most {MAX_QUESTIONS} requests may be open."
            self._reject(message.id, wire.INTERNAL_ERROR, reason)
        else:
            question = self._new_question(kind, params if isinstance(params, dict) else {})
            call = self._call_of(via, guess=True)
            self._asked[question.id] = _Asked(question, call, request=message.id)
            self._deliver(question, call)

    def _reject(self, request_id: wire.Id, code: int, text: str) -> None:
        revision = self.revision
        if self.is_http and revision is not None and not revision.handshake:
            self.junk("the server sent a request, which its revision does not allow")
        else:
            self._effects.append(Send(wire.encode_error(request_id, code, text)))

    def _kind_of(self, method: Any, params: Any) -> QuestionKind | None:
        """Return the kind of a request for input; None if this client has not declared it."""
        kind = QUESTIONS.get(method) if isinstance(method, str) else None
        if kind is None or not isinstance(params, dict):
            return None
        if kind == "form" and params.get("mode") == "url":
            kind = "url"
        return kind if kind in self.options.capabilities else None

    def _new_question(self, kind: QuestionKind, params: dict[str, Any]) -> Question:
        self._last_question += 1
        return Question(self._last_question, kind, params)

    def _call_of(self, via: int | None, *, guess: bool) -> ClientCall | None:
        """Return the call that a message belongs to, as far as that can be known.

        HTTP tells it by the stream, if the server uses the right one. On a pipe a message belongs
        to the only call in progress; with `guess`, to the last one.
        """
        if via is not None:
            call = self._calls.get(via)
            if call is not None:
                return call
        calls = self._calls
        if not calls or (not guess and (self.is_http or len(calls) > 1)):
            return None
        call = self._calls[next(reversed(self._calls))]
        return call if call.tracks_progress or guess else None

    def _close_server_questions(self) -> None:
        for asked in list(self._asked.values()):
            if asked.key is None:
                del self._asked[asked.question.id]
                self._deliver(QuestionClosed(asked.question), asked.call)

    # --- delivery -------------------------------------------------------------------------------

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
