"""What the methods of chat give and yield. Pieces of the answer are `Content`, tools are
`ToolUse` and `ToolResult`: every view knows those already."""

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
    """A place in a tree of arbor."""

    tree_id: str
    node_id: str


class ChatStart(Start, tag="start"):
    """The user's message is stored, and the model is asked. An ephemeral message has no place."""

    session: str
    user_position: Place | None = None


class Thinking(Event):
    """A piece of what the model thinks before it answers."""

    text: str

    def as_line(self) -> str:
        return "Thinking"


class ToolStart(Event):
    """A tool that the model asked for runs now; the run can be followed by its number."""

    tool_use_id: str
    run: int

    def as_line(self) -> str:
        return f"Tool runs as {self.run}"


class Usage(Event):
    """What a round cost, in tokens, and in US dollars where the provider says so."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None

    def as_line(self) -> str:
        return f"{self.input_tokens} tokens in, {self.output_tokens} out"


class Answered(Complete):
    """The turn is over: where the session stands now, and what the whole turn cost."""

    stop_reason: str
    usage: Usage
    position: Place | None = None


#: What a turn yields.
TurnEvent: TypeAlias = (
    ChatStart | Content | Thinking | ToolUse | ToolStart | ToolResult | Usage | Answered
)


# --- what plain methods return --------------------------------------------------------------------


class SessionData(Event, tag="session"):
    """A session: a name, where it stands, and how it is set up. `busy`: a turn is under way."""

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
    """Some sessions. `next` is what to give as `after` for more; left out if there are none."""

    sessions: list[SessionData]
    next: str | None = None


class DeletedSession(Event, tag="deleted"):
    """A session is gone. Its tree is kept for a while; claiming it keeps it for good."""

    session_id: str
    name: str
    tree_id: str


class MessageData(Event, tag="message"):
    """One message of a conversation. `status` is left out if it is whole.

    A text that is too long for a list is left out: `size`, in characters, says so, and
    `arbor.node_get` gives it; so are attachments that are no text.
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
    """Some messages, the oldest first. `next` is what to give as `before` for older ones."""

    session: str
    position: Place
    messages: list[MessageData]
    next: str | None = None


class BranchData(Event, tag="branch"):
    """The end of a branch: its last message, where it leaves the way to the session's place, and
    how many messages follow from there. `current`: it is the session's own."""

    node_id: str
    kind: str
    excerpt: str
    messages: int
    created_ms: int
    current: bool
    sessions: list[str]
    leaves_at: str | None = None


class Branches(Event):
    """Some branches. `next` is what to give as `after` for more; left out if there are none."""

    session: str
    tree_id: str
    branches: list[BranchData]
    next: str | None = None


class HitData(Event, tag="hit"):
    """A message that was found, and the sessions in whose tree it stands."""

    tree_id: str
    node_id: str
    kind: str
    excerpt: str
    created_ms: int
    sessions: list[str]


class Hits(Event):
    """What was found, the newest first. `next` is what to give as `before` for more."""

    hits: list[HitData]
    next: int | None = None


class ModelData(Event, tag="model"):
    """Where models come from: an example of a model's name, and what is missing to use one."""

    provider: str
    example: str
    ready: bool
    advice: str | None = None


class Models(Event):
    """All providers of models, and the model that a session has if none is named."""

    default: str
    providers: list[ModelData]
