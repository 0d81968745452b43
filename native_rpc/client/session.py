"""The client's side of the native protocol, sans-IO: messages in, items out.

Rules:
- An `Exchange` is one call for as long as it lives, over however many connections. A `Session`
  is one connection's books: which request waits for its reply, which subscription is whose.
- Items are numbered 1, 2, 3... An item that came before is dropped, one that is missing ends the
  call with a `ProtocolError`; only a `gap` event may skip numbers, and it is passed on.
- A call that was left before its reply came is unsubscribed when the reply comes.
- No clock and no awaiting here; whoever waits is woken through a bell.
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
    """An event as a client sees it: a read-only mapping of its fields, and its number.

    Fields are attributes too (`item.data`), unless they are named like something that a mapping
    has (`items`, `get`), like `seq`, `time_ms` or `terminal`, or begin with an underscore;
    `item["..."]` gives those.
    """

    __slots__ = ("_fields", "_seq", "_time_ms")

    def __init__(self, seq: int, fields: dict[str, Any], time_ms: int | None = None) -> None:
        self._seq = seq
        self._fields = fields
        self._time_ms = time_ms

    @property
    def seq(self) -> int:
        """The item's number in its run, from 1."""
        return self._seq

    @property
    def time_ms(self) -> int | None:
        """When the server wrote it, in milliseconds since the epoch; None unless the call was made
        with `_times=True`."""
        return self._time_ms

    @property
    def terminal(self) -> bool:
        """Whether this is the run's last item."""
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
        raise AttributeError(f"this event has no field {name!r}: {self!r}")

    def __repr__(self) -> str:
        fields = "".join(f", {name}={value!r}" for name, value in self._fields.items())
        return f"Item(seq={self._seq}{fields})"


class Exchange:
    """One call: what is asked, what has come, and how it ended."""

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
        #: Whether it looks at a run that somebody began, and so does not own it.
        self.follows = method in ATTACH
        #: The name under which the server finds the run again. Positional parameters have no
        #: place for one.
        self.key: str | None = None
        self.seq = 0
        self.run: int | None = None
        if isinstance(params, dict):
            if self.follows:
                self.run, self.seq = params.get("run"), params.get("after", 0)
            else:
                self.key = params.get(RUN_KEY, new_key)
        #: The number that the present connection knows it by.
        self.subscription: int | None = None
        #: Whether a server may have seen the request.
        self.sent = False
        #: When the request whose reply is awaited was sent; set by whoever has a clock.
        self.sent_at: float | None = None
        self.abandoned = False
        self.done = False
        self.error: PlexusError | None = None
        self.terminal: Item | None = None
        #: Rung when anything of the above changes, or an item comes.
        self.changed = Signal()
        #: Where its items are counted until they are taken.
        self.unread = unread
        self._unread_items: deque[tuple[Item, int]] = deque()

    # --- for whoever reads it -----------------------------------------------------------------

    def pop_item(self) -> Item | None:
        """The next item that nobody has taken; None if there is none at the moment."""
        if not self._unread_items:
            return None
        item, size = self._unread_items.popleft()
        self.unread.remove(size)
        return item

    def abandon(self) -> None:
        """Nobody wants any more of it."""
        self.abandoned = True
        if not self.done:
            self._end(None)
        while self.pop_item() is not None:
            pass

    # --- for whoever carries it ---------------------------------------------------------------

    @property
    def resumable(self) -> bool:
        """Whether it can be asked again on another connection without running twice."""
        return not self.sent or self.key is not None or (self.follows and self.run is not None)

    def request_params(self) -> Params:
        """What to send: for the first time, or to go on after the last item that came."""
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
        """The server has accepted it. Raises ConnectionLost if this is not the run it was."""
        self.sent_at = None
        self.subscription = number
        known, self.run = self.run, self.run or number
        self.changed.notify()
        has_own_key = isinstance(self.params, dict) and RUN_KEY not in self.params
        if known not in (None, number) and self.key is not None and has_own_key:
            raise ConnectionLost(
                f"the server has forgotten run {known} of {self.method}; it may have been restarted"
            )

    def on_refused(self, error: PlexusError) -> None:
        """The server does not do it."""
        if isinstance(error, NotFound) and self.key is not None and self.run is not None:
            lost = ConnectionLost(f"the server has forgotten run {self.run} of {self.method}")
            lost.__cause__ = error
            error = lost
        self.fail(error)

    def on_item(
        self, seq: int, fields: dict[str, Any], size: int, time_ms: int | None = None
    ) -> None:
        """An item has come. Raises ProtocolError if one before it is missing."""
        kind = fields.get("type")
        terminal = kind in TERMINALS
        if seq != self.seq + 1 and kind != Gap.type:
            if seq <= self.seq and not terminal:
                return
            if seq > self.seq:
                raise ProtocolError(
                    f"{self.method}: item {seq} came after item {self.seq}; some are missing",
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
        """End it with this error, unless it is over already."""
        if not self.done:
            self._end(error)

    def _end(self, error: PlexusError | None) -> None:
        self.done = True
        self.error = error
        self.sent_at = None
        self.changed.notify()


class Session:
    """The books of one connection."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, Exchange] = {}
        self._subscribed: dict[int, Exchange] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing more is expected here."""
        return not self._waiting and not self._subscribed

    def start(self, exchange: Exchange, max_bytes: int) -> bytes | None:
        """The request for this call; None, and the call has failed, if it cannot be sent."""
        request_id = next(self._ids)
        try:
            frame = wire.encode_request(request_id, exchange.method, exchange.request_params())
        except TypeError as error:
            exchange.fail(InvalidParams(f"{exchange.method}: its parameters: {error}"))
            return None
        if len(frame) > max_bytes:
            too_big = f"{exchange.method}: the request of {len(frame)} bytes is over the limit"
            exchange.fail(TooBig(f"{too_big} of {max_bytes}", data={"limit": max_bytes}))
            return None
        self._waiting[request_id] = exchange
        exchange.sent = True
        return frame

    def unsubscribe(self, exchange: Exchange) -> bytes | None:
        """What to send so that no more of this call comes; None if there is nothing to say yet."""
        number = exchange.subscription
        if number is None or self._subscribed.get(number) is not exchange:
            return None
        del self._subscribed[number]
        return _unsubscribe(number)

    def receive(self, message: wire.Message, size: int) -> bytes | None:
        """Take a message of so many bytes; what is returned is to be sent."""
        if isinstance(message, wire.Notification):
            return self._item(message.params, size)
        if isinstance(message, wire.Response):
            return self._reply(message)
        logger.warning("the server sent what is neither a reply nor an item: %.200r", message)
        return None

    def open_exchanges(self) -> list[Exchange]:
        """The calls that are under way here and still wanted."""
        under_way = (*self._subscribed.values(), *self._waiting.values())
        return [exchange for exchange in under_way if not exchange.done]

    def disconnect(self) -> list[Exchange]:
        """The connection is gone: the calls to ask for again, in the order to ask in."""
        # A server numbers a subscription like its run unless that number is taken, so whoever
        # owns a run asks before those who only follow it.
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
                # It is about the connection as a whole, which the server ends after that.
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
                ProtocolError(f"{exchange.method} was answered with no subscription: {number!r}")
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
                logger.warning("the server sent a notification that is no item: %.200r", params)
                return None
        if exchange is None:  # it was left, and the server has not heard of that yet
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
