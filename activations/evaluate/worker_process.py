"""The process of a session, seen from the server: commands to it, and reports from it.

Reports of an evaluation wait in a bounded queue. When it is full, nothing more is read, so that the
code blocks in its next write. What background threads write between two evaluations is kept, within
a bound, for the next one.
"""

from __future__ import annotations

import asyncio
import codecs
import itertools
import shlex
from collections import deque
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from activations.evaluate.worker import MODULES
from activations.processes.process import Process
from activations.processes.sandbox.launcher import SandboxLauncher
from plexus import Failed, InvalidParams
from plexus.errors import DeadlineExceeded, PlexusError, TooBig
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("Report", "WorkerProcess")

Report = dict[str, Any]

#: Seconds for the start of an interpreter on a busy machine.
START_S: Final = 20.0
#: Seconds for an answer about the variables of a session.
REPLY_S: Final = 5.0
#: Seconds for the rest of the standard error after the end of an evaluation.
STDERR_S: Final = 1.0
#: Seconds for the exit of a process that has closed its output.
EXIT_S: Final = 1.0
#: Maximum bytes of a report; a picture of 700 kB is the largest.
REPORT_BYTES: Final = 4 * 1024 * 1024
_LIMITS: Final = Limits(message_bytes=REPORT_BYTES, message_members=50_000, message_values=200_000)
#: Maximum reports that wait for the reader of an evaluation. The largest have 64 KiB of text.
QUEUED_REPORTS: Final = 32
#: Maximum reports that are kept between evaluations, and characters of the start's complaint.
KEPT_REPORTS: Final = 50
COMPLAINT_CHARACTERS: Final = 2000

STDERR_END: Final = b"\0substrate-end\0"
#: Reads the modules of the worker from standard input, which no sandbox hides, and runs them as a
#: package with another name: the code may have a package with one of our names.
BOOTSTRAP: Final = """
import sys, types
package = sys.modules["substrate_worker"] = types.ModuleType("substrate_worker")
package.__path__ = []
pipe = sys.stdin.buffer
for name, source in eval(pipe.read(int(pipe.readline()))):
    module = types.ModuleType("substrate_worker." + name)
    module.__package__ = "substrate_worker"
    sys.modules[module.__name__] = module
    exec(compile(source, "<substrate worker>", "exec"), module.__dict__)
module.main()
"""


@cache
def _program() -> str:
    """Return the modules of the worker as a literal, after a line with its size."""
    folder = Path(__file__).with_name("worker")
    modules = [(name, (folder / f"{name}.py").read_text()) for name in MODULES]
    literal = ascii(modules)
    return f"{len(literal)}\n{literal}"


