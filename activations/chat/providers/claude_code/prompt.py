"""The prompt for `claude`: which of its sessions to resume, and the content to send.

The program keeps its own sessions. An answer of it stores the session id, so that only later
messages are sent. Messages that the session lacks, because another model answered or because the
session was lost, are prepended as a transcript.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from activations.chat.message import Message
from plexus.rpc import wire
from plexus.text import head_and_tail

__all__ = ("ClaudePrompt", "ClaudeSession", "build_prompt")

#: Maximum characters of a transcript, counted from its end: about half of the smallest context
#: window.
TRANSCRIPT_CHARACTERS = 400_000
#: Maximum characters of a tool input or output in a transcript; the answers sum up the rest.
TOOL_CHARACTERS = 4_000

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_OMITTED = "(earlier messages are omitted)"
_TRANSCRIPT_NOTE = (
    "The conversation between the tags took place earlier and is missing in your session: another"
    " assistant answered, you were interrupted, or your session was lost. Treat it as the"
    " conversation so far and continue from there."
)


class ClaudeSession(NamedTuple):
    """A session of claude, and the last message in it that belongs to the conversation."""

    session_id: str
    message_uuid: str


class ClaudePrompt(NamedTuple):
    """The start of a round: the session to resume, if any, and the content to send."""

    session: ClaudeSession | None
    content: list[dict[str, Any]]


def build_prompt(messages: Sequence[Message], *, resume: bool = True) -> ClaudePrompt:
    """Return the prompt of a conversation; without `resume`, in a new session."""
    visible = _since_summary(messages)
    session, later = _since_session(visible) if resume else (None, visible)
    end = len(later)
    while end and later[end - 1].kind in ("user", "attachment"):
        end -= 1
    content = [_text(_transcript(later[:end]))] if end else []
    for message in later[end:]:
        if message.kind == "attachment":
            content.append(_attachment_block(message))
        elif message.text.strip():
            content.append(_text(message.text))
    if end == len(later):  # no new user message: the last answer was interrupted
        content.append(_text("Continue."))
    return ClaudePrompt(session, content)


def _since_summary(messages: Sequence[Message]) -> Sequence[Message]:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].kind == "summary":
            return messages[index:]
    return messages


def _since_session(messages: Sequence[Message]) -> tuple[ClaudeSession | None, Sequence[Message]]:
    for index in range(len(messages) - 1, -1, -1):
        meta = messages[index].meta
        memory = meta.get("memory")
        if isinstance(memory, Mapping) and str(meta.get("model")).startswith("claude-code:"):
            session = ClaudeSession(str(memory.get("session_id")), str(memory.get("message_uuid")))
            # They become arguments of the program, so nothing but a UUID is accepted.
            if all(map(_UUID.fullmatch, session)):
                return session, messages[index + 1 :]
    return None, messages


# --- content --------------------------------------------------------------------------------------


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _attachment_block(message: Message) -> dict[str, Any]:
    mime_type = str(message.meta.get("mime_type"))
    if message.meta.get("encoding") != "base64":
        return _text(_file_text(message))
    source = {"type": "base64", "media_type": mime_type, "data": message.text}
    if mime_type in _IMAGES:
        return {"type": "image", "source": source}
    if mime_type == "application/pdf":
        return {"type": "document", "source": source}
    return _text(_file_note(message))


def _file_text(message: Message) -> str:
    return f"<file name={_name(message)}>\n{message.text}\n</file>"


def _file_note(message: Message) -> str:
    mime_type = message.meta.get("mime_type") or "an unknown type"
    return f"(The attached file {_name(message)}, of type {mime_type}, is not shown.)"


def _name(message: Message) -> str:
    return wire.encode(str(message.meta.get("name") or "unnamed")).decode()


# --- transcript -----------------------------------------------------------------------------------


def _transcript(messages: Sequence[Message]) -> str:
    kept: list[str] = []
    remaining = TRANSCRIPT_CHARACTERS
    for entry in _entries_newest_first(messages):
        remaining -= len(entry)
        if remaining < 0:
            kept.append(_OMITTED)
            break
        kept.append(entry)
    return "\n".join([_TRANSCRIPT_NOTE, "<conversation>", *reversed(kept), "</conversation>"])


def _entries_newest_first(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        text = message.text
        if message.kind == "attachment":
            binary = message.meta.get("encoding") == "base64"
            yield _file_note(message) if binary else _file_text(message)
        elif message.kind in ("tool_use", "tool_result"):
            speaker = "tool" if message.kind == "tool_result" else "assistant"
            tool = message.meta.get("tool_name") or "a tool"
            yield _entry(f"{speaker} ({tool})", head_and_tail(text, TOOL_CHARACTERS))
        elif message.kind != "thinking" and text.strip():
            yield _entry(message.kind, head_and_tail(text, TRANSCRIPT_CHARACTERS // 4))


def _entry(speaker: str, text: str) -> str:
    return f"<message from={wire.encode(speaker).decode()}>\n{text}\n</message>"
