"""From a conversation to what `claude` is told: which of its sessions goes on, and with what.

It keeps sessions of its own. A message that it has answered carries that session, and so only
what came after it is told. What it cannot know, because another model answered or because the
session is lost, is put in front of that as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from activations.chat.message import Message
from plexus.rpc import wire
from plexus.text import head_and_tail

__all__ = ("ClaudePrompt", "ClaudeSession", "build_prompt")

#: How much of an earlier conversation is put into words, counted from its end: about half of what
#: the smallest context takes.
TRANSCRIPT_CHARACTERS = 400_000
#: How much of one tool's input or answer: what was made of it stands in what the model said.
TOOL_CHARACTERS = 4_000

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MISSING = "(what was said before this is left out)"
_BEFORE = (
    "What stands between the tags was said before this, where you could not hear it: another"
    " assistant answered, you were interrupted, or your session was lost. Take it as said, and go"
    " on from there."
)


class ClaudeSession(NamedTuple):
    """A session of claude's, and the message up to which it is the conversation."""

    session_id: str
    message_uuid: str


class ClaudePrompt(NamedTuple):
    """How a round begins: with this session, if any, and with this content."""

    session: ClaudeSession | None
    content: list[dict[str, Any]]


def build_prompt(messages: Sequence[Message], *, anew: bool = False) -> ClaudePrompt:
    """How to go on with this conversation; `anew`: without any session that there was."""
    whole = _since_summary(messages)
    session, later = (None, whole) if anew else _since_session(whole)
    end = len(later)
    while end and later[end - 1].kind in ("user", "attachment"):
        end -= 1
    content = [_text(_transcript(later[:end]))] if end else []
    for message in later[end:]:
        if message.kind == "attachment":
            content.append(_file(message))
        elif message.text.strip():
            content.append(_text(message.text))
    if end == len(later):  # the conversation ends with something that was not answered
        content.append(_text("Go on."))
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
            # They become arguments of the program, which takes other words for other things.
            if all(map(_UUID.fullmatch, session)):
                return session, messages[index + 1 :]
    return None, messages


# --- content --------------------------------------------------------------------------------------


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _file(message: Message) -> dict[str, Any]:
    mime_type = str(message.meta.get("mime_type"))
    if message.meta.get("encoding") != "base64":
        return _text(_quoted_file(message))
    source = {"type": "base64", "media_type": mime_type, "data": message.text}
    if mime_type in _PICTURES:
        return {"type": "image", "source": source}
    if mime_type == "application/pdf":
        return {"type": "document", "source": source}
    return _text(_named_file(message))


def _quoted_file(message: Message) -> str:
    return f"<file name={_name(message)}>\n{message.text}\n</file>"


def _named_file(message: Message) -> str:
    mime_type = message.meta.get("mime_type") or "an unknown type"
    return f"(The user has attached the file {_name(message)}, of type {mime_type}: not shown.)"


def _name(message: Message) -> str:
    return wire.encode(str(message.meta.get("name") or "unnamed")).decode()


# --- what was said before -------------------------------------------------------------------------


def _transcript(messages: Sequence[Message]) -> str:
    kept: list[str] = []
    room = TRANSCRIPT_CHARACTERS
    for entry in _entries_from_the_end(messages):
        room -= len(entry)
        if room < 0:
            kept.append(_MISSING)
            break
        kept.append(entry)
    return "\n".join([_BEFORE, "<conversation>", *reversed(kept), "</conversation>"])


def _entries_from_the_end(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        text = message.text
        if message.kind == "attachment":
            binary = message.meta.get("encoding") == "base64"
            yield _named_file(message) if binary else _quoted_file(message)
        elif message.kind in ("tool_use", "tool_result"):
            who = "tool" if message.kind == "tool_result" else "assistant"
            tool = message.meta.get("tool_name") or "a tool"
            yield _entry(f"{who} ({tool})", head_and_tail(text, TOOL_CHARACTERS))
        elif message.kind != "thinking" and text.strip():
            yield _entry(message.kind, head_and_tail(text, TRANSCRIPT_CHARACTERS // 4))


def _entry(who: str, text: str) -> str:
    return f"<said by={wire.encode(who).decode()}>\n{text}\n</said>"
