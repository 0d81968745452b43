"""A call as a program holds it: to loop over, to await, or to enter.

Rules:
- Nothing is sent before the call is first used, and it runs at most once.
- Whoever stops listening stops the run: leaving the loop, the `async with` or the `await` in any
  way cancels it on the server. A call of `plexus.attach` owns no run, so it only stops listening.
- Inside `async with call` a loop may be left and entered again; leaving the block cancels.
- A run that failed raises its error after its last event; one that went well gives its
  `complete` event as the last.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

import anyio

from native_rpc.client.limits import ClientLimits, Unread
from native_rpc.client.session import Exchange, Item, Params
from native_rpc.errors import RunCancelled
from plexus.errors import DeadlineExceeded

__all__ = ("Call", "Carrier", "Items")


class Carrier(Protocol):
    """What takes calls to a server and brings back what becomes of them."""

    #: Whether calls outlive a connection.
    resumable: bool
    limits: ClientLimits

    def unread(self) -> Unread:
        """Where the items of a new call are counted."""

    def begin(self, exchange: Exchange) -> None:
        """Send it, now or when there is a connection again; it may fail at once."""

    def leave(self, exchange: Exchange) -> None:
        """Tell the server that nobody wants this any more. Harmless when it is over."""

    async def open(self) -> None:
        """Make sure that there is a server; raises ConnectionLost or Denied."""

    async def serve(self) -> None:
        """Carry, until cancelled."""

    async def close(self) -> None:
        """Leave whatever is open, and see it told to the server. Bounded in time."""


class Call:
    """One call of one method; see the module's rules."""

    def __init__(self, carrier: Carrier, method: str, params: Params) -> None:
        self._carrier = carrier
        key = secrets.token_hex(16) if carrier.resumable else None
        # No parameters at all would have no place for the key.
        params = {} if params is None else params
        self._exchange = Exchange(method, params, carrier.unread(), new_key=key)
        self._begun = False
        #: Whether somebody is inside `async with` of it.
        self._held = False

    def __repr__(self) -> str:
        return f"<Call of {self.method}, run {self.run}>"

    @property
    def method(self) -> str:
        """The method's name."""
        return self._exchange.method

    @property
    def run(self) -> int | None:
        """The run's number, once the server has said it."""
        return self._exchange.run

    @property
    def terminal(self) -> Item | None:
        """The run's last item, once it has come: also that of a run that failed."""
        return self._exchange.terminal

    def __aiter__(self) -> Items:
        return Items(self, asyncio.get_running_loop())

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def __aenter__(self) -> Call:
        try:
            self.begin()
            while self._exchange.subscription is None and not self._exchange.over:
                await self._change()
        except BaseException:
            self.leave()
            raise
        if self._exchange.error is not None and self._exchange.terminal is None:
            raise self._exchange.error  # it was refused; a run that failed is for the loop to tell
        self._held = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held = False
        self.leave()

    async def cancel(self, reason: str | None = None) -> bool:
        """Stop the run and let its terminal come: whoever reads it gets `RunCancelled`.

        True if it was still running. Raises what `plexus.cancel` raises.
        """
        exchange = self._exchange
        while self._begun and exchange.run is None and not exchange.over:
            await self._change()
        if exchange.over or exchange.run is None:
            self._exchange.fail(RunCancelled(reason or "cancelled before it began"))
            return False
        params = {"run": exchange.run} | ({} if reason is None else {"reason": reason})
        return bool(await Call(self._carrier, "plexus.cancel", params))

    def leave(self) -> None:
        """Stop listening, and so the run; what was not read by now is gone."""
        if self._begun and not self._exchange.left:
            self._carrier.leave(self._exchange)

    def leave_loop(self) -> None:
        """A loop over it ended early, which inside `async with` means nothing yet."""
        if not self._held:
            self.leave()

    def begin(self) -> None:
        """Send it, unless that was done before."""
        if not self._begun:
            self._begun = True
            if not self._exchange.over:
                self._carrier.begin(self._exchange)

    async def next(self) -> Item | None:
        """The next item, or None after the last; raises the error of a run that failed."""
        self.begin()
        exchange = self._exchange
        while True:
            item = exchange.take()
            if item is not None:
                return item
            if exchange.over:
                if exchange.error is not None:
                    raise exchange.error
                return None
            await self._change()

    async def _result(self) -> Any:
        try:
            while await self.next() is not None:
                pass
        except BaseException:
            self.leave_loop()
            raise
        terminal = self._exchange.terminal
        if terminal is None:
            raise RunCancelled(f"this call of {self.method} was left before its end")
        return terminal.get("result", terminal)

    async def _change(self) -> None:
        """Wait until something has happened to the exchange; a late reply is an error."""
        exchange = self._exchange
        if exchange.sent_at is None:
            await exchange.bell.wait()
            return
        reply_s = self._carrier.limits.reply_s
        with anyio.CancelScope(deadline=exchange.sent_at + reply_s) as scope:
            await exchange.bell.wait()
        if scope.cancelled_caught and exchange.sent_at is not None:
            why = ""
            if exchange.unread.full:
                why = f"; {exchange.unread.items} items of other calls wait to be read first"
            late = DeadlineExceeded(
                f"{self.method}: no reply within {reply_s:g} s{why}", data={"limit_s": reply_s}
            )
            exchange.fail(late)
            self._carrier.leave(exchange)
            raise late


class Items:
    """The iterator of one loop. Dropping it, which is what `break` does, leaves the call."""

    __slots__ = ("_call", "_done", "_loop")

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._done = False

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Item:
        if self._done:
            raise StopAsyncIteration
        try:
            item = await self._call.next()
        except BaseException:
            # The traceback keeps this frame, and with it this iterator, alive for who knows how
            # long, so that waiting for `__del__` would not do.
            await self.aclose()
            raise
        if item is None:
            self._done = True
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """End the loop now."""
        if not self._done:
            self._done = True
            self._call.leave_loop()

    def __del__(self) -> None:
        # A collector may run this in any thread, and after the loop is closed.
        if not self._done:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._call.leave_loop)
