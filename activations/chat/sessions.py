"""Sessions: how one is configured, and finding, creating, changing and deleting them.

A session is a named head in a tree of arbor; its configuration is the data of that head. The
fields of a configuration are listed once, in `SessionConfig`: methods get their parameters from
there.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from activations.arbor.model import PAGE_ITEMS, Head
from activations.arbor.store import Store
from activations.chat.context_window import Overflow
from activations.chat.events import DeletedSession, Place, SessionData, SessionPage
from activations.chat.lease import SPACE, is_leased, lease_owner, recover, turn_under_way
from activations.chat.providers.provider import Provider, ProviderSource
from activations.chat.tools import Approval, chosen_methods
from plexus import Context, Denied, Failed, InvalidParams, NotFound
from plexus.errors import Busy

__all__ = (
    "DEFAULT_MODEL",
    "Session",
    "SessionConfig",
    "Sessions",
    "check_limit",
    "config_parameters",
    "session_data",
    "session_of",
)

F = TypeVar("F", bound=Callable[..., Any])

#: The model of a session if nothing else is configured.
DEFAULT_MODEL: Final = "echo:echo"
#: The highest temperature that providers know.
HOTTEST: Final = 2.0
#: The scope for running commands: a provider that runs tools itself can do no less.
COMMANDS: Final = "bash"


class _Doc(NamedTuple):
    """What callers read about a field when they create a session, and when they change one."""

    create: str
    change: str = ""


class SessionConfig(NamedTuple):
    """How a session is configured: the parameters of `chat.create` and `chat.configure`."""

    model: Annotated[
        str | None,
        _Doc(
            'Who answers, as in "anthropic:claude-sonnet-4-5"; `chat.models` lists the providers.'
            " The built-in echo model, if left out and nothing else is configured.",
            "Who answers from now on.",
        ),
    ] = None
    system_prompt: Annotated[
        str | None,
        _Doc(
            "What the model is told before everything else.",
            "What the model is told first; an empty text for nothing.",
        ),
    ] = None
    tools: Annotated[
        list[str] | None,
        _Doc(
            'The methods that the model may call, as in "bash.execute" or "arbor.*".',
            "The methods that the model may call; an empty list for none.",
        ),
    ] = None
    approve: Annotated[
        Approval,
        _Doc(
            "Before which tools you are asked: all, those that may change something, none.",
            "Before which tools you are asked.",
        ),
    ] = "changes"
    overflow: Annotated[
        Overflow,
        _Doc(
            "What happens when the conversation is longer than the model takes: refuse to send,"
            " drop the oldest turns, or have the model summarise them.",
            "What happens when the conversation is longer than the model takes.",
        ),
    ] = "refuse"
    thinking: Annotated[bool, _Doc("Whether the model is to think first, where it can choose.")] = (
        False
    )
    max_tokens: Annotated[
        int | None,
        _Doc(
            "How long an answer may be.",
            "How long an answer may be; 0 for as long as the model likes.",
        ),
    ] = None
    temperature: Annotated[
        float | None, _Doc("How freely the model chooses its words, from 0 to 2.")
    ] = None
    context_tokens: Annotated[
        int | None,
        _Doc(
            "How much the model takes, if that is not known, or is to be less.",
            "How much the model takes; 0 for what is known of it.",
        ),
    ] = None
    working_dir: Annotated[
        str | None,
        _Doc(
            "For Claude Code: the folder in which it works.",
            "For Claude Code: the folder in which it works; empty for the server's.",
        ),
    ] = None
    allowed_tools: Annotated[
        list[str] | None,
        _Doc("For Claude Code: those of its own tools that need no approval."),
    ] = None

    def stored(self) -> dict[str, Any]:
        """Return it as it is stored: without what is not set."""
        return {name: value for name, value in self._asdict().items() if value not in (None, [])}

    def changed(self, given: dict[str, Any]) -> SessionConfig:
        """Return it with what is given; None changes nothing, an empty value removes one."""
        changes = {name: value for name, value in given.items() if value is not None}
        for name in ("system_prompt", "max_tokens", "context_tokens", "working_dir"):
            if name in changes and not changes[name]:
                changes[name] = None
        return self._replace(**changes)


def config_parameters(*, changes: bool = False) -> Callable[[F], F]:
    """Decorate a method that takes the fields of a `SessionConfig` as keyword arguments.

    They become parameters of its own, with types, defaults and descriptions, after those that it
    has. With `changes` each may be left out, and is None then.
    """

    def decorate(function: F) -> F:
        made: Any = function
        own = list(inspect.signature(function).parameters.values())[:-1]
        first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        last = own[len(first) :]
        fields, annotations = [], dict(made.__annotations__)
        lines = [inspect.getdoc(function) or ""]
        for name, hint in typing.get_type_hints(SessionConfig, include_extras=True).items():
            type_, doc = typing.get_args(hint)
            default = SessionConfig._field_defaults[name]
            if changes:
                type_, default = type_ | None, None
            annotations[name] = type_
            fields.append(
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
            )
            lines.append(f"    {name}: {(changes and doc.change) or doc.create}")
        del annotations["config"]
        made.__signature__ = inspect.Signature([*first, *fields, *last])
        made.__annotations__ = annotations
        made.__doc__ = "\n".join(lines)
        return function

    return decorate


class Session(NamedTuple):
    """A session as it is stored."""

    head: Head
    config: SessionConfig

    @property
    def model(self) -> str:
        """The name of its model, as in `provider:model`."""
        return self.config.model or ""


def session_of(head: Head) -> Session:
    """Return the session that a head is."""
    data = head.data if isinstance(head.data, dict) else {}
    known = {name: value for name, value in data.items() if name in SessionConfig._fields}
    return Session(head, SessionConfig(**known))


def session_data(session: Session) -> SessionData:
    """Return a session as callers see it."""
    head, config = session
    fields = config._asdict()
    fields["model"] = session.model
    fields["tools"] = config.tools or []
    fields["allowed_tools"] = config.allowed_tools or None
    return SessionData(
        session_id=head.id,
        name=head.name,
        position=Place(*head.position),
        created_ms=head.created_ms,
        updated_ms=head.updated_ms,
        busy=is_leased(head),
        **fields,
    )


class Sessions:
    """The sessions in a store."""

    def __init__(self, store: Store, providers: ProviderSource, default_model: str) -> None:
        self.store = store
        self._providers = providers
        self._default_model = default_model

    async def find(self, ctx: Context, name: str) -> Session:
        """Return the session of this name, with what a program that was killed has left of it.

        Raises NotFound.
        """
        principal = ctx.principal.name
        try:
            head = await self.store.get_head(principal, SPACE, name)
        except NotFound:
            raise NotFound(
                f"Session {name[:256]!r} not found", data={"session": name[:256]}
            ) from None
        if head.holder is not None and not is_leased(head):
            head = await recover(self.store, principal, head, lease_owner(ctx.run_id))
        return session_of(head)

    async def provider(self, ctx: Context, model: str) -> Provider:
        """Return the provider of a model; raises what keeps it from being used now."""
        provider, name = self._providers.find(model)
        if provider.runs_tools and not ctx.principal.may(COMMANDS):
            raise Denied(
                f"{model} runs commands of its own, which needs the scope {COMMANDS!r}",
                data={"scope": COMMANDS},
            )
        await provider.check(name)
        return provider

    async def create(self, ctx: Context, name: str, config: SessionConfig) -> SessionData:
        """Create a session; without a model it gets the default one."""
        config = self._checked(config._replace(model=config.model or self._default_model), ctx)
        try:
            head = await self.store.create_head(
                ctx.principal.name, SPACE, name, config.stored(), {"title": name, "kind": "chat"}
            )
        except Failed as error:
            raise _name_taken(error, name) from None
        return session_data(Session(head, config))

    async def page(self, ctx: Context, after: str | None, limit: int) -> SessionPage:
        """List sessions by name."""
        check_limit(limit)
        most = min(limit + 1, PAGE_ITEMS)
        heads = await self.store.list_heads(ctx.principal.name, SPACE, after, most)
        more = len(heads) > limit or len(heads) == PAGE_ITEMS
        shown = [session_data(session_of(head)) for head in heads[:limit]]
        return SessionPage(shown, shown[-1].name if more else None)

    async def names(self, principal: str, after: str | None, limit: int) -> list[str]:
        """List the names of sessions."""
        heads = await self.store.list_heads(principal, SPACE, after, min(limit, PAGE_ITEMS))
        return [head.name for head in heads]

    async def get(self, ctx: Context, name: str) -> SessionData:
        """Return one session."""
        return session_data(await self.find(ctx, name))

    async def configure(self, ctx: Context, name: str, given: dict[str, Any]) -> SessionData:
        """Change the configuration; see `SessionConfig.changed`."""
        found = await self.find(ctx, name)
        config = self._checked(found.config.changed(given), ctx)
        head = await self.store.update_head(ctx.principal.name, SPACE, name, config.stored())
        return session_data(Session(head, config))

    async def rename(self, ctx: Context, name: str, new_name: str) -> SessionData:
        """Rename a session, and its tree if that has the session's name as its title."""
        principal = ctx.principal.name
        await self.find(ctx, name)
        try:
            head = await self.store.rename_head(principal, SPACE, name, new_name)
        except Failed as error:
            raise _name_taken(error, new_name) from None
        tree = await self.store.get_tree(principal, head.position.tree)
        if isinstance(tree.metadata, dict) and tree.metadata.get("title") == name:
            titled = {**tree.metadata, "title": new_name}
            await self.store.update_metadata(principal, tree.id, titled)
        return session_data(session_of(head))

    async def delete(self, ctx: Context, name: str) -> DeletedSession:
        """Delete a session and release its tree."""
        await self.find(ctx, name)
        try:
            head = await self.store.delete_head(ctx.principal.name, SPACE, name)
        except Busy as error:
            raise _busy(error, name) from None
        return DeletedSession(head.id, head.name, head.position.tree)

    async def fork(
        self, ctx: Context, name: str, new_name: str, node: str | None = None
    ) -> SessionData:
        """Create another session in the same tree."""
        await self.find(ctx, name)
        try:
            head = await self.store.fork_head(ctx.principal.name, SPACE, name, new_name, node)
        except Failed as error:
            raise _name_taken(error, new_name) from None
        return session_data(session_of(head))

    async def set_head(self, ctx: Context, name: str, node: str) -> SessionData:
        """Move a session to another node of its tree."""
        await self.find(ctx, name)
        try:
            head = await self.store.move_head(ctx.principal.name, SPACE, name, node)
        except Busy as error:
            raise _busy(error, name) from None
        return session_data(session_of(head))

    def _checked(self, config: SessionConfig, ctx: Context) -> SessionConfig:
        """Return the configuration if it is possible; raises InvalidParams or Failed."""
        self._providers.find(config.model or "")
        for spec in chosen_methods(ctx.plexus, config.tools or ()):
            ctx.plexus.check_scope(spec, ctx.principal)
        for name in ("max_tokens", "context_tokens"):
            value = getattr(config, name)
            if value is not None and value < 1:
                raise InvalidParams.at(name, "must be at least 1")
        if config.temperature is not None and not 0 <= config.temperature <= HOTTEST:
            raise InvalidParams.at("temperature", f"must be from 0 to {HOTTEST:g}")
        return config


def check_limit(limit: int) -> None:
    """Raise InvalidParams if a page cannot have this many entries."""
    if not 1 <= limit <= PAGE_ITEMS:
        raise InvalidParams.at("limit", f"must be from 1 to {PAGE_ITEMS}")


def _name_taken(error: Failed, name: str) -> Failed:
    """Return the error for a name that is taken; any other error stays as it is."""
    if error.code != "name_taken":
        return error
    return Failed(
        f"there is a session {name!r} already; choose another name, or delete that one",
        code="name_taken",
        data={"session": name},
    )


def _busy(error: Busy, name: str) -> Busy:
    """Return the error for a session with a turn in progress; any other stays as it is."""
    return turn_under_way(name) if error.code == "held" else error
