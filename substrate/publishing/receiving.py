"""The server's end of the publishing channel: runs of the operator's other processes.

Only a process with the server's own token can publish runs. They belong to the operator, and no
other principal sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from plexus.errors import Failed, PlexusError
from plexus.events import ErrorEvent, QuestionAsked, Result
from plexus.principal import LOCAL
from plexus.rpc import wire
from plexus.runtime.copied import READING, read_event
from plexus.runtime.elsewhere import Elsewhere, RunElsewhere
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from substrate.publishing.frames import frame, read_frame
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch
from substrate.security.lockfile import has_exited

__all__ = ("PublishingSocket",)

POLICY_VIOLATION: Final = 1008
#: Timeout of a call that is forwarded to a process.
REPLY_S: Final = 10.0
#: Seconds that a live process may take to reconnect, and the interval of checks whether it is
#: alive.
RECONNECT_S: Final = 10.0
POLL_S: Final = 0.25
#: Maximum number of active runs of one process.
MAX_RUNS: Final = 2048
#: Maximum number of unsent frames to a process that does not read.
MAX_UNSENT: Final = 4096
ENDED: Final = frozenset({"complete", "error", "cancelled"})
GONE: Final = "its process has disconnected"


class PublishingSocket:
    """The WebSocket route for processes that publish their runs."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials
        if hub.runs.elsewhere is None:
            hub.runs.elsewhere = Elsewhere(hub.limits)
        self._elsewhere = hub.runs.elsewhere
        self._remotes: dict[str, RemoteProcess] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive the runs of one process until it disconnects."""
        await receive()  # always "websocket.connect"
        await send({"type": "websocket.accept"})
        credential: Credential = scope["credential"]
        principal = credential.principal
        if principal != LOCAL or principal.scopes is not None:
            await _close(send, "requires the server's own token")
            return
        socket = _Socket()
        self._credentials.add(credential, socket)
        reader = asyncio.create_task(self._read(receive, send))
        try:
            waits: list[asyncio.Future[Any]] = [reader, socket.revoked]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._credentials.discard(credential, socket)
            reader.cancel()
            await asyncio.wait([reader])
        if socket.revoked.done():
            await _close(send, socket.revoked.result())
        elif not reader.cancelled():
            reader.result()

    async def _read(self, receive: Receive, send: Send) -> None:
        try:
            data = await _received(receive)
            if data is not None:
                await self._listen(self._find_remote(read_frame(data)[0]), receive, send)
        except (KeyError, TypeError, ValueError, PlexusError) as error:
            await _close(send, f"invalid frame: {error}"[:100])

    async def _listen(self, remote: RemoteProcess, receive: Receive, send: Send) -> None:
        out = remote.opened()
        writer = asyncio.create_task(self._write(out, send))
        remote.send(frame("welcome", frame_bytes=self._hub.limits.message_bytes))
        try:
            while (data := await _received(receive)) is not None and not writer.done():
                remote.handle_frame(*read_frame(data))
        finally:
            remote.closed(out, self._forget)
            writer.cancel()
            await asyncio.wait([writer])

    def _find_remote(self, hello: dict[str, Any]) -> RemoteProcess:
        process = str(hello["process"])
        remote = self._remotes.get(process)
        if remote is None:
            remote = self._remotes[process] = RemoteProcess(self._hub, self._elsewhere, hello)
        return remote

    def _forget(self, remote: RemoteProcess) -> None:
        self._remotes.pop(remote.process, None)

    async def _write(self, out: Outbox, send: Send) -> None:
        while True:
            while out.frames:
                text = out.frames.popleft().decode()
                async with asyncio.timeout(self._hub.limits.write_s):
                    await send({"type": "websocket.send", "text": text})
            out.filled.clear()
            await out.filled.wait()


class _Socket:
    """One connection, as seen by the credential watch."""

    def __init__(self) -> None:
        #: Done with the reason when the credential is no longer valid.
        self.revoked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def revoke(self, reason: str, *, refreshed: bool) -> None:  # noqa: ARG002 - closed in both cases
        """End the connection. The process reads the lock file and reconnects."""
        if not self.revoked.done():
            self.revoked.set_result(reason)


class Outbox:
    """The queue of frames to send on one connection."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.filled = asyncio.Event()


