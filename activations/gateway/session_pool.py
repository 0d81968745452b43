"""The sessions of one mount: who shares one, how many there are, and when they end.

A session belongs to a connection, to a principal, to all callers, or to one call. It stays open
after a call, so that the next one costs a single round trip, until it is idle for too long, too
old, or its owner is gone. A session that is lost is opened again by the next call, after a backoff.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from activations.gateway.breaker import Breaker
from activations.gateway.visible_text import show_invisible
from plexus.errors import Busy, Failed, PlexusError

if TYPE_CHECKING:  # imported for annotations only
    from activations.gateway.mount_config import MountConfig
    from activations.gateway.transports.session import UpstreamSession
    from plexus.context import Context

__all__ = ("WATCH", "Entry", "SessionPool")

#: How often idle sessions are looked for.
SWEEP_S: Final = 1.0
#: How many calls the latency is measured over.
MEASURED_CALLS: Final = 100
#: Maximum characters of standard error that are kept after the end of a session.
STDERR_CHARS: Final = 8000
#: The code of the error of a server that requires a sign-in.
SIGN_IN: Final = "sign_in"
#: The owner of the session that lists a server whose sessions belong to connections.
CATALOGUE: Final = "catalogue"
#: The owner of a session that only observes resources, while its principal has no other.
WATCH: Final = "watch"

#: The owner of a session; its first part is the kind of owner.
Key: TypeAlias = tuple[Any, ...]
#: Opens a session for the owner of a call; None without a call.
OpenSession = Callable[["Context | None", "Entry"], Awaitable["UpstreamSession"]]


class Entry:
    """A session of the pool, or one that is being opened."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.session: UpstreamSession | None = None
        self.opening: asyncio.Task[UpstreamSession] | None = None
        #: Calls in progress: their contexts.
        self.active: dict[int, Context] = {}
        #: How many tasks list the server in it. It does not end meanwhile.
        self.listing = 0
        self.opened_at = 0.0
        self.used_at = time.monotonic()
        #: Whether its owner is gone, so that it ends after its calls.
        self.is_orphaned = False
        self.unsubscribe: Callable[[], None] | None = None
        #: The principal that it belongs to; None for a shared session.
        self.principal: str | None = None
        #: The resources that are subscribed in it, and those that the server refused.
        self.followed: set[str] = set()
        self.refused: set[str] = set()

    @property
    def is_usable(self) -> bool:
        """Whether a call can use it, now or when it is open."""
        if self.is_orphaned:
            return False
        return self.session.is_open if self.session is not None else self.opening is not None


