"""Making, listing, changing and deleting sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from activations.arbor.model import PAGE_ITEMS
from activations.chat.events import (
    DeletedSession,
    SessionData,
    SessionPage,
)
from activations.chat.holding import SPACE
from activations.chat.opening import ProviderSource
from activations.chat.sessions import (
    Session,
    find_session,
    session_data,
    session_of,
    taken,
    turn_under_way,
)
from activations.chat.setup import Setup
from activations.chat.tools import chosen_methods
from plexus import Busy, Context, Failed, InvalidParams

if TYPE_CHECKING:  # a store is imported when it is opened
    from activations.arbor.store import Store

__all__ = ("Keeping", "check_limit")

#: The temperatures that providers know.
HOTTEST: Final = 2.0


class Keeping:
    """What is done with whole sessions."""

    def __init__(self, store: Store, providers: ProviderSource, default_model: str) -> None:
        self.store = store
        self.providers = providers
        self.default_model = default_model

    async def create(self, ctx: Context, name: str, setup: Setup) -> SessionData:
        """A new session; one without a model gets the default one."""
        setup = self._checked(setup._replace(model=setup.model or self.default_model), ctx)
        try:
            head = await self.store.create_head(
                ctx.principal.name, SPACE, name, setup.data(), {"title": name, "kind": "chat"}
            )
        except Failed as error:
            raise taken(error, name) from None
        return session_data(Session(head, setup))

    async def page(self, ctx: Context, after: str | None, limit: int) -> SessionPage:
        """Some sessions, by their names."""
        check_limit(limit)
        most = min(limit + 1, PAGE_ITEMS)
        heads = await self.store.list_heads(ctx.principal.name, SPACE, after, most)
        more = len(heads) > limit or len(heads) == PAGE_ITEMS
        shown = [session_data(session_of(head)) for head in heads[:limit]]
        return SessionPage(shown, shown[-1].name if more else None)

    async def get(self, ctx: Context, name: str) -> SessionData:
        """One session."""
        return session_data(await find_session(self.store, ctx, name))

    async def configure(self, ctx: Context, name: str, given: dict[str, Any]) -> SessionData:
        """Change what is given; None leaves it as it is, and what is empty takes it away."""
        changes = {each: value for each, value in given.items() if value is not None}
        for each in ("system_prompt", "max_tokens", "context_tokens", "working_dir"):
            if each in changes and not changes[each]:
                changes[each] = None
        found = await find_session(self.store, ctx, name)
        setup = self._checked(found.setup._replace(**changes), ctx)
        head = await self.store.update_head(ctx.principal.name, SPACE, name, setup.data())
        return session_data(Session(head, setup))

    async def rename(self, ctx: Context, name: str, new_name: str) -> SessionData:
        """Another name for a session, and for its tree if that is called after it."""
        principal = ctx.principal.name
        await find_session(self.store, ctx, name)
        try:
            head = await self.store.rename_head(principal, SPACE, name, new_name)
        except Failed as error:
            raise taken(error, new_name) from None
        tree = await self.store.get_tree(principal, head.position.tree)
        if isinstance(tree.metadata, dict) and tree.metadata.get("title") == name:
            titled = {**tree.metadata, "title": new_name}
            await self.store.update_metadata(principal, tree.id, titled)
        return session_data(session_of(head))

    async def delete(self, ctx: Context, name: str) -> DeletedSession:
        """No such session any more; its tree is let go of."""
        await find_session(self.store, ctx, name)
        try:
            head = await self.store.delete_head(ctx.principal.name, SPACE, name)
        except Busy as error:
            raise turn_under_way(error, name) from None
        return DeletedSession(head.id, head.name, head.position.tree)

    async def fork(
        self, ctx: Context, name: str, new_name: str, node: str | None = None
    ) -> SessionData:
        """Another session in the same tree."""
        await find_session(self.store, ctx, name)
        try:
            head = await self.store.fork_head(ctx.principal.name, SPACE, name, new_name, node)
        except Failed as error:
            raise taken(error, new_name) from None
        return session_data(session_of(head))

    async def set_head(self, ctx: Context, name: str, node: str) -> SessionData:
        """Have a session stand somewhere else in its tree."""
        await find_session(self.store, ctx, name)
        try:
            head = await self.store.move_head(ctx.principal.name, SPACE, name, node)
        except Busy as error:
            raise turn_under_way(error, name) from None
        return session_data(session_of(head))

    def _checked(self, setup: Setup, ctx: Context) -> Setup:
        """The setup, if it can be had; raises InvalidParams, or what the model is refused with."""
        self.providers.find(setup.model)
        for spec in chosen_methods(ctx.plexus, setup.tools):
            ctx.plexus.check_scope(spec, ctx.principal)
        for name in ("max_tokens", "context_tokens"):
            value = getattr(setup, name)
            if value is not None and value < 1:
                raise _invalid(name, "must be at least 1")
        if setup.temperature is not None and not 0 <= setup.temperature <= HOTTEST:
            raise _invalid("temperature", f"must be from 0 to {HOTTEST:g}")
        return setup


def check_limit(limit: int) -> None:
    """Raise InvalidParams if a page cannot have so many."""
    if not 1 <= limit <= PAGE_ITEMS:
        raise _invalid("limit", f"must be from 1 to {PAGE_ITEMS}")


def _invalid(name: str, fault: str) -> InvalidParams:
    return InvalidParams(f"{name}: {fault}", data={"errors": [{"at": name, "fault": fault}]})
