"""Find the built-in namespaces that a plugin which cannot be loaded would have replaced.

A plugin may replace a built-in activation, such as a restricted `bash`. If it cannot be loaded, the
built-in must not be used instead: it would grant what the replacement refuses. The plugin is not
trusted to run, so its namespaces are read from its source text.
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
from typing import Final, TypeAlias

from plexus.activation import Activation
from plexus.runtime.hub import Plexus

__all__ = ("BuiltIns", "Registrable", "namespaces_in", "namespaces_of")

#: What can be registered: an activation, or a class of which one is made.
Registrable: TypeAlias = Activation | type[Activation]

logger = logging.getLogger("plexus.registry.plugins")

#: The namespace that clients discover all others with; it cannot grant too much.
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
#: `Activation("bash")`, with the names that it is imported under.
_CREATED = (
    r"""\b(?:%s)[ \t]*\([ \t\r\n]*(?:namespace[ \t]*=[ \t]*)?"""
    r"""(?:[rRuU]?["']{1,3}(\w+)["']|(\w+))"""
)
_CONSTANT = r"""^[ \t]*%s[ \t]*(?::[^=\n]{0,200})?=[ \t(]*[rRuU]?["']{1,3}(\w+)["']"""


class BuiltIns:
    """The activations that were registered before any plugin."""

    def __init__(self, hub: Plexus) -> None:
        self._hub = hub
        self._nodes = {node.path: node for node in hub.nodes() if "." not in node.path}
        #: Their namespaces by class name: a subclass inherits its namespace.
        self._classes = {node.class_name: path for path, node in self._nodes.items()}

    def switch_off(self, name: str, found: Iterable[Registrable]) -> str:
        """Unregister the built-in activations that a broken plugin replaces.

        `name` identifies the plugin, as for `find_activations`; `found` are those of its classes
        that were read before it failed. Returns a text to append to the reason of the failure,
        which may be empty.
        """
        named = {str(getattr(cls, "namespace", "")) for cls in found}
        for file in _files_of(name):
            named |= namespaces_in(_text_of(file), self._classes)
        off = self._switch_off(named, f"its replacement, {name}, could not be loaded")
        return "".join(f"; the built-in {each}, which it replaces, is switched off" for each in off)

    def switch_off_named(self, names: Iterable[str], reason: str) -> None:
        """Unregister the built-in activations with these namespaces or class names."""
        self._switch_off({self._classes.get(name, name) for name in names}, reason)

    def _switch_off(self, namespaces: set[str], reason: str) -> list[str]:
        """Unregister those that are still registered, and return their namespaces."""
        registered = {node.path: node for node in self._hub.nodes()}
        off = [
            namespace
            for namespace in sorted(namespaces & self._nodes.keys() - {CORE})
            # Another plugin may have replaced it, or a broken one switched it off.
            if registered.get(namespace) is self._nodes[namespace]
        ]
        for namespace in off:
            self._hub.switch_off(namespace, reason)
            logger.error("the built-in %s is switched off: %s", namespace, reason)
        return off


def namespaces_of(name: str) -> set[str]:
    """Return the namespaces of a plugin, as far as its text shows. Nothing is imported."""
    return {each for file in _files_of(name) for each in namespaces_in(_text_of(file), {})}


def namespaces_in(text: str, classes: dict[str, str]) -> set[str]:
    """Return the namespaces that the classes in this source text have, as far as it shows.

    `classes` are namespaces by class name; a subclass has the same namespace unless it sets
    another.
    """
    text = _COMMENT.sub("", text)
    named = set(_assigned(text, text))
    aliases = {alias: name for name, alias in _ALIAS.findall(text)}
    made = [Activation.__name__]
    made += [alias for alias, name in aliases.items() if name == Activation.__name__]
    for literal, constant in re.findall(_CREATED % "|".join(made), text):
        named |= {literal} if literal else set(_constants(constant, text))
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
            yield from _constants(constant, text)


def _constants(name: str, text: str) -> list[str]:
    """Return the texts that are assigned to a name."""
    return re.findall(_CONSTANT % name, text, re.MULTILINE)


def _files_of(name: str) -> list[Path]:
    """Return the files of a plugin: one, or all of a package. Imports nothing."""
    if name.endswith(".py") or "/" in name:
        return [Path(name)]
    top, *inner = name.partition(":")[0].split(".")
    try:
        # Only the first part: a dotted name would import its parent. A module that is not
        # installed may be in the current folder, which is not on the path.
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
        # Otherwise a pipe without a writer would block.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as opened:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            # Files of /proc are regular, and may return None without data.
            return (opened.read(FILE_BYTES) or b"").decode(errors="replace")
    except OSError:
        return ""
