"""A process's end of the channel: tells a server of its runs, and does what that passes on.

Rules:
- Nothing waits for the server. Items are read with cursors, like by any other watcher: whatever is
  not taken in time is a gap, and what there is to say of a run is looked up when it is said.
- Items are sent only as far as the server wants them, at most twenty times a second.
- What the server may have called is in a short list. It is called as if the person at this machine
  had, who is the only one that can come that way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from activations.approvals import Approvals
from plexus.errors import PlexusError
from plexus.events import ErrorEvent, QuestionAsked
from plexus.principal import LOCAL
from plexus.process_identity import start_time
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.log import Reader, wall_ms
from plexus.runtime.question_feed import OpenQuestion
from plexus.runtime.run import Run
from substrate.publishing.frames import CALLS, PATH, frame, read_frame
from substrate.security.lockfile import RunningServer

__all__ = ("Channel",)

#: How long the server may take to let us in, and how long saying good-bye may take.
OPEN_S: Final = 3.0
CLOSE_S: Final = 0.2
PING_S: Final = 20.0
#: The shortest time from one sending to the next, and how much is sent at most each time.
PACE_S: Final = 0.05
PACE_BYTES: Final = 1024 * 1024
#: How often it is said how far runs are whose items nobody wants.
NEWS_S: Final = 1.0
#: How large a frame is at most, and how much of it is not items.
FRAME_BYTES: Final = 256 * 1024
HEADER_BYTES: Final = 1024
#: The largest terminal that is told with its run, whether its items are wanted or not.
TERMINAL_BYTES: Final = 8 * 1024
#: The largest question that is told whole.
QUESTION_BYTES: Final = 64 * 1024
#: How many runs that are known already are told of to a server that is new.
KNOWN_RUNS: Final = 256
#: How many runs may have news that were not told; past it, everything is told anew.
NEWS: Final = 1024
#: How many calls the server may have open.
CALLS_OPEN: Final = 64
#: What only looks at this process itself, and is no work.
LOOKS: Final = "plexus."


class Wanted:
    """A run whose items the server wants, and how many bytes more; None for all."""

    __slots__ = ("left", "reader")

    def __init__(self, reader: Reader, left: int | None) -> None:
        self.reader = reader
        self.left = left


class Channel:
    """What one process tells one server. To be used once."""

    def __init__(self, hub: Plexus, project: Path) -> None:
        self._hub = hub
        self._project = project
        self._woken = asyncio.Event()
        self._ending = False
        #: Runs of which there is something to say, and what was said last of those under way.
        self._news: dict[int, Run] = {}
        self._said: dict[int, tuple[str, int]] = {}
        self._news_at = 0.0
        self._tell_all = True
        #: Questions that opened or closed.
        self._asked: dict[tuple[int, str], Run] = {}
        self._wanted: dict[int, Wanted] = {}
        self._awake: list[Reader] = []
        self._replies: deque[bytes] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        #: The runs that the server had begun here: nobody wants to watch those.
        self._own: deque[int] = deque(maxlen=CALLS_OPEN)
        self._calling = False
        self._room = FRAME_BYTES
        found = (node.activation for node in hub.nodes() if node.path == Approvals.namespace)
        self._approvals = next((each for each in found if isinstance(each, Approvals)), None)

    async def run(self, server: RunningServer) -> bool:
        """Tell this server until it is gone, or until `end`; False if it did not even listen."""
        try:
            async with _connected(server) as socket:
                await socket.send(self._hello())
                async with asyncio.timeout(OPEN_S):
                    welcome, _ = read_frame(await socket.recv(decode=False))
                self._room = min(FRAME_BYTES, int(welcome["frame_bytes"])) - HEADER_BYTES
                with self._listening():
                    await self._serve(socket)
        except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed):
            return False
        except (KeyError, TypeError, ValueError, PlexusError):
            return False  # it is a server of another version
        return True

    def end(self) -> None:
        """Say what is left, and good-bye."""
        self._ending = True
        self._woken.set()

    def _hello(self) -> bytes:
        return frame(
            "hello",
            process=f"{os.getpid()}.{id(self._hub)}",
            pid=os.getpid(),
            start_time=start_time(os.getpid()),
            project=str(self._project),
        )

    async def _serve(self, socket: ClientConnection) -> None:
        sending = asyncio.create_task(self._send(socket))
        receiving = asyncio.create_task(self._receive(socket))
        try:
            await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, receiving, *self._calls):
                task.cancel()
            # What they raised is why the connection is over, and nobody needs to hear of it.
            await asyncio.gather(sending, receiving, *self._calls, return_exceptions=True)

    # --- what happens here --------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        runs = self._hub.runs
        questions = self._approvals or self._hub.questions
        stops = [
            runs.on_start(self._begun),
            runs.on_end(self._changed),
            questions.on_change(self._question_changed),
        ]
        try:
            yield
        finally:
            for stop in stops:
                stop()
            for run in list(self._wanted):
                self._leave(run)

    def _begun(self, run: Run, _: Mapping[str, Any], __: Mapping[str, str] | None) -> None:
        if self._calling:
            self._own.append(run.id)
        self._changed(run)

    def _changed(self, run: Run) -> None:
        if self._is_shown(run):
            self._news[run.id] = run
            if len(self._news) > NEWS:
                self._news.clear()
                self._tell_all = True
            self._woken.set()

    def _question_changed(self, run: Run, request: str, _: bool) -> None:
        if self._is_shown(run):
            self._asked[run.id, request] = run
            self._changed(run)

    def _is_shown(self, run: Run) -> bool:
        looks = run.method.startswith(LOOKS) or run.id in self._own
        return not looks and run.principal == LOCAL

    def _reader_woke(self, reader: Reader) -> None:
        self._awake.append(reader)
        self._woken.set()

    # --- sending ------------------------------------------------------------------------------

    async def _send(self, socket: ClientConnection) -> None:
        self._woken.set()  # there may be runs that have ended
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NEWS_S if self._hub.runs.running() else None):
                    await self._woken.wait()
            self._woken.clear()
            ending = self._ending
            for each in (*self._told(), *self._told_questions()):
                await socket.send(each)
            while self._replies:
                await socket.send(self._replies.popleft())
            await self._send_items(socket)
            if ending:
                await socket.send(frame("bye"))
                return
            await asyncio.sleep(PACE_S)

    def _told(self) -> Iterator[bytes]:
        """What there is to say of runs."""
        if self._tell_all:
            yield self._told_anew()
        now = time.monotonic()
        if now - self._news_at >= NEWS_S:
            self._news_at = now
            for each in self._hub.runs.running():
                now_said = (each.state, each.log.last)
                if self._said.get(each.id, now_said) != now_said:
                    self._news[each.id] = each
        news, self._news = self._news, {}
        lines: list[bytes] = []
        size = 0
        for run in news.values():
            line = self._described(run)
            if lines and size + len(line) > self._room:
                yield frame("runs", lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line) + 1
        if lines:
            yield frame("runs", lines)

    def _told_anew(self) -> bytes:
        """Forget what was told; which runs there are is the first thing to tell."""
        self._tell_all = False
        self._said = {}
        known = filter(self._is_shown, self._hub.runs.list_for(LOCAL))
        self._news = {run.id: run for run in islice(known, KNOWN_RUNS)}
        self._asked = {(run.id, asked.event.request): run for run, asked in self._open_questions()}
        return frame("known", runs=list(self._news))

    def _described(self, run: Run) -> bytes:
        try:
            scope = self._hub.resolve(run.method).scope
        except PlexusError:  # it was let go, and its runs go on
            scope = run.method.partition(".")[0]
        described = wire.encode(run.describe() | {"scope": scope})
        if run.terminal is None:
            self._said[run.id] = (run.state, run.log.last)
            return described
        self._said.pop(run.id, None)
        raw = run.log.payloads[-1]
        if len(raw) > TERMINAL_BYTES:
            return described
        return b'%b,"terminal":%b}' % (described[:-1], raw)

    def _open_questions(self) -> list[tuple[Run, OpenQuestion]]:
        if self._approvals is not None:
            return [*self._approvals.open_questions(LOCAL)]
        running = self._hub.runs.running()
        return [(run, asked) for run in running for asked in (run.questions or {}).values()]

    def _told_questions(self) -> Iterator[bytes]:
        """What there is to say of questions."""
        changed, self._asked = self._asked, {}
        for (number, request), run in changed.items():
            if self._approvals is not None:
                asked = self._approvals.find_question(run, request)
            else:
                asked = None if run.questions is None else run.questions.get(request)
            if asked is None or run.terminal is not None:
                yield frame("settled", run=number, request=request)
            else:
                raw = wire.encode_event(_short(asked.event, min(QUESTION_BYTES, self._room)))
                yield frame("asked", [raw], run=number, asked_ms=wall_ms(asked.asked_at))

    async def _send_items(self, socket: ClientConnection) -> None:
        budget = PACE_BYTES
        awake, self._awake = self._awake, []
        while awake and budget > 0:
            reader = awake.pop(0)
            wanted = self._wanted.get(reader.run.id)
            if wanted is None or wanted.reader is not reader:
                continue
            batch = reader.take()
            if not batch.events:
                continue
            number = reader.run.id
            budget -= batch.size
            # A gap has the number of the last item that is missing, and the server finds out.
            if batch.events[0].type != "gap" or batch.first + 1 != reader.run.log.first:
                for each in _frames(number, batch.first, batch.payloads, self._room):
                    await socket.send(each)
            if wanted.left is not None:
                wanted.left -= batch.size
            if batch.terminal is not None or (wanted.left is not None and wanted.left <= 0):
                self._leave(number)
            else:
                awake.append(reader)
        self._awake += awake
        if self._awake:
            self._woken.set()

    # --- what the server wants ----------------------------------------------------------------

    async def _receive(self, socket: ClientConnection) -> None:
        while True:
            header, _ = read_frame(await socket.recv(decode=False))
            kind = header["kind"]
            if kind == "want":
                self._want(int(header["run"]), int(header["after"]), header["bytes"])
            elif kind == "enough":
                self._leave(int(header["run"]))
            elif kind == "call" and len(self._calls) < CALLS_OPEN:
                call = self._call(int(header["id"]), header["method"], header["params"])
                task = asyncio.create_task(call)
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)

    def _want(self, number: int, after: int, most_bytes: int | None) -> None:
        self._leave(number)
        try:
            run = self._hub.runs.find(number, LOCAL)
        except PlexusError:
            self._reply(frame("lost", run=number))
            return
        reader = run.reader(after, self._reader_woke, owner=False)
        self._wanted[number] = Wanted(reader, most_bytes)
        if reader.poll():
            self._reader_woke(reader)

    def _leave(self, number: int) -> None:
        wanted = self._wanted.pop(number, None)
        if wanted is not None:
            wanted.reader.run.leave(wanted.reader)

    async def _call(self, number: int, method: str, params: dict[str, Any]) -> None:
        self._reply(frame("reply", [await self._called(method, params)], id=number))

    async def _called(self, method: str, params: dict[str, Any]) -> bytes:
        """The terminal of a call."""
        self._calling = True
        try:
            if method not in CALLS:
                return wire.encode_event(
                    ErrorEvent("denied", f"{method} is not for others to call")
                )
            call = self._hub.call(method, params, LOCAL)
        except PlexusError as error:
            return wire.encode_event(ErrorEvent(error.code, error.message, error.data))
        finally:
            self._calling = False
        raw = b""
        async with aclosing(call.run.batches(owner=True)) as batches:
            async for batch in batches:
                raw = batch.payloads[-1]
        return raw

    def _reply(self, reply: bytes) -> None:
        self._replies.append(reply)
        self._woken.set()


@asynccontextmanager
async def _connected(server: RunningServer) -> AsyncIterator[ClientConnection]:
    socket = await connect(
        f"ws://127.0.0.1:{server.port}{PATH}",
        additional_headers={"Authorization": f"Bearer {server.token}"},
        # A server on this machine is not to be sought through the environment's proxy.
        proxy=None,
        compression=None,
        open_timeout=OPEN_S,
        close_timeout=CLOSE_S,
        ping_interval=PING_S,
        ping_timeout=PING_S,
    )
    try:
        yield socket
    finally:
        await socket.close()


def _frames(run: int, first: int, raws: list[bytes], room: int) -> Iterator[bytes]:
    """Frames for consecutive items, none of them too large."""
    lines: list[bytes] = []
    size = 0
    for seq, raw in enumerate(raws, first):
        if lines and size + len(raw) > room:
            yield frame("items", lines, run=run, first=seq - len(lines))
            lines, size = [], 0
        if len(raw) > room:
            parts: list[bytes] = [raw[at : at + room] for at in range(0, len(raw), room)]
            for number, part in enumerate(parts, 1):
                yield frame("piece", [part], run=run, seq=seq, last=number == len(parts))
            continue
        lines.append(raw)
        size += len(raw) + 1
    if lines:
        yield frame("items", lines, run=run, first=first + len(raws) - len(lines))


def _short(event: QuestionAsked, limit: int) -> QuestionAsked:
    """As much of a question as can be told."""
    if len(wire.encode_event(event)) <= limit:
        return event
    return QuestionAsked(
        event.request, event.kind, event.message[: limit // 8], {}, event.timeout_s
    )
