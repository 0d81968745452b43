"""Events and results of the methods of chat.

Text of an answer is sent as `Content`, tool calls as `ToolUse` and `ToolResult`: every view
supports those events already.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from plexus import Complete, Content, Event, Start, ToolResult, ToolUse

__all__ = (
    "Answered",
    "BranchData",
    "Branches",
    "ChatStart",
    "DeletedSession",
    "HistoryPage",
    "HitData",
    "Hits",
    "MessageData",
    "ModelData",
    "Models",
    "Place",
    "SessionData",
    "SessionPage",
    "Thinking",
    "ToolStart",
    "TurnEvent",
    "Usage",
)


class Place(Event, tag="position"):
    """A position in a tree of arbor."""

    tree_id: str
    node_id: str


class ChatStart(Start, tag="start"):
    """The user message is stored and the model is called. An ephemeral message has no position."""

    session: str
    user_position: Place | None = None


class Thinking(Event):
    """A piece of the model's reasoning before the answer."""

    text: str

    def as_line(self) -> str:
        return "Thinking"


class ToolStart(Event):
    """A tool requested by the model has started; `run` is the id of its run."""

    tool_use_id: str
    run: int

    def as_line(self) -> str:
        return f"Tool started as run {self.run}"


class Usage(Event):
    """Token usage of a round, and its cost in US dollars if the provider reports it."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None

    def as_line(self) -> str:
        return f"{self.input_tokens} tokens in, {self.output_tokens} out"


class Answered(Complete):
    """The end of a turn: the new position of the session, and the usage of the whole turn."""

    stop_reason: str
    usage: Usage
    position: Place | None = None


#: The events of a turn.
TurnEvent: TypeAlias = (
    ChatStart | Content | Thinking | ToolUse | ToolStart | ToolResult | Usage | Answered
)


# --- results of plain methods ---------------------------------------------------------------------


class SessionData(Event, tag="session"):
    """A session: its name, position and configuration. `busy`: a turn is in progress."""

    session_id: str
    name: str
    model: str
    position: Place
    created_ms: int
    updated_ms: int
    busy: bool
    tools: list[str]
    approve: str
    overflow: str
    thinking: bool
    system_prompt: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    context_tokens: int | None = None
    working_dir: str | None = None
    allowed_tools: list[str] | None = None


class SessionPage(Event, tag="sessions"):
    """A page of sessions. Pass `next` as `after` for the next page; absent on the last page."""

    sessions: list[SessionData]
    next: str | None = None


class DeletedSession(Event, tag="deleted"):
    """A deleted session. Its tree is retained for a limited time; claiming it keeps it."""

    session_id: str
    name: str
    tree_id: str


class MessageData(Event, tag="message"):
    """A message of a conversation. `status` is absent if the message is complete.

    The text is omitted if it is too long for a list or binary; `size` is then its length in
    characters, and `arbor.node_get` returns it.
    """

    kind: str
    created_ms: int | None = None
    node_id: str | None = None
    text: str | None = None
    size: int | None = None
    status: str | None = None
    error: dict[str, Any] | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    tool_name: str | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    run: int | None = None
    name: str | None = None
    mime_type: str | None = None


class HistoryPage(Event, tag="history"):
    """A page of messages, oldest first. Pass `next` as `before` for older messages."""

    session: str
    position: Place
    messages: list[MessageData]
    next: str | None = None


class BranchData(Event, tag="branch"):
    """A branch: its last message, the node where it leaves the session's path, and its length.

    `messages` counts the messages after that node. `current`: the session is at the end of this
    branch.
    """

    node_id: str
    kind: str
    excerpt: str
    messages: int
    created_ms: int
    current: bool
    sessions: list[str]
    leaves_at: str | None = None


class Branches(Event):
    """A page of branches. Pass `next` as `after` for the next page; absent on the last page."""

    session: str
    tree_id: str
    branches: list[BranchData]
    next: str | None = None


class HitData(Event, tag="hit"):
    """A message found by a search, and the sessions that share its tree."""

    tree_id: str
    node_id: str
    kind: str
    excerpt: str
    created_ms: int
    sessions: list[str]


class Hits(Event):
    """Search results, newest first. Pass `next` as `before` for more."""

    hits: list[HitData]
    next: int | None = None


class ModelData(Event, tag="model"):
    """A model provider: an example of a model name, and what is missing before it can be used."""

    provider: str
    example: str
    ready: bool
    advice: str | None = None


class Models(Event):
    """All model providers, and the default model of new sessions."""

    default: str
    providers: list[ModelData]
