"""What a conversation is made of: messages, each a kind, a text and what belongs to that kind.

The same values are sent to a provider, stored as nodes, shown as history and exported. A message
is a node of the session's tree: its text is the node's content, its kind and the rest the node's
metadata. This module has the forms of a message (node, list entry, Markdown); it knows neither a
store nor a model.

A draft is an answer while it is being written. It is kept as pieces: each says what has come since
the one before, so that keeping a long answer costs no more than its length. `recover_draft` makes
messages of the pieces that a program which was ended has left behind.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from activations.arbor.model import NewNode, Node
from activations.chat.events import MessageData
from plexus.errors import InvalidParams, PlexusError
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = (
    "KINDS",
    "MESSAGE_CHARACTERS",
    "Draft",
    "Kind",
    "Message",
    "Status",
    "markdown_heading",
    "message_data",
    "message_of",
    "messages_of",
    "node_of",
    "recover_draft",
    "storable",
    "to_markdown",
    "user_message",
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
KINDS: tuple[Kind, ...] = get_args(Kind)

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


def user_message(text: str) -> Message:
    """Return a user's message; raises InvalidParams if it is empty or cannot be stored."""
    if not text.strip():
        code, fault = "empty_message", "must not be empty"
    elif storable(text) != text:
        code, fault = "bad_text", "contains a NUL or half a character"
    else:
        return Message("user", text)
    faults = [{"at": "message", "fault": fault}]
    raise InvalidParams(f"the message {fault}", code=code, data={"errors": faults})


# --- as nodes ------------------------------------------------------------------------------------

#: The longest text, in characters, that stands in a list.
IN_LIST = 100_000
#: The metadata that a list shows, with its types.
SHOWN: dict[str, type] = {
    "status": str,
    "error": dict,
    "model": str,
    "stop_reason": str,
    "usage": dict,
    "tool_name": str,
    "tool_use_id": str,
    "is_error": bool,
    "run": int,
    "name": str,
    "mime_type": str,
}


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
    # Anybody can write a node: what is not of its type is left out.
    known = {name: meta[name] for name, type_ in SHOWN.items() if isinstance(meta.get(name), type_)}
    return MessageData(
        kind,
        created_ms,
        node,
        text if shown else None,
        None if shown else len(text),
        **known,
    )


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


# --- drafts --------------------------------------------------------------------------------------

#: Our own pieces are read: brackets in them are mostly part of a text, and any number may be.
PIECE_LIMITS = Limits(
    message_containers=sys.maxsize, message_members=sys.maxsize, message_values=sys.maxsize
)
#: A message of more characters is gone on with in another: a node holds only so much.
MESSAGE_CHARACTERS = 900_000


class _Part:
    """A message that may still grow."""

    __slots__ = ("kept", "kind", "meta", "meta_kept", "size", "texts")

    def __init__(self, kind: Kind, text: str, meta: dict[str, Any]) -> None:
        self.kind = kind
        self.meta = meta
        self.texts = [text]
        self.size = len(text)
        #: How many of the texts, and whether the metadata, are in a piece already.
        self.kept = 0
        self.meta_kept = False


class Draft:
    """What a round has brought so far."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        #: The first part that may have something that is in no piece yet.
        self._first_unkept = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, kind: Kind, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Add to the last message if it is of this kind, else begin one."""
        last = self._parts[-1] if self._parts else None
        if last is None or last.kind != kind or last.size > MESSAGE_CHARACTERS:
            self.begin(kind, text, meta)
            return
        if text:
            last.texts.append(text)
            last.size += len(text)
        if meta:
            last.meta.update(meta)
            last.meta_kept = False

    def begin(self, kind: Kind, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Begin another message."""
        self._parts.append(_Part(kind, text, dict(meta or {})))

    def messages(self) -> list[Message]:
        """The messages as they are now."""
        return [Message(part.kind, "".join(part.texts), dict(part.meta)) for part in self._parts]

    def take_piece(self) -> str | None:
        """What has come since the last piece; None if nothing has."""
        news = []
        for index in range(self._first_unkept, len(self._parts)):
            part = self._parts[index]
            text = "".join(part.texts[part.kept :])
            if text or not part.meta_kept:
                news.append([index, part.kind, text, None if part.meta_kept else part.meta])
            part.kept = len(part.texts)
            part.meta_kept = True
        self._first_unkept = max(len(self._parts) - 1, 0)
        return wire.encode(news).decode() if news else None


def recover_draft(pieces: Iterable[str]) -> list[Message]:
    """The messages that these pieces were kept of; what cannot be read is left out."""
    parts: dict[int, tuple[Kind, list[str], dict[str, Any]]] = {}
    for piece in pieces:
        try:
            news = wire.decode_value(piece.encode(), PIECE_LIMITS)
        except (PlexusError, ValueError):  # written by something else, or not whole
            continue
        for index, kind, text, meta in news:
            if kind not in KINDS:
                continue
            _, texts, known = parts.setdefault(index, (kind, [], {}))
            texts.append(text)
            known.update(meta or {})
    return [Message(kind, "".join(texts), meta) for _, (kind, texts, meta) in sorted(parts.items())]
