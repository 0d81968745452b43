"""Tasks: a run whose client does not wait. A run *is* a task; its number is the task's id.

Two forms exist: in the core of one revision, where a client asks for a task, and as an extension
of a later one, where the server decides. Both are the same run seen through different words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp_view.catalogue import Entries
from mcp_view.elicitation import answer_of, in_words, request_of
from mcp_view.results import structured_part, tool_body
from mcp_view.session import TASKS_EXTENSION, Caller
from mcp_view.tables.errors import MISSING_CAPABILITY, ProtocolError, protocol_error
from mcp_view.tables.revisions import Revision
from plexus.errors import Denied, InvalidParams, NotFound, UnknownMethod
from plexus.events import Cancelled, Error, Request, Terminal
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import Effect
from plexus.runtime.log import wall_ms
from plexus.runtime.run import Run

if TYPE_CHECKING:
    from mcp_view.protocol import McpConnection
    from mcp_view.server import McpServer

__all__ = (
    "Wanted",
    "cancel_task",
    "created",
    "find_task",
    "get_task",
    "list_tasks",
    "update_task",
    "wanted_of",
)

#: How often a client should ask.
POLL_MS: Final = 500
#: How the number of a run is written.
DIGITS: Final = re.compile("[1-9][0-9]{0,15}", re.ASCII)


class Wanted(NamedTuple):
    """How a task is to be."""

    #: How long its result is to be kept; None for as long as we like.
    ttl_ms: int | None


def wanted_of(value: Any) -> Wanted:
    """What a client says about the task it wants; raises ProtocolError."""
    ttl = value.get("ttl") if isinstance(value, dict) else value
    if not isinstance(value, dict) or not (ttl is None or (ttl.__class__ is int and ttl > 0)):
        raise ProtocolError(wire.INVALID_PARAMS, "task must be an object; its ttl is milliseconds")
    return Wanted(ttl)


def created(server: McpServer, run: Run, revision: Revision, wanted: Wanted) -> bytes:
    """The answer to a call that became a task; raises Busy if there are too many."""
    longest_ms = int(server.hub.limits.finished_s * 1000)
    ttl_ms = longest_ms if wanted.ttl_ms is None else min(wanted.ttl_ms, longest_ms)
    server.hub.runs.keep(run, ttl_ms / 1000)
    task = _task(run, revision)
    if revision.tasks == "core":
        return server.result(revision, b'"task":' + wire.encode(task))
    return server.result(revision, wire.encode(task)[1:-1], b"task")


def _task(run: Run, revision: Revision) -> dict[str, Any]:
    """A run in a task's words."""
    log = run.log
    changed = run.ended_at or (log.time_of(log.last) if log.last else run.started_at)
    core = revision.tasks == "core"
    return {
        "taskId": str(run.id),
        "status": _status(run, core=core),
        "createdAt": _iso(run.started_at),
        "lastUpdatedAt": _iso(changed),
        "ttl" if core else "ttlMs": round((run.retention_s or 0) * 1000),
        "pollInterval" if core else "pollIntervalMs": POLL_MS,
    }


def _status(run: Run, *, core: bool) -> str:
    if run.cancel_reason is not None and run.expired_after is None:
        return "cancelled"  # and stays so, whatever the method makes of it
    terminal = run.terminal
    if terminal is None:
        return "input_required" if run.questions else "working"
    if isinstance(terminal, Cancelled):
        return "cancelled"
    if core:
        return "failed" if terminal.failed else "completed"
    # The extension keeps `failed` for errors of the protocol; a tool that failed has a result.
    return "failed" if _defect(terminal) else "completed"


def _defect(terminal: Terminal) -> bool:
    return isinstance(terminal, Error) and terminal.code == "internal"


