"""Activations as a tree: read and check them at registration, walk and describe them.

All errors that describing and calling a method could raise later are found here, at registration: a
method that passes the checks is described, listed and called without errors of its types, defaults
or texts. Only types that are not plain JSON need pydantic, because importing it is a large part of
a cold start. The built-in activations are registered without checks; a test checks them.
"""

from __future__ import annotations

import logging
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from plexus.activation import Activation
from plexus.errors import InvalidEvent, RegistrationError
from plexus.events import Data, Event
from plexus.registry import plain_types, schema
from plexus.registry.parameters import read_hints
from plexus.registry.signature import MethodSpec, is_name, read_methods
from plexus.rpc import wire

if TYPE_CHECKING:  # imported for annotations only: the hub imports this module
    from plexus.runtime.hub import Plexus

__all__ = (
    "HOOKS",
    "NAME_LENGTH",
    "Node",
    "check_node",
    "describe",
    "filter_scopes",
    "methods_of",
    "read_activation",
    "walk",
    "warn_undescribed",
)

logger = logging.getLogger("plexus.registry")

#: Every host accepts tool names of at most 64 characters.
NAME_LENGTH: Final = 64


#: Methods that the hub calls if an activation overrides them.
HOOKS: Final = ("check_health", "resources", "prompts", "lifespan", "close")


class Node:
    """An activation in the tree.

    An activation that is registered from a manifest is instantiated at first use; all attributes
    except `activation` are known before that.
    """

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
        #: The `HOOKS` that the activation overrides.
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
        """The activation; imported and instantiated at first use."""
        if self._activation is None:
            assert self._load is not None, "a node has an activation or a loader"
            activation = self._load()
            if self._hub is not None:
                activation.plexus = self._hub
            self._activation = activation
        return self._activation

    @property
    def is_loaded(self) -> bool:
        """Whether the activation was instantiated."""
        return self._activation is not None

    def select(self, allows: Callable[[str], bool]) -> bool:
        """Keep the methods that the operator allows, here and inside; False if none is left."""
        self.methods = [spec for spec in self.methods if allows(spec.name)]
        self.children = [child for child in self.children if child.select(allows)]
        return bool(self.methods or self.children)

    def attach(self, hub: Plexus) -> None:
        """Set the hub of the activation, now or when it is instantiated."""
        self._hub = hub
        if self._activation is not None:
            self._activation.plexus = hub


def read_activation(activation: Activation | type[Activation], parent: str = "") -> Node:
    """Read an activation and its children; instantiate classes. Raises RegistrationError."""
    cls = activation if isinstance(activation, type) else type(activation)
    where = cls.__name__
    if not issubclass(cls, Activation):
        raise RegistrationError(f"{where}: must be a subclass of plexus.Activation")
    if isinstance(activation, type) and not isinstance(getattr(cls, "namespace", None), str):
        raise RegistrationError(f"{where}: needs a class attribute 'namespace'")
    try:
        instance = activation() if isinstance(activation, type) else activation
    except Exception as error:
        raise RegistrationError(f"{where}: could not be instantiated: {error}") from error
    is_plain = cls is Activation
    namespace = getattr(instance, "namespace", None)
    if is_plain:
        where = f"Activation({namespace!r})"
    if not isinstance(namespace, str) or not is_name(namespace):
        raise RegistrationError(
            f"{where}: namespace {namespace!r} must be lower case letters, digits and underscores"
        )
    path = f"{parent}.{namespace}" if parent else namespace
    methods = read_methods(instance, path)
    for spec in methods:
        if len(spec.name) > NAME_LENGTH:
            raise RegistrationError(
                f"{where}: the name {spec.name} has more than {NAME_LENGTH} characters"
            )
    children = [read_activation(child, path) for child in instance.children]
    names = [child.path for child in children]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise RegistrationError(f"{where}: two children are named {twice}")
    if not methods and not children:
        add = f"@{namespace}.method" if is_plain else "@method"
        raise RegistrationError(f"{where}: has no method; mark one with {add}")
    hooks = [
        name
        for name in HOOKS
        if name in vars(instance) or getattr(cls, name) is not getattr(Activation, name)
    ]
    # The first paragraph of a module docstring is its summary; the rest is for contributors.
    text = instance.description.partition("\n\n")[0] if is_plain else cls.__doc__
    description = " ".join((text or "").split())
    if not isinstance(instance.version, str):
        raise RegistrationError(f"{where}: version {instance.version!r} must be a text")
    version = instance.version or _distribution_version(instance.module or cls.__module__)
    return Node(path, where, version, description, hooks, methods, children, instance)


def _distribution_version(module: str) -> str:
    """Return the version of the distribution that a module is installed with; "0" without one."""
    package = module.partition(".")[0]
    if not package or package == "__main__" or package.startswith("plexus_plugin_"):
        return "0"
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        names = _distributions(tuple(sys.path)).get(package)
        return version(names[0]) if names else "0"


@lru_cache(maxsize=1)
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the distributions of every package on the path of imports.

    Kept, because it reads the metadata of all that is installed, which takes 130 ms with 200
    distributions, and was done for every activation that declares no version.
    """
    from importlib.metadata import packages_distributions

    return packages_distributions()


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants, children after their parents."""
    yield node
    for child in node.children:
        yield from walk(child)


def methods_of(node: Node) -> Iterator[MethodSpec]:
    """Yield all methods of a node and of its descendants."""
    return (spec for inner in walk(node) for spec in inner.methods)


