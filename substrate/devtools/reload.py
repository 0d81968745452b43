"""Reloading of activations when their files change, while the server keeps running.

Rules:

- The new class replaces the old one in the hub, which notifies the clients. Runs of the old class
  continue with the code they started with.
- A file that cannot be loaded is reported with its line, and the previous version stays. The same
  applies to an activation whose lifespan fails to start.
- Unchanged sources are not reloaded: they keep their state. A change of a module that several files
  may share reloads all of them.

Files are polled four times a second. File system notifications would need a third-party package,
and do not work in every container and on every network drive; polling a few dozen files takes less
than a millisecond, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

from plexus.errors import PlexusError
from plexus.registry.activation_tree import Node
from plexus.registry.plugin_namespaces import BuiltIns, Registrable
from plexus.registry.plugins import Find, module_of_file, plugin_errors
from plexus.runtime.hub import Plexus
from substrate.devtools.plugin_sources import PluginSources
from substrate.devtools.source_location import display_path, location_of_error

__all__ = ("Reloader",)

#: Interval between polls.
POLL_S: Final = 0.25
#: How long a file must be unchanged before it is read: an editor may still be writing.
SETTLE_S: Final = 0.05
#: Maximum number of such waits. A file that changes continually is read nevertheless.
SETTLE_ROUNDS: Final = 20
#: Packages that run the server are never reloaded, wherever they are.
OURS: Final = frozenset({"activations", "mcp_view", "native_rpc", "plexus", "substrate"})

#: Identifies a version of a file.
Stamp: TypeAlias = tuple[int, int, int]
Stamps: TypeAlias = dict[Path, Stamp]


class Source:
    """A name of activations to load, and the namespaces it registered."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The namespaces that it registered.
        self.namespaces: list[str] = []

    @property
    def is_file(self) -> bool:
        return self.name.endswith(".py") or "/" in self.name

    @property
    def module(self) -> str:
        """The module that is imported, or its top-level package."""
        if self.is_file:
            return module_of_file(Path(self.name))
        return self.name.partition(":")[0].partition(".")[0]

    @property
    def title(self) -> str:
        return display_path(Path(self.name)) if self.is_file else self.name

    def files(self) -> Iterator[Path]:
        """Yield the files of the source."""
        if self.is_file:
            yield Path(self.name)
            return
        if not self.module or self.module in OURS:
            return
        try:
            spec = importlib.util.find_spec(self.module)
        except (ImportError, ValueError):
            return
        if spec is None:
            return
        for folder in spec.submodule_search_locations or ():
            yield from Path(folder).rglob("*.py")
        if not spec.submodule_search_locations and spec.origin:
            yield Path(spec.origin)


