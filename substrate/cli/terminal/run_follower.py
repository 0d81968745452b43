"""One call from start to end: its events on the display, its questions to the user.

Rules:
- The first Ctrl-C stops the run where it runs and waits a moment for its terminal; the second
  ends this process at once. What only follows somebody else's run just stops following.
- The exit code says how the run ended: 0 it did its work, 1 it failed, 2 it was called wrongly,
  128 + n a signal stopped it, which is 130 for Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from plexus.errors import InvalidParams, PlexusError
from plexus.rpc import wire
from substrate.cli.target.protocol import OpenCall, Target
from substrate.cli.terminal.display import TERMINALS, Display
from substrate.cli.terminal.prompter import Prompter

__all__ = ("COMPLETE", "FAILED", "INTERRUPTED", "REASONS", "USAGE", "RunFollower")

COMPLETE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
#: How long a run that was told to stop may take: what a hub grants it, and a little more.
STOP_S: Final = 6.0
#: After how long a person is told that a run takes its time to stop.
PATIENCE_S: Final = 0.5
#: The signals that stop a run, and what its terminal says then.
REASONS: Final = {
    signal.SIGINT: "interrupted by its caller",
    signal.SIGTERM: "its caller was ended",
}

#: Whether a question, given as its event, still waits for an answer.
IsOpen = Callable[[Mapping[str, Any]], Awaitable[bool]]


class RunFollower:
    """Runs one call and shows it on this terminal."""

    def __init__(
        self,
        target: Target,
        display: Display,
        prompter: Prompter | None,
        is_open: IsOpen | None = None,
    ) -> None:
        """`is_open` is asked before a question is put to the person: whoever follows a run from its
        beginning sees those again that were answered long ago."""
        self._is_open = is_open
        self._target = target
        self._display = display
        self._prompter = prompter
        self._call: OpenCall | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def play(self, method: str, params: dict[str, Any], *, follows: bool) -> int:
        """Call and show everything; the exit code. Raises PlexusError if the call is refused."""
        loop = asyncio.get_running_loop()
        following = loop.create_task(self._follow(method, params))
        interrupted: asyncio.Future[signal.Signals] = loop.create_future()
        with self._signals_caught(interrupted):
            either: list[asyncio.Future[Any]] = [following, interrupted]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
            return await self._stop(following, signal_number=interrupted.result(), leave=follows)

    async def _follow(self, method: str, params: dict[str, Any]) -> int:
        code = FAILED
        try:
            async with self._target.call(method, params) as call:
                self._call = call
                async for item in call.items():
                    event = item.event
                    if item.time_ms is not None:
                        self._display.stamp(item.time_ms)
                    self._display.show(event, item.text)
                    if event.get("type") == "request":
                        self._ask(call, event)
                    elif event.get("type") in TERMINALS:
                        code = exit_code(event)
        finally:
            self._display.settle()
            await self._stop_asking()
        return code

    async def _stop(
        self, following: asyncio.Task[int], *, signal_number: signal.Signals, leave: bool
    ) -> int:
        await self._stop_asking()
        self._display.end_line()
        if self._call is not None and not leave:
            with suppress(PlexusError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._call.cancel(REASONS[signal_number])
                    await asyncio.wait([following], timeout=PATIENCE_S)
                    if not following.done():
                        self._display.remark("Stopping; Ctrl-C again ends it at once.", "yellow")
                        await asyncio.wait([following])
        following.cancel()
        await asyncio.wait([following])
        if not following.cancelled() and (error := following.exception()):
            self._display.remark(str(error), "red")
        return 128 + signal_number

    @contextmanager
    def _signals_caught(self, interrupted: asyncio.Future[signal.Signals]) -> Iterator[None]:
        """Resolve the future at the first signal; end the process at the second.

        The handlers are Python's and not the loop's, so that a method which holds up the loop
        of this process can be ended too.
        """
        loop = asyncio.get_running_loop()
        seen: list[int] = []

        def caught(number: int, _: FrameType | None) -> None:
            seen.append(number)
            if len(seen) > 1:
                self._display.settle()
                os._exit(128 + number)
            loop.call_soon_threadsafe(interrupted.set_result, signal.Signals(number))

        before = {number: signal.signal(number, caught) for number in REASONS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- questions ------------------------------------------------------------------------------

    def _ask(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._put(call, event))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _put(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        """Put a question to whoever can answer it."""
        if self._is_open is not None and not await self._is_open(event):
            return
        if self._prompter is not None:
            await self._ask_user(call, event)
        elif self._target.command is None:
            await self._decline(call, event)
        else:
            self._display.remark(
                f"{_question(event)}\n  Answer with: "
                + answering_command(self._target.command, call.run, event),
                "yellow",
            )

    async def _ask_user(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        assert self._prompter is not None
        self._display.settle()
        while True:
            answer = await self._prompter.answer(event)
            try:
                await call.answer(event["request"], answer)
            except InvalidParams as error:
                self._display.remark(error.message, "red")
            except PlexusError as error:  # it was answered by somebody else, or too late
                self._display.remark(error.message, "yellow")
                return
            else:
                return

    async def _decline(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        """Nobody is at a terminal, and nobody else can reach a run of this process."""
        self._display.remark(
            f"{_question(event)}\n  Nobody can answer here, so it is declined. Call "
            "from a terminal, or start `substrate` and call the server.",
            "yellow",
        )
        with suppress(PlexusError):
            await call.answer(event["request"], None)

    async def _stop_asking(self) -> None:
        for task in list(self._asking):
            task.cancel()
            await asyncio.wait([task])


def exit_code(terminal: Mapping[str, Any]) -> int:
    """How a run ended, for a shell."""
    if terminal["type"] == "complete":
        return FAILED if terminal.get("exit_code") else COMPLETE
    return USAGE if terminal.get("code") == InvalidParams.default_code else FAILED


def answering_command(command: Sequence[str], run: int, request: Mapping[str, Any]) -> str:
    """The command that answers a question, ready to be typed elsewhere."""
    options = [option["value"] for option in request.get("options") or []]
    examples = {"confirm": True, "select": options[:1] and options[0], "select_many": options[:1]}
    answer = request.get("default")
    if answer is None:
        answer = examples.get(request["kind"], {} if request["kind"] == "form" else "...")
    words = [*command, "plexus.respond", "--run", str(run), "--request", str(request["request"])]
    return shlex.join([*words, "--answer", wire.encode(answer).decode()])


def _question(request: Mapping[str, Any]) -> str:
    options = [option["value"] for option in request.get("options") or []]
    return f"The run asks: {request['message']}" + (f" ({', '.join(options)})" if options else "")
