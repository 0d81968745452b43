"""What goes wrong with `claude`, as the errors that callers know."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from activations.chat.providers.claude_code.stream_json import MessageReader
from plexus.errors import Failed

__all__ = ("has_forgotten", "not_installed_error", "provider_error", "silence_error", "text_of")

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


def not_installed_error(command: str) -> Failed:
    """There is no such program."""
    return Failed(
        f"there is no program {command!r}; install Claude Code, as with `npm install -g"
        " @anthropic-ai/claude-code`, or say where it is with the setting chat_claude_command",
        code="not_installed",
        data={"provider": "claude-code", "command": command},
    )


def silence_error(seconds: float, at_work: bool) -> Failed:
    """Nothing came for too long."""
    what = "a tool of claude's was at work" if at_work else "claude said nothing"
    return Failed(
        f"{what} for {seconds:g} s, and was ended",
        code="provider_silent",
        data={"provider": "claude-code", "silent_s": seconds},
    )


def text_of(result: Mapping[str, Any]) -> str:
    """What a result says of its error."""
    errors = result.get("errors")
    if isinstance(errors, list) and errors:
        return "; ".join(str(error) for error in errors)
    text = result.get("result")
    return text if isinstance(text, str) and text.strip() else str(result.get("subtype"))


def has_forgotten(text: str) -> bool:
    """Whether this says that there is no such session to be resumed."""
    return any(words in text for words in _FORGOTTEN)


def provider_error(reader: MessageReader, model: str, text: str, returncode: int | None) -> Failed:
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
