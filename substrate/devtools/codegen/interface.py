"""Interface of a generated client, read from a schema: namespaces, methods and their types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from plexus.events import Complete, Event, Gap, Log, QuestionAnswered, QuestionAsked, Restarted
from plexus.registry.schema import digest, resolve_reference, value_schema
from substrate.cli.target.catalogue import walk
from substrate.devtools.codegen.text import NameAllocator, pascal
from substrate.devtools.codegen.types import (
    ANY,
    Alias,
    Declaration,
    Named,
    Reader,
    SchemaPlace,
    Struct,
    Type,
    Union,
    union_of,
)

__all__ = ("BadName", "Interface", "Method", "Namespace", "UnknownNamespace", "read_interface")

Described = dict[str, Any]

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
DIGEST = re.compile(r"[0-9a-f]{64}")
#: A subscription belongs to a connection, which the client manages internally.
EXCLUDED = frozenset({"plexus.unsubscribe"})
#: Events that any run may send, whatever its method declares, with their descriptions.
SHARED_EVENTS: dict[str, tuple[type[Event], str]] = {
    "LogEvent": (Log, "A log message of the method."),
    "RequestEvent": (
        QuestionAsked,
        "The run asks its caller a question and waits; answer it with `respond`.",
    ),
    "AnsweredEvent": (
        QuestionAnswered,
        "A question of the run was answered or declined, or its time has run out.",
    ),
    "GapEvent": (Gap, "The items `from` to `to` are no longer available and were not sent."),
    "RestartedEvent": (
        Restarted,
        "The process of the run was lost; what follows may repeat items before this one.",
    ),
}
#: The union of these.
RUN_EVENT = "RunEvent"
#: The successful end of a run whose method declares no terminal event.
COMPLETE = "CompleteEvent"


class UnknownNamespace(Exception):
    """The schema does not contain the namespace."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class BadName(Exception):
    """The schema contains an invalid method or namespace name."""

    def __init__(self, name: object) -> None:
        super().__init__(f"the schema contains {name!r}, which is not a valid method name")


class Method(NamedTuple):
    """A method of the server, as the client offers it."""

    name: str
    description: str
    scope: str
    streaming: bool
    params: Struct
    #: The name of the union of all events of a stream; empty if they are not known.
    event: str
    #: The members of that union.
    events: tuple[Type, ...]
    #: The result: the terminal event of a stream, or the value of a plain method.
    result: Type

    @property
    def own_name(self) -> str:
        """The name inside its namespace."""
        return self.name.rpartition(".")[2]


@dataclasses.dataclass
class Namespace:
    """A namespace of methods."""

    path: str
    #: The name of its class.
    name: str = ""
    description: str = ""
    methods: list[Method] = dataclasses.field(default_factory=list)
    children: list[Namespace] = dataclasses.field(default_factory=list)

    @property
    def own_name(self) -> str:
        """The name inside its parent namespace."""
        return self.path.rpartition(".")[2]


class Interface(NamedTuple):
    """Everything that a client offers."""

    #: Hash of the selected part: the server's own if that is everything.
    hash: str
    roots: list[Namespace]
    #: Sorted by name.
    declarations: list[Declaration]

    def methods(self) -> list[Method]:
        """Return the methods of all namespaces, sorted by the name of their events."""
        found = [method for namespace in _walk(self.roots) for method in namespace.methods]
        return sorted(found, key=lambda method: method.event)


def read_interface(
    described: Described, namespaces: Sequence[str], reserved: Iterable[str]
) -> Interface:
    """Return the methods of a schema, or of these namespaces and those inside them.

    `reserved` are names that the generated code needs itself. Raises UnknownNamespace and BadName.
    """
    nodes = list(walk(described["activations"]))
    _check_names(nodes)
    for name in namespaces:
        if not any(_within(node["namespace"], [name]) for node in nodes):
            raise UnknownNamespace(name)
    chosen = [node for node in nodes if not namespaces or _within(node["namespace"], namespaces)]
    names = NameAllocator({*reserved, *SHARED_EVENTS, COMPLETE, RUN_EVENT})
    reader = Reader(names)
    shared = _read_shared_events(reader)
    roots: dict[str, Namespace] = {}
    for node in sorted(chosen, key=lambda node: str(node["namespace"])):
        namespace = _get_or_create(roots, node["namespace"])
        namespace.description = node["description"]
    for namespace in _walk(roots.values()):
        namespace.name = names.allocate(f"{pascal(namespace.path)}Namespace")
    # Names derived from methods are allocated first, so that no definition can take them.
    listed = sorted(
        (entry for node in chosen for entry in node["methods"] if entry["name"] not in EXCLUDED),
        key=lambda entry: str(entry["name"]),
    )
    own_names = [_OwnNames.of(entry["name"], names) for entry in listed]
    for entry, own in zip(listed, own_names, strict=True):
        path = entry["name"].rpartition(".")[0]
        _get_or_create(roots, path).methods.append(_read_method(reader, entry, own, shared))
    declarations = [reader.declarations[name] for name in sorted(reader.declarations)]
    return Interface(_hash(described, chosen, namespaces), list(roots.values()), declarations)


