"""What an author writes: a class with methods marked `@method`, `@prompt` or `@resource`.

Marking only leaves a note on the function; reading it is the registry's work. An activation
knows no transport, no view and no JSON, and can be tested with a bare `async for`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from plexus.principal import Principal

if TYPE_CHECKING:  # the hub reads activations; here it is only named
    from plexus.runtime.hub import Plexus

__all__ = (
    "Activation",
    "BackgroundMode",
    "CompletionTarget",
    "Deadline",
    "Hints",
    "MethodMark",
    "MethodOptions",
    "PromptInfo",
    "ResourceInfo",
    "ResourceMark",
    "Role",
    "completer",
    "method",
    "prompt",
    "resource",
)

F = TypeVar("F", bound=Callable[..., Any])
#: Seconds, the server's limit, or no limit at all.
Deadline: TypeAlias = float | Literal["default"] | None
#: Whether a caller may, must or cannot go on without waiting for the end of a run.
BackgroundMode: TypeAlias = Literal["optional", "required", "never"]
#: A method and an argument of it that something suggests values for.
CompletionTarget: TypeAlias = tuple[str, str]
#: What a method is for.
Role: TypeAlias = Literal["method", "prompt", "resource"]


class ResourceInfo(NamedTuple):
    """A resource that is there to be read, as a list of them shows it; `size` is in bytes."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None


class PromptInfo(NamedTuple):
    """A prompt that is there to be asked for, as a list of them shows it."""

    name: str
    title: str | None = None
    description: str | None = None


