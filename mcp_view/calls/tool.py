"""Tools: list and call.

Every method of the hub is a tool. A client that sent a progress token is notified of each step. The
result is the same for every client and contains the complete output.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_view.calls import task
from mcp_view.calls.call import RELATED_TASK, RUNNING, Call, State
from mcp_view.elicitation import missing_capability
from mcp_view.errors import ProtocolError, protocol_error
from mcp_view.progress import ProgressReporter
from mcp_view.reducer import Reducer, text_only_result
from mcp_view.replies import Answer, Notify, NotifyCounted, Reply
from mcp_view.server import McpServer
from mcp_view.session import LEVELS, Caller, Peer, trace_context
from plexus.errors import InvalidParams, PlexusError
from plexus.events import ContentResult, Detached, Event, Log, Progress, QuestionAnswered, Terminal
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.rpc.effects import (
    AttachCall,
    CancelRun,
    KeepRun,
    LeaveCall,
    Reported,
    SetTimer,
    StartCall,
)
from plexus.runtime.log import Batch
from plexus.runtime.run import Run

#: A run of this many seconds is long: a person may want to watch the next one.
LONG_S: Final = 10.0
#: The tool that calls any other.
CALL: Final = "plexus.call"

__all__ = ("ToolCall", "call_tool", "list_tools", "task_result")


def list_tools(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `tools/list`."""
    chosen = peer.session.tools or peer.server.options.tools
    tools = peer.server.catalogue.tools(caller.revision, peer.principal, chosen)
    return [Answer(peer.server.page(caller.revision, params, b'"tools"', tools))]


