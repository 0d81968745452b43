"""A session with another server: the client of MCP on one transport.

It owns every task, timer and process of the connection: `close` leaves none. A session that was
lost is not opened again; its owner makes another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from activations.gateway.transports.transport import SessionLimits, Transport, too_large
from activations.gateway.transports.upstream_call import UpstreamCall
from mcp_view.client.call import ClientCall
from mcp_view.client.client import McpClient
from mcp_view.client.effects import (
    Abort,
    End,
    ListenLater,
    Notify,
    Opened,
    Poll,
    Send,
    Updated,
)
from mcp_view.client.errors import BadMessage, Lost, NotReady, UpstreamError
from mcp_view.client.items import Junk, Notice, Question
from mcp_view.client.line_reader import Oversized
from mcp_view.client.options import ClientOptions, Server
from plexus.rpc import wire

__all__ = ("UpstreamSession",)

#: Texts that were no messages, kept for diagnosis and reported. Past it they are only counted.
JUNK_KEPT: Final = 20
JUNK_REPORTED: Final = 100
#: Interval at which a deadline is checked again while a person signs in.
SIGN_IN_CHECK_S: Final = 1.0
#: Pages and entries of one list. A server that lists more is broken or hostile.
MAX_PAGES: Final = 1000
MAX_ENTRIES: Final = 50_000
#: Delay before a stream of changes that has ended is opened again.
LISTEN_AGAIN_S: Final = 5.0

LISTS: Final = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "resourceTemplates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}


class UpstreamSession:
    """One session with one server."""

    def __init__(
        self,
        transport: Transport,
        options: ClientOptions | None = None,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        limits: SessionLimits | None = None,
    ) -> None:
        self.transport = transport
        self.limits = SessionLimits() if limits is None else limits
        self.client = McpClient(options or ClientOptions(), http=transport.is_http)
        #: Why the session ended; None while it is open, and after `close`.
        self.error: UpstreamError | None = None
        #: The last texts that were no messages.
        self.junk: deque[str] = deque(maxlen=JUNK_KEPT)
        self.junk_count = 0
        self._on_notice = on_notice
        self._handles: dict[ClientCall, UpstreamCall] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._opened: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._is_closing = False
        self._performing = False
        self._closing: asyncio.Task[None] | None = None
        self._uris: set[str] = set()

    # --- for the owner --------------------------------------------------------------------------

    @property
    def server(self) -> Server:
        """What the server declared."""
        if self.client.server is None:
            raise self.error or Lost("The session is not open.")
        return self.client.server

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return not self._ended.is_set() and self.client.server is not None

    @property
    def stderr(self) -> str:
        """The last of what a program wrote to its standard error."""
        return self.transport.stderr

    async def open(self) -> None:
        """Connect and negotiate. Raises UpstreamError, with nothing left running."""
        try:
            try:
                await self._attempt()
            except Lost:
                # A program may exit at a first message that it does not know.
                options = self.client.options
                if options.era != "auto" or not self.transport.restarts:
                    raise
                await self.transport.close()
                self.error = None
                self._ended.clear()
                self.client = McpClient(options._replace(era="legacy"), http=self.client.is_http)
                await self._attempt()
        except UpstreamError as error:
            self.error = error
            raise
        finally:
            if not self.is_open:
                await self.close()

    async def wait_closed(self) -> None:
        """Wait until the session was lost or closed."""
        await self._ended.wait()

    async def close(self) -> None:
        """End the session, its calls and its processes. Idempotent."""
        self._is_closing = True
        self.client.lost(Lost("The session was closed."))
        self.flush()
        self._ended.set()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.transport.close())
        await asyncio.shield(self._closing)

    def start(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        meta: dict[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> UpstreamCall:
        """Send a request. A session that has ended fails the call."""
        call = self.client.start(method, params, meta)
        limit_s = self.limits.call_s if timeout_s is None else timeout_s
        handle = UpstreamCall(self, call, limit_s)
        if not call.is_done:
            self._handles[call] = handle
        elif self.error is not None:
            call.error = self.error
        self.flush()
        return handle

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result. Raises UpstreamError."""
        return await self.start(method, params, timeout_s=timeout_s).wait()

    async def list_all(self, kind: str, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Return all entries of "tools", "resources", "resourceTemplates" or "prompts".

        Empty if the server does not have the capability. Raises UpstreamError.
        """
        method, key = LISTS[kind]
        if not self.server.has("resources" if kind == "resourceTemplates" else kind):
            return []
        found: list[dict[str, Any]] = []
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            result = await self.request(method, params, timeout_s=timeout_s)
            entries = result.get(key)
            if not isinstance(entries, list):
                raise BadMessage(f"The server answered {method} without {key}.")
            found += [entry for entry in entries if isinstance(entry, dict)]
            if len(found) > MAX_ENTRIES:
                raise BadMessage(f"The server lists more than {MAX_ENTRIES} {kind}.")
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str):
                return found
            if cursor in cursors:
                raise BadMessage(f"The server repeats the cursor {cursor[:40]!r} of {method}.")
            cursors.add(cursor)
            params = {"cursor": cursor}
        raise BadMessage(f"{method} has more than {MAX_PAGES} pages.")

    def learn_tools(self, tools: Iterable[dict[str, Any]]) -> None:
        """Remember tools that were listed by an earlier session."""
        self.client.learn_tools(tools)
        self.flush()

    async def subscribe(self, *uris: str, timeout_s: float | None = None) -> None:
        """Request notices of changes of resources. Raises UpstreamError."""
        if self.server.revision.handshake:
            for uri in uris:
                await self.request("resources/subscribe", {"uri": uri}, timeout_s=timeout_s)
        self._set_uris(self._uris.union(uris))

    async def unsubscribe(self, *uris: str, timeout_s: float | None = None) -> None:
        """End the notices of resources. Raises UpstreamError."""
        gone = self._uris.intersection(uris)
        if not gone:
            return
        self._set_uris(self._uris - gone)
        if self.server.revision.handshake:
            for uri in gone:
                await self.request("resources/unsubscribe", {"uri": uri}, timeout_s=timeout_s)

    def _set_uris(self, uris: set[str]) -> None:
        self._uris = uris
        self.client.set_subscriptions(uris)
        self.flush()

    def answer(self, question: Question, result: dict[str, Any]) -> None:
        """Answer a question with a result of MCP. A closed question is ignored."""
        self.client.answer(question, result)
        self.flush()

    def refuse(self, question: Question, reason: str) -> None:
        """Refuse to answer a question."""
        self.client.refuse(question, reason)
        self.flush()

    def roots_changed(self) -> None:
        """Report that the roots have changed."""
        self.client.roots_changed()
        self.flush()

    # --- for the transport ----------------------------------------------------------------------

    def received(self, data: bytes | bytearray, via: int | None = None) -> None:
        """Handle one encoded message."""
        client = self.client
        message = wire.decode(data, client.options.limits)
        if isinstance(message, wire.Invalid) and message.code == wire.PARSE_ERROR:
            client.junk(bytes(data[:400]).decode(errors="replace"))
        else:
            client.receive(message, len(data), via)

    def oversized(self, line: Oversized) -> None:
        """Fail the request that a discarded message answers, or all that it may answer."""
        error = too_large(line.size, self.client.options.limits.message_bytes)
        if line.id is not None:
            self.client.request_failed(line.id, error)
        else:
            for call in self.client.calls:
                self.client.request_failed(call.id, error)
        self.client.junk(error.message)

    def request_failed(self, request_id: int | None, error: UpstreamError) -> None:
        """Handle a request that cannot be answered."""
        if request_id is None:
            self.client.junk(error.message)
        else:
            self.client.request_failed(request_id, error)
        self.flush()

    def session_lost(self, request_id: int | None) -> None:
        """Handle a request whose session the server does not know."""
        if not self.client.session_lost(request_id):
            self.lost(Lost("The server does not know the session that it has just created."))
        self.flush()

    def lost(self, error: UpstreamError) -> None:
        """Handle the end of the connection."""
        if self._ended.is_set() or self._is_closing:
            return
        self.error = error
        self.client.lost(error)
        self.flush()
        self._ended.set()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)  # `_attempt` closes what is left
        elif self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.transport.close())

    def flush(self) -> None:
        """Perform the effects of the client."""
        if self._performing:  # the outer call continues with what was added
            return
        self._performing = True
        try:
            while effects := self.client.take_effects():
                for effect in effects:
                    kind = effect.__class__
                    if kind is Updated:
                        self._wake(effect.call)  # type: ignore[union-attr]
                    elif kind is Send:
                        self.transport.send(effect)  # type: ignore[arg-type]
                    else:
                        self._perform(effect)  # type: ignore[arg-type]
        finally:
            self._performing = False

    # --- inside ---------------------------------------------------------------------------------

    def _wake(self, call: ClientCall) -> None:
        handle = self._handles.get(call)
        if handle is not None:
            if call.is_done:
                del self._handles[call]
            handle.wake()

    def _perform(self, effect: Abort | End | ListenLater | Notify | Opened | Poll) -> None:
        if isinstance(effect, Notify):
            self._notify(effect.notice)
        elif isinstance(effect, Poll):
            self._later(effect.delay_s, self._poll, effect.call)
        elif isinstance(effect, ListenLater):
            self._later(LISTEN_AGAIN_S, self.client.listen_again)
        elif isinstance(effect, Abort):
            self.transport.abort(effect.id)
        elif isinstance(effect, Opened):
            self.transport.opened(self.server)
            if self._opened is not None and not self._opened.done():
                self._opened.set_result(None)
        elif isinstance(effect, End):
            self.lost(effect.error)

    def _notify(self, notice: Notice) -> None:
        if isinstance(notice, Junk):
            self.junk_count += 1
            self.junk.append(notice.text)
            if self.junk_count > JUNK_REPORTED:
                return
        if self._on_notice is not None:
            self._on_notice(notice)
        elif isinstance(notice, Question):
            self.client.refuse(notice, "Questions cannot be answered here.")

    def _later(self, delay_s: float, function: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            self._timers.discard(timer)
            function(*args)
            self.flush()

        timer = asyncio.get_running_loop().call_later(delay_s, run)
        self._timers.add(timer)

    def _poll(self, call: ClientCall) -> None:
        self.client.poll(call)

    async def _attempt(self) -> None:
        """Connect and negotiate once. Raises UpstreamError."""
        loop = asyncio.get_running_loop()
        self._opened = opened = loop.create_future()
        began = loop.time()
        connecting = loop.create_task(self._connect())
        try:
            limits = self.limits
            # The timeout of the probe starts with the connection.
            begun = {connecting, opened}
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(begun, timeout=limits.init_s, return_when=first)
            now = loop.time()
            probe_at, deadline = now + limits.probe_s, began + limits.init_s
            while not opened.done():
                now = loop.time()
                if self.transport.is_signing_in:
                    probe_at, deadline = now + limits.probe_s, now + limits.init_s
                elif now >= deadline:
                    raise NotReady(
                        f"The server did not complete the handshake within {limits.init_s:g} s."
                        f"{self._last_words()}"
                    )
                elif now >= probe_at and self.client.is_probing:
                    self.client.probe_timed_out()
                    self.flush()
                until = min(probe_at, deadline) if self.client.is_probing else deadline
                wait_s = min(max(until - now, 0.01), SIGN_IN_CHECK_S)
                await asyncio.wait({opened}, timeout=wait_s)
            await opened
        finally:
            if opened.done() and not opened.cancelled():
                opened.exception()  # it is raised above, or replaced by another error
            if not connecting.done():
                connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, UpstreamError):
                await connecting

    async def _connect(self) -> None:
        try:
            await self.transport.connect(self)
        except UpstreamError as error:
            self.lost(error)
            return
        self.client.open()
        self.flush()

    def _last_words(self) -> str:
        """Return the end of what the program wrote, for an error."""
        text = self.stderr.strip()[-500:] or " ".join(self.junk)[-500:]
        return f" It wrote: {text}" if text else ""
