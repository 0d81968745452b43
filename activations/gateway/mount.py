"""A mount: another MCP server as an activation.

Its methods are known from the catalogue on disk, so that lists are answered immediately, whether
the server runs or not. The server is started by the first call. Everything that talks to it is
imported then: a mount costs a start of the program little more than reading its catalogue.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.catalogue import Catalogue
from activations.gateway.methods import mount_methods
from activations.gateway.mount_config import MountConfig
from activations.gateway.names import outer_uri
from activations.gateway.visible_text import show_invisible
from plexus.activation import Activation, ResourceInfo
from plexus.errors import Failed
from plexus.principal import Principal
from plexus.registry.activation_tree import Node
from plexus.registry.lazy import resolve

if TYPE_CHECKING:  # imported at the first call
    from activations.gateway.calls import MountCalls
    from activations.gateway.gateway import Gateway

__all__ = ("EMPTY", "Mount")

CALLS: Final = "activations.gateway.calls:MountCalls"
#: Characters of the instructions of a server that are its description.
MAX_DESCRIPTION: Final = 2000
#: Delays before a server that could not be listed is tried again. The first is longer than a
#: handshake may take.
FIRST_LIST_S: Final = 8.0
MAX_LIST_S: Final = 600.0
#: The catalogue of a server that was never listed.
EMPTY: Final = Catalogue({}, {}, {}, {}, [], [], [])


class Mount(Activation):
    """Another MCP server."""

    def __init__(self, config: MountConfig, gateway: Gateway, catalogue: Catalogue | None) -> None:
        super().__init__()
        self.namespace = config.name
        self.config = config
        self.gateway = gateway
        #: What the server offers, as it was last listed; None if it never was.
        self.catalogue = catalogue
        #: The catalogue's file as it was last read.
        self.stamp = 0
        #: How often the server was to be listed in the background, and when again.
        self._attempts = 0
        self._list_at = 0.0

    @cached_property
    def calls(self) -> MountCalls:
        """The calls of the server, and its sessions; imported at first use."""
        calls: MountCalls = resolve(CALLS)(self)
        return calls

    @property
    def is_started(self) -> bool:
        """Whether anything was called, so that `calls` exists."""
        return "calls" in vars(self)

    def node(self) -> Node | None:
        """Return the activation as the hub registers it; None if the server offers nothing."""
        catalogue = self.catalogue or EMPTY
        methods = mount_methods(self, catalogue)
        if not methods:
            return None
        server = catalogue.server
        description = show_invisible(str(server.get("instructions") or server.get("title") or ""))
        hooks = ["check_health", "close"] + ["resources"] * bool(catalogue.resources)
        version = str(server.get("version") or "")[:100]
        return Node(
            self.namespace,
            type(self).__name__,
            show_invisible(version),
            " ".join(description[:MAX_DESCRIPTION].split()),
            hooks,
            methods,
            [],
            self,
        )

    def wants_listing(self, stale_s: float) -> bool:
        """Whether the server should be listed now, in the background.

        True once for a stale list, and after increasing delays as long as there is no list.
        """
        now, catalogue = time.monotonic(), self.catalogue
        if now < self._list_at or (catalogue is not None and (self._attempts or self.is_started)):
            return False
        self._attempts += 1
        self._list_at = now + min(FIRST_LIST_S * 2**self._attempts, MAX_LIST_S)
        return catalogue is None or time.time() - catalogue.listed_at > stale_s

    def describe_state(self) -> dict[str, Any]:
        """Return the state of the mount, for people."""
        catalogue = self.catalogue
        state: dict[str, Any] = {
            "name": self.config.name,
            "state": "not started" if catalogue is not None else "not listed",
            "where": self.config.where(),
            "origin": self.config.origin,
            "transport": self.config.transport,
            "session": self.config.session_scope,
            "scope": self.config.required_scope,
            "tools": 0 if catalogue is None else len(catalogue.tools),
            "resources": 0 if catalogue is None else len(catalogue.resources),
            "prompts": 0 if catalogue is None else len(catalogue.prompts),
            "held": [] if catalogue is None else sorted(catalogue.held),
            "removed": [] if catalogue is None else sorted(catalogue.removed),
            "problems": [] if catalogue is None else list(catalogue.problems),
            "listed_at": None if catalogue is None else catalogue.listed_at,
            "server": {} if catalogue is None else dict(catalogue.server),
            "sessions": 0,
            "restarts": 0,
            "latency_ms": None,
            "error": None,
            "stderr": "",
        }
        return state | (self.calls.pool.describe_state() if self.is_started else {})

    async def check_health(self) -> str:
        """Return the state in a few words. Raises Failed if the server cannot be reached."""
        state = self.describe_state()
        if state["error"]:
            raise Failed(f"{state['state']}: {state['error']}", code="mount_down")
        held = f", {len(state['held'])} held for approval" if state["held"] else ""
        return f"{state['state']}, {state['tools']} tools{held}"

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - the hub checks the scope
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """Return the resources of the catalogue after this URI."""
        found = []
        for each in (self.catalogue or EMPTY).resources:
            uri = outer_uri(self.namespace, each["uri"])
            if after is None or uri > after:
                found.append(_resource_info(uri, each))
        return sorted(found)[:limit]

    async def close(self) -> None:
        """End all sessions of the server."""
        if self.is_started:
            await self.calls.close()


def _resource_info(uri: str, entry: dict[str, Any]) -> ResourceInfo:
    size = entry.get("size")
    return ResourceInfo(
        uri,
        _text(entry.get("name")) or uri,
        _text(entry.get("title")),
        _text(entry.get("description")),
        _text(entry.get("mimeType")),
        size if type(size) is int else None,
    )


def _text(value: Any) -> str | None:
    return show_invisible(value) if isinstance(value, str) and value else None
