"""What a client declares about itself, and what it has learned about a server."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from mcp_view.meta_keys import TASKS_EXTENSION
from mcp_view.revisions import LATEST_HANDSHAKE, Revision
from plexus.limits import MIB, Limits
from plexus.version import __version__

__all__ = ("READING", "ClientOptions", "Era", "Server", "client_capabilities")

#: How a connection begins: by a probe with a fallback, only by `initialize`, or only without it.
Era: TypeAlias = Literal["auto", "legacy", "modern"]

#: Limits of messages from a server. Larger than those of a client's messages, because a result may
#: contain files; still small enough that a hostile server cannot exhaust the memory.
READING: Final = Limits(
    message_bytes=16 * MIB,
    message_containers=2_000_000,
    message_members=2_000_000,
    message_values=4_000_000,
    message_depth=200,
    batch_requests=1000,
)


class ClientOptions(NamedTuple):
    """The declarations of a client."""

    #: What can be answered: "form" and "url" (elicitation), "sampling", "sampling.tools", "roots",
    #: and "tasks": calls whose result the server may deliver later.
    capabilities: frozenset[str] = frozenset()
    era: Era = "auto"
    #: The revision that `initialize` requests.
    revision: str = LATEST_HANDSHAKE.name
    #: The minimum severity of log messages; None for none, or for the server's choice in a revision
    #: with a handshake.
    log_level: str | None = None
    name: str = "substrate"
    version: str = __version__
    limits: Limits = READING

    @property
    def info(self) -> dict[str, str]:
        """The `clientInfo`."""
        return {"name": self.name, "version": self.version}


class Server(NamedTuple):
    """What a server declared when the connection was opened."""

    revision: Revision
    capabilities: dict[str, Any]
    #: The `serverInfo` as sent; empty if there is none.
    info: dict[str, Any]
    instructions: str | None

    @property
    def name(self) -> str:
        """The name of the server; empty if it has sent none."""
        name = self.info.get("name")
        return name if isinstance(name, str) else ""

    @property
    def version(self) -> str:
        """The version of the server; empty if it has sent none."""
        version = self.info.get("version")
        return version if isinstance(version, str) else ""

    def has(self, capability: str, part: str | None = None) -> bool:
        """Whether the server declared a capability, or a true part of it."""
        declared = self.capabilities.get(capability)
        if not isinstance(declared, dict):
            return False
        return part is None or declared.get(part) not in (None, False)


def client_capabilities(options: ClientOptions, revision: Revision) -> dict[str, Any]:
    """Return the capabilities that a client declares in a revision."""
    given, found = options.capabilities, dict[str, Any]()
    modes = revision.elicitation & given
    if modes:
        found["elicitation"] = {mode: {} for mode in sorted(modes)}
        if not revision.elicitation_mode:
            found["elicitation"] = {}
    if "sampling" in given:
        tools = "sampling.tools" in given and revision.rich_forms
        found["sampling"] = {"tools": {}} if tools else {}
    if "roots" in given:
        found["roots"] = {"listChanged": True} if revision.handshake else {}
    if "tasks" in given and revision.tasks == "extension":
        found["extensions"] = {TASKS_EXTENSION: {}}
    return found
