"""A request that leads to a run, from the client's request to its answer.

Every such request is answered when its run has ended; what differs is what the answer is made
of, and that is what subclasses say. Asking the client in mid-run is the same for all of them and
lives here: by a request of ours where there is a handshake, by an answer that is no answer yet
where there is none, and by words where the client can do neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_view.elicitation import answer_of, in_words, missing_capability, request_of
from mcp_view.request_state import RequestState, open_state, seal_state
from mcp_view.session import Caller
from mcp_view.tables.errors import ProtocolError, protocol_error
from plexus.errors import Declined, Denied, InvalidParams, PlexusError
from plexus.events import Cancelled, Error, Event, Request, Terminal
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import AttachCall, Effect, LeaveCall, StartCall
from plexus.runtime.log import Batch
from plexus.runtime.run import Run

if TYPE_CHECKING:  # the view makes calls; here it is only named
    from mcp_view.protocol import McpConnection

__all__ = ("RELATED_TASK", "BufferedCall", "Call", "digest_of", "trace_of")

#: What names the task that a message is about.
RELATED_TASK = "io.modelcontextprotocol/related-task"
#: The keys of `_meta` that are called as W3C's headers of trace context are.
TRACE_KEYS = ("traceparent", "tracestate")
#: A longer value is none: W3C asks for 512 characters to be passed on.
TRACE_CHARS = 1024


class Call:
    """One request of the client and the run that answers it."""

    # What most calls never need is left on the class, because one of these is made for each.

    run: Run | None = None
    #: Every question the run has put so far, by its number.
    _asked: dict[str, Request] | None = None
    #: Answers that came with the request, by key.
    _given: dict[str, Any] | None = None
    #: Items up to this one the client has had already.
    seen = 0
    #: The last question that those answers can be meant for; None if they came unasked.
    _last_asked: int | None = None
    #: Requests of ours to the client that are open, with the question each puts.
    sent: dict[int, Request] | None = None
    #: Whether what is said here is to name the task that it is about.
    related_task = False
    #: The method and its arguments, which a parked request is recognised by.
    _request: tuple[str, dict[str, Any]] = ("", {})

    def __init__(self, request_id: wire.Id, caller: Caller, batched: BatchReply | None) -> None:
        self.id = request_id
        self.caller = caller
        self.batched = batched

    # --- beginning ----------------------------------------------------------------------------

    def begin(
        self, view: McpConnection, method: str, arguments: dict[str, Any], params: dict[str, Any]
    ) -> list[Effect]:
        """Start the run, or go on with the one that was parked; raises ProtocolError."""
        if not self.caller.revision.handshake:
            self._request = (method, arguments)
            if "inputResponses" in params:
                self._given = params["inputResponses"]
                if not isinstance(self._given, dict):
                    raise ProtocolError(wire.INVALID_PARAMS, "inputResponses must be an object")
            if params.get("requestState") is not None:
                return self._resume(view, params)
        asks, trace = view.asks(self.caller), trace_of(params)
        return [StartCall(self, method, arguments, asks=asks, trace=trace)]

    def _resume(self, view: McpConnection, params: dict[str, Any]) -> list[Effect]:
        server = view.server
        try:
            state = open_state(params["requestState"], server.secret, server.wall())
        except InvalidParams as error:
            raise ProtocolError(wire.INVALID_PARAMS, error.message) from None
        if state.digest != digest_of(*self._request):
            raise ProtocolError(wire.INVALID_PARAMS, "requestState belongs to another request")
        try:
            view.steer(state.run)
        except Denied as error:
            raise protocol_error(error, self.caller.revision) from None
        except PlexusError:
            pass  # there is no such run, as attaching to it says
        self.seen = state.seen
        self._last_asked = state.asked
        return [AttachCall(self, state.run, owns=True)]

    # --- for the view -------------------------------------------------------------------------

    def on_started(self, view: McpConnection, run: Run) -> list[Effect]:  # noqa: ARG002 - for subclasses
        """The run is there."""
        self.run = run
        self._recall_questions(run)
        return []

    def _recall_questions(self, run: Run) -> None:
        """Know the open questions whose events the log of the run has forgotten."""
        if run.questions:
            kept = {event.request for event in run.log.events if isinstance(event, Request)}
            gone = {n: asked.event for n, asked in run.questions.items() if n not in kept}
            if gone:
                self._asked = gone

    def on_refused(self, view: McpConnection, error: PlexusError) -> list[Effect]:
        """There is no run, for this reason."""
        if error.code == "not_found" and self.seen:
            failure = ProtocolError(
                wire.INVALID_PARAMS, "the run that requestState belongs to is gone"
            )
        else:
            failure = protocol_error(error, self.caller.revision)
        return view.refuse_call(self, failure)

    def on_items(self, view: McpConnection, batch: Batch) -> list[Effect]:
        """The run has said this much more."""
        raise NotImplementedError

    def on_reminder(self, view: McpConnection) -> list[Effect]:  # noqa: ARG002 - for subclasses
        """The time that was asked for has passed."""
        return []

    # --- asking -------------------------------------------------------------------------------

    def ask(self, view: McpConnection, events: list[Event]) -> list[Effect]:
        """Put the questions that are among these events to the client."""
        run = self.run
        assert run is not None, "a run that asks has begun"
        # With `plexus.attach` a client may follow a run that it may not answer.
        may_answer = view.may_steer(run)
        if self._asked is None:
            self._asked = {}
        for event in events:
            if isinstance(event, Request):
                self._asked[event.request] = event
        for number in list(run.questions or ()):
            asked = self._asked.get(number)
            if asked is not None and self._given and may_answer and self._is_for(number):
                self._answer(run, asked, self._given.pop(asked.key or number, None))
        questions = run.questions
        if not questions or any(number not in self._asked for number in questions):
            return []  # answered, or the rest of them is still to be read
        open_ = [self._asked[number] for number in questions]
        if not may_answer:
            return self._ask_in_words(view, run, open_)
        if self.caller.revision.handshake:
            return self._send_requests(view, run, open_)
        return self._require_input(view, run, open_)

    def _request_of(
        self, view: McpConnection, run: Run, event: Request
    ) -> tuple[str, dict[str, Any]] | None:
        """How the client is asked this; None if it cannot be."""
        if not view.can_ask(self, event):
            return None
        return request_of(event, run.id, self.caller.revision)

    def _is_for(self, number: str) -> bool:
        """Whether what came with the request is for this question. A client that repeats an
        answer, because ours was lost, does not mean what was asked since."""
        return self._last_asked is None or int(number) <= self._last_asked

    def _answer(self, run: Run, event: Request, response: Any) -> None:
        """Answer a question with what the client gave; what does not fit leaves it open."""
        if response is None:
            return
        try:
            run.answer(event.request, answer_of(event, response, self.caller.revision))
        except InvalidParams:
            return

    def _send_requests(
        self, view: McpConnection, run: Run, questions: list[Request]
    ) -> list[Effect]:
        """Ask by requests of ours."""
        sent = self.sent or {}
        under_way = {event.request for event in sent.values()}
        fresh, frames = {}, []
        for event in questions:
            if event.request in under_way:
                continue
            asked = self._request_of(view, run, event)
            if asked is None:
                return self._ask_in_words(view, run, questions)
            number = view.session.next_id()
            fresh[number] = event
            method, params = asked
            if self.related_task:
                params = params | {"_meta": {RELATED_TASK: {"taskId": str(run.id)}}}
            frames.append(wire.encode_request(number, method, params or None))
        self.sent = sent | fresh
        return view.sending(frames)

    def on_response(self, response: wire.Response) -> None:
        """The client has answered a request of ours."""
        assert self.sent is not None, "it was asked"
        assert self.run is not None, "somebody has asked"
        event = self.sent.pop(response.id)  # type: ignore[arg-type]  # the view looked it up
        run, number = self.run, event.request
        if number not in (run.questions or ()):
            return  # nobody waits for it any more
        if response.error is not None:
            reason = response.error.get("message")
            reason = reason[:1000] if isinstance(reason, str) else "no reason given"
            run.refuse(number, Declined(f"the client could not be asked: {reason}"))
            return
        try:
            run.answer(number, answer_of(event, response.result, self.caller.revision))
        except InvalidParams as error:
            run.refuse(number, Declined(f"the answer does not fit: {error.message}"))

    def _require_input(
        self, view: McpConnection, run: Run, questions: list[Request]
    ) -> list[Effect]:
        """Ask by a result that is to be followed by the same request with the answers."""
        requests = {}
        for event in questions:
            asked = self._request_of(view, run, event)
            if asked is None:
                return self._ask_in_words(view, run, questions)
            method, params = asked
            requests[event.key or event.request] = {"method": method, "params": params}
        within_s = max(event.timeout_s for event in questions)
        expires = int(view.server.wall() + within_s) + 1
        digest = digest_of(*self._request)
        last_asked = max(int(event.request) for event in questions)
        state = RequestState(run.id, run.log.last, last_asked, digest, expires)
        body = wire.encode(
            {"inputRequests": requests, "requestState": seal_state(state, view.server.secret)}
        )
        result = view.server.result(self.caller.revision, body[1:-1], b"input_required")
        return [LeaveCall(self, keep=True, within_s=within_s), *view.answer_call(self, result)]

    def _ask_in_words(
        self, view: McpConnection, run: Run, questions: list[Request]
    ) -> list[Effect]:
        """Ask whoever reads the result."""
        words = in_words(run, questions, view.server.options.names)
        # It is nobody's from here on: whoever follows it later must not find it held back.
        return [LeaveCall(self), *view.sending(self.withdrawn()), *self.say(view, words)]

    def say(self, view: McpConnection, text: str) -> list[Effect]:
        """Answer with these words, in whatever an answer here is."""
        return view.refuse_call(self, ProtocolError(wire.INTERNAL_ERROR, text))

    def withdrawn(self) -> list[bytes]:
        """What tells the client that our open requests need no answer any more."""
        if not self.sent:
            return []
        reason = "no answer is needed any more"
        return [
            wire.encode_notification(
                "notifications/cancelled", {"requestId": number, "reason": reason}
            )
            for number in self.sent
        ]


class BufferedCall(Call):
    """A call whose answer is made from all events at once."""

    def __init__(self, request_id: wire.Id, caller: Caller, batched: BatchReply | None) -> None:
        super().__init__(request_id, caller, batched)
        self._events: list[Event] = []
        self._size = 0

    def on_items(self, view: McpConnection, batch: Batch) -> list[Effect]:
        """Keep the events until the run has ended, as long as they fit into an answer."""
        self._events += batch.events
        self._size += batch.size
        limit = view.server.hub.limits.answer_bytes
        if self._size > limit:
            reason = f"the answer is over the limit of {limit} bytes"
            error = ProtocolError(wire.INTERNAL_ERROR, reason, {"limit": limit})
            return [LeaveCall(self, cancel=reason), *view.refuse_call(self, error)]
        if batch.terminal is None:
            run = self.run
            return self.ask(view, batch.events) if run is not None and run.questions else []
        sends = view.sending(self.withdrawn())
        self._events.pop()
        try:
            result = self.result(view, self._events, batch.terminal)
        except ProtocolError as error:
            return sends + view.refuse_call(self, error)
        return sends + view.answer_call(self, result)

    def result(self, view: McpConnection, events: list[Event], terminal: Terminal) -> bytes:
        """The answer; raises ProtocolError if there is none."""
        raise NotImplementedError

    def check(self, terminal: Terminal) -> None:
        """Raise the error of a run that has failed."""
        missing = None if self.caller.revision.handshake else missing_capability(terminal)
        if missing is not None:
            raise missing
        if isinstance(terminal, Error):
            error = PlexusError(terminal.message, code=terminal.code, data=terminal.data)
            raise protocol_error(error, self.caller.revision)
        if isinstance(terminal, Cancelled):
            raise ProtocolError(wire.INTERNAL_ERROR, terminal.as_text())


def trace_of(params: dict[str, Any]) -> dict[str, str] | None:
    """The trace context in a request's `_meta`; None if there is none."""
    meta = params.get("_meta")
    if meta.__class__ is not dict or "traceparent" not in meta:
        return None
    found = {key: meta.get(key) for key in TRACE_KEYS}
    return {
        key: value
        for key, value in found.items()
        if value.__class__ is str and len(value) <= TRACE_CHARS
    }


def digest_of(method: str, arguments: dict[str, Any]) -> str:
    """What tells one request from another."""
    import hashlib

    return hashlib.sha256(wire.encode_canonical([method, arguments])).hexdigest()[:32]
