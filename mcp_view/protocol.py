"""The view, sans-IO: messages of a client in, effects out; items of runs in, effects out.

Rules:
- The revision is chosen per message: one that names its revision is answered in it, every other
  is answered in the revision that `initialize` agreed on.
- A request has one answer, and nothing about it is sent after that. A request that was cancelled
  has none.
- Every message is answered or, if it is no request, handled and forgotten; none ends the
  connection.
- No clock, no randomness, no awaiting: time is handed in, waiting is the driver's.
- Handlers and calls return replies and effects. Runs and the hub are only read here: the driver
  changes them.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from mcp_view.calls.call import RUNNING, STARTING, Call, Step
from mcp_view.errors import BUSY, DENIED, ProtocolError
from mcp_view.methods import INITIALIZE, METHODS, find_method
from mcp_view.replies import (
    Answer,
    Framing,
    Listen,
    Notify,
    NotifyCounted,
    Refuse,
    Reply,
    ReplyWriter,
)
from mcp_view.server import McpServer
from mcp_view.session import Peer, Session, is_stateless
from mcp_view.subscriptions import Listener, is_visible, session_notification
from plexus.errors import Internal, PlexusError
from plexus.limits import CONTROL_CALLS
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from plexus.rpc.effects import AnswerQuestion, AttachCall, Effect, KeepRun, LeaveCall, StartCall
from plexus.rpc.replies import BatchReply
from plexus.runtime.changes import Change
from plexus.runtime.log import Batch
from plexus.runtime.run import Run
from plexus.runtime.shares import connection_full

__all__ = ("Fallback", "McpConnection")


#: How much is kept of a client's reason to cancel a request.
REASON_CHARS: Final = 1000
#: The effects that a call begins with.
_START_EFFECTS: Final = frozenset({StartCall, AttachCall, AnswerQuestion})


class Fallback(Protocol):
    """The view of another protocol, for methods that are not of this one."""

    @property
    def idle(self) -> bool: ...
    def receive(self, message: wire.Message | list[wire.Message]) -> list[Effect]: ...
    def on_started(self, call: Any, run: Run) -> list[Effect]: ...
    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]: ...
    def on_items(self, call: Any, batch: Batch) -> list[Effect]: ...
    def revoked(self, reason: str) -> list[Effect]: ...
    def on_call_defect(self, call: Any, error: PlexusError, seq: int) -> list[Effect]: ...
    def peer_gone(self) -> list[Effect]: ...


class McpConnection:
    """One stream of messages to and from a client. Carry out the effects it returns."""

    def __init__(
        self,
        server: McpServer,
        session: Session,
        framing: Framing | None = None,
        *,
        principal: Principal = LOCAL,
        fallback: Fallback | None = None,
        streaming: bool = True,
        change_notifications: bool = True,
        stateless: bool = False,
    ) -> None:
        """`framing` wraps messages for the transport, if it needs that. `streaming` is whether
        anything but answers can be sent here, `change_notifications` whether the session's own notifications
        go this way, and `stateless` whether messages must name the revision that they speak."""
        self.peer = Peer(server, session, principal, streaming, change_notifications)
        self.streaming = streaming
        self._writer = ReplyWriter(framing, streaming, server.hub.limits.error_bytes)
        self._fallback = fallback
        self._stateless = stateless
        self._calls: dict[wire.Id, Call] = {}
        self._listeners: dict[wire.Id, Listener] = {}

    @property
    def refusal(self) -> ProtocolError | None:
        """The error that the last refused request was answered with."""
        return self._writer.refusal

    @property
    def idle(self) -> bool:
        """Whether no request is in progress here."""
        return (
            not self._calls
            and not self._listeners
            and (self._fallback is None or self._fallback.idle)
        )

    # --- messages in --------------------------------------------------------------------------

    def receive(self, message: wire.Message | list[wire.Message]) -> list[Effect]:
        """Take one message, or one batch."""
        if message.__class__ is wire.Request:
            return self._request(message, None)
        if isinstance(message, list):
            return self._batch(message)
        return self._single(message, None)

    def _batch(self, messages: list[wire.Message]) -> list[Effect]:
        revision = self.peer.session.revision
        if revision is None or not revision.batches or any(map(is_stateless, messages)):
            reason = "batches are not part of the revision that is spoken here"
            return self._writer.refuse(None, ProtocolError(wire.INVALID_REQUEST, reason), None)
        batch = BatchReply()
        effects = [effect for entry in messages for effect in self._single(entry, batch)]
        return effects + self._writer.flush(batch)

    def _single(self, message: wire.Message, batch: BatchReply | None) -> list[Effect]:
        if isinstance(message, wire.Request):
            return self._request(message, batch)
        if isinstance(message, wire.Notification):
            return self._notification(message)
        if isinstance(message, wire.Response):
            return self._response(message)
        failure = ProtocolError(message.code, message.message, message.data)
        return self._writer.refuse(message.id, failure, batch)

    def _request(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        try:
            return self._handle(request, batch)
        except ProtocolError as error:
            return self._writer.refuse(request.id, error, batch)
        except Exception as error:  # noqa: BLE001 - a handler's defect; the request is answered
            failure = _internal(Internal.report(request.method[:128], error))
            return self._writer.refuse(request.id, failure, batch)

    def _handle(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        request_id, name, _ = request
        if name not in METHODS and self._is_fallback(name, batch):
            return self._other_view.receive(request)
        method, params, caller = find_method(self.peer, request, stateless=self._stateless)
        if method is INITIALIZE and batch is not None:
            raise ProtocolError(wire.INVALID_REQUEST, "initialize must not be part of a batch")
        if caller is not None and (request_id in self._calls or request_id in self._listeners):
            raise ProtocolError(wire.INVALID_REQUEST, "a request with this id is under way already")
        replies = method.handle(self.peer, request_id, params, caller)
        if replies[0].__class__ in _START_EFFECTS:  # and then it is the only one
            return self._register(replies[0], batch)
        return self._translate(replies, request_id, batch)

    def _is_fallback(self, name: str, batch: BatchReply | None) -> bool:
        """Whether a method that is not of this protocol is one of the hub, for the other view."""
        if self._fallback is None or batch is not None:
            return False
        return self.peer.server.hub.find_method(name) is not None

    def _notification(self, message: wire.Notification) -> list[Effect]:
        params = message.params if isinstance(message.params, dict) else {}
        if message.method == "notifications/cancelled":
            return self._cancelled(params)
        if message.method == "notifications/initialized":
            session = self.peer.session
            session.initialized = session.caller is not None
            return []
        if self._fallback is not None and "/" not in message.method:
            return self._fallback.receive(message)
        return []

    def _cancelled(self, params: dict[str, Any]) -> list[Effect]:
        """End a request whose answer the client does not want any more, without one."""
        request_id = params.get("requestId")
        if request_id.__class__ is not int and request_id.__class__ is not str:
            return []  # and true is not 1
        if self._listeners.pop(request_id, None) is not None:
            return []
        call = self._calls.pop(request_id, None)
        if call is None:
            return []
        reason = params.get("reason")
        why = "cancelled by the client"
        if reason and isinstance(reason, str):
            why += f": {reason[:REASON_CHARS]}"
        effects = [LeaveCall(call, cancel=why), *self._effects(call, call.cancel())]
        if call.batch is not None:
            call.batch.open -= 1
            return effects + self._writer.flush(call.batch)
        return effects

    def _response(self, response: wire.Response) -> list[Effect]:
        for call in self._calls.values():
            if response.id in call.client_requests and call.expects(Step.RESPONSE):
                return self._effects(call, call.on_response(response))
        return []

    # --- what became of a call ----------------------------------------------------------------

    def on_started(self, call: Any, run: Run) -> list[Effect]:
        """Take the run that a call leads to."""
        if not isinstance(call, Call):
            return self._other_view.on_started(call, run)
        if call.state is not STARTING:  # as the table has it
            return []
        return self._effects(call, call.on_started(run))

    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]:
        """Take the reason why a call did not begin."""
        if not isinstance(call, Call):
            return self._other_view.on_refused(call, error)
        return self._effects(call, call.on_refused(error)) if call.expects(Step.REFUSED) else []

    def on_items(self, call: Any, batch: Batch) -> list[Effect]:
        """Take the next items of a call's run."""
        if not isinstance(call, Call):
            return self._other_view.on_items(call, batch)
        if call.state is not RUNNING:  # as the table has it
            return []
        return self._effects(call, call.on_items(batch))

    def on_timer(self, call: Call) -> list[Effect]:
        """Continue a call after the time that it asked for."""
        return self._effects(call, call.on_timer()) if call.expects(Step.TIMER) else []

    def on_outcome(
        self, effect: AnswerQuestion | KeepRun, error: PlexusError | None
    ) -> list[Effect]:
        """Continue a call after its effect was carried out, or failed for this reason."""
        call: Call = effect.call
        if not call.expects(Step.OUTCOME):
            return []
        return self._effects(call, call.on_outcome(effect, error))

    def on_change(self, change: Change) -> list[Effect]:
        """Notify the client of a change of the hub."""
        if not is_visible(change, self.peer):
            return []
        messages = []
        peer = self.peer
        if peer.change_notifications and peer.session.caller is not None:
            notification = session_notification(peer.session, change)
            if notification is not None:
                messages.append(notification)
        for listener in self._listeners.values():
            notification = listener.notification(change)
            if notification is not None:
                messages.append(notification)
        return self._writer.notify(messages)

    def on_defect(self, requests: list[wire.Id], error: PlexusError) -> list[Effect]:
        """Answer requests that could not be handled."""
        failure = _internal(error)
        return [
            effect for request in requests for effect in self._writer.refuse(request, failure, None)
        ]

    def on_call_defect(self, call: Any, error: PlexusError, seq: int) -> list[Effect]:
        """Answer a call whose result could not be made."""
        if not isinstance(call, Call):
            return self._other_view.on_call_defect(call, error, seq)
        # The defect may have struck while the answer was made, before it was sent.
        registered = self._calls.get(call.id) is call
        return self._effects(call, call.refuse(_internal(error))) if registered else []

    def on_shutdown(self) -> list[Effect]:
        """End the streams that listen, because the server is about to stop."""
        effects: list[Effect] = []
        for listener in self._listeners.values():
            info = self.peer.server.info(listener.revision)
            result = wire.encode_result(listener.id, listener.closing_result(info))
            effects += self._writer.send(result, None)
        self._listeners.clear()
        return effects

    def revoked(self, reason: str) -> list[Effect]:
        """The client's credential is no longer valid: answer every request with an error, and
        cancel the runs that were to answer them."""
        error = ProtocolError(DENIED, reason)
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            effects += [LeaveCall(call, cancel=reason), *self._effects(call, call.refuse(error))]
        for listener in self._listeners.values():
            effects += self._writer.refuse(listener.id, error, None)
        self._listeners.clear()
        return effects if self._fallback is None else effects + self._fallback.revoked(reason)

    def peer_gone(self) -> list[Effect]:
        """The connection is over: cancel the runs that only its client waits for."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._listeners.clear()
        session = self.peer.session
        if not session.outlives_connection:
            session.close()
        gone: list[Effect] = [LeaveCall(call, cancel="disconnected") for call in calls]
        for call in calls:
            call.cancel()
        return gone if self._fallback is None else gone + self._fallback.peer_gone()

    @property
    def _other_view(self) -> Fallback:
        assert self._fallback is not None, "only it makes calls of another kind"
        return self._fallback

    # --- replies as effects -------------------------------------------------------------------

    def _effects(self, call: Call, replies: list[Reply]) -> list[Effect]:
        """Turn what a call returned into effects."""
        if not replies:
            return []
        first = replies[0]
        if isinstance(first, Answer) and call.batch is None:  # nearly always, and the only one
            self._calls.pop(call.id, None)
            return self._writer.send(wire.encode_result(call.id, first.result), None)
        return self._translate(replies, call.id, call.batch, call)

    def _translate(
        self,
        replies: list[Reply],
        request_id: wire.Id,
        batch: BatchReply | None,
        call: Call | None = None,
    ) -> list[Effect]:
        """Turn replies to a request, or to a call, into effects."""
        writer = self._writer
        effects: list[Effect] = []
        for reply in replies:
            if isinstance(reply, Answer):
                effects += self._end(wire.encode_result(request_id, reply.result), batch, call)
            elif isinstance(reply, Notify):
                effects += writer.notify(reply.messages)
            elif isinstance(reply, NotifyCounted):
                effects += writer.notify_counted(reply)
            elif isinstance(reply, Refuse):
                effects += self._end(writer.error(request_id, reply.error), batch, call)
            elif isinstance(reply, Listen):
                effects += self._add_listener(Listener(request_id, *reply))
            else:
                effects.append(reply)
        return effects

    def _register(self, effect: Any, batch: BatchReply | None) -> list[Effect]:
        """Register the call that begins with this effect; raises ProtocolError if too many
        requests are in progress. Past the limit a few control calls are let in."""
        limit = self.peer.server.hub.limits.calls_in_flight
        beyond = len(self._calls) + len(self._listeners) + 1 - limit
        # Answers to questions are over before the next message comes.
        immediate = isinstance(effect, AnswerQuestion)
        if beyond > 0 and not immediate and not self._is_control(effect, beyond):
            raise _full(limit)
        call: Call = effect.call
        self._calls[call.id] = call
        if batch is not None:
            call.batch = batch
            batch.open += 1
        return [effect]

    def _is_control(self, effect: StartCall | AttachCall, beyond: int) -> bool:
        """Whether this effect calls a control method, of which there are not too many."""
        if beyond > CONTROL_CALLS or not isinstance(effect, StartCall):
            return False
        spec = effect.spec or self.peer.server.hub.resolve(effect.method)
        return spec.purpose == "control"

    def _add_listener(self, listener: Listener) -> list[Effect]:
        limit = self.peer.server.hub.limits.calls_in_flight
        if len(self._calls) + len(self._listeners) >= limit:
            raise _full(limit)
        self._listeners[listener.id] = listener
        return self._writer.notify([listener.acknowledgement()])

    def _end(self, answer: bytes, batch: BatchReply | None, call: Call | None) -> list[Effect]:
        """Send the answer to a request, or to a call, which is over then."""
        if call is not None:
            self._calls.pop(call.id, None)
            if batch is not None:
                batch.open -= 1
        effects = self._writer.send(answer, batch)
        return effects if call is None or batch is None else self._writer.flush(batch)


def _full(limit: int) -> ProtocolError:
    busy = connection_full(limit)
    return ProtocolError(BUSY, busy.message, busy.data)


def _internal(error: PlexusError) -> ProtocolError:
    return ProtocolError(wire.INTERNAL_ERROR, error.message, error.data)
