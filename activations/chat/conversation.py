"""What a conversation is made of: messages, each a kind, a text and what belongs to that kind.

The same values are asked of a provider, stored as nodes, shown as history and exported. A message
is a node of the session's tree: its text is the node's content, its kind and the rest the node's
metadata. Nothing here knows a store or a model.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ("KINDS", "Kind", "Message", "Status", "storable")

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
    - assistant: `model`, `stop_reason`, `usage`, `memory` (see `providers.provider.Finished`).
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
    """The text with what no database and no JSON can hold replaced: models and programs may say
    anything."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text
