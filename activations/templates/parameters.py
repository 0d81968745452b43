"""The parameters of templates: their types, and the check of values against them.

A check finds all faults together. The formats are ours, because a pattern from a template's author
could take exponential time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plexus.registry.validation import nearest
from plexus.text import replace_controls, shorten

__all__ = ("Fault", "Parameter", "Values", "check_values", "describe_parameters", "read_parameter")

#: Values of the parameters of a template.
Values = dict[str, Any]

#: Characters of a text on one line, and of one with several lines; entries of a list.
LINE_CHARACTERS: Final = 200
TEXT_CHARACTERS: Final = 10_000
LIST_ITEMS: Final = 100
#: Maximum parameters of a template, and faults that are reported.
MAX_PARAMETERS: Final = 50
MAX_FAULTS: Final = 50
#: The largest whole number that every JSON parser reads exactly.
MAX_INTEGER: Final = 2**53
#: Characters of a value in a fault.
VALUE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class _Format:
    """What a text may contain; `pattern` takes linear time."""

    pattern: str
    hint: str
    max_characters: int = LINE_CHARACTERS
    keeps: str = ""


FORMATS: Final = {
    "line": _Format(r"", "one line of text"),
    "text": _Format(r"", "text", TEXT_CHARACTERS, "\n\t"),
    "name": _Format(
        r"[a-z](?:[a-z0-9_-]{0,62}[a-z0-9])?",
        "lower case letters, digits, - and _, from a letter to a letter or digit, at most 64",
    ),
    "identifier": _Format(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "letters, digits and _, no digit first"),
    "version": _Format(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,3}", "numbers with dots, such as 3.12"),
    "module": _Format(
        r"[a-z0-9][a-z0-9.-]{0,62}(?:/[A-Za-z0-9_~][A-Za-z0-9._~-]{0,62}){0,8}",
        "a module path such as example.com/tool",
    ),
}
_PATTERNS: Final = {
    name: re.compile(each.pattern) for name, each in FORMATS.items() if each.pattern
}
_CLASSES: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "string": (str, "must be text"),
    "boolean": (bool, "must be true or false"),
    "integer": (int, "must be a whole number"),
    "number": ((int, float), "must be a number"),
    "array": (list, "must be a list"),
}
_ITEM_TYPES: Final = ("string", "boolean", "integer", "number")
_KEYS: Final = {
    "type": str,
    "description": str,
    "required": bool,
    "format": str,
    "choices": list,
    "reserved": list,
    "item_type": str,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a parameter."""

    at: str
    fault: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a template."""

    name: str
    type: str
    description: str
    required: bool = False
    #: The value of a call that omits it; None for no value.
    default: Any = None
    #: What a text may contain: a name in `FORMATS`.
    format: str = "line"
    choices: tuple[Any, ...] = ()
    #: Texts that are refused, such as the names of modules.
    reserved: frozenset[str] = frozenset()
    item_type: str = "string"

    def faults(self, value: Any) -> Iterable[str]:
        """Yield what is wrong with a value."""
        classes, words = _CLASSES[self.type]
        if not isinstance(value, classes) or (isinstance(value, bool) and self.type != "boolean"):
            yield f"{words}, not {_shown(value)}"
        elif isinstance(value, list):
            yield from self._list_faults(value)
        else:
            fault = self._scalar_fault(value)
            if fault is not None:
                yield fault

    def _list_faults(self, values: list[Any]) -> Iterable[str]:
        if len(values) > LIST_ITEMS:
            yield f"has {len(values)} entries; the maximum is {LIST_ITEMS}"
            return
        classes, words = _CLASSES[self.item_type]
        for index, value in enumerate(values):
            wrong_bool = isinstance(value, bool) and self.item_type != "boolean"
            if not isinstance(value, classes) or wrong_bool:
                yield f"entry {index}: {words}, not {_shown(value)}"
            elif (fault := self._scalar_fault(value)) is not None:
                yield f"entry {index}: {fault}"

    def _scalar_fault(self, value: Any) -> str | None:
        if self.choices and value not in self.choices:
            near = nearest(value, self.choices, 1) if isinstance(value, str) else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            choices = ", ".join(map(str, self.choices))
            return f"must be one of {choices}, not {_shown(value)}{hint}"
        if isinstance(value, str):
            return self._text_fault(value)
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            return f"is out of range; the maximum is {MAX_INTEGER}"
        return None

    def _text_fault(self, value: str) -> str | None:
        chosen = FORMATS[self.format]
        if len(value) > chosen.max_characters:
            return f"has {len(value)} characters; the maximum is {chosen.max_characters}"
        if self.required and not value.strip():
            return "must not be empty"
        if replace_controls(value, "", chosen.keeps) != value:
            return "contains control characters, which are not allowed"
        pattern = _PATTERNS.get(self.format)
        if pattern is not None and pattern.fullmatch(value) is None and (value or self.required):
            return f"must be {chosen.hint}, not {_shown(value)}"
        if value in self.reserved:
            return f"must not be {value!r}, which is a reserved word or the name of a module"
        return None

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the values."""
        item: dict[str, Any] = {"type": self.item_type if self.type == "array" else self.type}
        if item["type"] == "string":
            chosen = FORMATS[self.format]
            item |= {"maxLength": chosen.max_characters}
            if chosen.pattern:
                item |= {"pattern": f"^{chosen.pattern}$"}
        if self.choices:
            item |= {"enum": list(self.choices)}
        schema = item
        if self.type == "array":
            schema = {"type": "array", "items": item, "maxItems": LIST_ITEMS}
        schema |= {"description": self.description}
        return schema if self.default is None else schema | {"default": self.default}


