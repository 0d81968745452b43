"""Follow a call from start to end: show its events, and prompt for its questions.

Rules:
- The first Ctrl-C cancels the run and waits briefly for its terminal; the second ends this process
  immediately. A run of another client is only detached from.
- Exit codes: 0 success, 1 failure, 2 invalid call, 128 + n for signal n, so 130 for Ctrl-C.
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
from substrate.cli.terminal.prompter import Prompter, Rejected

__all__ = ("COMPLETE", "FAILED", "INTERRUPTED", "REASONS", "USAGE", "RunFollower")

COMPLETE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
MAX_EXIT_CODE: Final = 255
#: Timeout for a cancelled run: slightly more than the hub allows it.
STOP_S: Final = 6.0
#: Delay before a message that the run is still stopping.
STOP_NOTICE_S: Final = 0.5
#: Signals that cancel a run, and the reason in its terminal.
REASONS: Final = {
    signal.SIGINT: "interrupted by its caller",
    signal.SIGTERM: "its caller was ended",
}

#: Returns whether the question of a request event is still pending.
IsPending = Callable[[Mapping[str, Any]], Awaitable[bool]]


class RunFollower:
    """Runs a call and shows it on this terminal."""

    def __init__(
        self,
        target: Target,
        display: Display,
        prompter: Prompter | None,
        is_pending: IsPending | None = None,
        *,
        passes_exit_code: bool = False,
    ) -> None:
        """Create a follower that shows a run and prompts for its questions.

        `is_pending` is checked before each prompt, because following a run from its start replays
        questions that were answered long ago. With `passes_exit_code`, the exit code is that of the
        command that the method has run.
        """
        self._passes_exit_code = passes_exit_code
        #: Whether a signal ended the following before the run ended.
        self.was_interrupted = False
        self._is_pending = is_pending
        self._target = target
        self._display = display
        self._prompter = prompter
        self._call: OpenCall | None = None
        self._questions: set[asyncio.Task[None]] = set()

    async def follow(self, method: str, params: dict[str, Any], *, detach: bool) -> int:
        """Call a method and show all events. Returns the exit code.

        With `detach`, a signal does not cancel the run. Raises PlexusError if the call is rejected.
        """
        loop = asyncio.get_running_loop()
        following = loop.create_task(self._follow(method, params))
        interrupted: asyncio.Future[signal.Signals] = loop.create_future()
        with self._catch_signals(interrupted):
            either: list[asyncio.Future[Any]] = [following, interrupted]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
            return await self._stop(following, signal_number=interrupted.result(), detach=detach)

    async def _follow(self, method: str, params: dict[str, Any]) -> int:
        code = FAILED
        try:
            async with self._target.call(method, params) as call:
                self._call = call
                async for item in call.items():
                    event = item.event
                    if item.time_ms is not None:
                        self._display.stamp(item.time_ms)
                    if event.get("type") in TERMINALS:
                        await self._cancel_questions()  # a prompt may wait in the line
                    self._display.show(event, item.text)
                    if event.get("type") == "request":
                        self._ask(call, event)
                    elif event.get("type") in TERMINALS:
                        code = exit_code(event, passes=self._passes_exit_code)
        finally:
            self._display.finish_line()
            await self._cancel_questions()
        return code

    async def _stop(
        self, following: asyncio.Task[int], *, signal_number: signal.Signals, detach: bool
    ) -> int:
        self.was_interrupted = True
        await self._cancel_questions()
        self._display.end_line()
        if self._call is not None and not detach:
            with suppress(PlexusError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._call.cancel(REASONS[signal_number])
                    await asyncio.wait([following], timeout=STOP_NOTICE_S)
                    if not following.done():
                        message = "Stopping. Press Ctrl-C again to end immediately."
                        self._display.remark(message, "yellow")
                        await asyncio.wait([following])
        following.cancel()
        await asyncio.wait([following])
        if not following.cancelled() and (error := following.exception()):
            self._display.remark(str(error), "red")
        return 128 + signal_number

    @contextmanager
    def _catch_signals(self, interrupted: asyncio.Future[signal.Signals]) -> Iterator[None]:
        """Resolve the future at the first signal; end the process at the second.

        The handlers are Python's, not the event loop's, so that a method that blocks the loop of
        this process can be ended too.
        """
        loop = asyncio.get_running_loop()
        seen: list[int] = []

        def caught(number: int, _: FrameType | None) -> None:
            seen.append(number)
            if len(seen) > 1:
                self._display.finish_line()
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
        task = asyncio.get_running_loop().create_task(self._handle_question(call, event))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _handle_question(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        """Prompt the user, or print how to answer, or decline."""
        if self._is_pending is not None and not await self._is_pending(event):
            return
        if self._prompter is not None:
            await self._ask_user(call, event)
        elif self._target.command is None and self._is_pending is None:
            await self._decline(call, event)
        else:
            # A run that is only followed can be answered from any process that sees it.
            command = self._target.command or ("substrate", "call")
            self._display.remark(
                f"{_question(event)}\n  Answer with: " + respond_command(command, call.run, event),
                "yellow",
            )

    async def _ask_user(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        assert self._prompter is not None
        self._display.finish_line()
        rejected: Rejected | None = None
        while True:
            answer = await self._prompter.answer(event, rejected)
            try:
                await call.answer(event["request"], answer)
            except InvalidParams as error:
                rejected = Rejected.of(answer, error)
                self._display.remark(error.message, "red")
            except PlexusError as error:  # another client answered, or the deadline has passed
                self._display.remark(error.message, "yellow")
                return
            else:
                return

    async def _decline(self, call: OpenCall, event: Mapping[str, Any]) -> None:
        """Decline: there is no terminal, and no other process can reach a run of this process."""
        self._display.remark(
            f"{_question(event)}\n  Declined, because there is no terminal to answer on. Call it "
            "from a terminal, or start `substrate` and call the server.",
            "yellow",
        )
        with suppress(PlexusError):
            await call.answer(event["request"], None)

    async def _cancel_questions(self) -> None:
        for task in list(self._questions):
            task.cancel()
            await asyncio.wait([task])


def exit_code(terminal: Mapping[str, Any], *, passes: bool = False) -> int:
    """Return the exit code for a terminal, or with `passes` that of the command in it."""
    if terminal["type"] == "complete":
        code = terminal.get("exit_code")
        if passes and isinstance(code, int) and 0 <= code <= MAX_EXIT_CODE:
            return code
        return FAILED if code or terminal.get("is_error") is True else COMPLETE
    return USAGE if terminal.get("code") == InvalidParams.default_code else FAILED


def respond_command(command: Sequence[str], run: int, request: Mapping[str, Any]) -> str:
    """Return a command line that answers a question from another terminal."""
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
