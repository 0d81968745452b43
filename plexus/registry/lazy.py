"""Late loading: the only place where code of ours is imported by its name.

An activation can be registered from a manifest, which is plain data made from its class: all that
registries, lists and schemas need. The class is imported when a method is called for the first
time, or when the hub needs one of its hooks. The manifest records every source file that it was
made from and is ignored as a whole when one of them has changed.

`resolve` is for the few other places that choose code by name.
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

#: What only the class itself can give.
LATE_FIELDS: Final = (
    "completers",
    "events",
    "function",
    "given_schema",
    "owner",
    "parameters",
    "returns",
)
#: What a manifest has of a method beside its entry in the answer of `plexus.schema`.
EXTRA_FIELDS: Final = (
    "kind",
    "deadline_s",
    "context_name",
    "principal_name",
    "listed",
    "max_result_chars",
    "control",
    "names",
    "returns_media",
)


def resolve(reference: str) -> Any:
    """Import "package.module:attribute" and return the attribute.

    Call it with a constant where possible: the test of the layers reads it there.
    """
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Manifest:
    """Activations as data, by what their classes are imported from."""

    def __init__(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self._entries = entries

    @classmethod
    def read(cls, file: Path, root: Path) -> Manifest:
        """Read a manifest whose sources are relative to `root`. It is empty if it is stale, or
        cannot be read."""
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
        """Return an activation to register. `make` gets the class, "package.module:Class", which
        is imported when the activation is first used; at once if the manifest has no entry."""
        entry = self._entries.get(reference)
        if entry is None:
            return read_activation(make(resolve(reference)))
        return _lazy_node(entry, reference, make)


def _is_fresh(path: Path, stamp: str, modified_ns: int) -> bool:
    """Whether a source is as it was. Like Python's own bytecode files this trusts size and time;
    only what is not older than the manifest is read."""
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
        # Whatever an import or a constructor raises, the caller gets an error of ours.
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
    """A method as a manifest has it. Asking for what only the class can give imports the class;
    from then on this is a specification like any other."""

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
        _ = vars(self)["node"].activation  # which fills in all of them
        return vars(self)[name]


def _resource(
    uri: str, name: str | None = None, title: str | None = None, mime_type: str | None = None
) -> ResourceMark:
    return ResourceMark(uri, name, title, mime_type)


def dump_manifest(nodes: Mapping[str, Node], sources: Iterable[Path], root: Path) -> str:
    """Return the manifest of these activations, by what their classes are imported from, made from
    these files under `root`.

    Sources are read last, when everything that describing needs is imported. Every source and
    every method has a line of its own, so that changes merge.
    """
    entries = []
    for reference, node in nodes.items():
        assert not node.children, "a manifest has no place for children"
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
    return {"schema": schema.describe_method(spec)} | {
        name: getattr(spec, name) for name in EXTRA_FIELDS
    }


def _text(value: Any) -> str:
    return wire.encode(value).decode()
