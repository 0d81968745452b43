"""Activations in their places: read at registration with all inside them, walked and described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from plexus.activation import Activation
from plexus.errors import RegistrationError
from plexus.registry import schema
from plexus.registry.signature import MethodSpec, is_name, read_methods

if TYPE_CHECKING:  # the hub holds nodes; here it is only named
    from plexus.runtime.hub import Plexus

__all__ = (
    "HOOKS",
    "NAME_LENGTH",
    "Node",
    "describe",
    "methods_of",
    "read_activation",
    "seen",
    "walk",
)

#: Tool names of at most 64 characters are what every host takes.
NAME_LENGTH: Final = 64


#: What the hub asks of an activation beside its methods, if the class replaces it.
HOOKS: Final = ("check_health", "resources", "prompts", "close")


class Node:
    """An activation in its place. One that is registered from a manifest is made when it is first
    used; until then everything but `activation` is known."""

    __slots__ = (
        "_activation",
        "_hub",
        "_load",
        "children",
        "class_name",
        "description",
        "hooks",
        "methods",
        "path",
        "version",
    )

    def __init__(
        self,
        path: str,
        class_name: str,
        version: str,
        description: str,
        hooks: Iterable[str],
        methods: list[MethodSpec],
        children: list[Node],
        activation: Activation | Callable[[], Activation],
    ) -> None:
        self.path = path
        self.class_name = class_name
        self.version = version
        self.description = description
        #: Those of `HOOKS` that the activation has.
        self.hooks = frozenset(hooks)
        self.methods = methods
        self.children = children
        self._hub: Plexus | None = None
        self._activation: Activation | None = None
        self._load: Callable[[], Activation] | None = None
        if isinstance(activation, Activation):
            self._activation = activation
        else:
            self._load = activation

    @property
    def activation(self) -> Activation:
        """The activation, which is imported and made if it was not used before."""
        if self._activation is None:
            assert self._load is not None, "a node has an activation or what makes it"
            activation = self._load()
            if self._hub is not None:
                activation.plexus = self._hub
            self._activation = activation
        return self._activation

    @property
    def is_loaded(self) -> bool:
        """Whether the activation was made."""
        return self._activation is not None

    def attach(self, hub: Plexus) -> None:
        """Give the activation its hub, now or when it is made."""
        self._hub = hub
        if self._activation is not None:
            self._activation.plexus = hub


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
    hooks = [name for name in HOOKS if getattr(cls, name) is not getattr(Activation, name)]
    description = " ".join((cls.__doc__ or "").split())
    return Node(path, where, cls.version, description, hooks, methods, children, instance)


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
        "version": node.version,
        "description": node.description,
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
