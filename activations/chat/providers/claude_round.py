"""One run of the `claude` program: what it writes, what it is told, its end.

The one who reads drives it: nothing is read that nobody asks for. Beside that there are only
short-lived tasks that belong to the round: one that keeps the end of its standard error, and one
for each question whether a tool may be used, so that its other words are heard meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any

from activations.chat.providers.provider import Approve
from activations.chat.providers.stream_json import Lines, Permission, verdict_line
from activations.processes.process import Process

__all__ = ("Round",)

#: How much of its standard error is kept.
STDERR_BYTES = 8 * 1024

#: How long the program may take to end once it has said all and is told nothing more. It writes
#: its session down meanwhile, which takes some ten milliseconds.
EXIT_S = 10.0


class Round:
    """A program that was started with its standard input left open, until `end()` is awaited."""

    def __init__(self, process: Process, approve: Approve) -> None:
        self._process = process
        self._approve = approve
        self._lines = Lines()
        self._stderr = bytearray()
        self._listener = asyncio.create_task(self._listen())
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        #: How long it may be silent while it is read; None while it is not.
        self._patience_s: float | None = None

    async def read(self, patience_s: float) -> list[dict[str, Any]]:
        """The next messages; none at the end. Raises what the question for a permission raised.

        If nothing comes for so long, and no person is being asked, the program is killed and
        `silent` is set.
        """
        while True:
            self._patience_s = patience_s
            self._watch()
            try:
                data = await self._process.stdout.read()
            finally:
                self._patience_s = None
                self._watch()
            messages = self._lines.feed(data) if data else self._lines.end()
            if self._failure is not None:
                raise self._failure
            if messages or not data:
                return messages

    @property
    def silent(self) -> bool:
        """Whether it was killed for its silence."""
        return self._process.expired

    def ask(self, permission: Permission) -> None:
        """Ask whether a tool may be used, and tell the program when that is known."""
        question = asyncio.create_task(self._decide(permission))
        self._questions[permission.request] = question
        question.add_done_callback(lambda _: self._decided(permission.request, question))

    def take_back(self, request: str) -> None:
        """The answer to this question is no longer wanted."""
        if request in self._questions:
            self._questions[request].cancel()

    async def tell(self, line: bytes) -> None:
        """Write a line to the program."""
        if self._process.stdin is not None:
            await self._process.stdin.write(line)

    def finish(self) -> None:
        """It is asked and told nothing more, and is to end by itself."""
        for request in list(self._questions):
            self.take_back(request)
        if self._process.stdin is not None:
            self._process.stdin.finish()

    async def ended(self) -> tuple[int | None, str]:
        """Wait for its end after its output has ended: its exit code and the end of its standard
        error."""
        self._process.expire_after(EXIT_S)
        await self._process.gone()
        await asyncio.wait([self._listener])
        return self._process.returncode, bytes(self._stderr).decode(errors="replace").strip()

    async def end(self) -> None:
        """Kill what is left of its tree, at once, and let go of everything."""
        self._process.kill()
        tasks = [self._listener, *self._questions.values()]
        for task in tasks:
            task.cancel()
        try:
            # The listener must be done before its pipe is closed under it.
            await asyncio.wait(tasks)
        finally:
            await self._process.end()

    async def _listen(self) -> None:
        while data := await self._process.stderr.read():
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]

    async def _decide(self, permission: Permission) -> None:
        verdict = await self._approve(permission.tool, permission.use, permission.input)
        await self.tell(verdict_line(permission, verdict))

    def _decided(self, request: str, question: asyncio.Task[None]) -> None:
        if self._questions.get(request) is question:
            del self._questions[request]
        if not question.cancelled() and (failure := question.exception()) is not None:
            self._failure = failure
            self._process.kill()  # whoever reads is woken by the end of the output
        self._watch()

    def _watch(self) -> None:
        """A person may take his time, and so may whoever reads us; only the program may not."""
        asks = self._patience_s is None or bool(self._questions)
        self._process.expire_after(None if asks else self._patience_s)
