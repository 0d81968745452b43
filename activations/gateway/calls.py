"""Calls of another server as runs: its progress and logs are events, its answer is the terminal.

Imported at the first call of a mount.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.catalogue import Catalogue, read_entries, read_tools
from activations.gateway.mount_config import MountConfig, expand, unset_variables
from activations.gateway.names import rewrite_blocks, rewrite_meta
from activations.gateway.questions import answer_question, find_roots
from activations.gateway.session_pool import Entry, SessionPool
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.visible_text import show_invisible
from activations.processes.supervisor_client import Command
from mcp_view.client.errors import Refused, UpstreamError
from mcp_view.client.items import (
    ListChanged,
    LogMessage,
    Notice,
    Progress,
    Question,
    QuestionClosed,
    Reinitialized,
)
from mcp_view.client.options import ClientOptions
from plexus.caller_environment import CallerEnvironment
from plexus.context import Context
from plexus.errors import Failed, NotFound, PlexusError
from plexus.events import ContentResult, Event, Log
from plexus.events import Progress as ProgressEvent
from plexus.registry.lazy import resolve
from plexus.rpc import wire

if TYPE_CHECKING:  # it creates this
    from activations.gateway.mount import Mount
    from activations.gateway.transports.transport import Transport

__all__ = ("MountCalls",)

#: What this server answers for another one; what the caller cannot answer is refused then.
CAPABILITIES: Final = frozenset({"form", "url", "sampling", "roots"})
#: The last revision with a handshake; a server that has it is not probed for a newer one.
LEGACY: Final = "2025-11-25"
#: Maximum questions of one call that are open at the same time.
MAX_QUESTIONS: Final = 16
#: The timeout of a call where the run has the only one.
NO_LIMIT_S: Final = 7 * 24 * 3600.0
#: Seconds for each list of a server.
LIST_S: Final = 30.0
#: Seconds after which a list that was not asked for is read again.
FRESH_S: Final = 300.0
#: Our own variables, which are not passed to other servers.
OWN_PREFIX: Final = "SUBSTRATE_"
#: The error of the protocol for a resource that does not exist.
NO_RESOURCE: Final = -32002
LEVELS: Final = frozenset(
    {"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
)
_TRANSPORTS: Final = {
    "http": "activations.gateway.transports.streamable_http:HttpTransport",
    "sse": "activations.gateway.transports.sse:SseTransport",
    "websocket": "activations.gateway.transports.websocket:WebSocketTransport",
}
STDIO: Final = "activations.gateway.transports.stdio:StdioTransport"


class MountCalls:
    """The sessions of one mount, and the calls in them."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._config = mount.config
        self.pool = SessionPool(mount.config, self._open)
        self._listed_at = -FRESH_S
        self._refreshing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- calls ----------------------------------------------------------------------------------

    def call_tool(self, ctx: Context, tool: str, arguments: dict[str, Any]) -> AsyncIterator[Event]:
        """Call a tool: yield its progress and logs, and its result as the terminal.

        Raises Failed for a tool that is held.
        """
        self._mount.gateway.check_tool(self._mount, tool)
        params = {"name": tool, "arguments": arguments}
        return self._call(ctx, "tools/call", params, self._tool_result)

    def get_prompt(
        self, ctx: Context, prompt: str, arguments: dict[str, Any]
    ) -> AsyncIterator[Event]:
        """Return the messages of a prompt as the terminal."""
        params = {"name": prompt, "arguments": arguments}
        return self._call(ctx, "prompts/get", params, self._prompt_result)

    def read_resource(self, ctx: Context, uri: str) -> AsyncIterator[Event]:
        """Return the contents of a resource as the terminal."""
        return self._call(ctx, "resources/read", {"uri": uri}, self._contents)

    async def complete(self, ctx: Context, params: dict[str, Any]) -> list[str]:
        """Return the server's suggestions for an argument of a prompt or a template."""
        _, session, number = entry = await self.pool.acquire(ctx)
        try:
            result = await session.request("completion/complete", params)
        finally:
            self.pool.release(entry[0], number)
        found = result.get("completion")
        values = found.get("values") if isinstance(found, dict) else None
        return [each for each in values or () if isinstance(each, str)]

    async def _call(
        self, ctx: Context, method: str, params: dict[str, Any], read: Any
    ) -> AsyncIterator[Event]:
        config, pool = self._config, self.pool
        entry, session, number = await pool.acquire(ctx)
        started = time.monotonic()
        questions: dict[int, asyncio.Task[None]] = {}
        latency: float | None = None
        try:
            async with session.start(
                method, params, timeout_s=config.timeout_s or NO_LIMIT_S
            ) as call:
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
                question, "Several clients share this session, so it is not known whom to ask."
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
        caller = self._environment(ctx)
        known = self._mount.catalogue
        revision = None if known is None else known.server.get("revision")
        legacy = isinstance(revision, str) and revision <= LEGACY
        try:
            try:
                session = await self._connect(caller, entry, is_legacy=legacy)
            except UpstreamError:
                if not legacy:
                    raise
                # It may have been updated to a revision without a handshake.
                session = await self._connect(caller, entry, is_legacy=False)
        except UpstreamError as error:
            raise _named(self._config.name, error) from error
        if time.monotonic() - self._listed_at > FRESH_S:
            self._spawn(self._list(session))
        elif known is not None:
            session.learn_tools(list(known.tools.values()))
        return session

    async def _connect(
        self, caller: CallerEnvironment, entry: Entry, *, is_legacy: bool
    ) -> UpstreamSession:
        options = ClientOptions(
            capabilities=CAPABILITIES, era="legacy" if is_legacy else "auto", log_level="info"
        )
        session: UpstreamSession | None = None

        def on_notice(notice: Notice) -> None:
            if session is not None:
                self._on_notice(session, entry, notice)

        session = UpstreamSession(self._transport(caller), options, on_notice=on_notice)
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session

    def _environment(self, ctx: Context | None) -> CallerEnvironment:
        """Return the environment of the caller, if the session is only for it; else our own."""
        if ctx is not None and self._config.session_scope in ("connection", "call"):
            caller = ctx.caller
            if caller is not None:
                return caller
        return CallerEnvironment(str(self._mount.gateway.folder), os.environ)

    def _transport(self, caller: CallerEnvironment) -> Transport:
        config, variables = self._config, caller.variables
        missing = unset_variables(config, variables)
        if missing:
            names = ", ".join(missing)
            raise Failed(
                f"{config.name} refers to variables that are not set: {names}. Set them in the "
                "environment of Substrate, or write ${NAME:-default}.",
                code="mount_variables",
            )
        fill = partial(expand, variables=variables)
        if config.transport != "stdio":
            headers = {name: fill(value) for name, value in config.headers.items()}
            transport: Transport = resolve(_TRANSPORTS[config.transport])(
                fill(config.url), headers=headers
            )
            return transport
        command = _command(config, caller)
        stdio: Transport = resolve(STDIO)(command, self._mount.gateway.launcher)
        return stdio

    def _on_notice(self, session: UpstreamSession, entry: Entry, notice: Notice) -> None:
        if isinstance(notice, ListChanged | Reinitialized):
            self._spawn(self._list_soon())
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
            session.refuse(question, "It was asked outside of a call, so there is no one to ask.")

    # --- lists ----------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """List the server now. Raises PlexusError if that fails."""
        session = await self.pool.acquire_any()
        await self._list(session)

    async def _list_soon(self) -> None:
        """List the server after a change of its lists, once for several changes."""
        if self._refreshing is not None and not self._refreshing.done():
            return
        self._refreshing = asyncio.current_task()
        await asyncio.sleep(self._mount.gateway.settle_s)
        try:
            await self.refresh()
        except PlexusError as error:
            self.pool.error = error

    async def _list(self, session: UpstreamSession) -> None:
        """Read all lists of a server, and offer what they have."""
        self._listed_at = time.monotonic()
        try:
            async with asyncio.timeout(LIST_S):
                listed = await self._read_lists(session)
        except TimeoutError:
            text = f"{self._config.name} did not list its tools within {LIST_S:g} s."
            raise Failed(text, code="mount_lists") from None
        await self._mount.gateway.offer(self._mount, listed)

    async def _read_lists(self, session: UpstreamSession) -> Catalogue:
        server = session.server
        tools: list[Any] = []
        found: dict[str, list[Any]] = {"resources": [], "resourceTemplates": [], "prompts": []}
        if server.has("tools"):
            tools = await session.list_all("tools")
        names = [("resources", "resources"), ("resourceTemplates", "resources")]
        for name, capability in [*names, ("prompts", "prompts")]:
            if not server.has(capability):
                continue
            try:
                found[name] = await session.list_all(name)
            except Refused as error:  # many servers declare more than they have
                if error.code != "upstream_error":
                    raise
        usable, problems = read_tools(tools)
        return Catalogue(
            server={
                "name": server.name[:200],
                "version": server.version[:100],
                "title": str(server.info.get("title") or "")[:200],
                "instructions": (server.instructions or "")[:16_000],
                "revision": server.revision.name,
            },
            tools=usable,
            resources=read_entries(found["resources"], "uri"),
            templates=read_entries(found["resourceTemplates"], "uriTemplate"),
            prompts=read_entries(found["prompts"], "name"),
            problems=tuple(problems),
            listed_at=time.time(),
        )

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
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.pool.close()


def _command(config: MountConfig, caller: CallerEnvironment) -> Command:
    """Return the command of a server on stdio. Raises Failed if its program does not exist."""
    variables = caller.variables
    environment = {
        name: value for name, value in variables.items() if not name.startswith(OWN_PREFIX)
    }
    environment |= {name: expand(value, variables) for name, value in config.env.items()}
    folder = expand(config.cwd, variables) or caller.directory
    first, *rest = (expand(each, variables) for each in config.command)
    program = shutil.which(first, path=environment.get("PATH"))
    if program is None:
        raise Failed(
            f"{config.name} starts {first!r}, which is not a program on PATH. Install it, or "
            "change the command of the mount.",
            code="unreachable",
        )
    if not Path(folder).is_dir():
        raise Failed(f"{config.name}: the folder {folder!r} does not exist.", code="unreachable")
    return Command((program, *rest), folder, environment)


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
