"""How a session is set up, and the choices that callers have. Cheap to import: this is read when
the program starts, and nothing else of chat needs to be until somebody chats."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = (
    "DEFAULT_MODEL",
    "TURN_S",
    "Approval",
    "Attachment",
    "Begin",
    "Overflow",
    "Setup",
    "WhenBusy",
)

#: What answers if nothing else is set up.
DEFAULT_MODEL: Final = "echo:echo"
#: How long a turn may take, with all its tools and questions.
TURN_S: Final = 3600.0

#: Before which tools a person is asked: each, those that may change something, or none.
Approval: TypeAlias = Literal["all", "changes", "none"]
#: What becomes of a conversation that is longer than the model takes: it is refused, or the
#: oldest turns are left out, or summarised.
Overflow: TypeAlias = Literal["refuse", "drop", "summarise"]
#: What becomes of a turn that is asked for while another is under way.
WhenBusy: TypeAlias = Literal["refuse", "queue"]


@dataclasses.dataclass(frozen=True)
class Attachment:
    """A file: its `text`, its `data` (base64), or the `uri` of a resource of this server."""

    name: str | None = None
    mime_type: str | None = None
    text: str | None = None
    data: str | None = None
    uri: str | None = None


class Setup(NamedTuple):
    """How a session is set up; kept as the data of its head."""

    model: str
    system_prompt: str | None = None
    #: The methods that the model may call, as in `arbor.*`.
    tools: tuple[str, ...] = ()
    approve: Approval = "changes"
    overflow: Overflow = "refuse"
    thinking: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    #: How many tokens the model takes, where that is not known or is to be less.
    context_tokens: int | None = None
    #: Where a provider works that runs tools itself, and which of those need no approval.
    working_dir: str | None = None
    allowed_tools: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As it is stored: without what is not there."""
        return {name: value for name, value in self._asdict().items() if value not in (None, ())}


class Begin(NamedTuple):
    """How a turn begins."""

    #: The node after which it is said; None: where the session stands.
    after: str | None = None
    ephemeral: bool = False
    max_turns: int | None = None
    when_busy: WhenBusy = "refuse"
    overflow: Overflow | None = None
