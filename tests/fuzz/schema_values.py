"""Valid values for our JSON Schemas, and values with one fault.

Only the keywords that our schemas use are supported; any other is an error, so that a new keyword
is noticed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ("Generator", "broken")

Schema = dict[str, Any]

#: Keywords that do not affect which values are valid.
SILENT = {"description", "title", "default", "$defs", "x-mcp-header", "format", "examples"}
KNOWN = {
    *("type", "anyOf", "oneOf", "enum", "const", "$ref", "items", "properties", "required"),
    *("additionalProperties", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength"),
    *("minItems", "maxItems"),
}
TEXTS = (
    *("", "x", "a b", "\x00", "\n", "..", "/", "~", "-x", "%", "é😀", "\u2028", "a" * 300, "{x}"),
    *("echo:echo", "echo:slow", "plexus.hash", "no.such", "local", "*", '"', "'", "null", "1"),
)
INTEGERS = (0, 1, -1, 2, 10, 100, 1000, 1001, 10**6, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63))
NUMBERS = (0.0, -0.0, 0.1, 1.5, -1.0, 1e-300, 1e300, 5, 2**53)
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


def _resolved(schema: Schema, root: Schema) -> Schema:
    unknown = schema.keys() - SILENT - KNOWN
    assert not unknown, f"unsupported keywords {unknown}"
    reference = schema.get("$ref")
    if reference is None:
        return schema
    name = reference.removeprefix("#/$defs/")
    return _resolved(root["$defs"][name], root)


def _choices(schema: Schema, root: Schema) -> list[Schema]:
    """Return the alternatives of a schema, flattened."""
    schema = _resolved(schema, root)
    inner = schema.get("anyOf") or schema.get("oneOf")
    if inner is not None:
        return [choice for each in inner for choice in _choices(each, root)]
    kind = schema.get("type")
    if isinstance(kind, list):
        return [schema | {"type": each} for each in kind]
    return [schema]


class Generator:
    """Generator of valid values."""

    def __init__(self, chance: random.Random, words: Sequence[str]) -> None:
        """Create a generator; `words` are meaningful texts, such as existing ids."""
        self._chance = chance
        self._words = words

    def arguments(self, schema: Schema) -> dict[str, Any]:
        """Return arguments of a method."""
        made = self._value(schema, schema, 0)
        assert isinstance(made, dict)
        return made

    def _value(self, schema: Schema, root: Schema, depth: int) -> Any:
        chance = self._chance
        schema = chance.choice(_choices(schema, root))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return chance.choice(schema["enum"])
        match schema.get("type"):
            case "string":
                return self._text(schema)
            case "integer":
                return _bounded(schema, int(self._number(INTEGERS)))
            case "number":
                return _bounded(schema, self._number((*INTEGERS, *NUMBERS)))
            case "boolean":
                return chance.random() < 0.5
            case "null":
                return None
            case "array":
                count = chance.randint(schema.get("minItems", 0), schema.get("maxItems", 3))
                return [self._value(schema.get("items", {}), root, depth + 1) for _ in range(count)]
            case "object":
                return self._object(schema, root, depth)
            case None:
                return self._anything(depth)
            case kind:
                raise AssertionError(f"unsupported type {kind!r}")

    def _text(self, schema: Schema) -> str:
        chance = self._chance
        kind = chance.random()
        if kind < 0.5 and self._words:
            text = chance.choice(self._words)
        elif kind < 0.8:
            text = chance.choice(TEXTS)
        else:
            letters = "abc /.:_-\t\x7f\u00e9\u4e00\U0001f600"
            text = "".join(chance.choices(letters, k=chance.randrange(20)))
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]

    def _number(self, usual: Sequence[float]) -> float:
        return (
            self._chance.choice(usual)
            if self._chance.random() < 0.7
            else self._chance.randint(-5, 300)
        )

    def _object(self, schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        made = {
            name: self._value(inner, root, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or self._chance.random() < 0.5
        }
        # Without the keyword nothing is added: a schema may be open although its method is not.
        more = schema.get("additionalProperties", False)
        if more is not False:
            inner = {} if more is True else more
            for _ in range(self._chance.randrange(3)):
                made[self._text({})] = self._value(inner, root, depth + 1)
        return made

    def _anything(self, depth: int) -> Any:
        kind = self._chance.choice(TYPES[: 5 if depth > 3 else 7])
        # The content can be anything too.
        return self._value({"type": kind, "additionalProperties": True}, {}, depth + 1)


def _bounded(schema: Schema, number: float) -> float:
    if "exclusiveMinimum" in schema:
        number = max(number, schema["exclusiveMinimum"] + 1)
    least: float = schema.get("minimum", number)
    number = max(number, least)
    most: float = schema.get("maximum", number)
    return min(number, most)


# --- invalid values ---------------------------------------------------------------------------


#: One value of each type.
ONE_OF_EACH: dict[str, Any] = {
    "string": "5",
    "integer": 5,
    "number": 5.5,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}
#: Types whose values are also valid for other types.
ALSO_FITS = {"integer": {"number"}}


def broken(schema: Schema) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a description and arguments with exactly one fault."""
    plain = {
        name: _plain(inner, schema)
        for name, inner in schema.get("properties", {}).items()
        if name in schema.get("required", ())
    }
    yield from _broken_object("", schema, schema, plain)


def _plain(schema: Schema, root: Schema) -> Any:
    """Return the simplest valid value."""
    schema = _choices(schema, root)[0]
    if "enum" in schema or "const" in schema:
        return schema.get("const", *schema.get("enum", ())[:1])
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: _plain(properties[name], root) for name in schema.get("required", ())}
    return ONE_OF_EACH[schema.get("type", "null")]


def _broken_object(
    at: str, schema: Schema, root: Schema, plain: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in schema.get("required", ()):
        yield f"{at}{name} is missing", {k: v for k, v in plain.items() if k != name}
    if schema.get("additionalProperties") is False:
        yield f"{at}has an unknown argument", plain | {"no_such_argument": 1}
        yield f"{at}has an argument without a name", plain | {"": None}
    for name, inner in schema.get("properties", {}).items():
        for what, value in _broken_values(f"{at}{name}", inner, root):
            yield what, plain | {name: value}


def _broken_values(at: str, schema: Schema, root: Schema) -> Iterator[tuple[str, Any]]:
    choices = _choices(schema, root)
    types = {choice.get("type") for choice in choices}
    if None in types and not any("enum" in choice or "const" in choice for choice in choices):
        return  # any value is valid
    for kind, value in ONE_OF_EACH.items():
        if kind not in types and not types & ALSO_FITS.get(kind, set()):
            yield f"{at} is of type {kind}", value
    if types == {"integer"}:
        yield f"{at} is not an integer", 1.5
    for choice in choices:
        if "enum" in choice or "const" in choice:
            yield f"{at} is not an allowed value", "no such word"
        elif choice.get("type") == "array" and choice.get("items"):
            for what, value in _broken_values(f"{at}[0]", choice["items"], root):
                yield what, [value]
        elif choice.get("type") == "object":
            plain = _plain(choice, root)
            # If another choice accepts any object, none is invalid.
            if sum(each.get("type") == "object" for each in choices) == 1:
                yield from _broken_object(f"{at}.", choice, root, plain)
            more = choice.get("additionalProperties")
            if isinstance(more, dict):
                for what, value in _broken_values(f"{at}.x", more, root):
                    yield what, {"x": value}
        for word, beyond in (("minimum", -1), ("maximum", 1)):
            if word in choice:
                yield f"{at} is beyond its {word}", choice[word] + beyond