class Reloader:
    """Keeps the activations of a hub in step with their source files."""

    def __init__(
        self,
        hub: Plexus,
        sources: PluginSources,
        project: Path,
        report: Callable[[str], None],
        find: Find,
    ) -> None:
        self._hub = hub
        self._find = find
        self._built_ins = BuiltIns(hub)
        self._plugins = sources
        self._project = project
        self._report = report
        self._sources: dict[str, Source] = {}
        #: Activations that a source replaced, to be restored when it is unloaded.
        self._replaced: dict[str, Node] = {}
        #: Modules imported before the reloader was created, which are not the author's.
        self._before = frozenset(sys.modules)
        self._stamps: Stamps = {}

    def load(self) -> None:
        """Load everything, and start watching. Errors are reported."""
        for name in self._plugins.current():
            self._sources[name] = Source(name)
        self._stamps = self._scan()
        for source in self._sources.values():
            self._load(source, "Loaded")
        self._track_shared()
        watch = asyncio.get_running_loop().create_task(self._watch())
        watch.add_done_callback(self._on_watch_ended)

    # --- watching -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Poll the files until the hub drains: what is registered later would not be closed."""
        while not self._hub.draining:
            await asyncio.sleep(POLL_S)
            self._track_shared()
            now = await asyncio.to_thread(self._scan)
            if now != self._stamps:
                now = await self._wait_until_settled(now)
                changed = {
                    file
                    for file in self._stamps.keys() | now.keys()
                    if self._stamps.get(file) != now.get(file)
                }
                self._stamps = now
                before = {node.path: node for node in self._hub.nodes()}
                self._reload_changed(changed)
                await self._start_reloaded(before)
                self._track_shared()

    async def _start_reloaded(self, before: dict[str, Node]) -> None:
        """Start the lifespans of new activations. If one fails, restore its previous version."""
        for path, reason in await self._hub.open():
            root = path.partition(".")[0]
            previous = before.get(root)
            if previous is not None:
                self._hub.register(previous, checked=True)
            else:
                for source in self._sources.values():
                    source.namespaces = [each for each in source.namespaces if each != root]
            stays = " (the previous version stays)" if previous is not None else ""
            self._report(f"Not started: {path}: {reason}{stays}")

    def _track_shared(self) -> None:
        """Record modules that a source has imported meanwhile, so they do not count as changed."""
        self._stamps |= read_stamps(
            file for file in self._shared_modules() if file not in self._stamps
        )

    def _on_watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._report(f"Stopped watching files: {type(error).__name__}: {error}")

    def _scan(self) -> Stamps:
        sources = (Source(name) for name in self._plugins.current())
        files = {file for source in sources for file in source.files()}
        return read_stamps({*files, *self._shared_modules(), *self._stamps})

    async def _wait_until_settled(self, now: Stamps) -> Stamps:
        """Return the versions of the files once they stop changing."""
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(SETTLE_S)
            before, now = now, await asyncio.to_thread(self._scan)
            if now == before:
                break
        return now

    def _shared_modules(self) -> dict[Path, str]:
        """Return the modules of the project that are not activations, by their files."""
        modules = {source.module for source in self._sources.values()}
        found = {}
        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0]
            origin = getattr(module, "__file__", None)
            if name in self._before or top in OURS or top in modules or not origin:
                continue
            file = Path(origin)
            if file.is_relative_to(self._project) and "site-packages" not in file.parts:
                found[file] = name
        return found

    # --- loading ------------------------------------------------------------------------------

    def _reload_changed(self, changed: set[Path]) -> None:
        """Reload the sources that depend on these files."""
        linecache.checkcache()
        for file in changed:  # bytecode has a resolution of whole seconds, which is too coarse
            with contextlib.suppress(OSError, NotImplementedError):
                Path(importlib.util.cache_from_source(str(file))).unlink()
        current = self._plugins.current()
        for name in [name for name in self._sources if name not in current]:
            self._unload(self._sources.pop(name))
        shared = {name for file, name in self._shared_modules().items() if file in changed}
        dropped = _forget_modules(shared)
        for name in current:
            is_new = name not in self._sources
            source = self._sources.setdefault(name, Source(name))
            if is_new or shared or not changed.isdisjoint(source.files()):
                before = dropped | _forget_modules(self._modules(source))
                self._load(source, "Loaded" if is_new else "Reloaded", before)

    def _modules(self, source: Source) -> list[str]:
        """Return the modules of a source that can be imported again."""
        top = source.module
        if top in OURS or top in self._before:
            return []
        return [name for name in sys.modules if name == top or name.startswith(f"{top}.")]

    def _load(self, source: Source, done: str, before: dict[str, ModuleType] | None = None) -> None:
        """Load a source.

        If that fails, restore its modules from `before` and keep the old version.
        """
        importlib.invalidate_caches()
        try:
            with plugin_errors():
                source.namespaces = self._swap(source, list(self._find(source.name)))
        except PlexusError as error:
            _forget_modules(self._modules(source))
            sys.modules.update(before or {})
            place = location_of_error(error, {*source.files(), *self._shared_modules()})
            stays = " (the previous version stays)" if source.namespaces else ""
            reason = " ".join(error.message.split())
            off = self._built_ins.switch_off(source.name, ())
            self._report(f"Not loaded: {place or source.title}: {reason}{stays}{off}")
        else:
            roots = tuple(f"{namespace}." for namespace in source.namespaces)
            names = [spec.name for spec in self._hub.methods() if spec.name.startswith(roots)]
            self._report(f"{done} {source.title}: {', '.join(names)}")

    def _swap(self, source: Source, classes: Iterable[Registrable]) -> list[str]:
        """Register these activations instead of those of the source. On failure, undo and raise."""
        before = {node.path: node for node in self._hub.nodes()}
        new = {str(getattr(cls, "namespace", "")): cls for cls in classes}
        removed = [namespace for namespace in source.namespaces if namespace not in new]
        registered: list[str] = []
        try:
            with plugin_errors():
                for namespace in removed:
                    self._remove(namespace)
                for namespace, cls in new.items():
                    self._hub.register(cls)
                    registered.append(namespace)
        except PlexusError:
            for namespace in registered:
                if namespace not in before:
                    self._hub.unregister(namespace)
            for namespace in (*removed, *registered):
                if namespace in before:
                    self._hub.register(before[namespace], checked=True)
            raise
        for namespace in removed:
            self._replaced.pop(namespace, None)
        for namespace in registered:
            if namespace in before and not self._is_owned(namespace):
                self._replaced[namespace] = before[namespace]
        return registered

    def _is_owned(self, namespace: str) -> bool:
        return any(namespace in source.namespaces for source in self._sources.values())

    def _remove(self, namespace: str) -> None:
        """Unregister a namespace, or restore what it replaced."""
        if namespace in self._replaced:
            self._hub.register(self._replaced[namespace], checked=True)
        else:
            self._hub.unregister(namespace)

    def _unload(self, source: Source) -> None:
        """Unload a source whose file was deleted."""
        _forget_modules(self._modules(source))
        for namespace in source.namespaces:
            if not self._is_owned(namespace):
                self._remove(namespace)
                self._replaced.pop(namespace, None)
        if source.namespaces:
            self._report(f"Unloaded {source.title}: {', '.join(source.namespaces)}")


def read_stamps(files: Iterable[Path]) -> Stamps:
    """Return the versions of these files. A missing file has none."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            found[file] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _forget_modules(names: Iterable[str]) -> dict[str, ModuleType]:
    """Remove these modules from `sys.modules`, so that they are imported again, and return them."""
    return {name: sys.modules.pop(name) for name in list(names) if name in sys.modules}
