"""Messages: the kind, text and metadata that a conversation consists of, and drafts of them.

The same values are sent to a provider, stored as nodes, shown as history and exported. A message
is a node of the session's tree: its text is the node's content, its kind and metadata are the
node's metadata. This module converts messages to and from nodes, list entries and Markdown; it
depends on neither the store nor a provider.

A draft is an answer in progress. It is saved in pieces, each with the changes since the previous
piece, so that saving a long answer costs no more than its length. `recover_draft` rebuilds the
messages from the pieces that a killed process has left behind.
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
    "message_from_node",
    "messages_from_nodes",
    "node_from_message",
    "recover_draft",
    "replace_unstorable",
    "to_markdown",
    "user_message",
)

_BACKTICKS = re.compile("`{3,}")

#: The kinds of messages:
#: - `user`: text of the user.
#: - `assistant`: text of the model.
#: - `thinking`: reasoning of the model before an answer or a tool call.
#: - `tool_use`: a tool call of the model; the text is the input as JSON.
#: - `tool_result`: the output of the tool.
#: - `attachment`: a file that belongs to the user message after it.
#: - `summary`: replaces all earlier messages when they exceed the model's context window.
Kind: TypeAlias = Literal[
    "user", "assistant", "thinking", "tool_use", "tool_result", "attachment", "summary"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: How a message ended; stored unless it is complete. `interrupted`: the process was killed.
Status: TypeAlias = Literal["complete", "error", "cancelled", "interrupted"]


class Message(NamedTuple):
    """A message. The keys of `meta` depend on the kind; unknown values are omitted:

    - every kind: `status` unless it is complete, `error` (a code and a message) if it failed.
    - assistant: `model`, `stop_reason`, `usage`, `memory` (see `providers.provider.Stop`).
    - thinking: `model`, and the metadata that the provider needs in later requests.
    - tool_use: `tool_name`, `tool_use_id`.
    - tool_result: `tool_use_id`, `tool_name`, `is_error`, `run`.
    - attachment: `name`, `mime_type`, `encoding` ("text", or "base64" for binary data).
    """

    kind: Kind
    text: str
    meta: dict[str, Any] = {}  # noqa: RUF012 - never changed; a tuple's default is shared anyway
    #: The node that stores the message; None before it is stored.
    node: str | None = None


def replace_unstorable(text: str) -> str:
    """Replace NUL characters and lone surrogates, which databases and JSON cannot represent."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text


def user_message(text: str) -> Message:
    """Return a user message. Raises InvalidParams if the text is empty or cannot be stored."""
    if not text.strip():
        code, fault = "empty_message", "must not be empty"
    elif replace_unstorable(text) != text:
        code, fault = "bad_text", "must not contain NUL characters or lone surrogates"
    else:
        return Message("user", text)
    faults = [{"at": "message", "fault": fault}]
    raise InvalidParams(f"the message {fault}", code=code, data={"errors": faults})


# --- nodes ---------------------------------------------------------------------------------------

