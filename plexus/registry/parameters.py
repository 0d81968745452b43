"""The arguments of a method: their types, their defaults, and those that the server injects.

A default can be written in every way that pydantic supports: as a value, as `Field(3, ge=1)`, as
`Field(default_factory=list)`, or inside `Annotated`. All of them are read here, once, into a type
without a default and a separate default. This module does not import pydantic: where `Field` was
used, it is already imported.
"""

from __future__ import annotations

import copy
import inspect
import sys
import types
import typing
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from plexus.context import Context
from plexus.errors import RegistrationError
from plexus.principal import Principal
from plexus.registry.declared_arguments import arguments_of, hints_of
from plexus.registry.dependencies import Dependency, marker_of, read_dependency
from plexus.registry.secrets import Secret, is_bare_secret

__all__ = ("Parameter", "Parameters", "read_hints", "read_parameters", "unwrap_hint")

_EMPTY: Final = inspect.Parameter.empty
_VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD
_UNIONS: Final = (types.UnionType, typing.Union)
#: Options of `Field` other than constraints and the default.
_FIELD_WORDS: Final = (
    "title",
    "description",
    "examples",
    "deprecated",
    "json_schema_extra",
    "discriminator",
)
#: Factories whose value is the same at every start, so that it can be shown.
_PLAIN_FACTORIES: Final = (list, dict, set)


class Parameter(typing.NamedTuple):
    """One argument of a method.

    `default` is the value that the schema shows, or `inspect.Parameter.empty` if there is none.
    """

    name: str
    hint: Any
    default: Any
    description: str
    #: Creates the value for a call that omits the argument; None if the function's own default is
    #: right.
    factory: Callable[[], Any] | None = None

    @property
    def required(self) -> bool:
        return self.default is _EMPTY and self.factory is None

    @property
    def has_shown_default(self) -> bool:
        return self.default is not _EMPTY


class Parameters(typing.NamedTuple):
    """The arguments that callers send, and those that the server injects."""

    sent: tuple[Parameter, ...]
    context_name: str | None
    principal_name: str | None
    #: The arguments that functions of the author provide.
    dependencies: dict[str, Dependency]
    #: Whether the function takes any arguments, as `**arguments`.
    is_open: bool


def read_parameters(
    function: Callable[..., Any],
    hints: dict[str, Any],
    docs: dict[str, str],
    where: str,
    *,
    has_schema: bool = False,
) -> Parameters:
    """Read the arguments of a method, which is bound if it belongs to a class.

    With `has_schema`, the author gave a schema, so that `**arguments` are allowed. Raises
    RegistrationError.
    """
    injected: dict[type, str] = {}
    dependencies: dict[str, Dependency] = {}
    sent = []
    is_open = False
    for parameter in arguments_of(function):
        name, kind, _ = parameter
        subject = f"{where}: argument {name!r}"
        if kind is _VAR_KEYWORD and has_schema:
            is_open = True
            continue
        if kind in (inspect.Parameter.VAR_POSITIONAL, _VAR_KEYWORD):
            raise RegistrationError(
                f"{subject}: *args and **kwargs have no schema; name every argument, or take one "
                "of type list[Any] or dict[str, Any]"
            )
        if kind is inspect.Parameter.POSITIONAL_ONLY:
            raise RegistrationError(f"{subject}: must not be positional-only; remove the `/`")
        marker = marker_of(hints.get(name), parameter.default)
        if marker is not None:
            dependencies[name] = read_dependency(marker, subject, _injected_type)
            continue
        wanted = _injected_type(name, hints)
        if wanted is not None:
            if wanted in injected:
                raise RegistrationError(
                    f"{subject}: is a second {wanted.__name__} in addition to "
                    f"{injected[wanted]!r}; remove one"
                )
            injected[wanted] = name
            continue
        if name.startswith("_"):
            raise RegistrationError(
                f"{subject}: names with a leading underscore are reserved; rename it "
                f"to {name.lstrip('_')!r}"
            )
        if isinstance(parameter.default, Secret) or is_bare_secret(hints.get(name)):
            raise RegistrationError(
                f"{subject}: write a secret as `{name}: Annotated[str, Secret()]`, with its type"
            )
        # Without a type hint, any JSON value is accepted, and the schema allows any.
        hint, default, factory = _read_field(hints.get(name, Any), parameter.default, subject)
        # Every property has a description, even if the author wrote none.
        description = docs.get(name) or name.replace("_", " ")
        sent.append(Parameter(name, hint, default, description, factory))
    context_name, principal_name = injected.get(Context), injected.get(Principal)
    return Parameters(tuple(sent), context_name, principal_name, dependencies, is_open)


