"""Changes of resources of a server, for the clients that wait for them.

Each session is subscribed to what clients of its owner wait for, as long as one does. A session
that is lost is replaced, and what was subscribed is reported once, because a change may have been
missed. A server cannot make more changes of it than one for each resource and interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from activations.gateway.names import outer_uri
from activations.gateway.session_pool import WATCH, Entry, SessionPool
from activations.gateway.transports.session import UpstreamSession
from mcp_view.client.errors import Late, Refused
from plexus.errors import PlexusError
from plexus.principal import Principal
from plexus.runtime.changes import Change

if TYPE_CHECKING:  # it creates this
    from activations.gateway.mount import Mount

__all__ = ("Subscriptions",)

logger = logging.getLogger("activations.gateway")

#: Maximum resources of one mount that are subscribed. Those beyond are not followed.
MAX_FOLLOWED: Final = 1000
#: Timeout of a subscription, and the delay before another attempt after a failure.
SUBSCRIBE_S: Final = 10.0
RETRY_S: Final = 5.0
#: After a report, further ones are collected for this time.
SETTLE_S: Final = 0.1
#: How many levels above the URI of an update a subscribed one is looked for.
MAX_LEVELS: Final = 32
MAX_URI_CHARS: Final = 8192


class _Wanted(NamedTuple):
    """What the clients of one principal wait for."""

    principal: Principal
    uris: set[str]


#: By the owner of the sessions: the name of a principal, or None for a shared session.
AllWanted: TypeAlias = dict[str | None, _Wanted]


class Subscriptions:
    """The subscriptions of one mount, in all of its sessions."""

    def __init__(self, mount: Mount, pool: SessionPool) -> None:
        self._mount = mount
        self._pool = pool
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: What was subscribed at least once and is still wanted, with its owner.
        self._known: set[tuple[str | None, str]] = set()
        #: What was not subscribed in time: it is tried after all others.
        self._late: set[str] = set()
        #: Reports that are collected, in order.
        self._pending: dict[Change, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        pool.on_change = self._sessions_changed

    # --- what clients wait for --------------------------------------------------------------------

    def refresh(self) -> None:
        """Subscribe to what clients wait for now, and to nothing else, soon."""
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(
                self._follow(), name=f"subscriptions {self._mount.config.name}"
            )

    def _sessions_changed(self) -> None:
        if self._task is not None:
            self._changed.set()

    def _wanted(self) -> AllWanted:
        shared = self._mount.config.session_scope == "shared"
        found: AllWanted = {}
        count = 0
        for uri, principal in self._mount.gateway.watched(self._mount):
            owner = None if shared else principal.name
            uris = found.setdefault(owner, _Wanted(principal, set())).uris
            if uri not in uris and count < MAX_FOLLOWED:
                uris.add(uri)
                count += 1
        if count >= MAX_FOLLOWED:
            logger.warning(
                "mount %s: only %d resources are followed", self._mount.config.name, MAX_FOLLOWED
            )
        return {owner: each for owner, each in found.items() if each.uris}

    async def _follow(self) -> None:
        """Bring the sessions in line with what is wanted, until nothing is."""
        while True:
            self._changed.clear()
            wanted = self._wanted()
            self._known = {
                (owner, uri)
                for owner, uri in self._known
                if owner in wanted and uri in wanted[owner].uris
            }
            self._late &= {uri for each in wanted.values() for uri in each.uris}
            done = await self._match_all(wanted)
            if not wanted and done and not self._changed.is_set():
                self._task = None
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if done else RETRY_S):
                    await self._changed.wait()

    # --- sessions ---------------------------------------------------------------------------------

    async def _match_all(self, wanted: AllWanted) -> bool:
        """Subscribe in all sessions; open those that are missing. Returns False after a failure."""
        entries = self._pool.observing()
        served = {each.principal for each in entries if each.key[0] != WATCH}
        work = []
        for entry in entries:
            # A session that only observes is not needed in addition to one of a caller.
            spare = entry.key[0] == WATCH and entry.principal in served
            mine = None if spare else wanted.get(entry.principal)
            if entry.session is not None:
                uris = set() if mine is None else mine.uris
                work.append(self._match(entry, entry.session, uris))
        served |= {each.principal for each in entries}
        work += [self._open(wanted[owner], owner) for owner in wanted if owner not in served]
        return all(await asyncio.gather(*work))

    async def _open(self, wanted: _Wanted, owner: str | None) -> bool:
        config, principal = self._mount.config, wanted.principal
        if config.signs_in and owner is not None and not principal.is_operator:
            return True  # it has its own account, whose sessions its own calls open
        try:
            entry = await self._pool.open_to_observe(owner)
        except PlexusError as error:
            logger.info("mount %s: %s", config.name, error.message)
            return False
        assert entry.session is not None, "it was opened"
        return await self._match(entry, entry.session, wanted.uris)

    async def _match(self, entry: Entry, session: UpstreamSession, uris: set[str]) -> bool:
        """Subscribe in one session to these resources only. Returns False after a failure."""
        entry.refused &= uris
        missing, extra = uris - entry.followed - entry.refused, entry.followed - uris
        entry.followed -= extra
        if not missing and not extra:
            return True
        with self._pool.listing(entry):
            try:
                # Without a handshake one request names all resources.
                one_by_one = session.server.revision.handshake
                if one_by_one and not session.server.has("resources", "subscribe"):
                    entry.refused |= missing
                    missing = set()
                with contextlib.suppress(Refused):
                    await session.unsubscribe(*extra, timeout_s=SUBSCRIBE_S)
                order = sorted(missing, key=lambda each: (each in self._late, each))
                groups = [[each] for each in order] if one_by_one else [order]
                for group in filter(None, groups):
                    try:
                        await session.subscribe(*group, timeout_s=SUBSCRIBE_S)
                    except Refused:
                        entry.refused.update(group)
                    except Late:
                        self._late.update(group)
                        raise
                    else:
                        entry.followed.update(group)
                        self._subscribed(entry, group)
            except PlexusError as error:
                logger.info("mount %s: %s", self._mount.config.name, error.message)
                return False
        return True

    def _subscribed(self, entry: Entry, uris: Iterable[str]) -> None:
        """Report what was subscribed in a session that is gone: a change may have been missed."""
        others = [each for each in self._pool.observing() if each is not entry]
        for uri in uris:
            key = entry.principal, uri
            if key not in self._known:
                self._known.add(key)
            elif not any(
                each.principal == entry.principal and uri in each.followed for each in others
            ):
                self._report(entry, uri)

    # --- updates ----------------------------------------------------------------------------------

    def on_update(self, entry: Entry, uri: str) -> None:
        """Handle an update of a resource, or of one below a subscribed one."""
        if not entry.followed or len(uri) > MAX_URI_CHARS:
            return
        above = uri
        for _ in range(MAX_LEVELS):
            if above in entry.followed:
                self._report(entry, above)
                return
            above, slash, _ = above.rpartition("/")
            if above + slash in entry.followed:
                above += slash
            elif not slash:
                return

    def on_reset(self, entry: Entry) -> None:
        """Handle a session that the server has forgotten: a change may have been missed."""
        for uri in entry.followed:
            self._report(entry, uri)

    def _report(self, entry: Entry, uri: str) -> None:
        change = Change("resource", outer_uri(self._mount.config.name, uri), entry.principal)
        self._pending[change] = None
        if self._timer is None:
            self._flush()

    def _flush(self) -> None:
        """Report what was collected, at most once for each interval."""
        pending, self._pending = self._pending, {}
        self._timer = None
        if pending:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._flush)
        for change in pending:
            self._mount.gateway.notify(self._mount, change)

    async def close(self) -> None:
        """End following."""
        if self._timer is not None:
            self._timer.cancel()
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
