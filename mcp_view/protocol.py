"""The view, sans-IO: messages of a client in, effects out; items of runs in, effects out.

Rules:
- The revision is chosen per message: one that says which it speaks is answered in it, every
  other is answered in the revision that `initialize` agreed on.
- A request has one answer, and nothing about it is sent after that. A request that was cancelled
  has none.
- Whatever comes is answered or, if it is no request, forgotten; nothing ends the connection.
- No clock, no randomness, no awaiting: time is handed in, waiting is the driver's.
"""

from __future__ import annotations

from typing import Any, Protocol

from mcp_view.calls.call import Call
from mcp_view.catalogue import Entries
from mcp_view.cursors import cursor_key, page_of
from mcp_view.lifecycle import initialize
from mcp_view.progress import Counted
from mcp_view.server import McpServer
from mcp_view.session import Caller, Session, is_stateless, stateless_caller
from mcp_view.subscriptions import Listening, session_notice
from mcp_view.tables.errors import BUSY, DENIED, NOT_INITIALIZED, ProtocolError, http_status
from mcp_view.tables.methods import METHODS
from plexus.defects import report
from plexus.errors import NotFound, PlexusError
from plexus.events import Request as Question
from plexus.limits import CONTROL_CALLS
from plexus.principal import LOCAL, Principal
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import Effect, LeaveCall, Send, StartCall
from plexus.runtime.hub import Change
from plexus.runtime.log import Batch
from plexus.runtime.run import Run
from plexus.runtime.shares import connection_full

__all__ = ("Fallback", "Framing", "McpConnection")