def _iso(monotonic: float) -> str:
    import datetime

    at = datetime.datetime.fromtimestamp(wall_ms(monotonic) / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def find_task(
    view: McpConnection, request: wire.Request, caller: Caller, *, steer: bool = False
) -> Run:
    """The task that a request names, to `steer` it if it is to be more than looked at; raises
    ProtocolError."""
    if caller.revision.tasks == "extension" and not caller.has_tasks:
        raise ProtocolError(
            MISSING_CAPABILITY,
            "the client has not declared the tasks extension",
            {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    task = params.get("taskId")
    unknown = ProtocolError(wire.INVALID_PARAMS, "there is no such task", {"taskId": task})
    if not isinstance(task, str) or not DIGITS.fullmatch(task):
        raise unknown
    try:
        run = view.steer(int(task)) if steer else view.find(int(task))
        view.server.hub.resolve(run.method)
    except (NotFound, UnknownMethod):
        raise unknown from None
    except Denied as error:
        raise protocol_error(error, caller.revision) from None
    if run.retention_s is None:
        raise unknown
    return run


# --- requests ---------------------------------------------------------------------------------


def get_task(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tasks/get`."""
    run = find_task(view, request, caller)
    server, revision = view.server, caller.revision
    body = wire.encode(_task(run, revision))[1:-1]
    if revision.tasks == "extension":
        body += _details(view, run, caller)
    return view.answer(request.id, server.result(revision, body), batched)


def _details(view: McpConnection, run: Run, caller: Caller) -> bytes:
    """What the extension says of a task beyond its state: what it asks, or how it ended."""
    server, revision = view.server, caller.revision
    status, terminal = _status(run, core=False), run.terminal
    if status == "input_required":
        return _asked(view, run, caller)
    if terminal is None or status == "cancelled":
        return b""
    if isinstance(terminal, Error) and _defect(terminal):
        error = {"code": wire.INTERNAL_ERROR, "message": terminal.message}
        return b',"error":' + wire.encode(error)
    spec = server.hub.resolve(run.method)
    reducer = server.reducer(revision, spec)
    reader = run.reader(0, lambda _: None, owner=False)
    while (batch := reader.take()).events:
        reducer.add_all(batch)
    body = tool_body(reducer, terminal, run.id)
    return b',"result":{%b%b}' % (body, structured_part(server, revision, spec, terminal))


def _asked(view: McpConnection, run: Run, caller: Caller) -> bytes:
    """What a task asks: as far as the client can be asked by requests, and the rest in words."""
    requests, rest = {}, []
    for event in _open_questions(run):
        known = event.kind in view.asks(caller)
        form = request_of(event, run.id, caller.revision) if known else None
        if form is None:
            rest.append(event)
        else:
            requests[_key(event)] = {"method": form[0], "params": form[1]}
    asked: dict[str, Any] = {"inputRequests": requests}
    if rest:
        asked["statusMessage"] = in_words(run, rest, view.server.options.names)
    return b"," + wire.encode(asked)[1:-1]


def _open_questions(run: Run) -> list[Request]:
    # From the run and not from its log, which forgets old items while a question is still open.
    return [question.event for question in (run.questions or {}).values()]


def _key(event: Request) -> str:
    return event.key or event.request


def update_task(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tasks/update`: answers to what a task asks."""
    run = find_task(view, request, caller, steer=True)
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    given = params.get("inputResponses")
    if not isinstance(given, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "inputResponses must be an object")
    for event in _open_questions(run):
        response = given.get(_key(event))
        if response is not None:
            try:
                run.answer(event.request, answer_of(event, response, caller.revision))
            except InvalidParams as error:
                raise ProtocolError(wire.INVALID_PARAMS, error.message) from None
    return view.answer(request.id, view.server.result(caller.revision, b""), batched)


def cancel_task(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tasks/cancel`."""
    run = find_task(view, request, caller, steer=True)
    revision = caller.revision
    if revision.tasks == "extension":
        run.cancel("cancelled by request")
        return view.answer(request.id, view.server.result(revision, b""), batched)
    status = _status(run, core=True)
    if run.terminal is not None or status == "cancelled":
        raise ProtocolError(wire.INVALID_PARAMS, f"the task has ended: {status}")
    run.cancel("cancelled by request")
    body = wire.encode(_task(run, revision))[1:-1]
    return view.answer(request.id, view.server.result(revision, body), batched)


def list_tasks(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`tasks/list`."""
    kept = sorted(view.kept(), key=lambda run: str(run.id))
    entries = Entries(
        [str(run.id) for run in kept],
        [wire.encode(_task(run, caller.revision)) for run in kept],
    )
    return view.answer_page(request, caller, batched, b'"tasks"', entries)
