"""The `approvals` activation: all open questions of a principal's runs, in one place.

A run asks its own caller. Here the owner of the runs sees and answers all their open questions,
wherever the runs were started. `permit` is called by a program that needs permission to use a tool.
Its question is answered only here: it must not ask its own caller, which is waiting for it.

A question exists as long as its run waits for the answer. Questions of runs of other processes,
those of `permit` included, are read from the run store, and answered in those processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from activations.approvals.events import (
    Answered,
    ApprovalClosed,
    ApprovalPending,
    ApprovalSettled,
    Closed,
    Pending,
)
from plexus import (
    Activation,
    Confirm,
    Context,
    Declined,
    InvalidParams,
    NotFound,
    Principal,
    method,
)
from plexus.events import QuestionAnswered, QuestionAsked
from plexus.rpc import wire
from plexus.runtime.closed_questions import MAX_ENTRIES, ClosedQuestion
from plexus.runtime.history import recorded_arguments
from plexus.runtime.log import wall_ms
from plexus.runtime.question_feed import OpenQuestion, answered_event
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.run_watch import refresh_runs
from plexus.runtime.stored_run import StoredRun

__all__ = ("Approvals", "OpenApproval")

#: The request id of the question of `permit`; the request ids of other runs are digits.
PERMIT = "permit"
#: Maximum size of a list of questions; the first entry is always included in full.
PAGE_BYTES = 1_000_000
#: Maximum size of the input in a permission. Claude Code discards results of more than about 25,000
#: tokens, and views shorten long texts. It treats an empty input as the original input.
INPUT_BYTES = 50_000
#: Maximum characters of the message if the question is too large for an event.
CUT_CHARACTERS = 10_000


class OpenApproval(NamedTuple):
    """An open question and its run."""

    run: Run
    open_question: OpenQuestion

    @property
    def approval_id(self) -> str:
        return f"{self.run.id}.{self.open_question.event.request}"


class Approvals(Activation):
    """Open questions of your runs, and their answers."""

    namespace = "approvals"
    audience = "client"
    version = "1.0.0"

    @method(title="List open questions", read_only=True, open_world=False, control=True)
    async def pending(
        self, run: int | None = None, limit: int = 100, *, principal: Principal
    ) -> Pending:
        """List the open questions of your runs, oldest first. Answer with approvals.respond.

        Args:
            run: Only questions of this run.
            limit: Maximum number of questions.
        """
        await refresh_runs(self.plexus.runs)
        found = [
            each for each in self.open_questions(principal) if run is None or each.run.id == run
        ]
        page: list[ApprovalPending] = []
        size = 0
        for each in found[: max(limit, 0)]:
            approval = self._pending_event(each)
            size += len(wire.encode_event(approval))
            if page and size > PAGE_BYTES:
                break
            page.append(approval)
        return Pending(page, len(found) - len(page))

    @method(title="List closed questions", read_only=True, open_world=False, control=True)
    async def closed(
        self, limit: Annotated[int, Ge(1), Le(MAX_ENTRIES)] = 50, *, principal: Principal
    ) -> Closed:
        """List the last questions of your runs that were closed, newest first.

        It has those that runs of this server have asked since its start. The record of a run has
        its questions for longer.

        Args:
            limit: Maximum number of questions, 1 to 500.
        """
        found = self.plexus.questions.closed.latest(principal, limit)
        return Closed([_closed_approval(entry) for entry in found])

    @method(title="Approve or decline", control=True, needs_person=True)
    async def respond(
        self,
        approval_id: str,
        approve: bool,
        message: str | None = None,
        answer: Any = None,
        *,
        ctx: Context,
    ) -> Answered:
        """Approve, decline or answer an open question of one of your runs.

        Args:
            approval_id: Id of the question.
            approve: true to approve or answer, false to decline.
            message: Reason for declining.
            answer: A value that matches the question's schema. For `permit`: a replacement of the
                tool's input.
        """
        if not approve and answer is not None:
            raise InvalidParams(
                "answer requires approve to be true; use message to give a reason for declining"
            )
        found = await self._fetch(approval_id, ctx.principal)
        run, open_question = found
        # This method's scope allows the call; answering requires the scope of the run.
        self.plexus.check_control(run, ctx.principal)
        if isinstance(run, StoredRun):
            response = {"approve": approve, "message": message, "answer": answer}
            params = {"approval_id": approval_id, **response}
            await run.request("approvals.respond", params, ctx.client)
            run.forget_question(open_question.event.request)
        elif isinstance(open_question.question, _Permission):
            decision = _decision(open_question.question, approve, message, answer)
            outcome = True if approve else None
            _append(run, answered_event(open_question.event, outcome, outcome, ctx.client))
            self.plexus.questions.close_separate(run, PERMIT)
            open_question.answer.set_result(decision)
        else:
            _answer(found, approve, message, answer, ctx.client)
        return Answered(approval_id, approve)

    @method(title="Watch open questions", deadline_s=None, read_only=True, open_world=False)
    async def watch(
        self, *, principal: Principal
    ) -> AsyncIterator[ApprovalPending | ApprovalSettled]:
        """Stream the open questions of your runs, then every question that opens or closes.

        A slow reader misses questions that were closed meanwhile.
        """
        watcher = _Watcher(principal)
        with ExitStack() as listeners:
            listeners.callback(self.plexus.questions.on_change(watcher.on_change))
            runs = self.plexus.runs
            if runs.stored is not None:
                # It opens and closes the questions of other processes, which notifies the watcher.
                listeners.enter_context(runs.stored.watch(_ignore))
                await refresh_runs(runs)
            for each in self.open_questions(principal):
                watcher.on_change(each.run, each.open_question.event.request, True)
            while True:
                for run, request in watcher.take_changes():
                    event = self._event(watcher, run, request)
                    if event is not None:
                        yield event
                await watcher.wait()

    @method(
        title="Request tool permission",
        deadline_s=None,
        destructive=False,
        open_world=False,
        audience="model",
    )
    async def permit(
        self,
        tool_name: str,
        input: dict[str, Any],  # noqa: A002 - the name on the wire
        tool_use_id: str | None = None,
        *,
        ctx: Context,
    ) -> str:
        """Request permission to use a tool and wait for the answer through approvals.respond.

        Use it as the permission prompt tool of Claude Code. Returns JSON:
        `{"behavior":"allow","updatedInput":{...}}`, or `{"behavior":"deny","message":"..."}`, also
        after a timeout.

        Args:
            tool_name: Name of the tool.
            input: Input of the tool.
            tool_use_id: Id of the tool call.
        """
        question = _Permission(tool_name, input, tool_use_id)
        timeout_s = self.plexus.limits.answer_s
        run = self.plexus.runs.find(ctx.run_id, ctx.principal)
        event = QuestionAsked(
            request=PERMIT,
            kind=question.kind,
            message=question.message,
            schema=question.schema(),
            timeout_s=timeout_s,
            details=question.details(),
        )
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        questions = self.plexus.questions
        asked = OpenQuestion(question, future, event, time.monotonic(), questions.notify)
        questions.open_separate(run, PERMIT, asked)
        try:
            await asyncio.wait([future], timeout=timeout_s)
            if not future.done():
                _append(run, QuestionAnswered(PERMIT, "expired"))
        finally:
            questions.close_separate(run, PERMIT)
        timed_out = _denied(f"no answer within {timeout_s:g} s")
        decision = future.result() if future.done() else timed_out
        return wire.encode(decision).decode()

    # --- open questions -----------------------------------------------------------------------

    def open_questions(self, principal: Principal) -> list[OpenApproval]:
        """Return the open questions of a principal's runs, oldest first."""
        found = []
        separate = self.plexus.questions.separate
        for run in self.plexus.runs.list_active(principal):
            found += [OpenApproval(run, question) for question in (run.questions or {}).values()]
            permit = separate.get((run.id, PERMIT))
            # A cancelled run no longer waits, even if it has not ended yet.
            if permit is not None and run.cancel_reason is None:
                found.append(OpenApproval(run, permit))
        return sorted(found, key=lambda each: each.open_question.asked_at)

    async def _fetch(self, approval_id: str, principal: Principal) -> OpenApproval:
        """Return an open question. Raises NotFound, and the errors of the run store."""
        found = self._find(approval_id, principal)
        stored = self.plexus.runs.stored
        if found is None and stored is not None:
            await stored.refresh()
            found = self._find(approval_id, principal)
        if found is None:
            raise NotFound(
                f"no open question {approval_id[:64]!r}; list open questions with approvals.pending"
            )
        return found

    def _find(self, approval_id: str, principal: Principal) -> OpenApproval | None:
        questions = self.open_questions(principal)
        return next((each for each in questions if each.approval_id == approval_id), None)

    def _event(
        self, watcher: _Watcher, run: Run, request: str
    ) -> ApprovalPending | ApprovalSettled | None:
        """Return the event that reports the current state of a question to a watcher."""
        approval_id = f"{run.id}.{request}"
        find = self.plexus.questions.find
        open_question = None if run.terminal is not None else find(run, request)
        if open_question is None:
            if approval_id not in watcher.reported:
                return None
            watcher.reported.remove(approval_id)
            return ApprovalSettled(approval_id, run.id, request)
        watcher.reported.add(approval_id)
        approval = self._pending_event(OpenApproval(run, open_question))
        if len(wire.encode_event(approval)) <= self.plexus.limits.event_bytes:
            return approval
        return _cut(approval)

    def _pending_event(self, found: OpenApproval) -> ApprovalPending:
        run, open_question = found
        event = open_question.event
        if isinstance(run, StoredRun):
            arguments, summary = run.record.arguments, run.record.summary
        else:
            assert isinstance(run, LocalRun), "a run is local or stored"
            arguments, summary = self.plexus.runs.describe_call(run)
        return ApprovalPending(
            approval_id=found.approval_id,
            run=run.id,
            method=run.method,
            request=event.request,
            kind=event.kind,
            message=event.message,
            schema=event.schema,
            asked_ms=wall_ms(open_question.asked_at),
            expires_ms=wall_ms(_expires_at(run, open_question)),
            options=event.options,
            details=event.details,
            arguments=recorded_arguments(arguments),
            summary=summary or None,
            client=run.client,
        )


