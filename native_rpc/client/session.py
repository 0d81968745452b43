"""The client side of the native protocol, sans-IO: messages in, items out.

Rules:
- An `Exchange` is one call for its whole life, over any number of connections. A `Session` is the
  state of one connection: pending requests and subscriptions.
- Items are numbered from 1. Repeated items are dropped; a missing item ends the call with a
  `ProtocolError`. Only a `gap` event, which is delivered, may skip numbers.
- A call that was abandoned before its reply is unsubscribed when the reply arrives.
- No clock and no awaiting; a signal wakes waiting tasks.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from native_rpc.client.limits import Signal, UnreadCounter
from native_rpc.errors import (
    ConnectionLost,
    ProtocolError,
    error_of_reply,
    error_of_terminal,
)
from plexus.errors import InvalidParams, NotFound, PlexusError, TooBig
from plexus.events import Cancelled, Complete, ErrorEvent, Gap
from plexus.rpc import wire

__all__ = ("Exchange", "Item", "Params", "Session")

logger = logging.getLogger("native_rpc.client")

Params = dict[str, Any] | list[Any] | None

RUN_KEY = "_run"
AFTER = "_after"
ATTACH = ("plexus.attach", "plexus_attach")
UNSUBSCRIBE = "plexus.unsubscribe"

TERMINALS = frozenset((Complete.type, ErrorEvent.type, Cancelled.type))


class Item(Mapping[str, Any]):
    """An event of a run: a read-only mapping of its fields, and its number.

    Fields are also attributes (`item.data`), except those with the name of a mapping method
    (`items`, `get`), those named `seq`, `time_ms` or `terminal`, and those that start with an
    underscore. Use `item["..."]` for those.
    """

    __slots__ = ("_fields", "_seq", "_time_ms")

    def __init__(self, seq: int, fields: dict[str, Any], time_ms: int | None = None) -> None:
        self._seq = seq
        self._fields = fields
        self._time_ms = time_ms

    @property
    def seq(self) -> int:
        """The number of the item in its run, from 1."""
        return self._seq

    @property
    def time_ms(self) -> int | None:
        """When the server wrote the item, in milliseconds since the epoch.

        None unless the call has the parameter `_times=True`.
        """
        return self._time_ms

    @property
    def terminal(self) -> bool:
        """Whether this is the last item of the run."""
        return self._fields.get("type") in TERMINALS

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._fields:
            return self._fields[name]
        raise AttributeError(f"This event has no field {name!r}: {self!r}")

    def __repr__(self) -> str:
        fields = "".join(f", {name}={value!r}" for name, value in self._fields.items())
        return f"Item(seq={self._seq}{fields})"


class Exchange:
    """One call: its request, its unread items, and its outcome."""

    __slots__ = (
        "_unread_items",
        "abandoned",
        "changed",
        "done",
        "error",
        "follows",
        "key",
        "method",
        "params",
        "run",
        "sent",
        "sent_at",
        "seq",
        "subscription",
        "terminal",
        "unread",
    )

    def __init__(
        self, method: str, params: Params, unread: UnreadCounter, *, new_key: str | None = None
    ) -> None:
        self.method = method
        self.params = params
        #: Whether the call reads an existing run, which it does not own.
        self.follows = method in ATTACH
        #: The idempotency key of the run. Positional parameters cannot contain one.
        self.key: str | None = None
        self.seq = 0
        self.run: int | None = None
        if isinstance(params, dict):
            if self.follows:
                self.run, self.seq = params.get("run"), params.get("after", 0)
            else:
                self.key = params.get(RUN_KEY, new_key)
        #: The number of the subscription on the current connection.
        self.subscription: int | None = None
        #: Whether a server may have received the request.
        self.sent = False
        #: When the pending request was sent; set by the transport, which has a clock.
        self.sent_at: float | None = None
        self.abandoned = False
        self.done = False
        self.error: PlexusError | None = None
        self.terminal: Item | None = None
        #: Notified when any of the above changes, or an item arrives.
        self.changed = Signal()
        #: Counts the items until they are consumed.
        self.unread = unread
        self._unread_items: deque[tuple[Item, int]] = deque()

    # --- for the call -------------------------------------------------------------------------

    def pop_item(self) -> Item | None:
        """Remove and return the next unread item; None if there is none at the moment."""
        if not self._unread_items:
            return None
        item, size = self._unread_items.popleft()
        self.unread.remove(size)
        return item

    def abandon(self) -> None:
        """End the call and discard its unread items."""
        self.abandoned = True
        if not self.done:
            self._end(None)
        while self.pop_item() is not None:
            pass

    # --- for the transport --------------------------------------------------------------------

    @property
    def resumable(self) -> bool:
        """Whether the request can be repeated on another connection without running twice."""
        return not self.sent or self.key is not None or (self.follows and self.run is not None)

    def request_params(self) -> Params:
        """Return the params to send: for the first time, or to resume after the last item."""
        if not isinstance(self.params, dict):
            return self.params
        if self.follows:
            return {**self.params, "after": self.seq}
        if self.key is None:
            return self.params
        params = {**self.params, RUN_KEY: self.key}
        if self.run is not None:
            params[AFTER] = self.seq
        return params

    def on_started(self, number: int) -> None:
        """Handle the acceptance of the call. Raises ConnectionLost if its run was replaced."""
        self.sent_at = None
        self.subscription = number
        known, self.run = self.run, self.run or number
        self.changed.notify()
        has_own_key = isinstance(self.params, dict) and RUN_KEY not in self.params
        if known not in (None, number) and self.key is not None and has_own_key:
            raise ConnectionLost(
                f"The server no longer has run {known} of {self.method}. It may have restarted."
            )

    def on_refused(self, error: PlexusError) -> None:
        """Handle the refusal of the call."""
        if isinstance(error, NotFound) and self.key is not None and self.run is not None:
            lost = ConnectionLost(f"The server no longer has run {self.run} of {self.method}.")
            lost.__cause__ = error
            error = lost
        self.fail(error)

    def on_item(
        self, seq: int, fields: dict[str, Any], size: int, time_ms: int | None = None
    ) -> None:
        """Handle an item. Raises ProtocolError if an earlier item is missing."""
        kind = fields.get("type")
        terminal = kind in TERMINALS
        if seq != self.seq + 1 and kind != Gap.type:
            if seq <= self.seq and not terminal:
                return
            if seq > self.seq:
                raise ProtocolError(
                    f"{self.method}: item {seq} arrived after item {self.seq}; some are missing.",
                    data={"run": self.run, "seq": seq, "expected": self.seq + 1},
                )
        self.seq = max(self.seq, seq)
        item = Item(seq, fields, time_ms)
        error = None
        if terminal:
            self.terminal = item
            error = error_of_terminal(fields)
        if error is None:
            self._unread_items.append((item, size))
            self.unread.add(size)
        if terminal:
            self._end(error)
        else:
            self.changed.notify()

    def fail(self, error: PlexusError) -> None:
        """End the call with this error, unless it is done."""
        if not self.done:
            self._end(error)

    def _end(self, error: PlexusError | None) -> None:
        self.done = True
        self.error = error
        self.sent_at = None
        self.changed.notify()


class Session:
    """The state of one connection: pending requests and subscriptions."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, Exchange] = {}
        self._subscribed: dict[int, Exchange] = {}

    @property
    def idle(self) -> bool:
        """Whether no reply or item is expected."""
        return not self._waiting and not self._subscribed

    def start(self, exchange: Exchange, max_bytes: int) -> bytes | None:
        """Return the encoded request of a call; None if it cannot be sent, and the call failed."""
        request_id = next(self._ids)
        try:
            frame = wire.encode_request(request_id, exchange.method, exchange.request_params())
        except TypeError as error:
            exchange.fail(
                InvalidParams(f"{exchange.method}: cannot encode the parameters: {error}")
            )
            return None
        if len(frame) > max_bytes:
            too_big = f"{exchange.method}: the request has {len(frame)} bytes, over the limit of"
            exchange.fail(TooBig(f"{too_big} {max_bytes}.", data={"limit": max_bytes}))
            return None
        self._waiting[request_id] = exchange
        exchange.sent = True
        return frame

    def unsubscribe(self, exchange: Exchange) -> bytes | None:
        """Return the message that unsubscribes a call; None if it has no subscription."""
        number = exchange.subscription
        if number is None or self._subscribed.get(number) is not exchange:
            return None
        del self._subscribed[number]
        return _unsubscribe(number)

    def receive(self, message: wire.Message, size: int) -> bytes | None:
        """Handle a message of this size. Returns a message to send, if any."""
        if isinstance(message, wire.Notification):
            return self._item(message.params, size)
        if isinstance(message, wire.Response):
            return self._reply(message)
        logger.warning(
            "the server sent a message that is neither a reply nor an item: %.200r", message
        )
        return None

    def open_exchanges(self) -> list[Exchange]:
        """Return the calls in progress on this connection that are not done."""
        in_progress = (*self._subscribed.values(), *self._waiting.values())
        return [exchange for exchange in in_progress if not exchange.done]

    def disconnect(self) -> list[Exchange]:
        """Handle a lost connection. Returns the calls to repeat, in order."""
        # A server numbers a subscription like its run unless that number is in use, so the owner of
        # a run must subscribe before calls that only read it.
        lost = sorted(self.open_exchanges(), key=lambda exchange: exchange.follows)
        for exchange in lost:
            exchange.subscription = exchange.sent_at = None
        self._subscribed.clear()
        self._waiting.clear()
        return lost

    def _reply(self, reply: wire.Response) -> bytes | None:
        exchange = self._waiting.pop(reply.id, None) if isinstance(reply.id, int) else None
        if exchange is None:
            if reply.id is None and reply.error is not None:
                # An error of the whole connection, which the server then closes.
                logger.warning("the server reports: %.200s", reply.error.get("message"))
            else:
                logger.warning("the server answered a request that was not sent: %.200r", reply)
            return None
        if reply.error is not None:
            exchange.on_refused(error_of_reply(reply.error))
            return None
        number = reply.result
        if not isinstance(number, int) or isinstance(number, bool):
            exchange.fail(
                ProtocolError(
                    f"{exchange.method}: the reply is not the number of a subscription: {number!r}"
                )
            )
            return None
        try:
            exchange.on_started(number)
        except ConnectionLost as error:
            exchange.fail(error)
        if exchange.done:
            return _unsubscribe(number)
        self._subscribed[number] = exchange
        return None

    def _item(self, params: Params, size: int) -> bytes | None:
        match params:
            case {"subscription": int(number), "seq": int(seq), "result": dict(fields)}:
                exchange = self._subscribed.get(number)
            case _:
                logger.warning("the server sent a notification that is not an item: %.200r", params)
                return None
        if exchange is None:  # abandoned, but the server has not processed it yet
            return None
        try:
            time_ms = params.get("time_ms")  # type: ignore[union-attr]  # it matched a dict
            exchange.on_item(seq, fields, size, time_ms if isinstance(time_ms, int) else None)
        except ProtocolError as error:
            exchange.fail(error)
            return self.unsubscribe(exchange)
        if exchange.done:
            del self._subscribed[number]
        return None


def _unsubscribe(number: int) -> bytes:
    return wire.encode_notification(UNSUBSCRIBE, {"subscription": number})
