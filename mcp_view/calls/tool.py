"""Tools: their list, and a call of one, from the request to the result.

Every method of the hub is a tool. A client that gave a progress token is told of each step; the
result at the end is the same for everybody and holds everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_view.calls import task
from mcp_view.calls.call import RELATED_TASK, Call, trace_of
from mcp_view.elicitation import missing_capability
from mcp_view.progress import Counted, Steps
from mcp_view.reducer import Reducer, text_at_once
from mcp_view.results import structured_part, tool_body
from mcp_view.session import LEVELS, TASKS_EXTENSION, Caller
from mcp_view.tables.errors import MISSING_CAPABILITY, ProtocolError
from plexus.errors import PlexusError
from plexus.events import Detached, Event, Log, Progress, Terminal
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import AttachCall, Effect, LeaveCall, Remind, StartCall
from plexus.runtime.log import Batch
from plexus.runtime.run import Run

if TYPE_CHECKING:
    from mcp_view.protocol import McpConnection

__all__ = ("ToolCall", "call_tool", "list_tools", "task_result")


def list_tools(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tools/list`."""
    tools = view.server.catalogue.tools(caller.revision, view.principal)
    return view.answer_page(request, caller, batched, b'"tools"', tools)


def call_tool(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tools/call`."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    name = params.get("name")
    if name.__class__ is not str:
        raise ProtocolError(wire.INVALID_PARAMS, "tools/call needs the name of a tool")
    spec = view.server.tool(name)
    if spec is None:
        raise ProtocolError(wire.INVALID_PARAMS, f"Unknown tool: {name[:128]}")
    arguments = params.get("arguments")
    if arguments is None:
        arguments = {}
    elif arguments.__class__ is not dict:
        raise ProtocolError(wire.INVALID_PARAMS, "arguments must be an object")
    call = ToolCall(request.id, caller, batched, spec)
    if "task" in params or spec.background == "required":
        call.as_task = _task_of(params, spec, caller)
        if call.as_task is not None:
            trace = trace_of(params)
            start = StartCall(call, spec.name, arguments, owns=False, asks=caller.asks, trace=trace)
            return view.start(call, [start])
    meta = params.get("_meta")
    if meta.__class__ is dict:
        token = meta.get("progressToken")
        if token.__class__ is int or token.__class__ is str:
            _check_token(token, view.server.hub.limits.id_chars)
            call.watch_progress(view, token)
    return view.start(call, call.begin(view, spec.name, arguments, params))


def _check_token(token: int | str, limit: int) -> None:
    """Raise ProtocolError for a progress token that is too long to repeat in every step."""
    if isinstance(token, str) and len(token) > limit:
        reason = f"a progressToken may have at most {limit} characters"
        raise ProtocolError(wire.INVALID_PARAMS, reason, {"limit": limit})


def task_result(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tasks/result`: wait for the end of a task and give what the call would have given."""
    run = task.find_task(view, request, caller, steer=True)  # what it asks is asked here
    call = ToolCall(request.id, caller, batched, view.server.hub.resolve(run.method))
    call.related_task = True
    return view.start(call, [AttachCall(call, run.id)])


def _task_of(params: dict[str, Any], spec: MethodSpec, caller: Caller) -> task.Wanted | None:
    """How the call is to become a task at once; None if it is not. Raises ProtocolError."""
    if caller.revision.tasks == "no":
        return None
    if caller.revision.tasks == "extension":
        if spec.background != "required":
            return None
        if not caller.has_tasks:
            raise ProtocolError(
                MISSING_CAPABILITY,
                f"{spec.name} runs only as a task",
                {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
            )
        return task.Wanted(None)
    wanted = params.get("task")
    if wanted is None:
        if spec.background == "required":
            raise ProtocolError(wire.METHOD_NOT_FOUND, f"{spec.name} runs only as a task")
        return None
    if spec.background == "never":
        raise ProtocolError(wire.METHOD_NOT_FOUND, f"{spec.name} does not run as a task")
    return task.wanted_of(wanted)


class ToolCall(Call):
    """One call of a tool."""

    #: What the run has said so far; made when it takes more than one look.
    _reducer: Reducer | None = None
    _steps: Steps | None = None
    #: If the client is not to wait for the result, how the task is to be.
    as_task: task.Wanted | None = None

    def __init__(
        self, request_id: wire.Id, caller: Caller, batched: BatchReply | None, spec: MethodSpec
    ) -> None:
        super().__init__(request_id, caller, batched)
        self._spec = spec

    def watch_progress(self, view: McpConnection, token: str | int) -> None:
        """Tell the client of every step."""
        if not view.streaming:
            return
        options = view.server.options
        self._steps = Steps(
            token,
            self.caller.revision,
            view.server.monotonic(),
            rate=options.progress_rate,
            counts=Progress not in self._spec.events,
        )

    def on_started(self, view: McpConnection, run: Run) -> list[Effect]:
        """The run is there: say so if it is a task, and else wait for its end."""
        self.run = run
        self._recall_questions(run)
        if self.as_task is not None:
            return self._detach(view, run)
        options = view.server.options
        if options.progress_always and self._steps is None:
            self.watch_progress(view, str(run.id))
        if self._steps is not None:
            return [Remind(self, options.heartbeat_s)]
        return []

    def on_refused(self, view: McpConnection, error: PlexusError) -> list[Effect]:
        """Answer that the call did not begin.

        Bad arguments are a failed result in the revisions that have it so, and a run that does not
        exist is one in all of them: as a protocol error it would be a missing resource.
        """
        if error.code == "not_found" and not self.seen and self.as_task is None:
            return self.say(view, error.message, failed=True)
        if error.code == "invalid_params" and self.caller.revision.bad_arguments == "result":
            if self.seen or self.as_task is not None:
                return super().on_refused(view, error)
            return self.say(view, error.message, failed=True)
        return super().on_refused(view, error)

    def on_items(self, view: McpConnection, batch: Batch) -> list[Effect]:
        """Reduce what was said, tell the client of it, and answer at the end."""
        terminal = batch.terminal
        if self._reducer is None:
            if terminal is not None and self._steps is None:
                text = text_at_once(batch, view.server.result_chars(self._spec))
                if text is not None:
                    return self._answer_at_once(view, text, terminal)
            self._reducer = view.server.reducer(self.caller.revision, self._spec)
        reducer = self._reducer
        reducer.add_all(batch)
        effects: list[Effect] = []
        if reducer.asides or self._steps is not None or self.seen or self._asked:
            effects = self._tell(view, batch)
            if self.run is None:
                return effects  # it is answered for now
        if terminal is None:
            return effects
        if self.sent:
            effects += view.sending(self.withdrawn())
        try:
            result = self._result(view, terminal)
        except ProtocolError as error:
            return effects + view.refuse_call(self, error)
        return effects + view.answer_call(self, result)

    # --- on the way ---------------------------------------------------------------------------

    def _tell(self, view: McpConnection, batch: Batch) -> list[Effect]:
        """Log messages, progress, questions."""
        assert self._reducer is not None, "it has taken the items"
        asides, self._reducer.asides = self._reducer.asides, []
        effects: list[Effect] = []
        events, raws = batch.events, batch.payloads
        if self.seen >= batch.first:
            fresh = slice(self.seen + 1 - batch.first, None)
            events, raws = events[fresh], raws[fresh]
        if asides and view.streaming:
            logs = [e for e in events if isinstance(e, Log) and self._wants(e)]
            if logs:
                effects = view.sending([_log_frame(event, self._spec.name) for event in logs])
                told = [isinstance(e, Log) and self._wants(e) for e in events]
                raws = [raw for raw, was in zip(raws, told, strict=True) if not was]
                events = [event for event, was in zip(events, told, strict=True) if not was]
        if self._steps is not None:
            effects += self._step(view, self._steps, events, raws, batch.terminal)
        run = self.run
        if batch.terminal is not None or run is None:
            return effects
        if self.caller.has_tasks and any(event.__class__ is Detached for event in asides):
            self.as_task = task.Wanted(None)
            return effects + self._detach(view, run)
        if run.questions:
            effects += self.ask(view, asides)
        return effects

    def _wants(self, event: Log) -> bool:
        """Whether the client wants log messages of this level."""
        return event.level in LEVELS and LEVELS.index(event.level) >= self.caller.level

    def _step(
        self,
        view: McpConnection,
        steps: Steps,
        events: list[Event],
        raws: list[bytes],
        terminal: Terminal | None,
    ) -> list[Effect]:
        now = view.server.monotonic()
        if terminal is not None and events and events[-1] is terminal:
            events, raws = events[:-1], raws[:-1]  # the result says it
        if not events:
            return []
        if steps.unlimited:
            told = steps.every(events, raws, now)
            return view.sending_counted(told) if isinstance(told, Counted) else view.sending(told)
        steps.add(events)
        frame = steps.flush(now)
        if frame is not None:
            return view.sending([frame])
        if steps.reminded or terminal is not None:
            return []
        steps.reminded = True
        return [Remind(self, steps.wait_s(now) or 0.0)]

    def on_reminder(self, view: McpConnection) -> list[Effect]:
        """Send what was held back, or a sign of life if there is nothing."""
        steps, run = self._steps, self.run
        assert steps is not None, "only progress asks for reminders"
        assert run is not None, "progress is made by a run"
        steps.reminded = False
        now = view.server.monotonic()
        frame = steps.flush(now)
        heartbeat_s = view.server.options.heartbeat_s
        if frame is None:
            wait_s = steps.wait_s(now)
            if wait_s is not None:
                steps.reminded = True
                return [Remind(self, wait_s)]
            silent_s = now - steps.last_at
            if silent_s < heartbeat_s * 0.99:
                return [Remind(self, heartbeat_s - silent_s)]
            frame = steps.heartbeat(now, now - run.started_at)
        return [*view.sending([frame]), Remind(self, heartbeat_s)]

    def _detach(self, view: McpConnection, run: Run) -> list[Effect]:
        """Answer with the task that the run is, and leave it to itself."""
        assert self.as_task is not None, "somebody wants a task"
        self.run = None
        try:
            result = task.created(view.server, run, self.caller.revision, self.as_task)
        except PlexusError as error:
            run.cancel(error.message)
            return [LeaveCall(self), *super().on_refused(view, error)]
        return [LeaveCall(self), *view.answer_call(self, result)]

    # --- the result ---------------------------------------------------------------------------

    def _answer_at_once(self, view: McpConnection, text: bytes, terminal: Terminal) -> list[Effect]:
        """The result of a run that said all it had to say in one go, and only text."""
        body = b'"content":[{"type":"text","text":%b}],"isError":false' % text
        return view.answer_call(self, self._finished(view, body, terminal))

    def _result(self, view: McpConnection, terminal: Terminal) -> bytes:
        revision = self.caller.revision
        missing = None if revision.handshake else missing_capability(terminal)
        if missing is not None:
            raise missing
        assert self._reducer is not None, "it has taken the items"
        assert self.run is not None, "it has ended, so it was there"
        body = tool_body(self._reducer, terminal, self.run.id)
        return self._finished(view, body, terminal)

    def _finished(self, view: McpConnection, body: bytes, terminal: Terminal) -> bytes:
        """The result around what it says."""
        server, revision = view.server, self.caller.revision
        body += structured_part(server, revision, self._spec, terminal)
        return server.result(revision, body + self._related())

    def _related(self) -> bytes:
        """Which task the result is of, if it is to say so."""
        if not self.related_task:
            return b""
        assert self.run is not None, "a task is a run"
        return b',"_meta":' + wire.encode({RELATED_TASK: {"taskId": str(self.run.id)}})

    def say(self, view: McpConnection, text: str, *, failed: bool = False) -> list[Effect]:
        """Answer with these words and whatever the run has said."""
        text, _ = wire.shorten_error(text, None, view.server.hub.limits.error_bytes)
        blocks = [{"type": "text", "text": text}]
        if self.run is not None and self._reducer is not None:
            blocks = [*self._reducer.blocks(f"run://{self.run.id}"), *blocks]
        # A tool that has an output schema either gives what fits it or has failed.
        failed = failed or (self.caller.revision.structured and view.server.structured(self._spec))
        flag = b"true" if failed else b"false"
        body = b'"content":%b,"isError":%b%b' % (wire.encode(blocks), flag, self._related())
        self.run = None
        return view.answer_call(self, view.server.result(self.caller.revision, body))


def _log_frame(event: Log, logger: str) -> bytes:
    return wire.encode_notification(
        "notifications/message",
        {"level": event.level, "logger": logger, "data": event.message},
    )
