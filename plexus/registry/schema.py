"""JSON Schemas and validators, built by pydantic at first use.

Importing pydantic is a large part of a cold start, so this module imports it inside functions; a
server without calls never imports it. Schemas are 2020-12, objects are closed, every property has a
description, and the same code produces the same bytes at every start. No function here raises for a
registered method: `plexus.registry.activation_tree` has checked it.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from plexus.activation import Hints, PromptInfo, ResourceInfo, ResourceMark
from plexus.errors import Internal
from plexus.events import Data, Event
from plexus.registry import plain_types
from plexus.registry.signature import MethodSpec
from plexus.registry.validation import Validate, all_errors, fail_fast, validate_strictly
from plexus.rpc import wire

__all__ = (
    "build_validator",
    "closed_object",
    "describe_method",
    "digest",
    "errors_in",
    "find_definition",
    "parameters_schema",
    "resolve_reference",
    "result_schema",
    "value_schema",
    "without_none",
)

Schema = dict[str, Any]

#: Where definitions are, in JSON Schema since 2019-09 and before.
PREFIXES: Final = ("#/$defs/", "#/definitions/")


def build_validator(spec: MethodSpec) -> Validate:
    """Return a function that validates the arguments of a call into keyword arguments.

    It raises ValueError for invalid arguments, and stops at the first error of each list and
    mapping.
    """
    if spec.is_open:
        spec.validate = dict  # only the method knows the arguments that the given schema describes
        return spec.validate
    plain, complete = _plain_schema(spec)
    validate: Validate = partial(fail_fast(plain).validate_python, strict=True)
    if not complete:
        full = fail_fast(_adapter(spec).core_schema)
        validate = partial(_validate_in_steps, validate, full)
    factories = {each.name: each.factory for each in spec.parameters if each.factory is not None}
    spec.validate = partial(_validate_and_fill, validate, factories) if factories else validate
    return spec.validate


def _validate_and_fill(
    validate: Validate, factories: dict[str, Callable[[], Any]], arguments: dict[str, Any]
) -> Any:
    """Validate arguments, and create the omitted ones.

    Only those are created for which the function's own default is not right.
    """
    valid = validate(arguments)
    for name, factory in factories.items():
        if name not in valid:
            try:
                valid[name] = factory()
            # A ValueError of the author's function is not an error of the caller.
            except Exception as error:
                raise Internal.report(f"creating the default of {name!r}", error) from error
    return valid


def _validate_in_steps(plain: Validate, full: Any, arguments: dict[str, Any]) -> Any:
    """Validate names and arguments of plain types first, then all of them as JSON.

    Validating JSON takes longer, and an error there copies the wrong value: 50 ms for a mebibyte of
    numbers.
    """
    plain(arguments)
    return validate_strictly(full, arguments)


def errors_in(spec: MethodSpec, arguments: dict[str, Any], first: ValueError) -> ValueError:
    """Return all errors of small arguments, as `all_errors` does."""
    if spec.validate_all is None:
        plain, complete = _plain_schema(spec)
        if complete:
            from pydantic_core import SchemaValidator

            spec.validate_all = partial(SchemaValidator(plain).validate_python, strict=True)
        else:
            spec.validate_all = partial(validate_strictly, _adapter(spec).validator)
    return all_errors(spec.validate_all, arguments, first)


def _plain_schema(spec: MethodSpec) -> tuple[Any, bool]:
    """Return a schema for pydantic's core, and whether all arguments are of plain JSON types.

    pydantic translates types into a schema for its core, which validates. For plain types that
    schema is short, and importing only the core spares a cold start most of pydantic. Plain values
    are the same in Python and in JSON, so they need not be encoded again.
    """
    fields, complete = {}, True
    for parameter in spec.parameters:
        described = plain_types.core_schema(parameter.hint)
        complete = complete and described is not None
        fields[parameter.name] = {
            "type": "typed-dict-field",
            "schema": described or {"type": "any"},
            "required": parameter.required,
        }
    return {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}, complete


def describe_method(spec: MethodSpec) -> Schema:
    """Return the entry of a method in `plexus.schema`."""
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
        described["resource"] = without_none(spec.resource)
    if spec.name_template is not None:
        described["template"] = spec.name_template.text
    hints = without_none(spec.hints)
    if hints:
        described["hints"] = hints
    if spec.background != "optional":
        described["background"] = spec.background
    if spec.restart != "never":
        described["restart"] = spec.restart
    if spec.record is not None:
        described["record"] = spec.record
    described["params"] = parameters_schema(spec)
    if spec.kind == "stream":
        described["events"] = _events_schema(spec)
    elif spec.kind == "plain":
        described["result"] = result_schema(spec)
    return described


def without_none(row: Hints | ResourceMark | ResourceInfo | PromptInfo) -> Schema:
    """Return the fields that are not None."""
    return {name: value for name, value in row._asdict().items() if value is not None}


def parameters_schema(spec: MethodSpec) -> Schema:
    """Return the closed object schema of a method's arguments, or the one that its author gave."""
    if spec.schema_entry is not None:
        given: Schema = spec.schema_entry["params"]
        return given
    if spec.given_schema is not None:
        return spec.given_schema
    schema: Schema = _plain_object(spec) or _adapter(spec).json_schema()
    properties = schema.setdefault("properties", {})
    for parameter in spec.parameters:
        entry = properties[parameter.name]
        entry.setdefault("description", parameter.description)
        if parameter.has_shown_default:
            entry.setdefault("default", wire.decode_plain(parameter.default))
    return {"type": "object", "properties": properties, **_rest(_closed(schema))}


