"""Reading the answer to a form that is described by a JSON Schema.

Such a form is flat: an object whose properties are texts, numbers, yes or no, one of several, or
any number of several. Only that much of JSON Schema is known here.
"""

from __future__ import annotations

from typing import Any

from plexus.errors import InvalidParams

__all__ = ("all_among", "read_form")

Schema = dict[str, Any]


def read_form(schema: Schema, answer: Any) -> dict[str, Any]:
    """The fields of the answer, with defaults for those that were left out; raises InvalidParams.

    What the form does not ask for is dropped.
    """
    if not isinstance(answer, dict):
        raise InvalidParams("the answer must be an object")
    required = schema.get("required", ())
    fields: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        value = answer.get(name)
        if value is not None:
            fields[name] = _read(name, field, value)
        elif name in required:
            raise InvalidParams(f"the answer must have {name!r}")
        elif "default" in field:
            fields[name] = field["default"]
    return fields


def all_among(entries: list[Any], texts: list[Any]) -> bool:
    """Return whether all entries are texts of this list, in linear time: an answer may have a
    mebibyte of them."""
    known = {text for text in texts if isinstance(text, str)}
    return {str}.issuperset(map(type, entries)) and known.issuperset(entries)


def _read(name: str, field: Schema, value: Any) -> Any:
    kind = field.get("type")
    if kind == "array":
        if not isinstance(value, list):
            raise InvalidParams(f"{name!r} must be a list")
        items: Schema = {"type": "string"} | field.get("items", {})
        choices = _choices(items)
        if choices is not None and all_among(value, choices):
            return value
        return [_read(name, items, entry) for entry in value]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON knows no difference between 5 and 5.0
    if kind in _KINDS:
        classes, words = _KINDS[kind]
        if not isinstance(value, classes) or (isinstance(value, bool) and kind != "boolean"):
            raise InvalidParams(f"{name!r} must be {words}")
    choices = _choices(field)
    if choices is not None and value not in choices:
        raise InvalidParams(f"{name!r} must be one of {', '.join(map(str, choices))}")
    return value


_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "text"),
    "number": ((int, float), "a number"),
    "integer": (int, "a whole number"),
    "boolean": (bool, "true or false"),
}


def _choices(field: Schema) -> list[Any] | None:
    """What may be chosen, however the schema says it; None if anything may."""
    if "enum" in field:
        return list(field["enum"])
    for word in ("oneOf", "anyOf"):
        if word in field:
            return [option["const"] for option in field[word] if "const" in option]
    return None
