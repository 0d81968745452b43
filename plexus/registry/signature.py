"""Read an author's function into a `MethodSpec`: type hints and docstring, once.

All errors in a method's declaration are found here, at registration, and are reported with the
names of class, method and argument. Expensive work, above all importing pydantic, is deferred to
the first call of the method or the first use of its schema: see `plexus.registry.schema`. Types and
defaults are checked by `plexus.registry.activation_tree`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import Any, Literal

from plexus.activation import (
    COMPLETES,
    MARK,
    Activation,
    BackgroundMode,
    CompletionTarget,
    Deadline,
    Hints,
    MethodMark,
    ResourceMark,
    Role,
)
from plexus.errors import RegistrationError
from plexus.events import MEDIA, Event
from plexus.principal import READ, is_scope
from plexus.registry.parameters import Parameter, read_hints, read_parameters
from plexus.registry.roles import Completer, check_role, read_completers
from plexus.registry.uri_templates import NameTemplate, Template

__all__ = ("MethodSpec", "Parameter", "Purpose", "is_name", "read_methods")

#: Purpose of a run: work; a watch, which only reads and continues until it is stopped; or control,
#: which controls or inspects the server itself. Each has a separate pool.
Purpose = Literal["work", "watch", "control"]

T = typing.TypeVar("T")
_STREAMS = (AsyncIterator, AsyncGenerator, AsyncIterable)
_UNIONS = (types.UnionType, typing.Union)
_ENDS = ("complete", "error", "cancelled")
#: Attributes of every activation, hooks and settings, which a method with the same name would
#: replace.
RESERVED = frozenset(
    name for name in {*dir(Activation), *Activation.__annotations__} if not name.startswith("_")
)
#: Minimum of `max_result_chars`, as for the setting.
MIN_RESULT_CHARS = 1000
_ARGS_HEADINGS = ("args:", "arguments:", "parameters:", "params:")


def is_name(text: str) -> bool:
    """Return whether this is valid in a method name: lower case letters, digits, underscores."""
    return text.isidentifier() and text.isascii() and text == text.lower() and text[0] != "_"


@dataclasses.dataclass(eq=False, repr=False)
class MethodSpec:
    """The specification of a method; created at registration, never changed."""

    name: str
    owner: Activation
    function: Callable[..., Any]
    kind: Literal["stream", "plain", "follow"]
    title: str | None
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    events: tuple[type[Event], ...]
    returns: Any
    deadline_s: Deadline
    context_name: str | None
    principal_name: str | None
    role: Role
    hints: Hints
    background: BackgroundMode
    #: Scope that a caller needs to call it, and to see it in a list.
    scope: str
    #: Whether it is offered to models; it can always be called.
    listed: bool
    #: Maximum characters of an MCP result; None for the server's setting.
    max_result_chars: int | None
    #: JSON Schema to show for the parameters instead of the one that is read.
    given_schema: dict[str, Any] | None
    resource: ResourceMark | None
    template: Template | None
    #: Name template of the prompts that it renders, if it renders several.
    name_template: NameTemplate | None
    #: Whether it controls or inspects the server itself.
    control: bool = False
    #: Its entry in `plexus.schema` from a manifest; otherwise it is created when needed.
    schema_entry: dict[str, Any] | None = None
    #: Completers by argument.
    completers: dict[str, Completer] = dataclasses.field(default_factory=dict)
    #: Validates the arguments of a call and stops at the first error of each list; built by
    #: `plexus.registry.schema` at first use.
    validate: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    #: Like `validate`, but finds every error; built when arguments are invalid for the first time.
    validate_all: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in their order."""
        return tuple(parameter.name for parameter in self.parameters)

    @functools.cached_property
    def returns_media(self) -> bool:
        """Whether it returns an image, audio or a file, which views show as such."""
        return isinstance(self.returns, type) and issubclass(self.returns, MEDIA)

    @functools.cached_property
    def is_standing(self) -> bool:
        """Whether a run of it is a standing watch: read-only, until it is stopped."""
        return self.deadline_s is None and self.hints.read_only is True

    @functools.cached_property
    def purpose(self) -> Purpose:
        """The purpose of its runs, which selects the pool that they count in."""
        if self.is_standing:
            return "watch"
        return "control" if self.control else "work"


