"""Descriptions of methods and of their arguments, read from docstrings."""

from __future__ import annotations

from typing import Final

__all__ = ("read_docstring",)

_HEADINGS: Final = ("args:", "arguments:", "parameters:", "params:")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and its `Args:` section."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    current: str | None = None
    indent = 0  # of the arguments' names; 0 outside of the section
    for line in doc.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip().lower() in _HEADINGS:
            indent, current = depth + 1, None
        elif not indent or (line.strip() and depth < indent):
            indent = 0
            description.append(line)
        elif line.strip():
            name, colon, text = line.strip().partition(":")
            name = name.partition("(")[0].strip().lstrip("*")
            if current is None:
                indent = depth
            if depth == indent and colon and name.isidentifier():
                current = name
                arguments[current] = text.strip()
            elif current is not None:
                arguments[current] += " " + line.strip()
    return "\n".join(description).strip(), arguments
