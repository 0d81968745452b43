"""Nodes as somebody sees them who looks from outside: in a drawing, or in a list of addresses."""

from __future__ import annotations

from typing import Any, NamedTuple

from activations.arbor.model import Handle

__all__ = ("Branch", "Named")


class Branch(NamedTuple):
    """A node in a drawing: the beginning of its text, and how many children it has."""

    n: int
    id: str
    #: The number of its parent; None for the node that the drawing begins with.
    parent: int | None
    text: str | None
    handle: Handle | None
    replaced: bool
    children: int


class Named(NamedTuple):
    """A node in a list of addresses: the beginning of its text, or its handle."""

    tree: str
    node: str
    text: str
    metadata: Any
