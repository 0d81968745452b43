"""The server's end of the channel: what other processes of its user run, kept and steered.

Only whoever has the server's own token can tell it of runs. The runs belong to the same person,
and nobody else sees them.
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
#: How long a process may take to do what is passed on to it.
REPLY_S: Final = 10.0
#: How long a process that is alive may take to come back after its connection was lost, and how
#: often it is looked whether it is.
COME_BACK_S: Final = 10.0
LOOK_S: Final = 0.25
#: How many runs one process may have here that have not ended.
RUNS: Final = 2048
#: How much may wait to be sent to a process that does not read.
UNSENT: Final = 4096
ENDED: Final = frozenset({"complete", "error", "cancelled"})
GONE: Final = "its process is gone"


class PublishingSocket:
    """A route that is a WebSocket, for processes that tell of their runs."""

    def __init__(self, hub: Plexus, credentials: CredentialWatch) -> None:
        self._hub = hub
        self._credentials = credentials
        if hub.runs.elsewhere is None:
            hub.runs.elsewhere = Elsewhere(hub.limits)
        self._elsewhere = hub.runs.elsewhere
        self._homes: dict[str, Home] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Listen to one process until it is gone."""
        await receive()  # "websocket.connect", always the first
        await send({"type": "websocket.accept"})
        credential: Credential = scope["credential"]
        principal = credential.principal
        if principal != LOCAL or principal.scopes is not None:
            await _close(send, "only with the server's own token")
            return
        socket = _Socket()
        self._credentials.add(credential, socket)
        reader = asyncio.create_task(self._read(receive, send))
        try:
            both: list[asyncio.Future[Any]] = [reader, socket.revoked]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
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
                await self._listen(self._home(read_frame(data)[0]), receive, send)
        except (KeyError, TypeError, ValueError, PlexusError) as error:
            await _close(send, f"that is no frame: {error}"[:100])

    async def _listen(self, home: Home, receive: Receive, send: Send) -> None:
        out = home.opened()
        writer = asyncio.create_task(self._write(out, send))
        home.send(frame("welcome", frame_bytes=self._hub.limits.message_bytes))
        try:
            while (data := await _received(receive)) is not None and not writer.done():
                home.take(*read_frame(data))
        finally:
            home.closed(out, self._forget)
            writer.cancel()
            await asyncio.wait([writer])

    def _home(self, hello: dict[str, Any]) -> Home:
        process = str(hello["process"])
        home = self._homes.get(process)
        if home is None:
            home = self._homes[process] = Home(self._hub, self._elsewhere, hello)
        return home

    def _forget(self, home: Home) -> None:
        self._homes.pop(home.process, None)

    async def _write(self, out: Outbox, send: Send) -> None:
        while True:
            while out.frames:
                text = out.frames.popleft().decode()
                async with asyncio.timeout(self._hub.limits.write_s):
                    await send({"type": "websocket.send", "text": text})
            out.filled.clear()
            await out.filled.wait()


class _Socket:
    """One connection, as far as its credential is concerned."""

    def __init__(self) -> None:
        #: Done with the reason when the credential is no longer valid.
        self.revoked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def revoke(self, reason: str, *, refreshed: bool) -> None:  # noqa: ARG002 - it comes back
        """End the connection: its process reads the lock file and connects again."""
        if not self.revoked.done():
            self.revoked.set_result(reason)


