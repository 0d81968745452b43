"""The addresses of trees and nodes as resources, and what kind of text a node holds."""

from __future__ import annotations

from typing import Any

__all__ = (
    "NODE_TEMPLATE",
    "PLAIN",
    "TREE_TEMPLATE",
    "media_type",
    "node_uri",
    "title_of",
    "tree_uri",
)

TREE_TEMPLATE = "arbor://tree/{tree}"
NODE_TEMPLATE = "arbor://tree/{tree}/node/{node}"
PLAIN = "text/plain"


def tree_uri(tree: str) -> str:
    """Where a tree is read."""
    return f"arbor://tree/{tree}"


def node_uri(tree: str, node: str) -> str:
    """Where a node is read."""
    return f"arbor://tree/{tree}/node/{node}"


def media_type(metadata: Any) -> str | None:
    """What a node's metadata says that its text is."""
    kind = metadata.get("media_type") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) and kind else None


def title_of(metadata: Any) -> str | None:
    """What a tree's or node's metadata says that it is called."""
    title = metadata.get("title") if isinstance(metadata, dict) else None
    return title if isinstance(title, str) and title else None
