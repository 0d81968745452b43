"""The `claudecode` activation: chat sessions that Claude Code answers.

They are ordinary chat sessions, and every method of `chat` works with them. This namespace offers
the common ones under the names that clients of Claude Code expect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from activations.arbor.model import PageSize
from activations.chat.events import DeletedSession, SessionData, SessionPage, TurnEvent
from activations.chat.methods import Chat
from activations.chat.tools import Approval
from activations.chat.turn import TURN_S
from plexus import Activation, Context, method

__all__ = ("ClaudeCode",)

#: The prefix of the models of Claude Code.
PROVIDER: Final = "claude-code:"

#: The parameters of `chat`, word for word as in other servers of this protocol.
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
    """Claude Code sessions: an agent that works in a directory with its own tools."""

    namespace = "claudecode"
    audience = "client"
    version = "1.0.0"

    def __init__(self, chat: Chat) -> None:
        """Create the activation over the sessions of `chat`."""
        self._chat = chat

    # Never restarted: a turn costs money, and its tools may already have been called.
    @method(
        deadline_s=TURN_S,
        restart="never",
        schema=CHAT_SCHEMA,
        open_world=True,
        scope="chat",
        audience="model",
    )
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

    @method(
        title="Create a Claude Code session",
        destructive=False,
        open_world=False,
        scope="chat",
        audience="model",
    )
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
        """Create a Claude Code session in a directory and return it. Use it with claudecode.chat.

        Args:
            name: Name of the new session.
            working_dir: Working directory. Default: the server's.
            model: Model or alias, such as "sonnet" or "opus".
            system_prompt: Instructions in addition to those of Claude Code.
            approve: none allows tool calls that need permission; all and changes ask you.
            allowed_tools: Tools that need no approval, such as "Read" or "Bash(git *)".
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
        self, after: str | None = None, limit: PageSize = 100, *, ctx: Context
    ) -> SessionPage:
        """List your Claude Code sessions by name, with their configuration and last update.

        Args:
            after: `next` of the previous page.
            limit: Page size.
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
        """Return the configuration and current position of a Claude Code session.

        Args:
            session_name: Name of the session.
        """
        return await self._chat.get(session_name, ctx=ctx)

    @method(title="Delete a Claude Code session", destructive=True, open_world=False, scope="chat")
    async def delete(self, session_name: str, *, ctx: Context) -> DeletedSession:
        """Delete a Claude Code session. The files that Claude Code keeps about it remain.

        Args:
            session_name: Name of the session.
        """
        return await self._chat.delete(session_name, ctx=ctx)

    @method(title="Fork a Claude Code session", destructive=False, open_world=False, scope="chat")
    async def fork(self, session_name: str, new_name: str, *, ctx: Context) -> SessionData:
        """Create a second Claude Code session that shares the conversation so far; returns it.

        Args:
            session_name: Session to fork.
            new_name: Name of the new session.
        """
        return await self._chat.fork(session_name, new_name, ctx=ctx)
