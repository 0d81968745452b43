"""Tasks: runs whose client does not wait for the result. The id of a task is the number of its run.

Two forms exist: in the core of one revision, where the client requests a task, and as an extension
of a later revision, where the server decides. Both represent the same run with different fields.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from mcp_view.calls.call import Call
from mcp_view.catalogue import Entries
from mcp_view.elicitation import as_instructions, parse_answer, question_request
from mcp_view.errors import MISSING_CAPABILITY, ProtocolError, RunNotLoaded, protocol_error
from mcp_view.meta_keys import TASKS_EXTENSION
from mcp_view.replies import Answer, Reply
from mcp_view.revisions import Revision
from mcp_view.server import McpServer
from mcp_view.session import Caller, Peer
from plexus.errors import Denied, InvalidParams, NotFound, PlexusError, UnknownMethod
from plexus.events import Cancelled, ErrorEvent, Gap, QuestionAsked, Terminal
from plexus.rpc import wire
from plexus.rpc.effects import AnswerQuestion, CancelRun, Reported
from plexus.runtime.log import Batch, wall_ms
from plexus.runtime.run import Run
from plexus.runtime.runs import NotLoaded

__all__ = (
    "CancelTask",
    "TaskOptions",
    "UpdateTask",
    "cancel_task",
    "created_task",
    "find_task",
    "get_task",
    "list_tasks",
    "missing_extension",
    "retention_s",
    "task_options",
    "update_task",
)

#: How often a client should poll.
POLL_MS: Final = 500
#: The format of a run number.
DIGITS: Final = re.compile("[1-9][0-9]{0,15}", re.ASCII)
CANCELLED: Final = "cancelled by request"


class TaskOptions(NamedTuple):
    """Options of a task that a client requests."""

    #: Retention of the result in milliseconds; None for the server's maximum.
    ttl_ms: int | None


def task_options(value: Any) -> TaskOptions:
    """Parse the `task` parameter of a request. Raises ProtocolError."""
    ttl = value.get("ttl") if isinstance(value, dict) else value
    if not isinstance(value, dict) or not (ttl is None or (ttl.__class__ is int and ttl > 0)):
        reason = "task must be an object. Its ttl is a positive number of milliseconds."
        raise ProtocolError(wire.INVALID_PARAMS, reason)
    return TaskOptions(ttl)


def retention_s(server: McpServer, options: TaskOptions) -> float:
    """Return the retention of the run of a task in seconds."""
    longest_ms = int(server.hub.limits.finished_s * 1000)
    ttl_ms = longest_ms if options.ttl_ms is None else min(options.ttl_ms, longest_ms)
    return ttl_ms / 1000


def created_task(server: McpServer, run: Run, revision: Revision) -> bytes:
    """Return the answer to a call that became a task."""
    task = _task(run, revision)
    if revision.tasks == "core":
        return server.result(revision, b'"task":' + wire.encode(task))
    return server.result(revision, wire.encode(task)[1:-1], b"task")


def _task(run: Run, revision: Revision, status: str | None = None) -> dict[str, Any]:
    """Return a run as a task object, with this status or its own."""
    log = run.log
    changed = run.ended_at or (log.time_of(log.last) if log.last else run.started_at)
    core = revision.tasks == "core"
    status = status or _status(run, core=core)
    # A client shows this text, and a model reads the output of the task in progress.
    more = {"statusMessage": f"Output so far: run://{run.id}"} if status == "working" else {}
    return {
        "taskId": str(run.id),
        "status": status,
        **more,
        "createdAt": _iso(run.started_at),
        "lastUpdatedAt": _iso(changed),
        "ttl" if core else "ttlMs": round((run.retention_s or 0) * 1000),
        "pollInterval" if core else "pollIntervalMs": POLL_MS,
    }


def _status(run: Run, *, core: bool) -> str:
    if run.cancel_reason is not None and run.expired_after is None:
        return "cancelled"  # with any terminal
    terminal = run.terminal
    if terminal is None:
        return "input_required" if run.questions else "working"
    if isinstance(terminal, Cancelled):
        return "cancelled"
    if core:
        return "failed" if terminal.failed else "completed"
    # The extension reserves `failed` for protocol errors; a failed tool has a result.
    return "failed" if _is_internal_error(terminal) else "completed"


def _is_internal_error(terminal: Terminal) -> bool:
    return isinstance(terminal, ErrorEvent) and terminal.code == "internal"


def _iso(monotonic: float) -> str:
    import datetime

    at = datetime.datetime.fromtimestamp(wall_ms(monotonic) / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def missing_extension(message: str) -> ProtocolError:
    """Return the error for a client that has not declared the tasks extension."""
    required: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
    return ProtocolError(MISSING_CAPABILITY, message, {"requiredCapabilities": required})


def find_task(peer: Peer, params: dict[str, Any], caller: Caller, *, control: bool = False) -> Run:
    """Return the run of the task that a request names, to read it or to `control` it.

    Raises ProtocolError, and RunNotLoaded if the run store may have it.
    """
    if caller.revision.tasks == "extension" and not caller.supports_tasks:
        raise missing_extension(f"The client has not declared the extension {TASKS_EXTENSION}.")
    task = params.get("taskId")
    unknown = ProtocolError(
        wire.INVALID_PARAMS, "Unknown task. It may have expired.", {"taskId": task}
    )
    if not isinstance(task, str) or not DIGITS.fullmatch(task):
        raise unknown
    hub = peer.server.hub
    find = hub.find_run_to_control if control else hub.runs.find
    try:
        run = find(int(task), peer.principal)
        hub.resolve(run.method)
    except NotLoaded as missing:
        raise RunNotLoaded(missing.run_id, unknown) from None
    except (NotFound, UnknownMethod):
        raise unknown from None
    except Denied as error:
        raise protocol_error(error, caller.revision) from None
    if run.retention_s is None:
        raise unknown
    return run


# --- requests ---------------------------------------------------------------------------------


def get_task(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `tasks/get`."""
    run = find_task(peer, params, caller)
    server, revision = peer.server, caller.revision
    body = wire.encode(_task(run, revision))[1:-1]
    if revision.tasks == "extension":
        body += _details(peer, run, caller)
    return [Answer(server.result(revision, body))]


