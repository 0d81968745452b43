"""Generator of docs/reference.md: every built-in method, as the schema describes it.

`PYTHONPATH=. python tests/reference.py` writes the file; a test fails if it is out of date.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from substrate.build_hub import build_hub
from substrate.settings import Settings

__all__ = ("REFERENCE", "described", "reference")

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"
BEGINNING = """# Reference

Every method that is built in, as `plexus.schema` describes it. Made from the code.
"""


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
    return lines


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
