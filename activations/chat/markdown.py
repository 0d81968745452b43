"""A conversation as Markdown, message by message."""

from __future__ import annotations

import re

from activations.chat.conversation import Message

__all__ = ("heading_of", "markdown_of")

_BACKTICKS = re.compile("`{3,}")

TITLES = {
    "user": "User",
    "assistant": "Assistant",
    "thinking": "Thinking",
    "tool_use": "Tool",
    "tool_result": "Tool result",
    "attachment": "Attachment",
    "summary": "Summary of what came before",
}


def markdown_of(message: Message) -> str:
    """One message, with a heading."""
    kind, text, meta, _ = message
    title = TITLES[kind]
    if kind == "tool_use":
        title += f": {meta.get('tool_name')}"
    elif kind == "attachment":
        title += f": {meta.get('name')} ({meta.get('mime_type')})"
    status = meta.get("status")
    if status is not None:
        title += f" ({status})"
    if kind == "tool_use":
        text = _fenced(text, "json")
    elif kind == "tool_result" or (kind == "attachment" and meta.get("encoding") == "text"):
        text = _fenced(text)
    elif kind == "attachment":
        text = f"*{len(text) * 3 // 4} bytes that are no text*"
    elif kind == "thinking":
        text = "\n".join(f"> {line}" for line in text.splitlines())
    return f"## {title}\n\n{text}\n\n"


def heading_of(name: str, model: str, system_prompt: str | None) -> str:
    """What stands above the first message."""
    text = f"# {name}\n\n*{model}*\n\n"
    return text if system_prompt is None else f"{text}## System\n\n{system_prompt}\n\n"


def _fenced(text: str, language: str = "") -> str:
    """The text as it is, between fences that are longer than any in it."""
    longest = max((len(found) for found in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
