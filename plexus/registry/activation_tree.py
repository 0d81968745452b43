"""Activations in their places: read at registration with all inside them, walked and described."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from plexus.activation import Activation
from plexus.errors import RegistrationError
from plexus.registry import schema
from plexus.registry.signature import MethodSpec, is_name, read_methods

__all__ = ("NAME_LENGTH", "Node", "describe", "methods_of", "read_activation", "seen", "walk")

#: Tool names of at most 64 characters are what every host takes.
NAME_LENGTH: Final = 64


class Node(NamedTuple):
    """An activation in its place."""

    path: str
    activation: Activation
    methods: list[MethodSpec]
    children: list[Any]  # of nodes, which a NamedTuple cannot say of itself


def read_activation(activation: Activation | type[Activation], parent: str = "") -> Node:
    """An activation with its children, made if it is a class; raises RegistrationError."""
    cls = activation if isinstance(activation, type) else type(activation)
    where = cls.__name__
    if not issubclass(cls, Activation):
        raise RegistrationError(f"{where}: must be a subclass of plexus.Activation")
    for attribute in ("namespace", "version"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise RegistrationError(f"{where}: needs a class attribute {attribute!r}")
    if not is_name(cls.namespace):
        raise RegistrationError(
            f"{where}: namespace {cls.namespace!r} must be lower case letters, digits "
            "and underscores"
        )
    if not (cls.__doc__ or "").strip():
        raise RegistrationError(
            f"{where}: needs a docstring; it is what callers read: write what it is for, in "
            "triple quotes, as the first line of the class"
        )
    try:
        instance = activation() if isinstance(activation, type) else activation
    except Exception as error:
        raise RegistrationError(f"{where}: could not be made: {error}") from error
    path = f"{parent}.{cls.namespace}" if parent else cls.namespace
    methods = read_methods(instance, path)
    for spec in methods:
        if len(spec.name) > NAME_LENGTH:
            raise RegistrationError(f"{where}: {spec.name} is over {NAME_LENGTH} characters long")
    children = [read_activation(child, path) for child in instance.children]
    names = [child.path for child in children]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise RegistrationError(f"{where}: has two children called {twice}")
    if not methods and not children:
        raise RegistrationError(f"{where}: has no method; mark one with @method")
    return Node(path, instance, methods, children)


def walk(node: Node) -> Iterator[Node]:
    """A node and all inside it, children after their parents."""
    yield node
    for child in node.children:
        yield from walk(child)


def methods_of(node: Node) -> Iterator[MethodSpec]:
    """All methods of a node and of all inside it."""
    return (spec for inner in walk(node) for spec in inner.methods)


def describe(node: Node) -> dict[str, Any]:
    """What `plexus.schema` says of an activation and of all inside it."""
    body: dict[str, Any] = {
        "namespace": node.path,
        "version": node.activation.version,
        "description": " ".join((node.activation.__doc__ or "").split()),
        "methods": [
            schema.describe_method(spec) for spec in sorted(node.methods, key=lambda s: s.name)
        ],
    }
    if node.children:
        body["children"] = [
            describe(child) for child in sorted(node.children, key=lambda c: c.path)
        ]
    return body | {"hash": schema.digest(body)}


def seen(activations: Iterable[dict[str, Any]], scopes: frozenset[str]) -> list[dict[str, Any]]:
    """What is left of described activations for whoever has only these scopes."""
    left = []
    for described in activations:
        body = {key: value for key, value in described.items() if key not in ("children", "hash")}
        body["methods"] = [each for each in described["methods"] if each["scope"] in scopes]
        children = seen(described.get("children", ()), scopes)
        if children:
            body["children"] = children
        if children or body["methods"]:
            left.append(body | {"hash": schema.digest(body)})
    return left
