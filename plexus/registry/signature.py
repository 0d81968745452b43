"""From an author's function to a `MethodSpec`: hints and docstrings, read once.

Everything that can be wrong with a method is found here, at registration, and is said with the
names of class, method and argument. What is costly, pydantic above all, waits until a method is
called for the first time or its schema is asked for: see `plexus.schema`. Types and defaults are
tried out by `plexus.registry.activation_tree`.
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
from plexus.registry.parameters import Parameter, read_parameters
from plexus.registry.roles import Completer, check_role, read_completers
from plexus.registry.uri_templates import NameTemplate, Template

__all__ = ("MethodSpec", "Parameter", "Purpose", "is_name", "read_methods")

#: What a run of a method is for: work; a watch, which only reads and goes on until it is stopped;
#: or control, which controls or inspects the server itself. Each has a pool of its own.
Purpose = Literal["work", "watch", "control"]

T = typing.TypeVar("T")
_STREAMS = (AsyncIterator, AsyncGenerator, AsyncIterable)
_UNIONS = (types.UnionType, typing.Union)
_ENDS = ("complete", "error", "cancelled")
#: What every activation has, hooks and settings: a method called so would be taken for it.
RESERVED = frozenset(
    name for name in {*dir(Activation), *Activation.__annotations__} if not name.startswith("_")
)
#: The least that a method may ask for as the size of its results, as for the setting.
MIN_RESULT_CHARS = 1000
_ARGS_HEADINGS = ("args:", "arguments:", "parameters:", "params:")


def is_name(text: str) -> bool:
    """Whether this can be part of a method's name: lower case letters, digits, underscores."""
    return text.isidentifier() and text.isascii() and text == text.lower() and text[0] != "_"


@dataclasses.dataclass(eq=False, repr=False)
class MethodSpec:
    """All that is known of one method; made at registration, never changed."""

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
    #: What a caller must have to call it, and to see it in a list.
    scope: str
    #: Whether it is offered to models; it can be called in any case.
    listed: bool
    #: How many characters an MCP result may have; None for the server's setting.
    max_result_chars: int | None
    #: A JSON Schema that is shown for the parameters in place of the one that is read.
    given_schema: dict[str, Any] | None
    resource: ResourceMark | None
    template: Template | None
    #: The names of the prompts that it makes, if it makes more than one.
    name_template: NameTemplate | None
    #: Whether it steers or inspects the server itself.
    control: bool = False
    #: Its entry in the answer of `plexus.schema`, if a manifest has it; it is made otherwise.
    schema_entry: dict[str, Any] | None = None
    #: What suggests values, by argument.
    completers: dict[str, Completer] = dataclasses.field(default_factory=dict)
    #: Validates the arguments of a call and stops at the first error of each list; made by
    #: `plexus.schema` when first needed.
    validate: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    #: The same, but finds every error; made when arguments are wrong for the first time.
    validate_all: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in their order."""
        return tuple(parameter.name for parameter in self.parameters)

    @functools.cached_property
    def returns_media(self) -> bool:
        """Whether it returns an image, a sound or a file, which is shown as what it is."""
        return isinstance(self.returns, type) and issubclass(self.returns, MEDIA)

    @functools.cached_property
    def is_standing(self) -> bool:
        """Whether a run of it is a standing watch: it only reads, and goes on until stopped."""
        return self.deadline_s is None and self.hints.read_only is True

    @functools.cached_property
    def purpose(self) -> Purpose:
        """What runs of it are for, which decides the pool that they are counted in."""
        if self.is_standing:
            return "watch"
        return "control" if self.control else "work"


def read_methods(owner: Activation, path: str) -> list[MethodSpec]:
    """The methods of one activation, in the order they are written; raises RegistrationError."""
    specs: list[MethodSpec] = []
    completers: dict[str, tuple[CompletionTarget, ...]] = {}
    seen: set[str] = set()
    for cls in reversed(type(owner).__mro__):
        for name in vars(cls):
            if name in seen:
                continue
            seen.add(name)
            # Looked up on the class, because a property of the instance may do anything.
            static = inspect.getattr_static(type(owner), name)
            if hasattr(static, COMPLETES):
                completers[name] = getattr(static, COMPLETES)
            if not hasattr(static, MARK):
                continue
            spec = _read_method(owner, name, path)
            if any(spec.name == other.name for other in specs):
                raise RegistrationError(
                    f"{type(owner).__name__}.{name}: there is another method called {spec.name}"
                )
            specs.append(spec)
    read_completers(owner, completers, specs)
    return specs


def _read_method(owner: Activation, name: str, path: str) -> MethodSpec:
    bound = getattr(owner, name)
    function = inspect.unwrap(bound.__func__ if inspect.ismethod(bound) else bound)
    mark: MethodMark = getattr(bound, MARK)
    where = f"{type(owner).__name__}.{name}"
    called = mark.name or name
    if not is_name(called):
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
        raise RegistrationError(f'{where}: the schema that is given must have "type": "object"')
    doc = inspect.getdoc(function)
    if not doc:
        raise RegistrationError(
            f"{where}: needs a docstring; it is what callers read: write what the method does, in "
            "triple quotes, as the first line of its body"
        )
    description, argument_docs = _read_docstring(doc)
    hints = _hints(function, where)
    if "return" not in hints:
        raise RegistrationError(
            f"{where}: needs a return type, as in `-> str`, or `-> None` if it returns nothing"
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
                f"{where}: returns {returns.__name__}, which has no JSON form; return "
                "plexus.Image, plexus.Audio or plexus.Resource.of_bytes(uri, data, mime_type)"
            )
    else:
        raise RegistrationError(
            f"{where}: must be `async def`, with `yield` for a stream or `return` for a value, or "
            "return an AsyncIterator; call what blocks with `await asyncio.to_thread(...)`"
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
        name=f"{path}.{called}",
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
        resource=None if mark.resource is None else _named(mark.resource, called),
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
                f"{where}: needs a scope: that of its namespace, {READ!r}, is what everybody has"
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


def _named(there: ResourceMark, called: str) -> ResourceMark:
    return there if there.name else there._replace(name=called)


def _template(kind: Callable[[str], T], text: str, where: str) -> T:
    try:
        return kind(text)
    except ValueError as error:
        raise RegistrationError(f"{where}: {error}") from None


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise RegistrationError(
            f"{where}: the type {error.name!r} cannot be found; import it at the top of the "
            "module, not under TYPE_CHECKING"
        ) from error
    except (TypeError, AttributeError) as error:
        raise RegistrationError(f"{where}: a type hint cannot be read: {error}") from error


def _is_stream(hint: Any) -> bool:
    """Whether a return type is an async iterator, with or without the type of its events."""
    return hint in _STREAMS or typing.get_origin(hint) in _STREAMS


def _event_types(hint: Any, where: str) -> tuple[type[Event], ...]:
    if typing.get_origin(hint) not in _STREAMS or not typing.get_args(hint):
        raise RegistrationError(f"{where}: streams, so it must return AsyncIterator[SomeEvent]")
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
                "subclass plexus.Complete, or give it another tag"
            )
    return tuple(members)


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and its `Args:` section."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    current: str | None = None
    indent = 0  # of the arguments' names; 0 outside of the section
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
