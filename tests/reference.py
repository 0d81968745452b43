"""Generator of docs/reference.md and docs/events.md: built-in methods and the fields of all events.

`PYTHONPATH=. python tests/reference.py` writes the files; a test fails if one is out of date.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plexus
from plexus import events
from plexus.event_class import REQUIRED
from plexus.events import Complete, Event, Terminal
from substrate.build_hub import build_hub
from substrate.settings import Settings

__all__ = ("EVENTS", "REFERENCE", "described", "event_reference", "reference")

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"
EVENTS = REFERENCE.with_name("events.md")
BEGINNING = """# Built-in methods

Every built-in method, as `plexus.schema` describes it: its parameters, and the events that it
yields in addition to those of [every run](events.md). Generated from the code; `substrate schema
METHOD` prints one.
"""
EVENTS_BEGINNING = """# Events

Every event has a `type`, and the fields below. Import the classes that methods yield from `plexus`,
the others from `plexus.events`. Generated from `plexus/events.py`.

A field whose default is null is left out while it is null. Define events of your own with
[a class](writing-an-activation.md#define-typed-events).
"""
#: Tags of events that docs/events.md describes, and that the tables of methods leave out.
COMMON = frozenset({"content", "data", "progress", "log", "image", "audio", "resource"})
#: The sections of docs/events.md, with what their events have in common.
SECTIONS: dict[str, Callable[[type[Event]], bool]] = {
    "Events that methods yield": (
        lambda event: not issubclass(event, Terminal) and event.__name__ in plexus.__all__
    ),
    "Events that the runtime creates": (
        lambda event: not issubclass(event, Terminal) and event.__name__ not in plexus.__all__
    ),
    "Terminals": lambda event: issubclass(event, Terminal),
}


def described(folder: Path) -> list[dict[str, Any]]:
    """Return the activations of a hub that is started in this folder, without plugins."""

    async def read() -> list[dict[str, Any]]:
        hub, _ = build_hub(Settings(), folder)
        found: list[dict[str, Any]] = hub.schema()["activations"]
        await hub.close()
        return found

    return asyncio.run(read())


def reference(activations: list[dict[str, Any]]) -> str:
    """Return the whole document."""
    return BEGINNING + "".join(_activation(each) for each in activations)


def event_reference() -> str:
    """Return the document of events. Raises KeyError for a field without a description."""
    classes = [
        found
        for found in vars(events).values()
        if isinstance(found, type)
        and issubclass(found, Event)
        and found not in (Event, Terminal)
        and found.__module__ == events.__name__
    ]
    descriptions = _descriptions()
    lines = [EVENTS_BEGINNING]
    for title, belongs in SECTIONS.items():
        lines += [f"## {title}", ""]
        for event in classes:
            if belongs(event):
                lines += _event(event, descriptions)
    return "\n".join(lines)


def _event(event: type[Event], descriptions: dict[tuple[str, str], str]) -> list[str]:
    lines = [f"### {event.__name__}", "", f"`{event.type}`. {inspect.getdoc(event)}", ""]
    if event is Complete:
        lines += ["No fields; a subclass adds some, and keeps the type.", ""]
    if not event.fields:
        return lines
    lines += ["| Field | Type | |", "|---|---|---|"]
    for name, default in event.fields.items():
        kind = str(event.hints[name]).replace("typing.", "").replace("|", "\\|")
        text = descriptions[event.__name__, name]
        if default not in (None, REQUIRED):
            text += f" Default: `{default}`."
        shown = f"`{name.rstrip('_')}`" + ("" if default is REQUIRED else " (optional)")
        lines.append(f"| {shown} | `{kind}` | {text} |")
    return [*lines, ""]


def _descriptions() -> dict[tuple[str, str], str]:
    """Return the `#:` comment of each field, by class and field."""
    source = inspect.getsource(events)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                comment = re.fullmatch(r" *#: (.*)", lines[field.lineno - 2])
                if comment is not None:
                    found[node.name, field.target.id] = comment[1]
    return found


def _activation(activation: dict[str, Any]) -> str:
    lines = ["", f"## {activation['namespace']}", "", activation["description"], ""]
    for method in activation["methods"]:
        lines += _method(method)
    return "\n".join(lines)


def _method(method: dict[str, Any]) -> list[str]:
    how = "streams" if method["streaming"] else "answers once"
    kind = {"prompt": "a prompt", "resource": "a resource"}.get(method.get("role", ""), "")
    about = ", ".join(word for word in (how, kind, f"scope `{method['scope']}`") if word)
    lines = [f"### {method['name']}", "", f"*{about}*", "", method["description"], ""]
    parameters = method["params"].get("properties", {})
    if parameters:
        lines += ["| Parameter | Type | |", "|---|---|---|"]
        required = method["params"].get("required", ())
        for name, schema in parameters.items():
            shown = f"`{name}`" if name in required else f"`{name}` (optional)"
            text = " ".join(str(schema.get("description", "")).split()).replace("|", "\\|")
            if schema.get("default") not in (None, False):
                text += f" Default: `{schema['default']}`."
            lines.append(f"| {shown} | {_type(schema)} | {text} |")
        lines.append("")
    return lines + _events(method.get("events", {}))


def _events(schema: dict[str, Any]) -> list[str]:
    """Return the table of the events of a method, without those that every run may yield."""
    own = []
    for event in schema.get("oneOf", [schema] if "properties" in schema else ()):
        properties = dict(event["properties"])
        tag = properties.pop("type", {}).get("const")
        if tag in COMMON:
            continue
        fields = ", ".join(f"`{name}`: {_type(each)}" for name, each in properties.items())
        text = " ".join(event.get("description", "").split()).replace("|", "\\|")
        own.append(f"| `{tag}` | {fields or 'none'} | {text} |")
    return ["| Event | Fields | |", "|---|---|---|", *own, ""] if own else []


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        kinds = [_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(each for each in kind if each != "null")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(kind) if "$ref" not in schema else "object"


if __name__ == "__main__":
    REFERENCE.write_text(reference(described(REFERENCE.parent)))
    EVENTS.write_text(event_reference())
