"""JSON Schema to types: a small vocabulary that every target language can express.

Rules:

- What the vocabulary cannot express is widened, to `ANY` in the extreme: a client must accept
  whatever the server may send, and the server validates its input anyway.
- Every object with named properties is declared under a name: that of its definition or title if it
  has one, otherwise that of its location.
- A definition that several methods of a namespace share is declared once. If two definitions with
  the same name differ, the later one is also named after its method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from plexus.registry.schema import find_definition
from plexus.rpc import wire
from substrate.devtools.codegen.text import NameAllocator, pascal

__all__ = (
    "ANY",
    "NULL",
    "Alias",
    "Array",
    "Constant",
    "Declaration",
    "Field",
    "Mapping",
    "Named",
    "Reader",
    "Scalar",
    "SchemaPlace",
    "Struct",
    "Tuple",
    "Type",
    "Union",
    "union_of",
)

Schema: TypeAlias = dict[str, Any]
Kind = Literal["any", "boolean", "integer", "never", "null", "number", "string"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A value without parts, or an unknown value."""

    kind: Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """A single value."""

    value: str | int | float | bool


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """A list of items of the same type."""

    item: Type


@dataclasses.dataclass(frozen=True, slots=True)
class Tuple:
    """A list of fixed length with a type for each item."""

    items: tuple[Type, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Mapping:
    """An object with arbitrary keys and values of the same type."""

    value: Type


@dataclasses.dataclass(frozen=True, slots=True)
class Union:
    """One of several types. Never nested, without duplicates."""

    members: tuple[Type, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A reference to a declaration."""

    name: str


Type: TypeAlias = Scalar | Constant | Array | Tuple | Mapping | Union | Named

ANY = Scalar("any")
NEVER = Scalar("never")
NULL = Scalar("null")
SCALARS: dict[str, Scalar] = {
    "boolean": Scalar("boolean"),
    "integer": Scalar("integer"),
    "null": NULL,
    "number": Scalar("number"),
    "string": Scalar("string"),
}


#: Keywords that do not affect validation.
ANNOTATIONS = frozenset({"default", "description", "examples", "title"})


class Field(NamedTuple):
    """A property of an object."""

    name: str
    type: Type
    required: bool
    description: str
    #: The default as a one-item tuple; empty if there is none.
    default: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """The description; empty if it only repeats the name, and for a tag."""
        if isinstance(self.type, Constant) or self.description == self.name.replace("_", " "):
            return ""
        return self.description


class Struct(NamedTuple):
    """An object with named properties."""

    name: str
    description: str
    fields: tuple[Field, ...]
    #: The type of additional properties; None if they are forbidden.
    others: Type | None


class Alias(NamedTuple):
    """A name for any other type."""

    name: str
    description: str
    type: Type


Declaration: TypeAlias = Struct | Alias


class SchemaPlace(NamedTuple):
    """The location of a schema."""

    #: The name of an object at this location that has no other name.
    name: str
    namespace: str
    method: str
    definitions: Schema

    def inside(self, part: str) -> SchemaPlace:
        """Return a location inside this one."""
        return self._replace(name=self.name + pascal(part))


class Reader:
    """Reader of schemas that collects the required declarations."""

    def __init__(self, names: NameAllocator) -> None:
        self._names = names
        self._shared: dict[tuple[str, str, bytes], str] = {}
        self.declarations: dict[str, Declaration] = {}

    # --- declarations -------------------------------------------------------------------------

    def declare(self, name: str, schema: Any, place: SchemaPlace) -> None:
        """Declare this schema under a name that was allocated for it."""
        if isinstance(schema, dict) and "$ref" not in schema:
            found = _resolve(schema, place.definitions)
            if _names_properties(found):
                self.declare_struct(name, found, place)
                return
        described = schema.get("description", "") if isinstance(schema, dict) else ""
        # An object inside cannot have the same name.
        kind = self.read(schema, place._replace(name=f"{name}Value"))
        self.declarations[name] = Alias(name, str(described), kind)

    def declare_struct(self, name: str, schema: Any, place: SchemaPlace) -> Struct:
        """Declare an object under a name that was allocated for it, ignoring its own name."""
        place = place._replace(name=name)
        found = _resolve(schema, place.definitions)
        found = found if isinstance(found, dict) else {}
        required = frozenset(found.get("required", ()))
        properties = dict.fromkeys(required, True) | found.get("properties", {})
        # The hash of a schema ignores the order of its properties, so the client must too. The tag
        # comes first, then required properties.
        order = sorted(properties, key=lambda key: (key != "type", key not in required, key))
        further = found.get("additionalProperties", not properties)
        struct = Struct(
            name,
            str(found.get("description", "")),
            tuple(self._field(key, properties[key], key in required, place) for key in order),
            None if further is False else self.read(further, place.inside("other")),
        )
        self.declarations[name] = struct
        return struct

    def _field(self, name: str, schema: Any, required: bool, place: SchemaPlace) -> Field:
        known = schema if isinstance(schema, dict) else {}
        return Field(
            name,
            self.read(schema, place.inside(name)),
            required,
            str(known.get("description", "")),
            (known["default"],) if "default" in known else (),
        )

    def _declare_shared(self, title: str, schema: Any, place: SchemaPlace) -> Named:
        """Return the name of a definition, and declare it on first use."""
        reachable = _reachable(schema, place.definitions)
        shapes = [
            _type_keywords(schema),
            *(_type_keywords(reachable[name]) for name in sorted(reachable)),
        ]
        key = place.namespace, title, wire.encode_canonical(shapes)
        if key not in self._shared:
            prefix, suffix = pascal(place.namespace), pascal(title)
            name = self._names.allocate(prefix + suffix, prefix + pascal(place.method) + suffix)
            self._shared[key] = name
            self.declare(name, schema, place)
        return Named(self._shared[key])

    # --- types --------------------------------------------------------------------------------

    def read(self, schema: Any, place: SchemaPlace) -> Type:
        """Return the type of the values that this schema accepts."""
        if not isinstance(schema, dict):
            return NEVER if schema is False else ANY
        if "$ref" in schema:
            return self._reference(schema, place)
        if "const" in schema:
            return _constant(schema["const"])
        if isinstance(schema.get("enum"), list):
            return union_of(map(_constant, schema["enum"]))
        if isinstance(schema.get("allOf"), list):
            merged = _merge_all_of(schema, place.definitions)
            return ANY if merged is None else self.read(merged, place)
        if _names_properties(schema):
            return self._object(schema, place)
        for choice in ("anyOf", "oneOf"):
            if isinstance(schema.get(choice), list):
                return union_of(self.read(member, place) for member in schema[choice])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return union_of(self.read({**schema, "type": kind}, place) for kind in kinds)
        return self._of_kind(kinds, schema, place)

    def _of_kind(self, kind: Any, schema: Schema, place: SchemaPlace) -> Type:
        if kind == "object":
            further = schema.get("additionalProperties", True)
            if further is False:
                return self._object(schema, place)
            return Mapping(self.read(further, place.inside("value")))
        if kind == "array":
            first = schema.get("prefixItems")
            bounds = {schema.get("minItems"), schema.get("maxItems")}
            if isinstance(first, list) and bounds == {len(first)}:
                places = (place.inside(f"item{number}") for number in range(1, len(first) + 1))
                return Tuple(tuple(map(self.read, first, places)))
            items = schema.get("items", True) if first is None else True
            return Array(self.read(items, place.inside("item")))
        return SCALARS.get(kind, ANY) if isinstance(kind, str) else ANY

    def _object(self, schema: Schema, place: SchemaPlace) -> Type:
        title = schema.get("title")
        if isinstance(title, str) and title:
            return self._declare_shared(title, schema, place)
        name = self._names.allocate(place.name)
        self.declare_struct(name, schema, place)
        return Named(name)

    def _reference(self, schema: Schema, place: SchemaPlace) -> Type:
        name = _last_reference(schema, place.definitions)
        return ANY if name is None else self._declare_shared(name, place.definitions[name], place)


def _names_properties(schema: Schema) -> bool:
    return isinstance(schema.get("properties"), dict) or (
        schema.get("type") == "object" and schema.get("additionalProperties") is False
    )


def _constant(value: Any) -> Type:
    if value is None:
        return NULL
    return Constant(value) if isinstance(value, str | int | float) else ANY


def union_of(types: Iterable[Type]) -> Type:
    """Return the union of these types.

    Compared by their text, because 1 and True are equal but not the same.
    """
    members: dict[str, Type] = {}
    for each in types:
        for member in each.members if isinstance(each, Union) else (each,):
            members[repr(member)] = member
    members.pop(repr(NEVER), None)
    if not members:
        return NEVER
    if repr(ANY) in members:
        return ANY
    return Union(tuple(members.values())) if len(members) > 1 else next(iter(members.values()))


# --- references -----------------------------------------------------------------------------------


def _last_reference(schema: Schema, definitions: Schema) -> str | None:
    """Return the definition at the end of a chain of references; None if cyclic or missing."""
    seen: set[str] = set()
    while True:
        name = find_definition(schema["$ref"], definitions)
        if name is None or name in seen:
            return None
        seen.add(name)
        schema = definitions[name]
        if not isinstance(schema, dict) or "$ref" not in schema:
            return name


def _resolve(schema: Any, definitions: Schema) -> Any:
    """Return the schema with references and `allOf` resolved."""
    if isinstance(schema, dict) and "$ref" in schema:
        name = _last_reference(schema, definitions)
        return {} if name is None else _resolve(definitions[name], definitions)
    if isinstance(schema, dict) and isinstance(schema.get("allOf"), list):
        return _merge_all_of(schema, definitions) or {}
    return schema


def _merge_all_of(schema: Schema, definitions: Schema) -> Schema | None:
    """Merge the members of `allOf` into one schema; None if they are not all objects."""
    own = {key: value for key, value in schema.items() if key != "allOf"}
    members: list[Any] = schema["allOf"]
    if len(members) == 1 and not own.keys() & {"type", "properties", "required"}:
        return {**members[0], **own} if isinstance(members[0], dict) else None
    merged: Schema = {"type": "object", "properties": {}, "required": []}
    for part in (*members, own):
        found = _resolve(part, definitions)
        if not isinstance(found, dict) or found.get("type", "object") != "object":
            return None
        merged["properties"] |= found.get("properties", {})
        merged["required"] += found.get("required", [])
    kept = {key: own[key] for key in ("title", "description") if key in own}
    return merged | kept


def _reachable(schema: Any, definitions: Schema) -> Schema:
    """Return every definition that this schema refers to, directly or indirectly."""
    found: Schema = {}
    todo = [schema]
    while todo:
        for each in _objects_in(todo.pop()):
            name = find_definition(each.get("$ref"), definitions)
            if name is not None and name not in found:
                found[name] = definitions[name]
                todo.append(definitions[name])
    return found


def _type_keywords(schema: Any) -> Any:
    """Return the parts of a schema that define its type."""
    if isinstance(schema, list):
        return [_type_keywords(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    ignored = {*ANNOTATIONS, "type"} if "const" in schema else ANNOTATIONS
    shape = {key: _type_keywords(value) for key, value in schema.items() if key not in ignored}
    for key in ("properties", "$defs"):
        if isinstance(schema.get(key), dict):  # its keys are names, even if they look like keywords
            shape[key] = {name: _type_keywords(value) for name, value in schema[key].items()}
    if isinstance(schema.get("required"), list):
        shape["required"] = sorted(map(str, schema["required"]))
    return shape


def _objects_in(value: Any) -> Iterator[Schema]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _objects_in(inner)
