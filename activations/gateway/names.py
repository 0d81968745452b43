"""Names and URIs of another server, as this server offers them, and the way back.

A tool is always `mount.tool`, whatever other mounts there are. A URI becomes `mount://NAME/URI`;
`ui://` keeps its scheme, by which hosts recognise what they can show.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from plexus.registry.activation_tree import NAME_LENGTH
from plexus.registry.uri_templates import Template

__all__ = (
    "MountTemplate",
    "inner_uri",
    "method_names",
    "outer_uri",
    "rewrite_blocks",
    "rewrite_meta",
    "variables_of",
)

SCHEME: Final = "mount://"
UI: Final = "ui://"
_INVALID: Final = re.compile(r"[^A-Za-z0-9]+")
_EXPRESSION: Final = re.compile(r"\{[+#./;?&]?([^{}]*)\}")
#: Maximum variables of a template whose values are suggested.
MAX_VARIABLES: Final = 100
#: Characters of a hash that makes a name unique.
HASH_CHARS: Final = 6


def method_names(mount: str, tools: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the method of each tool, by the tool's own name.

    A name has only letters, digits and underscores, and at most 64 characters together with the
    mount, because some hosts refuse all others. Where that makes two names equal, or a name too
    long, it ends with a hash of the tool's own name, which is the same at every start.
    """
    methods: dict[str, str] = {}
    taken: dict[str, str] = {}
    for tool in sorted(tools):
        method = f"{mount}.{_method_name(renamed.get(tool, tool))}"
        # Many clients do not distinguish dots and underscores.
        if len(method) > NAME_LENGTH or method in taken:
            mark = "_" + hashlib.sha256(tool.encode()).hexdigest()[:HASH_CHARS]
            method = method[: NAME_LENGTH - len(mark)] + mark
        taken[method] = tool
        methods[tool] = method
    return methods


def _method_name(tool: str) -> str:
    name = _INVALID.sub("_", tool).strip("_") or "tool"
    name = name[0].lower() + name[1:]
    return name if name[0].isalpha() else f"tool_{name}"


def outer_uri(mount: str, uri: str) -> str:
    """Return a URI of the other server as this server offers it."""
    if uri.startswith(UI):
        return f"{UI}{mount}/{uri.removeprefix(UI)}"
    return f"{SCHEME}{mount}/{uri}"


def inner_uri(mount: str, uri: str) -> str | None:
    """Return the URI of the other server; None if it is not one of this mount."""
    for prefix, scheme in ((f"{SCHEME}{mount}/", ""), (f"{UI}{mount}/", UI)):
        if uri.startswith(prefix) and len(uri) > len(prefix):
            return scheme + uri.removeprefix(prefix)
    return None


def variables_of(template: str) -> list[str]:
    """Return the variables of a URI template of RFC 6570 with any of its operators, in order."""
    names = (
        name.partition(":")[0].removesuffix("*")
        for expression in _EXPRESSION.findall(template)
        for name in expression.split(",")
    )
    return list(dict.fromkeys(filter(None, names)))[:MAX_VARIABLES]


class MountTemplate(Template):
    """All URIs of a mount: whether one exists is known to the other server."""

    def __init__(self, mount: str) -> None:
        super().__init__(f"{SCHEME}{mount}/{{uri}}")
        self._mount = mount

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the URI of the other server as the variable `uri`; None for other mounts."""
        inner = inner_uri(self._mount, uri)
        return None if inner is None else {"uri": inner}


# --- inside of messages -----------------------------------------------------------------------


def rewrite_blocks(mount: str, blocks: list[Any]) -> list[dict[str, Any]]:
    """Return content blocks, contents of a resource or messages with the URIs of this server."""
    return [_rewrite_block(mount, block) for block in blocks if isinstance(block, dict)]


def _rewrite_block(mount: str, block: dict[str, Any]) -> dict[str, Any]:
    uri = block.get("uri")
    if isinstance(uri, str):
        block = block | {"uri": outer_uri(mount, uri)}
    for key in ("resource", "content"):
        inner = block.get(key)
        if isinstance(inner, dict):
            block = block | {key: _rewrite_block(mount, inner)}
    return block


def rewrite_meta(mount: str, meta: Any) -> dict[str, Any] | None:
    """Return the `_meta` of the other server: with our URIs, and without keys of the protocol."""
    if not isinstance(meta, dict):
        return None
    kept = {
        key: value for key, value in meta.items() if not key.startswith("io.modelcontextprotocol/")
    }
    view = kept.get("ui")
    if isinstance(view, dict) and isinstance(view.get("resourceUri"), str):
        kept["ui"] = view | {"resourceUri": outer_uri(mount, view["resourceUri"])}
    flat = kept.get("ui/resourceUri")
    if isinstance(flat, str):
        kept["ui/resourceUri"] = outer_uri(mount, flat)
    return kept or None
