"""chat: conversations with models, streamed, that branch and last.

What it promises:
- A message is stored before a model is asked; what there is of an answer is kept and marked,
  whatever ends it: an error, a cancel, a lost connection, a killed program.
- One turn at a time in a session, over all processes that share the store.
- Nothing is overwritten: an edit, another answer, a step back are branches of the same tree.
- Keys come from the environment or a keyring; they are never stored, logged or sent on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal

from activations.arbor import Arbor
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

#: What prompts' names begin with.
PROMPTS: Final = "chat.session."
#: How many sessions are read for suggestions, and how many are suggested.
SCANNED: Final = 1000
SUGGESTED: Final = 100


class Chat(Activation):
    """Conversations with models: streamed, branching, kept in trees."""

    namespace = "chat"
    version = "1.0.0"

    def __init__(
        self,
        arbor: Arbor,
        open_providers: Callable[[], ProviderSource],
        default_model: str = DEFAULT_MODEL,
    ) -> None:
        """Take where sessions are kept and who answers; both are opened at their first use."""
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

    @method(title="Create a session", destructive=False, open_world=False)
    @config_parameters()
    async def create(self, name: str, *, ctx: Context, **config: Any) -> SessionData:
        """Make a session: a conversation with a model, kept in a tree of its own.

        Args:
            name: What it is called; a name that is taken is refused.
        """
        return await (await self._sessions()).create(ctx, name, SessionConfig(**config))

    @method(name="list", title="List sessions", read_only=True, open_world=False)
    async def list_sessions(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> SessionPage:
        """List your sessions by their names.

        Args:
            after: The `next` of the page before.
            limit: At most so many, up to 1000.
        """
        if self._arbor.is_empty():
            return SessionPage([])
        return await (await self._sessions()).page(ctx, after, limit)

    @method(title="Show a session", read_only=True, open_world=False)
    async def get(self, session: str, *, ctx: Context) -> SessionData:
        """Give a session: where it stands and how it is set up.

        Args:
            session: The session's name.
        """
        return await (await self._sessions()).get(ctx, session)

    @method(title="Set up a session anew", destructive=True, idempotent=True, open_world=False)
    @config_parameters(changes=True)
    async def configure(self, session: str, *, ctx: Context, **config: Any) -> SessionData:
        """Change how a session is set up. What is left out stays as it is.

        Args:
            session: The session's name.
        """
        return await (await self._sessions()).configure(ctx, session, config)

    @method(title="Rename a session", destructive=False, open_world=False)
    async def rename(self, session: str, new_name: str, *, ctx: Context) -> SessionData:
        """Give a session another name.

        Args:
            session: The session's name.
            new_name: Its new name; one that is taken is refused.
        """
        return await (await self._sessions()).rename(ctx, session, new_name)

    @method(title="Delete a session", destructive=True, open_world=False)
    async def delete(self, session: str, *, ctx: Context) -> DeletedSession:
        """Delete a session. Its tree stays while another session is in it, and for a while after.

        Args:
            session: The session's name.
        """
        return await (await self._sessions()).delete(ctx, session)

    @method(title="Fork a session", destructive=False, open_world=False)
    async def fork(
        self, session: str, new_name: str, node_id: str | None = None, *, ctx: Context
    ) -> SessionData:
        """Make another session in the same tree: it shares what was said so far.

        Args:
            session: The session's name.
            new_name: The name of the new one; one that is taken is refused.
            node_id: The message after which the new one goes on; where the old one stands, if
                left out.
        """
        return await (await self._sessions()).fork(ctx, session, new_name, node_id)

    @method(title="Go to another message", destructive=False, idempotent=True, open_world=False)
    async def set_head(self, session: str, node_id: str, *, ctx: Context) -> SessionData:
        """Have a session go on after another message of its tree: this is how one branches.

        Args:
            session: The session's name.
            node_id: The message; it must be in the session's tree.
        """
        return await (await self._sessions()).set_head(ctx, session, node_id)

    # --- turns --------------------------------------------------------------------------------

    @method(title="Say something", deadline_s=TURN_S, destructive=False, open_world=True)
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
        """Send a message and stream the answer.

        The message is stored before the model is asked. If the answer is cut off, by an error or
        by you, what there is of it is kept and marked.

        Args:
            session: The session's name.
            message: What you say.
            attachments: Files that belong to it: each has a text, or data (base64) and a
                mime_type, or the uri of a resource of this server; and may have a name.
            ephemeral: Whether nothing of this turn is kept.
            max_turns: How often the model may be asked in this turn; it is asked again after each
                round of tools.
            when_busy: What happens if a turn is under way: refuse, or queue this one after it.
            overflow: What happens if the conversation is longer than the model takes: refuse, drop
                the oldest turns, or summarise them; as the session says, if left out.
        """
        sessions = await self._sessions()
        said = user_message(message)
        files = await attachment_messages(ctx, attachments or [])
        options = TurnOptions(None, ephemeral, max_turns, when_busy, overflow)
        return Turn(sessions, ctx, session, [*files, said], options).run()

    @method(title="Answer again", deadline_s=TURN_S, destructive=False, open_world=True)
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
        """Have the model answer a message again, in a branch beside the answer that there is.

        Args:
            session: The session's name.
            node_id: The message of yours, or anything of its answer; the latest, if left out.
            max_turns: How often the model may be asked in this turn.
            when_busy: What happens if a turn is under way: refuse, or queue this one after it.
            overflow: What happens if the conversation is longer than the model takes.
        """
        sessions = await self._sessions()
        said = await History(sessions).message_to_answer(ctx, session, node_id)
        options = TurnOptions(said, False, max_turns, when_busy, overflow)
        return Turn(sessions, ctx, session, (), options).run()

    @method(title="Edit a message", deadline_s=TURN_S, destructive=False, open_world=True)
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
        """Say something else in the place of an earlier message: a new branch begins there.

        The old message stays, with all that followed. A new message of yours is answered, with the
        attachments of the old one; an answer that you rewrite is only stored.

        Args:
            session: The session's name.
            node_id: The message: one of yours, or an answer.
            message: What is said in its place.
            max_turns: How often the model may be asked in this turn.
            when_busy: What happens if a turn is under way: refuse, or queue this one after it.
            overflow: What happens if the conversation is longer than the model takes.
        """
        sessions = await self._sessions()
        said = user_message(message)
        old, parent = await History(sessions).message_to_edit(ctx, session, node_id)
        if old.kind == "assistant":
            return rewrite_answer(sessions, ctx, session, message, parent, when_busy)
        options = TurnOptions(parent, False, max_turns, when_busy, overflow)
        return Turn(sessions, ctx, session, [said], options).run()

    # --- reading ------------------------------------------------------------------------------

    @method(title="Read a conversation", read_only=True, open_world=False)
    async def history(
        self, session: str, before: str | None = None, limit: int = 50, *, ctx: Context
    ) -> HistoryPage:
        """Give the latest messages of a session, the oldest of them first.

        An answer that is being written now comes last, with the status "streaming".

        Args:
            session: The session's name.
            before: The `next` of the page before, for older messages.
            limit: At most so many, up to 1000.
        """
        return await (await self._history()).history(ctx, session, before, limit)

    @method(title="List branches", read_only=True, open_world=False)
    async def branches(
        self, session: str, after: str | None = None, limit: int = 50, *, ctx: Context
    ) -> Branches:
        """List the ends of all branches of a session's tree, the newest first.

        Args:
            session: The session's name.
            after: The `next` of the page before.
            limit: At most so many, up to 1000.
        """
        return await (await self._history()).branches(ctx, session, after, limit)

    @method(title="Search conversations", read_only=True, open_world=False)
    async def search(
        self,
        text: str,
        session: str | None = None,
        before: int | None = None,
        limit: int = 20,
        *,
        ctx: Context,
    ) -> Hits:
        """Find the messages that hold all of these words, the newest first.

        Args:
            text: The words. Upper and lower case are the same; punctuation does not count.
            session: Search only the tree of this session; all of yours, if left out.
            before: The `next` of the search before, to go on there.
            limit: At most so many, up to 1000.
        """
        return await (await self._history()).search(ctx, text, session, before, limit)

    @method(title="Export a conversation", read_only=True, open_world=False)
    async def export(
        self,
        session: str,
        format: Literal["markdown", "json"] = "markdown",  # noqa: A002 - what callers call it
        *,
        ctx: Context,
    ) -> AsyncIterator[Content]:
        """Give a whole conversation as one text, in pieces to be joined.

        Args:
            session: The session's name.
            format: Markdown to read, or JSON to process.
        """
        for text in await (await self._history()).export(ctx, session, format):
            yield Content(text)

    @method(title="List providers of models", read_only=True, open_world=False)
    async def models(self) -> Models:
        """List where models can come from, and what is missing to use each."""
        return Models(self._default_model, self._providers.list_providers())

    async def check_health(self) -> str:
        """Say which model answers if none is named; raises if it cannot be asked."""
        provider, model = self._providers.find(self._default_model)
        await provider.check(model)
        return f"default model {self._default_model}"

    # --- prompts ------------------------------------------------------------------------------

    @prompt(title="A conversation", template=PROMPTS + "{session}")
    async def conversation(self, session: str, *, ctx: Context) -> AsyncIterator[Message]:
        """What was said so far in a session, to go on with.

        Args:
            session: The session's name.
        """
        for message in await (await self._history()).prompt(ctx, session):
            yield message

    async def prompts(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[PromptInfo]:
        """Every session is a prompt: the messages so far."""
        if self._arbor.is_empty() or limit < 1:
            return []
        name = None
        if after is not None and after >= PROMPTS:
            if not after.startswith(PROMPTS):
                return []
            name = after.removeprefix(PROMPTS)
        names = await (await self._sessions()).names(principal.name, name, limit)
        about = "What was said so far in this session"
        return [PromptInfo(PROMPTS + each, each, about) for each in names]

    @completer("conversation", "session")
    async def suggest_sessions(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The sessions whose names begin so."""
        if self._arbor.is_empty():
            return []
        names = await (await self._sessions()).names(principal.name, None, SCANNED)
        return [name for name in names if name.startswith(value)][:SUGGESTED]
