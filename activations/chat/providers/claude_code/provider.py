"""The provider `claude-code`: the program of Claude Code, which runs its own tools.

Each round is one process of the program in print mode, with JSON messages in both directions. The
program stores its session on disk; we store the session id and the last message of the answer.
That message is always specified when a session is resumed, since a cancelled round may have added
more to it. A branch continues in a copy of the session.

Nothing outlives a round: the program and its descendants are killed at its end.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from activations.chat.providers.claude_code.process import (
    EXIT_TIMEOUT_S,
    ClaudeProcess,
    environment,
    redact,
)
from activations.chat.providers.claude_code.prompt import ClaudePrompt, build_prompt
from activations.chat.providers.claude_code.stream_json import (
    MessageReader,
    Permission,
    UnknownRequest,
    WithdrawnRequest,
    initialize_line,
    prompt_line,
    refusal_line,
)
from activations.chat.providers.provider import Delta, ProviderRequest, Retry, Stop
from activations.processes.process import CannotStart, Command, Launcher
from plexus.caller_environment import caller_directory, caller_variables
from plexus.errors import Failed, InvalidParams

__all__ = ("ClaudeCodeProvider",)

#: Timeout without output while a tool runs. The program limits commands to ten minutes.
TOOL_TIMEOUT_S = 660.0

#: The name for the program's default model.
DEFAULT_MODEL: Final = "default"

#: Valid model names. Those of cloud providers contain `:`, `/` or `@`. Never an option.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]*")

#: Tools that need an interactive user, or a program that keeps running.
_DISABLED_TOOLS = ("AskUserQuestion", "CronCreate", "ScheduleWakeup")


class ClaudeCodeProvider:
    """Provider that runs the `claude` program."""

    runs_tools = True

    def __init__(
        self,
        command: str = "claude",
        silent_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create the provider of a program.

        command: a path, or a name that is looked up in PATH.
        silent_s: timeout in seconds without output, except while a tool runs or an approval is
            pending.
        environment: source of the variables; defaults to the environment of the caller.
        """
        self._command = command
        self._silent_s = silent_s
        self._given_environment = environment
        self._launcher = Launcher()

    async def check(self, model: str) -> None:
        """Raise `not_installed`, or `unknown_model` for an invalid model name."""
        if not _MODEL.fullmatch(model):
            raise Failed(
                f"{model!r} is not a valid model name; use an alias such as 'sonnet' or 'opus', a"
                f" full model name, or {DEFAULT_MODEL!r}",
                code="unknown_model",
                data={"provider": "claude-code", "model": f"claude-code:{model}"},
            )
        self._program()

    def context_tokens(self, model: str) -> int | None:  # noqa: ARG002 - part of the interface
        """Return None: the program shortens long conversations automatically."""
        return None

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Run the program for one round; if its session is lost, repeat without it."""
        await self.check(request.model)
        prompt = build_prompt(request.messages)
        while True:
            variables = environment(self._environment())
            reader = MessageReader()
            process = await self._start(request, prompt, variables)
            try:
                while messages := await process.read(timeout_s := self._timeout_s(reader)):
                    for message in messages:
                        for item in reader.read(message):
                            if isinstance(item, Permission):
                                process.request_approval(item)
                            elif isinstance(item, WithdrawnRequest):
                                process.withdraw_approval(item.request)
                            elif isinstance(item, UnknownRequest):
                                await process.write(refusal_line(item))
                            else:
                                yield item
                    if reader.result is not None:
                        process.finish()
                if process.timed_out and reader.result is None:
                    raise _timeout_error(timeout_s, bool(reader.running))
                returncode, stderr = await process.wait()
            finally:
                await process.close()
            result = reader.result
            reached_turns = result is not None and result.get("subtype") == "error_max_turns"
            if result is not None and (reached_turns or not result.get("is_error")):
                break
            text = stderr if result is None else _error_text(result)
            if prompt.session is None or reader.has_output or not _has_lost_session(text):
                text = redact(text, variables)
                raise _failure(reader, request.model, text, returncode)
            prompt = build_prompt(request.messages, resume=False)
            yield Retry(0, "claude has lost its session; sending the conversation again")
        yield reader.usage(resumed=prompt.session is not None)
        reason = "max_turns" if reached_turns else str(result.get("stop_reason") or "end_turn")
        yield Stop(reason, None if request.ephemeral else _memory(reader))

    async def close(self) -> None:
        """Kill all processes of the program."""
        await self._launcher.close()

    def _timeout_s(self, reader: MessageReader) -> float:
        if reader.result is not None:
            return EXIT_TIMEOUT_S
        if reader.running:
            return max(TOOL_TIMEOUT_S, self._silent_s)
        return self._silent_s + reader.retry_s

    # --- start --------------------------------------------------------------------------------

    async def _start(
        self, request: ProviderRequest, prompt: ClaudePrompt, variables: dict[str, str]
    ) -> ClaudeProcess:
        arguments = (self._program(), *_options(request, prompt))
        command = Command(arguments, _directory(request.working_dir), variables)
        lines = initialize_line() + prompt_line(prompt.content)
        try:
            process = await self._launcher.start(command, lines, stdin_stays_open=True)
        except ValueError as error:  # characters that an argument cannot contain
            raise InvalidParams(f"invalid argument for claude: {error}") from error
        except CannotStart as error:
            raise self._cannot_start(error) from error
        except OSError as error:
            raise self._cannot_start(CannotStart("start", error.errno or 0)) from error
        return ClaudeProcess(process, request.approve)

    def _environment(self) -> Mapping[str, str]:
        given = self._given_environment
        return caller_variables() if given is None else given

    def _program(self) -> str:
        # Without relative directories: they would resolve in the server's directory, where commands
        # can write.
        directories = self._environment().get("PATH", os.defpath).split(os.pathsep)
        absolute = os.pathsep.join(each for each in directories if Path(each).is_absolute())
        path = shutil.which(self._command, path=absolute)
        if path is None:
            raise _not_installed(self._command)
        return str(Path(path).absolute())

    def _cannot_start(self, error: CannotStart) -> Failed:
        if error.step == "exec" and error.errno == errno.ENOENT:  # or its interpreter
            return _not_installed(self._command)
        what = "the system prompt is too long; shorten it" if error.errno == errno.E2BIG else ""
        return Failed(
            f"claude cannot be started: {what or error}",
            code="provider_refused" if what else "provider_down",
            data={"provider": "claude-code"},
        )


def _options(request: ProviderRequest, prompt: ClaudePrompt) -> list[str]:
    """Return the arguments. Values are joined with `=`, so that none is parsed as an option."""
    options = [
        "--print",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--verbose",
        "--include-partial-messages",
        "--permission-prompt-tool=stdio",
        f"--disallowed-tools={','.join(_DISABLED_TOOLS)}",
    ]
    if request.model != DEFAULT_MODEL:
        options.append(f"--model={request.model}")
    if request.max_turns is not None:
        options.append(f"--max-turns={request.max_turns}")
    if request.system_prompt:
        options.append(f"--append-system-prompt={request.system_prompt}")
    if request.allowed_tools:
        options.append(f"--allowed-tools={','.join(request.allowed_tools)}")
    if prompt.session is not None:
        options.append(f"--resume={prompt.session.session_id}")
        options.append(f"--resume-session-at={prompt.session.message_uuid}")
        if request.branching or request.ephemeral:  # leave the original session unchanged
            options.append("--fork-session")
    if request.ephemeral:
        options.append("--no-session-persistence")
    return options


def _directory(working_dir: str | None) -> str:
    with suppress(OSError, ValueError, RuntimeError):  # an invalid path
        directory = caller_directory() / Path(working_dir or ".").expanduser()
        if directory.is_dir():
            return str(directory)
    raise InvalidParams.at(
        "working_dir", f"{working_dir!r} is not a directory; use an existing directory"
    )


def _memory(reader: MessageReader) -> Mapping[str, Any] | None:
    """Return the data that is needed to resume the session after this answer."""
    if reader.session_id is None or reader.message_uuid is None:
        return None
    return {"session_id": reader.session_id, "message_uuid": reader.message_uuid}


# --- errors --------------------------------------------------------------------------------------

#: Maximum characters of the program's output in an error.
QUOTED_CHARACTERS = 1000

#: Messages of the program about a missing session or message.
_LOST_SESSION = (
    "No conversation found",
    "No message found with message.uuid",
    "--resume requires a valid session",
)
#: The program's error words and HTTP status codes, by our error codes.
_CODES: dict[str, tuple[str | int, ...]] = {
    "bad_key": ("authentication_failed", 401, 403),
    "rate_limited": ("rate_limit", 429),
    "provider_down": ("overloaded", "server_error", "cloud_credential_error"),
    "unknown_model": ("model_not_found", 404),
    "provider_refused": (
        *("invalid_request", "billing_error", "oauth_org_not_allowed", "account_on_hold"),
        *("verification_required", 400, 402, 413, 422),
    ),
}
_MEANINGS = {
    "missing_key": "claude is not logged in",
    "bad_key": "the login of claude was rejected",
    "rate_limited": "claude is rate limited",
    "provider_down": "claude is unavailable",
    "unknown_model": "claude has no such model",
    "provider_refused": "claude rejected the request",
    "provider_broke": "claude did not complete its answer",
}
_LOGIN = "run claude once in a terminal and log in with /login, or set ANTHROPIC_API_KEY"


def _not_installed(command: str) -> Failed:
    """Return the error for a missing program."""
    return Failed(
        f"program {command!r} not found; install Claude Code, for example with `npm install -g"
        " @anthropic-ai/claude-code`, or set chat_claude_command to its path",
        code="not_installed",
        data={"provider": "claude-code", "command": command},
    )


def _timeout_error(seconds: float, runs_tool: bool) -> Failed:
    """Return the error for a program that was killed because it sent no output."""
    what = "a tool of claude sent no output" if runs_tool else "claude sent no output"
    return Failed(
        f"{what} for {seconds:g} s, and was stopped",
        code="provider_silent",
        data={"provider": "claude-code", "silent_s": seconds},
    )


def _error_text(result: Mapping[str, Any]) -> str:
    """Return the error text of a result."""
    errors = result.get("errors")
    if isinstance(errors, list) and errors:
        return "; ".join(str(error) for error in errors)
    text = result.get("result")
    return text if isinstance(text, str) and text.strip() else str(result.get("subtype"))


def _has_lost_session(text: str) -> bool:
    """Return whether an error says that the session does not exist."""
    return any(words in text for words in _LOST_SESSION)


def _failure(reader: MessageReader, model: str, text: str, returncode: int | None) -> Failed:
    """Return the error of a failed round. `text` is the program's message, without secrets."""
    data: dict[str, Any] = {"provider": "claude-code", "model": f"claude-code:{model}"}
    text = " ".join(text.split()).rstrip(".")
    if len(text) > QUOTED_CHARACTERS:  # the end of the output matters most
        text = f"...{text[-QUOTED_CHARACTERS:]}"
    if reader.result is None:
        data["exit_code"] = returncode
        detail = f": {text}" if text else ""
        return Failed(
            f"claude exited without a result, {_exit(returncode)}{detail}",
            code="provider_broke",
            data=data,
        )
    code = _code(reader, text)
    if status := reader.result.get("api_error_status"):
        data["status"] = status
    if code in ("missing_key", "bad_key"):
        data["variable"] = "ANTHROPIC_API_KEY"
        text = f"{text}; {_LOGIN}"
    if code == "rate_limited" and reader.resets_at is not None:
        data["retry_after_s"] = max(0.0, round(reader.resets_at - time.time(), 1))
    if reader.has_output:
        code = "provider_broke"
    return Failed(f"{_MEANINGS[code]}: {text}", code=code, data=data)


def _code(reader: MessageReader, text: str) -> str:
    if "Not logged in" in text:
        return "missing_key"
    result = reader.result or {}
    status = result.get("api_error_status")
    for known in (status, reader.error):
        for code, words in _CODES.items():
            if known in words:
                return code
    if isinstance(status, int) and status >= 500:
        return "provider_down"
    if "Invalid API key" in text:
        return "bad_key"
    if "usage limit" in text:
        return "rate_limited"
    if "Prompt is too long" in text:
        return "provider_refused"
    return "provider_broke"


def _exit(returncode: int | None) -> str:
    if returncode is None:
        return "because its guard process was killed"
    return f"by signal {-returncode}" if returncode < 0 else f"with exit code {returncode}"