def _details(peer: Peer, run: Run, caller: Caller) -> bytes:
    """Return the fields that the extension adds: open questions, the result, or the error."""
    server, revision = peer.server, caller.revision
    status, terminal = _status(run, core=False), run.terminal
    if status == "input_required":
        return _questions(peer, run, caller)
    if terminal is None or status == "cancelled":
        return b""
    if isinstance(terminal, ErrorEvent) and _is_internal_error(terminal):
        error = {"code": wire.INTERNAL_ERROR, "message": terminal.message}
        return b',"error":' + wire.encode(error)
    spec = server.hub.resolve(run.method)
    reducer = server.new_reducer(revision, spec)
    log = run.log
    if log.first > 1:
        gap = Gap(1, log.first - 1)
        reducer.add_batch(Batch(1, [gap], [wire.encode_event(gap)]))
    reducer.add_batch(Batch(log.first, log.events, log.payloads))
    body = reducer.result(terminal, run.id)
    return b',"result":{%b%b}' % (body, server.structured_content(revision, spec, terminal))


def _questions(peer: Peer, run: Run, caller: Caller) -> bytes:
    """Return the open questions: as requests, or as instructions if the client has no form."""
    requests, rest = {}, []
    for event in _open_questions(run):
        known = event.kind in peer.question_kinds(caller)
        form = question_request(event, run.id, caller.revision) if known else None
        if form is None:
            rest.append(event)
        else:
            requests[_question_key(event)] = {"method": form[0], "params": form[1]}
    asked: dict[str, Any] = {"inputRequests": requests}
    if rest:
        asked["statusMessage"] = as_instructions(run, rest, peer.server.options.names)
    return b"," + wire.encode(asked)[1:-1]


