"""A call, to iterate over, to await, or to enter.

Rules:
- Nothing is sent before the call is first used, and it runs at most once.
- Leaving the loop, the `async with` or the `await` in any way cancels the run on the server. A call
  of `plexus.attach` does not own its run, so it only stops reading.
- Inside `async with call` a loop may be left and started again; leaving the block cancels the run.
- A failed run raises its error after its last event. A successful run yields its `complete` event
  last.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio

from native_rpc.client.session import Exchange, Item, Params
from native_rpc.client.transport import Transport
from native_rpc.errors import RunCancelled
from plexus.errors import DeadlineExceeded

__all__ = ("Call", "Items")


class Call:
    """One call of a method. See the rules of the module."""

    def __init__(self, transport: Transport, method: str, params: Params) -> None:
        self._transport = transport
        key = secrets.token_hex(16) if transport.resumable else None
        # Without any parameters there would be no place for the key.
        params = {} if params is None else params
        self._exchange = Exchange(method, params, transport.unread(), new_key=key)
        self._started = False
        #: Whether the call is inside its `async with` block.
        self._entered = False

    def __repr__(self) -> str:
        return f"<Call of {self.method}, run {self.run}>"

    @property
    def method(self) -> str:
        """The name of the method."""
        return self._exchange.method

    @property
    def run(self) -> int | None:
        """The number of the run, once the server has sent it."""
        return self._exchange.run

    @property
    def terminal(self) -> Item | None:
        """The terminal of the run, also of a failed run; None before it has arrived."""
        return self._exchange.terminal

    def __aiter__(self) -> Items:
        return Items(self, asyncio.get_running_loop())

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def __aenter__(self) -> Call:
        try:
            self.start()
            while self._exchange.subscription is None and not self._exchange.done:
                await self._wait_for_change()
        except BaseException:
            self.close()
            raise
        if self._exchange.error is not None and self._exchange.terminal is None:
            raise self._exchange.error  # refused; the error of a failed run is raised by the loop
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered = False
        self.close()

    async def cancel(self, reason: str | None = None) -> bool:
        """Cancel the run. Its readers get `RunCancelled` after its terminal.

        Returns whether it was still in progress. Raises the errors of `plexus.cancel`.
        """
        exchange = self._exchange
        while self._started and exchange.run is None and not exchange.done:
            await self._wait_for_change()
        if exchange.done or exchange.run is None:
            self._exchange.fail(RunCancelled(reason or "The call was cancelled before it started."))
            return False
        params = {"run": exchange.run} | ({} if reason is None else {"reason": reason})
        return bool(await Call(self._transport, "plexus.cancel", params))

    def close(self) -> None:
        """Stop reading and cancel the run. Unread items are discarded."""
        if self._started and not self._exchange.abandoned:
            self._transport.abandon(self._exchange)

    def on_loop_exit(self) -> None:
        """Handle a loop that ended early. Inside `async with`, the call stays open."""
        if not self._entered:
            self.close()

    def start(self) -> None:
        """Send the call, unless it was already sent."""
        if not self._started:
            self._started = True
            if not self._exchange.done:
                self._transport.start(self._exchange)

    async def next_item(self) -> Item | None:
        """Return the next item, or None after the last. Raises the error of a failed run."""
        self.start()
        exchange = self._exchange
        while True:
            item = exchange.pop_item()
            if item is not None:
                return item
            if exchange.done:
                if exchange.error is not None:
                    raise exchange.error
                return None
            await self._wait_for_change()

    async def _result(self) -> Any:
        try:
            while await self.next_item() is not None:
                pass
        except BaseException:
            self.on_loop_exit()
            raise
        terminal = self._exchange.terminal
        if terminal is None:
            raise RunCancelled(f"The call of {self.method} was closed before its end.")
        return terminal.get("result", terminal)

    async def _wait_for_change(self) -> None:
        """Wait for a change of the exchange. Raises DeadlineExceeded if the reply is late."""
        exchange = self._exchange
        if exchange.sent_at is None:
            await exchange.changed.wait()
            return
        reply_s = self._transport.limits.reply_s
        with anyio.CancelScope(deadline=exchange.sent_at + reply_s) as scope:
            await exchange.changed.wait()
        if scope.cancelled_caught and exchange.sent_at is not None:
            why = ""
            if exchange.unread.full:
                why = f" Read the {exchange.unread.items} unread items of other calls first."
            late = DeadlineExceeded(
                f"{self.method}: no reply within {reply_s:g} s.{why}", data={"limit_s": reply_s}
            )
            exchange.fail(late)
            self._transport.abandon(exchange)
            raise late


class Items:
    """The iterator of one loop. Dropping it, as `break` does, closes the call."""

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
            item = await self._call.next_item()
        except BaseException:
            # The traceback keeps this frame and its iterator alive, so `__del__` may run late.
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
            self._call.on_loop_exit()

    def __del__(self) -> None:
        # The garbage collector may call this in any thread, even after the loop is closed.
        if not self._done:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._call.on_loop_exit)