#: How much is kept of a client's reason to cancel a request.
REASON_CHARS = 1000


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
    def counted(self, template: bytes, first: int, parts: list[bytes]) -> list[bytes]: ...


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
        go this way, and `stateless` whether messages must say themselves which revision they
        speak."""
        self.server = server
        self.session = session
        self.principal = principal
        self.streaming = streaming
        self.announces = announces
        #: The HTTP status that an answer given at once is to have.
        self.status = 200
        #: The scope for want of which a request was refused at once.
        self.missing_scope: str | None = None
        self._framing = framing
        self._fallback = fallback
        self._stateless = stateless
        self._calls: dict[wire.Id, Call] = {}
        self._listening: dict[wire.Id, Listening] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is under way here."""
        return (
            not self._calls
            and not self._listening
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
        revision = self.session.revision
        if revision is None or not revision.batches or any(map(is_stateless, messages)):
            reason = "batches are not part of the revision that is spoken here"
            return self.refuse(None, ProtocolError(wire.INVALID_REQUEST, reason), None)
        batched = BatchReply()
        effects = [effect for entry in messages for effect in self._single(entry, batched)]
        return effects + self._flush(batched)

    def _single(self, message: wire.Message, batched: BatchReply | None) -> list[Effect]:
        if isinstance(message, wire.Request):
            return self._request(message, batched)
        if isinstance(message, wire.Notification):
            return self._notification(message)
        if isinstance(message, wire.Response):
            return self._response(message)
        failure = ProtocolError(message.code, message.message, message.data)
        return self.refuse(message.id, failure, batched)

    def _request(self, request: wire.Request, batched: BatchReply | None) -> list[Effect]:
        try:
            return self._handle(request, batched)
        except ProtocolError as error:
            return self.refuse(request.id, error, batched)
        except Exception as error:  # noqa: BLE001 - a handler's defect; the request is answered
            begun = self._calls.pop(request.id, None)
            if begun is not None and begun.batched is not None:
                begun.batched.open -= 1
            return self.refuse(request.id, _internal(report(request.method[:128], error)), batched)

    def _handle(self, request: wire.Request, batched: BatchReply | None) -> list[Effect]:
        request_id, name, params = request
        if params is None:
            params = {}
            request = wire.Request(request_id, name, params)
        method = METHODS.get(name)
        if method is None and name != "initialize":
            return self._unknown(request, batched)
        if request_id is None:
            raise ProtocolError(wire.INVALID_REQUEST, "an id must be a string or an integer")
        if params.__class__ is not dict:
            raise ProtocolError(wire.INVALID_PARAMS, "params must be an object")
        if self._stateless or ("_meta" in params and is_stateless(request)):
            caller: Caller | None = stateless_caller(params)
        elif method is None:
            return self._initialize(request, batched)
        else:
            caller = self.session.caller
        if caller is None:
            if method is not None and method.before_initialize:
                return method.handle(self, request, None, batched)
            raise ProtocolError(NOT_INITIALIZED, "Server not initialized")
        if method is None or not method.first <= caller.revision.order <= method.last:
            raise ProtocolError(wire.METHOD_NOT_FOUND, f"Method not found: {name[:128]}")
        if request_id in self._calls or request_id in self._listening:
            raise ProtocolError(wire.INVALID_REQUEST, "a request with this id is under way already")
        return method.handle(self, request, caller, batched)

    def _initialize(self, request: wire.Request, batched: BatchReply | None) -> list[Effect]:
        if batched is not None:
            raise ProtocolError(wire.INVALID_REQUEST, "initialize must not be part of a batch")
        return initialize(self, request)

    def _unknown(self, request: wire.Request, batched: BatchReply | None) -> list[Effect]:
        """A method of this protocol it is not; it may be one of the hub."""
        known = self.server.hub.find_method(request.method) is not None
        if self._fallback is not None and batched is None and known:
            return self._fallback.receive(request)
        if self._stateless or is_stateless(request):
            # Report missing `_meta` fields before an unknown method.
            stateless_caller(request.params if isinstance(request.params, dict) else {})
        elif self.session.caller is None and "/" in request.method:
            raise ProtocolError(NOT_INITIALIZED, "Server not initialized")
        raise ProtocolError(wire.METHOD_NOT_FOUND, f"Method not found: {request.method[:128]}")

    def _notification(self, message: wire.Notification) -> list[Effect]:
        params = message.params if isinstance(message.params, dict) else {}
        if message.method == "notifications/cancelled":
            return self._cancelled(params)
        if message.method == "notifications/initialized":
            self.session.initialized = self.session.caller is not None
            return []
        if self._fallback is not None and "/" not in message.method:
            return self._fallback.receive(message)
        return []

    def _cancelled(self, params: dict[str, Any]) -> list[Effect]:
        """The client does not want an answer any more, and gets none."""
        request_id = params.get("requestId")
        if request_id.__class__ is not int and request_id.__class__ is not str:
            return []  # and true is not 1
        if self._listening.pop(request_id, None) is not None:
            return []
        call = self._calls.pop(request_id, None)
        if call is None:
            return []
        reason = params.get("reason")
        why = "cancelled by the client"
        if reason and isinstance(reason, str):
            why += f": {reason[:REASON_CHARS]}"
        leave: list[Effect] = [LeaveCall(call, cancel=why), *self.sending(call.withdrawn())]
        if call.batched is not None:
            call.batched.open -= 1
            return leave + self._flush(call.batched)
        return leave

    def _response(self, response: wire.Response) -> list[Effect]:
        for call in self._calls.values():
            if call.sent and response.id in call.sent:
                call.on_response(response)
                break
        return []

    # --- what became of a call ----------------------------------------------------------------

    def on_started(self, call: Any, run: Run) -> list[Effect]:
        """The call leads to this run."""
        if isinstance(call, Call):
            return call.on_started(self, run)
        return self._other.on_started(call, run)

    def on_refused(self, call: Any, error: PlexusError) -> list[Effect]:
        """The call did not begin, for this reason."""
        if isinstance(call, Call):
            return call.on_refused(self, error)
        return self._other.on_refused(call, error)

    def on_items(self, call: Any, batch: Batch) -> list[Effect]:
        """The run has said this much more."""
        if isinstance(call, Call):
            return call.on_items(self, batch)
        return self._other.on_items(call, batch)

    def on_reminder(self, call: Call) -> list[Effect]:
        """The time that a call asked for has passed."""
        return call.on_reminder(self)

    def on_change(self, change: Change) -> list[Effect]:
        """The hub has changed."""
        if not self._sees(change):
            return []
        frames = []
        if self.announces and self.session.caller is not None:
            notice = session_notice(self.session, change)
            if notice is not None:
                frames.append(notice)
        for listening in self._listening.values():
            notice = listening.notice(change)
            if notice is not None:
                frames.append(notice)
        return self.sending(frames)

    def _sees(self, change: Change) -> bool:
        """Whether what has changed is there for this client."""
        if change.principal is not None and change.principal != self.principal.name:
            return False
        if change.uri is None or self.principal.scopes is None:
            return True
        try:
            spec, _ = self.server.hub.find_resource(change.uri)
        except NotFound:
            return False
        return self.principal.may(spec.scope)

    def on_defect(self, requests: list[wire.Id], error: PlexusError) -> list[Effect]:
        """Answer requests that could not be handled."""
        failure = _internal(error)
        return [effect for request in requests for effect in self.refuse(request, failure, None)]

    def on_call_defect(self, call: Any, error: PlexusError, seq: int) -> list[Effect]:
        """Answer a call whose result could not be made."""
        if not isinstance(call, Call):
            return self._other.on_call_defect(call, error, seq)
        return self.refuse_call(call, _internal(error)) if call.id in self._calls else []

    def farewell(self) -> list[Effect]:
        """The server is about to end: streams that listen are told so."""
        effects: list[Effect] = []
        for listening in self._listening.values():
            info = self.server.info(listening.caller.revision)
            effects += self.answer(listening.id, listening.farewell(info), None)
        self._listening.clear()
        return effects

    def revoked(self, reason: str) -> list[Effect]:
        """The client's credential is no longer valid: answer every request with an error, and
        stop the runs that were to answer them."""
        error = ProtocolError(DENIED, reason)
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            effects += [LeaveCall(call, cancel=reason), *self.refuse_call(call, error)]
        for listening in self._listening.values():
            effects += self.refuse(listening.id, error, None)
        self._listening.clear()
        return effects if self._fallback is None else effects + self._fallback.revoked(reason)

    def peer_gone(self) -> list[Effect]:
        """The connection is over, and so is every run that nobody else waits for."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._listening.clear()
        if not self.session.outlives_connection:
            self.session.end()
        gone: list[Effect] = [LeaveCall(call, cancel="disconnected") for call in calls]
        return gone if self._fallback is None else gone + self._fallback.peer_gone()

    @property
    def _other(self) -> Fallback:
        assert self._fallback is not None, "only it makes calls of another kind"
        return self._fallback

    # --- for handlers -------------------------------------------------------------------------

    def start(self, call: Call, effects: list[Effect]) -> list[Effect]:
        """Register a call; raises ProtocolError if too many are under way here. Past the limit a
        few control calls are let in."""
        under_way = len(self._calls) + len(self._listening)
        beyond = under_way + 1 - self.server.hub.limits.calls_in_flight
        if beyond > 0 and (beyond > CONTROL_CALLS or not self._are_control(effects)):
            raise self._full()
        self._calls[call.id] = call
        if call.batched is not None:
            call.batched.open += 1
        return effects

    def _full(self) -> ProtocolError:
        busy = connection_full(self.server.hub.limits.calls_in_flight)
        return ProtocolError(BUSY, busy.message, busy.data)

    def _are_control(self, effects: list[Effect]) -> bool:
        """Whether these effects call nothing but control methods."""
        resolve = self.server.hub.resolve
        return all(
            isinstance(effect, StartCall) and resolve(effect.method).purpose == "control"
            for effect in effects
        )

    def hold(self, listening: Listening) -> None:
        """Enter a stream that listens in the books; raises ProtocolError as `start` does."""
        if len(self._calls) + len(self._listening) >= self.server.hub.limits.calls_in_flight:
            raise self._full()
        self._listening[listening.id] = listening

    def find(self, run: int) -> Run:
        """A run of this client; raises NotFound."""
        return self.server.hub.runs.find(run, self.principal)

    def steer(self, run: int) -> Run:
        """A run of this client to stop or to answer; raises NotFound and Denied."""
        return self.server.hub.find_run_to_control(run, self.principal)

    def may_steer(self, run: Run) -> bool:
        """Whether this client may answer what this run asks."""
        return self.server.hub.may_control(run, self.principal)

    def kept(self) -> list[Run]:
        """The runs that this client was promised would be kept."""
        return self.server.hub.runs.kept(self.principal)

    def asks(self, caller: Caller) -> frozenset[str]:
        """The kinds of questions that can be put to a client here."""
        if self.streaming or not caller.revision.handshake:
            return caller.asks
        return frozenset()

    def can_ask(self, call: Call, question: Question) -> bool:
        """Whether the client can be asked this."""
        return question.kind in self.asks(call.caller)

    def sending(self, frames: list[bytes]) -> list[Effect]:
        """Send these messages of ours, unless only answers can be sent here."""
        if not frames or not self.streaming:
            return []
        framing = self._framing
        return [Send(frames if framing is None else list(map(framing.message, frames)))]

    def sending_counted(self, counted: Counted) -> list[Effect]:
        """The same for messages that are alike."""
        if self._framing is not None:
            return [Send(self._framing.counted(*counted))]
        template, first, parts = counted
        return [Send([template % pair for pair in enumerate(parts, first)])]

    def answer_page(
        self,
        request: wire.Request,
        caller: Caller,
        batched: BatchReply | None,
        name: bytes,
        entries: Entries,
    ) -> list[Effect]:
        """Answer with the page of a list that was asked for; raises ProtocolError."""
        after = cursor_key(request.params)  # type: ignore[arg-type]  # it was checked
        page, cursor = page_of(entries.keys, after, self.server.options.page_size)
        body = b"%b:[%b]" % (name, b",".join(entries.raws[page]))
        if cursor is not None:
            body += b',"nextCursor":' + wire.encode(cursor)
        return self.answer(request.id, self.server.cacheable(caller.revision, body), batched)

    def answer_call(self, call: Call, result: bytes) -> list[Effect]:
        """Answer a call, which is over with that."""
        self._calls.pop(call.id, None)
        if call.batched is None:
            return self._reply(wire.encode_result(call.id, result), None)
        call.batched.open -= 1
        call.batched.add(wire.encode_result(call.id, result))
        return self._flush(call.batched)

    def refuse_call(self, call: Call, error: ProtocolError) -> list[Effect]:
        """Answer a call with an error."""
        del self._calls[call.id]
        if call.batched is not None:
            call.batched.open -= 1
        effects = self.refuse(call.id, error, call.batched)
        return effects if call.batched is None else effects + self._flush(call.batched)

    def answer(
        self, request_id: wire.Id, result: bytes, batched: BatchReply | None
    ) -> list[Effect]:
        """Answer a request."""
        return self._reply(wire.encode_result(request_id, result), batched)

    def refuse(
        self, request_id: wire.Id, error: ProtocolError, batched: BatchReply | None
    ) -> list[Effect]:
        """Answer a request with an error."""
        self.status = http_status(error.code)
        if error.code == DENIED and isinstance(error.data, dict):
            self.missing_scope = error.data.get("scope")
        limit = self.server.hub.limits.error_bytes
        reply = wire.encode_error(request_id, error.code, error.message, error.data, limit=limit)
        return self._reply(reply, batched)

    def _reply(self, reply: bytes, batched: BatchReply | None) -> list[Effect]:
        if batched is not None:
            batched.add(reply)
            return []
        return [Send([reply if self._framing is None else self._framing.message(reply)])]

    def _flush(self, batched: BatchReply) -> list[Effect]:
        array = batched.taken()
        return [] if array is None else self._reply(array, None)


def _internal(error: PlexusError) -> ProtocolError:
    return ProtocolError(wire.INTERNAL_ERROR, error.message, error.data)
