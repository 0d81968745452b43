"""Answers to questions of a server."""

from __future__ import annotations

from typing import Any

from mcp_view.client.items import Question

__all__ = ("with_defaults",)


def with_defaults(question: Question, result: dict[str, Any]) -> dict[str, Any]:
    """Return an accepted form with the defaults of the fields that it lacks.

    For a form that was accepted without showing its fields; a person who has seen them may have
    emptied one on purpose.
    """
    content = result.get("content")
    schema = question.params.get("requestedSchema")
    if question.kind != "form" or result.get("action") != "accept" or not isinstance(schema, dict):
        return result
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not isinstance(content, dict):
        return result
    defaults = {
        name: field["default"]
        for name, field in properties.items()
        if isinstance(field, dict) and "default" in field
    }
    return result | {"content": defaults | content}
