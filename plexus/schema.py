"""JSON Schemas and validators, made by pydantic when first needed.

Importing pydantic is half of a cold start, so this module imports it inside its functions and a
server that was never called has not paid for it. Schemas are 2020-12, objects are closed, every
property says what it is, and the same code gives the same bytes at every boot.
"""

from __future__ import annotations

import hashlib
import types
import typing
from typing import Any, Literal

from plexus import wire
from plexus.errors import RegistrationError
from plexus.events import Event
from plexus.signature import MethodSpec

__all__ = ("build_validator", "describe_method", "digest", "value_schema")

Schema = dict[str, Any]


def build_validator(spec: MethodSpec) -> Any:
    """The validator of a method's arguments: from a JSON object to keyword arguments."""
    spec.validator = _simple_validator(spec) or _adapter(spec).validator
    return spec.validator


def _simple_validator(spec: MethodSpec) -> Any:
    """The same validator without pydantic itself, if all arguments are of plain JSON types.

    pydantic translates types into a description for its core, which does the validating. For
    plain types that description is a few words, and importing only the core saves a third of a
    cold start.
    """
    fields = {}
    for parameter in spec.parameters:
        described = core_schema(parameter.hint)
        if described is None:
            return None
        fields[parameter.name] = {
            "type": "typed-dict-field",
            "schema": described,
            "required": parameter.required,
        }
    from pydantic_core import SchemaValidator

    closed: Any = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}
    return SchemaValidator(closed)


def core_schema(hint: Any) -> Schema | None:
    """A plain type in the words of pydantic's core; None for every other type."""
    if hint in _CORE_SCALARS:
        return {"type": _CORE_SCALARS[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"type": "literal", "expected": list(arguments)}
    inner = [core_schema(argument) for argument in arguments]
    if not inner or None in inner:
        return None
    if origin in (types.UnionType, typing.Union):
        choices = [choice for choice in inner if choice != {"type": "none"}]
        one = choices[0] if len(choices) == 1 else {"type": "union", "choices": choices}
        return {"type": "nullable", "schema": one} if len(choices) < len(inner) else one
    if origin is list:
        return {"type": "list", "items_schema": inner[0]}
    if origin is dict:
        return {"type": "dict", "keys_schema": inner[0], "values_schema": inner[1]}
    return None


_CORE_SCALARS = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "none",
    Any: "any",
}


def describe_method(spec: MethodSpec) -> Schema:
    """What `plexus.schema` says of one method."""
    described: Schema = {
        "name": spec.name,
        "description": spec.description,
        "streaming": spec.kind == "stream" or spec.kind == "follow",
        "params": parameters_schema(spec),
    }
    if spec.title:
        described["title"] = spec.title
    if spec.kind == "stream":
        described["events"] = {"oneOf": [_event_schema(event) for event in spec.events]}
    elif spec.kind == "plain":
        described["result"] = value_schema(spec.returns)
    return described


def parameters_schema(spec: MethodSpec) -> Schema:
    """The closed object schema of a method's arguments."""
    schema = _closed(_adapter(spec).json_schema())
    properties = schema.setdefault("properties", {})
    for parameter in spec.parameters:
        entry = properties[parameter.name]
        entry.setdefault("description", parameter.description)
        if not parameter.required:
            entry.setdefault("default", wire.decode_plain(parameter.default))
    return {"type": "object", "properties": properties, **_rest(schema)}


def value_schema(hint: Any) -> Schema:
    """The schema of a value of this type, as it is written."""
    from pydantic import TypeAdapter

    return _closed(TypeAdapter(hint).json_schema(mode="serialization"))


def _adapter(spec: MethodSpec) -> Any:
    """The arguments of a method. One that was left out stays out of what is validated, so that
    the function's own default holds."""
    from pydantic.errors import PydanticUserError

    fields = {parameter.name: (parameter.hint, parameter.required) for parameter in spec.parameters}
    try:
        return _closed_object("Arguments", fields)
    except PydanticUserError as error:
        raise RegistrationError(f"{spec.name}: an argument has no schema: {error}") from error


def _closed_object(name: str, fields: dict[str, tuple[Any, bool]]) -> Any:
    """A pydantic adapter for an object of these fields, each with its type and whether it must
    be there, and of no others."""
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict

    hints = {
        field: hint if required else typing.NotRequired[hint]
        for field, (hint, required) in fields.items()
    }
    make: Any = TypedDict
    shape = make(name, hints)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    return TypeAdapter(shape)


def _event_schema(event: type[Event]) -> Schema:
    hints = typing.get_type_hints(event, include_extras=True)
    fields = {
        name.rstrip("_"): (hints[name], default is not None)
        for name, default in event.fields.items()
    }
    schema = _closed(_closed_object(event.__name__, fields).json_schema(mode="serialization"))
    properties = {"type": {"const": event.type}, **schema.pop("properties", {})}
    required = ["type", *schema.pop("required", [])]
    described: Schema = {"type": "object", "title": event.__name__}
    if event.__doc__:
        described["description"] = event.__doc__
    return described | {"properties": properties, "required": required, **_rest(schema)}


def _rest(schema: Schema) -> Schema:
    return {k: v for k, v in schema.items() if k not in ("type", "properties", "title")}


def _closed(schema: Schema) -> Schema:
    """Close every object that names its properties, and drop titles that only repeat a name."""
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
            for prop in definition["properties"].values():
                prop.pop("title", None)
    schema.pop("title", None)
    return schema


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON, in hexadecimal."""
    return hashlib.sha256(wire.encode_canonical(value)).hexdigest()
