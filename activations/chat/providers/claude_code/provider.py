"""The provider `claude-code`: Claude Code's own program, which runs its tools itself.

Each round is one run of the program, in its print mode, with messages as JSON in both directions.
It keeps the session on disk, in its own place; we keep which one that was, and up to which
message. That message is always named when a session goes on: a round that was cancelled may have
left more in it than was answered. A branch goes on in a copy of the session.

Nothing outlives a round: the program and all that it started are ended with it, however it ends.
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
    EXIT_S,
    ClaudeProcess,
    environment,
    without_keys,
)
from activations.chat.providers.claude_code.prompt import ClaudePrompt, build_prompt
from activations.chat.providers.claude_code.stream_json import (
    MessageReader,
    Permission,
    TakenBack,
    UnknownRequest,
    initialize_line,
    prompt_line,
    refusal_line,
)
from activations.chat.providers.provider import Delta, ProviderRequest, Retry, Stop
from activations.processes.process import CannotStart, Command, Launcher
from plexus.errors import Failed, InvalidParams

__all__ = ("ClaudeCodeProvider",)

#: How long a tool may be at work without a word. The longest that the program lets a command run
#: is ten minutes.
TOOL_S = 660.0

#: The model that the program takes if it is not told one.
DEFAULT_MODEL: Final = "default"

#: One word; as other clouds call them, with `:`, `/` or `@` in it. It is no option.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]*")

#: Tools that need somebody who is there to answer, or a program that is still there later.
_NOT_OFFERED = ("AskUserQuestion", "CronCreate", "ScheduleWakeup")


class ClaudeCodeProvider:
    """Asks the `claude` program."""

    runs_tools = True

    def __init__(
        self,
        command: str = "claude",
        silent_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Say which program: a path, or a name that is looked up.

        silent_s: after so many seconds without a word it is given up on, unless a tool is at work
            or a person is being asked.
        environment: what variables are taken from, if not that of this process.
        """
        self._command = command
        self._silent_s = silent_s
        self._environment = os.environ if environment is None else environment
        self._launcher = Launcher()

    async def check(self, model: str) -> None:
        """Raise `not_installed`, or `unknown_model` for a name that cannot be a model's."""
        if not _MODEL.fullmatch(model):
            raise Failed(
                f"{model!r} is no name of a model; use an alias such as 'sonnet' or 'opus', the"
                f" full name of a model, or {DEFAULT_MODEL!r}",
                code="unknown_model",
                data={"provider": "claude-code", "model": f"claude-code:{model}"},
            )
        self._program()

    def context_tokens(self, model: str) -> int | None:  # noqa: ARG002 - as every provider has it
        """None: the program shortens a conversation that has become too long by itself."""
        return None

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Delta, None]:
        """Run the program for one round; once more if it no longer has the session."""
        await self.check(request.model)
        prompt = build_prompt(request.messages)
        while True:
            given = environment(self._environment)
            reader = MessageReader()
            process = await self._start(request, prompt, given)
            try:
                while messages := await process.read(patience_s := self._patience_s(reader)):
                    for message in messages:
                        for meaning in reader.read(message):
                            if isinstance(meaning, Permission):
                                process.ask(meaning)
                            elif isinstance(meaning, TakenBack):
                                process.take_back(meaning.request)
                            elif isinstance(meaning, UnknownRequest):
                                await process.tell(refusal_line(meaning))
                            else:
                                yield meaning
                    if reader.result is not None:
                        process.finish()
                if process.silent and reader.result is None:
                    raise _silent(patience_s, bool(reader.running))
                returncode, stderr = await process.ended()
            finally:
                await process.end()
            result = reader.result
            reached_turns = result is not None and result.get("subtype") == "error_max_turns"
            if result is not None and (reached_turns or not result.get("is_error")):
                break
            text = stderr if result is None else _error_text(result)
            if prompt.session is None or reader.said or not _has_forgotten(text):
                text = without_keys(text, given)
                raise _failure(reader, request.model, text, returncode)
            prompt = build_prompt(request.messages, anew=True)
            yield Retry(0, "claude has no such session any more and is told the conversation again")
        yield reader.used(resumed=prompt.session is not None)
        reason = "max_turns" if reached_turns else str(result.get("stop_reason") or "end_turn")
        yield Stop(reason, None if request.ephemeral else _memory(reader))

    async def close(self) -> None:
        """End every run of the program."""
        await self._launcher.close()

    def _patience_s(self, reader: MessageReader) -> float:
        if reader.result is not None:
            return EXIT_S
        if reader.running:
            return max(TOOL_S, self._silent_s)
        return self._silent_s + reader.retry_s

    # --- its start ----------------------------------------------------------------------------

    async def _start(
        self, request: ProviderRequest, prompt: ClaudePrompt, given: dict[str, str]
    ) -> ClaudeProcess:
        arguments = (self._program(), *_options(request, prompt))
        command = Command(arguments, _directory(request.working_dir), given)
        lines = initialize_line() + prompt_line(prompt.content)
        try:
            process = await self._launcher.start(command, lines, stdin_stays_open=True)
        except ValueError as error:  # characters that no program can be given
            raise InvalidParams(f"claude cannot be given this: {error}") from error
        except CannotStart as error:
            raise self._cannot_start(error) from error
        except OSError as error:
            raise self._cannot_start(CannotStart("start", error.errno or 0)) from error
        return ClaudeProcess(process, request.approve)

    def _program(self) -> str:
        # Without relative folders: they would lead into the server's, where commands write.
        folders = self._environment.get("PATH", os.defpath).split(os.pathsep)
        absolute = os.pathsep.join(folder for folder in folders if Path(folder).is_absolute())
        path = shutil.which(self._command, path=absolute)
        if path is None:
            raise _not_installed(self._command)
        return str(Path(path).absolute())

    def _cannot_start(self, error: CannotStart) -> Failed:
        if error.step == "exec" and error.errno == errno.ENOENT:  # or what it is run by
            return _not_installed(self._command)
        what = "the system prompt is too long for an argument" if error.errno == errno.E2BIG else ""
        return Failed(
            f"claude cannot be started: {what or error}",
            code="provider_refused" if what else "provider_down",
            data={"provider": "claude-code"},
        )


