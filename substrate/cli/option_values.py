"""Text from a command line to the JSON value that a schema asks for.

Only what helps a person is checked here: the hub checks every value again, by the whole schema.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = (
    "Shape",
    "as_written",
    "read_json",
    "shape_of",
    "type_in_words",
)

Schema = Mapping[str, Any]

#: What an integer can be on our wire; anything beyond would arrive as a float.
SMALLEST, LARGEST = -(2**63), 2**64 - 1
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
#: How a person writes the value that is none.
NULL = "null"


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How one value is written on a command line."""

    #: What stands for the value in a help text.
    metavar: str
    #: The value that a text means; raises ValueError that says what is wrong with it.
    read: Callable[[str], Any]
    #: All the texts there are, if they can be counted.
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    #: Whether it is a list, whose entries are written one by one.
    is_list: bool = False
    is_path: bool = False


def shape_of(schema: Schema, definitions: Schema) -> Shape:
    """How a value of this schema is written."""
    plain, nullable = _without_null(_resolved(schema, definitions), definitions)
    shape = _plain_shape(plain, definitions)
    # Where leaving it out means null, "null" is a text like any other.
    if nullable and not shape.is_list and schema.get("default", "") is not None:
        return dataclasses.replace(shape, read=partial(_read_nullable, shape.read))
    return shape


def _plain_shape(schema: Schema, definitions: Schema) -> Shape:
    if "enum" in schema or "const" in schema:
        values = {as_written(value): value for value in schema.get("enum", [schema.get("const")])}
        names = tuple(values)
        return Shape(f"[{'|'.join(names)}]", partial(_read_choice, values), choices=names)
    kind = schema.get("type")
    if kind == "string":
        return Shape("TEXT", str, is_path="path" in schema.get("format", ""))
    if kind == "integer":
        return Shape("INTEGER", _read_integer)
    if kind == "number":
        return Shape("NUMBER", _read_number)
    if kind == "boolean":
        return Shape("BOOLEAN", _read_boolean, is_flag=True)
    if kind == "array" and "prefixItems" not in schema:
        entry = shape_of(schema.get("items", {}), definitions)
        return dataclasses.replace(entry, is_list=True, is_flag=False)
    members = [_resolved(member, definitions) for member in schema.get("anyOf", ())]
    if any(member.get("type") == "string" for member in members):
        return Shape("JSON|TEXT", _read_json_or_text)
    return Shape("JSON", read_json)


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    while "$ref" in schema:
        target = definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema


def _without_null(schema: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """The schema of what is not null, and whether null is allowed."""
    members = [_resolved(member, definitions) for member in schema.get("anyOf", ())]
    others = [member for member in members if member.get("type") != "null"]
    nullable = len(others) < len(members)
    return (others[0] if len(others) == 1 else schema), nullable


def as_written(value: Any) -> str:
    """How a value is written on a command line: text bare, all else as JSON."""
    return value if isinstance(value, str) else wire.encode(value).decode()


def type_in_words(schema: Schema, definitions: Schema) -> str:
    """What a value of this schema is, for a reader: `text or null`, `list of integer`."""
    plain, nullable = _without_null(_resolved(schema, definitions), definitions)
    if "enum" in plain or "const" in plain:
        words = " | ".join(as_written(v) for v in plain.get("enum", [plain.get("const")]))
    elif plain.get("type") == "array":
        words = f"list of {type_in_words(plain.get('items', {}), definitions)}"
    elif "anyOf" in plain:
        members = [m for m in plain["anyOf"] if m.get("type") != "null"]
        words = " or ".join(type_in_words(member, definitions) for member in members)
    else:
        kind = str(plain.get("type", "any JSON"))
        words = "text" if kind == "string" else kind
    return f"{words} or null" if nullable else words


# --- reading ----------------------------------------------------------------------------------


def _read_nullable(read: Callable[[str], Any], text: str) -> Any:
    return None if text == NULL else read(text)


def _read_choice(values: Mapping[str, Any], text: str) -> Any:
    if text not in values:
        raise ValueError(f"{text!r} is not one of {', '.join(values)}.")
    return values[text]


def _read_integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number.") from None
    if not SMALLEST <= number <= LARGEST:
        raise ValueError(f"{text} does not fit into 64 bits.")
    return number


def _read_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number.") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number.")
    return number


def _read_boolean(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false.")


def read_json(text: str) -> Any:
    """The JSON value that this text is; raises ValueError that says how to write one."""
    try:
        return wire.decode_value(text.encode(), Limits())
    except PlexusError as error:
        raise ValueError(f"{error.message}.") from None
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not JSON ({error}). Text needs its quotes, as in '\"text\"'."
        ) from None


def _read_json_or_text(text: str) -> Any:
    try:
        return wire.decode_value(text.encode(), Limits())
    except (PlexusError, ValueError):
        return text
