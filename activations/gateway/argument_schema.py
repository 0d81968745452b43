"""Checks arguments against the JSON Schema of a tool before they are sent.

A schema is compiled to functions once. What is checked is what models get wrong: missing, unknown
and misspelled arguments, wrong types, values outside of a range or a list of choices. Keywords that
are not known here, patterns included, are left to the server of the tool, which checks everything
itself: a pattern of a stranger could take exponential time here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from plexus.errors import InvalidParams
from plexus.registry.schema import find_definition
from plexus.registry.validation import nearest

__all__ = ("Check", "compile_schema")

Schema: TypeAlias = Mapping[str, Any]
#: Returns validated arguments as a new dict. Raises InvalidParams.
Check: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
#: Adds the faults of a value: places and texts.
Checker: TypeAlias = Callable[[Any, str, list[tuple[str, str]]], None]

#: Maximum depth of a schema that is followed; a recursive schema ends here.
MAX_DEPTH: Final = 12
#: Maximum parts of a schema that are compiled; what is past it accepts everything. References
#: could otherwise make a small schema large.
MAX_PARTS: Final = 2000
#: Maximum faults in an error.
MAX_FAULTS: Final = 20
#: Maximum entries of a list that are checked one by one.
MAX_ITEMS: Final = 10_000
_CLASSES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "string": ((str,), "a text"),
    "number": ((int, float), "a number"),
    "integer": ((int,), "a whole number"),
    "boolean": ((bool,), "true or false"),
    "array": ((list,), "a list"),
    "object": ((dict,), "an object"),
    "null": ((type(None),), "null"),
}
_SIZES: Final = (
    ("minLength", str, "at least {} characters"),
    ("maxLength", str, "at most {} characters"),
    ("minItems", list, "at least {} entries"),
    ("maxItems", list, "at most {} entries"),
)
_RANGES: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minimum", "at least", lambda value, bound: value >= bound),
    ("maximum", "at most", lambda value, bound: value <= bound),
    ("exclusiveMinimum", "above", lambda value, bound: value > bound),
    ("exclusiveMaximum", "below", lambda value, bound: value < bound),
)


def compile_schema(method: str, schema: Schema) -> Check:
    """Return the check for the arguments of a method."""
    definitions = schema.get("$defs") or schema.get("definitions") or {}
    known = definitions if isinstance(definitions, dict) else {}
    compiler = _Compiler(known)
    checker = compiler.compile({**schema, "type": "object"}, 0)

    def check(arguments: dict[str, Any]) -> dict[str, Any]:
        faults: list[tuple[str, str]] = []
        checker(arguments, "", faults)
        if faults:
            shown = [{"at": at, "fault": fault} for at, fault in faults[:MAX_FAULTS]]
            text = "; ".join(f"{at}: {fault}" if at else fault for at, fault in faults[:3])
            raise InvalidParams(f"{method}: {text}", data={"errors": shown})
        return dict(arguments)

    return check


class _Compiler:
    """Compiles a schema with its definitions, up to a number of parts."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._left = MAX_PARTS

    def compile(self, schema: Any, depth: int) -> Checker:
        """Return the checker of a schema; one that accepts everything where it is not known."""
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0 or not isinstance(schema, dict):
            return _refuse if schema is False else _accept
        if "$ref" in schema:
            name = find_definition(schema["$ref"], self._definitions)
            return _accept if name is None else self.compile(self._definitions[name], depth + 1)
        checkers: list[Checker] = []
        kinds = schema.get("type")
        names = [kinds] if isinstance(kinds, str) else kinds
        if isinstance(names, list) and names and all(_is_type(each) for each in names):
            checkers.append(_type_checker(names))
        if isinstance(schema.get("enum"), list):
            checkers.append(_choice_checker(schema["enum"]))
        if "const" in schema:
            checkers.append(_choice_checker([schema["const"]]))
        checkers += _bound_checkers(schema)
        if isinstance(schema.get("properties"), dict) or isinstance(schema.get("required"), list):
            checkers.append(self._object(schema, depth))
        if isinstance(schema.get("items"), dict):
            checkers.append(_list_checker(self.compile(schema["items"], depth + 1)))
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list) and schema[word]:
                checkers.append(_union_checker(self._all(schema[word], depth)))
        if isinstance(schema.get("allOf"), list):
            checkers += self._all(schema["allOf"], depth)
        checkers = [each for each in checkers if each is not _accept]
        if not checkers:
            return _accept
        return checkers[0] if len(checkers) == 1 else _all_checker(checkers)

    def _all(self, schemas: list[Any], depth: int) -> list[Checker]:
        return [self.compile(each, depth + 1) for each in schemas]

    def _object(self, schema: Schema, depth: int) -> Checker:
        listed = schema.get("properties")
        inner: dict[str, Any] = listed if isinstance(listed, dict) else {}
        properties = {name: self.compile(each, depth + 1) for name, each in inner.items()}
        words = schema.get("required")
        required = [each for each in words if isinstance(each, str)] if words else []
        is_closed = (
            schema.get("additionalProperties") is False and "patternProperties" not in schema
        )
        return _object_checker(properties, required, is_closed=is_closed)


