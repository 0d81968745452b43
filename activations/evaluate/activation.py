"""The `python` activation: code is evaluated in live sessions, which keep their variables.

A session belongs to a principal and has a name. All clients of the principal share it: an agent, a
terminal and the page see the same variables and the same history. A session is a process in the
sandbox of `bash`; it ends with the server, after a day without use, or by `python.restart`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, Len

from activations.evaluate.events import (
    Cell,
    Display,
    Evaluated,
    SessionClosed,
    SessionInfo,
    Start,
    Stderr,
    Stdout,
    Value,
)
from activations.evaluate.reports import error_of, event_of
from activations.evaluate.session_table import SessionTable
from activations.processes.sandbox.hidden_paths import OwnPaths
from activations.processes.sandbox.launcher import SandboxLauncher
from activations.processes.sandbox.profiles import Profile
from plexus import (
    Activation,
    AskText,
    Context,
    Failed,
    Image,
    InvalidParams,
    NotFound,
    Principal,
    completer,
    method,
    prompt,
    resource,
)
from plexus.errors import DeadlineExceeded, Declined, TooBig, Unsupported
from plexus.rpc import wire

__all__ = ("Evaluate",)

DEFAULT_SESSION: Final = "default"
#: Characters of output of one evaluation. Past it the code is interrupted.
MAX_OUTPUT_CHARACTERS: Final = 8 * 1024 * 1024
#: Memory of a session. Past it the code gets a MemoryError.
DEFAULT_MEMORY_BYTES: Final = 8 * 1024**3
#: Characters of the name of a session.
MAX_NAME: Final = 64
SessionName = Annotated[str, Len(1, MAX_NAME)]


class Evaluate(Activation):
    """Evaluate Python code in live sessions that keep their variables."""

    namespace = "python"
    version = "1.0.0"

    def __init__(
        self,
        sandbox: Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        """Configure where sessions run; see `SandboxLauncher`. Memory 0: no limit."""
        self._launcher = SandboxLauncher(sandbox, workspace, own_paths)
        folder = Path(workspace or ".").resolve() if sandbox != "off" else None
        self._sessions = SessionTable(self._launcher, folder, memory_bytes)

    @method(
        title="Evaluate Python code",
        alias="evaluate",
        deadline_s=None,
        restart="never",  # code has effects that must not happen twice
        read_only=False,
        destructive=True,
        open_world=True,
    )
    async def evaluate(
        self,
        expression: str,
        session: str = DEFAULT_SESSION,
        timeout_s: float | None = None,
        python: str | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[Start | Stdout | Stderr | Display | Image | Value | Evaluated]:
        """Evaluate Python code in a session that keeps its variables.

        Returns output, pictures and the last value; top-level `await` works.

        Args:
            expression: Python code, such as "3 + 4".
            session: A new name starts a session.
            timeout_s: Seconds until interruption. Default: none.
            python: Interpreter of a new session, such as ".venv".
        """
        _check("session", 0 < len(session) <= MAX_NAME, f"must have 1 to {MAX_NAME} characters")
        _check("timeout_s", timeout_s is None or 0 < timeout_s < math.inf, "must be above zero")
        self._launcher.boot()
        found = await self._sessions.open(ctx.principal, session, python)
        size = 0
        failure: Failed | None = None
        reports = found.evaluate(expression, timeout_s, ctx.run_id, ctx.client)
        async with aclosing(reports):
            async for report in reports:
                kind = report["op"]
                if kind == "input":
                    await found.answer(await _ask(ctx, str(report.get("prompt") or "")))
                elif kind == "error":
                    failure = error_of(report)
                elif kind == "start":
                    yield Start(session, report["count"], str(report["version"]))
                elif kind == "done" and failure is not None:
                    raise failure
                elif kind == "done":
                    yield Evaluated(session, found.count, float(report["duration_ms"]))
                elif (event := event_of(report)) is not None:
                    yield event
                    size += len(report.get("text") or "") + len(report.get("data") or "")
                    if size > MAX_OUTPUT_CHARACTERS:
                        raise TooBig(
                            f"The output is larger than {MAX_OUTPUT_CHARACTERS:,} characters, so "
                            "the code was interrupted. Write long output to a file.",
                            data={"limit": MAX_OUTPUT_CHARACTERS},
                        )

    @method(title="Interrupt an evaluation", audience="client", destructive=False, control=True)
    async def interrupt(
        self, session: SessionName = DEFAULT_SESSION, *, principal: Principal
    ) -> bool:
        """Raise KeyboardInterrupt in the code of a session. Returns whether any was running.

        Code that does not end within 3 seconds is killed with its session.
        """
        return await self._sessions.find(principal, session).interrupt()

    @method(title="Restart a session", audience="client", destructive=True, open_world=False)
    async def restart(
        self,
        session: SessionName = DEFAULT_SESSION,
        python: str | None = None,
        *,
        principal: Principal,
    ) -> SessionInfo:
        """Start a session again with a new process, without its variables.

        Args:
            session: Name of the session.
            python: Another interpreter or virtual environment for it.
        """
        old = self._sessions.get(principal, session)
        if old is not None:
            await self._sessions.close(principal.name, old, "it was restarted")
        chosen = python or (None if old is None else old.interpreter)
        found = await self._sessions.open(principal, session, chosen)
        await found.ask("variables", limit=0)  # starts the process
        return found.info()

    @method(title="Delete all variables", audience="client", destructive=True, open_world=False)
    async def reset(
        self, session: SessionName = DEFAULT_SESSION, *, principal: Principal
    ) -> SessionInfo:
        """Delete the variables of a session. Imported modules stay loaded.

        Waits for the evaluation in progress.
        """
        found = self._sessions.find(principal, session)
        await found.reset()
        return found.info()

    @method(title="Close a session", audience="client", destructive=True, open_world=False)
    async def close_session(
        self, session: SessionName = DEFAULT_SESSION, *, principal: Principal
    ) -> bool:
        """End a session and its process. Returns whether it existed."""
        found = self._sessions.get(principal, session)
        if found is not None:
            await self._sessions.close(principal.name, found, "it was closed")
        return found is not None

    @method(title="List sessions", audience="client", read_only=True, open_world=False)
    async def sessions(self, principal: Principal) -> list[SessionInfo]:
        """List your sessions with their state, interpreter and folder."""
        return [each.info() for _, each in self._sessions.list_for(principal)]

    @method(title="List variables", audience="client", read_only=True, open_world=False)
    async def variables(
        self,
        session: SessionName = DEFAULT_SESSION,
        limit: Annotated[int, Ge(1), Le(1000)] = 200,
        *,
        principal: Principal,
    ) -> dict[str, Any]:
        """List the variables of a session with type, shape or length, and a preview.

        Works while code is running.
        """
        return _object(await self._sessions.find(principal, session).ask("variables", limit=limit))

    @method(title="Describe a variable", audience="client", read_only=True, open_world=False)
    async def inspect(
        self, name: str, session: SessionName = DEFAULT_SESSION, *, principal: Principal
    ) -> dict[str, Any]:
        """Describe a variable, a function or an attribute: type, signature, documentation, source.

        Args:
            name: A name such as "df", or "df.columns".
            session: Name of the session.
        """
        return _object(await self._sessions.find(principal, session).ask("inspect", name=name))

    @method(title="Complete code", audience="client", read_only=True, open_world=False)
    async def complete(
        self,
        code: str,
        cursor: Annotated[int, Ge(0)] | None = None,
        session: SessionName = DEFAULT_SESSION,
        *,
        principal: Principal,
    ) -> dict[str, Any]:
        """Return names that continue code at the cursor, and the range that they replace.

        Args:
            code: Python code.
            cursor: Position in characters. Default: the end.
            session: Name of the session.
        """
        place = len(code) if cursor is None else min(cursor, len(code))
        return _object(
            await self._sessions.find(principal, session).ask("complete", code=code, cursor=place)
        )

    @method(title="Show the history of a session", audience="client", read_only=True)
    async def history(
        self,
        session: SessionName = DEFAULT_SESSION,
        limit: Annotated[int, Ge(1), Le(200)] = 50,
        *,
        principal: Principal,
    ) -> list[Cell]:
        """Return the last evaluations of a session, oldest first. Their output is in their runs."""
        return list(self._sessions.find(principal, session).history)[-limit:]

    @method(title="Watch sessions", audience="client", deadline_s=None, read_only=True)
    async def watch(
        self, session: SessionName | None = None, *, principal: Principal
    ) -> AsyncIterator[SessionInfo | Cell | SessionClosed]:
        """Stream your sessions with their evaluations, then every change.

        Args:
            session: Only this session.
        """
        with self._sessions.changes.subscribe(principal.name) as subscription:
            for name, each in self._sessions.list_for(principal):
                if session in (None, name):
                    yield each.info()
                    for cell in list(each.history):
                        yield cell
            while True:
                for event in await subscription.take():
                    if session in (None, event.session):
                        yield event

    # --- resources and prompts --------------------------------------------------------------------

    @resource("python://system/version", name="version", title="Python version")
    async def read_version(self, *, principal: Principal) -> str:
        """The version and the interpreter of the default session."""
        found = await self._sessions.open(principal, DEFAULT_SESSION, None)
        await found.ask("variables", limit=0)
        info = found.info()
        return f"Python {info.python} ({info.interpreter})"

    @resource(
        "python://module/{name}",
        name="module",
        title="Python module",
        mime_type="application/json",
    )
    async def read_module(self, name: str, *, principal: Principal) -> str:
        """The documentation, classes and functions of a module, which is not imported.

        Args:
            name: Name of the module, such as json.
        """
        found = await self._sessions.open(principal, DEFAULT_SESSION, None)
        try:
            return wire.encode_pretty(await found.ask("module", name=name)).decode()
        except Failed as error:
            if error.code != "not_available":
                raise
            raise NotFound(error.message.partition(": ")[2] or error.message) from error

    @prompt(title="Review a Python module", alias="review-module")
    async def review_module(self, module: str, *, principal: Principal) -> str:
        """Review a Python module.

        Args:
            module: Name of the module to review, such as json.
        """
        outline = await self.read_module(module, principal=principal)
        return f"Please review the Python module {module}. This is its outline:\n\n{outline}"

    @completer("evaluate", "session")
    async def suggest_sessions(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """Return names of sessions that start with this prefix."""
        return [name for name, _ in self._sessions.list_for(principal) if name.startswith(value)]

    # --- sessions ---------------------------------------------------------------------------------

    async def check_health(self) -> str:
        """Return the number of sessions. Raises Failed if the sandbox does not work."""
        await self._launcher.check()
        count, busy = self._sessions.counts()
        sessions = "1 session" if count == 1 else f"{count} sessions"
        return f"{sessions}, {busy} busy, sandbox {self._launcher.profile}"

    async def close(self) -> None:
        """End all sessions and the supervisor."""
        await self._sessions.close_all()
        await self._launcher.close()


async def _ask(ctx: Context, text: str) -> str | None:
    """Ask the caller what the code asks for; None if there is no answer."""
    try:
        return await ctx.ask(AskText(text or "The code waits for input."))
    except (Declined, DeadlineExceeded, Unsupported):
        return None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Failed("the session has answered with something else", code="session_lost")
    return value


def _check(argument: str, valid: bool, message: str) -> None:
    if not valid:
        raise InvalidParams.at(argument, message)
