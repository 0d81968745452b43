"""One run of the `claude` program: its environment, what it writes and reads, its end.

The one who reads drives it: nothing is read that nobody asks for. Beside that there are only
short-lived tasks that belong to the round: one that keeps the end of its standard error, and one
for each question whether a tool may be used, so that its other words are heard meanwhile.

Environment variables are allowed by name, not forbidden: it runs commands for a model, and what
they can see they can tell. It is given what it needs to work, to log in and to reach its API, and
the options that are its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from activations.chat.providers.claude_code.stream_json import LineDecoder, Permission, verdict_line
from activations.chat.providers.provider import Approve
from activations.processes.process import Process

__all__ = ("EXIT_S", "ClaudeProcess", "environment", "without_keys")

#: How much of its standard error is kept.
STDERR_BYTES = 8 * 1024

#: How long the program may take to end once it has said all and is told nothing more. It writes
#: its session down meanwhile, which takes some ten milliseconds.
EXIT_S = 10.0


class ClaudeProcess:
    """A program that was started with its standard input left open, until `end()` is awaited."""

    def __init__(self, process: Process, approve: Approve) -> None:
        self._process = process
        self._approve = approve
        self._lines = LineDecoder()
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
        await self._process.wait()
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


# --- its environment -----------------------------------------------------------------------------

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"),
        *("CLOUD_ML_REGION", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        # What a user has chosen for it under names that are not its own.
        *("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER", "DO_NOT_TRACK"),
        *("DISABLE_PROMPT_CACHING", "MAX_THINKING_TOKENS", "MAX_MCP_OUTPUT_TOKENS"),
        *("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "BASH_MAX_OUTPUT_LENGTH"),
        *("MCP_TIMEOUT", "MCP_TOOL_TIMEOUT"),
    }
)
_PREFIXES = ("LC_", "XDG_", "ANTHROPIC_", "CLAUDE_", "AWS_", "GOOGLE_", "VERTEX")
_SUFFIX = "_proxy"  # in both cases

#: What it sets for the commands that it runs. If the server is one of those, they speak of
#: another session, and it would take itself for a part of that.
_OF_A_SESSION = frozenset(
    {
        *("CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH"),
        *("CLAUDE_CODE_SSE_PORT", "CLAUDE_EFFORT", "CLAUDE_ENV_FILE", "CLAUDE_PID"),
        *("CLAUDE_PLUGIN_ROOT", "CLAUDE_PROJECT_DIR"),
    }
)
_OF_A_SESSION_PREFIXES = ("CLAUDE_CODE_SESSION_", "CLAUDE_CODE_MESSAGING_", "CLAUDE_AGENT_SDK_")

#: Work in the background would be ended with the round, so it is not offered to the model.
_SET = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|HEADERS", re.IGNORECASE)
#: What is shorter is a placeholder, and may be part of any word.
_SECRET_CHARACTERS = 8
_LOOKS_SECRET = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|Bearer\s+[^\s\"',]{8,})")


def environment(source: Mapping[str, str]) -> dict[str, str]:
    """The variables that the program is given, out of these."""
    return {name: value for name, value in source.items() if _is_given(name)} | _SET


def _is_given(name: str) -> bool:
    if name in _OF_A_SESSION or name.startswith(_OF_A_SESSION_PREFIXES):
        return False
    return name in _NAMES or name.startswith(_PREFIXES) or name.lower().endswith(_SUFFIX)


def without_keys(text: str, given: Mapping[str, str]) -> str:
    """A text of the program with everything struck out that is, or looks like, a secret."""
    for name, value in given.items():
        if _SECRET.search(name) and len(value) >= _SECRET_CHARACTERS:
            text = text.replace(value, "***")
    return _LOOKS_SECRET.sub("***", text)