def read_methods(owner: Activation, path: str) -> list[MethodSpec]:
    """Return the methods of an activation in definition order. Raises RegistrationError."""
    specs: list[MethodSpec] = []
    completers: dict[str, tuple[CompletionTarget, ...]] = {}
    seen: set[str] = set()
    for cls in reversed(type(owner).__mro__):
        for name in vars(cls):
            if name in seen:
                continue
            seen.add(name)
            # Looked up on the class, because a property of the instance could run any code.
            static = inspect.getattr_static(type(owner), name)
            if hasattr(static, COMPLETES):
                completers[name] = getattr(static, COMPLETES)
            if not hasattr(static, MARK):
                continue
            spec = _read_method(owner, name, path)
            if any(spec.name == other.name for other in specs):
                raise RegistrationError(
                    f"{type(owner).__name__}.{name}: another method is already named {spec.name}"
                )
            specs.append(spec)
    read_completers(owner, completers, specs)
    return specs


def _read_method(owner: Activation, name: str, path: str) -> MethodSpec:
    bound = getattr(owner, name)
    function = inspect.unwrap(bound.__func__ if inspect.ismethod(bound) else bound)
    mark: MethodMark = getattr(bound, MARK)
    where = f"{type(owner).__name__}.{name}"
    method_name = mark.name or name
    if not is_name(method_name):
        raise RegistrationError(
            f"{where}: a method name must be lower case letters, digits and underscores"
        )
    if name in RESERVED:
        raise RegistrationError(
            f"{where}: {name!r} is an attribute of every activation, which this method would "
            f'replace; rename the function and mark it @method(name="{name}")'
        )
    given = mark.schema
    if given is not None and (not isinstance(given, dict) or given.get("type") != "object"):
        raise RegistrationError(f'{where}: the given schema must have "type": "object"')
    doc = inspect.getdoc(function)
    if not doc:
        raise RegistrationError(
            f"{where}: needs a docstring, which callers read as its description; write it in "
            "triple quotes as the first line of the body"
        )
    description, argument_docs = _read_docstring(doc)
    hints = read_hints(function, where)
    if "return" not in hints:
        raise RegistrationError(
            f"{where}: needs a return type, such as `-> str`, or `-> None` if it returns nothing"
        )
    if mark.follows:
        kind: Literal["stream", "plain", "follow"] = "follow"
        events: tuple[type[Event], ...] = ()
        returns: Any = None
    elif inspect.isasyncgenfunction(function) or (
        _is_stream(hints["return"]) and not inspect.isgeneratorfunction(function)
    ):
        kind, returns = "stream", None
        events = _event_types(hints["return"], where)
    elif asyncio.iscoroutinefunction(function):
        kind, returns, events = "plain", hints["return"], ()
        if mark.role == "method" and returns in (bytes, bytearray, memoryview):
            raise RegistrationError(
                f"{where}: returns {returns.__name__}, which JSON cannot represent; return "
                "plexus.Image, plexus.Audio or plexus.Resource.of_bytes(uri, data, mime_type)"
            )
    else:
        raise RegistrationError(
            f"{where}: must be `async def`, with `yield` for a stream or `return` for a value, or "
            "return an AsyncIterator; run blocking code with `await asyncio.to_thread(...)`"
        )
    if mark.control and mark.deadline_s is None:
        raise RegistrationError(
            f"{where}: a control method must be short; remove control=True or deadline_s=None"
        )
    parameters, context_name, principal_name = read_parameters(
        function, hints, argument_docs, where
    )
    unknown = sorted(
        set(argument_docs) - {p.name for p in parameters} - {context_name, principal_name}
    )
    if unknown:
        raise RegistrationError(
            f"{where}: its docstring describes {unknown[0]!r}, which is not an argument"
        )
    spec = MethodSpec(
        name=f"{path}.{method_name}",
        owner=owner,
        function=bound,
        kind=kind,
        title=mark.title,
        summary=description.partition("\n\n")[0].replace("\n", " "),
        description=description,
        parameters=parameters,
        events=events,
        returns=returns,
        deadline_s=mark.deadline_s,
        context_name=context_name,
        principal_name=principal_name,
        role=mark.role,
        hints=mark.hints,
        background=mark.background,
        scope=_scope(mark, owner, path, where),
        listed=mark.listed and mark.template is None,
        max_result_chars=_result_chars(mark, where),
        given_schema=given,
        resource=None if mark.resource is None else _named(mark.resource, method_name),
        template=None if mark.resource is None else _template(Template, mark.resource.uri, where),
        name_template=None
        if mark.template is None
        else _template(NameTemplate, mark.template, where),
        control=mark.control,
    )
    check_role(spec, where)
    return spec


