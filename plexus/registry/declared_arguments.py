"""The arguments and type hints of a function, as its author declared them.

`inspect` and `typing` read every function, but slowly: most functions have arguments with names
and hints that are the name of a class, and are read here from the function itself. That shortens
the first list of a thousand tools by a fifth.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

__all__ = ("DeclaredArgument", "arguments_of", "hints_of")

_EMPTY: Final = inspect.Parameter.empty
_BUILTINS: Final[Mapping[str, Any]] = vars(builtins)
#: Classes that are no type hints, for which `typing` raises the right error.
_NO_HINTS: Final = (typing.Generic, typing.Protocol)
#: Functions with `*args` or `**kwargs`, whose other arguments `inspect` puts in order.
_VARIABLE: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class DeclaredArgument(NamedTuple):
    """One argument of a function, with the kinds and the empty default of `inspect.Parameter`."""

    name: str
    kind: Any
    default: Any


def arguments_of(function: Callable[..., Any]) -> list[DeclaredArgument]:
    """Return the arguments of a callable in their order, without the first of a bound method."""
    plain = function.__func__ if inspect.ismethod(function) else function
    # The class of the function is compared: one of a subclass may describe itself otherwise.
    if type(plain) is not types.FunctionType or plain.__dict__.keys() & {
        "__wrapped__",
        "__signature__",
    }:
        return _inspected(function)
    code = plain.__code__
    if code.co_flags & _VARIABLE or code.co_posonlyargcount:
        return _inspected(function)
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    defaults = dict(plain.__kwdefaults__ or {})
    if plain.__defaults__:
        last = names[count - len(plain.__defaults__) : count]
        defaults.update(zip(last, plain.__defaults__, strict=True))
    first = 0 if plain is function else 1
    if count < first:
        return _inspected(function)  # raises the right error
    positional, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [
        DeclaredArgument(name, positional if index < count else named, defaults.get(name, _EMPTY))
        for index, name in enumerate(names[first:], first)
    ]


def _inspected(function: Callable[..., Any]) -> list[DeclaredArgument]:
    return [
        DeclaredArgument(each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
    ]


def hints_of(target: Any) -> dict[str, Any]:
    """Return the type hints of a function or a class, like `typing.get_type_hints` with extras.

    Raises NameError, TypeError and AttributeError.
    """
    if type(target) is not types.FunctionType or "__wrapped__" in target.__dict__:
        return typing.get_type_hints(target, include_extras=True)
    if getattr(target, "__type_params__", ()):  # the names of these are in no module
        return typing.get_type_hints(target, include_extras=True)
    scope = target.__globals__
    hints: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, hint in target.__annotations__.items():
        found = hint
        if hint.__class__ is str:
            found = scope[hint] if hint in scope else _BUILTINS.get(hint)
        if isinstance(found, type) and found not in _NO_HINTS:
            hints[name] = found
        else:
            hints[name] = others[name] = hint
    if others:
        holder = types.SimpleNamespace(__annotations__=others)
        hints |= typing.get_type_hints(holder, scope, include_extras=True)
    return hints
