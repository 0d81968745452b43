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
from types import CodeType
from typing import NamedTuple, TypeAlias

from plexus.activation import Activation
from plexus.errors import PlexusError, PluginError
from plexus.registry.plugin_namespaces import BuiltIns
from plexus.runtime.hub import Plexus

__all__ = (
    "GROUP",
    "BrokenPlugin",
    "Find",
    "find_activations",
    "is_file_name",
    "load_plugins",
    "module_of_file",
    "plugin_errors",
)

#: Entry-point group in which a package registers its activations.
GROUP = "plexus.activations"


#: The display name of a plugin, the name that identifies it, and its activations, imported lazily.
Source: TypeAlias = tuple[str, str, Iterator[type[Activation]]]


class BrokenPlugin(NamedTuple):
    """A plugin that could not be loaded, and the reason."""

    source: str
    reason: str


#: Returns the activations that a name identifies.
Find: TypeAlias = Callable[[str], Iterator[type[Activation]]]


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
        seen: list[type[Activation]] = []
        try:
            with plugin_errors():
                for activation in found:
                    seen.append(activation)
                    hub.register(activation)
        except PlexusError as error:
            switched_off = built_ins.switch_off(name, seen)
            broken.append(BrokenPlugin(source, error.message + switched_off))
    return broken


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
    """Yield the activations that installed packages register.

    Importing `importlib.metadata` costs 20 ms of every start, so the files that it would read are
    searched for the group first.
    """
    if not any(_names_group(Path(entry or ".")) for entry in sys.path):
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        found = (_checked(load(), value) for load, value in [(point.load, point.value)])
        yield f"entry point {point.name}", point.value, found


def _names_group(folder: Path) -> bool:
    if folder.is_file():  # a zip archive on the path: importlib.metadata reads it
        return True
    named = f"[{GROUP}]".encode()
    for pattern in ("*.dist-info", "*.egg-info"):
        for file in folder.glob(f"{pattern}/entry_points.txt"):
            with contextlib.suppress(OSError):
                if named in file.read_bytes():
                    return True
    return False


def is_file_name(name: str) -> bool:
    """Return whether a name is the path of a file, not that of a module."""
    return name.endswith(".py") or "/" in name


def find_activations(
    name: str, *, source: bytes | None = None, here: Path | None = None
) -> Iterator[type[Activation]]:
    """Yield the activations that `module:Class`, `module` or the path of a file identifies.

    A file is executed from `source`, if given, instead of from disk. A module may be in the folder
    `here`, if it is not installed. Raises PluginError if the name identifies nothing, and any error
    of the import.
    """
    if is_file_name(name):
        yield from _from_file(Path(name), source)
        return
    module_name, _, class_name = name.partition(":")
    if here is not None:
        _make_importable(module_name.partition(".")[0], here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            where = "" if here is None else f" or in {here}"
            raise PluginError(f"no module {module_name!r} on PYTHONPATH{where}") from error
        raise
    if not class_name:
        yield from _activations_in(module)
        return
    if not hasattr(module, class_name):
        raise PluginError(f"the module {module_name!r} has no class {class_name!r}")
    yield _checked(getattr(module, class_name), name)


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


def _from_file(path: Path, source: bytes | None = None) -> Iterator[type[Activation]]:
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


def _activations_in(module: object) -> Iterator[type[Activation]]:
    """Yield the activations that a module defines; children are part of their parents.

    Raises PluginError without any.
    """
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Activation)
        and value.__module__ == getattr(module, "__name__", None)
    ]
    inner = {
        child if isinstance(child, type) else type(child)
        for cls in own
        if isinstance(cls.children, Sequence)  # not a property, which needs an instance
        for child in cls.children
    }
    roots = [cls for cls in own if cls not in inner]
    if not roots:
        raise PluginError("defines no subclass of plexus.Activation")
    yield from roots


def _checked(value: object, source: str) -> type[Activation]:
    if not (isinstance(value, type) and issubclass(value, Activation)):
        raise PluginError(f"{source} is not a subclass of plexus.Activation")
    return value
