"""The base class of activations, and the decorators `@method`, `@prompt` and `@resource`.

A decorator only sets an attribute on the function; the registry reads it at registration. An
activation knows no transport, no view and no JSON, and can be tested with a bare `async for`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from plexus.errors import RegistrationError
from plexus.principal import Principal
from plexus.registry.entry_points import load_program

if TYPE_CHECKING:  # imported for annotations only: the hub imports this module
    from plexus.runtime.hub import Plexus

__all__ = (
    "Activation",
    "Audience",
    "BackgroundMode",
    "CompletionTarget",
    "Deadline",
    "Hints",
    "MethodMark",
    "MethodOptions",
    "OnDisconnect",
    "PromptInfo",
    "Record",
    "ResourceInfo",
    "ResourceMark",
    "Restart",
    "Role",
    "completer",
    "method",
    "prompt",
    "resource",
)

F = TypeVar("F", bound=Callable[..., Any])
#: Timeout of a run: seconds, the server's default, or None for no timeout.
Deadline: TypeAlias = float | Literal["default"] | None
#: Whether a caller may, must or cannot continue before the run has ended.
BackgroundMode: TypeAlias = Literal["optional", "required", "never"]
#: The method and the argument that a completer suggests values for.
CompletionTarget: TypeAlias = tuple[str, str]
#: Who a method is meant for: models, which see it by default, or programs only.
Audience: TypeAlias = Literal["model", "client"]
#: How a run continues after its process was lost: not at all, from its start, or from its last
#: checkpoint.
Restart: TypeAlias = Literal["never", "from_start", "from_checkpoint"]
#: What the run store records of a run: everything, all but its items, or nothing.
Record: TypeAlias = Literal["all", "metadata", "off"]
#: Whether a run continues or is cancelled when its caller disconnects.
OnDisconnect: TypeAlias = Literal["keep", "cancel"]
#: The kind of a marked function.
Role: TypeAlias = Literal["method", "prompt", "resource"]


class ResourceInfo(NamedTuple):
    """Entry of a resource in a list; `size` is in bytes."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None


class PromptInfo(NamedTuple):
    """Entry of a prompt in a list."""

    name: str
    title: str | None = None
    description: str | None = None