def result_schema(spec: MethodSpec) -> Schema:
    """Return the schema of the return value of a method that does not stream."""
    if spec.schema_entry is not None:
        given: Schema = spec.schema_entry["result"]
        return given
    return value_schema(spec.returns)


def value_schema(hint: Any) -> Schema:
    """Return the schema of an encoded value of this type."""
    plain = plain_types.json_schema(hint)
    if plain is not None:
        return plain
    from pydantic import TypeAdapter

    return _closed(TypeAdapter(hint).json_schema(mode="serialization"))


def _plain_object(spec: MethodSpec) -> Schema | None:
    """Return the schema of arguments of plain types; None if pydantic has to describe them."""
    properties: Schema = {}
    for parameter in spec.parameters:
        described = plain_types.json_schema(parameter.hint)
        if described is None:
            return None
        properties[parameter.name] = described
    required = [parameter.name for parameter in spec.parameters if parameter.required]
    schema: Schema = {"additionalProperties": False, "properties": properties}
    return schema | {"required": required} if required else schema


def _adapter(spec: MethodSpec) -> Any:
    """Return a pydantic adapter for the arguments of a method.

    Omitted arguments are not part of the validated object, so their defaults are not validated.
    """
    fields = {parameter.name: (parameter.hint, parameter.required) for parameter in spec.parameters}
    return closed_object("Arguments", fields)


def closed_object(name: str, fields: dict[str, tuple[Any, bool]]) -> Any:
    """Return a pydantic adapter for an object with exactly these fields.

    Each field has a type, and whether it is required.
    """
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
    """Return the schema of the events of a method: a `oneOf` with shared definitions."""
    if not spec.events:
        tag = {"type": "string", "description": "the kind of event"}
        return {"type": "object", "properties": {"type": tag}, "required": ["type"]}
    from pydantic import TypeAdapter

    adapters = []
    for event in spec.events:
        hints = typing.get_type_hints(event, include_extras=True)
        if event is Data:
            hints["value"] = spec.data
        fields = {
            name.rstrip("_"): (hints[name], default is not None)
            for name, default in event.fields.items()
        }
        adapters.append((event, "serialization", closed_object(event.__name__, fields)))
    each, shared = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]  # the key may be any value
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
    """Close every object with named properties, and add missing descriptions to properties."""
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition["additionalProperties"] = False
            _describe_properties(definition["properties"])
    schema.pop("title", None)
    return schema


def _describe_properties(properties: Schema) -> None:
    """Drop titles that repeat a name; use the name where a description is missing."""
    for name, described in properties.items():
        described.pop("title", None)
        described.setdefault("description", name.replace("_", " "))


def find_definition(reference: object, definitions: Mapping[str, Any]) -> str | None:
    """Return the name of the definition that a `$ref` points to; None if it is unknown."""
    from urllib.parse import unquote  # not needed at startup

    for prefix in PREFIXES:
        if isinstance(reference, str) and reference.startswith(prefix):
            name = unquote(reference.removeprefix(prefix)).replace("~1", "/").replace("~0", "~")
            return name if name in definitions else None
    return None


def resolve_reference(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Return the schema that a reference points to, merged with the members next to the reference.

    Members next to a reference take precedence. An unknown definition and a cycle resolve to a
    schema that accepts any value.
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
    """Return the SHA-256 of canonical JSON, in hexadecimal."""
    return hashlib.sha256(wire.encode_canonical(value)).hexdigest()
