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

from mcp_view.calls.call import Call
from mcp_view.calls.state import RUNNING, STARTING, Step
from mcp_view.replies import Answer, Listen, Notify, NotifyCounted, Refuse, Reply
from mcp_view.server import McpServer
from mcp_view.session import (
    Caller,
    Peer,
    Session,
    initialize,
    is_stateless,
    stateless_caller,
)
from mcp_view.subscriptions import Listener, session_notice
from mcp_view.tables.errors import BUSY, DENIED, NOT_INITIALIZED, ProtocolError
from mcp_view.tables.methods import METHODS
from plexus.defects import report
from plexus.errors import NotFound, PlexusError
from plexus.limits import CONTROL_CALLS
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import (
    AnswerQuestion,
    AttachCall,
    Effect,
    KeepRun,
    LeaveCall,
    Send,
    StartCall,
)
from plexus.runtime.changes import Change
from plexus.runtime.log import Batch
from plexus.runtime.run import Run
from plexus.runtime.shares import connection_full

__all__ = ("Fallback", "Framing", "McpConnection")


#: How much is kept of a client's reason to cancel a request.
REASON_CHARS: Final = 1000
#: The effects that a call begins with.
_BEGINNINGS: Final = frozenset({StartCall, AttachCall, AnswerQuestion})


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


