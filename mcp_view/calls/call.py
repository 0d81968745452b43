"""A request that starts a run, from the request to its answer.

Every such request is answered when its run has ended; subclasses build the answer. Questions of a
run reach the client in the same way for all of them: by a request from the server in revisions with
a handshake, by an `input_required` result in those without, and by instructions in text if the
client supports neither.

`TRANSITIONS` is the table of call states: which steps each state accepts, and where they lead.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mcp_view.elicitation import (
    RequestState,
    as_instructions,
    open_state,
    parse_answer,
    question_request,
    request_digest,
    seal_state,
)
from mcp_view.errors import ProtocolError, protocol_error
from mcp_view.replies import Answer, Notify, Refuse, Reply
from mcp_view.session import Caller, Peer, trace_context
from plexus.errors import Declined, Denied, InvalidParams, PlexusError
from plexus.events import Event, QuestionAsked
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.rpc.effects import (
    AnswerQuestion,
    AttachCall,
    LeaveCall,
    RefuseQuestion,
    Reported,
    StartCall,
)
from plexus.rpc.replies import BatchReply
from plexus.runtime.log import Batch
from plexus.runtime.question_feed import OpenQuestion
from plexus.runtime.run import Run

__all__ = (
    "ANSWERED",
    "RELATED_TASK",
    "RUNNING",
    "STARTING",
    "TRANSITIONS",
    "Call",
    "State",
    "Step",
)

#: The key of `_meta` that names the task of a message.
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class State(enum.IntEnum):
    """The progress of a call from its request to its answer."""

    #: The driver has not reported the outcome of the first effect yet.
    STARTING = enum.auto()
    #: The call has a run and reads its items.
    RUNNING = enum.auto()
    #: The run becomes a task; the driver has not reported that it is retained yet.
    KEEPING = enum.auto()
    #: Answered, refused or cancelled. Nothing more is sent about the call.
    ANSWERED = enum.auto()


class Step(enum.IntEnum):
    """An event in the life of a call."""

    STARTED = enum.auto()
    REFUSED = enum.auto()
    ITEMS = enum.auto()
    TIMER = enum.auto()
    #: The client has responded to a request from the server.
    RESPONSE = enum.auto()
    #: The driver has performed an effect, or failed to.
    OUTCOME = enum.auto()
    #: The client has cancelled the request.
    CANCELLED = enum.auto()
    #: An unexpected error occurred, or the credential was revoked.
    FAILED = enum.auto()


_ENDS: Final = frozenset({State.ANSWERED})
#: The states that each step can lead to. A state ignores the steps that it has no row for.
TRANSITIONS: Final[dict[State, dict[Step, frozenset[State]]]] = {
    State.STARTING: {
        Step.STARTED: frozenset({State.RUNNING, State.KEEPING}),
        Step.REFUSED: _ENDS,
        Step.OUTCOME: frozenset({State.STARTING, State.ANSWERED}),
        Step.CANCELLED: _ENDS,
        Step.FAILED: _ENDS,
    },
    State.RUNNING: {
        Step.ITEMS: frozenset({State.RUNNING, State.KEEPING, State.ANSWERED}),
        Step.TIMER: frozenset({State.RUNNING}),
        Step.RESPONSE: frozenset({State.RUNNING}),
        Step.OUTCOME: frozenset({State.RUNNING, State.ANSWERED}),
        Step.CANCELLED: _ENDS,
        Step.FAILED: _ENDS,
    },
    State.KEEPING: dict.fromkeys((Step.OUTCOME, Step.CANCELLED, Step.FAILED), _ENDS),
    State.ANSWERED: {},
}
# Accessing a member of an enum costs as much as a short method, and every call enters these states.
STARTING: Final = State.STARTING
RUNNING: Final = State.RUNNING
ANSWERED: Final = State.ANSWERED


class Call:
    """One request of a client and the run that answers it."""

    # Attributes that most calls never set are class attributes: creating a call is on the hot path.

    state: State = STARTING
    #: The run that answers the request; unset in the state STARTING.
    run: Run
    #: The batch that contains the request.
    batch: BatchReply | None = None
    #: The number of the last item that the client has already received.
    seen = 0
    #: Whether messages name the task that they belong to.
    related_task = False
    #: Open requests from the server to the client, and the question of each.
    client_requests: Mapping[wire.Id, QuestionAsked] = _EMPTY
    #: All questions of the run so far, by number.
    _questions: Mapping[str, QuestionAsked] = _EMPTY
    #: The `inputResponses` of the request, by key.
    _input_responses: Mapping[str, Any] = _EMPTY
    #: The number of answers whose outcome the driver has not reported yet.
    _pending_answers = 0
    #: The number of the last question that the input responses can answer.
    _last_question: float = math.inf
    #: The method and arguments, which identify a suspended request.
    _request: tuple[str, dict[str, Any]] = ("", {})

    def __init__(self, peer: Peer, request_id: wire.Id, caller: Caller) -> None:
        self.peer = peer
        self.id = request_id
        self.caller = caller

    def expects(self, step: Step) -> bool:
        """Whether the current state accepts this step."""
        return step in TRANSITIONS[self.state]

    # --- start --------------------------------------------------------------------------------

    def start(
        self, spec: MethodSpec, arguments: dict[str, Any], params: dict[str, Any]
    ) -> list[Reply]:
        """Start a run, or resume the suspended run of the request. Raises ProtocolError."""
        if not self.caller.revision.handshake:
            self._request = (spec.name, arguments)
            if "inputResponses" in params:
                self._input_responses = params["inputResponses"]
                if not isinstance(self._input_responses, dict):
                    raise ProtocolError(wire.INVALID_PARAMS, "inputResponses must be an object.")
            if params.get("requestState") is not None:
                return self._resume(params)
        caller = self.caller
        return [
            StartCall(
                self,
                spec.name,
                arguments,
                spec=spec,
                question_kinds=self.peer.question_kinds(caller),
                trace=trace_context(params),
                client=caller.client,
            )
        ]

    def _resume(self, params: dict[str, Any]) -> list[Reply]:
        server = self.peer.server
        try:
            state = open_state(params["requestState"], server.secret, server.wall())
        except InvalidParams as error:
            raise ProtocolError(wire.INVALID_PARAMS, error.message) from None
        if state.digest != request_digest(*self._request):
            raise ProtocolError(wire.INVALID_PARAMS, "requestState belongs to another request.")
        try:
            server.hub.find_run_to_control(state.run, self.peer.principal)
        except Denied as error:
            raise protocol_error(error, self.caller.revision) from None
        except PlexusError:
            pass  # attaching reports a missing run
        self.seen = state.seen
        self._last_question = state.asked
        return [AttachCall(self, state.run, owns=True)]

    # --- steps --------------------------------------------------------------------------------

    def on_started(self, run: Run) -> list[Reply]:
        """Store the run that the driver has started or found."""
        self.state = RUNNING
        self.run = run
        if run.questions:
            self.load_open_questions(run.questions)
        return []

    def load_open_questions(self, questions: Mapping[str, OpenQuestion]) -> None:
        """Load open questions whose events are no longer in the log of the run."""
        kept = {event.request for event in self.run.log.events if isinstance(event, QuestionAsked)}
        gone = {number: each.event for number, each in questions.items() if number not in kept}
        if gone:
            self._questions = gone

    def on_refused(self, error: PlexusError) -> list[Reply]:
        """Answer with the error that prevented the run."""
        if error.code == "not_found" and self.seen:
            reason = "The run of this requestState no longer exists. Repeat the request without it."
            failure = ProtocolError(wire.INVALID_PARAMS, reason)
        else:
            failure = protocol_error(error, self.caller.revision)
        return self.refuse(failure)

    def on_items(self, batch: Batch) -> list[Reply]:
        """Handle the next items of the run."""
        raise NotImplementedError

    def on_timer(self) -> list[Reply]:
        """Continue when the timer of the call expires."""
        return []

    def on_outcome(self, effect: Reported, error: PlexusError | None) -> list[Reply]:
        """Continue after the driver performed an effect, or failed with this error."""
        assert isinstance(effect, AnswerQuestion), "only tools become tasks"
        if self.caller.revision.handshake:  # the answer was a response to a request of the server
            if not isinstance(error, InvalidParams):
                return []
            declined = Declined(f"Invalid answer: {error.message}")
            return [RefuseQuestion(effect.run, effect.request, declined)]
        self._pending_answers -= 1
        return [] if self._pending_answers else self._send_questions()

    # --- the end ------------------------------------------------------------------------------

    def answer(self, result: bytes) -> list[Reply]:
        """End the call with this result."""
        self.state = ANSWERED
        return [Answer(result)]

    def refuse(self, error: ProtocolError) -> list[Reply]:
        """End the call with this error."""
        self.state = ANSWERED
        return [Refuse(error)]

    def cancel(self) -> list[Reply]:
        """End the call without an answer, and withdraw its requests to the client."""
        self.state = ANSWERED
        return self.withdraw_requests()

    def answer_text(self, text: str) -> list[Reply]:
        """End the call with a text in the form of an answer."""
        return self.refuse(ProtocolError(wire.INTERNAL_ERROR, text))

    def withdraw_requests(self) -> list[Reply]:
        """Cancel the open requests from the server to the client."""
        if not self.client_requests:
            return []
        reason = "The answer is no longer needed."
        cancelled = ({"requestId": each, "reason": reason} for each in self.client_requests)
        method = "notifications/cancelled"
        return [Notify([wire.encode_notification(method, params) for params in cancelled])]

    # --- questions ----------------------------------------------------------------------------

    def ask(self, events: list[Event]) -> list[Reply]:
        """Send the questions among these events, or answer them from the request's responses."""
        new = {event.request: event for event in events if isinstance(event, QuestionAsked)}
        self._questions = {**self._questions, **new}
        if self._input_responses and self._may_answer():
            answers = self._answers_from_responses()
            if answers:
                self._pending_answers = len(answers)
                return answers
        return self._send_questions()

    def _may_answer(self) -> bool:
        """Whether this client may answer the run. It may read other runs with `plexus.attach`."""
        return self.peer.server.hub.may_control(self.run, self.peer.principal)

    def _answers_from_responses(self) -> list[Reply]:
        """Answer open questions from the input responses of the request.

        An invalid answer leaves its question open.
        """
        answers: list[Reply] = []
        given = dict(self._input_responses)
        for number in self.run.questions or ():
            asked = self._questions.get(number)
            # A client that repeats a request because it lost the result does not answer questions
            # that were asked since.
            if asked is None or int(number) > self._last_question:
                continue
            response = given.pop(asked.key or number, None)
            if response is None:
                continue
            try:
                answer = parse_answer(asked, response, self.caller.revision)
            except InvalidParams:
                continue
            answers.append(AnswerQuestion(self, self.run.id, number, answer))
        self._input_responses = given
        return answers

    def _send_questions(self) -> list[Reply]:
        """Send all open questions to the client, once the events of all of them have been read."""
        questions = self.run.questions
        if not questions or any(number not in self._questions for number in questions):
            return []
        open_ = [self._questions[number] for number in questions]
        if not self._may_answer():
            return self._ask_by_text(open_)
        if self.caller.revision.handshake:
            return self._send_requests(open_)
        return self._require_input(open_)

    def _question_request(self, event: QuestionAsked) -> tuple[str, dict[str, Any]] | None:
        """Return the request for this question; None if the client does not support it."""
        if event.kind not in self.peer.question_kinds(self.caller):
            return None
        return question_request(event, self.run.id, self.caller.revision)

    def _send_requests(self, questions: list[QuestionAsked]) -> list[Reply]:
        """Send the questions as requests from the server."""
        open_ = {event.request for event in self.client_requests.values()}
        fresh: dict[wire.Id, QuestionAsked] = {}
        messages = []
        for event in questions:
            if event.request in open_:
                continue
            asked = self._question_request(event)
            if asked is None:
                return self._ask_by_text(questions)
            number = self.peer.session.request_id(self.run.id, event.request)
            fresh[number] = event
            method, params = asked
            if self.related_task:
                params = params | {"_meta": {RELATED_TASK: {"taskId": str(self.run.id)}}}
            messages.append(wire.encode_request(number, method, params or None))
        self.client_requests = {**self.client_requests, **fresh}
        return [Notify(messages)]

    def on_response(self, response: wire.Response) -> list[Reply]:
        """Handle the client's response to a request from the server."""
        event = self.client_requests[response.id]
        self.client_requests = {
            number: each for number, each in self.client_requests.items() if number != response.id
        }
        run, question = self.run.id, event.request
        if question not in (self.run.questions or ()):
            return []  # it was answered elsewhere, or the run no longer waits
        if response.error is not None:
            reason = response.error.get("message")
            reason = reason[:1000] if isinstance(reason, str) else "no reason was given"
            declined = Declined(f"The client could not answer the question: {reason}")
            return [RefuseQuestion(run, question, declined)]
        try:
            answer = parse_answer(event, response.result, self.caller.revision)
        except InvalidParams as error:
            declined = Declined(f"Invalid answer: {error.message}")
            return [RefuseQuestion(run, question, declined)]
        return [AnswerQuestion(self, run, question, answer)]

    def _require_input(self, questions: list[QuestionAsked]) -> list[Reply]:
        """Send the questions as a result. The client repeats its request with the answers."""
        requests = {}
        for event in questions:
            asked = self._question_request(event)
            if asked is None:
                return self._ask_by_text(questions)
            method, params = asked
            requests[event.key or event.request] = {"method": method, "params": params}
        server, run = self.peer.server, self.run
        within_s = max(event.timeout_s for event in questions)
        expires = int(server.wall() + within_s) + 1
        digest = request_digest(*self._request)
        last_asked = max(int(event.request) for event in questions)
        state = RequestState(run.id, run.log.last, last_asked, digest, expires)
        body = wire.encode(
            {"inputRequests": requests, "requestState": seal_state(state, server.secret)}
        )
        result = server.result(self.caller.revision, body[1:-1], b"input_required")
        return [LeaveCall(self, keep=True, within_s=within_s), *self.answer(result)]

    def _ask_by_text(self, questions: list[QuestionAsked]) -> list[Reply]:
        """Send the questions as instructions in the text of the result."""
        text = as_instructions(self.run, questions, self.peer.server.options.names)
        # Without an owner, backpressure does not suspend the run before a client attaches to it.
        return [LeaveCall(self), *self.withdraw_requests(), *self.answer_text(text)]
