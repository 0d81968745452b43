"""The native view, sans-IO: JSON-RPC messages in, effects out; items in, effects out.

    --> {"jsonrpc":"2.0","id":1,"method":"bash.execute","params":{"command":"ls"}}
    <-- {"jsonrpc":"2.0","id":1,"result":12345}
    <-- {"jsonrpc":"2.0","method":"bash.execute",
         "params":{"subscription":12345,"seq":1,"result":{"type":"start","pid":678}}}

Rules:
- Every call of a method is a subscription. Its number is the number of the run, unless this
  connection already uses that number. The last item is the terminal of the run and ends it.
- The reply with the number of a subscription is written before its first item, and nothing of the
  subscription is written after the answer to `plexus.unsubscribe`.
- A buffered connection (plain HTTP) answers a call once, when its run has ended. An answer above
  the limit keeps its head and tail and is marked as truncated; the run continues.
- No clock, no randomness, no awaiting: numbers are parameters, and the driver waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from native_rpc.errors import code_of
from native_rpc.framing import Framing
from plexus.errors import Denied, PlexusError
from plexus.events import Cancelled, ErrorEvent, Terminal
from plexus.limits import CONTROL_CALLS, Limits
from plexus.rpc import wire
from plexus.rpc.effects import Effect, LeaveCall, Reported, Send, StartCall
from plexus.rpc.replies import AnswerBuffer, BatchReply
from plexus.runtime.calls import TIMES
from plexus.runtime.changes import Change
from plexus.runtime.log import Batch
from plexus.runtime.run import Run
from plexus.runtime.shares import connection_full

__all__ = ("NativeConnection", "Subscription")

UNSUBSCRIBE = ("plexus.unsubscribe", "plexus_unsubscribe")


class Subscription:
    """One call of a connection."""

    __slots__ = (
        "batch",
        "buffer",
        "id",
        "is_notification",
        "method",
        "number",
        "resumable",
        "template",
        "timed",
    )

    def __init__(self, request_id: wire.Id, method: str, batch: BatchReply | None) -> None:
        self.id = request_id
        self.method = method
        self.batch = batch
        self.number = 0
        self.resumable = False
        #: Whether the request was a notification, which must not be answered.
        self.is_notification = False
        self.template = b""
        #: Whether the client requested the time of each item.
        self.timed = False
        #: The items so far, for an answer at the end.
        self.buffer: AnswerBuffer | None = None


class NativeConnection:
    """One connection to a client. The driver performs the effects it returns."""

    def __init__(
        self,
        framing: Framing,
        limits: Limits,
        new_id: Callable[[], int],
        *,
        buffered: bool = False,
        resumable: bool = False,
    ) -> None:
        self._framing = framing
        self._limits = limits
        self._new_id = new_id
        self._buffered = buffered
        #: Whether a client of this transport can resume a run for which it sent no key.
        self._resumable = resumable
        self._subscriptions: dict[int, Subscription] = {}
        #: Number of calls that the driver has neither started nor refused yet.
        self._starting = 0
        #: Item outlines by method. Bounded, because only existing methods get here.
        self._outlines: dict[str, bytes] = {}
        #: The scope whose absence caused the last refusal.
        self.missing_scope: str | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing more will be sent."""
        return not self._starting and all(
            call.is_notification for call in self._subscriptions.values()
        )

    # --- messages in --------------------------------------------------------------------------

    def receive(self, message: wire.Message | list[wire.Message]) -> list[Effect]:
        """Handle a message or a batch."""
        if message.__class__ is wire.Request:
            return self._request(message, None)
        if not isinstance(message, list):
            return self._single(message, None)
        batch = BatchReply()
        effects = [effect for entry in message for effect in self._single(entry, batch)]
        return effects + self._flush(batch)

    def _single(self, message: wire.Message, batch: BatchReply | None) -> list[Effect]:
        if isinstance(message, wire.Request):
            return self._request(message, batch)
        if isinstance(message, wire.Invalid):
            error = self._encode_error(message.id, message.code, message.message, message.data)
            return self._reply(error, batch)
        if isinstance(message, wire.Notification):
            return self._notification(message)
        return []  # a response, though this view sends no requests

    def _request(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        if request.method in UNSUBSCRIBE:
            return self._unsubscribe(request, batch)
        # The number of calls above the limit, including this call.
        beyond = len(self._subscriptions) + self._starting + 1 - self._limits.calls_in_flight
        if beyond > CONTROL_CALLS:
            busy = connection_full(self._limits.calls_in_flight)
            return self._reply(self._refusal(request.id, busy), batch)
        self._starting += 1
        if batch is not None:
            batch.pending += 1
        call = Subscription(request.id, request.method, batch)
        params = request.params
        if params:
            named = params[0] if isinstance(params, list) else params
            call.timed = isinstance(named, dict) and named.get(TIMES) is True
        start = StartCall(call, request.method, params)
        if beyond > 0:
            start.at_limit = True
        return [start]

    def _notification(self, message: wire.Notification) -> list[Effect]:
        """Start a call without answers or items, because JSON-RPC forbids an answer."""
        if message.method in UNSUBSCRIBE:
            request = wire.Request(None, message.method, message.params)
            effects = self._unsubscribe(request, None)
            return [effect for effect in effects if not isinstance(effect, Send)]
        beyond = len(self._subscriptions) + self._starting + 1 - self._limits.calls_in_flight
        if beyond > CONTROL_CALLS:
            return []  # a notification cannot be refused
        self._starting += 1
        call = Subscription(None, message.method, None)
        call.is_notification = True
        start = StartCall(call, message.method, message.params, owns=False)
        start.at_limit = beyond > 0
        return [start]

    def _unsubscribe(self, request: wire.Request, batch: BatchReply | None) -> list[Effect]:
        params = request.params
        if isinstance(params, list):
            params = params[0] if params and isinstance(params[0], dict) else _positional(params)
        given = params or {}
        number = given.get("subscription")
        if number.__class__ is not int or len(given) > 1:
            error = self._encode_error(
                request.id,
                wire.INVALID_PARAMS,
                "plexus.unsubscribe requires subscription, an integer, and no other parameter.",
            )
            return self._reply(error, batch)
        call = self._subscriptions.pop(number, None)
        reply = wire.encode_result(request.id, b"false" if call is None else b"true")
        effects: list[Effect] = []
        if call is not None:
            effects = [LeaveCall(call, cancel="unsubscribed", unsubscribed=True)]
        return effects + self._reply(reply, batch)

    # --- reports of the driver ----------------------------------------------------------------

    def on_started(self, call: Subscription, run: Run) -> list[Effect]:
        """Handle the start of a run: answer with the number of the subscription."""
        self._starting -= 1
        subscriptions = self._subscriptions
        number = run.id
        while number in subscriptions:
            number = self._new_id()
        call.number = number
        call.resumable = run.key is not None or self._resumable
        subscriptions[number] = call
        if self._buffered or call.is_notification:
            return []
        if call.timed:
            outline = self._framing.outline(call.method, timed=True)
        else:
            outline = self._outlines.get(call.method) or self._outline(call.method)
        call.template = self._framing.template(outline, number, run.id)
        reply = wire.encode_result(call.id, b"%d" % number)
        if call.batch is None:
            return [Send([self._framing.message(reply)])]
        return self._answer(call, reply)

    def follow(self, run: int, method: str, *, timed: bool = False) -> Subscription:
        """Create a subscription without a request, for the stream of one run."""
        call = Subscription(None, method, None)
        call.number = run
        call.resumable = True
        call.timed = timed
        outline = self._framing.outline(method, timed=timed)
        call.template = self._framing.template(outline, run, run)
        self._subscriptions[run] = call
        return call

    def on_refused(self, call: Subscription, error: PlexusError) -> list[Effect]:
        """Answer a call whose run did not start."""
        self._starting -= 1
        if error.code == "denied" and isinstance(error.data, dict):
            self.missing_scope = error.data.get("scope")
        if call.is_notification:
            return []
        return self._answer(call, self._refusal(call.id, error))

    def on_items(self, call: Subscription, batch: Batch) -> list[Effect]:
        """Send the next items of a run, or buffer them."""
        terminal = batch.terminal
        if call.is_notification:
            if terminal is not None:
                del self._subscriptions[call.number]
            return []
        if self._buffered:
            return self._buffer(call, batch, terminal)
        times = batch.times_ms() if call.timed else None
        frames = self._framing.items(call.template, batch.first, batch.payloads, times)
        if terminal is not None:
            del self._subscriptions[call.number]
        return [Send(frames)]

    def on_timer(self, _: Subscription) -> list[Effect]:
        """Do nothing: this view sets no timers."""
        return []

    def on_outcome(self, _: Reported, __: PlexusError | None) -> list[Effect]:
        """Do nothing: this view has no effects with an outcome."""
        return []

    def on_change(self, _: Change) -> list[Effect]:
        """Do nothing: native clients poll `plexus.hash`."""
        return []

    def on_request_error(self, requests: list[wire.Id], error: PlexusError) -> list[Effect]:
        """Answer requests whose handling raised an unexpected error."""
        return [
            effect
            for request in requests
            for effect in self._reply(self._refusal(request, error), None)
        ]

    def on_call_error(self, call: Subscription, error: PlexusError, seq: int) -> list[Effect]:
        """End a call whose items could not be encoded, with an error or a terminal."""
        self._subscriptions.pop(call.number, None)
        if call.is_notification:
            return []
        if self._buffered or not call.template:
            return self._answer(call, self._refusal(call.id, error))
        terminal = wire.encode_event(ErrorEvent(error.code, error.message, error.data))
        times = Batch(seq, [], [terminal]).times_ms() if call.timed else None
        return [Send(self._framing.items(call.template, seq, [terminal], times))]

    def on_shutdown(self) -> list[Effect]:
        """Do nothing: a run that is cancelled ends with a terminal."""
        return []

    def on_revoked(self, reason: str) -> list[Effect]:
        """Handle a revoked credential: cancel all calls and send an error.

        A buffered call has not been answered yet. Other calls were answered with their
        subscription, so their error has no request id.
        """
        calls = list(self._subscriptions.values())
        self._subscriptions.clear()
        effects: list[Effect] = [LeaveCall(call, cancel=reason) for call in calls]
        open_calls = [call for call in calls if not call.is_notification]
        error = Denied(reason)
        if self._buffered:
            for call in open_calls:
                effects += self._answer(call, self._refusal(call.id, error))
            return effects
        return effects + (self._reply(self._refusal(None, error), None) if open_calls else [])

    def on_disconnect(self) -> list[Effect]:
        """Handle a disconnect: cancel the calls that no client can resume."""
        gone = list(self._subscriptions.values())
        self._subscriptions.clear()
        return [
            LeaveCall(call, keep=True, disconnected=True)
            if call.resumable or call.is_notification
            else LeaveCall(call, cancel="disconnected", disconnected=True)
            for call in gone
        ]

    def _outline(self, method: str) -> bytes:
        outline = self._outlines[method] = self._framing.outline(method)
        return outline

    # --- answers ------------------------------------------------------------------------------

    def _buffer(self, call: Subscription, batch: Batch, terminal: Terminal | None) -> list[Effect]:
        buffer = call.buffer
        if buffer is None:
            buffer = call.buffer = AnswerBuffer(self._limits.answer_bytes)
        buffer.add(batch)
        if terminal is None:
            return []
        del self._subscriptions[call.number]
        *events, last = buffer.items()[1]
        truncated = b',"truncated":true' if buffer.truncated else b""
        body = b'{"run":%d,"events":[%b],"terminal":%b%b}' % (
            call.number,
            b",".join(events),
            last,
            truncated,
        )
        if isinstance(terminal, ErrorEvent | Cancelled):
            code = terminal.code if isinstance(terminal, ErrorEvent) else "cancelled"
            reply = wire.encode_error_raw(call.id, code_of(code), terminal.as_text(), body)
        else:
            reply = wire.encode_result(call.id, body)
        return self._answer(call, reply)

    def _refusal(self, request_id: wire.Id, error: PlexusError) -> bytes:
        return self._encode_error(request_id, code_of(error.code), error.message, error.data)

    def _encode_error(
        self, request_id: wire.Id, code: int, message: str, data: Any = None
    ) -> bytes:
        limit = self._limits.error_bytes
        return wire.encode_error(request_id, code, message, data, limit=limit)

    def _answer(self, call: Subscription, reply: bytes) -> list[Effect]:
        if call.batch is None:
            return self._reply(reply, None)
        call.batch.pending -= 1
        call.batch.add(reply)
        return self._flush(call.batch)

    def _reply(self, reply: bytes, batch: BatchReply | None) -> list[Effect]:
        if batch is not None:
            batch.add(reply)
            return []
        return [Send([self._framing.message(reply)])]

    def _flush(self, batch: BatchReply) -> list[Effect]:
        array = batch.flush()
        return [] if array is None else [Send([self._framing.message(array)])]


def _positional(params: list[Any]) -> dict[str, Any]:
    return {"subscription": params[0]} if len(params) == 1 else {}
