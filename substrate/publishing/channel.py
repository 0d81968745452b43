"""A process's end of the publishing channel: publishes its runs, and performs forwarded calls.

Rules:
- Nothing waits for the server. Items are read with cursors, as by any other watcher: items that are
  not read in time become a gap, and the state of a run is read when it is sent.
- Items are sent only while the server is subscribed, at most twenty times a second.
- The server may call only the methods in a short list. They run as the local operator, who is the
  only principal that can reach this channel.
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

#: Timeouts of the connection and of its close.
OPEN_S: Final = 3.0
CLOSE_S: Final = 0.2
PING_S: Final = 20.0
#: Minimum interval between sends, and the maximum bytes of each.
PACE_S: Final = 0.05
PACE_BYTES: Final = 1024 * 1024
#: Interval of progress updates of runs without a subscription.
UPDATE_S: Final = 1.0
#: Maximum size of a frame, and the part reserved for its header.
FRAME_BYTES: Final = 256 * 1024
HEADER_BYTES: Final = 1024
#: Maximum size of a terminal that is sent with its run even without a subscription.
TERMINAL_BYTES: Final = 8 * 1024
#: Maximum size of a question that is sent unshortened.
QUESTION_BYTES: Final = 64 * 1024
#: Maximum number of earlier runs that are sent to a newly connected server.
KNOWN_RUNS: Final = 256
#: Maximum number of runs with unsent changes. Above it, everything is sent again.
MAX_CHANGED: Final = 1024
#: Maximum number of concurrent calls from the server.
MAX_CALLS: Final = 64
#: The namespace of methods that only inspect this process. Their runs are not published.
INSPECTION_PREFIX: Final = "plexus."


class Subscription:
    """A subscription of the server to a run. `left` is the remaining bytes; None is unlimited."""

    __slots__ = ("left", "reader")

    def __init__(self, reader: Reader, left: int | None) -> None:
        self.reader = reader
        self.left = left


class Channel:
    """The connection of one process to one server. For a single use."""

    def __init__(self, hub: Plexus, project: Path) -> None:
        self._hub = hub
        self._project = project
        self._woken = asyncio.Event()
        self._ending = False
        #: Runs with unsent changes, and the last state that was sent of each active run.
        self._changed_runs: dict[int, Run] = {}
        self._last_sent: dict[int, tuple[str, int]] = {}
        self._updated_at = 0.0
        self._send_all = True
        #: Questions that were opened or closed, with their runs.
        self._changed_questions: dict[tuple[int, str], Run] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._ready_readers: list[Reader] = []
        self._replies: deque[bytes] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        #: Runs that the server started here. They are not published.
        self._own_runs: deque[int] = deque(maxlen=MAX_CALLS)
        self._calling = False
        self._capacity = FRAME_BYTES
        found = (node.activation for node in hub.nodes() if node.path == Approvals.namespace)
        self._approvals = next((each for each in found if isinstance(each, Approvals)), None)

    async def run(self, server: RunningServer) -> bool:
        """Publish to a server until it disconnects or `end`. Returns False if it refused."""
        try:
            async with _connected(server) as socket:
                await socket.send(self._hello())
                async with asyncio.timeout(OPEN_S):
                    welcome, _ = read_frame(await socket.recv(decode=False))
                self._capacity = min(FRAME_BYTES, int(welcome["frame_bytes"])) - HEADER_BYTES
                self._hub.page_url = f"http://127.0.0.1:{server.port}/"
                try:
                    with self._listening():
                        await self._serve(socket)
                finally:
                    self._hub.page_url = None
        except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed):
            return False
        except (KeyError, TypeError, ValueError, PlexusError):
            return False  # a server of another version
        return True

    def end(self) -> None:
        """Send the remaining changes, then disconnect."""
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
            # Their exceptions are the reason for the disconnect and need no report.
            await asyncio.gather(sending, receiving, *self._calls, return_exceptions=True)

    # --- what happens here --------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        runs = self._hub.runs
        questions = self._approvals or self._hub.questions
        stops = [
            runs.on_start(self._on_start),
            runs.on_end(self._on_change),
            questions.on_change(self._on_question_change),
        ]
        try:
            yield
        finally:
            for stop in stops:
                stop()
            for run in list(self._subscriptions):
                self._unsubscribe(run)

    def _on_start(self, run: Run, _: Mapping[str, Any], __: Mapping[str, str] | None) -> None:
        if self._calling:
            self._own_runs.append(run.id)
        self._on_change(run)

    def _on_change(self, run: Run) -> None:
        if self._is_published(run):
            self._changed_runs[run.id] = run
            if len(self._changed_runs) > MAX_CHANGED:
                self._changed_runs.clear()
                self._send_all = True
            self._woken.set()

    def _on_question_change(self, run: Run, request: str, _: bool) -> None:
        if self._is_published(run):
            self._changed_questions[run.id, request] = run
            self._on_change(run)

    def _is_published(self, run: Run) -> bool:
        is_hidden = run.method.startswith(INSPECTION_PREFIX) or run.id in self._own_runs
        return not is_hidden and run.principal == LOCAL

    def _on_reader_ready(self, reader: Reader) -> None:
        self._ready_readers.append(reader)
        self._woken.set()

    # --- sending ------------------------------------------------------------------------------

    async def _send(self, socket: ClientConnection) -> None:
        self._woken.set()  # runs may have ended before the connection
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UPDATE_S if self._hub.runs.running() else None):
                    await self._woken.wait()
            self._woken.clear()
            ending = self._ending
            for each in (*self._run_frames(), *self._question_frames()):
                await socket.send(each)
            while self._replies:
                await socket.send(self._replies.popleft())
            await self._send_items(socket)
            if ending:
                await socket.send(frame("bye"))
                return
            await asyncio.sleep(PACE_S)

    def _run_frames(self) -> Iterator[bytes]:
        """Yield frames for runs that changed."""
        if self._send_all:
            yield self._reset()
        now = time.monotonic()
        if now - self._updated_at >= UPDATE_S:
            self._updated_at = now
            for each in self._hub.runs.running():
                state = (each.state, each.log.last)
                if self._last_sent.get(each.id, state) != state:
                    self._changed_runs[each.id] = each
        changed, self._changed_runs = self._changed_runs, {}
        lines: list[bytes] = []
        size = 0
        for run in changed.values():
            line = self._described(run)
            if lines and size + len(line) > self._capacity:
                yield frame("runs", lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line) + 1
        if lines:
            yield frame("runs", lines)

    def _reset(self) -> bytes:
        """Reset what was sent. Returns the frame with all runs, which must be sent first."""
        self._send_all = False
        self._last_sent = {}
        known = filter(self._is_published, self._hub.runs.list_for(LOCAL))
        self._changed_runs = {run.id: run for run in islice(known, KNOWN_RUNS)}
        self._changed_questions = {
            (run.id, asked.event.request): run for run, asked in self._open_questions()
        }
        return frame("known", runs=list(self._changed_runs))

    def _described(self, run: Run) -> bytes:
        try:
            scope = self._hub.resolve(run.method).scope
        except PlexusError:  # unregistered while its runs continue
            scope = run.method.partition(".")[0]
        described = wire.encode(run.describe() | {"scope": scope})
        if run.terminal is None:
            self._last_sent[run.id] = (run.state, run.log.last)
            return described
        self._last_sent.pop(run.id, None)
        raw = run.log.payloads[-1]
        if len(raw) > TERMINAL_BYTES:
            return described
        return b'%b,"terminal":%b}' % (described[:-1], raw)

    def _open_questions(self) -> list[tuple[Run, OpenQuestion]]:
        if self._approvals is not None:
            return [*self._approvals.open_questions(LOCAL)]
        running = self._hub.runs.running()
        return [(run, asked) for run in running for asked in (run.questions or {}).values()]

    def _question_frames(self) -> Iterator[bytes]:
        """Yield frames for questions that were opened or closed."""
        changed, self._changed_questions = self._changed_questions, {}
        for (number, request), run in changed.items():
            if self._approvals is not None:
                asked = self._approvals.find_question(run, request)
            else:
                asked = None if run.questions is None else run.questions.get(request)
            if asked is None or run.terminal is not None:
                yield frame("settled", run=number, request=request)
            else:
                raw = wire.encode_event(_shorten(asked.event, min(QUESTION_BYTES, self._capacity)))
                yield frame("asked", [raw], run=number, asked_ms=wall_ms(asked.asked_at))

    async def _send_items(self, socket: ClientConnection) -> None:
        budget = PACE_BYTES
        readers, self._ready_readers = self._ready_readers, []
        while readers and budget > 0:
            reader = readers.pop(0)
            subscription = self._subscriptions.get(reader.run.id)
            if subscription is None or subscription.reader is not reader:
                continue
            batch = reader.take()
            if not batch.events:
                continue
            number = reader.run.id
            budget -= batch.size
            # A gap has the seq of the last missing item. The server detects it by the next seq.
            if batch.events[0].type != "gap" or batch.first + 1 != reader.run.log.first:
                for each in _frames(number, batch.first, batch.payloads, self._capacity):
                    await socket.send(each)
            if subscription.left is not None:
                subscription.left -= batch.size
            if batch.terminal is not None or (
                subscription.left is not None and subscription.left <= 0
            ):
                self._unsubscribe(number)
            else:
                readers.append(reader)
        self._ready_readers += readers
        if self._ready_readers:
            self._woken.set()

    # --- frames from the server ---------------------------------------------------------------

    async def _receive(self, socket: ClientConnection) -> None:
        while True:
            header, _ = read_frame(await socket.recv(decode=False))
            kind = header["kind"]
            if kind == "want":
                self._subscribe(int(header["run"]), int(header["after"]), header["bytes"])
            elif kind == "enough":
                self._unsubscribe(int(header["run"]))
            elif kind == "call" and len(self._calls) < MAX_CALLS:
                call = self._call(int(header["id"]), header["method"], header["params"])
                task = asyncio.create_task(call)
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)

    def _subscribe(self, number: int, after: int, most_bytes: int | None) -> None:
        self._unsubscribe(number)
        try:
            run = self._hub.runs.find(number, LOCAL)
        except PlexusError:
            self._reply(frame("lost", run=number))
            return
        reader = run.reader(after, self._on_reader_ready, owner=False)
        self._subscriptions[number] = Subscription(reader, most_bytes)
        if reader.poll():
            self._on_reader_ready(reader)

    def _unsubscribe(self, number: int) -> None:
        subscription = self._subscriptions.pop(number, None)
        if subscription is not None:
            subscription.reader.run.leave(subscription.reader)

    async def _call(self, number: int, method: str, params: dict[str, Any]) -> None:
        self._reply(frame("reply", [await self._call_method(method, params)], id=number))

    async def _call_method(self, method: str, params: dict[str, Any]) -> bytes:
        """Call a method and return its encoded terminal."""
        self._calling = True
        try:
            if method not in CALLS:
                return wire.encode_event(
                    ErrorEvent("denied", f"{method} must not be called through a server")
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
        # A server on this machine must not be reached through a proxy of the environment.
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


def _frames(run: int, first: int, payloads: list[bytes], capacity: int) -> Iterator[bytes]:
    """Yield frames for consecutive items, none larger than `capacity`."""
    lines: list[bytes] = []
    size = 0
    for seq, raw in enumerate(payloads, first):
        if lines and size + len(raw) > capacity:
            yield frame("items", lines, run=run, first=seq - len(lines))
            lines, size = [], 0
        if len(raw) > capacity:
            parts: list[bytes] = [raw[at : at + capacity] for at in range(0, len(raw), capacity)]
            for number, part in enumerate(parts, 1):
                yield frame("piece", [part], run=run, seq=seq, last=number == len(parts))
            continue
        lines.append(raw)
        size += len(raw) + 1
    if lines:
        yield frame("items", lines, run=run, first=first + len(payloads) - len(lines))


def _shorten(event: QuestionAsked, limit: int) -> QuestionAsked:
    """Return a question, shortened to the limit."""
    if len(wire.encode_event(event)) <= limit:
        return event
    return QuestionAsked(
        event.request, event.kind, event.message[: limit // 8], {}, event.timeout_s
    )