def check_values(
    parameters: Sequence[Parameter], given: Mapping[str, Any], *, known: Iterable[str] = ()
) -> tuple[Values, list[Fault]]:
    """Return the values of all parameters, with defaults, and everything that is wrong with them.

    `known` are further names that are not an error: those of other templates in the same call.
    """
    faults: list[Fault] = []
    values: Values = {}
    for each in parameters:
        value = given.get(each.name)
        if value is None:
            if each.required:
                faults.append(Fault(each.name, "is required"))
            values[each.name] = each.default
        else:
            faults += [Fault(each.name, fault) for fault in each.faults(value)]
            values[each.name] = value
    names = sorted({each.name for each in parameters} | {*known})
    for name in given:
        if len(faults) >= MAX_FAULTS:
            break
        if name not in names:
            near = nearest(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            faults.append(Fault(shorten(name, VALUE_CHARACTERS), f"is not a parameter{hint}"))
    return values, faults[:MAX_FAULTS]


def describe_parameters(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the closed JSON Schema of the parameters of a template."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {each.name: each.schema() for each in parameters},
        "additionalProperties": False,
    }
    required = [each.name for each in parameters if each.required]
    return schema | {"required": required} if required else schema


# --- reading ----------------------------------------------------------------------------------


def read_parameter(name: str, table: Mapping[str, Any]) -> Parameter:
    """Read the declaration of a parameter. Raises ValueError with what is wrong."""
    if not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise ValueError(f"the parameter {name[:60]!r} must be a name of letters, digits and _")
    where = f"the parameter {name!r}"
    for key, value in table.items():
        if key != "default" and key not in _KEYS:
            near = nearest(key, [*_KEYS, "default"], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where} has an unknown key {key[:60]!r}{hint}")
        if key in _KEYS and not isinstance(value, _KEYS[key]):
            raise ValueError(f"{where}: {key} must be a {_KEYS[key].__name__}")
    kind = table.get("type")
    if kind not in _CLASSES:
        raise ValueError(f"{where} needs a type: {', '.join(_CLASSES)}")
    if table.get("format", "line") not in FORMATS:
        raise ValueError(f"{where}: format must be one of {', '.join(FORMATS)}")
    if table.get("item_type", "string") not in _ITEM_TYPES:
        raise ValueError(f"{where}: item_type must be one of {', '.join(_ITEM_TYPES)}")
    if not table.get("description"):
        raise ValueError(f"{where} needs a description")
    parameter = Parameter(
        name=name,
        type=kind,
        description=table["description"],
        required=table.get("required", False),
        default=table.get("default"),
        format=table.get("format", "line"),
        choices=_scalars(where, "choices", table),
        reserved=frozenset(map(str, _scalars(where, "reserved", table))),
        item_type=table.get("item_type", "string"),
    )
    if parameter.default is not None:
        faults = list(parameter.faults(parameter.default))
        if faults:
            raise ValueError(f"{where}: its default {faults[0]}")
    return parameter


def _scalars(where: str, key: str, table: Mapping[str, Any]) -> tuple[Any, ...]:
    values = table.get(key, [])
    if not all(isinstance(each, str | int | float) for each in values):
        raise ValueError(f"{where}: {key} must contain only texts and numbers")
    return tuple(values)


_SHOWN: Final[dict[type, Callable[[Any], str]]] = {
    bool: lambda value: str(value).lower(),
    dict: lambda _: "an object",
    list: lambda _: "a list",
    str: lambda value: repr(shorten(value, VALUE_CHARACTERS)),
}


def _shown(value: Any) -> str:
    """Return a value for a message."""
    show = _SHOWN.get(type(value), lambda other: shorten(str(other), VALUE_CHARACTERS))
    return show(value)
