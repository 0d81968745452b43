"""Checks of files: which checkers run, when, and what is known about each file."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from activations.ide.checkers import CHECKERS, Checker, Diagnostic, parse_checker
from activations.ide.events import FileDiagnostics
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
SEVERITIES: Final = ("Error", "Warning", "Info", "Hint")


class Checks:
    """The checks of one workspace: at most one at a time of each file."""

    def __init__(self, state: EditorState, programs: Programs, names: tuple[str, ...]) -> None:
        """Use these checkers, or all if there are no names. Raises ValueError."""
        for name in names:
            parse_checker(name)
        self._checkers = [each for each in CHECKERS if not names or each.name in names]
        self._state = state
        self._programs = programs
        self._running: dict[str, asyncio.Task[FileDiagnostics]] = {}
        #: Files that have changed since their check has begun.
        self._again: set[str] = set()

    def names(self) -> list[str]:
        """Return the checkers that are installed."""
        return [each.name for each in self._checkers if self._programs.find(each.name)]

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
        applicable = self._applicable(path)
        task = asyncio.get_running_loop().create_task(self._check(path, applicable))
        self._running[path] = task
        task.add_done_callback(lambda _: self._on_done(path))
        return bool(applicable)

    async def run(self, path: str, timeout_s: float) -> FileDiagnostics | None:
        """Check a file and return the result; None if it takes longer than this."""
        self.request(path, again=False)
        task = self._running.get(path)
        if task is None:
            return None
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
        return task.result() if done and not task.cancelled() else None

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

    def _applicable(self, path: str) -> list[tuple[Checker, str]]:
        """Return the checkers for a file, and their programs."""
        language, folder = language_of(path), self._state.workspace.folder
        found = []
        for checker in self._checkers:
            if language in checker.languages and checker.is_configured(folder):
                program = self._programs.find(checker.name)
                if program is not None:
                    found.append((checker, program))
        return found

    async def _check(self, path: str, checkers: list[tuple[Checker, str]]) -> FileDiagnostics:
        if not checkers:
            result = FileDiagnostics(path, False, [], 0, self._missing(path))
            self._state.set_diagnostics(result)
            return result
        before = self._state.diagnostics.get(path)
        known: list[dict[str, Any]] = [] if before is None else before.diagnostics
        self._state.set_diagnostics(FileDiagnostics(path, True, known))
        try:
            file = await asyncio.to_thread(self._state.workspace.read, path)
        except PlexusError as error:
            result = FileDiagnostics(path, False, [], 0, error.message)
            self._state.set_diagnostics(result)
            return result
        outcomes = await asyncio.gather(
            *(self._run(checker, program, path, file.text) for checker, program in checkers)
        )
        found = [each for diagnostics, _ in outcomes for each in diagnostics]
        found.sort(key=lambda each: (SEVERITIES.index(each.severity), each.range))
        listed = [each.as_json() for each in found[:MAX_DIAGNOSTICS]]
        notes = [note for _, note in outcomes if note is not None]
        more = max(len(found) - MAX_DIAGNOSTICS, 0)
        result = FileDiagnostics(path, False, listed, more, " ".join(notes) or None)
        self._state.set_diagnostics(result)
        return result

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