def describe(node: Node) -> dict[str, Any]:
    """Return the entry of an activation and its children in `plexus.schema`."""
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


def filter_scopes(
    activations: Iterable[dict[str, Any]], scopes: frozenset[str]
) -> list[dict[str, Any]]:
    """Return the part of described activations that is visible with only these scopes."""
    left = []
    for described in activations:
        body = {key: value for key, value in described.items() if key not in ("children", "hash")}
        body["methods"] = [each for each in described["methods"] if each["scope"] in scopes]
        children = filter_scopes(described.get("children", ()), scopes)
        if children:
            body["children"] = children
        if children or body["methods"]:
            left.append(body | {"hash": schema.digest(body)})
    return left


# --- checks -----------------------------------------------------------------------------------

_TYPES: Final = "use types that pydantic supports: plain types, dataclasses, TypedDicts, models"


def warn_undescribed(node: Node) -> None:
    """Log which methods have no docstring: models choose tools by it."""
    missing = [spec.name for spec in methods_of(node) if not spec.description]
    if missing:
        logger.warning(
            "no docstring: %s; models choose tools by their description", ", ".join(missing)
        )


def check_node(node: Node) -> None:
    """Raise RegistrationError for an invalid activation or descendant."""
    for inner in walk(node):
        name = type(inner.activation).__name__
        _check_json(f"{name}: its version and docstring", [inner.version, inner.description])
        for spec in inner.methods:
            _check_method(spec)


def _check_method(spec: MethodSpec) -> None:
    path, _, name = spec.name.rpartition(".")
    # Functions are named by their namespace, as in the errors of their signature.
    is_function = type(spec.owner) is Activation
    where = f"{path if is_function else type(spec.owner).__name__}.{name}"
    resource = spec.resource or ()
    for text in (spec.title, *resource):
        if text is not None and not isinstance(text, str):
            raise RegistrationError(f"{where}: {text!r} must be a str, as titles and names are")
    texts = [text for text in (spec.title, spec.description, *resource) if text is not None]
    _check_json(f"{where}: its title and docstring", texts)
    _check_json(f"{where}: its hints", [hint for hint in spec.hints if hint is not None])
    is_plain = True
    for parameter in spec.parameters:
        subject = f"{where}: argument {parameter.name!r}"
        is_plain &= _check_type(subject, parameter.hint, "argument")
        _check_json(f"{subject}: its description", parameter.description)
        if parameter.has_shown_default:
            _check_json(f"{subject}: its default", parameter.default)
    if spec.given_schema is not None:
        _check_given(where, spec.given_schema)
    if spec.kind == "plain":
        is_plain &= _check_type(f"{where}: its result", spec.returns, "result")
    if Data in spec.events:
        is_plain &= _check_type(f"{where}: what it yields", spec.data, "result")
    for event in spec.events:
        is_plain &= _check_event(f"{where}: the event {event.__name__}", event)
    if not is_plain:
        _check_whole(where, spec)


def _check_given(where: str, given: dict[str, Any]) -> None:
    _check_json(f"{where}: the given schema", given)
    properties = given.get("properties", {})
    if not isinstance(properties, dict) or not all(
        isinstance(each, dict) for each in properties.values()
    ):
        raise RegistrationError(
            f'{where}: "properties" of the given schema must map each name to an object, '
            'such as {"name": {"type": "string"}}'
        )


def _check_event(subject: str, event: type[Event]) -> bool:
    """Check the fields of an event; return whether all are plain. Raises RegistrationError."""
    hints = read_hints(event, subject)
    _check_json(f"{subject}: its docstring", [event.type, event.__doc__])
    fields = [
        _check_type(f"{subject}: field {name!r}", hints[name], "field") for name in event.fields
    ]
    return all(fields)


def _check_type(subject: str, hint: Any, use: Literal["argument", "field", "result"]) -> bool:
    """Return whether a type is plain JSON. Raises RegistrationError for one without a schema."""
    if plain_types.core_schema(hint) is not None:
        _check_json(f"{subject}: its type", _literals(hint))
        return True
    from pydantic import TypeAdapter

    try:
        # Some options of a Field only apply to a member of an object.
        adapter = (
            TypeAdapter(hint) if use == "result" else schema.closed_object(use, {use: (hint, True)})
        )
        described = adapter.json_schema(mode="validation" if use == "argument" else "serialization")
    # An author's type may raise any exception while it is described.
    except Exception as error:
        raise _no_schema(subject, error) from error
    _check_json(f"{subject}: its schema", described)
    return False


def _literals(hint: Any) -> list[Any]:
    """Return the values of all Literals in a plain type."""
    if isinstance(hint, type):
        return []
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [value for inner in typing.get_args(hint) for value in _literals(inner)]


def _check_whole(where: str, spec: MethodSpec) -> None:
    """Check what only shows when the parts of a description are combined."""
    try:
        described = schema.describe_method(spec)
        schema.build_validator(spec)
    except Exception as error:
        raise _no_schema(where, error) from error
    _check_json(f"{where}: its schema", described)


def _no_schema(subject: str, error: Exception) -> RegistrationError:
    """Return the error with the first sentence of the reason, without the advice of pydantic."""
    reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__
    return RegistrationError(f"{subject} has no schema: {reason}; {_TYPES}")


def _check_json(subject: str, value: Any) -> None:
    try:
        wire.encode_exact(value, subject)
    except InvalidEvent as error:
        raise RegistrationError(f"{error.message}; use a value that JSON can represent") from error