def read_hints(target: Any, where: str) -> dict[str, Any]:
    """Return the type hints of a function or an event. Raises RegistrationError."""
    try:
        return hints_of(target)
    except NameError as error:
        raise RegistrationError(
            f"{where}: the type {error.name!r} cannot be found; import it at the top of the "
            "module, not under TYPE_CHECKING"
        ) from error
    except (TypeError, AttributeError) as error:
        raise RegistrationError(f"{where}: a type hint cannot be read: {error}") from error


def unwrap_hint(hint: Any) -> Any:
    """Return a type without `Annotated` and without `| None`."""
    if isinstance(hint, type):
        return hint
    if typing.get_origin(hint) is typing.Annotated:
        return unwrap_hint(typing.get_args(hint)[0])
    if typing.get_origin(hint) in _UNIONS:
        members = [each for each in typing.get_args(hint) if each is not type(None)]
        return unwrap_hint(members[0]) if len(members) == 1 else hint
    return hint


def _injected_type(name: str, hints: dict[str, Any]) -> type | None:
    """Return Context or Principal if the server injects this argument; None if callers send it.

    It may be optional, for calls from Python, and `ctx` needs no type.
    """
    if name not in hints:
        return Context if name == "ctx" else None
    hint = unwrap_hint(hints[name])
    return hint if hint in (Context, Principal) else None


def _read_field(hint: Any, default: Any, subject: str) -> tuple[Any, Any, Any]:
    """Return the type without a default, the default to show, and a factory for calls."""
    fields = sys.modules.get("pydantic.fields")
    kind = getattr(fields, "FieldInfo", None)
    if kind is None:
        return hint, default, _copier(default, subject)
    infos: list[Any] = []
    if typing.get_origin(hint) is typing.Annotated:
        bare, *metadata = typing.get_args(hint)
        parts: list[Any] = []
        for each in metadata:
            if isinstance(each, kind):
                infos.append(each)
                parts += [each] if each.is_required() else _without_default(each)
            else:
                parts.append(each)
        hint = typing.Annotated[(bare, *parts)]
    if isinstance(default, kind):
        infos.append(default)
        hint = typing.Annotated[(hint, *_without_default(default))]
        default = _EMPTY
    for info in infos:
        if info.alias or info.validation_alias or info.serialization_alias:
            raise RegistrationError(
                f"{subject}: Field(alias=...) is not supported, because callers send the "
                "argument's own name; rename the argument and remove the alias"
            )
    given = [info for info in infos if not info.is_required()]
    if default is not _EMPTY or not given:
        return hint, default, _copier(default, subject)
    info = given[-1]
    factory = info.default_factory
    if factory is None:
        # The function's own default is the Field, or missing.
        return hint, info.default, _copier(info.default, subject) or partial(_same, info.default)
    if getattr(info, "default_factory_takes_validated_data", False):
        raise RegistrationError(
            f"{subject}: its default_factory takes the other arguments, which is not supported; "
            "use None as the default and create the value in the method"
        )
    return hint, factory() if factory in _PLAIN_FACTORIES else _EMPTY, factory


def _without_default(info: Any) -> list[Any]:
    """Return the metadata of a Field without its default, as parts of an Annotated."""
    from pydantic import Field

    words = {word: getattr(info, word, None) for word in _FIELD_WORDS}
    rest = {word: value for word, value in words.items() if value is not None}
    return [*info.metadata, Field(**rest)] if rest else list(info.metadata) or [Field()]


def _copier(default: Any, subject: str) -> Callable[[], Any] | None:
    """Return a function that copies a mutable default; None for an immutable one.

    Mutable values, such as lists, mappings, sets and models, usually have no hash.
    """
    try:
        hash(default)
    except TypeError:
        try:
            copy.deepcopy(default)
        # Copying may raise any exception.
        except Exception as error:
            raise RegistrationError(
                f"{subject}: its default cannot be copied for each call: {error}; use None and "
                "create the value in the method"
            ) from error
        return partial(copy.deepcopy, default)
    return None


def _same(value: Any) -> Any:
    return value