class Activation:
    """A plugin: a namespace of methods, written as functions or as a class.

    Functions, for tools without state:

        count = Activation("count")

        @count.method
        async def up(to: int) -> AsyncIterator[str]: ...

    A subclass, for state, children and hooks; its docstring is the description. A hub treats both
    alike.
    """

    #: First part of every method name: lower case letters, digits and underscores.
    namespace: str
    #: Version of the activation, such as "1.0.0". Default: that of its distribution, or "0".
    version: str = ""
    #: Scope that a caller needs for every method here that declares none. By default, read-only
    #: methods, prompts and resources need "read", which every principal has, and all other methods
    #: need the first part of the namespace.
    scope: str | None = None
    #: Nested activations: `solar.earth.info` is `info` of a child `earth`.
    children: Sequence[Activation | type[Activation]] = ()
    #: The hub that this activation is registered with; set at registration.
    plexus: Plexus
    #: Default audience of its methods.
    audience: Audience = "model"
    #: What callers read about an activation that is written as functions.
    description: str = ""
    #: The functions that were added by decorators of the activation.
    functions: Sequence[Callable[..., Any]] = ()
    #: The module that created an activation that is written as functions.
    module: str = ""

    def __init__(
        self,
        namespace: str = "",
        *,
        version: str = "",
        description: str = "",
        scope: str | None = None,
        children: Sequence[Activation | type[Activation]] = (),
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        """Create an activation whose methods are functions; a subclass needs no arguments.

        The description is by default the docstring of the module. `lifespan` returns an async
        context manager that is entered before the first call and left after the last.
        """
        if type(self) is not Activation:
            return
        caller = sys._getframe(1).f_globals  # noqa: SLF001 - there is no public way to the module
        self.namespace = namespace
        self.version = version
        self.description = description or caller.get("__doc__") or ""
        self.scope = scope
        self.children = children
        self.functions = []
        self.module = caller.get("__name__", "")
        if lifespan is not None:
            self.lifespan = lifespan  # type: ignore[method-assign]  # a hook of this object

    @overload
    def method(self, function: F, /) -> F: ...
    @overload
    def method(self, /, **options: Unpack[MethodOptions]) -> Callable[[F], F]: ...
    def method(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Add a function as a method. The options are those of `plexus.method`."""
        mark: Callable[[F], F] = method(**options)
        return self._marking(mark, function)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(
        self,
        /,
        *,
        title: str | None = None,
        template: str | None = None,
        scope: str | None = None,
        alias: str | None = None,
    ) -> Callable[[F], F]: ...
    def prompt(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Add a function as a prompt. The options are those of `plexus.prompt`."""
        mark: Callable[[F], F] = prompt(**options)
        return self._marking(mark, function)

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        mime_type: str | None = "text/plain",
        scope: str | None = None,
    ) -> Callable[[F], F]:
        """Add a function that reads a resource. The options are those of `plexus.resource`."""
        return self._adding(resource(uri, name=name, title=title, mime_type=mime_type, scope=scope))

    def completer(self, method: str, argument: str) -> Callable[[F], F]:
        """Add a function that suggests values for an argument of a method."""
        return self._adding(completer(method, argument))

    def _marking(self, mark: Callable[[F], F], function: F | None) -> F | Callable[[F], F]:
        return self._adding(mark) if function is None else self._adding(mark)(function)

    def _adding(self, mark: Callable[[F], F]) -> Callable[[F], F]:
        """Return a decorator that marks a function and adds it to the activation."""
        functions = self.functions
        if not isinstance(functions, list):
            raise RegistrationError(
                f"{type(self).__name__}: a class marks its methods with @method from plexus; "
                'decorators of an object belong to Activation("name")'
            )

        def add(function: F) -> F:
            functions.append(mark(function))
            return function

        return add

    def serve(self) -> None:
        """Run the command line of the installed program with this activation.

        `python tools.py --stdio --mcp`, `python tools.py call count.up 3` and all the rest.
        """
        load_program("serve")(self)

    async def check_health(self) -> str:
        """Return the health in a few words. Raises any exception if unhealthy."""
        return "ok"

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - for subclasses
        after: str | None,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> list[ResourceInfo]:
        """Return at most `limit` dynamic resources with a URI after `after`, sorted by URI.

        Resources of a `@resource` without variables always exist and are not listed here.
        """
        return []

    async def prompts(
        self,
        principal: Principal,  # noqa: ARG002 - for subclasses
        after: str | None,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> list[PromptInfo]:
        """Return at most `limit` dynamic prompts with a name after `after`, sorted by name.

        Their names match the template of the `@prompt` that renders them. A `@prompt` without a
        template always exists and is not listed here.
        """
        return []

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        """Return what is entered before the first call and left after the last; None for nothing.

        An `@asynccontextmanager` method may be written in its place.
        """
        return None

    async def close(self) -> None:
        """Release all resources. Called once, at shutdown or when the plugin is replaced."""


class Hints(NamedTuple):
    """Declared behaviour of a method, for callers; None where nothing is declared."""

    #: It changes nothing.
    read_only: bool | None = None
    #: It may delete or overwrite data, not only add.
    destructive: bool | None = None
    #: Repeating a call with the same arguments has no further effect.
    idempotent: bool | None = None
    #: It reaches things that cannot be listed beforehand, such as the web.
    open_world: bool | None = None


class ResourceMark(NamedTuple):
    """The arguments of `@resource`."""

    uri: str
    name: str | None
    title: str | None
    mime_type: str | None


class MethodMark(NamedTuple):
    """The attribute that `@method`, `@prompt` or `@resource` sets on a function."""

    title: str | None = None
    deadline_s: Deadline = "default"
    follows: bool = False
    name: str | None = None
    hints: Hints = Hints()
    background: BackgroundMode = "optional"
    listed: bool = True
    schema: dict[str, Any] | None = None
    role: Role = "method"
    resource: ResourceMark | None = None
    #: Name template of a `@prompt` that renders several prompts.
    template: str | None = None
    #: Required scope, if it differs from that of the activation.
    scope: str | None = None
    #: Whether it controls or inspects the server itself.
    control: bool = False
    #: Maximum characters of an MCP result, if it differs from the operator's default.
    max_result_chars: int | None = None
    #: Who the method is meant for, if that is not as the activation has it.
    audience: Audience | None = None
    #: A further name, without a namespace, that is unique in the hub.
    alias: str | None = None
    #: Whether a host should ask a person before every call.
    needs_person: bool = False
    #: How a run continues after its process was lost.
    restart: Restart = "never"
    #: What the run store records; None for the operator's setting.
    record: Record | None = None
    #: What happens when the caller disconnects; None for the operator's setting.
    on_disconnect: OnDisconnect | None = None


MARK = "__plexus_method__"
COMPLETES = "__plexus_completer__"


class MethodOptions(TypedDict, total=False):
    """The options of `@method`; the defaults are those of `MethodMark` and `Hints`."""

    #: Short display name.
    title: str | None
    #: Name of the method, if it differs from that of the function.
    name: str | None
    #: Maximum duration of a run in seconds, instead of the server's; None for no limit.
    deadline_s: Deadline
    #: The method returns an existing run instead of starting one, as `plexus.attach` does.
    follows: bool
    #: Declared behaviour; see `Hints`.
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None
    #: Whether a caller may, must or cannot continue before the run has ended.
    background: BackgroundMode
    #: False for a method that can be called but is not offered to models.
    listed: bool
    #: JSON Schema to show for the parameters instead of the one from the type hints, which still
    #: validate.
    schema: dict[str, Any] | None
    #: Required scope; see `Activation.scope`.
    scope: str | None
    #: A short method that controls or inspects the server itself, such as `plexus.cancel`. Control
    #: methods have a separate pool, so that they can be called while all other pools are full, and
    #: their finished runs evict no other runs.
    control: bool
    #: Maximum characters of an MCP result of this method, instead of the server's setting.
    max_result_chars: int | None
    #: "client" for a method that programs use: MCP lists it only if all tools are asked for.
    audience: Audience
    #: A further, flat name for the method, as in "create_task". It must be unique in the hub.
    alias: str | None
    #: True for a method that only a person should decide to call, such as answering an approval:
    #: hosts that can do so ask before every call.
    needs_person: bool
    #: How a run continues after its process was lost: "never" (default), "from_start", or
    #: "from_checkpoint" (see `Context.checkpoint`). Only for work that may be done twice.
    restart: Restart
    #: What the run store records: "all", "metadata" (no items) or "off". Default: the operator's
    #: setting.
    record: Record | None
    #: "keep" lets a run continue when the connection of its caller is lost, "cancel" cancels it.
    #: Without it, the connection decides: the runs of a process on stdio with `--background`
    #: continue, all others are cancelled. Standing watches and control calls are always cancelled.
    on_disconnect: OnDisconnect | None


@overload
def method(function: F, /) -> F: ...
@overload
def method(**options: Unpack[MethodOptions]) -> Callable[[F], F]: ...
def method(function: F | None = None, /, **options: Unpack[MethodOptions]) -> F | Callable[[F], F]:
    """Mark a function as a callable method.

    The function is an async generator, returns an async iterator of events, or is a coroutine that
    returns a value. `MethodOptions` documents the options. Raises TypeError for an unknown option.
    """
    unknown = options.keys() - MethodOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"method() has no option {min(unknown)!r}")
    given: dict[str, Any] = {**options}
    hints = Hints(**{name: given.pop(name) for name in Hints._fields if name in given})
    mark = MethodMark(hints=hints, **given)
    return _marker(mark) if function is None else _marker(mark)(function)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(
    *,
    title: str | None = None,
    template: str | None = None,
    scope: str | None = None,
    alias: str | None = None,
) -> Callable[[F], F]: ...
def prompt(
    function: F | None = None,
    /,
    *,
    title: str | None = None,
    template: str | None = None,
    scope: str | None = None,
    alias: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a method that renders a prompt: text or messages for a model.

    Its parameters are text, because a person fills them in. It returns `str` or `list[Message]`, or
    yields `Message`.

    With a `template` such as "notes.note.{name}", the method renders every prompt whose name starts
    with the fixed part; the rest of the name is passed as that parameter, unchanged. The hook
    `prompts` lists the existing names; the method itself is not listed.

    `scope` is required to see and to render the prompt; by default every principal can. `alias` is
    a second name without the namespace, which may have dashes and is not listed.
    """
    mark = MethodMark(title, role="prompt", template=template, scope=scope, alias=alias)
    return _marker(mark) if function is None else _marker(mark)(function)


def resource(
    uri: str,
    *,
    #: Name of the method, if it differs from that of the function.
    name: str | None = None,
    title: str | None = None,
    mime_type: str | None = "text/plain",
    scope: str | None = None,
    control: bool = False,
) -> Callable[[F], F]:
    """Mark a method that reads a resource by its URI.

    Variables such as `{id}` in the URI, and those of one `{?a,b}` at its end, are the method's
    parameters. It returns `str`, `Resource` or `list[Resource]`, or yields `Resource`. `scope` is
    required to see and to read the resource; by default every principal can. `control` has the same
    meaning as for `method`.
    """
    uri_mark = ResourceMark(uri, name, title, mime_type)
    mark = MethodMark(title, hints=Hints(read_only=True), role="resource", resource=uri_mark)
    return _marker(mark._replace(scope=scope, control=control))


def completer(method: str, argument: str) -> Callable[[F], F]:
    """Mark a method that suggests values for an argument of a method of the same activation.

    Its signature is `async def f(self, value: str, given: dict[str, str]) -> list[str]`: the text
    typed so far and the arguments that are already set. An additional parameter of type `Principal`
    receives the caller.
    """
    completion: CompletionTarget = (method, argument)

    def add_completion(target: F) -> F:
        setattr(target, COMPLETES, (*getattr(target, COMPLETES, ()), completion))
        return target

    return add_completion


def _marker(mark: MethodMark) -> Callable[[F], F]:
    def set_mark(target: F) -> F:
        setattr(target, MARK, mark)
        return target

    return set_mark
