"""Input schemas for models: the same closed JSON Schema in fewer tokens.

A host pays for every byte of a listed schema. What says nothing to a model is left out: null as a
choice of an optional parameter, titles, empty defaults, descriptions that repeat the name, and
definitions that are used once. The method still validates as its own schema says, so null is
still accepted where it was.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

__all__ = ("lean_schema",)

Schema = dict[str, Any]

_WORD: Final = re.compile(r"[a-z0-9]+")
_ARTICLES: Final = frozenset({"a", "an", "of", "the"})
_NULL: Final = {"type": "null"}
#: Defaults that go without saying.
_EMPTY: Final[tuple[Any, ...]] = (None, False, "", [], {})
_DEFINITIONS: Final = "#/$defs/"
#: Keywords whose value is one schema, a list of schemas, or schemas by name.
_ONE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames")
_MANY: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs")
_INNER: Final = frozenset((*_ONE, *_MANY, *_NAMED))


def lean_schema(schema: Schema, *, keeps_null: bool = False) -> Schema:
    """Return a schema that allows the same objects, without what models do not need.

    With `keeps_null`, for what a method returns, null stays a choice.
    """
    definitions: dict[str, Schema] = schema.get("$defs", {})
    uses: Counter[str] = Counter()
    if definitions:
        _count_references(schema, uses)
    once = {
        name: definition
        for name, definition in definitions.items()
        if uses[_DEFINITIONS + name] == 1 and not _refers_to(definition, name, definitions)
    }
    lean: Schema = _lean(schema, once, keeps_null)
    kept = {name: each for name, each in lean.pop("$defs", {}).items() if name not in once}
    return lean | {"$defs": kept} if kept else lean


def _lean(schema: Any, once: dict[str, Schema], keeps_null: bool) -> Any:
    """Return one schema, and all inside it, without what is left out."""
    if not isinstance(schema, dict):
        return schema
    if once and "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_DEFINITIONS)
        if name in once:
            # Keywords next to a reference describe this use of it.
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return _lean(once[name] | siblings, once, keeps_null)
    lean = {key: value for key, value in schema.items() if key != "title"}
    if _INNER.isdisjoint(lean):
        return lean
    if lean.get("additionalProperties") is True:
        del lean["additionalProperties"]  # which is what its absence means
    for key in _ONE:
        if key in lean:
            lean[key] = _lean(lean[key], once, keeps_null)
    for key in _MANY:
        if key in lean:
            lean[key] = [_lean(each, once, keeps_null) for each in lean[key]]
    for key in _NAMED:
        if key in lean:
            lean[key] = {name: _lean(each, once, keeps_null) for name, each in lean[key].items()}
    if "properties" in lean:
        required = lean.get("required", ())
        lean["properties"] = {
            name: _property(name, each, keeps_null or name in required)
            for name, each in lean["properties"].items()
        }
    return lean


def _property(name: str, schema: Any, keeps_null: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    lean = schema if keeps_null else _without_null(schema)
    if _words(str(lean.get("description", ""))) == _words(name):
        lean = {key: value for key, value in lean.items() if key != "description"}
    return lean


def _words(text: str) -> set[str]:
    """Return the words of a text or a name that mean something."""
    return {*_WORD.findall(text.lower())} - _ARTICLES


def _without_null(schema: Schema) -> Schema:
    """Return the schema of an optional property without null: leaving it out says the same."""
    if schema.get("default", ...) in _EMPTY:
        schema = {key: value for key, value in schema.items() if key != "default"}
    choices = schema.get("anyOf")
    if not isinstance(choices, list) or _NULL not in choices:
        return schema
    rest = [choice for choice in choices if choice != _NULL]
    others = {key: value for key, value in schema.items() if key != "anyOf"}
    return rest[0] | others if len(rest) == 1 else {"anyOf": rest} | others


def _count_references(value: Any, uses: Counter[str]) -> None:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            uses[reference] += 1
        for each in value.values():
            _count_references(each, uses)
    elif isinstance(value, list):
        for each in value:
            _count_references(each, uses)


def _refers_to(schema: Any, name: str, definitions: dict[str, Schema]) -> bool:
    """Whether a definition refers to itself, by whatever way."""
    pending, seen = [schema], set()
    while pending:
        uses: Counter[str] = Counter()
        _count_references(pending.pop(), uses)
        for reference in uses:
            target = reference.removeprefix(_DEFINITIONS)
            if target == name:
                return True
            if target not in seen and target in definitions:
                seen.add(target)
                pending.append(definitions[target])
    return False
