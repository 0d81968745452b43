"""What of the server's environment the `claude` program is given.

Variables are allowed, not forbidden: it runs commands for a model, and what they can see they can
tell. It is given what it needs to work, to log in and to reach its API, and the options that are
its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ("environment", "without_keys")

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
