"""The catalogue of a target: namespaces, methods and their schemas.

It is read from a hub in this process, which creates schemas one at a time, or from the complete
schema of a server.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from plexus.registry.schema import describe_method
from plexus.runtime.hub import Plexus

__all__ = (
    "Catalogue",
    "HubCatalogue",
    "MethodInfo",
    "NamespaceInfo",
    "SchemaCatalogue",
    "find_method",
    "method_names",
    "suggest",
    "walk",
)

Described = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method without its schema."""

    name: str
    summary: str
    streaming: bool
    scope: str


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """An activation at its path, without its children."""

    path: str
    version: str
    description: str
    methods: tuple[MethodInfo, ...]


class Catalogue(Protocol):
    """Namespaces and methods that can be called."""

    def namespaces(self) -> list[NamespaceInfo]:
        """Return all namespaces, sorted, parents before children."""

    def schema(self) -> Described:
        """Return the complete schema."""

    def method(self, name: str) -> Described:
        """Return the schema of the method with exactly this name."""


class HubCatalogue:
    """Catalogue of a hub in this process."""

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub

    def namespaces(self) -> list[NamespaceInfo]:
        methods: dict[str, list[MethodInfo]] = {}
        for spec in self._hub.methods():
            path = spec.name.rpartition(".")[0]
            entry = MethodInfo(spec.name, spec.summary, spec.kind != "plain", spec.scope)
            methods.setdefault(path, []).append(entry)
        return [
            NamespaceInfo(
                node.path,
                node.version,
                _one_line(node.description),
                tuple(methods.get(node.path, ())),
            )
            for node in sorted(self._hub.nodes(), key=lambda node: node.path)
        ]

    def schema(self) -> Described:
        return self._hub.schema()

    def method(self, name: str) -> Described:
        return describe_method(self._hub.resolve(name))


class SchemaCatalogue:
    """Catalogue read from a complete schema."""

    def __init__(self, schema: Described) -> None:
        self._schema = schema

    def namespaces(self) -> list[NamespaceInfo]:
        return [
            NamespaceInfo(
                node["namespace"],
                node["version"],
                _one_line(node["description"]),
                tuple(
                    MethodInfo(
                        entry["name"],
                        _summary(entry["description"]),
                        entry["streaming"],
                        entry.get("scope", ""),
                    )
                    for entry in node["methods"]
                ),
            )
            for node in walk(self._schema["activations"])
        ]

    def schema(self) -> Described:
        return self._schema

    def method(self, name: str) -> Described:
        found: Described = next(
            entry
            for node in walk(self._schema["activations"])
            for entry in node["methods"]
            if entry["name"] == name
        )
        return found


def walk(activations: Iterable[Described]) -> Iterator[Described]:
    """Yield every activation of a schema, parents before children."""
    for node in activations:
        yield node
        yield from walk(node.get("children", ()))


def method_names(catalogue: Catalogue) -> list[str]:
    """Return the names of all methods, sorted."""
    return sorted(
        method.name for namespace in catalogue.namespaces() for method in namespace.methods
    )


def find_method(catalogue: Catalogue, name: str) -> str | None:
    """Return the dotted name of a method, which may have underscores instead; None if unknown."""
    names = method_names(catalogue)
    if name in names:
        return name
    return next((known for known in names if known.replace(".", "_") == name), None)


def suggest(name: str, names: Iterable[str]) -> str:
    """Return a sentence with similar names, or an empty string."""
    names = list(names)
    # A name without its namespace, or with a similar last part, also finds its method.
    last_parts = [known for known in names if known.rpartition(".")[2] == name]
    close = last_parts or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not close:
        return ""
    *others, last = close
    return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"


def _summary(description: str) -> str:
    return description.partition("\n\n")[0].replace("\n", " ")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
