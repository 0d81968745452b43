"""The `chat` activation: streamed, branching, persistent conversations with models.

Guarantees:
- A message is stored before the model is called. A partial answer is stored and marked, whatever
  ended it: an error, cancellation, a lost connection or a killed process.
- A session has at most one turn at a time, across all processes that share the store.
- Nothing is overwritten: edits, regenerated answers and moves create branches of the same tree.
- API keys come from the environment or a keyring and are never stored, logged or forwarded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal

from activations.arbor import Arbor
from activations.arbor.model import PageSize
from activations.chat.attachments import Attachment, attachment_messages
from activations.chat.context_window import Overflow
from activations.chat.events import (
    Branches,
    DeletedSession,
    HistoryPage,
    Hits,
    Models,
    SessionData,
    SessionPage,
    TurnEvent,
)
from activations.chat.history import History
from activations.chat.lease import WhenBusy
from activations.chat.message import user_message
from activations.chat.providers.provider import ProviderSource
from activations.chat.sessions import DEFAULT_MODEL, SessionConfig, Sessions, config_parameters
from activations.chat.turn import TURN_S, Turn, TurnOptions, rewrite_answer
from plexus import (
    Activation,
    Content,
    Context,
    Message,
    Principal,
    PromptInfo,
    completer,
    method,
    prompt,
)

__all__ = ("Chat",)

#: The prefix of prompt names.
PROMPT_PREFIX: Final = "chat.session."
#: Maximum number of sessions read for suggestions, and of suggestions.
SCANNED_SESSIONS: Final = 1000
MAX_SUGGESTIONS: Final = 100


class Chat(Activation):
    """Conversations with AI models: streamed, branching and stored as trees."""

    namespace = "chat"
    audience = "client"
    version = "1.0.0"

    def __init__(
        self,
        arbor: Arbor,
        open_providers: Callable[[], ProviderSource],
        default_model: str = DEFAULT_MODEL,
    ) -> None:
        """Create the activation. The store and the providers are opened at first use."""
        self._arbor = arbor
        self._open_providers = open_providers
        self._opened: ProviderSource | None = None
        self._default_model = default_model or DEFAULT_MODEL

    @property
    def _providers(self) -> ProviderSource:
        if self._opened is None:
            self._opened = self._open_providers()
        return self._opened

    async def _sessions(self) -> Sessions:
        return Sessions(await self._arbor.store(), self._providers, self._default_model)

    async def _history(self) -> History:
        return History(await self._sessions())

    async def close(self) -> None:
        """Close the providers."""
        if self._opened is not None:
            await self._opened.close()

    # --- sessions -----------------------------------------------------------------------------

    @method(title="Create a chat session", destructive=False, open_world=False, audience="model")
    @config_parameters()
    async def create(self, name: str, *, ctx: Context, **config: Any) -> SessionData:
        """Create a chat session with a model and return it. Talk to the model with chat.send.

        Args:
            name: Name of the new session.
        """
        return await (await self._sessions()).create(ctx, name, SessionConfig(**config))

    @method(name="list", title="List chat sessions", read_only=True, open_world=False)
    async def list_sessions(
        self, after: str | None = None, limit: PageSize = 100, *, ctx: Context
    ) -> SessionPage:
        """List your chat sessions by name, with model and last update.

        Args:
            after: `next` of the previous page.
            limit: Page size.
        """
        if self._arbor.is_empty():
            return SessionPage([])
        return await (await self._sessions()).page(ctx, after, limit)

    @method(title="Show a chat session", read_only=True, open_world=False)
    async def get(self, session: str, *, ctx: Context) -> SessionData:
        """Return the configuration and current position of a session, not its messages.

        Args:
            session: Session name.
        """
        return await (await self._sessions()).get(ctx, session)

    @method(title="Change session settings", destructive=True, idempotent=True, open_world=False)
    @config_parameters(changes=True)
    async def configure(self, session: str, *, ctx: Context, **config: Any) -> SessionData:
        """Change the configuration of a session and return it.

        Omitted parameters stay unchanged.

        Args:
            session: Session name.
        """
        return await (await self._sessions()).configure(ctx, session, config)

    @method(title="Rename a chat session", destructive=False, open_world=False)
    async def rename(self, session: str, new_name: str, *, ctx: Context) -> SessionData:
        """Rename a session and return it.

        Args:
            session: Current name.
            new_name: The new name.
        """
        return await (await self._sessions()).rename(ctx, session, new_name)

    @method(title="Delete a chat session", destructive=True, open_world=False)
    async def delete(self, session: str, *, ctx: Context) -> DeletedSession:
        """Delete a session. Its messages are retained while other sessions share its tree.

        Then they are deleted after a retention period.

        Args:
            session: Session name.
        """
        return await (await self._sessions()).delete(ctx, session)

    @method(title="Fork a chat session", destructive=False, open_world=False)
    async def fork(
        self, session: str, new_name: str, node_id: str | None = None, *, ctx: Context
    ) -> SessionData:
        """Create a second session that shares the conversation so far, and return it.

        Use it to try another direction; the original session stays as it is.

        Args:
            session: Session to fork.
            new_name: Name of the new session.
            node_id: The last message that both share. Default: the current position.
        """
        return await (await self._sessions()).fork(ctx, session, new_name, node_id)

    @method(title="Move to another message", destructive=False, idempotent=True, open_world=False)
    async def set_head(self, session: str, node_id: str, *, ctx: Context) -> SessionData:
        """Move a session to another message of its tree, to go back or to switch branches.

        The next message continues from there. Returns the session.

        Args:
            session: Session name.
            node_id: Id of the message, from chat.branches or chat.history.
        """
        return await (await self._sessions()).set_head(ctx, session, node_id)

    # --- turns --------------------------------------------------------------------------------
    #
    # A turn is never restarted: it costs money, and its tools may already have been called.

    @method(
        title="Send a message",
        deadline_s=TURN_S,
        restart="never",
        destructive=False,
        open_world=True,
        audience="model",
    )
    async def send(
        self,
        session: str,
        message: str,
        attachments: list[Attachment] | None = None,
        ephemeral: bool = False,
        max_turns: int | None = None,
        when_busy: WhenBusy = "refuse",
        overflow: Overflow | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[TurnEvent]:
        """Send a message to the model of a session and stream its answer and tool calls.

        Both messages are stored; a partial answer is marked.

        Args:
            session: Session name.
            message: The message.
            attachments: Up to 20 files.
            ephemeral: Do not store this turn.
            max_turns: Maximum model calls; each round of tool calls needs another. Default 50; no
                limit for Claude Code.
            when_busy: What to do while another turn runs.
            overflow: What to do past the context window. Default: the session's setting.
        """
        sessions = await self._sessions()
        new = user_message(message)
        files = await attachment_messages(ctx, attachments or [])
        options = TurnOptions(None, ephemeral, max_turns, when_busy, overflow)
        return Turn(sessions, ctx, session, [*files, new], options).run()

    @method(
        title="Regenerate an answer",
        deadline_s=TURN_S,
        restart="never",
        destructive=False,
        open_world=True,
    )
    async def regenerate(
        self,
        session: str,
        node_id: str | None = None,
        max_turns: int | None = None,
        when_busy: WhenBusy = "refuse",
        overflow: Overflow | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[TurnEvent]:
        """Answer an earlier message again and stream the new answer; the old answer is kept.

        Args:
            session: Session name.
            node_id: The user message, or a message of its answer. Default: the latest.
            max_turns: Maximum model calls. Default 50; no limit for Claude Code.
            when_busy: What to do while another turn runs.
            overflow: What to do past the context window.
        """
        sessions = await self._sessions()
        user_node = await History(sessions).message_to_answer(ctx, session, node_id)
        options = TurnOptions(user_node, False, max_turns, when_busy, overflow)
        return Turn(sessions, ctx, session, (), options).run()

    @method(
        title="Edit a message",
        deadline_s=TURN_S,
        restart="never",
        destructive=False,
        open_world=True,
    )
    async def edit(
        self,
        session: str,
        node_id: str,
        message: str,
        max_turns: int | None = None,
        when_busy: WhenBusy = "refuse",
        overflow: Overflow | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[TurnEvent]:
        """Replace an earlier message in a new branch; the original branch is kept.

        An edited user message is answered again; an edited answer is only stored.

        Args:
            session: Session name.
            node_id: The user message or answer to replace.
            message: The new text.
            max_turns: Maximum model calls. Default 50; no limit for Claude Code.
            when_busy: What to do while another turn runs.
            overflow: What to do past the context window.
        """
        sessions = await self._sessions()
        new = user_message(message)
        old, parent = await History(sessions).message_to_edit(ctx, session, node_id)
        if old.kind == "assistant":
            return rewrite_answer(sessions, ctx, session, message, parent, when_busy)
        options = TurnOptions(parent, False, max_turns, when_busy, overflow)
        return Turn(sessions, ctx, session, [new], options).run()

    # --- reading ------------------------------------------------------------------------------

    @method(title="Read a conversation", read_only=True, open_world=False)
    async def history(
        self, session: str, before: str | None = None, limit: PageSize = 50, *, ctx: Context
    ) -> HistoryPage:
        """Return the latest messages of a conversation, oldest first.

        An answer in progress comes last, with the status "streaming".

        Args:
            session: Session name.
            before: `next` of the previous page.
            limit: Page size.
        """
        return await (await self._history()).history(ctx, session, before, limit)

    @method(title="List branches", read_only=True, open_world=False)
    async def branches(
        self, session: str, after: str | None = None, limit: PageSize = 50, *, ctx: Context
    ) -> Branches:
        """List the branches of a conversation, newest first, with the last message of each.

        Use it to find a message for chat.set_head.

        Args:
            session: Session name.
            after: `next` of the previous page.
            limit: Page size.
        """
        return await (await self._history()).branches(ctx, session, after, limit)

    @method(title="Search conversations", read_only=True, open_world=False, audience="model")
    async def search(
        self,
        text: str,
        session: str | None = None,
        before: int | None = None,
        limit: PageSize = 20,
        *,
        ctx: Context,
    ) -> Hits:
        """Search your chat messages for words; returns excerpts and their sessions, newest first.

        Args:
            text: Words that a message must all contain. Case and punctuation are ignored.
            session: Search only the tree of this session.
            before: `next` of the previous page.
            limit: Page size.
        """
        return await (await self._history()).search(ctx, text, session, before, limit)

    @method(title="Export a conversation", read_only=True, open_world=False)
    async def export(
        self,
        session: str,
        format: Literal["markdown", "json"] = "markdown",  # noqa: A002 - the name on the wire
        *,
        ctx: Context,
    ) -> AsyncIterator[Content]:
        """Return a whole conversation as one document, streamed in chunks.

        Args:
            session: Session name.
            format: markdown for reading, json for processing.
        """
        for text in await (await self._history()).export(ctx, session, format):
            yield Content(text)

    @method(title="List model providers", read_only=True, open_world=False)
    async def models(self) -> Models:
        """List the model providers: an example model of each, and what is missing to use it."""
        return Models(self._default_model, self._providers.list_providers())

    async def check_health(self) -> str:
        """Return the default model. Raises if it cannot be used."""
        provider, model = self._providers.find(self._default_model)
        await provider.check(model)
        return f"default model {self._default_model}"

    # --- prompts ------------------------------------------------------------------------------

    @prompt(title="Continue a conversation", template=PROMPT_PREFIX + "{session}")
    async def conversation(self, session: str, *, ctx: Context) -> AsyncIterator[Message]:
        """Return the messages of a chat session, to continue the conversation elsewhere.

        Args:
            session: Session name.
        """
        for message in await (await self._history()).prompt(ctx, session):
            yield message

    async def prompts(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[PromptInfo]:
        """List a prompt for every session, with its messages."""
        if self._arbor.is_empty() or limit < 1:
            return []
        name = None
        if after is not None and after >= PROMPT_PREFIX:
            if not after.startswith(PROMPT_PREFIX):
                return []
            name = after.removeprefix(PROMPT_PREFIX)
        names = await (await self._sessions()).names(principal.name, name, limit)
        description = "The messages of this chat session"
        return [PromptInfo(PROMPT_PREFIX + each, each, description) for each in names]

    @completer("conversation", "session")
    async def suggest_sessions(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """Return the names of sessions that start with a value."""
        if self._arbor.is_empty():
            return []
        names = await (await self._sessions()).names(principal.name, None, SCANNED_SESSIONS)
        return [name for name in names if name.startswith(value)][:MAX_SUGGESTIONS]
