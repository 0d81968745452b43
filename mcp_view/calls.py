"""A request that leads to a run, from the client's request to its answer.

Every such request is answered when its run has ended; what differs is what the answer is made
of, and that is what subclasses say. Asking the client in mid-run is the same for all of them and
lives here: by a request of ours where there is a handshake, by an answer that is no answer yet
where there is none, and by words where the client can do neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_view.errors import ProtocolError, protocol_error
from mcp_view.questions import answer_of, request_of
from mcp_view.request_state import RequestState, open_state, seal_state
from mcp_view.session import Caller
from plexus import wire
from plexus.effects import AttachCall, Effect, LeaveCall, StartCall
from plexus.errors import Declined, InvalidParams, PlexusError
from plexus.events import Cancelled, Error, Event, Request, Terminal
from plexus.log import Batch
from plexus.run import Run

if TYPE_CHECKING:  # the view makes calls; here it is only named
    from mcp_view.protocol import Batched, McpConnection

__all__ = ("RELATED_TASK", "BufferedCall", "Call", "digest_of")

#: What names the task that a message is about.
RELATED_TASK = "io.modelcontextprotocol/related-task"


class Call:
    """One request of the client and the run that answers it."""

    # What most calls never need is left on the class: it makes a call half as dear.

    run: Run | None = None
    #: Every question the run has put so far, by its number.
    _asked: dict[str, Request] | None = None
    #: Answers that came with the request, by key.
    _given: dict[str, Any] | None = None
    #: Items up to this one the client has had already.
    seen = 0
    #: Requests of ours to the client that are open, with the question each puts.
    sent: dict[int, Request] | None = None
    #: Whether what is said here is to name the task that it is about.
    related_task = False
    #: The method and its arguments, which a parked request is recognised by.
    _request: tuple[str, dict[str, Any]] = ("", {})

    def __init__(self, request_id: wire.Id, caller: Caller, batched: Batched | None) -> None:
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
        return [StartCall(self, method, arguments, asks=view.asks(self.caller))]

    def _resume(self, view: McpConnection, params: dict[str, Any]) -> list[Effect]:
        server = view.server
        try:
            state = open_state(params["requestState"], server.secret, server.wall())
        except InvalidParams as error:
            raise ProtocolError(wire.INVALID_PARAMS, error.message) from None
        if state.digest != digest_of(*self._request):
            raise ProtocolError(wire.INVALID_PARAMS, "requestState belongs to another request")
        self.seen = state.seen
        return [AttachCall(self, state.run, owns=True)]

    # --- for the view -------------------------------------------------------------------------

    def on_started(self, view: McpConnection, run: Run) -> list[Effect]:  # noqa: ARG002
        """The run is there."""
        self.run = run
        return []

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

    def on_reminder(self, view: McpConnection) -> list[Effect]:  # noqa: ARG002
        """The time that was asked for has passed."""
        return []

    # --- asking -------------------------------------------------------------------------------

    def ask(self, view: McpConnection, events: list[Event]) -> list[Effect]:
        """Put the questions that are among these events to the client."""
        run = self.run
        assert run is not None, "a run that asks has begun"
        if self._asked is None:
            self._asked = {}
        for event in events:
            if isinstance(event, Request):
                self._asked[event.request] = event
        for number in list(run.questions or ()):
            asked = self._asked.get(number)
            if asked is not None and self._given:
                self._answer(run, asked, self._given.pop(asked.key or number, None))
        questions = run.questions
        if not questions or any(number not in self._asked for number in questions):
            return []  # answered, or the rest of them is still to be read
        open_ = [self._asked[number] for number in questions]
        if self.caller.revision.handshake:
            return self._send_requests(view, run, open_)
        return self._require_input(view, run, open_)

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
        if self.sent is None:
            self.sent = {}
        under_way = {event.request for event in self.sent.values()}
        frames = []
        for event in questions:
            if event.request in under_way:
                continue
            asked = request_of(event, self.caller.revision) if view.can_ask(self, event) else None
            if asked is None:
                return self._ask_in_words(view, run, questions)
            number = view.session.next_id()
            self.sent[number] = event
            method, params = asked
            if self.related_task:
                params = params | {"_meta": {RELATED_TASK: {"taskId": str(run.id)}}}
            frames.append(wire.encode_request(number, method, params or None))
        return view.sending(frames)

    def on_response(self, response: wire.Response) -> None:
        """The client has answered a request of ours."""
        assert self.sent is not None, "it was asked"
        assert self.run is not None, "somebody has asked"
        event = self.sent.pop(response.id)  # type: ignore[arg-type]  # the view looked it up
        if response.error is not None:
            reason = response.error.get("message", "no reason given")
            self.run.refuse(event.request, Declined(f"the client could not be asked: {reason}"))
            return
        try:
            answer = answer_of(event, response.result, self.caller.revision)
            self.run.answer(event.request, answer)
        except InvalidParams as error:
            self.run.refuse(event.request, Declined(f"the answer does not fit: {error.message}"))
        except PlexusError:
            return  # nobody waits for it any more

    def _require_input(
        self, view: McpConnection, run: Run, questions: list[Request]
    ) -> list[Effect]:
        """Ask by a result that is to be followed by the same request with the answers."""
        requests = {}
        for event in questions:
            asked = request_of(event, self.caller.revision) if view.can_ask(self, event) else None
            if asked is None:
                return self._ask_in_words(view, run, questions)
            method, params = asked
            requests[event.key or event.request] = {"method": method, "params": params}
        within_s = max(event.timeout_s for event in questions)
        expires = int(view.server.wall() + within_s) + 1
        digest = digest_of(*self._request)
        state = RequestState(run.id, run.log.last, digest, expires)
        body = wire.encode(
            {"inputRequests": requests, "requestState": seal_state(state, view.server.secret)}
        )
        result = view.server.result(self.caller.revision, body[1:-1], b"input_required")
        return [LeaveCall(self, keep=True, within_s=within_s), *view.answer_call(self, result)]

    def _ask_in_words(
        self, view: McpConnection, run: Run, questions: list[Request]
    ) -> list[Effect]:
        """Ask whoever reads the result: a model can answer by a tool."""
        name_of = view.server.options.names.name_of
        respond, attach = name_of("plexus.respond"), name_of("plexus.attach")
        lines = [f"The run {run.id} waits for an answer."]
        for event in questions:
            schema = wire.encode(event.schema).decode()
            lines.append(f"It asks: {event.message}")
            lines.append(
                f'Answer with the tool {respond}, run {run.id}, request "{event.request}", '
                f"and an answer that fits {schema} (null declines)."
            )
        lines.append(f"Then follow it with the tool {attach}, run {run.id}, after {run.log.last}.")
        within_s = max(event.timeout_s for event in questions)
        leave = LeaveCall(self, keep=True, within_s=within_s)
        return [leave, *self.say(view, "\n".join(lines))]

    def say(self, view: McpConnection, text: str) -> list[Effect]:
        """Answer with these words, in whatever an answer here is."""
        return view.refuse_call(self, ProtocolError(wire.INTERNAL_ERROR, text))

    def withdrawn(self) -> list[bytes]:
        """What tells the client that our open requests need no answer any more."""
        if not self.sent:
            return []
        reason = "the run has ended"
        return [
            wire.encode_notification(
                "notifications/cancelled", {"requestId": number, "reason": reason}
            )
            for number in self.sent
        ]


class BufferedCall(Call):
    """A call whose answer is made from all events at once."""

    def __init__(self, request_id: wire.Id, caller: Caller, batched: Batched | None) -> None:
        super().__init__(request_id, caller, batched)
        self._events: list[Event] = []

    def on_items(self, view: McpConnection, batch: Batch) -> list[Effect]:
        """Keep the events until the run has ended."""
        self._events += batch.events
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
        if isinstance(terminal, Error):
            error = PlexusError(terminal.message, code=terminal.code, data=terminal.data)
            raise protocol_error(error, self.caller.revision)
        if isinstance(terminal, Cancelled):
            raise ProtocolError(wire.INTERNAL_ERROR, terminal.as_text())


def digest_of(method: str, arguments: dict[str, Any]) -> str:
    """What tells one request from another."""
    import hashlib

    return hashlib.sha256(wire.encode_canonical([method, arguments])).hexdigest()[:32]