def _scope(mark: MethodMark, owner: Activation, path: str, where: str) -> str:
    scope = type(owner).scope if mark.scope is None else mark.scope
    if scope is None:
        if mark.role != "method" or mark.hints.read_only:
            return READ
        scope = path.partition(".")[0]
        if scope == READ:
            raise RegistrationError(
                f"{where}: needs a scope, because every principal has the scope {READ!r}"
            )
    if not is_scope(scope):
        raise RegistrationError(
            f"{where}: the scope {scope!r} must be lower case letters, digits, underscores and dots"
        )
    return scope


def _result_chars(mark: MethodMark, where: str) -> int | None:
    chars = mark.max_result_chars
    if chars is not None and (not isinstance(chars, int) or chars < MIN_RESULT_CHARS):
        raise RegistrationError(
            f"{where}: max_result_chars is {chars!r}; it must be {MIN_RESULT_CHARS} or more"
        )
    return chars


def _named(mark: ResourceMark, name: str) -> ResourceMark:
    return mark if mark.name else mark._replace(name=name)


def _template(kind: Callable[[str], T], text: str, where: str) -> T:
    try:
        return kind(text)
    except ValueError as error:
        raise RegistrationError(f"{where}: {error}") from None


def _is_stream(hint: Any) -> bool:
    """Return whether a return type is an async iterator, with or without an event type."""
    return hint in _STREAMS or typing.get_origin(hint) in _STREAMS


def _event_types(hint: Any, where: str) -> tuple[type[Event], ...]:
    if typing.get_origin(hint) not in _STREAMS or not typing.get_args(hint):
        raise RegistrationError(f"{where}: a stream must return AsyncIterator[SomeEvent]")
    yielded = typing.get_args(hint)[0]
    members = typing.get_args(yielded) if typing.get_origin(yielded) in _UNIONS else (yielded,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, Event)):
            raise RegistrationError(
                f"{where}: yields {getattr(member, '__name__', member)}, which is not an Event; "
                "wrap text in Content(text=...) or subclass plexus.Event"
            )
        if member.type in _ENDS and not member.terminal:
            raise RegistrationError(
                f"{where}: {member.__name__} is tagged {member.type!r}, which ends a run; "
                "subclass plexus.Complete, or set another tag"
            )
    return tuple(members)


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and its `Args:` section."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    current: str | None = None
    indent = 0  # of the arguments' names; 0 outside the section
    for line in doc.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip().lower() in _ARGS_HEADINGS:
            indent, current = depth + 1, None
        elif not indent or (line.strip() and depth < indent):
            indent = 0
            description.append(line)
        elif line.strip():
            name, colon, text = line.strip().partition(":")
            name = name.partition("(")[0].strip().lstrip("*")
            if current is None:
                indent = depth
            if depth == indent and colon and name.isidentifier():
                current = name
                arguments[current] = text.strip()
            elif current is not None:
                arguments[current] += " " + line.strip()
    return "\n".join(description).strip(), arguments
