"""claudecode: sessions of Claude Code. They are sessions of chat like any other, and `chat` can do
with them whatever it can do; here is what a caller of Claude Code looks for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from activations.chat.events import DeletedSession, SessionData, SessionPage, TurnEvent
from activations.chat.methods import Chat
from activations.chat.tools import Approval
from activations.chat.turn import TURN_S
from plexus import Activation, Context, method

__all__ = ("ClaudeCode",)

#: What the models of Claude Code begin with.
PROVIDER: Final = "claude-code:"

#: The parameters of `chat` as other servers of this protocol show them, word for word.
CHAT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "session_name": {"type": "string", "description": "Name of the session"},
        "query": {"type": "string", "description": "The query to send"},
        "max_turns": {
            "type": ["integer", "null"],
            "description": "Maximum conversation turns",
        },
    },
    "required": ["session_name", "query"],
}


class ClaudeCode(Activation):
    """Sessions of Claude Code: it works in a folder, with tools of its own."""

    namespace = "claudecode"
    version = "1.0.0"

    def __init__(self, chat: Chat) -> None:
        """Take the sessions of this chat."""
        self._chat = chat

    @method(deadline_s=TURN_S, schema=CHAT_SCHEMA, open_world=True, scope="chat")
    async def chat(
        self,
        session_name: str,
        query: str,
        max_turns: int | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[TurnEvent]:
        """Chat with a Claude Code session

        Args:
            session_name: Name of the session
            query: The query to send
            max_turns: Maximum conversation turns
        """
        return await self._chat.send(session_name, query, max_turns=max_turns, ctx=ctx)

    @method(title="Create a Claude Code session", destructive=False, open_world=False, scope="chat")
    async def create(
        self,
        name: str,
        working_dir: str | None = None,
        model: str = "default",
        system_prompt: str | None = None,
        approve: Approval = "changes",
        allowed_tools: list[str] | None = None,
        *,
        ctx: Context,
    ) -> SessionData:
        """Make a session of Claude Code.

        Args:
            name: What it is called; a name that is taken is refused.
            working_dir: The folder in which it works; that of the server, if left out.
            model: Its model, as in "sonnet" or "opus".
            system_prompt: What it is told in addition to its own instructions.
            approve: Whether you are asked before it uses a tool that needs permission.
            allowed_tools: Those of its tools that need no approval, as in "Read" or "Bash(git *)".
        """
        return await self._chat.create(
            name,
            model=PROVIDER + model.removeprefix(PROVIDER),
            system_prompt=system_prompt,
            approve=approve,
            working_dir=working_dir,
            allowed_tools=allowed_tools,
            ctx=ctx,
        )

    @method(name="list", title="List Claude Code sessions", read_only=True, open_world=False)
    async def list_sessions(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> SessionPage:
        """List your sessions of Claude Code by their names.

        Args:
            after: The `next` of the page before.
            limit: At most so many, up to 1000.
        """
        found: list[SessionData] = []
        while True:
            page = await self._chat.list_sessions(after, limit, ctx=ctx)
            found += [each for each in page.sessions if each.model.startswith(PROVIDER)]
            if len(found) > limit:
                return SessionPage(found[:limit], found[limit - 1].name)
            after = page.next
            if after is None:
                return SessionPage(found)

    @method(title="Show a Claude Code session", read_only=True, open_world=False)
    async def get(self, session_name: str, *, ctx: Context) -> SessionData:
        """Give a session: where it stands and how it is set up.

        Args:
            session_name: Name of the session.
        """
        return await self._chat.get(session_name, ctx=ctx)

    @method(title="Delete a Claude Code session", destructive=True, open_world=False, scope="chat")
    async def delete(self, session_name: str, *, ctx: Context) -> DeletedSession:
        """Delete a session. What Claude Code itself has written about it stays.

        Args:
            session_name: Name of the session.
        """
        return await self._chat.delete(session_name, ctx=ctx)

    @method(title="Fork a Claude Code session", destructive=False, open_world=False, scope="chat")
    async def fork(self, session_name: str, new_name: str, *, ctx: Context) -> SessionData:
        """Make another session that shares what was said so far.

        Args:
            session_name: Name of the session.
            new_name: The name of the new one; one that is taken is refused.
        """
        return await self._chat.fork(session_name, new_name, ctx=ctx)
