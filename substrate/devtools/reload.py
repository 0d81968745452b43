"""Loading activations again when their files change, while the server goes on.

Rules:
- The new class takes the place of the old one in the hub, which tells the clients. Runs of the
  old one go on with the code they began with.
- A file that cannot be loaded is reported with its line, and everything stays as it was.
- What did not change is not loaded again: it keeps what it holds. A module that several files may
  share makes all of them be loaded again.

Files are looked at four times a second. Asking the system to tell of changes would need a package
of others, and does not work in every container and on every network drive; a few dozen files take
less than a millisecond, in a thread.
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

from plexus.activation import Activation
from plexus.errors import PlexusError
from plexus.registry.activation_tree import Node
from plexus.registry.plugin_namespaces import BuiltIns
from plexus.registry.plugins import Find, module_of_file, plugin_errors
from plexus.runtime.hub import Plexus
from substrate.devtools.plugin_sources import PluginSources
from substrate.devtools.source_location import location_of_error, shown

__all__ = ("Reloader",)

#: How often files are looked at.
POLL_S: Final = 0.25
#: How long a file must stay as it is before it is read: an editor may be in the middle of it.
SETTLE_S: Final = 0.05
#: How often that is waited for. A file that changes all the time is read all the same.
SETTLE_ROUNDS: Final = 20
#: These modules run the server, wherever they are, and are never loaded again.
OURS: Final = frozenset({"activations", "mcp_view", "native_rpc", "plexus", "substrate"})

#: What tells one version of a file from another.
Stamp: TypeAlias = tuple[int, int, int]
Stamps: TypeAlias = dict[Path, Stamp]


class Source:
    """One name that leads to activations, and what came of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The namespaces that it put into the hub.
        self.namespaces: list[str] = []

    @property
    def is_file(self) -> bool:
        return self.name.endswith(".py") or "/" in self.name

    @property
    def module(self) -> str:
        """The module that is imported, or the package that it is in."""
        if self.is_file:
            return module_of_file(Path(self.name))
        return self.name.partition(":")[0].partition(".")[0]

    @property
    def title(self) -> str:
        return shown(Path(self.name)) if self.is_file else self.name

    def files(self) -> Iterator[Path]:
        """The files that it is made of."""
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
    """Keeps a hub like the files that its activations are written in."""

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
        self._wanted = sources
        self._project = project
        self._report = report
        self._sources: dict[str, Source] = {}
        #: What a source took the place of, to be put back when it goes.
        self._covered: dict[str, Node] = {}
        #: What was imported before us, and is none of theirs.
        self._before = frozenset(sys.modules)
        self._stamps: Stamps = {}

    def load(self) -> None:
        """Load everything, and begin to watch. What cannot be loaded is reported."""
        for name in self._wanted.current():
            self._sources[name] = Source(name)
        self._stamps = self._scan()
        for source in self._sources.values():
            self._load(source, "Loaded")
        self._note_shared()
        watch = asyncio.get_running_loop().create_task(self._watch())
        watch.add_done_callback(self._stopped)

    # --- watching -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Poll the files until the hub drains: what is registered later would not be closed."""
        while not self._hub.draining:
            await asyncio.sleep(POLL_S)
            self._note_shared()
            now = await asyncio.to_thread(self._scan)
            if now != self._stamps:
                now = await self._settled(now)
                changed = {
                    file
                    for file in self._stamps.keys() | now.keys()
                    if self._stamps.get(file) != now.get(file)
                }
                self._stamps = now
                self._take(changed)
                self._note_shared()

    def _note_shared(self) -> None:
        """A module that was imported by one of ours since is new to us, and not to it."""
        self._stamps |= stamps_of(file for file in self._shared() if file not in self._stamps)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._report(f"Files are no longer watched: {type(error).__name__}: {error}")

    def _scan(self) -> Stamps:
        wanted = (Source(name) for name in self._wanted.current())
        files = {file for source in wanted for file in source.files()}
        return stamps_of({*files, *self._shared(), *self._stamps})

    async def _settled(self, now: Stamps) -> Stamps:
        """The files, once they stay as they are."""
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(SETTLE_S)
            before, now = now, await asyncio.to_thread(self._scan)
            if now == before:
                break
        return now

    def _shared(self) -> dict[Path, str]:
        """Modules of the project that are no activations, by their files."""
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

    def _take(self, changed: set[Path]) -> None:
        """Load again what is made of these files."""
        linecache.checkcache()
        for file in changed:  # bytecode is told from another by whole seconds, which is too coarse
            with contextlib.suppress(OSError, NotImplementedError):
                Path(importlib.util.cache_from_source(str(file))).unlink()
        current = self._wanted.current()
        for name in [name for name in self._sources if name not in current]:
            self._let_go(self._sources.pop(name))
        shared = {name for file, name in self._shared().items() if file in changed}
        dropped = _drop(shared)
        for name in current:
            is_new = name not in self._sources
            source = self._sources.setdefault(name, Source(name))
            if is_new or shared or not changed.isdisjoint(source.files()):
                before = dropped | _drop(self._modules(source))
                self._load(source, "Loaded" if is_new else "Reloaded", before)

    def _modules(self, source: Source) -> list[str]:
        """The modules that it is made of and that can be imported anew."""
        top = source.module
        if top in OURS or top in self._before:
            return []
        return [name for name in sys.modules if name == top or name.startswith(f"{top}.")]

    def _load(self, source: Source, done: str, before: dict[str, ModuleType] | None = None) -> None:
        """Load a source whose modules were these before; if that fails, all stays as it was."""
        importlib.invalidate_caches()
        try:
            with plugin_errors():
                source.namespaces = self._swap(source, list(self._find(source.name)))
        except PlexusError as error:
            _drop(self._modules(source))
            sys.modules.update(before or {})
            place = location_of_error(error, {*source.files(), *self._shared()})
            stays = " (what was there before stays)" if source.namespaces else ""
            reason = " ".join(error.message.split())
            off = self._built_ins.switch_off(source.name, ())
            self._report(f"Not loaded: {place or source.title}: {reason}{stays}{off}")
        else:
            roots = tuple(f"{namespace}." for namespace in source.namespaces)
            names = [spec.name for spec in self._hub.methods() if spec.name.startswith(roots)]
            self._report(f"{done} {source.title}: {', '.join(names)}")

    def _swap(self, source: Source, classes: Iterable[type[Activation]]) -> list[str]:
        """Put these into the hub in the place of what the source had there; if one is refused,
        all is put back and its error raised."""
        before = {node.path: node for node in self._hub.nodes()}
        new = {str(getattr(cls, "namespace", "")): cls for cls in classes}
        gone = [namespace for namespace in source.namespaces if namespace not in new]
        taken: list[str] = []
        try:
            with plugin_errors():
                for namespace in gone:
                    self._remove(namespace)
                for namespace, cls in new.items():
                    self._hub.register(cls)
                    taken.append(namespace)
        except PlexusError:
            for namespace in taken:
                if namespace not in before:
                    self._hub.unregister(namespace)
            for namespace in (*gone, *taken):
                if namespace in before:
                    self._hub.register(before[namespace], checked=True)
            raise
        for namespace in gone:
            self._covered.pop(namespace, None)
        for namespace in taken:
            if namespace in before and not self._owned(namespace):
                self._covered[namespace] = before[namespace]
        return taken

    def _owned(self, namespace: str) -> bool:
        return any(namespace in source.namespaces for source in self._sources.values())

    def _remove(self, namespace: str) -> None:
        """Take a namespace out of the hub, or put back what was there before."""
        if namespace in self._covered:
            self._hub.register(self._covered[namespace], checked=True)
        else:
            self._hub.unregister(namespace)

    def _let_go(self, source: Source) -> None:
        """A file is gone, and with it what it held."""
        _drop(self._modules(source))
        for namespace in source.namespaces:
            if not self._owned(namespace):
                self._remove(namespace)
                self._covered.pop(namespace, None)
        if source.namespaces:
            self._report(f"Gone {source.title}: {', '.join(source.namespaces)}")


def stamps_of(files: Iterable[Path]) -> Stamps:
    """The versions of these files; one that is not there has none."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            found[file] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _drop(names: Iterable[str]) -> dict[str, ModuleType]:
    """Have these modules imported anew; what they were."""
    return {name: sys.modules.pop(name) for name in list(names) if name in sys.modules}
