"""The client's side of a connection, sans-IO: messages in, effects out.

A driver passes received messages to `receive`, performs what `take_effects` returns, and calls
`lost` when the connection ended. It owns the clock: deadlines, delays and retries are its part.

All that differs between revisions is read from their row.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from mcp_view.client.call import ClientCall
from mcp_view.client.connection import Expected
from mcp_view.client.effects import ListenLater, Notify, Poll
from mcp_view.client.errors import BadMessage, Cancelled, Lost, Refused, UpstreamError
from mcp_view.client.items import (
    ElicitationComplete,
    ListChanged,
    LogMessage,
    Progress,
    QuestionClosed,
    Reinitialized,
    ResourceUpdated,
    TaskStatus,
)
from mcp_view.client.negotiation import Negotiation
from plexus.rpc import wire

__all__ = ("McpClient",)

#: Rounds of `input_required` of one call. A server that never has enough is in a loop.
MAX_ROUNDS: Final = 32
#: Bounds of the interval at which a task is polled.
POLL_S: Final = (0.05, 30.0)
DEFAULT_POLL_S: Final = 1.0

#: Requests that the server may report progress of.
LONG_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
LISTS: Final[dict[str, Literal["tools", "resources", "prompts"]]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}
#: The states of a task that has ended.
ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class McpClient(Negotiation):
    """One connection to a server."""

    # --- for the driver and for callers -----------------------------------------------------------

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

    def poll(self, call: ClientCall) -> None:
        """Ask for the status of a task, after the delay of `Poll`."""
        if not call.is_done and call.task is not None and self._phase == "open":
            self._request("tasks/get", {"taskId": call.task}, Expected("task", call))

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

    def roots_changed(self) -> None:
        """Report that the roots have changed, to a server that could have asked for them."""
        if self.server is not None and self.server.revision.handshake:
            self._notify("notifications/roots/list_changed", None)

    # --- responses --------------------------------------------------------------------------------

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
                self._request("tasks/result", {"taskId": call.task}, Expected("task_result", call))
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

    # --- notifications ----------------------------------------------------------------------------

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
