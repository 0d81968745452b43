"""The `approvals` activation: what waits for somebody's answer, in one place.

Runs ask their own callers. Here whoever they belong to sees all that their runs have open, and
answers it, wherever the runs were begun. `permit` is asked by a program that wants to know
whether it may use a tool, and is answered here only: it must not ask its own caller, which waits
for it.

Nothing is stored. A question lives as long as the run that asks it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from activations.approvals.events import Answered, ApprovalPending, ApprovalSettled, Pending
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
from plexus.events import QuestionAsked
from plexus.rpc import wire
from plexus.runtime.elsewhere import RunElsewhere
from plexus.runtime.log import wall_ms
from plexus.runtime.question_feed import OpenQuestion, QuestionChanged, Questions
from plexus.runtime.run import Run

__all__ = ("Approvals", "OpenApproval")

#: The number of the one question that a call of `permit` is; those of other runs are digits.
PERMIT = "permit"
#: A list of what is pending ends after so many bytes; its first entry is whole in any case.
PAGE_BYTES = 1_000_000
#: The largest input that a permission repeats. Claude Code sets an answer of more than about
#: 25,000 tokens aside, and a view cuts long texts; it takes an empty input for the tool's own.
INPUT_BYTES = 50_000
#: The most of a message that is shown where the whole question is too large for an event.
BRIEF_CHARACTERS = 10_000


class OpenApproval(NamedTuple):
    """A question and the run that waits for its answer."""

    run: Run
    asked: OpenQuestion

    @property
    def approval_id(self) -> str:
        return f"{self.run.id}.{self.asked.event.request}"


class Approvals(Activation):
    """What your runs ask and wait for, and the answers to it."""

    namespace = "approvals"
    version = "1.0.0"

    def __init__(self) -> None:
        self._permits: dict[str, OpenApproval] = {}
        self._permit_questions = Questions()

    @method(title="What waits for an answer", read_only=True, open_world=False, control=True)
    async def pending(
        self, run: int | None = None, limit: int = 100, *, principal: Principal
    ) -> Pending:
        """List every question that a run of yours has open, the oldest first.

        Args:
            run: Only what this run asks.
            limit: At most so many.
        """
        found = [
            each for each in self.open_questions(principal) if run is None or each.run.id == run
        ]
        page: list[ApprovalPending] = []
        size = 0
        for each in found[: max(limit, 0)]:
            approval = _described(each)
            size += len(wire.encode_event(approval))
            if page and size > PAGE_BYTES:
                break
            page.append(approval)
        return Pending(page, len(found) - len(page))

    @method(title="Answer a question", control=True)
    async def respond(
        self,
        approval_id: str,
        approve: bool,
        message: str | None = None,
        answer: Any = None,
        *,
        principal: Principal,
    ) -> Answered:
        """Approve or refuse what a run of yours asks.

        Args:
            approval_id: Which question, as `pending` and `watch` have it.
            approve: Whether it may be. False declines a question that is not one of yes or no.
            message: Why not, for whoever asked.
            answer: What fits the question's schema, if it wants more than yes or no. For
                `permit`, the input that the tool is to be used with in place of its own.
        """
        if not approve and answer is not None:
            raise InvalidParams("an answer is for a question that is approved")
        found = self._find(approval_id, principal)
        # The scope of this method allows to call it; answering needs the scope of the run.
        self.plexus.check_control(found.run, principal)
        if isinstance(found.run, RunElsewhere):
            given = {"approve": approve, "message": message, "answer": answer}
            await found.run.forward("approvals.respond", {"approval_id": approval_id, **given})
        elif isinstance(found.asked.question, _Permission):
            decision = _decided(found.asked.question, approve, message, answer)
            self._forget(found)
            found.asked.answer.set_result(decision)
        else:
            _respond(found, approve, message, answer)
        return Answered(approval_id, approve)

    @method(title="Follow what waits", deadline_s=None, read_only=True, open_world=False)
    async def watch(
        self, *, principal: Principal
    ) -> AsyncIterator[ApprovalPending | ApprovalSettled]:
        """Tell of every question that is open, and then of each that opens and is settled.

        Who reads slowly is not told of a question that came and went meanwhile.
        """
        watcher = _Watcher(principal)
        stop = self.on_change(watcher.changed)
        try:
            for each in self.open_questions(principal):
                watcher.changed(each.run, each.asked.event.request, True)
            while True:
                for run, request in watcher.taken():
                    event = self._news(watcher, run, request)
                    if event is not None:
                        yield event
                await watcher.more()
        finally:
            stop()

    @method(title="Permit a tool", deadline_s=None, destructive=False, open_world=False)
    async def permit(
        self,
        tool_name: str,
        input: dict[str, Any],  # noqa: A002 - it is called so by those who call this
        tool_use_id: str | None = None,
        *,
        ctx: Context,
    ) -> str:
        """Ask whether a tool may be used, and wait until somebody answers with `respond`.

        The answer is JSON: `{"behavior":"allow","updatedInput":{...}}`, or
        `{"behavior":"deny","message":"..."}`, also if nobody answers in time. It is what Claude
        Code wants of its permission prompt tool.

        Args:
            tool_name: The tool.
            input: What it would be given.
            tool_use_id: The number of this use of it.
        """
        question = _Permission(tool_name, input, tool_use_id)
        limit_s = self.plexus.limits.answer_s
        run = self.plexus.runs.find(ctx.run_id, ctx.principal)
        event = QuestionAsked(
            request=PERMIT,
            kind=question.kind,
            message=question.message,
            schema=question.schema(),
            timeout_s=limit_s,
            details=question.details(),
        )
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        found = OpenApproval(run, OpenQuestion(question, future, event, time.monotonic(), None))
        self._permits[found.approval_id] = found
        self._permit_questions.notify(run, PERMIT, True)
        try:
            await asyncio.wait([future], timeout=limit_s)
        finally:
            self._forget(found)
        late = _denied(f"nobody answered within {limit_s:g} s")
        decision = future.result() if future.done() else late
        return wire.encode(decision).decode()

    def _forget(self, permit: OpenApproval) -> None:
        """A call of `permit` is answered, or waits no longer."""
        if self._permits.pop(permit.approval_id, None) is not None:
            self._permit_questions.notify(permit.run, PERMIT, False)

    # --- what is open -------------------------------------------------------------------------

    def on_change(self, changed: QuestionChanged) -> Callable[[], None]:
        """Be told at once of every question that opens or closes, also of what `permit` asks; call
        what is returned to be told no more."""
        both = (self.plexus.questions, self._permit_questions)
        stops = [questions.on_change(changed) for questions in both]

        def stop() -> None:
            for each in stops:
                each()

        return stop

    def asked(self, run: Run, request: str) -> OpenQuestion | None:
        """A question of a run, if it is open."""
        permit = self._permits.get(f"{run.id}.{request}")
        if permit is not None:
            return permit.asked
        return None if run.questions is None else run.questions.get(request)

    def open_questions(self, principal: Principal) -> list[OpenApproval]:
        """Everything that the runs of a principal have open, the oldest first."""
        asking = self.plexus.runs.list_active(principal)
        found = [
            OpenApproval(run, asked) for run in asking for asked in (run.questions or {}).values()
        ]
        found += [
            each
            for each in self._permits.values()
            # A run that is told to stop does not wait any more, though it has yet to find out.
            if each.run.principal == principal and each.run.cancel_reason is None
        ]
        return sorted(found, key=lambda each: each.asked.asked_at)

    def _find(self, approval_id: str, principal: Principal) -> OpenApproval:
        for each in self.open_questions(principal):
            if each.approval_id == approval_id:
                return each
        raise NotFound(
            f"nothing called {approval_id[:64]!r} waits for an answer; "
            "approvals.pending lists what does"
        )

    def _news(
        self, watcher: _Watcher, run: Run, request: str
    ) -> ApprovalPending | ApprovalSettled | None:
        """What a watcher is to be told of a question as it is now."""
        approval_id = f"{run.id}.{request}"
        asked = None if run.terminal is not None else self.asked(run, request)
        if asked is None:
            if approval_id not in watcher.told:
                return None
            watcher.told.remove(approval_id)
            return ApprovalSettled(approval_id, run.id, request)
        watcher.told.add(approval_id)
        approval = _described(OpenApproval(run, asked))
        if len(wire.encode_event(approval)) <= self.plexus.limits.event_bytes:
            return approval
        return _brief(approval)


class _Permission(Confirm):
    """Whether a tool may be used."""

    def __init__(self, tool_name: str, given: dict[str, Any], tool_use_id: str | None) -> None:
        super().__init__(f"May {tool_name} be used?")
        self.given = given
        self._details = {"tool_name": tool_name, "tool_use_id": tool_use_id, "input": given}

    def details(self) -> dict[str, Any]:
        return self._details


class _Watcher:
    """What one watcher knows, and what has changed since it looked.

    It holds no more than what is open and what it was told of, however long it does not look.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        #: The questions that it knows to be open.
        self.told: set[str] = set()
        self._changed: dict[tuple[Run, str], None] = {}
        self._woken = asyncio.Event()

    def changed(self, run: Run, request: str, is_open: bool) -> None:
        """A question has opened or closed."""
        if run.principal != self._principal:
            return
        if is_open or f"{run.id}.{request}" in self.told:
            self._changed[run, request] = None
            self._woken.set()
        else:
            self._changed.pop((run, request), None)  # it never knew of it

    def taken(self) -> list[tuple[Run, str]]:
        """What has changed, in that order; it is looked at from now on."""
        self._woken.clear()
        changed = list(self._changed)
        self._changed.clear()
        return changed

    async def more(self) -> None:
        """Wait until something has changed."""
        await self._woken.wait()


