"""Checks of files: which checkers run, when, and what is known about each file.

A result is valid until an open file changes: type checkers report in one file what another one
causes. So an agent that asks before and after each of its edits does not wait for what is known.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from activations.ide.checkers import ANALYSIS, CHECKERS, Checker, Diagnostic, parse_checker
from activations.ide.events import FileDiagnostics
from activations.ide.findings import Findings
from activations.ide.languages import language_of
from activations.ide.programs import Programs
from activations.ide.state import EditorState
from plexus.errors import PlexusError

__all__ = ("MAX_DIAGNOSTICS", "Checks")

#: Diagnostics of one file that are listed, the most severe first.
MAX_DIAGNOSTICS: Final = 200
#: Timeout of a checker. A type checker without a cache reads the whole project.
CHECK_S: Final = 60.0
#: Files whose checks wait at the same time.
MAX_WAITING: Final = 100
#: Results that are kept, and seconds after which one is no longer valid: the configuration of a
#: checker may have changed.
MAX_RESULTS: Final = 500
VALID_S: Final = 60.0
SEVERITIES: Final = ("Error", "Warning", "Info", "Hint")

#: Checks a text, and returns what it found, or why it could not check.
Check: TypeAlias = Callable[[str], Awaitable[tuple[list[Diagnostic], str | None]]]


class _Known(NamedTuple):
    """The result of a check."""

    result: FileDiagnostics
    #: The state of the open files when the check began.
    stamp: int
    at: float


class Checks:
    """The checks of one workspace: at most one at a time of each file."""

    def __init__(
        self,
        state: EditorState,
        programs: Programs,
        findings: Findings,
        names: tuple[str, ...],
    ) -> None:
        """Use these checkers, or all if there are no names. Raises ValueError."""
        for name in names:
            parse_checker(name)
        self._checkers = [each for each in CHECKERS if not names or each.name in names]
        self._findings = findings if not names or ANALYSIS in names else None
        self._state = state
        self._programs = programs
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._running: dict[str, asyncio.Task[FileDiagnostics]] = {}
        #: Files that have changed since their check has begun.
        self._again: set[str] = set()

    def names(self) -> list[str]:
        """Return the checkers that are installed."""
        found = [each.name for each in self._checkers if self._programs.find(each.name)]
        is_available = self._findings is not None and self._findings.is_available
        return [*found, *([ANALYSIS] if is_available else ())]

    def request(self, path: str, *, again: bool = True) -> bool:
        """Check a file in the background. Returns whether there is a checker for it.

        `again`: check it once more if a check is in progress.
        """
        if path in self._running:
            if again:
                self._again.add(path)
            return True
        if len(self._running) >= MAX_WAITING:
            return False
        checks = self._checks_of(path)
        task = asyncio.get_running_loop().create_task(self._check(path, checks))
        self._running[path] = task
        task.add_done_callback(lambda _: self._on_done(path))
        return bool(checks)

    async def run(self, path: str, timeout_s: float) -> FileDiagnostics | None:
        """Return the valid result for a file, or check it; None if it takes longer than this."""
        known = self._known.get(path)
        if known is not None and time.monotonic() - known.at < VALID_S:
            stamp = await self._stamp(path)
            if stamp == known.stamp and path not in self._running:
                return known.result
        self.request(path, again=False)
        task = self._running.get(path)
        if task is None:
            return None
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
        return task.result() if done and not task.cancelled() else None

    async def _stamp(self, path: str) -> int:
        """Return a number that changes with this file and with every open one."""
        paths = {path, *self._state.documents}
        return await asyncio.to_thread(self._state.workspace.stamp, sorted(paths))

    async def close(self) -> None:
        """End all checks."""
        self._again.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_done(self, path: str) -> None:
        self._running.pop(path, None)
        if path in self._again:
            self._again.discard(path)
            self.request(path)

    def _checks_of(self, path: str) -> list[Check]:
        """Return the checks that apply to a file."""
        language, workspace = language_of(path), self._state.workspace
        found: list[Check] = []
        for checker in self._checkers:
            if language in checker.languages and checker.is_configured(workspace.folder):
                program = self._programs.find(checker.name)
                if program is not None:
                    found.append(partial(self._run, checker, program, path))
        if self._findings is not None and self._findings.applies(language):
            found.append(partial(self._analyse, workspace.absolute(path)))
        return found

    async def _check(self, path: str, checks: list[Check]) -> FileDiagnostics:
        stamp = await self._stamp(path)
        result = await self._result(path, checks)
        self._known[path] = _Known(result, stamp, time.monotonic())
        self._known.move_to_end(path)
        if len(self._known) > MAX_RESULTS:
            self._known.popitem(last=False)
        self._state.set_diagnostics(result)
        return result

    async def _result(self, path: str, checks: list[Check]) -> FileDiagnostics:
        if not checks:
            return FileDiagnostics(path, False, [], 0, self._missing(path))
        before = self._state.diagnostics.get(path)
        known: list[dict[str, Any]] = [] if before is None else before.diagnostics
        self._state.set_diagnostics(FileDiagnostics(path, True, known))
        try:
            file = await asyncio.to_thread(self._state.workspace.read, path)
        except PlexusError as error:
            return FileDiagnostics(path, False, [], 0, error.message)
        outcomes = await asyncio.gather(*(check(file.text) for check in checks))
        found = [each for diagnostics, _ in outcomes for each in diagnostics]
        found.sort(key=lambda each: (SEVERITIES.index(each.severity), each.range))
        listed = [each.as_json() for each in found[:MAX_DIAGNOSTICS]]
        notes = [note for _, note in outcomes if note is not None]
        if not self._checks_of(path):  # analysis was found not to be installed
            notes.append(self._missing(path))
        more = max(len(found) - MAX_DIAGNOSTICS, 0)
        return FileDiagnostics(path, False, listed, more, " ".join(notes) or None)

    async def _analyse(self, path: str, text: str) -> tuple[list[Diagnostic], str | None]:
        assert self._findings is not None, "only then it is a check"
        try:
            return await self._findings.check(path, text, CHECK_S), None
        except PlexusError as error:
            return [], error.message

    async def _run(
        self, checker: Checker, program: str, path: str, text: str
    ) -> tuple[list[Diagnostic], str | None]:
        """Return what a checker found, or why it could not check."""
        # A name such as `-x.py` must not become an option.
        name = f"./{path}" if path.startswith("-") else path
        arguments = [program, *checker.arguments(name)]
        try:
            output = await self._programs.run(arguments, text if checker.stdin else None, CHECK_S)
            return await asyncio.to_thread(checker.read, path, text, output), None
        except PlexusError as error:
            return [], error.message
        except (KeyError, TypeError, ValueError, AttributeError):
            return [], f"{checker.name} has written something unexpected."

    def _missing(self, path: str) -> str:
        """Return why a file is not checked."""
        language = language_of(path)
        names = [each.name for each in self._checkers if language in each.languages]
        if not names:
            return f"There is no checker for {language} files."
        return f"Not checked: none of {', '.join(names)} is installed and configured here."
