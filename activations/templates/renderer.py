"""Renders templates in separate processes, which are killed when they take too long.

A template is a program: it can loop endlessly, and a sandbox can have a hole. So it runs in a
process with limited memory and a deadline, which has only the texts of one folder. The process is
kept for the next template of the same folder, because its start takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from activations.processes.process import CannotStart, Command, Launcher, Process
from activations.templates.model import CONTENT_BYTES, Template, path_fault
from activations.templates.parameters import Values
from plexus import Failed
from plexus.errors import Busy, DeadlineExceeded, PlexusError, TooBig
from plexus.limits import Limits
from plexus.rpc import wire
from plexus.text import escape_controls, shorten

__all__ = ("Rendered", "Renderer")

#: Seconds for one template, and for the start of a process on a busy machine.
RENDER_S: Final = 5.0
START_S: Final = 20.0
#: Seconds without a template after which a process ends.
IDLE_S: Final = 60.0
#: Processes that are kept; the one that was unused the longest ends first.
MAX_PROCESSES: Final = 4
#: Calls that wait for one process.
MAX_WAITING: Final = 64
#: Memory of a process. Past it the template fails.
MEMORY_BYTES: Final = 256 * 1024 * 1024
#: Size of an answer: the content, in which every character may be escaped, and the path.
ANSWER_BYTES: Final = 8 * CONTENT_BYTES
REASON_CHARACTERS: Final = 500
PROGRAM: Final = Path(__file__).with_name("render_worker.py")
_LIMITS: Final = Limits(message_bytes=ANSWER_BYTES)


class Rendered(NamedTuple):
    """What a template generated."""

    path: str
    content: str


class Renderer:
    """Render processes by the folders of their templates. Always await `close()`."""

    def __init__(self) -> None:
        self._launcher = Launcher()
        self._workers: dict[str, _Worker] = {}
        self._idle_check: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [worker.pid for worker in self._workers.values() if worker.pid]

    async def render(
        self, template: Template, texts: Mapping[str, str], values: Values
    ) -> Rendered:
        """Return what a template generates.

        Raises Failed for a template that is wrong, TooBig, DeadlineExceeded and Busy.
        """
        worker = self._worker(template.folder, texts)
        if worker.waiting >= MAX_WAITING:
            raise Busy(
                f"{MAX_WAITING} templates wait to be generated; retry later",
                data={"limit": MAX_WAITING},
            )
        request = {
            "path": template.path,
            "file": template.file,
            "values": values,
            "limit": CONTENT_BYTES,
        }
        try:
            found = await worker.ask(request)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{template.uri} was stopped: it took more than {RENDER_S:g} s to generate",
                data={"limit_s": RENDER_S},
            ) from error
        if "error" in found:
            raise _failure(template, found)
        path, content = found.get("path"), found.get("content")
        if not isinstance(path, str) or not isinstance(content, str):
            raise Failed(f"{template.uri}: the render process gave no text", code="render")
        fault = path_fault(path)
        if fault is not None:
            shown = escape_controls(shorten(path, 100))
            raise Failed(
                f"{template.uri} names the file {shown!r}, whose path {fault}", code="unsafe_path"
            )
        return Rendered(path, content)

    async def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        if self._idle_check is not None:
            self._idle_check.cancel()
        for worker in self._workers.values():
            self._end(worker)
        self._workers.clear()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._launcher.close()

    def _worker(self, folder: str, texts: Mapping[str, str]) -> _Worker:
        """Return the process of a folder, which starts with its first template."""
        if self._is_closed:
            raise Failed("The server is stopping.", code="stopping")
        worker = self._workers.pop(folder, None)
        if worker is None:
            worker = _Worker(self._launcher, texts)
            if len(self._workers) >= MAX_PROCESSES:
                unused = [key for key, each in self._workers.items() if not each.waiting]
                for key in unused[:1]:
                    self._end(self._workers.pop(key))
        self._workers[folder] = worker  # last in the order of use
        self._check_idle_later()
        return worker

    def _check_idle_later(self) -> None:
        if self._idle_check is None:
            loop = asyncio.get_running_loop()
            self._idle_check = loop.call_later(IDLE_S / 2, self._end_idle)

    def _end_idle(self) -> None:
        self._idle_check = None
        before = asyncio.get_running_loop().time() - IDLE_S
        for key, worker in list(self._workers.items()):
            if not worker.waiting and worker.last_used < before:
                self._end(self._workers.pop(key))
        if self._workers:
            self._check_idle_later()

    def _end(self, worker: _Worker) -> None:
        task = asyncio.get_running_loop().create_task(worker.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _Worker:
    """The process of one folder. It renders one template after the other."""

    def __init__(self, launcher: Launcher, texts: Mapping[str, str]) -> None:
        self._launcher = launcher
        self._texts = texts
        self._process: Process | None = None
        self._rest = b""
        self._lock = asyncio.Lock()
        #: Calls that use it or wait for it.
        self.waiting = 0
        self.last_used = 0.0

    @property
    def pid(self) -> int:
        """The process that runs; 0 for none."""
        process = self._process
        return 0 if process is None or process.returncode is not None else process.pid

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Raises TimeoutError and Failed.

        After an error the next request starts another process.
        """
        self.waiting += 1
        try:
            async with self._lock:
                return await self._ask(request)
        finally:
            self.waiting -= 1
            self.last_used = asyncio.get_running_loop().time()

    async def end(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        self._rest = b""
        if process is not None:
            await process.end()

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        is_complete = False
        try:
            process = self._process
            if process is None or process.returncode is not None:
                await self.end()
                process = await self._start()
            async with asyncio.timeout(RENDER_S):
                await _write(process, request)
                answer = await self._read(process)
            is_complete = not answer.get("lost")
            return answer
        finally:
            # Without a complete answer, the next one would be read in its place.
            if not is_complete:
                await self.end()

    async def _start(self) -> Process:
        arguments = (sys.executable, "-I", "-S", str(PROGRAM))
        # It writes no files and starts no processes, should a template leave the sandbox.
        limits = {"DATA": MEMORY_BYTES, "CORE": 0, "FSIZE": 0, "NPROC": 0}
        command = Command(arguments, "/", {"LC_ALL": "C.UTF-8"}, limits)
        try:
            async with asyncio.timeout(START_S):
                process = await self._launcher.start(command, b"", stdin_stays_open=True)
                self._process = process
                await _write(process, {"path": sys.path, "texts": self._texts})
                await self._read(process)
        except (CannotStart, OSError) as error:
            raise Failed(f"The render process cannot be started: {error}", code="spawn") from error
        except TimeoutError as error:
            raise Failed(
                f"The render process did not start within {START_S:g} s", code="spawn"
            ) from error
        return process

    async def _read(self, process: Process) -> dict[str, Any]:
        """Return the next answer. Raises Failed if the process ends or sends something else."""
        size: int | None = None
        while True:
            if size is None and b"\n" in self._rest[:20]:
                line, _, self._rest = self._rest.partition(b"\n")
                size = int(line) if line.isdigit() else ANSWER_BYTES + 1
            is_lost = size is None and len(self._rest) >= 20
            if is_lost or (size is not None and size > ANSWER_BYTES):
                raise Failed("The render process gave no answer that can be read", code="render")
            if size is not None and len(self._rest) >= size:
                answer, self._rest = self._rest[:size], self._rest[size:]
                return _decode(answer)
            data = await process.stdout.read()
            if not data:
                raise Failed(
                    "The render process has ended: the template is nested too deeply, or needs "
                    "too much memory",
                    code="render",
                )
            self._rest += data


async def _write(process: Process, value: Mapping[str, Any]) -> None:
    assert process.stdin is not None, "it was started with an input that stays open"
    data = wire.encode(value)
    await process.stdin.write(b"%d\n" % len(data) + data)


def _decode(answer: bytes) -> dict[str, Any]:
    try:
        found = wire.decode_value(answer, _LIMITS, exact=False)
    except (ValueError, PlexusError) as error:
        raise Failed("The render process gave no answer that can be read", code="render") from error
    return found if isinstance(found, dict) else {}


def _failure(template: Template, answer: Mapping[str, Any]) -> PlexusError:
    """Return the error of a template."""
    where = "its path" if answer.get("where") == "path" else "its text"
    reason = escape_controls(shorten(str(answer["error"]), REASON_CHARACTERS))
    message = f"{template.uri} cannot be generated from {where}: {reason}"
    if answer.get("code") == "too_big":
        return TooBig(message, data={"limit": CONTENT_BYTES})
    return Failed(message, code="render")
