"""References inside JSON Schemas, as pydantic writes them: `{"$ref": "#/$defs/Name"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ("resolve_reference",)

Schema = dict[str, Any]


def resolve_reference(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Return the schema that a reference leads to, with what stands beside the reference.

    Members beside a reference win. An unknown definition, and a cycle, lead to any value.
    """
    resolved: Schema = {**schema}
    visited = set()
    while "$ref" in resolved:
        name = str(resolved.pop("$ref")).rpartition("/")[2]
        target = {} if name in visited else definitions.get(name, {})
        visited.add(name)
        resolved = {**target, **resolved}
    return resolved
