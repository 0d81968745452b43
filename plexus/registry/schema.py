"""JSON Schemas and validators, made by pydantic when first needed.

Importing pydantic is a large part of a cold start, so this module imports it inside its
functions and a server that was never called has not paid for it. Schemas are 2020-12, objects
are closed, every property says what it is, and the same code gives the same bytes at every boot.
Nothing here raises for a registered method: `plexus.registry.activation_tree` has tried it all.
"""

from __future__ import annotations

import hashlib
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

from plexus.activation import Hints, ResourceMark
from plexus.errors import Internal
from plexus.events import Event
from plexus.registry.signature import MethodSpec
from plexus.registry.validation import Validate, all_errors, fail_fast, validate_strictly
from plexus.rpc import wire

__all__ = (
    "build_validator",
    "closed_object",
    "core_schema",
    "describe_method",
    "digest",
    "errors_in",
    "find_definition",
    "parameters_schema",
    "resolve_reference",
    "result_schema",
    "value_schema",
)

Schema = dict[str, Any]

#: Where definitions are, in JSON Schema since 2019-09 and before.
PREFIXES: Final = ("#/$defs/", "#/definitions/")


def build_validator(spec: MethodSpec) -> Validate:
    """Return what turns the arguments of a call, as they came, into keyword arguments. It raises
    ValueError for what does not fit, and stops at the first error of each list and mapping."""
    plain, complete = _plain_schema(spec)
    validate: Validate = partial(fail_fast(plain).validate_python, strict=True)
    if not complete:
        full = fail_fast(_adapter(spec).core_schema)
        validate = partial(_validate_in_steps, validate, full)
    makers = {each.name: each.make for each in spec.parameters if each.make is not None}
    spec.validate = partial(_validate_and_fill, validate, makers) if makers else validate
    return spec.validate


def _validate_and_fill(
    validate: Validate, makers: dict[str, Callable[[], Any]], arguments: dict[str, Any]
) -> Any:
    """Validate arguments, and make those that were left out and that the function's own default
    does not serve."""
    valid = validate(arguments)
    for name, make in makers.items():
        if name not in valid:
            try:
                valid[name] = make()
            # The author's function: a ValueError of it is no fault of the caller's.
            except Exception as error:
                raise Internal.report(f"making the default of {name!r}", error) from error
    return valid


def _validate_in_steps(plain: Validate, full: Any, arguments: dict[str, Any]) -> Any:
    """Validate names and arguments of plain types first. Validating JSON takes longer, and an
    error there copies the value that is wrong: 50 ms for a mebibyte of numbers."""
    plain(arguments)
    return validate_strictly(full, arguments)


def errors_in(spec: MethodSpec, arguments: dict[str, Any], first: ValueError) -> ValueError:
    """Return everything that is wrong with small arguments, as `all_errors` does."""
    if spec.validate_all is None:
        plain, complete = _plain_schema(spec)
        if complete:
            from pydantic_core import SchemaValidator

            spec.validate_all = partial(SchemaValidator(plain).validate_python, strict=True)
        else:
            spec.validate_all = partial(validate_strictly, _adapter(spec).validator)
    return all_errors(spec.validate_all, arguments, first)


def _plain_schema(spec: MethodSpec) -> tuple[Any, bool]:
    """Describe the arguments for pydantic's core, as far as they are of plain JSON types; and say
    whether all of them are.

    pydantic translates types into a description for its core, which does the validating. For
    plain types that description is a few words, and importing only the core spares a cold start
    the larger part of pydantic. Such values are the same in Python as in JSON, so they need not
    be written again.
    """
    fields, complete = {}, True
    for parameter in spec.parameters:
        described = core_schema(parameter.hint)
        complete = complete and described is not None
        fields[parameter.name] = {
            "type": "typed-dict-field",
            "schema": described or {"type": "any"},
            "required": parameter.required,
        }
    return {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}, complete


def core_schema(hint: Any) -> Schema | None:
    """A plain type in the words of pydantic's core; None for every other type."""
    if isinstance(hint, type) or hint is Any:  # others may have no hash
        scalar = _CORE_SCALARS.get(hint)
        if scalar is not None:
            return {"type": scalar}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not all(isinstance(each, _LITERALS) for each in arguments):
            return None
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
    if origin is dict and arguments[0] in (str, Any):  # keys are text in JSON
        return {"type": "dict", "keys_schema": inner[0], "values_schema": inner[1]}
    return None


#: Values that JSON has, and that are the same there.
_LITERALS = (str, int, type(None))
_CORE_SCALARS = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "none",
    Any: "any",
}


def describe_method(spec: MethodSpec) -> Schema:
    """Return the entry of one method in the answer of `plexus.schema`."""
    if spec.schema_entry is not None:
        return spec.schema_entry
    described: Schema = {
        "name": spec.name,
        "description": spec.description,
        "streaming": spec.kind in ("stream", "follow"),
        "scope": spec.scope,
    }
    if spec.title:
        described["title"] = spec.title
    if spec.role != "method":
        described["role"] = spec.role
    if spec.resource is not None:
        described["resource"] = _without_none(spec.resource)
    if spec.name_template is not None:
        described["template"] = spec.name_template.text
    hints = _without_none(spec.hints)
    if hints:
        described["hints"] = hints
    if spec.background != "optional":
        described["background"] = spec.background
    described["params"] = parameters_schema(spec)
    if spec.kind == "stream":
        described["events"] = _events_schema(spec)
    elif spec.kind == "plain":
        described["result"] = result_schema(spec)
    return described


