"""The sessions of a server: opened by name, bounded for each principal, ended when unused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from activations.evaluate.events import Cell, SessionClosed, SessionInfo
from activations.evaluate.interpreter import find_interpreter
from activations.evaluate.session import Session
from activations.evaluate.worker_process import WorkerProcess
from activations.processes.sandbox.launcher import SandboxLauncher
from plexus import Failed, InvalidParams, NotFound, Principal
from plexus.caller_environment import caller_directory
from plexus.latest_changes import LatestChanges
from plexus.runtime.log import wall_ms

__all__ = ("MAX_SESSIONS", "SessionTable")

#: Sessions of one principal: each is a process with its own memory.
MAX_SESSIONS: Final = 16
#: Seconds after which an unused session ends, and between the checks for that.
IDLE_S: Final = 24 * 3600.0
IDLE_CHECK_S: Final = 600.0


class SessionTable:
    """The sessions of all principals, each with a name. A session starts when it is first used."""

    def __init__(
        self, launcher: SandboxLauncher, workspace: Path | None, memory_bytes: int
    ) -> None:
        self._launcher = launcher
        self._workspace = workspace
        self._memory_bytes = memory_bytes
        self._sessions: dict[tuple[str, str], Session] = {}
        self.changes = LatestChanges[SessionInfo | Cell | SessionClosed](_subject)
        self._idle_check: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def counts(self) -> tuple[int, int]:
        """Return the number of sessions, and of those that evaluate code."""
        return len(self._sessions), sum(each.is_busy for each in self._sessions.values())

    def list_for(self, principal: Principal) -> list[tuple[str, Session]]:
        """Return the sessions of a principal with their names, sorted."""
        return [
            (name, each)
            for (owner, name), each in sorted(self._sessions.items())
            if owner == principal.name
        ]

    def get(self, principal: Principal, name: str) -> Session | None:
        """Return a session, or None."""
        return self._sessions.get((principal.name, name))

    def find(self, principal: Principal, name: str) -> Session:
        """Return a session. Raises NotFound."""
        found = self.get(principal, name)
        if found is None:
            raise NotFound(
                f"There is no session {name[:64]!r}. python.evaluate starts it; python.sessions "
                "lists the sessions of this server."
            )
        return found

    async def open(self, principal: Principal, name: str, python: str | None) -> Session:
        """Return a session, which starts with its first evaluation.

        Raises Failed if the principal has too many, and InvalidParams for another interpreter.
        """
        await self._launcher.check()
        directory = self._workspace or caller_directory()
        found = self.get(principal, name)
        if found is not None:
            if python is not None and find_interpreter(python, directory) != found.interpreter:
                raise InvalidParams.at(
                    "python",
                    f"the session {name!r} runs {found.interpreter}; choose another name, or "
                    "restart it with python.restart",
                )
            return found
        if len(self.list_for(principal)) >= MAX_SESSIONS:
            raise Failed(
                f"You have {MAX_SESSIONS} sessions. Close one with python.close_session, or use "
                "one of them; python.sessions lists them.",
                code="busy",
                data={"limit": MAX_SESSIONS},
            )
        interpreter = find_interpreter(python, directory)

        async def open_worker() -> WorkerProcess:
            folder = None if self._workspace is not None else str(directory)
            return await WorkerProcess.open(self._launcher, interpreter, folder, self._memory_bytes)

        owner = principal.name
        session = Session(
            name, interpreter, open_worker, lambda event: self.changes.notify(event, owner)
        )
        self._sessions[owner, name] = session
        self.changes.notify(session.info(), owner)
        self._check_idle_later()
        return session

    async def close(self, owner: str, session: Session, reason: str) -> None:
        """End a session and notify its watchers."""
        if self._sessions.get((owner, session.name)) is session:
            del self._sessions[owner, session.name]
        self.changes.notify(SessionClosed(session.name, reason), owner)
        await session.close()

    async def close_all(self) -> None:
        """End all sessions."""
        if self._idle_check is not None:
            self._idle_check.cancel()
        for owner, name in list(self._sessions):
            await self.close(owner, self._sessions[owner, name], "the server stops")
        if self._closing:
            await asyncio.wait(self._closing)

    def _check_idle_later(self) -> None:
        if self._idle_check is None:
            loop = asyncio.get_running_loop()
            self._idle_check = loop.call_later(IDLE_CHECK_S, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_check = None
        before = wall_ms(time.monotonic()) - IDLE_S * 1000
        for (owner, _), each in list(self._sessions.items()):
            if not each.is_busy and each.last_used_ms < before:
                task = asyncio.create_task(self.close(owner, each, "it was not used for a day"))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        if self._sessions:
            self._check_idle_later()


def _subject(change: SessionInfo | Cell | SessionClosed) -> tuple[str, int]:
    """Return a session, or one of its evaluations."""
    return change.session, change.execution if isinstance(change, Cell) else 0