def _open_questions(run: Run) -> list[QuestionAsked]:
    # Not from the log of the run, which drops old items while a question is still open.
    return [question.event for question in (run.questions or {}).values()]


def _question_key(event: QuestionAsked) -> str:
    return event.key or event.request


def update_task(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `tasks/update`: answers to the questions of a task."""
    run = find_task(peer, params, caller, control=True)
    given = params.get("inputResponses")
    if not isinstance(given, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "inputResponses must be an object.")
    answers = [(event, given.get(_question_key(event))) for event in _open_questions(run)]
    call = UpdateTask(peer, request_id, caller)
    return call.start_update(run.id, [each for each in answers if each[1] is not None])


class UpdateTask(Call):
    """Answers the questions of a task one by one, up to the first invalid answer."""

    def start_update(self, run: int, answers: list[tuple[QuestionAsked, Any]]) -> list[Reply]:
        """Answer questions of a run."""
        self._task = run
        self._answers = iter(answers)
        return self._answer_next()

    def _answer_next(self) -> list[Reply]:
        event, response = next(self._answers, (None, None))
        if event is None:
            return self.answer(self.peer.server.result(self.caller.revision, b""))
        try:
            answer = parse_answer(event, response, self.caller.revision)
        except InvalidParams as error:
            return self.refuse(ProtocolError(wire.INVALID_PARAMS, error.message))
        return [AnswerQuestion(self, self._task, event.request, answer)]

    def on_outcome(
        self,
        effect: Reported,  # noqa: ARG002 - only one is pending
        error: PlexusError | None,
    ) -> list[Reply]:
        """Send the next answer, or report why the last one was not given."""
        # A question that no longer exists was answered by another client.
        if error is None or error.code == "not_found":
            return self._answer_next()
        if isinstance(error, InvalidParams):
            return self.refuse(ProtocolError(wire.INVALID_PARAMS, error.message))
        return self.refuse(protocol_error(error, self.caller.revision))


def cancel_task(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `tasks/cancel`."""
    run = find_task(peer, params, caller, control=True)
    body = b""
    if caller.revision.tasks == "core":
        status = _status(run, core=True)
        if run.terminal is not None or status == "cancelled":
            raise ProtocolError(wire.INVALID_PARAMS, f"The task has already ended: {status}.")
        body = wire.encode(_task(run, caller.revision, "cancelled"))[1:-1]
    call = CancelTask(peer, request_id, caller)
    return call.start_cancel(run.id, peer.server.result(caller.revision, body))


class CancelTask(Call):
    """Cancels a task, which may be a run of another process."""

    def start_cancel(self, run: int, result: bytes) -> list[Reply]:
        """Cancel a run, and answer with this result."""
        self._result = result
        return [CancelRun(run, CANCELLED, self)]

    def on_outcome(
        self,
        effect: Reported,  # noqa: ARG002 - only one is pending
        error: PlexusError | None,
    ) -> list[Reply]:
        """Answer, or report why the run could not be cancelled."""
        if error is None or error.code == "not_found":  # it has ended meanwhile
            return self.answer(self._result)
        return self.refuse(protocol_error(error, self.caller.revision))


def list_tasks(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `tasks/list`."""
    try:
        found = peer.server.hub.runs.list_kept(peer.principal)
    except NotLoaded as missing:
        unavailable = ProtocolError(
            wire.INTERNAL_ERROR, "The tasks could not be loaded. Try again."
        )
        raise RunNotLoaded(missing.run_id, unavailable) from None
    kept = sorted(found, key=lambda run: str(run.id))
    entries = Entries(
        [str(run.id) for run in kept],
        [wire.encode(_task(run, caller.revision)) for run in kept],
    )
    return [Answer(peer.server.page(caller.revision, params, b'"tasks"', entries))]