class _Permission(Confirm):
    """The question whether a tool may be used."""

    def __init__(self, tool_name: str, tool_input: dict[str, Any], tool_use_id: str | None) -> None:
        super().__init__(f"Allow {tool_name}?")
        self.input = tool_input
        self._details = {"tool_name": tool_name, "tool_use_id": tool_use_id, "input": tool_input}

    def details(self) -> dict[str, Any]:
        return self._details


class _Watcher:
    """The questions reported to a watcher, and the changes since its last read.

    Its size is bounded by the open and the reported questions, however slowly it reads.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        #: The ids of the questions that were reported as open.
        self.reported: set[str] = set()
        self._changed: dict[tuple[Run, str], None] = {}
        self._wake = asyncio.Event()

    def on_change(self, run: Run, request: str, is_open: bool) -> None:
        """Note that a question has opened or closed."""
        if run.principal != self._principal:
            return
        if is_open or f"{run.id}.{request}" in self.reported:
            self._changed[run, request] = None
            self._wake.set()
        else:
            self._changed.pop((run, request), None)  # it was never reported

    def take_changes(self) -> list[tuple[Run, str]]:
        """Return and clear the changed questions, in order."""
        self._wake.clear()
        changed = list(self._changed)
        self._changed.clear()
        return changed

    async def wait(self) -> None:
        """Wait for a change."""
        await self._wake.wait()


def _ignore() -> None:
    """Listener that does nothing."""


def _expires_at(run: Run, open_question: OpenQuestion) -> float:
    """Return when a question closes without an answer, on the monotonic clock."""
    expires_at = open_question.asked_at + open_question.event.timeout_s
    if isinstance(run, LocalRun) and run.deadline is not None:
        return min(expires_at, run.deadline)
    return expires_at


def _cut(approval: ApprovalPending) -> ApprovalPending:
    """Return a question without the parts that may be too large for an event."""
    return ApprovalPending(
        approval_id=approval.approval_id,
        run=approval.run,
        method=approval.method,
        request=approval.request,
        kind=approval.kind,
        message=approval.message[:CUT_CHARACTERS],
        schema={},
        asked_ms=approval.asked_ms,
        expires_ms=approval.expires_ms,
        summary=approval.summary,
        client=approval.client,
        cut=True,
    )


def _append(run: Run, event: QuestionAnswered) -> None:
    assert isinstance(run, LocalRun), "its question is open in this process"
    run.append(event)


def _answer(
    found: OpenApproval, approve: bool, message: str | None, answer: Any, by: str | None
) -> None:
    """Answer a question of a run. Raises InvalidParams and leaves the question open."""
    run, open_question = found
    request, kind = open_question.event.request, open_question.event.kind
    if not approve:
        if kind == "confirm":
            run.answer(request, False, by)
        elif message is None:
            run.answer(request, None, by)
        else:
            run.refuse(request, Declined(f"declined: {message}"), by)
    elif isinstance(open_question.question, Confirm):
        if answer not in (None, True):
            raise InvalidParams(f"a {kind} question is approved or declined; omit answer")
        run.answer(request, True, by)
    elif answer is None and open_question.question.approval is not None:
        run.answer(request, open_question.question.approval, by)
    elif answer is None:
        data = {"schema": open_question.event.schema}
        raise InvalidParams(f"a {kind} question needs an answer that matches its schema", data=data)
    else:
        run.answer(request, answer, by)


def _decision(
    question: _Permission, approve: bool, message: str | None, answer: Any
) -> dict[str, Any]:
    """Return the result of `permit`. Raises InvalidParams."""
    if not approve:
        return _denied(message or "permission was denied")
    if answer is not None and not isinstance(answer, dict):
        raise InvalidParams("the answer must be an object: the new input of the tool")
    tool_input = question.input if answer is None else answer
    if len(wire.encode(tool_input)) > INPUT_BYTES:
        if answer is not None:
            raise InvalidParams(
                f"the new input exceeds the limit of {INPUT_BYTES} bytes",
                data={"limit": INPUT_BYTES},
            )
        tool_input = {}
    return {"behavior": "allow", "updatedInput": tool_input}


def _denied(message: str) -> dict[str, Any]:
    return {"behavior": "deny", "message": message}


def _closed_approval(closed: ClosedQuestion) -> ApprovalClosed:
    answered = closed.answered
    return ApprovalClosed(
        approval_id=f"{closed.run}.{closed.request}",
        run=closed.run,
        method=closed.method,
        request=closed.request,
        message=closed.message,
        outcome="closed" if answered is None else answered.outcome,
        closed_ms=closed.closed_ms,
        answer=None if answered is None else answered.answer,
        by=None if answered is None else answered.by,
    )
