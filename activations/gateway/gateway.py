"""The mounts of one hub: registers them, keeps their catalogues, and follows changes on disk.

All processes of the user share the catalogues. When one of them lists a server, or a person
approves a tool there, the others notice by the file and offer the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.catalogue import Catalogue, merge
from activations.gateway.catalogue_store import CatalogueStore
from activations.gateway.mount import Mount
from activations.gateway.mount_file import LoadedMounts, load_mounts
from activations.gateway.names import inner_uri, outer_uri
from plexus.errors import Failed, NotFound, PlexusError, RegistrationError
from plexus.registry.activation_tree import read_activation
from plexus.registry.lazy import resolve

if TYPE_CHECKING:  # imported when a server is started
    from activations.gateway.transports.oauth import SignIn
    from activations.gateway.transports.token_store import TokenStore
    from activations.processes.process import Launcher
    from plexus.context import Context
    from plexus.principal import Principal
    from plexus.runtime.changes import Change
    from plexus.runtime.hub import Plexus

__all__ = ("Gateway", "register_mounts")

logger = logging.getLogger("activations.gateway")

MOUNTS: Final = "activations.gateway.activation:Mounts"
TOKEN_STORE: Final = "activations.gateway.transports.token_store:TokenStore"
LAUNCHER: Final = "activations.processes.process:Launcher"
#: How often the files are looked at for changes by other processes.
POLL_S: Final = 1.0
#: How long changes of a list are collected before the server is listed again.
SETTLE_S: Final = 0.5
#: A catalogue of this age is listed again in the background after the start.
STALE_S: Final = 24 * 3600.0
#: How many servers are listed concurrently at the start.
LISTED_TOGETHER: Final = 4


class Gateway:
    """The mounts of one hub."""

    def __init__(
        self,
        hub: Plexus,
        load: Callable[[], LoadedMounts],
        *,
        folder: Path | None = None,
        store: CatalogueStore | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Read the configuration with `load`; `folder` is the working directory of servers."""
        self._hub = hub
        self._load = load
        self.folder = folder or Path.cwd()
        self.store = store or CatalogueStore()
        self.settle_s = settle_s
        self.mounts: dict[str, Mount] = {}
        #: Why entries of the configuration are not mounted, by their names.
        self.broken: dict[str, str] = {}
        #: Why servers could not be listed, as it was last logged, by the names of their mounts.
        self._logged: dict[str, str] = {}
        #: Shows a sign-in that no run needs, on the terminal of a command; None if there is none.
        self.show_sign_in: Callable[[SignIn], Coroutine[Any, Any, None]] | None = None
        #: Mounts that were removed or changed, until they are closed.
        self._retired: list[Mount] = []
        self._loaded: LoadedMounts | None = None
        self._listing: asyncio.Semaphore | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: Callable[[], None] | None = None

    @cached_property
    def launcher(self) -> Launcher:
        """Starts the processes of all mounts; imported at first use."""
        launcher: Launcher = resolve(LAUNCHER)()
        return launcher

    @cached_property
    def tokens(self) -> TokenStore:
        """The tokens of servers that require a sign-in; imported at first use."""
        tokens: TokenStore = resolve(TOKEN_STORE)(self.store.folder / "tokens.json")
        return tokens

    # --- registration ---------------------------------------------------------------------------

    def register_all(self) -> None:
        """Register the mounts of the configuration, and unregister those that are gone."""
        loaded = self._load()
        if loaded == self._loaded:
            return
        self._loaded = loaded
        self.broken = dict(loaded.broken)
        wanted = {name: each for name, each in loaded.mounts.items() if each.enabled}
        for name, mount in list(self.mounts.items()):
            if wanted.get(name) != mount.config:
                del self.mounts[name]
                self._retired.append(mount)
                self._hub.pending.discard(name)
                self._unregister(name)
        taken = {path.partition(".")[0] for path in (node.path for node in self._hub.nodes())}
        for name, config in wanted.items():
            if name in self.mounts:
                continue
            if name in taken:
                self.broken[name] = f"the namespace {name!r} is taken by an activation"
                continue
            mount = Mount(config, self, self.store.read(config))
            mount.stamp = self.store.stamp(config)
            self.mounts[name] = mount
            self._register(mount)

    def _register(self, mount: Mount) -> None:
        """Offer what the catalogue of a mount has."""
        name = mount.config.name
        if mount.catalogue is None:
            self._hub.pending.add(name)
        else:
            self._hub.pending.discard(name)
        try:
            node = mount.node()
            if node is None:
                self._unregister(name)
            else:
                self._hub.register(node, checked=True)
                if next(self.watched(mount), None) is not None:
                    mount.calls.subscriptions.refresh()
        except RegistrationError as error:
            self.broken[name] = error.message

    def _unregister(self, name: str) -> None:
        try:
            self._hub.unregister(name)
        except NotFound:
            self._hub.switched_off.pop(name, None)

    # --- changes of resources -------------------------------------------------------------------

    def watched(self, mount: Mount) -> Iterator[tuple[str, Principal]]:
        """Yield the resources of a mount that clients wait for, who may read them."""
        name = mount.config.name
        for uri, principal in self._hub.watched_resources:
            inner = inner_uri(name, uri)
            if inner is None or outer_uri(name, inner) != uri:
                continue
            with contextlib.suppress(NotFound):
                spec, _ = self._hub.find_resource(uri)
                if spec.owner is mount and principal.may(spec.scope):
                    yield inner, principal

    def notify(self, mount: Mount, change: Change) -> None:
        """Report a change of a resource of a mount."""
        if self.mounts.get(mount.config.name) is mount:
            self._hub.notify(change)

    def _on_watched(self, uri: str) -> None:
        for mount in self.mounts.values():
            if inner_uri(mount.config.name, uri) is not None:
                mount.calls.subscriptions.refresh()

    # --- catalogues -----------------------------------------------------------------------------

    async def offer(self, mount: Mount, listed: Catalogue) -> None:
        """Offer what a server has listed, except tools that wait for approval."""
        pinned = mount.config.pin == "on"
        catalogue = await self._update(mount, lambda known: merge(known, listed, pinned=pinned))
        self._apply(mount, catalogue)

    async def approve(self, name: str, tools: Iterable[str] | None = None) -> list[str]:
        """Approve held tools of a mount, by default all. Returns their names. Raises NotFound."""
        mount = self.find(name)
        chosen = None if tools is None else list(tools)
        held = self.store.read(mount.config)
        waiting = set() if held is None else set(held.held)
        unknown = [each for each in chosen or () if each not in waiting]
        if unknown:
            raise NotFound(
                f"{name} holds no tool {unknown[0][:200]!r}. "
                f"Held: {', '.join(sorted(waiting)) or 'none'}."
            )
        if not waiting:
            return []

        def approve(known: Catalogue | None) -> Catalogue:
            assert known is not None, "it was read above, and is never deleted here"
            return known.approve(waiting if chosen is None else chosen)

        self._apply(mount, await self._update(mount, approve))
        return sorted(waiting if chosen is None else chosen)

    async def _update(
        self, mount: Mount, change: Callable[[Catalogue | None], Catalogue]
    ) -> Catalogue:
        try:
            return await asyncio.to_thread(self.store.update, mount.config, change)
        except OSError as error:
            raise Failed(
                f"The catalogue of {mount.config.name} cannot be written: {error}.", code="storage"
            ) from error

    def _apply(self, mount: Mount, catalogue: Catalogue) -> None:
        """Use a catalogue; the hub is notified if it offers something else."""
        former, mount.catalogue = mount.catalogue, catalogue
        mount.stamp = self.store.stamp(mount.config)
        if self.mounts.get(mount.config.name) is not mount:
            return  # unmounted meanwhile
        if former is None or not catalogue.same_lists(former):
            self._register(mount)

    def check_tool(self, mount: Mount, tool: str) -> None:
        """Raise Failed if a tool waits for approval, or no longer exists."""
        catalogue = mount.catalogue
        if catalogue is None or (tool in catalogue.tools and tool not in catalogue.held):
            return
        self._reread(mount)  # it may have been approved in another process just now
        held = None if mount.catalogue is None else mount.catalogue.held.get(tool)
        if held is not None:
            name = mount.config.name
            change = "is new" if held.change == "new" else "has changed"
            raise Failed(
                f"The tool {tool!r} of {name} {change} since its server was trusted, so it is "
                f"held. A person can review and approve it: substrate mount approve {name}",
                code="tool_held",
                data={"mount": name, "tool": tool},
            )

    def _reread(self, mount: Mount) -> None:
        """Use the catalogue of another process, if the file has changed."""
        stamp = self.store.stamp(mount.config)
        if stamp == mount.stamp:
            return
        catalogue = self.store.read(mount.config)
        mount.stamp = stamp
        if catalogue is not None:
            self._apply(mount, catalogue)

    def find(self, name: str) -> Mount:
        """Return a mount by its name. Raises NotFound."""
        mount = self.mounts.get(name)
        if mount is None:
            reason = self.broken.get(name)
            known = ", ".join(sorted(self.mounts)) or "none"
            raise NotFound(
                f"{name[:100]!r} is not mounted: {reason}."
                if reason
                else f"Unknown mount {name[:100]!r}. Mounts: {known}."
            )
        return mount

    async def refresh(self, name: str, ctx: Context | None = None) -> Mount:
        """List a server now, and ask the caller of `ctx` to sign in if that is necessary.

        Raises NotFound, and what listing raises.
        """
        mount = self.find(name)
        await mount.calls.pool.reset()
        await mount.calls.lists.refresh(ctx)
        return mount

    # --- in the background ----------------------------------------------------------------------

    def start(self) -> None:
        """List servers that were never listed or not for long, and follow the files."""
        self._unwatch = self._hub.watched_resources.on_change(self._on_watched)
        self._spawn(self._follow())

    def _spawn(self, work: Any) -> None:
        self.keep(asyncio.create_task(work, name="gateway"))

    def keep(self, task: asyncio.Task[None]) -> None:
        """Own a task, which is cancelled when the hub closes."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self) -> None:
        while True:
            self._list_stale()
            await asyncio.sleep(POLL_S)
            self.register_all()
            for mount in list(self.mounts.values()):
                self._reread(mount)
            retired, self._retired = self._retired, []
            for mount in retired:
                await mount.close()

    def _list_stale(self) -> None:
        for mount in self.mounts.values():
            if mount.wants_listing(STALE_S):
                self._spawn(self._list(mount))

    async def _list(self, mount: Mount) -> None:
        if self._listing is None:
            self._listing = asyncio.Semaphore(LISTED_TOGETHER)
        async with self._listing:
            try:
                await mount.calls.lists.refresh()
            except PlexusError as error:
                mount.calls.pool.error = error
                self._log(mount.config.name, error.message)
            else:
                self._logged.pop(mount.config.name, None)

    def _log(self, name: str, reason: str) -> None:
        """Warn that a server cannot be listed, once for each reason: it is tried again and again.

        A hub of one command does not warn; `substrate mount doctor` and `substrate doctor` show it.
        """
        known = self._logged.get(name) == reason or not self._hub.serves
        self._logged[name] = reason
        logger.log(logging.DEBUG if known else logging.WARNING, "mount %s: %s", name, reason)

    async def close(self) -> None:
        """End all servers."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(each.close() for each in (*self.mounts.values(), *self._retired)))
        if "launcher" in vars(self):
            await self.launcher.close()


def register_mounts(
    hub: Plexus, user_file: Path | None, project: bytes | None, project_name: str, folder: Path
) -> Gateway:
    """Register the mounts of a user's file and of the content of `substrate.toml`.

    The file of the user is read again when it changes; the content of the project was verified.
    """
    gateway = Gateway(hub, partial(load_mounts, user_file, project, project_name), folder=folder)
    hub.register(read_activation(resolve(MOUNTS)(gateway)), checked=True)
    gateway.register_all()
    for name, reason in gateway.broken.items():
        logger.warning("mount %s: %s", name, reason)
    return gateway
