"""A schema with every unusual valid construct, and the expected generated clients.

python tests/substrate/codegen/odd_schemas.py     updates the expected files
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from substrate.devtools.codegen import python, typescript

__all__ = ("GOLDEN", "ODD", "WRITERS", "written")

GOLDEN = Path(__file__).with_name("golden")


def event(title: str, tag: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an event."""
    return {
        "type": "object",
        "title": title,
        "properties": {"type": {"const": tag, "description": "the kind of event"}, **properties},
        "required": ["type", *properties],
        "additionalProperties": False,
    }


def plain(name: str, params: Any, result: Any, description: str = "") -> dict[str, Any]:
    """Return the schema of a method that returns a value."""
    described = {"name": name, "description": description, "streaming": False, "scope": "odd"}
    return {**described, "params": params, "result": result}


def params(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of named parameters."""
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**closed, "required": list(required)} if required else closed


NOTHING = params()
TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    "required": ["children"],
    "additionalProperties": False,
}
JSON = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {"type": "array", "items": {"$ref": "#/$defs/Json"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}},
    ]
}
#: A text that tries to escape from comments and string literals.
ESCAPING = (
    'It says */ process.exit(1) /* and """ import os """ and `${1}` and \\" and \\u0041\\\n'
    "\n\tIndented; then a hidden turn\u202e, a zero\x00, a line\u2028separator and a \\"
)

ODD: dict[str, Any] = {
    "name": "odd",
    "version": "1.0.0",
    "hash": "0123456789abcdef" * 4,
    "activations": [
        {
            "namespace": "odd",
            "version": "1.0.0",
            "description": 'Ends with a "quote"',
            "methods": [
                plain("odd.import", NOTHING, {"type": "null"}, ESCAPING),
                plain("odd.constructor", NOTHING, {}, "Named like a part of JavaScript."),
                plain("odd.then", NOTHING, True, "Would make a promise of its namespace."),
                plain(
                    "odd.list",
                    params(
                        "int",
                        int={"type": "array", "items": {"type": "integer"}},
                        str={"type": "object", "additionalProperties": {"type": "number"}},
                    ),
                    {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                    "Hides a type of Python.",
                ),
                plain(
                    "odd.dict",
                    params("list", list={"type": "array"}),
                    {
                        "type": "object",
                        "properties": {"list": {"type": "array"}, "dict": {"type": "object"}},
                    },
                ),
                plain(
                    "odd.names",
                    params(
                        "class",
                        "a-b",
                        "1st",
                        "self",
                        **{
                            "class": {"type": "string"},
                            "a-b": {"type": "string", "description": "with */ in it", "default": 1},
                            "a_b": {"type": "string"},
                            "1st": {"type": "string"},
                            "self": {"type": "string"},
                            "drop_omitted": {"type": "string"},
                            "grüße": {"type": "string"},
                            '"; x("': {"type": "string"},
                            "__proto": {"type": "string"},
                            "others": {"type": "string"},
                        },
                    )
                    | {"additionalProperties": {"type": "integer"}},
                    {
                        "type": "object",
                        "properties": {
                            "from": {"type": "integer", "description": "Where it begins."},
                            "a-b": {"type": "string"},
                            "\u202e": {"const": '"\u202e\n\\'},
                            "__private": {"type": "boolean"},
                        },
                        "required": ["from", "undeclared"],
                        "additionalProperties": True,
                    },
                ),
                plain(
                    "odd.constants",
                    params(
                        mixed={"enum": ["a", 1, True, None, 1.5, "\U0001f600\ue000"]},
                        one={"const": 1},
                        yes={"const": True},
                        half={"const": 0.5},
                        thing={"const": {"a": 1}},
                        none={"enum": []},
                        words={"type": "string", "enum": ["it's", 'a "b"', "*/"]},
                    ),
                    {"enum": [1, 2, 3]},
                ),
                plain(
                    "odd.shapes",
                    params(
                        pair={
                            "type": "array",
                            "prefixItems": [{"type": "integer"}, {"type": "string"}],
                            "minItems": 2,
                            "maxItems": 2,
                        },
                        loose={"type": "array", "prefixItems": [{"type": "integer"}]},
                        inner={
                            "type": "object",
                            "properties": {
                                "deeper": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "properties": {"x": {"type": "number"}},
                                        "required": ["x"],
                                    },
                                }
                            },
                            "additionalProperties": False,
                        },
                        empty={"type": "object", "additionalProperties": False},
                        both={
                            "allOf": [
                                {
                                    "type": "object",
                                    "properties": {"a": {"type": "integer"}},
                                    "required": ["a"],
                                },
                                {"properties": {"b": {"type": "string"}}},
                            ]
                        },
                        impossible={"allOf": [{"type": "string"}, {"type": "integer"}]},
                        never=False,
                        anything=True,
                        either={
                            "oneOf": [
                                {"type": "object", "properties": {"a": {"type": "integer"}}},
                                {"type": "object", "properties": {"b": {"type": "integer"}}},
                                {"anyOf": [{"type": "null"}, {"type": "null"}]},
                            ]
                        },
                        listed={"type": ["integer", "null"]},
                        unknown={"type": "colour"},
                        conditional={
                            "type": "object",
                            "properties": {"a": {"type": "integer"}},
                            "anyOf": [{"required": ["a"]}],
                        },
                    ),
                    {"$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
                ),
                plain(
                    "odd.references",
                    {
                        "$ref": "#/$defs/P",
                        "$defs": {
                            "P": params(
                                json={"$ref": "#/$defs/Json"},
                                chain={"$ref": "#/$defs/A"},
                                circle={"$ref": "#/$defs/C"},
                                missing={"$ref": "#/$defs/Nowhere"},
                                elsewhere={"$ref": "https://example.org/schema"},
                                escaped={"$ref": "#/$defs/a~1b%20c"},
                                tree={"$ref": "#/$defs/Tree"},
                                other={"$ref": "#/$defs/Other"},
                            ),
                            "Json": JSON,
                            "A": {"$ref": "#/$defs/B"},
                            "B": {"type": "integer"},
                            "C": {"$ref": "#/$defs/D"},
                            "D": {"$ref": "#/$defs/C"},
                            "a/b c": {"type": "string"},
                            "Tree": {**TREE, "description": "the same in other words"},
                            "Other": params("x", x={"type": "string"}),
                        },
                    },
                    {
                        "$ref": "#/$defs/Other",
                        "$defs": {"Other": params("x", x={"type": "integer"})},
                    },
                ),
                {
                    "name": "odd.broken",
                    "description": "Has types without a schema.",
                    "streaming": True,
                    "scope": "odd",
                    "params": {"type": "object"},
                    "broken": "odd.broken has no schema",
                },
                {
                    "name": "odd.stream",
                    "description": "Says much.",
                    "streaming": True,
                    "scope": "odd",
                    "params": NOTHING,
                    "events": {
                        "oneOf": [
                            event("Log", "log", text={"type": "string"}),
                            event("Done", "complete", result={"type": "integer"}),
                            event("Done", "complete", other={"$ref": "#/$defs/Tree"}),
                            event("RunEvent", "a\"b'\n", **{"from": {"type": "integer"}}),
                        ],
                        "$defs": {"Tree": TREE},
                    },
                },
            ],
            "children": [
                {
                    "namespace": "odd.then",
                    "version": "1.0.0",
                    "description": "",
                    "methods": [plain("odd.then.await", NOTHING, {"type": "integer"})],
                },
                {
                    "namespace": "odd.class",
                    "version": "1.0.0",
                    "description": "Named like a word of both languages.",
                    "methods": [plain("odd.class.def", NOTHING, {"type": "integer"})],
                },
            ],
        },
        {
            "namespace": "call",
            "version": "1.0.0",
            "description": "Named like what the client has itself.",
            "methods": [plain("call.me", NOTHING, {"type": "string"})],
        },
        {
            "namespace": "client",
            "version": "1.0.0",
            "description": "And this one.",
            "methods": [plain("client.error", NOTHING, {"type": "string"})],
        },
        {
            "namespace": "plexus",
            "version": "1.0.0",
            "description": "The server itself.",
            "methods": [
                plain(
                    "plexus.error",
                    NOTHING,
                    {"$ref": "#/$defs/Error", "$defs": {"Error": params(x={"type": "integer"})}},
                ),
                plain("plexus.unsubscribe", NOTHING, {"type": "boolean"}),
                {
                    "name": "plexus.attach",
                    "description": "Follow a run.",
                    "streaming": True,
                    "scope": "read",
                    "params": params("run", run={"type": "integer"}, after={"type": "integer"}),
                },
            ],
        },
    ],
}

WRITERS: dict[str, tuple[Callable[..., str], str]] = {
    "odd.py.txt": (python.write_python, python.RUNTIME),
    "odd.ts.txt": (typescript.write_typescript, typescript.RUNTIME),
}


def written(name: str) -> str:
    """Return the generated client without the runtime, which is the same in every client."""
    write, runtime = WRITERS[name]
    return write(ODD, [], ["substrate", "codegen"]).replace(runtime, "(the runtime)\n")


if __name__ == "__main__":
    for file in WRITERS:
        (GOLDEN / file).write_text(written(file), encoding="utf-8")