def call_tool(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `tools/call`."""
    name = params.get("name")
    if name.__class__ is not str:
        raise ProtocolError(wire.INVALID_PARAMS, "tools/call requires the name of a tool.")
    spec = peer.server.find_tool(name)
    if spec is None:
        raise ProtocolError(wire.INVALID_PARAMS, f"Unknown tool: {name[:128]}")
    arguments = params.get("arguments")
    if arguments is None:
        arguments = {}
    elif arguments.__class__ is not dict:
        raise ProtocolError(wire.INVALID_PARAMS, "arguments must be an object.")
    if spec.name == CALL:
        try:
            spec, arguments = _called(peer.server, arguments)
        except InvalidParams as error:  # a result, which models read and act on
            return ToolCall(peer, request_id, caller, spec).answer_text(error.message, failed=True)
    call = ToolCall(peer, request_id, caller, spec)
    if "task" in params or spec.background == "required":
        call.as_task = _requested_task(params, spec, caller)
        if call.as_task is not None:
            return [
                StartCall(
                    call,
                    spec.name,
                    arguments,
                    spec=spec,
                    owns=False,
                    question_kinds=caller.question_kinds,
                    trace=trace_context(params),
                    client=caller.client,
                )
            ]
    meta = params.get("_meta")
    if meta.__class__ is dict:
        token = meta.get("progressToken")
        if token.__class__ is int or token.__class__ is str:
            _check_token(token, peer.server.hub.limits.id_chars)
            call.report_progress(token)
    return call.start(spec, arguments, params)


def _called(server: McpServer, arguments: dict[str, Any]) -> tuple[MethodSpec, dict[str, Any]]:
    """Return the method that `plexus.call` names, and its arguments. Raises InvalidParams.

    The run is one of that method, so its progress, questions and result are those of a direct
    call. A person who allows `plexus.call` once in a host has not allowed what could do damage.
    """
    name, inner = arguments.get("method"), arguments.get("params")
    if not isinstance(name, str) or not (inner is None or isinstance(inner, dict)):
        raise InvalidParams(f'{CALL} needs {{"method": "namespace.name", "params": {{...}}}}.')
    spec = server.find_tool(name)
    if spec is None:
        raise InvalidParams(f"Unknown method {name[:128]!r}. Find methods with plexus.search.")
    if not server.options.call_all and _may_damage(spec):
        raise InvalidParams(
            f"{spec.name} may delete, overwrite or run commands, so {CALL} does not call it. Call "
            f"the tool {spec.name} itself: every method can be called by its name, listed or not. "
            'The operator can allow it here with plexus_call = "all", or for the tools of a mount '
            'with call = "all".'
        )
    return spec, inner or {}


def _may_damage(spec: MethodSpec) -> bool:
    """Whether a method may destroy something, as far as its author says, or runs commands."""
    hints = spec.hints
    if spec.allows_indirect_call:
        return False
    return spec.scope == "bash" or not (hints.read_only or hints.destructive is False)


def _check_token(token: int | str, limit: int) -> None:
    """Raise ProtocolError for a long progress token, because every notification repeats it."""
    if isinstance(token, str) and len(token) > limit:
        reason = f"The progressToken has {len(token)} characters. The maximum is {limit}."
        raise ProtocolError(wire.INVALID_PARAMS, reason, {"limit": limit})


def task_result(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `tasks/result`: wait for the end of a task and answer like the original call."""
    run = task.find_task(peer, params, caller, control=True)  # it also answers questions
    call = ToolCall(peer, request_id, caller, peer.server.hub.resolve(run.method))
    call.related_task = True
    return [AttachCall(call, run.id)]


def _requested_task(
    params: dict[str, Any], spec: MethodSpec, caller: Caller
) -> task.TaskOptions | None:
    """Return the options of the task that the call starts as; None if it is no task.

    Raises ProtocolError.
    """
    if caller.revision.tasks == "no":
        return None
    if caller.revision.tasks == "extension":
        if spec.background != "required":
            return None
        if not caller.supports_tasks:
            reason = f"{spec.name} runs only as a task, which needs the tasks extension."
            raise task.missing_extension(reason)
        return task.TaskOptions(None)
    requested = params.get("task")
    if requested is None:
        if spec.background == "required":
            reason = f"{spec.name} runs only as a task. Add a task to the request."
            raise ProtocolError(wire.METHOD_NOT_FOUND, reason)
        return None
    if spec.background == "never":
        raise ProtocolError(wire.METHOD_NOT_FOUND, f"{spec.name} cannot run as a task.")
    return task.task_options(requested)


class ToolCall(Call):
    """One call of a tool."""

    #: The reduced events of the run; created if they arrive in more than one batch.
    _reducer: Reducer | None = None
    #: Sends progress notifications; None if the client gets none.
    _progress: ProgressReporter | None = None
    #: The token that the client sent for them.
    progress_token: str | int | None = None
    #: The options of the task that the call starts as; None if the client waits for the result.
    as_task: task.TaskOptions | None = None

    def __init__(self, peer: Peer, request_id: wire.Id, caller: Caller, spec: MethodSpec) -> None:
        super().__init__(peer, request_id, caller)
        self._spec = spec

    def report_progress(self, token: str | int) -> None:
        """Send progress notifications with this token, if the connection can carry them."""
        if not self.peer.streaming:
            return
        self.progress_token = token
        server = self.peer.server
        self._progress = ProgressReporter(
            token,
            self.caller.revision,
            server.monotonic(),
            rate=server.options.progress_rate,
            counts=Progress not in self._spec.events,
        )

    def on_started(self, run: Run) -> list[Reply]:
        """Store the run, and create the task or set the timer for progress."""
        # Repeats the base class, because this is on the path of every tool call.
        self.state = RUNNING
        self.run = run
        if run.questions:
            self.load_open_questions(run.questions)
        if self.as_task is not None:
            return self._keep(self.as_task)
        options = self.peer.server.options
        if options.progress_always and self._progress is None:
            self.report_progress(str(run.id))
        if self._progress is not None:
            return [SetTimer(self, options.heartbeat_s)]
        return []

    def on_refused(self, error: PlexusError) -> list[Reply]:
        """Answer with the error that prevented the run.

        Invalid arguments are a failed result in the revisions that define it so. An unknown run is
        a failed result in all of them: as a protocol error it would mean an unknown resource.
        """
        if error.code == "not_found" and not self.seen and self.as_task is None:
            return self.answer_text(error.message, failed=True)
        if error.code == "invalid_params" and self.caller.revision.bad_arguments == "result":
            if self.seen or self.as_task is not None:
                return super().on_refused(error)
            return self.answer_text(_every_fault(error), failed=True)
        return super().on_refused(error)

    def on_items(self, batch: Batch) -> list[Reply]:
        """Reduce the events, send notifications, and answer after the terminal."""
        terminal = batch.terminal
        server = self.peer.server
        page_note = None if terminal is None else self._page_note()
        if self._reducer is None:
            if terminal is not None and self._progress is None and page_note is None:
                text = text_only_result(batch, server.result_chars(self._spec))
                if text is not None:
                    return self._answer_with_text(text, terminal)
            self._reducer = server.new_reducer(self.caller.revision, self._spec)
        reducer = self._reducer
        reducer.add_batch(batch)
        if page_note is not None:
            reducer.add_side_text(page_note)
        replies: list[Reply] = []
        if reducer.side_events or self._progress is not None or self.seen or self._questions:
            replies = self._notify(reducer, batch)
        if terminal is None:
            return replies
        if self.client_requests:
            replies += self.withdraw_requests()
        try:
            result = self._result(reducer, terminal)
        except ProtocolError as error:
            return replies + self.refuse(error)
        return replies + self.answer(result)

    # --- notifications ------------------------------------------------------------------------

    def _notify(self, reducer: Reducer, batch: Batch) -> list[Reply]:
        """Return log messages, progress and questions for these items."""
        side_events, reducer.side_events = reducer.side_events, []
        replies: list[Reply] = []
        events, payloads = batch.events, batch.payloads
        if self.seen >= batch.first:
            fresh = slice(self.seen + 1 - batch.first, None)
            events, payloads = events[fresh], payloads[fresh]
        if side_events and self.peer.streaming:
            logs = [e for e in events if isinstance(e, Log) and self._sends_log(e)]
            if logs:
                replies = [Notify([_log_message(event, self._spec.name) for event in logs])]
                sent = [isinstance(e, Log) and self._sends_log(e) for e in events]
                payloads = [raw for raw, was in zip(payloads, sent, strict=True) if not was]
                events = [event for event, was in zip(events, sent, strict=True) if not was]
        if self._progress is not None:
            replies += self._report(self._progress, events, payloads, batch.terminal)
        if batch.terminal is not None:
            return replies
        if self.caller.supports_tasks and any(event.__class__ is Detached for event in side_events):
            return replies + self._keep(task.TaskOptions(None))
        if self.run.questions:
            replies += self.ask(side_events)
        return replies

    def _sends_log(self, event: Log) -> bool:
        """Whether the client receives log messages of this level."""
        return event.level in LEVELS and LEVELS.index(event.level) >= self.caller.level

    def _report(
        self,
        progress: ProgressReporter,
        events: list[Event],
        payloads: list[bytes],
        terminal: Terminal | None,
    ) -> list[Reply]:
        now = self.peer.server.monotonic()
        if terminal is not None and events and events[-1] is terminal:
            events, payloads = events[:-1], payloads[:-1]  # it is part of the result
        if QuestionAnswered in map(type, events):  # a record, not progress
            kept = [each for each in enumerate(events) if each[1].__class__ is not QuestionAnswered]
            events, payloads = [event for _, event in kept], [payloads[at] for at, _ in kept]
        if not events:
            return []
        if progress.unlimited:
            messages = progress.report_each(events, payloads, now)
            return [messages if isinstance(messages, NotifyCounted) else Notify(messages)]
        progress.add(events)
        message = progress.flush(now)
        if message is not None:
            return [Notify([message])]
        if progress.timer_set or terminal is not None:
            return []
        progress.timer_set = True
        return [SetTimer(self, progress.wait_s(now) or 0.0)]

    def on_timer(self) -> list[Reply]:
        """Send the pending progress, or a heartbeat if nothing is pending."""
        progress, server = self._progress, self.peer.server
        assert progress is not None, "only progress sets timers"
        progress.timer_set = False
        now = server.monotonic()
        message = progress.flush(now)
        heartbeat_s = server.options.heartbeat_s
        if message is None:
            wait_s = progress.wait_s(now)
            if wait_s is not None:
                progress.timer_set = True
                return [SetTimer(self, wait_s)]
            silent_s = now - progress.last_at
            if silent_s < heartbeat_s * 0.99:
                return [SetTimer(self, heartbeat_s - silent_s)]
            message = progress.heartbeat(now, now - self.run.started_at)
        return [Notify([message]), SetTimer(self, heartbeat_s)]

    def _page_note(self) -> str | None:
        """Return where a person can watch runs, in the first result of a long one; None later."""
        server, session = self.peer.server, self.peer.session
        if not session.names_page or server.monotonic() - self.run.started_at < LONG_S:
            return None
        page = server.hub.page_url  # it reads files, which doubled the time of short calls
        if page is None:
            return None
        session.names_page = False
        return f"[A person can watch and stop this and other runs at {page}#/runs/{self.run.id}]"

    # --- tasks --------------------------------------------------------------------------------

    def _keep(self, options: task.TaskOptions) -> list[Reply]:
        """Retain the run, so that the call can be answered with a task."""
        self.state = State.KEEPING
        return [KeepRun(self, self.run.id, task.retention_s(self.peer.server, options))]

    def on_outcome(self, effect: Reported, error: PlexusError | None) -> list[Reply]:
        """Answer with the task once its run is retained. Cancel a run that cannot be retained."""
        if not isinstance(effect, KeepRun):
            return super().on_outcome(effect, error)
        revision = self.caller.revision
        if error is not None:
            failure = protocol_error(error, revision)
            cancel = CancelRun(self.run.id, error.message)
            return [cancel, LeaveCall(self), *self.refuse(failure)]
        result = task.created_task(self.peer.server, self.run, revision)
        return [LeaveCall(self), *self.answer(result)]

    # --- the result ---------------------------------------------------------------------------

    def _answer_with_text(self, text: bytes, terminal: Terminal) -> list[Reply]:
        """Answer for a run whose only batch contains nothing but text."""
        body = b'"content":[{"type":"text","text":%b}],"isError":false' % text
        return self.answer(self._encode_result(body, terminal))

    def _result(self, reducer: Reducer, terminal: Terminal) -> bytes:
        missing = missing_capability(terminal, self.caller.revision)
        if missing is not None:
            raise missing
        return self._encode_result(reducer.result(terminal, self.run.id), terminal)

    def _encode_result(self, body: bytes, terminal: Terminal) -> bytes:
        """Encode the result with this content."""
        server, revision = self.peer.server, self.caller.revision
        body += server.structured_content(revision, self._spec, terminal)
        meta = self._related_task_meta()
        if isinstance(terminal, ContentResult) and terminal.meta:
            meta = terminal.meta | meta
        return server.result(revision, body, meta=meta)

    def _related_task_meta(self) -> dict[str, Any]:
        """Return the `_meta` field that names the task of the result, if it has one."""
        return {RELATED_TASK: {"taskId": str(self.run.id)}} if self.related_task else {}

    def answer_text(self, text: str, *, failed: bool = False) -> list[Reply]:
        """End the call with the output of the run so far and this text."""
        server, revision = self.peer.server, self.caller.revision
        text, _ = wire.shorten_error(text, None, server.hub.limits.error_bytes)
        blocks = [{"type": "text", "text": text}]
        related: dict[str, Any] = {}
        if self.state is not State.STARTING:
            related = self._related_task_meta()
            if self._reducer is not None:
                blocks = [*self._reducer.blocks(f"run://{self.run.id}"), *blocks]
        # A tool with an output schema either returns a matching value or has failed.
        failed = failed or (revision.structured and server.has_output_schema(self._spec))
        flag = b"true" if failed else b"false"
        body = b'"content":%b,"isError":%b' % (wire.encode(blocks), flag)
        return self.answer(server.result(revision, body, meta=related))


def _every_fault(error: PlexusError) -> str:
    """Return the message of a refusal, and all faults of the arguments if there are several.

    Models see the text only, and would otherwise correct one argument at each attempt.
    """
    data = error.data if isinstance(error.data, dict) else {}
    faults = data.get("errors", [])
    if len(faults) < 2:
        return error.message
    lines = [f"- {each['at']}: {each['fault']}" for each in faults]
    more = [f"- and {data['more']} more"] if "more" in data else []
    return "\n".join([error.message, *lines, *more])


def _log_message(event: Log, logger: str) -> bytes:
    return wire.encode_notification(
        "notifications/message",
        {"level": event.level, "logger": logger, "data": event.message},
    )
