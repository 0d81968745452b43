"""Calls of another server as runs: its progress and logs are events, its answer is the terminal.

Imported at the first call of a mount.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.connector import Connector
from activations.gateway.direct_call import DirectCall, StartedCall
from activations.gateway.mounted_tool import CONTEXT
from activations.gateway.names import rewrite_blocks, rewrite_meta
from activations.gateway.questions import answer_question, find_roots
from activations.gateway.server_lists import ServerLists
from activations.gateway.session_pool import Entry, SessionPool
from activations.gateway.sign_in import ask_to_sign_in
from activations.gateway.subscriptions import Subscriptions
from activations.gateway.transports.oauth import SignIn
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.visible_text import show_invisible
from mcp_view.client.errors import Refused, UpstreamError
from mcp_view.client.items import (
    ListChanged,
    LogMessage,
    Notice,
    Progress,
    Question,
    QuestionClosed,
    Reinitialized,
    ResourceUpdated,
    TaskStatus,
)
from plexus.context import Context
from plexus.errors import Failed, NotFound, PlexusError
from plexus.events import ContentResult, Event, Log
from plexus.events import Progress as ProgressEvent
from plexus.principal import Principal
from plexus.rpc import wire

if TYPE_CHECKING:  # it creates this
    from activations.gateway.mount import Mount
    from plexus.runtime.run import LocalRun

__all__ = ("MountCalls",)

#: Maximum questions of one call that are open at the same time.
MAX_QUESTIONS: Final = 16
#: Timeout of suggestions for an argument.
COMPLETION_S: Final = 5.0
#: The timeout of a call where the run has the only one.
NO_LIMIT_S: Final = math.inf
#: The error of the protocol for a resource that does not exist.
NO_RESOURCE: Final = -32002
LEVELS: Final = frozenset(
    {"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
)


class MountCalls:
    """The sessions of one mount, and the calls in them."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._config = mount.config
        self._connector = Connector(mount)
        self.pool = SessionPool(mount.config, self._open)
        self.lists = ServerLists(mount, self.pool)
        self.subscriptions = Subscriptions(mount, self.pool)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- calls ----------------------------------------------------------------------------------

    def call_tool(self, ctx: Context, tool: str, arguments: dict[str, Any]) -> AsyncIterator[Event]:
        """Call a tool: yield its progress and logs, and its result as the terminal.

        Raises Failed for a tool that is held.
        """
        self._mount.gateway.check_tool(self._mount, tool)
        params = {"name": tool, "arguments": arguments}
        return self._call(ctx, "tools/call", params, self._tool_result)

    def start_tool(self, run: LocalRun, tool: str, arguments: dict[str, Any]) -> bool:
        """Call a tool without a task, if its session is open. Returns whether it does."""
        catalogue, pool = self._mount.catalogue, self.pool
        if catalogue is None or tool not in catalogue.tools or tool in catalogue.held:
            return False
        ctx = arguments[CONTEXT]
        found = pool.find(ctx)
        if found is None:
            return False
        del arguments[CONTEXT]
        params = {"name": tool, "arguments": arguments}
        started = self._send(found, "tools/call", params)
        read = self._tool_result
        continues = partial(self._call, ctx, "tools/call", params, read)
        DirectCall(run, ctx, pool, started, read=read, continues=continues)
        return True

    def get_prompt(
        self, ctx: Context, prompt: str, arguments: dict[str, Any]
    ) -> AsyncIterator[Event]:
        """Return the messages of a prompt as the terminal."""
        params = {"name": prompt, "arguments": arguments}
        return self._call(ctx, "prompts/get", params, self._prompt_result)

    def read_resource(self, ctx: Context, uri: str) -> AsyncIterator[Event]:
        """Return the contents of a resource as the terminal."""
        return self._call(ctx, "resources/read", {"uri": uri}, self._contents)

    async def complete(
        self, principal: Principal, ref: dict[str, str], argument: dict[str, str], given: Any
    ) -> list[str]:
        """Return the server's suggestions for an argument of a prompt or a template, if any."""
        config = self._config
        if config.signs_in and config.session_scope != "shared" and not principal.is_operator:
            return []  # the session at hand may be one of another account
        params = {"ref": ref, "argument": argument, "context": {"arguments": given}}
        try:
            async with self.pool.any_session(None) as session:
                if not session.server.has("completions"):
                    return []
                result = await session.request(
                    "completion/complete", params, timeout_s=COMPLETION_S
                )
        except PlexusError:
            return []  # a person who types is not helped by an error
        found = result.get("completion")
        values = found.get("values") if isinstance(found, dict) else None
        return [each for each in values or () if isinstance(each, str)]

    def _send(
        self, found: tuple[Entry, UpstreamSession, int], method: str, params: dict[str, Any]
    ) -> StartedCall:
        """Send the request of a call in a session of the pool."""
        entry, session, number = found
        try:
            timeout_s = self._config.timeout_s or NO_LIMIT_S
            request = session.start(method, params, timeout_s=timeout_s)
        except Exception:  # arguments of a caller in this process that have no JSON form
            self.pool.release(entry, number)
            raise
        return StartedCall(entry, number, request, time.monotonic())

    async def _call(
        self,
        ctx: Context,
        method: str,
        params: dict[str, Any],
        read: Any,
        begun: StartedCall | None = None,
    ) -> AsyncIterator[Event]:
        """Make a call, or continue one whose request was sent."""
        if begun is None:
            begun = self._send(await self.pool.acquire(ctx), method, params)
        entry, number, request, started = begun
        config, pool = self._config, self.pool
        questions: dict[int, asyncio.Task[None]] = {}
        latency: float | None = None
        status = ""
        try:
            async with request as call:
                async for items in call:
                    for item in items:
                        if isinstance(item, Progress):
                            yield ProgressEvent(*_progress(item))
                        elif isinstance(item, LogMessage):
                            yield _log(item)
                        elif isinstance(item, Question):
                            self._ask(ctx, entry, call, item, questions)
                        elif isinstance(item, QuestionClosed):
                            task = questions.get(item.question.id)
                            if task is not None:
                                task.cancel()
                        elif isinstance(item, TaskStatus):
                            text = item.task.get("statusMessage")
                            if isinstance(text, str) and text != status:
                                status = text
                                yield Log("info", show_invisible(text))
                latency = time.monotonic() - started
                result = call.result
        except UpstreamError as error:
            raise _named(config.name, error) from error
        finally:
            for task in questions.values():
                task.cancel()
            pool.release(entry, number, latency)
        yield read(result)

    def _tool_result(self, result: dict[str, Any]) -> ContentResult:
        name = self._config.name
        return ContentResult(
            _blocks(name, result.get("content")),
            result.get("structuredContent"),
            result.get("isError") is True,
            rewrite_meta(name, result.get("_meta")),
        )

    def _prompt_result(self, result: dict[str, Any]) -> ContentResult:
        return ContentResult(_blocks(self._config.name, result.get("messages")))

    def _contents(self, result: dict[str, Any]) -> ContentResult:
        return ContentResult(_blocks(self._config.name, result.get("contents")))

    # --- questions ------------------------------------------------------------------------------

    def _ask(
        self,
        ctx: Context,
        entry: Entry,
        call: Any,
        question: Question,
        questions: dict[int, asyncio.Task[None]],
    ) -> None:
        """Ask the caller what the server asks, in a task of the call."""
        if len(questions) >= MAX_QUESTIONS:
            call.refuse(question, f"More than {MAX_QUESTIONS} questions are open.")
            return
        if self.pool.owners(entry) > 1:
            # A server on stdio does not say which call it asks for, and callers must not see the
            # questions of others.
            call.refuse(
                question, "Several clients share this session, so it is not known which to ask."
            )
            return
        task = asyncio.create_task(self._answer(ctx, call, question))
        questions[question.id] = task
        task.add_done_callback(lambda _: questions.pop(question.id, None))

    async def _answer(self, ctx: Context, call: Any, question: Question) -> None:
        try:
            answer = await answer_question(ctx, self._config.name, question.kind, question.params)
        except PlexusError as error:
            call.refuse(question, error.message)
        else:
            call.answer(question, answer)

    # --- sessions -------------------------------------------------------------------------------

    async def _open(self, ctx: Context | None, entry: Entry) -> UpstreamSession:
        """Open a session for the owner of a call, and list the server if it is time to."""

        def on_notice(session: UpstreamSession, notice: Notice) -> None:
            self._on_notice(session, entry, notice)

        async def on_sign_in(pending: SignIn) -> None:
            # A token can become invalid in a later call, whose caller is asked then.
            asked = next(reversed(entry.active.values()), ctx)
            await ask_to_sign_in(self._mount, asked, pending)

        try:
            session = await self._connector.connect(ctx, on_notice, on_sign_in)
        except UpstreamError as error:
            self.pool.keep_stderr(self._connector.stderr)
            raise _named(self._config.name, error) from error
        known = self._mount.catalogue
        if self.lists.is_due:
            self._spawn(self._list(entry, session))
        elif known is not None:
            session.learn_tools(list(known.tools.values()))
        return session

    async def _list(self, entry: Entry, session: UpstreamSession) -> None:
        with self.pool.listing(entry):
            await self.lists.read(session)

    def _on_notice(self, session: UpstreamSession, entry: Entry, notice: Notice) -> None:
        if isinstance(notice, ResourceUpdated):
            self.subscriptions.on_update(entry, notice.uri)
        elif isinstance(notice, ListChanged | Reinitialized):
            if isinstance(notice, Reinitialized):
                self.subscriptions.on_reset(entry)
            self._spawn(self.lists.refresh_soon(entry))
        elif isinstance(notice, Question):
            self._spawn(self._answer_notice(session, entry, notice))

    async def _answer_notice(
        self, session: UpstreamSession, entry: Entry, question: Question
    ) -> None:
        """Answer a question outside of any call: only which folders the caller works in."""
        if question.kind == "roots":
            calls = list(entry.active.values())
            only = calls[0] if len(calls) == 1 else None
            session.answer(question, {"roots": await find_roots(only)})
        else:
            session.refuse(question, "It was asked outside of a call, so no caller can be asked.")

    def _spawn(self, work: Any) -> None:
        """Run a coroutine in a task of this mount; its failure is the mount's last error."""

        async def run() -> None:
            try:
                await work
            except PlexusError as error:
                self.pool.error = error

        task = asyncio.create_task(run(), name=f"mount {self._config.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all sessions and tasks."""
        await self.subscriptions.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.pool.close()


def _blocks(mount: str, blocks: Any) -> list[dict[str, Any]]:
    return rewrite_blocks(mount, blocks) if isinstance(blocks, list) else []


def _progress(item: Progress) -> tuple[float, float | None, str | None]:
    """Return the fields of a progress event; those of another type are left out."""
    total, message = item.total, item.message
    return item.progress, total, None if message is None else message[:4000]


def _log(item: LogMessage) -> Log:
    level = item.level if item.level in LEVELS else "info"
    data = item.data
    text = data if isinstance(data, str) else wire.encode(data).decode()
    return Log(level, show_invisible(text))


def _named(mount: str, error: UpstreamError) -> PlexusError:
    """Return the error of a server with the name of its mount."""
    text = show_invisible(error.message)
    data = error.data if isinstance(error, Refused) and isinstance(error.data, dict) else {}
    if data.get("code") == NO_RESOURCE:
        return NotFound(f"{mount}: {text}", data=data)
    return Failed(f"{mount}: {text}", code=error.code, data=error.data)