def _is_type(name: Any) -> bool:
    return isinstance(name, str) and name in _CLASSES


def _accept(_: Any, __: str, ___: list[tuple[str, str]]) -> None:
    """Accept any value."""


def _refuse(_: Any, at: str, faults: list[tuple[str, str]]) -> None:
    faults.append((at, "is not allowed"))


def _all_checker(checkers: list[Checker]) -> Checker:
    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        before = len(faults)
        for each in checkers:
            each(value, at, faults)
            if len(faults) > before:  # the first says most: its type
                return

    return check


def _type_checker(names: list[str]) -> Checker:
    classes = tuple(cls for name in names for cls in _CLASSES[name][0])
    phrase = " or ".join(_CLASSES[name][1] for name in names)
    takes_boolean = "boolean" in names
    takes_whole_floats = "integer" in names and "number" not in names

    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        if isinstance(value, classes) and (takes_boolean or value.__class__ is not bool):
            return
        if takes_whole_floats and value.__class__ is float and value.is_integer():
            return  # JSON does not distinguish 5 from 5.0
        faults.append((at, f"must be {phrase}"))

    return check


def _choice_checker(choices: list[Any]) -> Checker:
    shown = ", ".join(str(each)[:80] for each in choices[:MAX_FAULTS])

    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        if not any(value == each and type(value) is type(each) for each in choices):
            faults.append((at, f"must be one of {shown}"))

    return check


def _bound_checkers(schema: Schema) -> list[Checker]:
    checkers: list[Checker] = []
    for word, phrase, holds in _RANGES:
        bound = schema.get(word)
        if type(bound) in (int, float):
            checkers.append(_range_checker(bound, f"must be {phrase} {bound:g}", holds))
    for word, kind, phrase in _SIZES:
        bound = schema.get(word)
        if type(bound) is int:
            checkers.append(_size_checker(bound, kind, phrase, is_least=word.startswith("min")))
    return checkers


def _range_checker(bound: Any, fault: str, holds: Callable[[Any, Any], bool]) -> Checker:
    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        if type(value) in (int, float) and not holds(value, bound):
            faults.append((at, fault))

    return check


def _size_checker(bound: int, kind: type, phrase: str, *, is_least: bool) -> Checker:
    fault = "must have " + phrase.format(bound)

    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        if isinstance(value, kind):
            size = len(value)  # type: ignore[arg-type]  # a text or a list
            if size < bound if is_least else size > bound:
                faults.append((at, fault))

    return check


def _object_checker(
    properties: dict[str, Checker], required: list[str], *, is_closed: bool
) -> Checker:
    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        if value.__class__ is not dict:
            return
        prefix = f"{at}." if at else ""
        faults += [(prefix + name, "is missing") for name in required if name not in value]
        for name, entry in value.items():
            checker = properties.get(name)
            if checker is not None:
                checker(entry, prefix + name, faults)
            elif is_closed:
                near = nearest(name, list(properties))
                hint = f". Did you mean {near[0]}?" if near else ""
                faults.append((prefix + name[:100], f"is not an argument{hint}"))

    return check


def _list_checker(checker: Checker) -> Checker:
    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        if isinstance(value, list) and checker is not _accept:
            for number, entry in enumerate(value[:MAX_ITEMS]):
                checker(entry, f"{at}[{number}]", faults)
                if len(faults) >= MAX_FAULTS:
                    return

    return check


def _union_checker(choices: list[Checker]) -> Checker:
    def check(value: Any, at: str, faults: list[tuple[str, str]]) -> None:
        closest: list[tuple[str, str]] = []
        for each in choices:
            found: list[tuple[str, str]] = []
            each(value, at, found)
            if not found:
                return
            # The errors deepest inside belong to the choice that was meant.
            if not closest or len(found[0][0]) > len(closest[0][0]):
                closest = found
        faults.extend(closest)

    return check