class Framing(Protocol):
    """How messages are wrapped for a transport."""

    def message(self, message: bytes) -> bytes: ...
    def items(self, template: bytes, first: int, payloads: list[bytes]) -> list[bytes]: ...


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
        announces: bool = True,
        stateless: bool = False,
    ) -> None:
        """`framing` wraps messages for the transport, if it needs that. `streaming` is whether
        anything but answers can be sent here, `announces` whether the session's own notifications
        go this way, and `stateless` whether messages must name the revision that they speak."""
        self.peer = Peer(server, session, principal, streaming, announces)
        self.streaming = streaming
        #: The error that the last refused request was answered with.
        self.refusal: ProtocolError | None = None
        self._framing = framing
        self._fallback = fallback
        self._stateless = stateless
        self._calls: dict[wire.Id, Call] = {}
        self._listeners: dict[wire.Id, Listener] = {}

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
            return self._refuse(None, ProtocolError(wire.INVALID_REQUEST, reason), None)
        batch = BatchReply()
        effects = [effect for entry in messages for effect in self._single(entry, batch)]
        return effects + self._flush(batch)

    def _single(self, message: wire.Message, batch: BatchReply | None) -> list[Effect]:
        if isinstance(message, wire.Request):
            return self._request(message, batch)
        if isinstance(message, wire.Notification):
            return self._notification(message)
        if isinstance(message, wire.Response):
            return self._response(message)
        failure = ProtocolError(message.code, message.message, message.data)
        return self._refuse(message.id, failure, batch)

    def _request(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        try:
            return self._handle(request, batch)
        except ProtocolError as error:
            return self._refuse(request.id, error, batch)
        except Exception as error:  # noqa: BLE001 - a handler's defect; the request is answered
            return self._refuse(request.id, _internal(report(request.method[:128], error)), batch)

    def _handle(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        request_id, name, params = request
        if params is None:
            params = {}
            request = wire.Request(request_id, name, params)
        method = METHODS.get(name)
        if method is None and name != "initialize":
            return self._unknown(request, batch)
        if request_id is None:
            raise ProtocolError(wire.INVALID_REQUEST, "an id must be a string or an integer")
        if params.__class__ is not dict:
            raise ProtocolError(wire.INVALID_PARAMS, "params must be an object")
        if self._stateless or ("_meta" in params and is_stateless(request)):
            caller: Caller | None = stateless_caller(params)
        elif method is None:
            return self._initialize(request, batch)
        else:
            caller = self.peer.session.caller
        if caller is None:
            if method is not None and method.before_initialize:
                return self._translate(
                    method.handle(self.peer, request, None), request_id, batch, None
                )
            raise ProtocolError(NOT_INITIALIZED, "Server not initialized")
        if method is None or not method.first <= caller.revision.order <= method.last:
            raise ProtocolError(wire.METHOD_NOT_FOUND, f"Method not found: {name[:128]}")
        if request_id in self._calls or request_id in self._listeners:
            raise ProtocolError(wire.INVALID_REQUEST, "a request with this id is under way already")
        replies = method.handle(self.peer, request, caller)
        if replies[0].__class__ in _BEGINNINGS:  # and then it is the only one
            return self._register(replies[0], batch)
        return self._translate(replies, request_id, batch, None)

    def _initialize(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        if batch is not None:
            raise ProtocolError(wire.INVALID_REQUEST, "initialize must not be part of a batch")
        return self._translate(initialize(self.peer, request), request.id, None, None)

    def _unknown(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        """Handle a method that is not of this protocol; it may be one of the hub."""
        known = self.peer.server.hub.find_method(request.method) is not None
        if self._fallback is not None and batch is None and known:
            return self._fallback.receive(request)
        if self._stateless or is_stateless(request):
            # Report missing `_meta` fields before an unknown method.
            stateless_caller(request.params if isinstance(request.params, dict) else {})
        elif self.peer.session.caller is None and "/" in request.method:
            raise ProtocolError(NOT_INITIALIZED, "Server not initialized")
        raise ProtocolError(wire.METHOD_NOT_FOUND, f"Method not found: {request.method[:128]}")

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
            return effects + self._flush(call.batch)
        return effects

    def _response(self, response: wire.Response) -> list[Effect]:
        for call in self._calls.values():
            if response.id in call.sent and call.expects(Step.RESPONSE):
                return self._effects(call, call.on_response(response))
        return []

    # --- what became of a call ----------------------------------------------------------------

    def on_started(self, call: Any, run: Run) -> list[Effect]:
        """Take the run that a call leads to."""
        if not isinstance(call, Call):
            return self._other.on_started(call, run)
        if call.state is not STARTING:  # as the table has it
            return []
        return self._effects(call, call.on_started(run))

    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]:
        """Take the reason why a call did not begin."""
        if not isinstance(call, Call):
            return self._other.on_refused(call, error)
        return self._effects(call, call.on_refused(error)) if call.expects(Step.REFUSED) else []

    def on_items(self, call: Any, batch: Batch) -> list[Effect]:
        """Take the next items of a call's run."""
        if not isinstance(call, Call):
            return self._other.on_items(call, batch)
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
        if not self._sees(change):
            return []
        messages = []
        peer = self.peer
        if peer.announces and peer.session.caller is not None:
            notice = session_notice(peer.session, change)
            if notice is not None:
                messages.append(notice)
        for listener in self._listeners.values():
            notice = listener.notice(change)
            if notice is not None:
                messages.append(notice)
        return self._notify(messages)

    def _sees(self, change: Change) -> bool:
        """Whether what has changed is visible to this client."""
        principal = self.peer.principal
        if change.principal is not None and change.principal != principal.name:
            return False
        if change.uri is None or principal.scopes is None:
            return True
        try:
            spec, _ = self.peer.server.hub.find_resource(change.uri)
        except NotFound:
            return False
        return principal.may(spec.scope)

    def on_defect(self, requests: list[wire.Id], error: PlexusError) -> list[Effect]:
        """Answer requests that could not be handled."""
        failure = _internal(error)
        return [effect for request in requests for effect in self._refuse(request, failure, None)]

    def on_call_defect(self, call: Any, error: PlexusError, seq: int) -> list[Effect]:
        """Answer a call whose result could not be made."""
        if not isinstance(call, Call):
            return self._other.on_call_defect(call, error, seq)
        # The defect may have struck while the answer was made, before it was sent.
        registered = self._calls.get(call.id) is call
        return self._effects(call, call.refuse(_internal(error))) if registered else []

    def on_shutdown(self) -> list[Effect]:
        """End the streams that listen, because the server is about to stop."""
        effects: list[Effect] = []
        for listener in self._listeners.values():
            info = self.peer.server.info(listener.revision)
            result = wire.encode_result(listener.id, listener.closing_result(info))
            effects += self._reply(result, None)
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
            effects += self._refuse(listener.id, error, None)
        self._listeners.clear()
        return effects if self._fallback is None else effects + self._fallback.revoked(reason)

    def peer_gone(self) -> list[Effect]:
        """The connection is over: cancel the runs that only its client waits for."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._listeners.clear()
        session = self.peer.session
        if not session.outlives_connection:
            session.end()
        gone: list[Effect] = [LeaveCall(call, cancel="disconnected") for call in calls]
        for call in calls:
            call.cancel()
        return gone if self._fallback is None else gone + self._fallback.peer_gone()

    @property
    def _other(self) -> Fallback:
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
            return self._reply(wire.encode_result(call.id, first.result), None)
        return self._translate(replies, call.id, call.batch, call)

    def _translate(
        self,
        replies: list[Reply],
        request_id: wire.Id,
        batch: BatchReply | None,
        call: Call | None,
    ) -> list[Effect]:
        """Turn replies to a request, or to a call, into effects."""
        effects: list[Effect] = []
        for reply in replies:
            if isinstance(reply, Answer):
                effects += self._end(wire.encode_result(request_id, reply.result), batch, call)
            elif isinstance(reply, Notify):
                effects += self._notify(reply.messages)
            elif isinstance(reply, NotifyCounted):
                effects += self._notify_counted(reply)
            elif isinstance(reply, Refuse):
                effects += self._end(self._error(request_id, reply.error), batch, call)
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
        if beyond > 0 and not (_is_immediate(effect) or self._is_control(effect, beyond)):
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
        return self._notify([listener.acknowledgement()])

    def _end(self, answer: bytes, batch: BatchReply | None, call: Call | None) -> list[Effect]:
        """Send the answer to a request, or to a call, which is over then."""
        if call is None:
            return self._reply(answer, batch)
        self._calls.pop(call.id, None)
        if batch is None:
            return self._reply(answer, None)
        batch.open -= 1
        batch.add(answer)
        return self._flush(batch)

    def _notify(self, messages: list[bytes]) -> list[Effect]:
        """Send these messages of ours, unless only answers can be sent here."""
        if not messages or not self.streaming:
            return []
        framing = self._framing
        return [Send(messages if framing is None else list(map(framing.message, messages)))]

    def _notify_counted(self, counted: NotifyCounted) -> list[Effect]:
        template, first, parts = counted
        framing = self._framing
        if framing is not None:
            return [Send(framing.items(framing.message(template), first, parts))]
        return [Send([template % pair for pair in enumerate(parts, first)])]

    def _refuse(
        self, request_id: wire.Id, error: ProtocolError, batch: BatchReply | None
    ) -> list[Effect]:
        """Answer a request with an error."""
        return self._reply(self._error(request_id, error), batch)

    def _error(self, request_id: wire.Id, error: ProtocolError) -> bytes:
        self.refusal = error
        limit = self.peer.server.hub.limits.error_bytes
        return wire.encode_error(request_id, error.code, error.message, error.data, limit=limit)

    def _reply(self, reply: bytes, batch: BatchReply | None) -> list[Effect]:
        if batch is not None:
            batch.add(reply)
            return []
        return [Send([reply if self._framing is None else self._framing.message(reply)])]

    def _flush(self, batch: BatchReply) -> list[Effect]:
        array = batch.taken()
        return [] if array is None else self._reply(array, None)


def _is_immediate(effect: Effect) -> bool:
    """Whether a call that begins with this effect is over before the next message comes."""
    return isinstance(effect, AnswerQuestion)


def _full(limit: int) -> ProtocolError:
    busy = connection_full(limit)
    return ProtocolError(BUSY, busy.message, busy.data)


def _internal(error: PlexusError) -> ProtocolError:
    return ProtocolError(wire.INTERNAL_ERROR, error.message, error.data)