class WorkerProcess:
    """A running worker. Always await `close()`."""

    def __init__(self, process: Process, resources: ExitStack) -> None:
        """Own a process, and what its sandbox needs until it ends."""
        self._process = process
        self._resources = resources
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._queue: asyncio.Queue[Report] | None = None
        self._kept: deque[Report] = deque(maxlen=KEPT_REPORTS)
        self._stderr_ended = asyncio.Event()
        self._complaint = ""
        #: What the worker has reported about itself.
        self.facts: Report = {}
        self.is_lost = False
        self._tasks = [
            asyncio.create_task(self._read_reports()),
            asyncio.create_task(self._read_stderr()),
        ]

    @classmethod
    async def open(
        cls,
        launcher: SandboxLauncher,
        interpreter: str,
        directory: str | None,
        memory_bytes: int,
    ) -> WorkerProcess:
        """Start a worker. Raises Failed if the interpreter does not start."""
        limit = f"ulimit -d {memory_bytes // 1024}; " if memory_bytes else ""
        script = f"{limit}exec {shlex.quote(interpreter)} -u -c {shlex.quote(BOOTSTRAP)}"
        # Figures are drawn without a screen.
        with ExitStack() as resources:
            command = resources.enter_context(
                launcher.prepare(script, directory, {"MPLBACKEND": "Agg"})
            )
            process = await launcher.start(command, _program(), stdin_stays_open=True)
            worker = cls(process, resources.pop_all())
        try:
            await worker._start(interpreter)
        except BaseException:
            await worker.close()
            raise
        return worker

    async def _start(self, interpreter: str) -> None:
        try:
            async with asyncio.timeout(START_S):
                self.facts = await self._ready
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{interpreter} did not start within {START_S:g} s", data={"limit_s": START_S}
            ) from error

    def begin(self) -> asyncio.Queue[Report]:
        """Return the queue of the reports of the next evaluation."""
        self._queue = asyncio.Queue(QUEUED_REPORTS)
        while self._kept and not self._queue.full():
            self._queue.put_nowait(self._kept.popleft())
        self._stderr_ended.clear()
        self._complaint = ""
        return self._queue

    def end(self) -> None:
        """Keep what is reported from now on for the next evaluation."""
        queue, self._queue = self._queue, None
        while queue is not None and not queue.empty():  # a writer may wait for a place
            queue.get_nowait()

    async def drain_stderr(self) -> None:
        """Wait until the standard error of the evaluation has been read."""
        with suppress(TimeoutError):  # the code has closed or redirected the descriptor
            async with asyncio.timeout(STDERR_S):
                await self._stderr_ended.wait()

    async def run(self, code: str, count: int) -> int:
        """Execute code, and return the number of the evaluation."""
        number = next(self._numbers)
        await self._send(op="run", id=number, code=code, count=count)
        return number

    async def interrupt(self, number: int) -> None:
        """Raise KeyboardInterrupt in an evaluation, if it is still in progress."""
        await self._send(op="interrupt", id=number)

    def interrupt_soon(self, number: int) -> None:
        """Interrupt an evaluation from a callback."""
        task = asyncio.create_task(self.interrupt(number))
        self._tasks.append(task)

    async def answer(self, text: str | None) -> None:
        """Return what `input()` asked for; None if there is no answer."""
        await self._send(op="answer", text=text)

    async def ask(self, question: str, **arguments: Any) -> Any:
        """Return the answer to a question about the session, also while code is executed.

        Raises Failed with the exception of the worker, and DeadlineExceeded.
        """
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            await self._send(op=question, id=number, arguments=arguments)
            async with asyncio.timeout(REPLY_S):
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the session did not answer within {REPLY_S:g} s: its code holds the interpreter",
                data={"limit_s": REPLY_S},
            ) from error
        finally:
            del self._replies[number]

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        self._process.kill()

    async def close(self) -> None:
        """Kill the process tree and release all resources."""
        self._process.kill()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.wait(self._tasks)
        finally:
            try:
                await self._process.end()
            finally:
                self._resources.close()

    def loss(self) -> Failed:
        """Return the error of a process that has ended."""
        code = self._process.returncode
        if code is None:
            cause = "was killed"
        elif code < 0:
            cause = f"was killed by signal {-code}"
        else:
            cause = f"has exited with code {code}"
        text = f"the process of the session {cause}, and its variables are lost"
        if self._complaint.strip():
            text += f": {self._complaint.strip()[-COMPLAINT_CHARACTERS:]}"
        return Failed(text, code="session_lost", data={"exit_code": code})

    async def _send(self, **command: Any) -> None:
        if self._process.stdin is not None:
            await self._process.stdin.write(wire.encode(command) + b"\n")

    async def _read_reports(self) -> None:
        try:
            await self._dispatch_all()
        except (ValueError, PlexusError):
            self._process.kill()  # the code has written to the channel, so it cannot be trusted
        finally:
            self._process.expire_after(EXIT_S)
            await self._process.wait()
            self._fail_waiters()
        if self._queue is not None:  # everything that was shown before is read first
            await self._queue.put({"op": "lost"})

    async def _dispatch_all(self) -> None:
        """Dispatch reports until the end of the process, or until something is no report."""
        rest = bytearray()
        while data := await self._process.stdout.read():
            rest += data
            *lines, rest = rest.split(b"\n")
            for line in lines:
                report = wire.decode_value(line, _LIMITS, exact=False)
                if not isinstance(report, dict):
                    raise InvalidParams("not a report")
                await self._dispatch(report)
            if len(rest) > REPORT_BYTES:
                raise TooBig("not a report")

    async def _dispatch(self, report: Report) -> None:
        kind = report.get("op")
        if kind == "ready":
            if not self._ready.done():
                self._ready.set_result(report)
        elif kind == "reply":
            future = self._replies.get(report.get("id", 0))
            if future is not None and not future.done():
                if "error" in report:
                    future.set_exception(Failed(str(report["error"]), code="not_available"))
                else:
                    future.set_result(report.get("value"))
        elif self._queue is not None:
            await self._queue.put(report)
        else:
            self._kept.append(report)

    async def _read_stderr(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        rest = b""
        while data := await self._process.stderr.read():
            text, rest = self._take_end(rest + data)
            await self._on_stderr(decoder.decode(text))
        await self._on_stderr(decoder.decode(rest, final=True))

    def _take_end(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the data without marks of the end, and what may be the beginning of a mark."""
        if STDERR_END in data:
            data = data.replace(STDERR_END, b"")
            self._stderr_ended.set()
        for size in range(min(len(STDERR_END) - 1, len(data)), 0, -1):
            if data.endswith(STDERR_END[:size]):
                return data[:-size], data[-size:]
        return data, b""

    async def _on_stderr(self, text: str) -> None:
        if not text:
            return
        self._complaint = (self._complaint + text)[-COMPLAINT_CHARACTERS:]
        await self._dispatch({"op": "stderr", "text": text})

    def _fail_waiters(self) -> None:
        self.is_lost = True
        error = self.loss()
        for future in (self._ready, *self._replies.values()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # it is not reported as unread if nothing waits for it
