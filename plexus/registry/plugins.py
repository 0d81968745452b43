"""Load activations that are not built in: by entry point, by name and by file.

A broken plugin is never fatal: it is returned with the reason, next to those that work, and the
server runs without it. A built-in activation that it replaces is switched off.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from plexus.activation import Activation
from plexus.errors import PlexusError, PluginError
from plexus.registry.entry_points import entry_points_of
from plexus.registry.plugin_namespaces import BuiltIns, Registrable, namespaces_of
from plexus.registry.selection import ALL, OFF
from plexus.runtime.hub import Plexus

__all__ = (
    "GROUP",
    "BrokenPlugin",
    "Find",
    "find_activations",
    "import_object",
    "is_file_name",
    "load_plugins",
    "module_of_file",
    "plugin_errors",
)

#: Entry-point group in which a package registers its activations.
GROUP = "plexus.activations"


#: The display name of a plugin, the name that identifies it, and its activations, imported lazily.
Source: TypeAlias = tuple[str, str, Iterator[Registrable]]


class BrokenPlugin(NamedTuple):
    """A plugin that could not be loaded, and the reason."""

    source: str
    reason: str


#: Returns the activations that a name identifies.
Find: TypeAlias = Callable[[str], Iterator[Registrable]]


def load_plugins(
    hub: Plexus, names: Iterable[str], folder: Path | None, find: Find | None = None
) -> list[BrokenPlugin]:
    """Register every plugin; return those that failed.

    `names` are `module:Class`, `module`, or paths of Python files; `folder` is searched for `*.py`.
    A class that is named takes precedence over a found one with the same namespace.
    """
    broken: list[BrokenPlugin] = []
    built_ins = BuiltIns(hub)
    sources: list[Source] = list(_entry_points())
    if folder is not None and folder.is_dir():
        files = [(path, str(path)) for path in sorted(folder.glob("*.py"))]
        sources += [(name, name, _from_file(path)) for path, name in files]
    sources += [(name, name, (find or find_activations)(name)) for name in names]
    for source, name, found in sources:
        if _is_switched_off(hub, name):
            continue
        seen: list[Registrable] = []
        hub.skipped.pop(source, None)
        try:
            with plugin_errors():
                for activation in found:
                    seen.append(activation)
                    hub.register(activation)
        except PlexusError as error:
            switched_off = built_ins.switch_off(name, seen)
            broken.append(BrokenPlugin(source, error.message + switched_off))
            hub.skipped[source] = broken[-1].reason
    return broken


def _is_switched_off(hub: Plexus, name: str) -> bool:
    """Return whether the operator has switched off every namespace of a plugin.

    It is then not imported: its namespaces are read from its text.
    """
    if hub.selection == ALL:
        return False
    namespaces = namespaces_of(name)
    if not namespaces or any(map(hub.selection.allows_some, namespaces)):
        return False
    hub.switched_off |= dict.fromkeys(namespaces, OFF)
    return True


@contextlib.contextmanager
def plugin_errors() -> Iterator[None]:
    """Convert any exception of a plugin to a PluginError, with the exception as its cause.

    Importing foreign code may raise anything, including SystemExit.
    """
    try:
        yield
    except PlexusError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{type(error).__name__}: {error}") from error


def _entry_points() -> Iterator[Source]:
    """Yield the activations that installed packages register."""
    for point in entry_points_of(GROUP):
        found = (_checked(load(), value) for load, value in [(point.load, point.value)])
        yield f"entry point {point.name}", point.value, found


def is_file_name(name: str) -> bool:
    """Return whether a name is the path of a file, not that of a module."""
    return name.endswith(".py") or "/" in name


def find_activations(
    name: str, *, source: bytes | None = None, here: Path | None = None
) -> Iterator[Registrable]:
    """Yield the activations that `module:name`, `module` or the path of a file identifies.

    A file is executed from `source`, if given, instead of from disk. A module may be in the folder
    `here`, if it is not installed. Raises PluginError if the name identifies nothing, and any error
    of the import.
    """
    if is_file_name(name):
        yield from _from_file(Path(name), source)
        return
    found = import_object(name, here)
    if isinstance(found, ModuleType):
        yield from _activations_in(found)
    else:
        yield _checked(found, name)


def import_object(name: str, here: Path | None = None) -> Any:
    """Import `module:attribute` or `module` and return it.

    A module that is not installed may be in the folder `here`. Raises PluginError for an unknown
    name, and any exception of the import.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name.strip():
        raise PluginError(f"{name!r} has no module; allowed: module:Class or module")
    if here is not None:
        _make_importable(module_name.partition(".")[0], here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            where = "" if here is None else f" or in {here}"
            raise PluginError(f"no module {module_name!r} on PYTHONPATH{where}") from error
        raise
    if not attribute:
        return module
    if not hasattr(module, attribute):
        raise PluginError(f"the module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def _make_importable(package: str, here: Path) -> None:
    """Make a package of this folder importable, as `python -m` would, if it is not installed.

    For all other packages the folder stays off the path: otherwise every failing import of any
    library would search the folder and run code from it.
    """
    if str(here) in sys.path or not package:
        return
    if (here / package).is_dir() or (here / f"{package}.py").is_file():
        with contextlib.suppress(ValueError):  # a module without a spec
            if importlib.util.find_spec(package) is None:
                sys.path.append(str(here))


class _VerifiedLoader(importlib.machinery.SourceFileLoader):
    """Loader that executes a Python file from verified content and ignores bytecode on disk."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        return self._source if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.get_filename(fullname))
        return code


def _from_file(path: Path, source: bytes | None = None) -> Iterator[Registrable]:
    if source is None and not path.is_file():
        raise PluginError(f"no file {path}")
    module_name = module_of_file(path)
    loader = None if source is None else _VerifiedLoader(module_name, str(path), source)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that its type hints can be resolved
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    yield from _activations_in(module)


def module_of_file(path: Path) -> str:
    """Return the name under which a plugin file is imported."""
    return f"plexus_plugin_{path.stem}"


def _activations_in(module: object) -> Iterator[Registrable]:
    """Yield the activations that a module defines; children are part of their parents.

    Raises PluginError without any.
    """
    name = getattr(module, "__name__", None)
    values = list(vars(module).values())
    own: list[Registrable] = [
        value
        for value in values
        if isinstance(value, type) and issubclass(value, Activation) and value.__module__ == name
    ]
    own += [each for each in values if type(each) is Activation and each.module == name]
    inner = [
        child
        for parent in own
        if isinstance(parent.children, Sequence)  # not a property, which needs an instance
        for child in parent.children
    ]
    classes = {type(child) for child in inner if type(child) is not Activation}
    roots = [each for each in own if each not in inner and each not in classes]
    if not roots:
        raise PluginError('defines no activation: write Activation("name"), or a subclass of it')
    yield from dict.fromkeys(roots)


def _checked(value: object, source: str) -> Registrable:
    if isinstance(value, Activation) or (isinstance(value, type) and issubclass(value, Activation)):
        return value
    raise PluginError(f"{source} is not an Activation, nor a subclass of it")
