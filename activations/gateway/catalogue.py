"""What another server offers, as it was last listed, and what of it is trusted.

Trust on first use: the SHA-256 of every tool definition is pinned when a mount is used first. A
tool whose definition changes later, or that is new, is held until a person approves it; the set of
names is pinned too, because a rename would otherwise evade the pin of a definition. A tool that
disappears and comes back unchanged is not held.

A catalogue is a value; `plexus` does not know it, and nothing here does I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from activations.gateway.visible_text import difference
from plexus.rpc import wire

__all__ = (
    "Catalogue",
    "Definition",
    "Held",
    "decode_catalogue",
    "digest_of",
    "encode_catalogue",
    "merge",
    "read_entries",
    "read_tools",
)

Definition: TypeAlias = dict[str, Any]

#: Maximum tools, and other entries of a list, of one mount. A server with more needs `allow`.
MAX_TOOLS: Final = 1000
MAX_ENTRIES: Final = 5000
#: Maximum bytes of the definition of a tool, as JSON.
MAX_DEFINITION_BYTES: Final = 64 * 1024
#: Maximum characters of the name of a tool or prompt.
MAX_NAME_CHARS: Final = 200
#: Maximum problems that are remembered.
MAX_PROBLEMS: Final = 20
#: Maximum removed tools whose pins are kept.
MAX_REMOVED: Final = 1000
#: The format of the file.
FORMAT: Final = 1


class Held(NamedTuple):
    """A tool that waits for approval."""

    change: Literal["changed", "new"]
    #: The definition that waits, and the approved one, if there is one.
    definition: Definition
    approved: Definition | None = None

    def difference(self) -> list[str]:
        """Return what would change, line by line."""
        return difference(self.approved, self.definition)


class Catalogue(NamedTuple):
    """The lists of one server."""

    #: Name, version, title, instructions and revision of the server.
    server: Mapping[str, Any]
    #: The approved definitions by name; those of held tools are included.
    tools: dict[str, Definition]
    held: dict[str, Held]
    #: Approved tools that the server no longer lists.
    removed: dict[str, Definition]
    resources: list[dict[str, Any]]
    templates: list[dict[str, Any]]
    prompts: list[dict[str, Any]]
    #: Why entries of the server are not offered.
    problems: tuple[str, ...] = ()
    #: When it was listed, in seconds since 1970.
    listed_at: float = 0.0

    @property
    def digests(self) -> dict[str, str]:
        """The pin of each approved tool."""
        return {name: digest_of(definition) for name, definition in self.tools.items()}

    @property
    def set_digest(self) -> str:
        """The pin of the set of approved tools."""
        return hashlib.sha256(wire.encode_canonical(self.digests)).hexdigest()

    def approve(self, names: Iterable[str] | None = None) -> Catalogue:
        """Return the catalogue with these held tools approved, by default all of them."""
        chosen = set(self.held if names is None else names)
        tools = self.tools | {
            name: held.definition for name, held in self.held.items() if name in chosen
        }
        held = {name: each for name, each in self.held.items() if name not in chosen}
        return self._replace(tools=dict(sorted(tools.items())), held=held)

    def same_lists(self, other: Catalogue) -> bool:
        """Whether another catalogue offers the same."""
        return self._replace(listed_at=0.0) == other._replace(listed_at=0.0)


def digest_of(definition: Definition) -> str:
    """Return the pin of a definition: every field counts, in any order."""
    return hashlib.sha256(wire.encode_canonical(definition)).hexdigest()


def merge(known: Catalogue | None, listed: Catalogue, *, pinned: bool) -> Catalogue:
    """Return what is offered after a server was listed again.

    Without a known catalogue, or if the mount is not pinned, everything listed is approved.
    """
    if known is None or not pinned:
        return listed
    approved = known.removed | known.tools
    tools: dict[str, Definition] = {}
    held: dict[str, Held] = {}
    for name, definition in listed.tools.items():
        former = approved.get(name)
        if former is None:
            held[name] = Held("new", definition)
            continue
        tools[name] = former
        if former != definition:
            held[name] = Held("changed", definition, former)
    gone = {name: each for name, each in approved.items() if name not in listed.tools}
    removed = dict(list(gone.items())[-MAX_REMOVED:])
    return listed._replace(tools=tools, held=held, removed=removed)


# --- reading lists of the server --------------------------------------------------------------


def read_tools(listed: Iterable[Any]) -> tuple[dict[str, Definition], list[str]]:
    """Return the usable tools of a list by name, sorted, and why others are not usable."""
    tools: dict[str, Definition] = {}
    problems: list[str] = []
    for each in listed:
        fault = _fault_of_tool(each)
        if fault is None and each["name"] in tools:
            fault = "is listed twice"
        if fault is not None:
            name = each.get("name") if isinstance(each, dict) else each
            problems.append(f"tool {str(name)[:MAX_NAME_CHARS]!r} {fault}")
        elif len(tools) >= MAX_TOOLS:
            problems.append(f"more than {MAX_TOOLS} tools; choose some with allow")
            break
        else:
            tools[each["name"]] = each
    return dict(sorted(tools.items())), problems[:MAX_PROBLEMS]


def _fault_of_tool(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return "is not an object"
    name, schema = tool.get("name"), tool.get("inputSchema")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        return "has no name"
    if not isinstance(tool.get("description", ""), str):
        return "has a description that is no text"
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "has no inputSchema of an object"
    try:
        size = len(wire.encode(tool))
    except ValueError:
        return "has a definition without a JSON form"
    return None if size <= MAX_DEFINITION_BYTES else f"has a definition of {size} bytes"


def read_entries(listed: Iterable[Any], key: str) -> list[dict[str, Any]]:
    """Return the entries of a list that have this key, each once, sorted by it."""
    found: dict[str, dict[str, Any]] = {}
    for each in listed:
        if isinstance(each, dict) and isinstance(each.get(key), str) and each[key]:
            found.setdefault(each[key], each)
        if len(found) >= MAX_ENTRIES:
            break
    return [found[name] for name in sorted(found)]


# --- the form on disk -------------------------------------------------------------------------


def encode_catalogue(catalogue: Catalogue) -> bytes:
    """Return the catalogue as JSON."""
    held = {
        name: {"change": each.change, "definition": each.definition, "approved": each.approved}
        for name, each in catalogue.held.items()
    }
    pins = {"digests": catalogue.digests, "set": catalogue.set_digest}
    return wire.encode(catalogue._asdict() | {"held": held, "pins": pins, "format": FORMAT})


def decode_catalogue(raw: bytes) -> Catalogue | None:
    """Return the catalogue; None for a file of another format, or a damaged one."""
    try:
        fields = wire.decode_trusted(raw)
        if fields.pop("format") != FORMAT:
            return None
        del fields["pins"]  # for people: they follow from the definitions
        fields["held"] = {name: Held(**each) for name, each in fields["held"].items()}
        fields["problems"] = tuple(fields["problems"])
        return Catalogue(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
