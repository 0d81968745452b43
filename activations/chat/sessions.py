"""Sessions: their configuration, and creating, finding, changing and deleting them.

A session is a named head in a tree of arbor; its configuration is the data of that head. Methods
derive their parameters from the fields of `SessionConfig`.
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
from activations.chat.lease import SPACE, is_leased, lease_owner, recover, turn_in_progress
from activations.chat.providers.provider import Provider, ProviderSource
from activations.chat.tools import Approval, match_methods
from plexus import Context, Denied, Failed, InvalidParams, NotFound
from plexus.errors import Busy

__all__ = (
    "DEFAULT_MODEL",
    "Session",
    "SessionConfig",
    "Sessions",
    "config_parameters",
    "session_data",
    "session_from_head",
)

F = TypeVar("F", bound=Callable[..., Any])

#: The default model if no other is configured.
DEFAULT_MODEL: Final = "echo:echo"
#: The highest temperature that providers support.
MAX_TEMPERATURE: Final = 2.0
#: The scope required to use a provider that runs its own tools: it can run commands.
COMMAND_SCOPE: Final = "bash"


class _Doc(NamedTuple):
    """The parameter description of a field in `chat.create`, and in `chat.configure`."""

    create: str
    change: str = ""


class SessionConfig(NamedTuple):
    """The configuration of a session: the parameters of `chat.create` and `chat.configure`."""

    model: Annotated[
        str | None,
        _Doc(
            '"provider:model", such as "anthropic:claude-sonnet-4-5"; see `chat.models`.',
        ),
    ] = None
    system_prompt: Annotated[
        str | None,
        _Doc(
            "Instructions for the model.",
            "Instructions for the model; an empty string removes them.",
        ),
    ] = None
    tools: Annotated[
        list[str] | None,
        _Doc(
            'Methods that the model can call, such as "bash.execute" or "arbor.*".',
            "Methods that the model can call; an empty list removes all.",
        ),
    ] = None
    approve: Annotated[
        Approval,
        _Doc('Tool calls that need your approval; "changes" are those that may change data.'),
    ] = "changes"
    overflow: Annotated[
        Overflow,
        _Doc("Past the context window: refuse the turn, or drop or summarise old turns."),
    ] = "refuse"
    thinking: Annotated[bool, _Doc("Let the model reason before it answers, if it can.")] = False
    max_tokens: Annotated[
        int | None,
        _Doc(
            "Maximum tokens of an answer.",
            "Maximum tokens of an answer; 0 removes the limit.",
        ),
    ] = None
    temperature: Annotated[float | None, _Doc("Sampling temperature, 0 to 2.")] = None
    context_tokens: Annotated[
        int | None,
        _Doc(
            "Context window in tokens, if it is unknown or should be smaller.",
            "Context window in tokens; 0 restores the known size.",
        ),
    ] = None
    working_dir: Annotated[
        str | None,
        _Doc(
            "Claude Code only. Default: the server's.",
            "Claude Code only; an empty string restores the server's.",
        ),
    ] = None
    allowed_tools: Annotated[
        list[str] | None,
        _Doc('Claude Code only: tools that need no approval, such as "Read".'),
    ] = None

    def to_stored(self) -> dict[str, Any]:
        """Return the data to store: the fields that are set."""
        return {name: value for name, value in self._asdict().items() if value not in (None, [])}

    def updated(self, values: dict[str, Any]) -> SessionConfig:
        """Return a copy with changes: None keeps a value, an empty value removes it."""
        changes = {name: value for name, value in values.items() if value is not None}
        for name in ("system_prompt", "max_tokens", "context_tokens", "working_dir"):
            if name in changes and not changes[name]:
                changes[name] = None
        return self._replace(**changes)


def config_parameters(*, changes: bool = False) -> Callable[[F], F]:
    """Decorate a method that takes the fields of a `SessionConfig` as keyword arguments.

    The fields become parameters of the method, with types, defaults and descriptions, after its
    positional parameters. With `changes` all of them are optional and default to None.
    """

    def decorate(function: F) -> F:
        target: Any = function
        own = list(inspect.signature(function).parameters.values())[:-1]
        first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        last = own[len(first) :]
        fields, annotations = [], dict(target.__annotations__)
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
        target.__signature__ = inspect.Signature([*first, *fields, *last])
        target.__annotations__ = annotations
        target.__doc__ = "\n".join(lines)
        return function

    return decorate


class Session(NamedTuple):
    """A stored session."""

    head: Head
    config: SessionConfig

    @property
    def model(self) -> str:
        """The name of the model, as `provider:model`."""
        return self.config.model or ""


def session_from_head(head: Head) -> Session:
    """Return the session that is stored in a head."""
    data = head.data if isinstance(head.data, dict) else {}
    known = {name: value for name, value in data.items() if name in SessionConfig._fields}
    return Session(head, SessionConfig(**known))


def session_data(session: Session) -> SessionData:
    """Return a session as a result for callers."""
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
        """Return a session, after recovery of the draft of a dead owner. Raises NotFound."""
        principal = ctx.principal.name
        try:
            head = await self.store.get_head(principal, SPACE, name)
        except NotFound:
            raise NotFound(
                f"Session {name[:256]!r} not found", data={"session": name[:256]}
            ) from None
        if head.holder is not None and not is_leased(head):
            head = await recover(self.store, principal, head, lease_owner(ctx.run_id))
        return session_from_head(head)

    async def provider(self, ctx: Context, model: str) -> Provider:
        """Return the provider of a model. Raises if it cannot be used: Denied, Failed."""
        provider, name = self._providers.find(model)
        if provider.runs_tools and not ctx.principal.may(COMMAND_SCOPE):
            raise Denied(
                f"{model} can run commands, which requires the scope {COMMAND_SCOPE!r}",
                data={"scope": COMMAND_SCOPE},
            )
        await provider.check(name)
        return provider

    async def create(self, ctx: Context, name: str, config: SessionConfig) -> SessionData:
        """Create a session; the model defaults to the default model."""
        config = self._validate(config._replace(model=config.model or self._default_model), ctx)
        try:
            head = await self.store.create_head(
                ctx.principal.name, SPACE, name, config.to_stored(), {"title": name, "kind": "chat"}
            )
        except Failed as error:
            raise _name_taken(error, name) from None
        return session_data(Session(head, config))

    async def page(self, ctx: Context, after: str | None, limit: int) -> SessionPage:
        """Return a page of sessions, sorted by name."""
        count = min(limit + 1, PAGE_ITEMS)
        heads = await self.store.list_heads(ctx.principal.name, SPACE, after, count)
        has_more = len(heads) > limit or len(heads) == PAGE_ITEMS
        shown = [session_data(session_from_head(head)) for head in heads[:limit]]
        return SessionPage(shown, shown[-1].name if has_more else None)

    async def names(self, principal: str, after: str | None, limit: int) -> list[str]:
        """Return the names of sessions, sorted."""
        heads = await self.store.list_heads(principal, SPACE, after, min(limit, PAGE_ITEMS))
        return [head.name for head in heads]

    async def get(self, ctx: Context, name: str) -> SessionData:
        """Return a session. Raises NotFound."""
        return session_data(await self.find(ctx, name))

    async def configure(self, ctx: Context, name: str, values: dict[str, Any]) -> SessionData:
        """Change the configuration of a session; see `SessionConfig.updated`."""
        found = await self.find(ctx, name)
        config = self._validate(found.config.updated(values), ctx)
        head = await self.store.update_head(ctx.principal.name, SPACE, name, config.to_stored())
        return session_data(Session(head, config))

    async def rename(self, ctx: Context, name: str, new_name: str) -> SessionData:
        """Rename a session, and its tree if the tree's title is the name of the session."""
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
        return session_data(session_from_head(head))

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
        return session_data(session_from_head(head))

    async def set_head(self, ctx: Context, name: str, node: str) -> SessionData:
        """Move a session to another node of its tree."""
        await self.find(ctx, name)
        try:
            head = await self.store.move_head(ctx.principal.name, SPACE, name, node)
        except Busy as error:
            raise _busy(error, name) from None
        return session_data(session_from_head(head))

    def _validate(self, config: SessionConfig, ctx: Context) -> SessionConfig:
        """Return the configuration if it is valid. Raises InvalidParams, Denied or Failed."""
        self._providers.find(config.model or "")
        for spec in match_methods(ctx.plexus, config.tools or ()):
            ctx.plexus.check_scope(spec, ctx.principal)
        for name in ("max_tokens", "context_tokens"):
            value = getattr(config, name)
            if value is not None and value < 1:
                raise InvalidParams.at(name, "must be at least 1")
        if config.temperature is not None and not 0 <= config.temperature <= MAX_TEMPERATURE:
            raise InvalidParams.at("temperature", f"must be from 0 to {MAX_TEMPERATURE:g}")
        return config


def _name_taken(error: Failed, name: str) -> Failed:
    """Return the error for an existing session name; return any other error unchanged."""
    if error.code != "name_taken":
        return error
    return Failed(
        f"session {name!r} already exists; choose another name, or delete it with chat.delete",
        code="name_taken",
        data={"session": name},
    )


def _busy(error: Busy, name: str) -> Busy:
    """Return the error for a turn in progress; return any other error unchanged."""
    return turn_in_progress(name) if error.code == "held" else error
