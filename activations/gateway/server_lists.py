"""The lists of a server: read after a change, after a start, and when a person asks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.catalogue import Catalogue, read_entries, read_tools
from activations.gateway.session_pool import Entry, SessionPool
from activations.gateway.transports.session import UpstreamSession
from mcp_view.client.errors import Refused
from plexus.context import Context
from plexus.errors import Failed, PlexusError

if TYPE_CHECKING:  # it creates this
    from activations.gateway.mount import Mount

__all__ = ("ServerLists",)

#: Seconds for all lists of a server.
LIST_S: Final = 30.0
#: Seconds after which a list that was not asked for is read again.
FRESH_S: Final = 300.0


class ServerLists:
    """Reads what the server of one mount offers."""

    def __init__(self, mount: Mount, pool: SessionPool) -> None:
        self._mount = mount
        self._config = mount.config
        self._pool = pool
        self._listed_at = -FRESH_S
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a new session should list the server."""
        return time.monotonic() - self._listed_at > FRESH_S

    async def refresh(self, ctx: Context | None = None) -> None:
        """List the server now, for this caller if there is one. Raises PlexusError."""
        async with self._pool.any_session(ctx) as session:
            await self.read(session)

    async def refresh_soon(self, entry: Entry) -> None:
        """List the server after a change of its lists, once for several changes.

        In the session that has reported it: another process of the server may have other lists.
        """
        if self._refreshing is not None and not self._refreshing.done():
            return
        self._refreshing = asyncio.current_task()
        await asyncio.sleep(self._mount.gateway.settle_s)
        session = entry.session
        try:
            if session is None or not session.is_open:
                await self.refresh()
            else:
                with self._pool.listing(entry):
                    await self.read(session)
        except PlexusError as error:
            self._pool.error = error

    async def read(self, session: UpstreamSession) -> None:
        """Read all lists of a server, and offer what they have."""
        self._listed_at = time.monotonic()
        try:
            async with asyncio.timeout(LIST_S):
                listed = await self._read_lists(session)
        except TimeoutError:
            text = f"{self._config.name} did not list its tools within {LIST_S:g} s."
            raise Failed(text, code="mount_lists") from None
        await self._mount.gateway.offer(self._mount, listed)

    async def _read_lists(self, session: UpstreamSession) -> Catalogue:
        server = session.server
        tools: list[Any] = []
        found: dict[str, list[Any]] = {"resources": [], "resourceTemplates": [], "prompts": []}
        if server.has("tools"):
            tools = await session.list_all("tools")
        names = [("resources", "resources"), ("resourceTemplates", "resources")]
        for name, capability in [*names, ("prompts", "prompts")]:
            if not server.has(capability):
                continue
            try:
                found[name] = await session.list_all(name)
            except Refused as error:  # many servers declare more than they have
                if error.code != "upstream_error":
                    raise
        usable, problems = read_tools(tools)
        return Catalogue(
            server={
                "name": server.name[:200],
                "version": server.version[:100],
                "title": str(server.info.get("title") or "")[:200],
                "instructions": (server.instructions or "")[:16_000],
                "revision": server.revision.name,
            },
            tools=usable,
            held={},
            removed={},
            resources=read_entries(found["resources"], "uri"),
            templates=read_entries(found["resourceTemplates"], "uriTemplate"),
            prompts=read_entries(found["prompts"], "name"),
            problems=tuple(problems),
            listed_at=time.time(),
        )