class RemoteProcess:
    """A process that publishes its runs. It persists while the process reconnects."""

    def __init__(self, hub: Plexus, elsewhere: Elsewhere, hello: dict[str, Any]) -> None:
        self.process = str(hello["process"])
        self._hub = hub
        self._elsewhere = elsewhere
        self._pid = int(hello["pid"])
        self._start_time: int | None = hello["start_time"]
        self._project = str(hello["project"])
        self._runs: dict[int, RunElsewhere] = {}
        self._out: Outbox | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._called = 0
        self._leaving = False
        #: The parts received so far of an item that is sent in pieces.
        self._pieces = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def describe(self) -> dict[str, Any]:
        return {"pid": self._pid, "project": self._project, "connected": self._out is not None}

    # --- the connection -----------------------------------------------------------------------

    def opened(self) -> Outbox:
        """Handle a connection, which replaces an earlier one. Returns its outbox."""
        if self._timer is not None:
            self._timer.cancel()
        self._leaving = False
        self._pieces.clear()
        self._out = Outbox()
        return self._out

    def closed(self, out: Outbox, forget: Callable[[RemoteProcess], None]) -> None:
        """Handle a disconnect. The runs end if the process does not reconnect."""
        if self._out is not out:
            return  # reconnected already
        self._out = None
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Failed(GONE, code="gone"))
        loop = asyncio.get_running_loop()
        until = loop.time() if self._leaving else loop.time() + RECONNECT_S

        def poll() -> None:
            if loop.time() >= until or has_exited(self._pid, self._start_time):
                forget(self)
                for run in list(self._runs.values()):
                    run.close_lost(GONE)
            else:
                self._timer = loop.call_later(POLL_S, poll)

        poll()

    def send(self, message: bytes) -> None:
        if self._out is not None and len(self._out.frames) < MAX_UNSENT:
            self._out.frames.append(message)
            self._out.filled.set()

    # --- for its runs -------------------------------------------------------------------------

    def request_items(self, run: int, after: int, most_bytes: int | None) -> None:
        self.send(frame("want", run=run, after=after, bytes=most_bytes))

    def stop_items(self, run: int) -> None:
        self.send(frame("enough", run=run))

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        if self._out is None:
            raise Failed(f"Process {self._pid} is not connected.", code="gone")
        self._called += 1
        number = self._called
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self.send(frame("call", id=number, method=method, params=params))
            async with asyncio.timeout(REPLY_S):
                return await answer
        except TimeoutError:
            raise Failed(f"Process {self._pid} did not answer in time.", code="gone") from None
        finally:
            del self._calls[number]

    # --- frames -------------------------------------------------------------------------------

    def handle_frame(self, header: dict[str, Any], rest: bytes) -> None:
        """Process a frame. Raises KeyError, TypeError or ValueError if it is invalid."""
        kind = header["kind"]
        if kind == "known":
            self._on_known(set(header["runs"]))
            return
        if kind == "runs":
            for line in rest.split(b"\n"):
                self._on_run(_validated(wire.decode_value(line, READING)))
            return
        if kind == "reply":
            self._on_reply(int(header["id"]), rest)
            return
        if kind == "bye":
            self._leaving = True
            return
        run = self._runs.get(header["run"])
        if run is None:
            return  # above the limit, or no longer retained
        if kind == "items":
            run.add_items(int(header["first"]), rest.split(b"\n"))
        elif kind == "piece":
            self._take_piece(run, header, rest)
        elif kind == "asked":
            event = read_event(rest)
            if isinstance(event, QuestionAsked):
                run.open_remote_question(event, int(header["asked_ms"]), self._hub.questions.notify)
        elif kind == "settled":
            run.forget_question(str(header["request"]))
        elif kind == "lost":
            run.close_lost("its process no longer retains its items")

    def _on_known(self, known: set[int]) -> None:
        for number, run in list(self._runs.items()):
            if number in known:
                run.request_missing_items()
            else:
                run.close_lost("its process no longer retains it")

    def _on_run(self, info: dict[str, Any]) -> None:
        run = self._runs.get(info["run"])
        if run is None:
            self._add(info)
        else:
            run.update(info)

    def _add(self, info: dict[str, Any]) -> None:
        known = self._elsewhere.find(info["run"])
        if known is not None and (known.terminal is None or info["state"] in ENDED):
            return  # published before
        if len(self._runs) < MAX_RUNS:
            run = RunElsewhere(info, LOCAL, self._hub.limits, self, self._ended)
            self._runs[run.id] = run
            self._elsewhere.add(run)
            run.request_missing_items()

    def _ended(self, run: Run) -> None:
        self._runs.pop(run.id, None)
        self._elsewhere.on_end(run)

    def _take_piece(self, run: RunElsewhere, header: dict[str, Any], rest: bytes) -> None:
        self._pieces += rest
        if len(self._pieces) > self._hub.limits.answer_bytes:
            raise ValueError("an item is too large")
        if header["last"] is True:
            whole = bytes(self._pieces)
            self._pieces.clear()
            run.add_items(int(header["seq"]), [whole])

    def _on_reply(self, number: int, raw: bytes) -> None:
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        terminal = read_event(raw)
        if isinstance(terminal, ErrorEvent):
            answer.set_exception(Failed(terminal.message, code=terminal.code, data=terminal.data))
        else:
            answer.set_result(terminal.result if isinstance(terminal, Result) else None)


def _validated(info: Any) -> dict[str, Any]:
    """Validate the description of a run. Raises ValueError."""
    match info:
        case {
            "run": int(),
            "method": str(),
            "state": str(),
            "scope": str(),
            "started_ms": int(),
            "last_seq": int(),
        }:
            described: dict[str, Any] = info
            return described
    raise ValueError("invalid description of a run")


async def _received(receive: Receive) -> bytes | None:
    """Return the next message, or None after a disconnect."""
    message = await receive()
    if message["type"] == "websocket.disconnect":
        return None
    text = message.get("text")
    data: bytes = message["bytes"] if text is None else text.encode()
    return data


async def _close(send: Send, reason: str) -> None:
    """Send a close frame with the reason, if the process still reads."""
    with contextlib.suppress(TimeoutError, RuntimeError):
        async with asyncio.timeout(1.0):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
