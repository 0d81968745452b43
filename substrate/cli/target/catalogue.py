"""What a hub offers, as the commands want to know it: namespaces, their methods, their names.

It is read either from a hub in this process, where names and summaries cost nothing and schemas
are made one by one, or from the schema that a server gives as a whole.
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
    "nearest",
    "walk",
)

Described = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method, without its schema."""

    name: str
    summary: str
    streaming: bool
    scope: str


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """An activation in its place, without those inside it."""

    path: str
    version: str
    description: str
    methods: tuple[MethodInfo, ...]


class Catalogue(Protocol):
    """What there is to call."""

    def namespaces(self) -> list[NamespaceInfo]:
        """Every namespace, sorted, those inside another after it."""

    def described(self) -> Described:
        """The whole schema."""

    def method(self, name: str) -> Described:
        """The schema of the method that has exactly this name."""


class HubCatalogue:
    """What a hub in this process offers."""

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

    def described(self) -> Described:
        return self._hub.schema()

    def method(self, name: str) -> Described:
        return describe_method(self._hub.resolve(name))


class SchemaCatalogue:
    """What a schema says that there is."""

    def __init__(self, described: Described) -> None:
        self._described = described

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
            for node in walk(self._described["activations"])
        ]

    def described(self) -> Described:
        return self._described

    def method(self, name: str) -> Described:
        found: Described = next(
            entry
            for node in walk(self._described["activations"])
            for entry in node["methods"]
            if entry["name"] == name
        )
        return found


def walk(activations: Iterable[Described]) -> Iterator[Described]:
    """Every activation of a schema, children after their parents."""
    for node in activations:
        yield node
        yield from walk(node.get("children", ()))


def method_names(catalogue: Catalogue) -> list[str]:
    """The names of all methods, sorted."""
    return sorted(
        method.name for namespace in catalogue.namespaces() for method in namespace.methods
    )


def find_method(catalogue: Catalogue, name: str) -> str | None:
    """The dotted name that is meant, which may be spelt with underscores; None if there is none."""
    names = method_names(catalogue)
    if name in names:
        return name
    return next((known for known in names if known.replace(".", "_") == name), None)


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence with the names that look like this one; empty if none does."""
    names = list(names)
    # Somebody who left the namespace out, or got only that right, is helped too.
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
