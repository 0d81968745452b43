"""A process of the `claude` program: its environment, input, output and end.

Output is read only on demand, by the reader. The other tasks belong to the round and are short
lived: one keeps the tail of stderr, and one per request for approval lets the reader continue
meanwhile.

Environment variables are passed by an allow list: the program runs commands for a model, which can
disclose all that they see. The list has what the program needs to work, to log in and to reach its
API, and its own options.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from activations.chat.providers.claude_code.stream_json import LineDecoder, Permission, verdict_line
from activations.chat.providers.provider import Approve
from activations.processes.process import Process

__all__ = ("EXIT_TIMEOUT_S", "ClaudeProcess", "environment", "redact")

#: Size of the tail of stderr that is kept.
STDERR_BYTES = 8 * 1024

#: Timeout for the exit of the program after its result. It saves its session meanwhile, which
#: takes about ten milliseconds.
EXIT_TIMEOUT_S = 10.0


class ClaudeProcess:
    """A running program with an open stdin. Always await `close()`."""

    def __init__(self, process: Process, approve: Approve) -> None:
        self._process = process
        self._approve = approve
        self._lines = LineDecoder()
        self._stderr = bytearray()
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self._approvals: dict[str, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        #: Timeout without output while a read waits; None at other times.
        self._timeout_s: float | None = None

    async def read(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the next messages; none at the end. Raises the error of a request for approval.

        If no output arrives within the timeout and no approval is pending, the program is killed
        and `timed_out` is set.
        """
        while True:
            self._timeout_s = timeout_s
            self._update_timeout()
            try:
                data = await self._process.stdout.read()
            finally:
                self._timeout_s = None
                self._update_timeout()
            messages = self._lines.feed(data) if data else self._lines.end()
            if self._failure is not None:
                raise self._failure
            if messages or not data:
                return messages

    @property
    def timed_out(self) -> bool:
        """Whether it was killed because it sent no output."""
        return self._process.expired

    def request_approval(self, permission: Permission) -> None:
        """Ask for approval of a tool call in the background and send the decision."""
        task = asyncio.create_task(self._decide(permission))
        self._approvals[permission.request] = task
        task.add_done_callback(lambda _: self._on_decided(permission.request, task))

    def withdraw_approval(self, request: str) -> None:
        """Cancel a request for approval."""
        if request in self._approvals:
            self._approvals[request].cancel()

    async def write(self, line: bytes) -> None:
        """Write a line to the program."""
        if self._process.stdin is not None:
            await self._process.stdin.write(line)

    def finish(self) -> None:
        """Withdraw pending approvals and close stdin, so that the program exits."""
        for request in list(self._approvals):
            self.withdraw_approval(request)
        if self._process.stdin is not None:
            self._process.stdin.finish()

    async def wait(self) -> tuple[int | None, str]:
        """Wait for the exit after the end of output; return the exit code and the stderr tail."""
        self._process.expire_after(EXIT_TIMEOUT_S)
        await self._process.wait()
        await asyncio.wait([self._stderr_task])
        return self._process.returncode, bytes(self._stderr).decode(errors="replace").strip()

    async def close(self) -> None:
        """Kill the remaining process tree immediately and release all resources."""
        self._process.kill()
        tasks = [self._stderr_task, *self._approvals.values()]
        for task in tasks:
            task.cancel()
        try:
            # The stderr task must end before its pipe is closed.
            await asyncio.wait(tasks)
        finally:
            await self._process.end()

    async def _read_stderr(self) -> None:
        while data := await self._process.stderr.read():
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]

    async def _decide(self, permission: Permission) -> None:
        verdict = await self._approve(permission.tool, permission.call_id, permission.input)
        await self.write(verdict_line(permission, verdict))

    def _on_decided(self, request: str, task: asyncio.Task[None]) -> None:
        if self._approvals.get(request) is task:
            del self._approvals[request]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self._process.kill()  # the end of output wakes the reader
        self._update_timeout()

    def _update_timeout(self) -> None:
        """Apply the timeout only while a read waits for the program and no approval is pending."""
        is_paused = self._timeout_s is None or bool(self._approvals)
        self._process.expire_after(None if is_paused else self._timeout_s)


# --- environment ---------------------------------------------------------------------------------

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"),
        *("CLOUD_ML_REGION", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        # Options for it that do not have its prefixes.
        *("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER", "DO_NOT_TRACK"),
        *("DISABLE_PROMPT_CACHING", "MAX_THINKING_TOKENS", "MAX_MCP_OUTPUT_TOKENS"),
        *("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "BASH_MAX_OUTPUT_LENGTH"),
        *("MCP_TIMEOUT", "MCP_TOOL_TIMEOUT"),
    }
)
_PREFIXES = ("LC_", "XDG_", "ANTHROPIC_", "CLAUDE_", "AWS_", "GOOGLE_", "VERTEX")
_SUFFIX = "_proxy"  # in upper and lower case

#: Set by the program for commands that it runs. If the server is such a command, they refer to
#: another session, and the program would consider itself a part of that session.
_SESSION_NAMES = frozenset(
    {
        *("CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH"),
        *("CLAUDE_CODE_SSE_PORT", "CLAUDE_EFFORT", "CLAUDE_ENV_FILE", "CLAUDE_PID"),
        *("CLAUDE_PLUGIN_ROOT", "CLAUDE_PROJECT_DIR"),
    }
)
_SESSION_PREFIXES = ("CLAUDE_CODE_SESSION_", "CLAUDE_CODE_MESSAGING_", "CLAUDE_AGENT_SDK_")

#: Background tasks would be killed at the end of the round, so they are disabled.
_SET = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|HEADERS", re.IGNORECASE)
#: Minimum length of a secret; a shorter value is a placeholder and may be part of any word.
_SECRET_CHARACTERS = 8
_LOOKS_SECRET = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|Bearer\s+[^\s\"',]{8,})")


def environment(source: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program."""
    return {name: value for name, value in source.items() if _is_allowed(name)} | _SET


def _is_allowed(name: str) -> bool:
    if name in _SESSION_NAMES or name.startswith(_SESSION_PREFIXES):
        return False
    return name in _NAMES or name.startswith(_PREFIXES) or name.lower().endswith(_SUFFIX)


def redact(text: str, variables: Mapping[str, str]) -> str:
    """Replace everything in a text that is, or looks like, a secret."""
    for name, value in variables.items():
        if _SECRET.search(name) and len(value) >= _SECRET_CHARACTERS:
            text = text.replace(value, "***")
    return _LOOKS_SECRET.sub("***", text)
