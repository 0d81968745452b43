"""chat: conversations with models, streamed, that branch and last.

What it promises:
- A message is stored before a model is asked; what there is of an answer is kept and marked,
  whatever ends it: an error, a cancel, a lost connection, a killed program.
- One turn at a time in a session, over all processes that share the store.
- Nothing is overwritten: an edit, another answer, a step back are branches of the same tree.
- Keys come from the environment or a keyring; they are never stored, logged or sent on.
"""

from __future__ import annotations

from typing import Any

from activations.chat.conversing import Conversing
from activations.chat.events import DeletedSession, ModelData, Models, SessionData, SessionPage
from activations.chat.lookup import Lookup
from activations.chat.setup import Approval, Overflow, Setup
from plexus import Context, method

__all__ = ("Chat",)


class Chat(Conversing, Lookup):
    """Conversations with models: streamed, branching, kept in trees."""

    namespace = "chat"
    version = "1.0.0"

    @method(title="Create a session", destructive=False, open_world=False)
    async def create(
        self,
        name: str,
        model: str | None = None,
        system_prompt: str | None = None,
        tools: list[str] | None = None,
        approve: Approval = "changes",
        overflow: Overflow = "refuse",
        thinking: bool = False,
        max_tokens: int | None = None,
        temperature: float | None = None,
        context_tokens: int | None = None,
        working_dir: str | None = None,
        allowed_tools: list[str] | None = None,
        *,
        ctx: Context,
    ) -> SessionData:
        """Make a session: a conversation with a model, kept in a tree of its own.

        Args:
            name: What it is called; a name that is taken is refused.
            model: Who answers, as in "anthropic:claude-sonnet-4-5"; `chat.models` lists the
                providers. The built-in echo model, if left out and nothing else is configured.
            system_prompt: What the model is told before everything else.
            tools: The methods that the model may call, as in "bash.execute" or "arbor.*".
            approve: Before which tools you are asked: all, those that may change something, none.
            overflow: What happens when the conversation is longer than the model takes: refuse to
                send, drop the oldest turns, or have the model summarise them.
            thinking: Whether the model is to think first, where it can choose.
            max_tokens: How long an answer may be.
            temperature: How freely the model chooses its words, from 0 to 2.
            context_tokens: How much the model takes, if that is not known, or is to be less.
            working_dir: For Claude Code: the folder in which it works.
            allowed_tools: For Claude Code: those of its own tools that need no approval.
        """
        setup = Setup(
            model or "",
            system_prompt,
            tuple(tools or ()),
            approve,
            overflow,
            thinking,
            max_tokens,
            temperature,
            context_tokens,
            working_dir,
            tuple(allowed_tools or ()),
        )
        return await (await self.desk()).create(ctx, name, setup)

    @method(name="list", title="List sessions", read_only=True, open_world=False)
    async def list_sessions(
        self, after: str | None = None, limit: int = 100, *, ctx: Context
    ) -> SessionPage:
        """List your sessions by their names.

        Args:
            after: The `next` of the page before.
            limit: At most so many, up to 1000.
        """
        if self.is_empty():
            return SessionPage([])
        return await (await self.desk()).page(ctx, after, limit)

    @method(title="Show a session", read_only=True, open_world=False)
    async def get(self, session: str, *, ctx: Context) -> SessionData:
        """Give a session: where it stands and how it is set up.

        Args:
            session: The session's name.
        """
        return await (await self.desk()).get(ctx, session)

    @method(title="Set up a session anew", destructive=True, idempotent=True, open_world=False)
    async def configure(
        self,
        session: str,
        model: str | None = None,
        system_prompt: str | None = None,
        tools: list[str] | None = None,
        approve: Approval | None = None,
        overflow: Overflow | None = None,
        thinking: bool | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        context_tokens: int | None = None,
        working_dir: str | None = None,
        allowed_tools: list[str] | None = None,
        *,
        ctx: Context,
    ) -> SessionData:
        """Change how a session is set up. What is left out stays as it is.

        Args:
            session: The session's name.
            model: Who answers from now on.
            system_prompt: What the model is told first; an empty text for nothing.
            tools: The methods that the model may call; an empty list for none.
            approve: Before which tools you are asked.
            overflow: What happens when the conversation is longer than the model takes.
            thinking: Whether the model is to think first, where it can choose.
            max_tokens: How long an answer may be; 0 for as long as the model likes.
            temperature: How freely the model chooses its words, from 0 to 2.
            context_tokens: How much the model takes; 0 for what is known of it.
            working_dir: For Claude Code: the folder in which it works; empty for the server's.
            allowed_tools: For Claude Code: those of its own tools that need no approval.
        """
        changes: dict[str, Any] = {
            "model": model,
            "system_prompt": system_prompt,
            "tools": None if tools is None else tuple(tools),
            "approve": approve,
            "overflow": overflow,
            "thinking": thinking,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "context_tokens": context_tokens,
            "working_dir": working_dir,
            "allowed_tools": None if allowed_tools is None else tuple(allowed_tools),
        }
        return await (await self.desk()).configure(ctx, session, changes)

    @method(title="Rename a session", destructive=False, open_world=False)
    async def rename(self, session: str, new_name: str, *, ctx: Context) -> SessionData:
        """Give a session another name.

        Args:
            session: The session's name.
            new_name: Its new name; one that is taken is refused.
        """
        return await (await self.desk()).rename(ctx, session, new_name)

    @method(title="Delete a session", destructive=True, open_world=False)
    async def delete(self, session: str, *, ctx: Context) -> DeletedSession:
        """Delete a session. Its tree stays while another session is in it, and for a while after.

        Args:
            session: The session's name.
        """
        return await (await self.desk()).delete(ctx, session)

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
        return await (await self.desk()).fork(ctx, session, new_name, node_id)

    @method(title="Go to another message", destructive=False, idempotent=True, open_world=False)
    async def set_head(self, session: str, node_id: str, *, ctx: Context) -> SessionData:
        """Have a session go on after another message of its tree: this is how one branches.

        Args:
            session: The session's name.
            node_id: The message; it must be in the session's tree.
        """
        return await (await self.desk()).set_head(ctx, session, node_id)

    @method(title="List providers of models", read_only=True, open_world=False)
    async def models(self) -> Models:
        """List where models can come from, and what is missing to use each."""
        known = [
            ModelData(name, example, ready, advice or None)
            for name, example, ready, advice in self._providers.described()
        ]
        return Models(self._default_model, known)

    async def check_health(self) -> str:
        """Say which model answers if none is named; raises if it cannot be asked."""
        provider, model = self._providers.find(self._default_model)
        await provider.check(model)
        return f"default model {self._default_model}"