def _without_none(row: Hints | ResourceMark) -> Schema:
    """The fields in which something is said."""
    return {name: value for name, value in row._asdict().items() if value is not None}


def parameters_schema(spec: MethodSpec) -> Schema:
    """The closed object schema of a method's arguments, or the one that its author gave."""
    if spec.schema_entry is not None:
        given: Schema = spec.schema_entry["params"]
        return given
    if spec.given_schema is not None:
        return spec.given_schema
    schema: Schema = _adapter(spec).json_schema()
    properties = schema.setdefault("properties", {})
    for parameter in spec.parameters:
        entry = properties[parameter.name]
        entry.setdefault("description", parameter.description)
        if parameter.has_shown_default:
            entry.setdefault("default", wire.decode_plain(parameter.default))
    return {"type": "object", "properties": properties, **_rest(_closed(schema))}


def result_schema(spec: MethodSpec) -> Schema:
    """Return the schema of what a method returns that does not stream."""
    if spec.schema_entry is not None:
        given: Schema = spec.schema_entry["result"]
        return given
    return value_schema(spec.returns)


def value_schema(hint: Any) -> Schema:
    """Return the schema of a value of this type, as it is written."""
    from pydantic import TypeAdapter

    return _closed(TypeAdapter(hint).json_schema(mode="serialization"))


def _adapter(spec: MethodSpec) -> Any:
    """Return a pydantic adapter for the arguments of a method. One that was left out stays out of
    what is validated, so that its default is not validated."""
    fields = {parameter.name: (parameter.hint, parameter.required) for parameter in spec.parameters}
    return closed_object("Arguments", fields)


def closed_object(name: str, fields: dict[str, tuple[Any, bool]]) -> Any:
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


def _events_schema(spec: MethodSpec) -> Schema:
    """The schema of what a method yields: one of its events, with shared definitions beside."""
    from pydantic import TypeAdapter

    adapters = []
    for event in spec.events:
        hints = typing.get_type_hints(event, include_extras=True)
        fields = {
            name.rstrip("_"): (hints[name], default is not None)
            for name, default in event.fields.items()
        }
        adapters.append((event, "serialization", closed_object(event.__name__, fields)))
    each, shared = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]  # its key is free
    definitions = shared.get("$defs", {})
    members = []
    for event in spec.events:
        reference: Schema = each[event, "serialization"]
        name = reference.get("$ref", "").removeprefix("#/$defs/")
        members.append(_event_schema(event, definitions.pop(name) if name else reference))
    whole: Schema = {"oneOf": members}
    return _closed(whole | {"$defs": definitions} if definitions else whole)


def _event_schema(event: type[Event], schema: Schema) -> Schema:
    tag: Schema = {"const": event.type, "description": "the kind of event"}
    properties = {"type": tag, **schema.get("properties", {})}
    _describe_properties(properties)
    body: Schema = {"type": "object", "title": event.__name__}
    if event.__doc__:
        body["description"] = event.__doc__
    required = ["type", *schema.get("required", [])]
    return body | {"properties": properties, "required": required, "additionalProperties": False}


def _rest(schema: Schema) -> Schema:
    return {k: v for k, v in schema.items() if k not in ("type", "properties", "title")}


def _closed(schema: Schema) -> Schema:
    """Close every object that names its properties, and have each property say what it is."""
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition["additionalProperties"] = False
            _describe_properties(definition["properties"])
    schema.pop("title", None)
    return schema


def _describe_properties(properties: Schema) -> None:
    """Drop titles that only repeat a name; where an author wrote nothing, the name must do."""
    for name, described in properties.items():
        described.pop("title", None)
        described.setdefault("description", name.replace("_", " "))


def find_definition(reference: object, definitions: Mapping[str, Any]) -> str | None:
    """Return the name of the definition that a `$ref` points to; None if there is none."""
    from urllib.parse import unquote  # here: a start needs none

    for prefix in PREFIXES:
        if isinstance(reference, str) and reference.startswith(prefix):
            name = unquote(reference.removeprefix(prefix)).replace("~1", "/").replace("~0", "~")
            return name if name in definitions else None
    return None


def resolve_reference(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Return the schema that a reference leads to, with what stands beside the reference.

    Members beside a reference win. An unknown definition, and a cycle, lead to any value.
    """
    resolved: Schema = {**schema}
    visited: set[str] = set()
    while "$ref" in resolved:
        name = find_definition(resolved.pop("$ref"), definitions)
        if name is not None and name not in visited:
            visited.add(name)
            resolved = {**definitions[name], **resolved}
    return resolved


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON, in hexadecimal."""
    return hashlib.sha256(wire.encode_canonical(value)).hexdigest()