class Outbox:
    """What is to be sent on one connection."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.filled = asyncio.Event()


class Home:
    """A process that tells of its runs, also while its connection is being sought again."""

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
        #: The item that comes in pieces, and what has come of it.
        self._pieces = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def describe(self) -> dict[str, Any]:
        return {"pid": self._pid, "project": self._project, "connected": self._out is not None}

    # --- the connection -----------------------------------------------------------------------

    def opened(self) -> Outbox:
        """It is connected; what was before, is not used any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._leaving = False
        self._pieces.clear()
        self._out = Outbox()
        return self._out

    def closed(self, out: Outbox, forget: Callable[[Home], None]) -> None:
        """It is not connected any more; if it does not come back, its runs end."""
        if self._out is not out:
            return  # it has come back already
        self._out = None
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Failed(GONE, code="gone"))
        loop = asyncio.get_running_loop()
        until = loop.time() if self._leaving else loop.time() + COME_BACK_S

        def look() -> None:
            if loop.time() >= until or has_exited(self._pid, self._start_time):
                forget(self)
                for run in list(self._runs.values()):
                    run.close_lost(GONE)
            else:
                self._timer = loop.call_later(LOOK_S, look)

        look()

    def send(self, message: bytes) -> None:
        if self._out is not None and len(self._out.frames) < UNSENT:
            self._out.frames.append(message)
            self._out.filled.set()

    # --- for its runs -------------------------------------------------------------------------

    def request_items(self, run: int, after: int, most_bytes: int | None) -> None:
        self.send(frame("want", run=run, after=after, bytes=most_bytes))

    def stop_items(self, run: int) -> None:
        self.send(frame("enough", run=run))

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        if self._out is None:
            raise Failed(f"process {self._pid} cannot be reached", code="gone")
        self._called += 1
        number = self._called
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self.send(frame("call", id=number, method=method, params=params))
            async with asyncio.timeout(REPLY_S):
                return await answer
        except TimeoutError:
            raise Failed(f"process {self._pid} did not answer", code="gone") from None
        finally:
            del self._calls[number]

    # --- frames -------------------------------------------------------------------------------

    def take(self, header: dict[str, Any], rest: bytes) -> None:
        """A frame has come; raises KeyError, TypeError and ValueError for what is none."""
        kind = header["kind"]
        if kind == "known":
            self._told_anew(set(header["runs"]))
            return
        if kind == "runs":
            for line in rest.split(b"\n"):
                self._told(_checked(wire.decode_value(line, READING)))
            return
        if kind == "reply":
            self._replied(int(header["id"]), rest)
            return
        if kind == "bye":
            self._leaving = True
            return
        run = self._runs.get(header["run"])
        if run is None:
            return  # one too many, or forgotten
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
            run.close_lost("its process no longer knows what it said")

    def _told_anew(self, known: set[int]) -> None:
        for number, run in list(self._runs.items()):
            if number in known:
                run.request_missing_items()
            else:
                run.close_lost("its process no longer knows of it")

    def _told(self, said: dict[str, Any]) -> None:
        run = self._runs.get(said["run"])
        if run is None:
            self._add(said)
        else:
            run.update(said)

    def _add(self, said: dict[str, Any]) -> None:
        known = self._elsewhere.find(said["run"])
        if known is not None and (known.terminal is None or said["state"] in ENDED):
            return  # it was told before
        if len(self._runs) < RUNS:
            run = RunElsewhere(said, LOCAL, self._hub.limits, self, self._ended)
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

    def _replied(self, number: int, raw: bytes) -> None:
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        terminal = read_event(raw)
        if isinstance(terminal, ErrorEvent):
            answer.set_exception(Failed(terminal.message, code=terminal.code, data=terminal.data))
        else:
            answer.set_result(terminal.result if isinstance(terminal, Result) else None)


def _checked(said: Any) -> dict[str, Any]:
    """What a process says of a run; raises ValueError if it is not that."""
    match said:
        case {
            "run": int(),
            "method": str(),
            "state": str(),
            "scope": str(),
            "started_ms": int(),
            "last_seq": int(),
        }:
            described: dict[str, Any] = said
            return described
    raise ValueError("that describes no run")


async def _received(receive: Receive) -> bytes | None:
    """The next message; None when there are no more."""
    message = await receive()
    if message["type"] == "websocket.disconnect":
        return None
    text = message.get("text")
    data: bytes = message["bytes"] if text is None else text.encode()
    return data


async def _close(send: Send, reason: str) -> None:
    """Say why no more is listened to, if the other side is still there."""
    with contextlib.suppress(TimeoutError, RuntimeError):
        async with asyncio.timeout(1.0):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
