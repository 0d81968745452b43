"""Between messages and nodes: how a message is stored, and what a stored one is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from activations.arbor.model import NewNode, Node
from activations.chat.conversation import KINDS, Message
from activations.chat.events import MessageData

__all__ = ("message_data", "message_of", "messages_of", "node_of")

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