def _options(request: ProviderRequest, prompt: ClaudePrompt) -> list[str]:
    """The arguments. Each value is bound to its name by `=`, so that none becomes an option."""
    options = [
        "--print",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--verbose",
        "--include-partial-messages",
        "--permission-prompt-tool=stdio",
        f"--disallowed-tools={','.join(_NOT_OFFERED)}",
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
        if request.branching or request.ephemeral:  # the session itself stays as it is
            options.append("--fork-session")
    if request.ephemeral:
        options.append("--no-session-persistence")
    return options


def _directory(working_dir: str | None) -> str:
    with suppress(OSError, ValueError, RuntimeError):  # it has a name that no folder can have
        directory = Path(working_dir or ".").expanduser().absolute()
        if directory.is_dir():
            return str(directory)
    raise InvalidParams.at("working_dir", f"{working_dir!r} is no folder; name one that exists")


def _memory(reader: MessageReader) -> Mapping[str, Any] | None:
    """What is needed to go on from here."""
    if reader.session_id is None or reader.message_uuid is None:
        return None
    return {"session_id": reader.session_id, "message_uuid": reader.message_uuid}


# --- errors --------------------------------------------------------------------------------------

#: How much of what the program says is repeated.
QUOTED_CHARACTERS = 1000

#: How it says that a session, or a message of it, is not there.
_FORGOTTEN = (
    "No conversation found",
    "No message found with message.uuid",
    "--resume requires a valid session",
)
#: The program's words for what the API refused, and the codes of HTTP, by our codes.
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
    "bad_key": "claude's login was refused",
    "rate_limited": "claude takes no more requests for now",
    "provider_down": "claude cannot work now",
    "unknown_model": "claude has no such model",
    "provider_refused": "claude refused the request",
    "provider_broke": "claude broke off its answer",
}
_LOGIN = "run claude once in a terminal and log in with /login, or set ANTHROPIC_API_KEY"


def _not_installed(command: str) -> Failed:
    """There is no such program."""
    return Failed(
        f"there is no program {command!r}; install Claude Code, as with `npm install -g"
        " @anthropic-ai/claude-code`, or say where it is with the setting chat_claude_command",
        code="not_installed",
        data={"provider": "claude-code", "command": command},
    )


def _silent(seconds: float, at_work: bool) -> Failed:
    """Nothing came for too long."""
    what = "a tool of claude's was at work" if at_work else "claude said nothing"
    return Failed(
        f"{what} for {seconds:g} s, and was ended",
        code="provider_silent",
        data={"provider": "claude-code", "silent_s": seconds},
    )


def _error_text(result: Mapping[str, Any]) -> str:
    """What a result says of its error."""
    errors = result.get("errors")
    if isinstance(errors, list) and errors:
        return "; ".join(str(error) for error in errors)
    text = result.get("result")
    return text if isinstance(text, str) and text.strip() else str(result.get("subtype"))


def _has_forgotten(text: str) -> bool:
    """Whether this says that there is no such session to be resumed."""
    return any(words in text for words in _FORGOTTEN)


def _failure(reader: MessageReader, model: str, text: str, returncode: int | None) -> Failed:
    """What a round ended with that did not come to a good end. `text` is what the program says of
    it, and holds no key."""
    data: dict[str, Any] = {"provider": "claude-code", "model": f"claude-code:{model}"}
    text = " ".join(text.split()).rstrip(".")
    if len(text) > QUOTED_CHARACTERS:  # of what a program says on its way out, the end counts
        text = f"...{text[-QUOTED_CHARACTERS:]}"
    if reader.result is None:
        data["exit_code"] = returncode
        said = f": {text}" if text else ""
        return Failed(
            f"claude ended without a result, {_exit(returncode)}{said}",
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
    if reader.said:
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
        return "for its guard was killed"
    return f"by signal {-returncode}" if returncode < 0 else f"with exit code {returncode}"