class SessionPool:
    """All sessions of one mount."""

    def __init__(self, config: MountConfig, open_session: OpenSession) -> None:
        self._config = config
        self._open_session = open_session
        self._entries: dict[Key, Entry] = {}
        #: Sessions that are ending.
        self._closing: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._calls = itertools.count(1)
        self._is_closed = False
        self.breaker = Breaker()
        self.restarts = 0
        self.error: PlexusError | None = None
        #: Called when a session is open or gone.
        self.on_change: Callable[[], None] = lambda: None
        self._stderr = ""
        self._latencies: deque[float] = deque(maxlen=MEASURED_CALLS)

    # --- for calls ------------------------------------------------------------------------------

    def find(self, ctx: Context) -> tuple[Entry, UpstreamSession, int] | None:
        """Return what `acquire` does, if the session is open; None otherwise."""
        entry = self._entries.get(self._key(ctx))
        if entry is None or entry.session is None or not entry.is_usable:
            return None
        if self._is_old(entry) and not entry.active:
            return None
        number = next(self._calls)
        entry.active[number] = ctx
        return entry, entry.session, number

    async def acquire(self, ctx: Context) -> tuple[Entry, UpstreamSession, int]:
        """Return the session for a call, opened if necessary, and the number of the call.

        Always `release` the call. Raises Busy, Failed and what opening raises.
        """
        key = self._key(ctx)
        known = self._entries.get(key)
        if known is None or not known.is_usable or (self._is_old(known) and not known.active):
            entry = await self._replace(key, ctx)
        else:
            entry = known
        number = next(self._calls)
        entry.active[number] = ctx
        try:
            session = entry.session
            if session is None or not session.is_open:
                assert entry.opening is not None, "an entry without a session is being opened"
                session = await self._wait_open(entry.opening)
        except BaseException:
            self.release(entry, number)
            raise
        return entry, session, number

    @contextlib.contextmanager
    def listing(self, entry: Entry) -> Iterator[None]:
        """Keep a session open while the server is listed in it."""
        entry.listing += 1
        try:
            yield
        finally:
            entry.listing -= 1
            self._end_if_done(entry)

    @contextlib.asynccontextmanager
    async def any_session(self, ctx: Context | None) -> AsyncIterator[UpstreamSession]:
        """Use a session to list the server: one that is open, or one for this purpose.

        `ctx` is the call that asks for it, whose caller can sign in; None in the background.
        """
        entry = await self._find_any(ctx)
        with self.listing(entry):
            if entry.session is not None:
                yield entry.session
            else:
                assert entry.opening is not None, "it is being opened"
                yield await self._wait_open(entry.opening)

    async def _find_any(self, ctx: Context | None) -> Entry:
        for entry in self._entries.values():
            if entry.session is not None and entry.is_usable:
                return entry
        shared = self._config.session_scope == "shared"
        key: Key = ("shared",) if shared else (CATALOGUE,)
        known = self._entries.get(key)
        usable = known is not None and known.is_usable
        return known if known is not None and usable else await self._replace(key, ctx)

    def observing(self) -> list[Entry]:
        """Return the sessions that can observe resources: those that outlive a call."""
        return [
            each
            for each in self._entries.values()
            if each.is_usable and each.key[0] not in ("call", CATALOGUE)
        ]

    async def open_to_observe(self, principal: str | None) -> Entry:
        """Open a session for a principal, or the shared one for None. Raises PlexusError."""
        scope = self._config.session_scope
        if len(self._entries) >= self._config.max_sessions:
            raise self._full()  # calls come first
        key: Key = ("shared",) if principal is None else (WATCH, principal)
        if scope == "principal":
            key = ("principal", principal)
        entry = await self._replace(key, None)
        entry.principal = principal
        if entry.session is None:
            assert entry.opening is not None, "it is being opened"
            await self._wait_open(entry.opening)
        return entry

    async def _wait_open(self, opening: asyncio.Task[UpstreamSession]) -> UpstreamSession:
        """Wait for a session that others may wait for too. Raises Failed if it was ended."""
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                text = f"{self._config.name} was stopped while it started."
                raise Failed(text, code="mount_down") from None
            raise

    def release(self, entry: Entry, number: int, latency_s: float | None = None) -> None:
        """End a call. The session stays open for the next one, unless its owner is gone."""
        entry.active.pop(number, None)
        entry.used_at = time.monotonic()
        if latency_s is not None:
            self._latencies.append(latency_s)
        self._end_if_done(entry)

    def _end_if_done(self, entry: Entry) -> None:
        in_use = entry.active or entry.listing
        if not in_use and (entry.is_orphaned or entry.key[0] == "call"):
            self._end(entry)

    @property
    def calls(self) -> int:
        """The number of calls in progress."""
        return sum(len(entry.active) for entry in self._entries.values())

    def owners(self, entry: Entry) -> int:
        """Return how many different callers have calls in progress in a session."""
        return len({(ctx.principal, id(ctx.connection)) for ctx in entry.active.values()})

    # --- opening and ending -----------------------------------------------------------------------

    def _key(self, ctx: Context) -> Key:
        scope = self._config.session_scope
        if scope == "shared":
            return ("shared",)
        if scope == "call":
            return ("call", ctx.run_id)
        if scope == "connection" and ctx.connection is not None:
            return ("connection", ctx.connection)
        if scope == "connection":  # over HTTP, where the end of a client is not known
            return ("client", ctx.principal.name, ctx.client)
        return ("principal", ctx.principal.name)

    def _is_old(self, entry: Entry) -> bool:
        limit = self._config.lifetime_s
        return bool(limit and entry.session) and time.monotonic() - entry.opened_at > limit

    async def _replace(self, key: Key, ctx: Context | None) -> Entry:
        """Create an entry whose session is being opened. Raises Busy and Failed."""
        if self._is_closed:
            raise Failed("The server is stopping.", code="stopping")
        await self._wait_for_attempt()
        known = self._entries.get(key)
        if known is not None:
            if known.is_usable and not self._is_old(known):  # opened by another call meanwhile
                return known
            self._end(known)
        self._make_room()
        entry = Entry(key)
        if ctx is not None and key[0] != "shared":
            entry.principal = ctx.principal.name
        entry.opening = asyncio.create_task(
            self._open(entry, ctx), name=f"opening {self._config.name}"
        )
        entry.opening.add_done_callback(_retrieve)
        self._entries[key] = entry
        if ctx is not None and ctx.connection is not None and key[0] == "connection":
            entry.unsubscribe = ctx.connection.on_close(lambda: self._orphan(entry))
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name=f"sessions {self._config.name}")
        return entry

    async def _wait_for_attempt(self) -> None:
        """Wait for the end of a short backoff. Raises Failed during a long one."""
        breaker = self.breaker
        if breaker.is_open:
            reason = self.error.message if self.error is not None else "it does not start"
            raise Failed(
                f"{self._config.name} is down after {breaker.failures} failures, the last: "
                f"{reason} The next attempt is in {breaker.wait_s:.0f} s. "
                f"`substrate mount doctor {self._config.name}` shows more.",
                code="mount_down",
                data={"retry_s": round(breaker.wait_s, 1)},
            )
        if breaker.wait_s:
            await asyncio.sleep(breaker.wait_s)

    def _make_room(self) -> None:
        """End the session that was unused for longest, if there are too many. Raises Busy."""
        if len(self._entries) < self._config.max_sessions:
            return
        idle = [
            each
            for each in self._entries.values()
            if each.session is not None and not each.active and not each.listing
        ]
        if not idle:
            raise self._full()
        self._end(min(idle, key=lambda each: (bool(each.followed), each.used_at)))

    def _full(self) -> Busy:
        limit = self._config.max_sessions
        return Busy(
            f"All {limit} sessions of {self._config.name} are in use. Try again later, or "
            "raise max_sessions of the mount.",
            data={"limit": limit},
        )

    async def _open(self, entry: Entry, ctx: Context | None) -> UpstreamSession:
        try:
            session = await self._open_session(ctx, entry)
        except PlexusError as error:
            if error.code != SIGN_IN:  # the server is there; a person may sign in at any time
                self.breaker.on_failure()
            self.error = error
            self._forget(entry)
            raise
        except BaseException:
            self._forget(entry)
            raise
        entry.session = session
        entry.opened_at = entry.used_at = time.monotonic()
        self.breaker.on_success()
        self.error = None
        self.on_change()
        watcher = asyncio.create_task(self._watch(entry, session), name="watch of a session")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return session

    async def _watch(self, entry: Entry, session: UpstreamSession) -> None:
        """Wait for the end of a session; count a loss."""
        await session.wait_closed()
        self.keep_stderr(session.stderr)
        if self._entries.get(entry.key) is not entry:
            return  # it was ended here
        self._forget(entry)
        self.restarts += 1
        self.error = session.error
        self.breaker.on_failure(time.monotonic() - entry.opened_at)
        self._close_later(session)

    def _orphan(self, entry: Entry) -> None:
        entry.is_orphaned = True
        self._end_if_done(entry)

    def _forget(self, entry: Entry) -> None:
        if entry.unsubscribe is not None:
            entry.unsubscribe()
            entry.unsubscribe = None
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            self.on_change()

    def _end(self, entry: Entry) -> None:
        """End a session, or the attempt to open it."""
        self._forget(entry)
        if entry.session is not None:
            self._close_later(entry.session)
        elif entry.opening is not None:
            entry.opening.cancel()

    def _close_later(self, session: UpstreamSession) -> None:
        task = asyncio.create_task(session.close(), name=f"closing {self._config.name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        """End sessions that are idle or too old, as long as there are any."""
        while self._entries:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for entry in list(self._entries.values()):
                if entry.active or entry.listing or entry.session is None:
                    continue
                is_idle = self._config.idle_s and now - entry.used_at > self._config.idle_s
                is_spare = is_idle or entry.key[0] in (CATALOGUE, WATCH)
                if (is_spare and not entry.followed) or self._is_old(entry):
                    self._end(entry)
        self._sweeper = None

    async def close(self) -> None:
        """End all sessions, and wait for the end of their processes."""
        self._is_closed = True
        for entry in list(self._entries.values()):
            self._end(entry)
        if self._sweeper is not None:
            self._sweeper.cancel()
        while tasks := [*self._closing]:
            await asyncio.wait(tasks)
        for task in self._watchers:
            task.cancel()

    async def reset(self) -> None:
        """End all sessions and forget failures, because a person asks for a new start."""
        for entry in list(self._entries.values()):
            self._end(entry)
        self.breaker.reset()
        self.error = None

    def keep_stderr(self, text: str) -> None:
        """Keep what a program wrote before it could be used."""
        self._stderr = text[-STDERR_CHARS:] or self._stderr

    # --- for people -----------------------------------------------------------------------------

    def describe_state(self) -> dict[str, Any]:
        """Return the state of the sessions."""
        entries = list(self._entries.values())
        is_ready = any(each.session is not None for each in entries)
        if is_ready:
            state = "ready"
        elif entries:
            state = "starting"
        elif self.error is not None:
            state = "down" if self.breaker.is_open else "failed"
        else:
            state = "idle"
        latency = statistics.median(self._latencies) if self._latencies else None
        error = None if self.error is None or is_ready else self.error.message
        tails = [each.session.stderr for each in entries if each.session is not None]
        stderr = next(filter(None, tails), self._stderr)
        return {
            "state": state,
            "sessions": len(entries),
            "restarts": self.restarts,
            "latency_ms": None if latency is None else round(latency * 1000, 3),
            "error": None if error is None else show_invisible(error),
            "stderr": show_invisible(stderr[-STDERR_CHARS:]),
        }


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark the exception of a task as read: the callers that wait for it get it too."""
    if not task.cancelled():
        task.exception()
