"""References inside JSON Schemas: `{"$ref": "#/$defs/Name"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ("find_definition", "resolve_reference")

Schema = dict[str, Any]

#: Where definitions are, in JSON Schema since 2019-09 and before.
PREFIXES = ("#/$defs/", "#/definitions/")


def find_definition(reference: object, definitions: Mapping[str, Any]) -> str | None:
    """Return the name of the definition that a `$ref` points to; None if there is none."""
    for prefix in PREFIXES:
        if isinstance(reference, str) and reference.startswith(prefix):
            name = unquote(reference.removeprefix(prefix)).replace("~1", "/").replace("~0", "~")
            return name if name in definitions else None
    return None


def resolve_reference(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Return the schema that a reference leads to, with what stands beside the reference.

    Members beside a reference win. An unknown definition, and a cycle, lead to any value.
    """
    resolved: Schema = {**schema}
    visited: set[str] = set()
    while "$ref" in resolved:
        name = find_definition(resolved.pop("$ref"), definitions)
        if name is not None and name not in visited:
            visited.add(name)
            resolved = {**definitions[name], **resolved}
    return resolved
