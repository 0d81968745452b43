"""Which built-in namespaces a plugin that cannot be loaded was going to replace.

A plugin may replace a built-in activation, as a restricted `bash` does. If it cannot be loaded, the
built-in must not serve in its place: that would grant what the replacement refuses. The plugin is
not trusted to run, so its namespaces are read from its text.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from plexus.activation import Activation
from plexus.runtime.hub import Plexus

__all__ = ("BuiltIns", "namespaces_in")

logger = logging.getLogger("plexus.registry.plugins")

#: The namespace that clients read everything else from; nothing in it can be granted too widely.
CORE: Final = "plexus"
#: How much of a package is read. A plugin has a few files of some kilobytes.
FILES: Final = 500
FILE_BYTES: Final = 1024 * 1024

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_CLASS = re.compile(
    r"^[ \t]*class[ \t]+\w+[ \t]*(?:\[[^\]]*\])?[ \t]*(?:\(([^)]{0,2000})\))?", re.MULTILINE
)
_ALIAS = re.compile(r"\b(\w+)[ \t]+as[ \t]+(\w+)")
#: `namespace = "bash"`, with or without a type, and the same as an entry of a dict.
_NAMESPACE = re.compile(
    r"""(?:(?:^|[;:])[ \t]*namespace[ \t]*(?::[^=\n]{0,200})?=|["']namespace["'][ \t]*:)"""
    r"""[ \t(]*(?:[rRuU]?["']{1,3}(\w+)["']|(\w+))""",
    re.MULTILINE,
)
_CONSTANT = r"""^[ \t]*%s[ \t]*(?::[^=\n]{0,200})?=[ \t(]*[rRuU]?["']{1,3}(\w+)["']"""


class BuiltIns:
    """The activations that were there before any plugin."""

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub
        self._nodes = {node.path: node for node in hub.nodes() if "." not in node.path}
        #: Their namespaces by the names of their classes: a subclass inherits its namespace.
        self._classes = {node.class_name: path for path, node in self._nodes.items()}

    def switch_off(self, name: str, found: Iterable[type[Activation]]) -> str:
        """Unregister the built-in activations that a broken plugin replaces.

        `name` leads to the plugin, as for `find_activations`; `found` are those of its classes
        that were seen. Returns what to add to the reason why it is broken, which may be nothing.
        """
        named = {str(getattr(cls, "namespace", "")) for cls in found}
        for file in _files_of(name):
            named |= namespaces_in(_text_of(file), self._classes)
        off = self._switch_off(named, f"its replacement, {name}, could not be loaded")
        return "".join(f"; the built-in {each}, which it replaces, is switched off" for each in off)

    def switch_off_named(self, names: Iterable[str], reason: str) -> None:
        """Unregister the built-in activations with these namespaces, or of these classes."""
        self._switch_off({self._classes.get(name, name) for name in names}, reason)

    def _switch_off(self, namespaces: set[str], reason: str) -> list[str]:
        """Unregister those that are still in place, and return their namespaces."""
        here = {node.path: node for node in self._hub.nodes()}
        off = [
            namespace
            for namespace in sorted(namespaces & self._nodes.keys() - {CORE})
            # Another plugin may have replaced it, or a broken one switched it off.
            if here.get(namespace) is self._nodes[namespace]
        ]
        for namespace in off:
            self._hub.switch_off(namespace, reason)
            logger.error("the built-in %s is switched off: %s", namespace, reason)
        return off


def namespaces_in(text: str, classes: dict[str, str]) -> set[str]:
    """Return the namespaces that the classes in this text have, as far as it shows.

    `classes` are namespaces by the name of a class; its subclasses have the same, unless they
    have one of their own.
    """
    text = _COMMENT.sub("", text)
    named = set(_assigned(text, text))
    aliases = {alias: name for name, alias in _ALIAS.findall(text)}
    statements = list(_CLASS.finditer(text))
    ends = [each.start() for each in statements[1:]] + [len(text)]
    for statement, end in zip(statements, ends, strict=False):
        if any(_assigned(text[statement.end() : end], text)):
            continue
        for base in re.findall(r"\w+", statement[1] or ""):
            named |= {classes[each] for each in (base, aliases.get(base, "")) if each in classes}
    return named


def _assigned(part: str, text: str) -> Iterator[str]:
    for literal, constant in _NAMESPACE.findall(part):
        if literal:
            yield literal
        else:
            yield from re.findall(_CONSTANT % constant, text, re.MULTILINE)


def _files_of(name: str) -> list[Path]:
    """Return the files of a plugin: one, or all of a package. Nothing is imported."""
    if name.endswith(".py") or "/" in name:
        return [Path(name)]
    top, *inner = name.partition(":")[0].split(".")
    try:
        # For a name with dots, it would import the first. A module that is installed nowhere is one
        # of the current folder, which is not on the path.
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin else []
    return [
        file
        for folder in spec.submodule_search_locations
        for file in _files_in(Path(folder).joinpath(*inner))
    ]


def _files_in(place: Path) -> list[Path]:
    if place.is_dir():
        return list(itertools.islice(sorted(place.rglob("*.py")), FILES))
    return [place.with_suffix(".py")]


def _text_of(file: Path) -> str:
    try:
        # A pipe without a writer would be waited for otherwise.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as opened:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            # Files of /proc are regular, and may have nothing to read yet.
            return (opened.read(FILE_BYTES) or b"").decode(errors="replace")
    except OSError:
        return ""
