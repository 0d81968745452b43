"""Read an author's function into a `MethodSpec`: type hints and docstring, once.

All errors in a method's declaration are found here, at registration, and are reported with the
names of class, method and argument. Expensive work, above all importing pydantic, is deferred to
the first call of the method or the first use of its schema: see `plexus.registry.schema`. Types and
defaults are checked by `plexus.registry.activation_tree`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal

from plexus.activation import (
    COMPLETES,
    MARK,
    Activation,
    Audience,
    BackgroundMode,
    CompletionTarget,
    Deadline,
    Hints,
    MethodMark,
    OnDisconnect,
    Record,
    ResourceMark,
    Restart,
    Role,
)
from plexus.errors import RegistrationError
from plexus.events import MEDIA, Event
from plexus.principal import READ, is_scope
from plexus.registry.callables import MISSING, Adapted, adapt, is_streamed
from plexus.registry.docstrings import read_docstring
from plexus.registry.items import ANYTHING, read_items, read_result
from plexus.registry.parameters import Parameter, read_hints, read_parameters
from plexus.registry.roles import Completer, check_role, read_completers
from plexus.registry.run_options import check_run_options
from plexus.registry.secrets import is_secret, secret_properties
from plexus.registry.uri_templates import NameTemplate, Template

__all__ = ("MethodSpec", "Parameter", "Purpose", "is_name", "read_methods")

#: Purpose of a run: work; a watch, which only reads and continues until it is stopped; or control,
#: which controls or inspects the server itself. Each has a separate pool.
Purpose = Literal["work", "watch", "control"]

T = typing.TypeVar("T")
#: Attributes of every activation, hooks and settings, which a method with the same name would
#: replace.
RESERVED = frozenset(
    name for name in {*dir(Activation), *Activation.__annotations__} if not name.startswith("_")
)
#: Minimum of `max_result_chars`, as for the setting.
MIN_RESULT_CHARS = 1000


def _is_method_name(text: str) -> bool:
    """Return whether a text can name a method.

    It consists of letters, digits and underscores and begins with a lower case letter: some
    protocols require camelCase.
    """
    return text.isidentifier() and text.isascii() and text[0].islower()


def _check_alias(alias: str, mark: MethodMark, where: str) -> None:
    """Raise RegistrationError if an alias is not a name. That of a prompt may have dashes."""
    allowed, plain = "digits", alias
    if mark.role == "prompt":
        allowed, plain = "digits, dashes", alias.replace("-", "_")
    if not _is_method_name(plain):
        raise RegistrationError(
            f"{where}: the alias {alias!r} must be letters, {allowed} and underscores, and begin "
            "with a lower case letter"
        )
    if mark.template is not None:
        raise RegistrationError(
            f"{where}: remove alias={alias!r}; a template names the prompts that it renders"
        )


def is_name(text: str) -> bool:
    """Return whether this is valid in a method name: lower case letters, digits, underscores."""
    return text.isidentifier() and text.isascii() and text == text.lower() and text[0] != "_"


@dataclasses.dataclass(eq=False, repr=False)
class MethodSpec:
    """The specification of a method; created at registration, never changed."""

    name: str
    owner: Activation
    #: What the pump calls.
    function: Callable[..., Any]
    #: What the author wrote; the same unless it was adapted.
    source: Callable[..., Any]
    kind: Literal["stream", "plain", "follow"]
    title: str | None
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    #: What it yields; empty if that is not declared, so that it may be anything.
    events: tuple[type[Event], ...]
    #: The type of the values inside its `Data` events.
    data: Any
    #: The classes of what it may yield; empty for anything.
    yields: tuple[type, ...]
    #: Whether it takes any arguments that the given schema describes.
    is_open: bool
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
    #: Who it is meant for. MCP lists methods for models by default.
    audience: Audience = "model"
    #: Additional name without a namespace.
    alias: str | None = None
    #: Whether a host should ask a person before every call.
    needs_person: bool = False
    #: Whether `plexus.call` may call it over MCP although it may do damage.
    allows_indirect_call: bool = False
    #: How a run of it continues after its process was lost.
    restart: Restart = "never"
    #: What the run store records of a run; None for the operator's setting.
    record: Record | None = None
    #: What happens when the caller disconnects; None for the operator's setting.
    on_disconnect: OnDisconnect | None = None
    #: JSON Schema of the value of a result, if it was given with the method.
    given_result: dict[str, Any] | None = None
    #: Fields for MCP clients that were given with the method, by the keys of their authors.
    meta: dict[str, Any] | None = None
    #: Icons for clients, as MCP describes them.
    icons: list[dict[str, Any]] | None = None
    #: Its entry in `plexus.schema` from a manifest; otherwise it is created when needed.
    schema_entry: dict[str, Any] | None = None
    #: Completers by argument.
    completers: dict[str, Completer] = dataclasses.field(default_factory=dict)
    #: Validates the arguments of a call and stops at the first error of each list; built by
    #: `plexus.registry.schema` at first use.
    validate: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    #: Starts a run with these arguments without a task, if that is possible now; returns whether it
    #: has. An exception ends the run.
    start: Callable[[Any, dict[str, Any]], bool] | None = None
    #: Like `validate`, but finds every error; built when arguments are invalid for the first time.
    validate_all: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in their order."""
        return tuple(parameter.name for parameter in self.parameters)

    @functools.cached_property
    def secret_names(self) -> frozenset[str]:
        """The names of secret parameters, whose values must not be stored or logged.

        A parameter is secret if any value inside it is: see `plexus.registry.secrets`.
        """
        named = {each.name for each in self.parameters if is_secret(each.hint)}
        return frozenset(named | secret_properties(self.given_schema or {}))

    @functools.cached_property
    def returns_media(self) -> bool:
        """Whether it returns an image, audio or a file, which views show as such."""
        return isinstance(self.returns, type) and issubclass(self.returns, MEDIA)

    @functools.cached_property
    def has_given_schema(self) -> bool:
        """Whether the author gave the schema, which is then shown as it is."""
        return self.given_schema is not None

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
    specs: dict[str, MethodSpec] = {}
    completers: list[tuple[str, Any, tuple[CompletionTarget, ...]]] = []
    for name, function in _functions(owner):
        where = f"{_name_of(owner)}.{name}"
        if hasattr(function, COMPLETES):
            completers.append((where, function, getattr(function, COMPLETES)))
        if not hasattr(function, MARK):
            continue
        spec = _read_method(owner, name, function, path, where)
        if spec.name in specs:
            raise RegistrationError(f"{where}: another method is already named {spec.name}")
        specs[spec.name] = spec
    methods = list(specs.values())
    read_completers(completers, methods)
    return methods


