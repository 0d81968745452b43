"""JSON Schema to types: a small vocabulary that every language here can say.

Rules:
- What the vocabulary cannot say becomes something wider, at last `ANY`: a client must take
  whatever the server may send, and the server checks what is sent to it anyway.
- Every object that names its properties is declared under a name: that of its definition or
  title if it has one, and else that of the place where it stands.
- A definition that several methods of a namespace share is declared once. Where two differ and
  are called the same, the later one is named after its method too.
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
    """A value without parts, or one of which nothing is known."""

    kind: Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """One value and no other."""

    value: str | int | float | bool


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """A list whose items are alike."""

    item: Type


@dataclasses.dataclass(frozen=True, slots=True)
class Tuple:
    """A list whose first items are each of a type of their own."""

    items: tuple[Type, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Mapping:
    """An object with any keys, whose values are alike."""

    value: Type


@dataclasses.dataclass(frozen=True, slots=True)
class Union:
    """One of several; never nested, never with a member twice."""

    members: tuple[Type, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """What is declared under this name."""

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


#: Keywords that say something to a reader only.
WORDS = frozenset({"default", "description", "examples", "title"})


class Field(NamedTuple):
    """A property of an object."""

    name: str
    type: Type
    required: bool
    description: str
    #: What holds if it is left out, in a tuple; empty if nothing is said.
    default: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """The description, unless it only repeats the name. A tag needs none: its type says it."""
        if isinstance(self.type, Constant) or self.description == self.name.replace("_", " "):
            return ""
        return self.description


class Struct(NamedTuple):
    """An object that names its properties."""

    name: str
    description: str
    fields: tuple[Field, ...]
    #: The type of further properties; None if there must not be any.
    others: Type | None


class Alias(NamedTuple):
    """Any other type that has a name."""

    name: str
    description: str
    type: Type


Declaration: TypeAlias = Struct | Alias


class SchemaPlace(NamedTuple):
    """Where a schema stands."""

    #: What an object is called that stands here and has no name of its own.
    name: str
    namespace: str
    method: str
    definitions: Schema

    def inside(self, part: str) -> SchemaPlace:
        """A place in this one."""
        return self._replace(name=self.name + pascal(part))


class Reader:
    """Reads schemas, and collects what has to be declared for them."""

    def __init__(self, names: NameAllocator) -> None:
        self._names = names
        self._shared: dict[tuple[str, str, bytes], str] = {}
        self.declarations: dict[str, Declaration] = {}

    # --- what gets a name ---------------------------------------------------------------------

    def declare(self, name: str, schema: Any, place: SchemaPlace) -> None:
        """Declare this schema under a name that was taken for it."""
        if isinstance(schema, dict) and "$ref" not in schema:
            found = _followed(schema, place.definitions)
            if _names_properties(found):
                self.declare_struct(name, found, place)
                return
        described = schema.get("description", "") if isinstance(schema, dict) else ""
        # An object inside cannot have this name too.
        kind = self.read(schema, place._replace(name=f"{name}Value"))
        self.declarations[name] = Alias(name, str(described), kind)

    def declare_struct(self, name: str, schema: Any, place: SchemaPlace) -> Struct:
        """Declare an object under a name that was taken for it, whatever it says of itself."""
        place = place._replace(name=name)
        found = _followed(schema, place.definitions)
        found = found if isinstance(found, dict) else {}
        required = frozenset(found.get("required", ()))
        properties = dict.fromkeys(required, True) | found.get("properties", {})
        # The hash of a schema does not see the order of its properties, so neither may a client.
        # The tag first, then what must be there.
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
        said = schema if isinstance(schema, dict) else {}
        return Field(
            name,
            self.read(schema, place.inside(name)),
            required,
            str(said.get("description", "")),
            (said["default"],) if "default" in said else (),
        )

    def _share(self, called: str, schema: Any, place: SchemaPlace) -> Named:
        """The name of a definition; it is declared if this is the first that is heard of it."""
        reachable = _reachable(schema, place.definitions)
        shapes = [_shape(schema), *(_shape(reachable[name]) for name in sorted(reachable))]
        key = place.namespace, called, wire.encode_canonical(shapes)
        if key not in self._shared:
            prefix, suffix = pascal(place.namespace), pascal(called)
            name = self._names.take(prefix + suffix, prefix + pascal(place.method) + suffix)
            self._shared[key] = name
            self.declare(name, schema, place)
        return Named(self._shared[key])

    # --- types --------------------------------------------------------------------------------

    def read(self, schema: Any, place: SchemaPlace) -> Type:
        """The type of what fits this schema."""
        if not isinstance(schema, dict):
            return NEVER if schema is False else ANY
        if "$ref" in schema:
            return self._reference(schema, place)
        if "const" in schema:
            return _constant(schema["const"])
        if isinstance(schema.get("enum"), list):
            return union_of(map(_constant, schema["enum"]))
        if isinstance(schema.get("allOf"), list):
            merged = _merged(schema, place.definitions)
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
            return self._share(title, schema, place)
        name = self._names.take(place.name)
        self.declare_struct(name, schema, place)
        return Named(name)

    def _reference(self, schema: Schema, place: SchemaPlace) -> Type:
        name = _last_reference(schema, place.definitions)
        return ANY if name is None else self._share(name, place.definitions[name], place)


def _names_properties(schema: Schema) -> bool:
    return isinstance(schema.get("properties"), dict) or (
        schema.get("type") == "object" and schema.get("additionalProperties") is False
    )


def _constant(value: Any) -> Type:
    if value is None:
        return NULL
    return Constant(value) if isinstance(value, str | int | float) else ANY


def union_of(types: Iterable[Type]) -> Type:
    """One of these. By their text, because 1 and true are equal and not the same."""
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
    """The definition at the end of a chain of references; None if there is no end, or nothing."""
    seen: set[str] = set()
    while True:
        name = find_definition(schema["$ref"], definitions)
        if name is None or name in seen:
            return None
        seen.add(name)
        schema = definitions[name]
        if not isinstance(schema, dict) or "$ref" not in schema:
            return name


def _followed(schema: Any, definitions: Schema) -> Any:
    """The schema itself, what it refers to, or what all of its parts make together."""
    if isinstance(schema, dict) and "$ref" in schema:
        name = _last_reference(schema, definitions)
        return {} if name is None else _followed(definitions[name], definitions)
    if isinstance(schema, dict) and isinstance(schema.get("allOf"), list):
        return _merged(schema, definitions) or {}
    return schema


def _merged(schema: Schema, definitions: Schema) -> Schema | None:
    """One schema in place of several that must all fit; None if they are not all objects."""
    own = {key: value for key, value in schema.items() if key != "allOf"}
    members: list[Any] = schema["allOf"]
    if len(members) == 1 and not own.keys() & {"type", "properties", "required"}:
        return {**members[0], **own} if isinstance(members[0], dict) else None
    merged: Schema = {"type": "object", "properties": {}, "required": []}
    for part in (*members, own):
        found = _followed(part, definitions)
        if not isinstance(found, dict) or found.get("type", "object") != "object":
            return None
        merged["properties"] |= found.get("properties", {})
        merged["required"] += found.get("required", [])
    kept = {key: own[key] for key in ("title", "description") if key in own}
    return merged | kept


def _reachable(schema: Any, definitions: Schema) -> Schema:
    """Every definition that this schema leads to."""
    found: Schema = {}
    todo = [schema]
    while todo:
        for each in _objects_in(todo.pop()):
            name = find_definition(each.get("$ref"), definitions)
            if name is not None and name not in found:
                found[name] = definitions[name]
                todo.append(definitions[name])
    return found


def _shape(schema: Any) -> Any:
    """What of a schema makes a type: not the words about it."""
    if isinstance(schema, list):
        return [_shape(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    silent = {*WORDS, "type"} if "const" in schema else WORDS
    shape = {key: _shape(value) for key, value in schema.items() if key not in silent}
    for key in ("properties", "$defs"):
        if isinstance(schema.get(key), dict):  # its keys are names, whatever they look like
            shape[key] = {name: _shape(value) for name, value in schema[key].items()}
    if isinstance(schema.get("required"), list):
        shape["required"] = sorted(map(str, schema["required"]))
    return shape


def _objects_in(value: Any) -> Iterator[Schema]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _objects_in(inner)