class Activation:
    """A plugin: a namespace full of methods. The docstring is its description."""

    #: The first part of every method's name: lower case letters, digits and underscores.
    namespace: ClassVar[str]
    #: The activation's own version, as in "1.0.0".
    version: ClassVar[str]
    #: What a caller must have to call any method here that does not say so itself. If nothing is
    #: said, that is "read", which everybody has, for what is read-only, for prompts and for
    #: resources, and the first part of the namespace for everything else.
    scope: ClassVar[str | None] = None
    #: Activations that live inside this one: `solar.earth.info` is `info` of a child `earth`.
    children: Sequence[Activation | type[Activation]] = ()
    #: The hub that this activation is registered with; set when it is.
    plexus: Plexus

    async def check_health(self) -> str:
        """Say in a few words how this activation is; raise if it is not well."""
        return "ok"

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - for those who replace it
        after: str | None,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> list[ResourceInfo]:
        """The resources that come and go, sorted by address: at most so many after this one.

        Those that a `@resource` without variables reads are always there and not listed here.
        """
        return []

    async def prompts(
        self,
        principal: Principal,  # noqa: ARG002 - for those who replace it
        after: str | None,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> list[PromptInfo]:
        """The prompts that come and go, sorted by name: at most so many after this one.

        Their names fit the template of a `@prompt`, which makes them. A `@prompt` without one is
        always there and not listed here.
        """
        return []

    async def close(self) -> None:
        """Give back what is held. Called once, when the server ends or the plugin is replaced."""


class Hints(NamedTuple):
    """What a caller may expect of a method before it is called; None where nothing is said."""

    #: It changes nothing.
    read_only: bool | None = None
    #: It may delete or overwrite, and not only add.
    destructive: bool | None = None
    #: Calling it again with the same arguments changes nothing more.
    idempotent: bool | None = None
    #: It reaches things that nobody can list beforehand, as the web does.
    open_world: bool | None = None


class ResourceMark(NamedTuple):
    """What `@resource` says beside the method's own name and docstring."""

    uri: str
    name: str | None
    title: str | None
    mime_type: str | None


class MethodMark(NamedTuple):
    """The note that `@method`, `@prompt` or `@resource` leaves on a function."""

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
    #: The names of all the prompts that a method makes, if it makes more than one.
    template: str | None = None
    #: What a caller must have, if that is not as the activation has it.
    scope: str | None = None
    #: Whether it steers or inspects the server itself.
    control: bool = False
    #: How many characters a result may have where the operator's default is not enough.
    max_result_chars: int | None = None


MARK = "__plexus_method__"
COMPLETES = "__plexus_completer__"


class MethodOptions(TypedDict, total=False):
    """The options of `@method`; their defaults are those of `MethodMark` and `Hints`."""

    #: A short name for people.
    title: str | None
    #: Another name than the function's.
    name: str | None
    #: Replaces the server's limit on how long a run may take; None for no limit.
    deadline_s: Deadline
    #: The method leads to a run which exists already, as `plexus.attach` does.
    follows: bool
    #: What a careful caller may expect; see `Hints`.
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None
    #: Whether a caller may, must or cannot leave the run to itself.
    background: BackgroundMode
    #: False for a method that can be called but is not offered to models.
    listed: bool
    #: Shown for the parameters in place of the one from the type hints, which still validate.
    schema: dict[str, Any] | None
    #: What a caller must have to call it; see `Activation.scope`.
    scope: str | None
    #: A short method that steers or inspects the server itself, as `plexus.cancel` does. Control
    #: methods have a pool of their own, so that they can be called when everything else is busy,
    #: and their ended runs evict no others.
    control: bool
    #: Lets an MCP result of this method be longer, or shorter, than the server's setting.
    max_result_chars: int | None


@overload
def method(function: F, /) -> F: ...
@overload
def method(**options: Unpack[MethodOptions]) -> Callable[[F], F]: ...
def method(function: F | None = None, /, **options: Unpack[MethodOptions]) -> F | Callable[[F], F]:
    """Mark a function as callable from outside: an async generator, a function that returns an
    async iterator of events, or a coroutine that returns a value.

    `MethodOptions` says what the options mean. Raises TypeError for an unknown one.
    """
    unknown = options.keys() - MethodOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"method() has no option {min(unknown)!r}")
    given: dict[str, Any] = {**options}
    hints = Hints(**{name: given.pop(name) for name in Hints._fields if name in given})
    note = MethodMark(hints=hints, **given)
    return _marker(note) if function is None else _marker(note)(function)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(
    *, title: str | None = None, template: str | None = None, scope: str | None = None
) -> Callable[[F], F]: ...
def prompt(
    function: F | None = None,
    /,
    *,
    title: str | None = None,
    template: str | None = None,
    scope: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a method that makes a prompt: a text, or messages, for a model.

    Its parameters are text: a person fills them in. It returns `str` or `list[Message]`, or
    yields `Message`.

    With a `template` like "notes.note.{name}" it makes every prompt whose name begins so; the
    rest of the name, as it is, is that parameter. Which there are, `prompts` says; the method
    itself is not listed.

    `scope` is what a caller must have to get it, and to see it; without one everybody has it.
    """
    note = MethodMark(title, role="prompt", template=template, scope=scope)
    return _marker(note) if function is None else _marker(note)(function)


def resource(
    uri: str,
    *,
    name: str | None = None,
    title: str | None = None,
    mime_type: str | None = "text/plain",
    scope: str | None = None,
    control: bool = False,
) -> Callable[[F], F]:
    """Mark a method that reads what is at an address.

    Parts like `{id}` of the address, and those of one `{?a,b}` at its end, are the method's
    parameters. It returns `str`, `Resource` or `list[Resource]`, or yields `Resource`.
    `scope` is what a caller must have to read it, and to see it; without one everybody has it.
    `control` is as for `method`.
    """
    there = ResourceMark(uri, name, title, mime_type)
    note = MethodMark(title, hints=Hints(read_only=True), role="resource", resource=there)
    return _marker(note._replace(scope=scope, control=control))


def completer(method: str, argument: str) -> Callable[[F], F]:
    """Mark what suggests values for an argument of a method of the same activation.

    It is `async def f(self, value: str, given: dict[str, str]) -> list[str]`: what was typed so
    far, and the arguments that are there already. One more parameter of type `Principal` is given
    whoever asks.
    """
    note: CompletionTarget = (method, argument)

    def mark(target: F) -> F:
        setattr(target, COMPLETES, (*getattr(target, COMPLETES, ()), note))
        return target

    return mark


def _marker(note: MethodMark) -> Callable[[F], F]:
    def mark(target: F) -> F:
        setattr(target, MARK, note)
        return target

    return mark
