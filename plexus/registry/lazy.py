"""Lazy loading: the only module that imports code of this project by name.

An activation can be registered from a manifest: plain data, generated from its class, that contains
everything that registries, lists and schemas need. The class is imported at the first call of a
method, or when the hub needs one of its hooks. The manifest records the source files that it was
generated from, and is ignored as a whole when one of them has changed.

`resolve` is for the few other places that select code by name.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from plexus.activation import Activation, Hints, ResourceMark
from plexus.errors import Internal, PlexusError
from plexus.registry import schema
from plexus.registry.activation_tree import Node, read_activation
from plexus.registry.signature import MethodSpec, read_methods
from plexus.registry.uri_templates import NameTemplate, Template
from plexus.rpc import wire

__all__ = ("LazyMethod", "Manifest", "dump_manifest", "resolve")

#: Fields of a method that only the class itself can provide.
LATE_FIELDS: Final = (
    "completers",
    "data",
    "events",
    "function",
    "given_schema",
    "is_open",
    "owner",
    "parameters",
    "returns",
    "source",
    "yields",
)
#: Fields of a method in a manifest in addition to its entry in `plexus.schema`.
EXTRA_FIELDS: Final = (
    "kind",
    "deadline_s",
    "audience",
    "alias",
    "needs_person",
    "on_disconnect",
    "context_name",
    "principal_name",
    "listed",
    "max_result_chars",
    "control",
    "names",
    "returns_media",
    "has_given_schema",
    "on_disconnect",
)


def resolve(reference: str) -> Any:
    """Import "package.module:attribute" and return the attribute.

    Call it with a constant where possible: the layering test reads constants.
    """
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Manifest:
    """Activations as data, by the reference to their class."""

    def __init__(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self._entries = entries

    @classmethod
    def read(cls, file: Path, root: Path) -> Manifest:
        """Read a manifest whose sources are relative to `root`.

        Returns an empty manifest if it is stale or cannot be read.
        """
        try:
            modified_ns = file.stat().st_mtime_ns
            content = wire.decode_trusted(file.read_bytes())
            fresh = all(
                _is_fresh(root / path, stamp, modified_ns)
                for path, stamp in content["sources"].items()
            )
        except (OSError, ValueError):
            fresh = False
        return cls(content["activations"] if fresh else {})

    def node(self, reference: str, make: Callable[[Any], Any]) -> Node:
        """Return an activation to register.

        `make` instantiates the class, "package.module:Class". It is imported at first use, or
        immediately if the manifest has no entry for it.
        """
        entry = self._entries.get(reference)
        if entry is None:
            return read_activation(make(resolve(reference)))
        return _lazy_node(entry, reference, make)


def _is_fresh(path: Path, stamp: str, modified_ns: int) -> bool:
    """Return whether a source is unchanged.

    Size and modification time are trusted, as for Python's own bytecode files; only a source that
    is not older than the manifest is read.
    """
    size, _, digest = stamp.partition(" ")
    status = path.stat()
    if status.st_size != int(size):
        return False
    return status.st_mtime_ns < modified_ns or _digest(path.read_bytes()) == digest


def _digest(source: bytes) -> str:
    return hashlib.blake2b(source, digest_size=8).hexdigest()


def _lazy_node(entry: Mapping[str, Any], reference: str, make: Callable[[Any], Any]) -> Node:
    def load() -> Activation:
        try:
            activation: Activation = make(resolve(reference))
            real = {spec.name: spec for spec in read_methods(activation, node.path)}
            for spec in node.methods:
                vars(spec).update({name: getattr(real[spec.name], name) for name in LATE_FIELDS})
        except PlexusError:
            raise
        # An import or a constructor may raise any exception; the caller gets a PlexusError.
        except Exception as error:
            raise Internal.report(f"loading {node.path}", error) from error
        return activation

    node = Node(
        entry["namespace"],
        reference.rpartition(":")[2],
        entry["version"],
        entry["description"],
        entry["hooks"],
        [],
        [],
        load,
    )
    node.methods.extend(LazyMethod(node, each) for each in entry["methods"])
    return node


class LazyMethod(MethodSpec):
    """A method from a manifest.

    Access to a field that only the class can provide imports the class; from then on this is an
    ordinary specification.
    """

    def __init__(self, node: Node, entry: Mapping[str, Any]) -> None:
        described = entry["schema"]
        resource = described.get("resource")
        template = described.get("template")
        fields = {name: entry[name] for name in EXTRA_FIELDS}
        fields |= {
            "node": node,
            "name": described["name"],
            "title": described.get("title"),
            "description": described["description"],
            "summary": described["description"].partition("\n\n")[0].replace("\n", " "),
            "role": described.get("role", "method"),
            "hints": Hints(**described.get("hints", {})),
            "background": described.get("background", "optional"),
            "scope": described["scope"],
            "restart": described.get("restart", "never"),
            "record": described.get("record"),
            "secret_names": frozenset(entry["secret_names"]),
            "names": tuple(entry["names"]),
            "resource": None if resource is None else _resource(**resource),
            "template": None if resource is None else Template(resource["uri"]),
            "name_template": None if template is None else NameTemplate(template),
            "schema_entry": described,
        }
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Any:
        if name not in LATE_FIELDS:
            raise AttributeError(name)
        _ = vars(self)["node"].activation  # loading sets all of them
        return vars(self)[name]


def _resource(
    uri: str, name: str | None = None, title: str | None = None, mime_type: str | None = None
) -> ResourceMark:
    return ResourceMark(uri, name, title, mime_type)


def dump_manifest(nodes: Mapping[str, Node], sources: Iterable[Path], root: Path) -> str:
    """Return the manifest of these activations, generated from these files under `root`.

    `nodes` maps the reference of a class to its activation. Sources are read last, when everything
    that descriptions need is imported. Every source and every method is on its own line, so that
    changes merge.
    """
    entries = []
    for reference, node in nodes.items():
        assert not node.children, "a manifest cannot contain children"
        head = {
            "namespace": node.path,
            "version": node.version,
            "description": node.description,
            "hooks": sorted(node.hooks),
        }
        methods = ",\n".join(_text(_dump_method(spec)) for spec in node.methods)
        opened = _text(head).removesuffix("}")
        entries.append(f'{_text(reference)}:{opened},"methods":[\n{methods}\n]}}')
    stamps = []
    for path in sorted(sources):
        source = path.read_bytes()
        stamp = f"{len(source)} {_digest(source)}"
        stamps.append(f"{_text(path.relative_to(root).as_posix())}:{_text(stamp)}")
    parts = ['{"sources":{', ",\n".join(stamps), '},"activations":{', ",\n".join(entries), "}}"]
    return "\n".join([*parts, ""])


def _dump_method(spec: MethodSpec) -> dict[str, Any]:
    dumped = {"schema": schema.describe_method(spec), "secret_names": sorted(spec.secret_names)}
    return dumped | {name: getattr(spec, name) for name in EXTRA_FIELDS}


def _text(value: Any) -> str:
    return wire.encode(value).decode()
