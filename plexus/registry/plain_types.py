"""Plain JSON types, described without pydantic: for validation, and as JSON Schema.

Importing pydantic, and building a schema for each method, is most of the time to the first list of
a server with many tools. Most arguments are of types that need neither: JSON's own, their
constraints, and combinations. For these types the results are equal to those of pydantic, byte for
byte; for every other type they are None, and the caller uses pydantic.
"""

from __future__ import annotations

import math
import types
import typing
from typing import Annotated, Any, Final, Literal

from plexus.registry.secrets import Secret

__all__ = ("core_schema", "is_immutable", "json_schema")

Schema = dict[str, Any]

_NUMBERS: Final = ("int", "float")
_SIZED: Final = ("str", "list", "dict")
#: Constraints that pydantic's core knows by the same name, with the types that have them.
_CONSTRAINTS: Final = {
    "ge": ("ge", _NUMBERS),
    "gt": ("gt", _NUMBERS),
    "le": ("le", _NUMBERS),
    "lt": ("lt", _NUMBERS),
    "minlen": ("min_length", _SIZED),
    "maxlen": ("max_length", _SIZED),
}
#: What a `Field` may set without needing pydantic: a description, and the constraints above.
_FIELD_ATTRIBUTES: Final = frozenset(
    {"annotation", "description", *(bound for bound, _ in _CONSTRAINTS.values())}
)
#: Values that are the same in JSON.
_LITERALS: Final = (str, int, type(None))
_CORE_SCALARS: Final[dict[Any, str]] = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "none",
    Any: "any",
    list: "list",
    dict: "dict",
}
_JSON_TYPES: Final = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "none": "null",
    "list": "array",
    "dict": "object",
}
_JSON_TYPE_OF_VALUE: Final[dict[type, str]] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    type(None): "null",
}
#: JSON Schema's words for numeric bounds.
_JSON_BOUNDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
#: The end of its words for sizes: minLength, minItems, minProperties.
_JSON_SIZES: Final = {"str": "Length", "list": "Items", "dict": "Properties"}


#: Kinds of core schemas whose valid values cannot change.
_IMMUTABLE_KINDS: Final = frozenset({"str", "int", "float", "bool", "none", "literal"})


def is_immutable(hint: Any) -> bool:
    """Return whether this is a plain type whose values cannot change, such as `str | None`."""
    described = core_schema(hint)
    return described is not None and _is_immutable(described)


def _is_immutable(described: Schema) -> bool:
    kind = described["type"]
    if kind == "nullable":
        return _is_immutable(described["schema"])
    if kind == "union":
        return all(map(_is_immutable, described["choices"]))
    return kind in _IMMUTABLE_KINDS


def core_schema(hint: Any) -> Schema | None:
    """Return the schema of a plain type for pydantic's core; None for every other type."""
    if isinstance(hint, type) or hint is Any:  # other hints may not be hashable
        scalar = _CORE_SCALARS.get(hint)
        if scalar is not None:
            return {"type": scalar}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _constrained(core_schema(arguments[0]), _flattened(arguments[1:]))
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
    if origin is dict and arguments[0] in (str, Any):  # JSON keys are strings
        return {"type": "dict", "keys_schema": inner[0], "values_schema": inner[1]}
    return None


def _constrained(described: Schema | None, metadata: list[Any]) -> Schema | None:
    """Add constraints of the package annotated_types to a plain type; None for any others."""
    for each in metadata:
        if isinstance(each, Secret):
            continue
        name = type(each).__name__.lower()
        bound, kinds = _CONSTRAINTS.get(name, ("", ()))
        is_known = type(each).__module__ == "annotated_types"
        if described is None or not is_known or described["type"] not in kinds:
            return None
        value = getattr(each, bound)
        if type(value) not in ((int, float) if described["type"] == "float" else (int,)):
            return None  # such as a bound of 0.5 for an int, which pydantic refuses
        described = described | {bound: value}
    return described


def _flattened(metadata: tuple[Any, ...]) -> list[Any]:
    """Return metadata with the constraints of each plain `Field` in its place."""
    parts: list[Any] = []
    for each in metadata:
        parts += each.metadata if _is_plain_field(each) else [each]
    return parts


def _is_plain_field(value: Any) -> bool:
    """Return whether this is a `Field` with nothing but a description and constraints."""
    kind = type(value)
    if (kind.__module__, kind.__name__) != ("pydantic.fields", "FieldInfo"):
        return False
    # Without the private name in some other version of pydantic, the field is not plain.
    given = getattr(value, "_attributes_set", None)
    return given is not None and _FIELD_ATTRIBUTES.issuperset(given)


# --- JSON Schema --------------------------------------------------------------------------------


def json_schema(hint: Any) -> Schema | None:
    """Return the JSON Schema of a plain type; None for every other type."""
    core = core_schema(hint)
    return None if core is None else _described(hint, core)


def _described(hint: Any, core: Schema) -> Schema | None:
    """Return the JSON Schema of a type with this core schema, with sorted keys as pydantic's."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        return _annotated(hint, core)
    kind = core["type"]
    if kind == "any":
        return {}
    if kind == "literal":
        return _literal(core["expected"])
    if kind in ("nullable", "union"):
        return _choice(arguments, kind == "nullable")
    schema: Schema = {"type": _JSON_TYPES[kind]}
    if kind == "list":
        items = json_schema(arguments[0]) if arguments else {}
        return None if items is None else {"items": items} | schema
    if kind == "dict":
        values = json_schema(arguments[1]) if arguments else {}
        return None if values is None else {"additionalProperties": values or True} | schema
    return schema


def _annotated(hint: Any, core: Schema) -> Schema | None:
    bare, *metadata = typing.get_args(hint)
    schema = json_schema(bare)
    if schema is None:
        return None
    schema |= _bounds(core)
    for each in metadata:
        if isinstance(each, Secret):
            schema = each.described(schema)
        elif _is_plain_field(each) and each.description is not None:
            schema["description"] = each.description
    if not all(map(math.isfinite, _bounds(core).values())):
        return None  # pydantic omits an infinite bound
    return dict(sorted(schema.items()))


def _bounds(core: Schema) -> Schema:
    """Return the constraints of a core schema in the words of JSON Schema."""
    size = _JSON_SIZES.get(core["type"])
    words = (
        _JSON_BOUNDS if size is None else {"min_length": f"min{size}", "max_length": f"max{size}"}
    )
    return {word: core[name] for name, word in words.items() if name in core}


def _literal(values: list[Any]) -> Schema | None:
    kinds = {_JSON_TYPE_OF_VALUE.get(type(value)) for value in values}
    if None in kinds or {"boolean"} < kinds:
        return None  # members of an enumeration; true and 1, which are equal in Python
    kind = {"type": kinds.pop()} if len(kinds) == 1 else {}
    return ({"const": values[0]} if len(values) == 1 else {"enum": values}) | kind


def _choice(members: tuple[Any, ...], is_nullable: bool) -> Schema | None:
    """Return the schema of a union. Null is its last choice, wherever it was written."""
    choices: list[Schema] = []
    for member in members:
        if member is type(None):
            continue
        choice = json_schema(member)
        if choice is None or core_schema(member) == {"type": "none"}:
            return None  # also for None with metadata, which pydantic describes in its own way
        if choice not in choices:
            choices.append(choice)
    if is_nullable:
        choices.append({"type": "null"})
    return {"anyOf": choices} if len(choices) > 1 else choices[0]
