"""Trying out, at registration, everything that describing and calling a method may raise later.

A method that passes is described, listed and called without errors of its types, defaults or
texts. pydantic is asked only about types that are not plain JSON, because importing it is a large
part of a cold start. The program's own activations are registered as checked, and a test checks
them.
"""

from __future__ import annotations

import typing
from typing import Any, Literal

from plexus.errors import InvalidEvent, RegistrationError
from plexus.events import Event
from plexus.registry import schema
from plexus.registry.activation_tree import Node, walk
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire

__all__ = ("check_node",)

_TYPES = "use types that pydantic knows: plain ones, dataclasses, TypedDicts, models"


def check_node(node: Node) -> None:
    """Raise RegistrationError for what is wrong with an activation or with one inside it."""
    for inner in walk(node):
        name = type(inner.activation).__name__
        _check_json(f"{name}: its version and docstring", [inner.version, inner.description])
        for spec in inner.methods:
            _check_method(spec)


def _check_method(spec: MethodSpec) -> None:
    where = f"{type(spec.owner).__name__}.{getattr(spec.function, '__name__', spec.name)}"
    resource = spec.resource or ()
    for text in (spec.title, *resource):
        if text is not None and not isinstance(text, str):
            raise RegistrationError(f"{where}: {text!r} must be a text, as titles and names are")
    _check_json(f"{where}: its title and docstring", [spec.title, spec.description, resource])
    _check_json(f"{where}: its hints", spec.hints)
    is_plain = True
    for parameter in spec.parameters:
        subject = f"{where}: argument {parameter.name!r}"
        is_plain &= _check_type(subject, parameter.hint, "argument")
        _check_json(f"{subject}: its description", parameter.description)
        if parameter.has_shown_default:
            _check_json(f"{subject}: its default", parameter.default)
    if spec.given_schema is not None:
        _check_given(where, spec.given_schema)
    if spec.kind == "plain":
        is_plain &= _check_type(f"{where}: its result", spec.returns, "result")
    for event in spec.events:
        is_plain &= _check_event(f"{where}: the event {event.__name__}", event)
    if not is_plain:
        _check_whole(where, spec)


def _check_given(where: str, given: dict[str, Any]) -> None:
    _check_json(f"{where}: the schema that is given", given)
    properties = given.get("properties", {})
    if not isinstance(properties, dict) or not all(
        isinstance(each, dict) for each in properties.values()
    ):
        raise RegistrationError(
            f'{where}: "properties" of the schema that is given must map each name to an object, '
            'as in {"name": {"type": "string"}}'
        )


def _check_event(subject: str, event: type[Event]) -> bool:
    """Check the fields of an event; return whether all are plain."""
    try:
        hints = typing.get_type_hints(event, include_extras=True)
    except NameError as error:
        raise RegistrationError(
            f"{subject}: the type {error.name!r} cannot be found; import it at the top of the "
            "module, not under TYPE_CHECKING"
        ) from error
    except (TypeError, AttributeError) as error:
        raise RegistrationError(f"{subject}: a type hint cannot be read: {error}") from error
    _check_json(f"{subject}: its docstring", [event.type, event.__doc__])
    fields = [
        _check_type(f"{subject}: field {name!r}", hints[name], "field") for name in event.fields
    ]
    return all(fields)


def _check_type(subject: str, hint: Any, use: Literal["argument", "field", "result"]) -> bool:
    """Raise RegistrationError for a type without a schema; return whether it is plain JSON."""
    if schema.core_schema(hint) is not None:
        _check_json(f"{subject}: its type", _literals(hint))
        return True
    from pydantic import TypeAdapter

    try:
        # What a Field says may count only for a member of an object.
        adapter = (
            TypeAdapter(hint) if use == "result" else schema.closed_object(use, {use: (hint, True)})
        )
        described = adapter.json_schema(mode="validation" if use == "argument" else "serialization")
    # An author's own type may raise anything while it is described.
    except Exception as error:
        raise _no_schema(subject, error) from error
    _check_json(f"{subject}: its schema", described)
    return False


def _literals(hint: Any) -> list[Any]:
    """Return the values that a plain type names; the types in it are none."""
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [value for inner in typing.get_args(hint) for value in _literals(inner)]


def _check_whole(where: str, spec: MethodSpec) -> None:
    """Check what only shows when the parts of a description are put together."""
    try:
        described = schema.describe_method(spec)
        schema.build_validator(spec)
    except Exception as error:
        raise _no_schema(where, error) from error
    _check_json(f"{where}: its schema", described)


def _no_schema(subject: str, error: Exception) -> RegistrationError:
    """Return the error with the first sentence of the reason; pydantic's go on to advice."""
    reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__
    return RegistrationError(f"{subject} has no schema: {reason}; {_TYPES}")


def _check_json(subject: str, value: Any) -> None:
    try:
        wire.encode_exact(value, subject)
    except InvalidEvent as error:
        raise RegistrationError(f"{error.message}; give a value that JSON has") from error
