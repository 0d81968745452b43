"""The methods that read sessions: history, branches, search, export; and sessions as prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from activations.chat.events import Branches, HistoryPage, Hits
from activations.chat.opening import WithDesk
from plexus import Content, Context, Message, Principal, PromptInfo, completer, method, prompt

__all__ = ("Lookup",)

#: What prompts' names begin with.
PROMPTS = "chat.session."
#: How many sessions are looked at for suggestions, and how many are suggested.
SCANNED = 1000
SUGGESTED = 100


class Lookup(WithDesk):
    """What was said."""

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
        return await (await self.desk()).history(ctx, session, before, limit)

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
        return await (await self.desk()).branches(ctx, session, after, limit)

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
        return await (await self.desk()).search(ctx, text, session, before, limit)

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
        for text in await (await self.desk()).export(ctx, session, format):
            yield Content(text)

    # --- prompts ------------------------------------------------------------------------------

    @prompt(title="A conversation", template=PROMPTS + "{session}")
    async def conversation(self, session: str, *, ctx: Context) -> AsyncIterator[Message]:
        """What was said so far in a session, to go on with.

        Args:
            session: The session's name.
        """
        for message in await (await self.desk()).prompt(ctx, session):
            yield message

    async def prompts(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[PromptInfo]:
        """Every session is a prompt: the messages so far."""
        if self.is_empty() or limit < 1:
            return []
        name = None
        if after is not None and after >= PROMPTS:
            if not after.startswith(PROMPTS):
                return []
            name = after.removeprefix(PROMPTS)
        names = await (await self.desk()).names(principal, name, limit)
        about = "What was said so far in this session"
        return [PromptInfo(PROMPTS + each, each, about) for each in names]

    @completer("conversation", "session")
    async def suggest_sessions(
        self, value: str, _given: dict[str, str], principal: Principal
    ) -> list[str]:
        """The sessions whose names begin so."""
        if self.is_empty():
            return []
        names = await (await self.desk()).names(principal, None, SCANNED)
        return [name for name in names if name.startswith(value)][:SUGGESTED]