def _functions(owner: Activation) -> Iterator[tuple[str, Any]]:
    """Return the marked functions of an activation with their names, those of a class bound."""
    seen: set[str] = set()
    for cls in reversed(type(owner).__mro__):
        for name in vars(cls):
            if name in seen:
                continue
            seen.add(name)
            # Looked up on the class, because a property of the instance could run any code.
            static = inspect.getattr_static(type(owner), name)
            if hasattr(static, MARK) or hasattr(static, COMPLETES):
                if hasattr(static, MARK) and name in RESERVED:
                    raise RegistrationError(
                        f"{type(owner).__name__}.{name}: {name!r} is an attribute of every "
                        "activation, which this method would replace; rename the function and "
                        f'mark it @method(name="{name}")'
                    )
                yield name, getattr(owner, name)
    for function in owner.functions:
        yield getattr(function, "__name__", type(function).__name__), function


def _name_of(owner: Activation) -> str:
    """Return what errors call an activation: its class, or its namespace if it has none."""
    return owner.namespace if type(owner) is Activation else type(owner).__name__


def _read_method(owner: Activation, name: str, bound: Any, path: str, where: str) -> MethodSpec:
    function = inspect.unwrap(bound.__func__ if inspect.ismethod(bound) else bound)
    mark: MethodMark = getattr(bound, MARK)
    method_name = mark.name or name
    if not _is_method_name(method_name):
        raise RegistrationError(
            f"{where}: a method name must be letters, digits and underscores, and begin with a "
            "lower case letter"
        )
    if mark.alias is not None:
        _check_alias(mark.alias, mark, where)
    given = mark.schema
    if given is not None and (not isinstance(given, dict) or given.get("type") != "object"):
        raise RegistrationError(f'{where}: the given schema must have "type": "object"')
    description, argument_docs = read_docstring(inspect.getdoc(function) or "")
    hints = read_hints(function, where)
    returns = hints.get("return", MISSING)
    if returns is MISSING and mark.role != "method" and not _yields(function):
        returns = str  # the default of a prompt or a resource
    parameters = read_parameters(bound, hints, argument_docs, where, has_schema=given is not None)
    if mark.follows:
        adapted = Adapted(bound, "plain", parameters.context_name)
    else:
        adapted = adapt(bound, returns, parameters.context_name, parameters.dependencies)
    streams = adapted.kind == "stream" and not mark.follows
    items = read_items(returns, where) if streams and is_streamed(function, returns) else ANYTHING
    if mark.control and mark.deadline_s is None:
        raise RegistrationError(
            f"{where}: a control method must be short; remove control=True or deadline_s=None"
        )
    unknown = sorted(
        set(argument_docs)
        - {each.name for each in parameters.sent}
        - {parameters.context_name, parameters.principal_name, *parameters.dependencies}
    )
    if unknown and not parameters.is_open:
        raise RegistrationError(
            f"{where}: its docstring describes {unknown[0]!r}, which is not an argument"
        )
    spec = MethodSpec(
        name=f"{path}.{method_name}",
        owner=owner,
        function=adapted.function,
        source=bound,
        kind="follow" if mark.follows else adapted.kind,
        title=mark.title,
        summary=description.partition("\n\n")[0].replace("\n", " "),
        description=description,
        parameters=parameters.sent,
        events=items.events if streams else (),
        data=items.data,
        yields=items.classes,
        is_open=parameters.is_open,
        returns=None if streams or mark.follows else read_result(returns),
        deadline_s=mark.deadline_s,
        context_name=adapted.context_name,
        principal_name=parameters.principal_name,
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
        audience=mark.audience or owner.audience,
        alias=mark.alias,
        needs_person=mark.needs_person,
        restart=mark.restart,
        record=mark.record,
        on_disconnect=mark.on_disconnect,
    )
    check_role(spec, where)
    check_run_options(spec, where)
    return spec


def _yields(function: Any) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def _scope(mark: MethodMark, owner: Activation, path: str, where: str) -> str:
    scope = owner.scope if mark.scope is None else mark.scope
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
