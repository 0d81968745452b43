"""Requirements of methods that render a prompt or read a resource, and of completers.

They are read at registration, like all of a method; see `plexus.registry.signature`.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from plexus.activation import CompletionTarget
from plexus.errors import InvalidParams, RegistrationError
from plexus.events import Event, Message, Resource
from plexus.principal import Principal
from plexus.registry.parameters import Parameter, read_hints, unwrap_hint

if TYPE_CHECKING:  # imported for annotations only: signature imports this module
    from plexus.registry.signature import MethodSpec

__all__ = (
    "Completer",
    "check_role",
    "choices",
    "complete",
    "read_completers",
    "read_variable",
)

#: More digits than any integer that all JSON readers keep exact.
MAX_DIGITS = 18


class Completer:
    """A function that suggests values for an argument."""

    __slots__ = ("_function", "_principal_name")

    def __init__(
        self, function: Callable[..., Awaitable[list[str]]], principal_name: str | None
    ) -> None:
        self._function = function
        self._principal_name = principal_name

    async def suggest(self, value: str, given: dict[str, str], principal: Principal) -> list[str]:
        """Return values that complete, or match, this one."""
        extra = {} if self._principal_name is None else {self._principal_name: principal}
        return await self._function(value, given, **extra)


def choices(hint: Any) -> list[str]:
    """Return the strings that a Literal or an Enum allows; empty for other types."""
    hint = unwrap_hint(hint)
    values: typing.Iterable[Any] = ()
    if typing.get_origin(hint) is Literal:
        values = typing.get_args(hint)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        values = (member.value for member in hint)
    return [value for value in values if isinstance(value, str)]


def read_variable(parameter: Parameter, text: str) -> str | int:
    """Return the value of a URI variable. Raises ValueError if it does not match the type."""
    hint = unwrap_hint(parameter.hint)
    if hint is int:
        digits = text.removeprefix("-")
        if not (digits.isdecimal() and digits.isascii() and len(digits) <= MAX_DIGITS):
            raise ValueError(f"{parameter.name} must be a whole number")
        return int(text)
    allowed = choices(hint)
    if allowed and text not in allowed:
        raise ValueError(f"{parameter.name} must be one of {', '.join(allowed)}")
    return text


def check_role(spec: MethodSpec, where: str) -> None:
    """Raise RegistrationError if a method does not meet the requirements of its role."""
    if spec.role == "prompt":
        _check_prompt(spec, where)
    elif spec.role == "resource":
        _check_resource(spec, where)


def _check_prompt(spec: MethodSpec, where: str) -> None:
    for parameter in spec.parameters:
        if not _is_text(parameter.hint):
            raise RegistrationError(
                f"{where}: argument {parameter.name!r}: an argument of a prompt must be str or a "
                "Literal of strings"
            )
    if not _produces(spec, Message, (str,)):
        raise RegistrationError(
            f"{where}: a prompt must return str or list[Message], or yield Message"
        )
    template = spec.name_template
    if template is None:
        return
    if template.variable not in spec.names:
        raise RegistrationError(
            f"{where}: argument {template.variable!r}: is in {template.text!r} but not declared"
        )
    # So that the prompts of two activations cannot be confused, in either spelling.
    own = spec.name.rpartition(".")[0] + "."
    if not template.prefix.startswith(own):
        raise RegistrationError(f"{where}: the template {template.text!r} must begin with {own!r}")


def _check_resource(spec: MethodSpec, where: str) -> None:
    template = spec.template
    assert template is not None, "a resource has a URI"
    variables = {*template.required, *template.optional}
    for parameter in spec.parameters:
        name = parameter.name
        if name not in variables:
            raise RegistrationError(f"{where}: argument {name!r}: is not in {template.uri!r}")
        if not _is_text(parameter.hint) and unwrap_hint(parameter.hint) is not int:
            raise RegistrationError(
                f"{where}: argument {name!r}: a variable of a URI must be str, int, or a Literal "
                "of strings"
            )
        if name in template.optional and parameter.required:
            raise RegistrationError(
                f"{where}: argument {name!r}: is optional in {template.uri!r}, so it needs "
                "a default"
            )
    missing = sorted(variables - set(spec.names))
    if missing:
        raise RegistrationError(
            f"{where}: argument {missing[0]!r}: is in {template.uri!r} but not declared"
        )
    if not _produces(spec, Resource, (str, Resource)):
        raise RegistrationError(
            f"{where}: a resource must return str, Resource or list[Resource], or yield Resource"
        )


def _is_text(hint: Any) -> bool:
    hint = unwrap_hint(hint)
    if typing.get_origin(hint) is Literal:
        return all(isinstance(value, str) for value in typing.get_args(hint))
    return hint is str


def _produces(spec: MethodSpec, event: type[Event], values: tuple[type, ...]) -> bool:
    """Return whether a method yields only such events, or returns one of these types or a list."""
    if spec.kind == "stream":
        return all(issubclass(each, event) for each in spec.events)
    if typing.get_origin(spec.returns) is list:
        return _is_a(typing.get_args(spec.returns)[0], (event,))
    return _is_a(spec.returns, values)


def _is_a(hint: Any, classes: tuple[type, ...]) -> bool:
    return isinstance(hint, type) and issubclass(hint, classes)


def read_completers(
    marked: list[tuple[str, Any, tuple[CompletionTarget, ...]]], specs: list[MethodSpec]
) -> None:
    """Add its completers to each method. Raises RegistrationError."""
    methods = {spec.name.rpartition(".")[2]: spec for spec in specs}
    for where, function, marks in marked:
        for method, argument in marks:
            spec = methods.get(method)
            if spec is None:
                raise RegistrationError(f"{where}: completes {method!r}, which is not a method")
            if argument not in spec.names:
                raise RegistrationError(
                    f"{where}: completes {argument!r}, which is not an argument of {method!r}"
                )
            if argument in spec.completers:
                raise RegistrationError(
                    f"{where}: {argument!r} of {method!r} already has a completer"
                )
            spec.completers[argument] = _completer(function, where)


def _completer(function: Any, where: str) -> Completer:
    if not asyncio.iscoroutinefunction(inspect.unwrap(function)):
        raise RegistrationError(f"{where}: a completer must be `async def` and return a list")
    hints = read_hints(function, where)
    principals = (name for name, hint in hints.items() if unwrap_hint(hint) is Principal)
    principal_name = next(principals, None)
    names = [name for name in inspect.signature(function).parameters if name != principal_name]
    if len(names) != 2:
        raise RegistrationError(
            f"{where}: a completer takes two arguments: the text so far and the given arguments"
        )
    return Completer(function, principal_name)


#: Maximum number of suggestions: people do not scroll through more while typing.
MAX_VALUES = 100


async def complete(
    spec: MethodSpec, argument: str, value: str, given: dict[str, str], principal: Principal
) -> dict[str, Any]:
    """Return the suggestions of the method's completer, or the values that the type lists.

    Raises InvalidParams for an unknown argument.
    """
    parameter = next((each for each in spec.parameters if each.name == argument), None)
    completer = spec.completers.get(argument)
    if completer is not None:
        # Also for a variable of a template that the method takes as a part of its URI.
        values = list(await completer.suggest(value, given, principal))
    elif parameter is None:
        raise InvalidParams(f"{spec.name} has no argument {argument!r}")
    else:
        typed = value.lower()
        values = [each for each in choices(parameter.hint) if each.lower().startswith(typed)]
    return {
        "values": values[:MAX_VALUES],
        "total": len(values),
        "has_more": len(values) > MAX_VALUES,
    }