def _described(found: OpenApproval) -> ApprovalPending:
    run, asked = found
    event, asked_at = asked.event, asked.asked_at
    return ApprovalPending(
        approval_id=found.approval_id,
        run=run.id,
        method=run.method,
        request=event.request,
        kind=event.kind,
        message=event.message,
        schema=event.schema,
        asked_ms=wall_ms(asked_at),
        expires_ms=wall_ms(asked_at + event.timeout_s),
        options=event.options,
        details=event.details,
    )


def _brief(approval: ApprovalPending) -> ApprovalPending:
    """As much of a question as fits into an event whatever it asks."""
    return ApprovalPending(
        approval_id=approval.approval_id,
        run=approval.run,
        method=approval.method,
        request=approval.request,
        kind=approval.kind,
        message=approval.message[:BRIEF_CHARACTERS],
        schema={},
        asked_ms=approval.asked_ms,
        expires_ms=approval.expires_ms,
        cut=True,
    )


def _respond(found: OpenApproval, approve: bool, message: str | None, answer: Any) -> None:
    """Answer what a run asks; raises InvalidParams, and then the question stays open."""
    run, asked = found
    request, kind = asked.event.request, asked.event.kind
    if not approve:
        if kind == "confirm":
            run.answer(request, False)
        elif message is None:
            run.answer(request, None)
        else:
            run.refuse(request, Declined(f"declined: {message}"))
    elif isinstance(asked.question, Confirm):
        if answer not in (None, True):
            raise InvalidParams(f"a {kind} is approved or not, and takes no other answer")
        run.answer(request, True)
    elif answer is None:
        data = {"schema": asked.event.schema}
        raise InvalidParams(f"a {kind} needs an answer that fits its schema", data=data)
    else:
        run.answer(request, answer)


def _decided(
    question: _Permission, approve: bool, message: str | None, answer: Any
) -> dict[str, Any]:
    """What whoever asked to use a tool is told; raises InvalidParams."""
    if not approve:
        return _denied(message or "it was not allowed")
    if answer is not None and not isinstance(answer, dict):
        raise InvalidParams("the answer must be an object: the input that the tool is to have")
    given = question.given if answer is None else answer
    if len(wire.encode(given)) > INPUT_BYTES:
        if answer is not None:
            raise InvalidParams(
                f"an input in place of the tool's own has at most {INPUT_BYTES} bytes",
                data={"limit": INPUT_BYTES},
            )
        given = {}
    return {"behavior": "allow", "updatedInput": given}


def _denied(message: str) -> dict[str, Any]:
    return {"behavior": "deny", "message": message}