class _OwnNames(NamedTuple):
    """Names derived from that of a method."""

    params: str
    event: str
    result: str

    @classmethod
    def of(cls, method: str, names: NameAllocator) -> _OwnNames:
        return cls(
            *(names.allocate(pascal(method) + part) for part in ("Params", "Event", "Result"))
        )


def _read_shared_events(reader: Reader) -> dict[str, Named]:
    """Declare the events that every run may send, and return them by tag."""
    done = Complete, "The run completed."
    for name, (event, description) in {**SHARED_EVENTS, COMPLETE: done}.items():
        schema = value_schema(event)
        definitions = schema.pop("$defs", {})
        place = SchemaPlace(name, "", "", definitions)
        schema = resolve_reference(schema, definitions)
        reader.declare_struct(name, schema | {"description": description}, place)
    shared = {event.type: Named(name) for name, (event, _) in SHARED_EVENTS.items()}
    union = Alias(RUN_EVENT, "An event that any run may send.", Union(tuple(shared.values())))
    reader.declarations[RUN_EVENT] = union
    return shared


def _read_method(
    reader: Reader, entry: Described, own: _OwnNames, shared: dict[str, Named]
) -> Method:
    namespace, _, called = entry["name"].rpartition(".")

    def place(name: str, schema: Any) -> SchemaPlace:
        known = schema if isinstance(schema, dict) else {}
        definitions = known.get("$defs") or known.get("definitions") or {}
        return SchemaPlace(name, namespace, called, definitions)

    params = entry["params"]
    events: tuple[Type, ...] = ()
    result: Type = ANY
    if "events" in entry:
        union = entry["events"]
        inside = place(own.event, union)
        declared: dict[Type, str] = {}
        for member in union["oneOf"]:
            read = reader.read(member, inside)
            declared[read] = member["properties"]["type"]["const"]
        tags = set(declared.values())
        ends = [read for read, tag in declared.items() if tag == Complete.type]
        result = union_of(ends or [Named(COMPLETE)])
        others = [event for tag, event in shared.items() if tag not in tags]
        always = [Named(RUN_EVENT)] if len(others) == len(shared) else others
        events = (*declared, *([] if ends else [result]), *always)
    elif "result" in entry:
        reader.declare(own.result, entry["result"], place(own.result, entry["result"]))
        result = Named(own.result)
    return Method(
        entry["name"],
        entry["description"],
        entry.get("scope", ""),
        bool(entry["streaming"]),
        reader.declare_struct(own.params, params, place(own.params, params)),
        own.event if events else "",
        events,
        result,
    )


def _check_names(nodes: Iterable[Described]) -> None:
    """Check names: they become code, and a schema may come from an untrusted server."""
    for node in nodes:
        namespace = node["namespace"]
        names = [entry["name"] for entry in node["methods"]]
        for name in (namespace, *names):
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise BadName(name)
        for name in names:
            if name.rpartition(".")[0] != namespace:
                raise BadName(name)


def _hash(described: Described, chosen: list[Described], namespaces: Sequence[str]) -> str:
    """Return the server's hash, or that of the selected part, which ignores changes elsewhere."""
    whole = described.get("hash")
    if not namespaces and isinstance(whole, str) and DIGEST.fullmatch(whole):
        return whole
    bodies = [
        {key: value for key, value in node.items() if key not in ("children", "hash")}
        for node in sorted(chosen, key=lambda node: str(node["namespace"]))
    ]
    return digest(bodies)


def _within(path: str, namespaces: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in namespaces)


def _get_or_create(roots: dict[str, Namespace], path: str) -> Namespace:
    """Return the namespace at this path, creating it and its parents if needed."""
    first, *rest = path.split(".")
    namespace = roots.setdefault(first, Namespace(first))
    for part in rest:
        inner = f"{namespace.path}.{part}"
        found = next((child for child in namespace.children if child.path == inner), None)
        if found is None:
            found = Namespace(inner)
            namespace.children.append(found)
        namespace = found
    return namespace


def _walk(namespaces: Iterable[Namespace]) -> Iterator[Namespace]:
    for namespace in namespaces:
        yield namespace
        yield from _walk(namespace.children)
