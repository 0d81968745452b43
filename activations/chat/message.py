"""What a conversation is made of: messages, each a kind, a text and what belongs to that kind.

The same values are sent to a provider, stored as nodes, shown as history and exported. A message
is a node of the session's tree: its text is the node's content, its kind and the rest the node's
metadata. This module has the forms of a message (node, list entry, Markdown); it knows neither a
store nor a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from activations.arbor.model import NewNode, Node
from activations.chat.events import MessageData

__all__ = (
    "KINDS",
    "Kind",
    "Message",
    "Status",
    "markdown_heading",
    "message_data",
    "message_of",
    "messages_of",
    "node_of",
    "storable",
    "to_markdown",
)

_BACKTICKS = re.compile("`{3,}")

#: What a message can be:
#: - `user`: what a person said.
#: - `assistant`: what the model said.
#: - `thinking`: what the model thought before it said or did something.
#: - `tool_use`: the model asks for a tool; the text is the input, as JSON.
#: - `tool_result`: what the tool answered.
#: - `attachment`: a file that belongs to the user's message that follows it.
#: - `summary`: stands for everything before it, where a model cannot take all of that.
Kind: TypeAlias = Literal[
    "user", "assistant", "thinking", "tool_use", "tool_result", "attachment", "summary"
]
KINDS: tuple[Kind, ...] = (
    "user",
    "assistant",
    "thinking",
    "tool_use",
    "tool_result",
    "attachment",
    "summary",
)

#: How a message came to its end; a whole one says nothing. `interrupted`: the program was ended.
Status: TypeAlias = Literal["complete", "error", "cancelled", "interrupted"]


class Message(NamedTuple):
    """One message. What `meta` holds depends on the kind, and is left out where it is not known:

    - every kind: `status` unless it is complete, `error` (a code and a message) if it failed.
    - assistant: `model`, `stop_reason`, `usage`, `memory` (see `providers.provider.Stop`).
    - thinking: `model`, and what the provider wants to have back with it.
    - tool_use: `tool_name`, `tool_use_id`.
    - tool_result: `tool_use_id`, `tool_name`, `is_error`, `run`.
    - attachment: `name`, `mime_type`, `encoding` ("text", or "base64" if it is no text).
    """

    kind: Kind
    text: str
    meta: dict[str, Any] = {}  # noqa: RUF012 - never changed; a tuple's default is shared anyway
    #: The node that it is stored in; None while it is not.
    node: str | None = None


def storable(text: str) -> str:
    """Return the text with the characters replaced that no database and no JSON can hold."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text


# --- as nodes ------------------------------------------------------------------------------------

#: The longest text, in characters, that stands in a list.
IN_LIST = 100_000


def node_of(message: Message) -> NewNode:
    """The node that a message becomes."""
    return NewNode(content=message.text, metadata={"kind": message.kind, **message.meta})


def message_of(node: Node) -> Message | None:
    """The message that a node is; None for the root, and for what others have put there."""
    metadata = node.metadata
    if not isinstance(metadata, dict) or node.content is None:
        return None
    kind = metadata.get("kind")
    if kind not in KINDS:
        return None
    meta = {name: value for name, value in metadata.items() if name != "kind"}
    return Message(kind, node.content, meta, node.id)


def messages_of(nodes: Iterable[Node]) -> list[Message]:
    """The messages among these nodes."""
    return [message for node in nodes if (message := message_of(node)) is not None]


def message_data(message: Message, created_ms: int | None = None) -> MessageData:
    """A message as callers see it in a list."""
    kind, text, meta, node = message
    shown = len(text) <= IN_LIST and meta.get("encoding") != "base64"
    return MessageData(
        kind,
        created_ms,
        node,
        text if shown else None,
        None if shown else len(text),
        _of(meta, "status", str),
        _of(meta, "error", dict),
        _of(meta, "model", str),
        _of(meta, "stop_reason", str),
        _of(meta, "usage", dict),
        _of(meta, "tool_name", str),
        _of(meta, "tool_use_id", str),
        _of(meta, "is_error", bool),
        _of(meta, "run", int),
        _of(meta, "name", str),
        _of(meta, "mime_type", str),
    )


def _of(meta: dict[str, Any], name: str, kind: type) -> Any:
    """What is there under this name, if it is what it should be: anybody can write a node."""
    value = meta.get(name)
    return value if isinstance(value, kind) else None


# --- as Markdown ---------------------------------------------------------------------------------

TITLES = {
    "user": "User",
    "assistant": "Assistant",
    "thinking": "Thinking",
    "tool_use": "Tool",
    "tool_result": "Tool result",
    "attachment": "Attachment",
    "summary": "Summary of what came before",
}


def to_markdown(message: Message) -> str:
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


def markdown_heading(name: str, model: str, system_prompt: str | None) -> str:
    """What stands above the first message."""
    text = f"# {name}\n\n*{model}*\n\n"
    return text if system_prompt is None else f"{text}## System\n\n{system_prompt}\n\n"


def _fenced(text: str, language: str = "") -> str:
    """The text as it is, between fences that are longer than any in it."""
    longest = max((len(found) for found in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
