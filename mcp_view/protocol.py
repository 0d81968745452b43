"""The MCP connection, sans-IO: messages of a client in, effects out; items of runs in, effects out.

Rules:
- The revision is chosen per message: a message that names its revision is answered in that
  revision, any other message in the revision negotiated by `initialize`.
- A request has exactly one answer, and nothing about it is sent after the answer. A cancelled
  request has no answer.
- No message closes the connection. Messages that are not requests are handled without an answer.
- No clock, no randomness, no awaiting: time is a parameter, and the driver waits.
- Handlers and calls return replies and effects. They only read runs and the hub; the driver changes
  them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from mcp_view.calls.call import RUNNING, STARTING, Call, Step
from mcp_view.calls.tool import ToolCall
from mcp_view.errors import BUSY, DENIED, ProtocolError, RunNotLoaded, protocol_error
from mcp_view.methods import INITIALIZE, METHODS, Method, find_method
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
from mcp_view.session import Caller, Peer, Session, is_stateless
from mcp_view.subscriptions import Listener, is_visible, session_notification
from plexus.errors import Internal, PlexusError
from plexus.limits import CONTROL_CALLS
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from plexus.rpc.effects import (
    AnswerQuestion,
    AttachCall,
    CancelRun,
    Effect,
    LeaveCall,
    LoadRun,
    Reported,
    StartCall,
)
from plexus.rpc.replies import BatchReply
from plexus.runtime.changes import Change
from plexus.runtime.log import Batch
from plexus.runtime.run import Run
from plexus.runtime.shares import connection_full

__all__ = ("Fallback", "LoadingCall", "McpConnection")

#: Maximum characters kept of a client's reason for cancelling a request.
REASON_CHARS: Final = 1000
#: Effects that start a call.
_START_EFFECTS: Final = frozenset({StartCall, AttachCall, AnswerQuestion, CancelRun})


class LoadingCall(Call):
    """A request that is handled again once its run is loaded from the run store."""

    def __init__(self, peer: Peer, request: wire.Request, caller: Caller) -> None:
        super().__init__(peer, request.id, caller)
        self.request = request


class Fallback(Protocol):
    """The view of another protocol, which handles methods that MCP does not define."""

    @property
    def idle(self) -> bool: ...
    def receive(self, message: wire.Message | list[wire.Message]) -> list[Effect]: ...
    def on_started(self, call: Any, run: Run) -> list[Effect]: ...
    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]: ...
    def on_items(self, call: Any, batch: Batch) -> list[Effect]: ...
    def on_revoked(self, reason: str) -> list[Effect]: ...
    def on_call_error(self, call: Any, error: PlexusError, seq: int) -> list[Effect]: ...
    def on_disconnect(self) -> list[Effect]: ...


class McpConnection:
    """One stream of messages to and from a client. The driver performs the effects it returns."""

    __slots__ = (
        "_calls",
        "_fallback",
        "_listeners",
        "_methods",
        "_stateless",
        "_writer",
        "peer",
        "streaming",
    )

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
        methods: Mapping[str, Method] = METHODS,
    ) -> None:
        """Create a connection.

        `framing` frames messages for the transport; None if messages are framed later.
        `streaming`: notifications and requests can be sent, not only answers.
        `change_notifications`: send the session's change notifications on this connection.
        `stateless`: every message must name its revision.
        `methods`: the table of methods, if it is not that of the whole protocol.
        """
        self.peer = Peer(server, session, principal, streaming, change_notifications)
        self.streaming = streaming
        self._writer = ReplyWriter(framing, streaming, server.hub.limits.error_bytes)
        self._fallback = fallback
        self._stateless = stateless
        self._methods = methods
        self._calls: dict[wire.Id, Call] = {}
        self._listeners: dict[wire.Id, Listener] = {}

    @property
    def refusal(self) -> ProtocolError | None:
        """The last error that was sent as the answer to a request."""
        return self._writer.refusal

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        busy = self._calls or self._listeners
        return not busy and (self._fallback is None or self._fallback.idle)

    def concerns(self, message: wire.Notification | wire.Response) -> bool:
        """Whether a response or a cancellation is about a request in progress here."""
        if isinstance(message, wire.Response):
            return any(message.id in call.client_requests for call in self._calls.values())
        params = message.params if isinstance(message.params, dict) else {}
        request_id = params.get("requestId")
        if request_id.__class__ is not int and request_id.__class__ is not str:
            return False
        return request_id in self._calls or request_id in self._listeners

    # --- requests that move between servers ---------------------------------------------------

    def movable_call(self) -> ToolCall | None:
        """Return the only call in progress, if another server could continue it."""
        if len(self._calls) != 1:
            return None
        call = next(iter(self._calls.values()))
        return call if isinstance(call, ToolCall) and call.caller.revision.handshake else None

    def adopt(self, call: Call) -> None:
        """Register a call that another server has started and the transport attaches to its run."""
        self._calls[call.id] = call

    def hand_over(self) -> list[Effect]:
        """Leave all runs to another server, which answers their requests."""
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.cancel()
        return [LeaveCall(call) for call in calls]

    # --- messages in --------------------------------------------------------------------------

    def receive(self, message: wire.Message | list[wire.Message]) -> list[Effect]:
        """Handle a message or a batch."""
        if message.__class__ is wire.Request:
            return self._request(message, None)
        if isinstance(message, list):
            return self._batch(message)
        return self._single(message, None)

    def _batch(self, messages: list[wire.Message]) -> list[Effect]:
        revision = self.peer.session.revision
        if revision is None or not revision.batches or any(map(is_stateless, messages)):
            reason = "This protocol revision has no batches. Send each message separately."
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

    def _request(
        self, request: wire.Request, batch: BatchReply | None, *, loaded: bool = False
    ) -> list[Effect]:
        """Handle a request. `loaded`: the run that it needs was loaded before."""
        try:
            return self._handle(request, batch, loaded=loaded)
        except ProtocolError as error:
            return self._writer.refuse(request.id, error, batch)
        except Exception as error:  # noqa: BLE001 - a defect of a handler; the request is answered
            failure = _internal(Internal.report(request.method[:128], error))
            return self._writer.refuse(request.id, failure, batch)

    def _handle(
        self, request: wire.Request, batch: BatchReply | None, *, loaded: bool
    ) -> list[Effect]:
        request_id, name, _ = request
        if name not in self._methods and self._is_fallback(name, batch):
            return self._other_view.receive(request)
        method, params, caller = find_method(
            self.peer, request, self._methods, stateless=self._stateless
        )
        if method is INITIALIZE and batch is not None:
            raise ProtocolError(wire.INVALID_REQUEST, "initialize must not be part of a batch.")
        if caller is not None and (request_id in self._calls or request_id in self._listeners):
            reason = f"A request with the id {request_id!r} is in progress. Use another id."
            raise ProtocolError(wire.INVALID_REQUEST, reason)
        try:
            replies = method.handle(self.peer, request_id, params, caller)
        except RunNotLoaded as missing:
            if loaded or caller is None:
                raise
            call = LoadingCall(self.peer, request, caller)
            return self._register(LoadRun(call, missing.run), batch)
        if replies[0].__class__ in _START_EFFECTS:  # it is then the only reply
            return self._register(replies[0], batch)
        return self._translate(replies, request_id, batch)

    def _is_fallback(self, name: str, batch: BatchReply | None) -> bool:
        """Whether a method that MCP does not define is a method of the hub."""
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
        """End a request that the client has cancelled, without an answer."""
        request_id = params.get("requestId")
        if request_id.__class__ is not int and request_id.__class__ is not str:
            return []  # excludes true, which equals 1
        listener = self._listeners.pop(request_id, None)
        if listener is not None:
            listener.unwatch(self.peer)
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
            call.batch.pending -= 1
            return effects + self._writer.flush(call.batch)
        return effects

    def _response(self, response: wire.Response) -> list[Effect]:
        for call in self._calls.values():
            if response.id in call.client_requests and call.expects(Step.RESPONSE):
                return self._effects(call, call.on_response(response))
        return []

    # --- reports of the driver ----------------------------------------------------------------

    def on_started(self, call: Any, run: Run) -> list[Effect]:
        """Handle the start of a call's run."""
        if not isinstance(call, Call):
            return self._other_view.on_started(call, run)
        if call.state is not STARTING:  # the table allows STARTED only here
            return []
        return self._effects(call, call.on_started(run))

    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]:
        """Handle a call whose run did not start."""
        if not isinstance(call, Call):
            return self._other_view.on_refused(call, error)
        return self._effects(call, call.on_refused(error)) if call.expects(Step.REFUSED) else []

    def on_items(self, call: Any, batch: Batch) -> list[Effect]:
        """Handle the next items of a call's run."""
        if not isinstance(call, Call):
            return self._other_view.on_items(call, batch)
        if call.state is not RUNNING:  # the table allows ITEMS only here
            return []
        return self._effects(call, call.on_items(batch))

    def on_timer(self, call: Call) -> list[Effect]:
        """Continue a call when its timer expires."""
        return self._effects(call, call.on_timer()) if call.expects(Step.TIMER) else []

    def on_outcome(self, effect: Reported, error: PlexusError | None) -> list[Effect]:
        """Continue a call after the driver performed its effect, or failed with this error."""
        call: Call = effect.call
        if not call.expects(Step.OUTCOME):
            return []
        if isinstance(call, LoadingCall):
            return self._on_loaded(call, error)
        return self._effects(call, call.on_outcome(effect, error))

    def _on_loaded(self, call: LoadingCall, error: PlexusError | None) -> list[Effect]:
        """Handle a request again. A run that was not found now leads to the error for that."""
        if error is not None and error.code != "not_found":
            return self._effects(call, call.refuse(protocol_error(error, call.caller.revision)))
        call.cancel()
        del self._calls[call.id]
        effects = self._request(call.request, call.batch, loaded=True)
        if call.batch is None:
            return effects
        call.batch.pending -= 1
        return effects + self._writer.flush(call.batch)

    def on_change(self, change: Change) -> list[Effect]:
        """Notify the client of a change of the hub."""
        if not is_visible(change, self.peer):
            return []
        messages = [listener.notification(change) for listener in self._listeners.values()]
        peer = self.peer
        if peer.change_notifications and peer.session.caller is not None:
            messages.insert(0, session_notification(peer.session, change))
        return self._writer.notify([message for message in messages if message is not None])

    def on_request_error(self, requests: list[wire.Id], error: PlexusError) -> list[Effect]:
        """Answer requests whose handling raised an unexpected error."""
        failure = _internal(error)
        return [
            effect for request in requests for effect in self._writer.refuse(request, failure, None)
        ]

    def on_call_error(self, call: Any, error: PlexusError, seq: int) -> list[Effect]:
        """Answer a call whose handling raised an unexpected error."""
        if not isinstance(call, Call):
            return self._other_view.on_call_error(call, error, seq)
        # The error may have been raised after the state changed to ANSWERED but before the answer
        # was sent, so the state does not decide.
        registered = self._calls.get(call.id) is call
        return self._effects(call, call.refuse(_internal(error))) if registered else []

    def on_shutdown(self) -> list[Effect]:
        """Close the notification streams, because the server is stopping."""
        effects: list[Effect] = []
        for listener in self._listeners.values():
            info = self.peer.server.info(listener.revision)
            result = wire.encode_result(listener.id, listener.closing_result(info))
            effects += self._writer.send(result, None)
        self._remove_listeners()
        return effects

    def on_revoked(self, reason: str) -> list[Effect]:
        """Handle a revoked credential: cancel all runs and answer their requests with an error."""
        error = ProtocolError(DENIED, reason)
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            effects += [LeaveCall(call, cancel=reason), *self._effects(call, call.refuse(error))]
        for listener in self._listeners.values():
            effects += self._writer.refuse(listener.id, error, None)
        self._remove_listeners()
        return effects if self._fallback is None else effects + self._fallback.on_revoked(reason)

    def on_disconnect(self) -> list[Effect]:
        """Handle a disconnect: cancel the runs of all open calls."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._remove_listeners()
        session = self.peer.session
        if not session.outlives_connection:
            session.close()
        gone: list[Effect] = [
            LeaveCall(call, cancel="disconnected", disconnected=True) for call in calls
        ]
        for call in calls:
            call.cancel()
        return gone if self._fallback is None else gone + self._fallback.on_disconnect()

    @property
    def _other_view(self) -> Fallback:
        assert self._fallback is not None, "only the fallback starts calls of another kind"
        return self._fallback

    # --- replies as effects -------------------------------------------------------------------

    def _effects(self, call: Call, replies: list[Reply]) -> list[Effect]:
        """Convert the replies of a call to effects."""
        if not replies:
            return []
        first = replies[0]
        if isinstance(first, Answer) and call.batch is None:  # the common case: the only reply
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
        """Convert replies to effects. `call` is None if the request started no call."""
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
        """Register the call that this effect starts.

        Raises ProtocolError if the limit of requests in progress is reached. A few calls of control
        methods are accepted above the limit.
        """
        limit = self.peer.server.hub.limits.calls_in_flight
        beyond = len(self._calls) + len(self._listeners) + 1 - limit
        # A call that only answers questions or cancels a run ends before the next message is read,
        # unless the run is one of another process. The driver limits the number of those.
        immediate = isinstance(effect, AnswerQuestion | CancelRun)
        if beyond > 0 and not immediate and not self._is_control(effect, beyond):
            raise _full(limit)
        call: Call = effect.call
        self._calls[call.id] = call
        if batch is not None:
            call.batch = batch
            batch.pending += 1
        return [effect]

    def _is_control(self, effect: StartCall | AttachCall | LoadRun, beyond: int) -> bool:
        """Whether this effect calls a control method within the allowance for those."""
        if beyond <= CONTROL_CALLS and isinstance(effect, LoadRun):
            return True  # for a request about a task
        if beyond > CONTROL_CALLS or not isinstance(effect, StartCall):
            return False
        spec = effect.spec or self.peer.server.hub.resolve(effect.method)
        return spec.purpose == "control"

    def _add_listener(self, listener: Listener) -> list[Effect]:
        limit = self.peer.server.hub.limits.calls_in_flight
        if len(self._calls) + len(self._listeners) >= limit:
            raise _full(limit)
        self._listeners[listener.id] = listener
        listener.watch(self.peer)
        return self._writer.notify([listener.acknowledgement()])

    def _remove_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.unwatch(self.peer)
        self._listeners.clear()

    def _end(self, answer: bytes, batch: BatchReply | None, call: Call | None) -> list[Effect]:
        """Send the answer to a request and end its call, if it has one."""
        if call is not None:
            self._calls.pop(call.id, None)
            if batch is not None:
                batch.pending -= 1
        effects = self._writer.send(answer, batch)
        return effects if call is None or batch is None else self._writer.flush(batch)


def _full(limit: int) -> ProtocolError:
    busy = connection_full(limit)
    return ProtocolError(BUSY, busy.message, busy.data)


def _internal(error: PlexusError) -> ProtocolError:
    return ProtocolError(wire.INTERNAL_ERROR, error.message, error.data)