#: Maximum characters of a text in a list.
LISTED_CHARACTERS = 100_000
#: The metadata in a list entry, with its types.
LISTED_META: dict[str, type] = {
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


def node_from_message(message: Message) -> NewNode:
    """Return the node that stores a message."""
    return NewNode(content=message.text, metadata={"kind": message.kind, **message.meta})


def message_from_node(node: Node) -> Message | None:
    """Return the message in a node; None for the root and for nodes of other programs."""
    metadata = node.metadata
    if not isinstance(metadata, dict) or node.content is None:
        return None
    kind = metadata.get("kind")
    if kind not in KINDS:
        return None
    meta = {name: value for name, value in metadata.items() if name != "kind"}
    return Message(kind, node.content, meta, node.id)


def messages_from_nodes(nodes: Iterable[Node]) -> list[Message]:
    """Return the messages in these nodes."""
    return [message for node in nodes if (message := message_from_node(node)) is not None]


def message_data(message: Message, created_ms: int | None = None) -> MessageData:
    """Return a message as a list entry."""
    kind, text, meta, node = message
    is_listed = len(text) <= LISTED_CHARACTERS and meta.get("encoding") != "base64"
    # Other programs can write nodes too: omit values of the wrong type.
    known = {
        name: meta[name] for name, type_ in LISTED_META.items() if isinstance(meta.get(name), type_)
    }
    return MessageData(
        kind,
        created_ms,
        node,
        text if is_listed else None,
        None if is_listed else len(text),
        **known,
    )


# --- Markdown ------------------------------------------------------------------------------------

TITLES = {
    "user": "User",
    "assistant": "Assistant",
    "thinking": "Thinking",
    "tool_use": "Tool",
    "tool_result": "Tool result",
    "attachment": "Attachment",
    "summary": "Summary of earlier messages",
}


def to_markdown(message: Message) -> str:
    """Return a message as Markdown, with a heading."""
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
        text = _code_block(text, "json")
    elif kind == "tool_result" or (kind == "attachment" and meta.get("encoding") == "text"):
        text = _code_block(text)
    elif kind == "attachment":
        text = f"*{len(text) * 3 // 4} bytes of binary data*"
    elif kind == "thinking":
        text = "\n".join(f"> {line}" for line in text.splitlines())
    return f"## {title}\n\n{text}\n\n"


def markdown_heading(name: str, model: str, system_prompt: str | None) -> str:
    """Return the beginning of an exported conversation: title, model and system prompt."""
    text = f"# {name}\n\n*{model}*\n\n"
    return text if system_prompt is None else f"{text}## System\n\n{system_prompt}\n\n"


def _code_block(text: str, language: str = "") -> str:
    """Return the text in a code block whose fences are longer than any fence in the text."""
    longest = max((len(found) for found in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


# --- drafts --------------------------------------------------------------------------------------

#: No limits on the contents of our own pieces: a text may contain any number of brackets, which
#: the decoder counts before it parses.
PIECE_LIMITS = Limits(
    message_containers=sys.maxsize, message_members=sys.maxsize, message_values=sys.maxsize
)
#: A longer message continues in a new message, since the size of a node is limited.
MESSAGE_CHARACTERS = 900_000


class _Part:
    """A message that can still grow."""

    __slots__ = ("kind", "meta", "meta_saved", "saved", "size", "texts")

    def __init__(self, kind: Kind, text: str, meta: dict[str, Any]) -> None:
        self.kind = kind
        self.meta = meta
        self.texts = [text]
        self.size = len(text)
        #: Number of texts in earlier pieces, and whether the metadata is in one.
        self.saved = 0
        self.meta_saved = False


class Draft:
    """The messages of a round in progress."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        #: The first part that may have unsaved changes.
        self._first_unsaved = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, kind: Kind, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Append to the last message if it has this kind, or else start a new message."""
        last = self._parts[-1] if self._parts else None
        if last is None or last.kind != kind or last.size > MESSAGE_CHARACTERS:
            self.begin(kind, text, meta)
            return
        if text:
            last.texts.append(text)
            last.size += len(text)
        if meta:
            last.meta.update(meta)
            last.meta_saved = False

    def begin(self, kind: Kind, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Start a new message."""
        self._parts.append(_Part(kind, text, dict(meta or {})))

    def messages(self) -> list[Message]:
        """Return the messages in their current state."""
        return [Message(part.kind, "".join(part.texts), dict(part.meta)) for part in self._parts]

    def take_piece(self) -> str | None:
        """Return the changes since the last piece; None if there are none."""
        changes = []
        for index in range(self._first_unsaved, len(self._parts)):
            part = self._parts[index]
            text = "".join(part.texts[part.saved :])
            if text or not part.meta_saved:
                changes.append([index, part.kind, text, None if part.meta_saved else part.meta])
            part.saved = len(part.texts)
            part.meta_saved = True
        self._first_unsaved = max(len(self._parts) - 1, 0)
        return wire.encode(changes).decode() if changes else None


def recover_draft(pieces: Iterable[str]) -> list[Message]:
    """Return the messages of a draft from its pieces. Unreadable pieces are skipped."""
    parts: dict[int, tuple[Kind, list[str], dict[str, Any]]] = {}
    for piece in pieces:
        try:
            changes = wire.decode_value(piece.encode(), PIECE_LIMITS)
        except (PlexusError, ValueError):  # incomplete, or written by another program
            continue
        for index, kind, text, meta in changes:
            if kind not in KINDS:
                continue
            _, texts, known = parts.setdefault(index, (kind, [], {}))
            texts.append(text)
            known.update(meta or {})
    return [Message(kind, "".join(texts), meta) for _, (kind, texts, meta) in sorted(parts.items())]
