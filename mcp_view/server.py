"""What all connections of one server share: its options, its catalogue and its secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mcp_view.catalogue import (
    SPELLINGS,
    Catalogue,
    Entries,
    Names,
    cursor_key,
    output_schema,
    page_of,
)
from mcp_view.reducer import Reducer
from mcp_view.revisions import REVISIONS, Revision
from plexus.errors import NotFound
from plexus.events import Result, Terminal
from plexus.registry.activation_tree import NAME_LENGTH
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.runtime.changes import Change
from plexus.runtime.hub import Plexus
from plexus.runtime.shares import FairPool

__all__ = ("McpOptions", "McpServer")

#: How long a client may keep a list. Those that listen for changes are notified earlier.
LIST_TTL_MS = 60_000
#: How many spellings of tools are kept, unknown ones too, and how long one may be: a client
#: chooses them, and its messages may have a mebibyte.
MAX_CACHED_NAMES = 10_000
MAX_CACHED_NAME_CHARS = 2 * NAME_LENGTH


class McpOptions(NamedTuple):
    """What can be chosen about this view."""

    names: Names = SPELLINGS["dot"]
    #: How many progress notifications a second one call may cause; 0 for one an event.
    progress_rate: float = 20.0
    #: Whether progress is sent also to clients that gave no token.
    progress_always: bool = False
    #: How long a run may be silent before its client gets a sign of life.
    heartbeat_s: float = 15.0
    #: Maximum characters of text in a result; longer text keeps its head and tail. Claude Code
    #: moves results above 50,000 characters to a file and shows the model 2 KB of it.
    result_chars: int = 48_000
    #: How many entries a page of a list holds. Some hosts read only the first.
    page_size: int = 1000
    #: After how long a response stream is ended so that the client comes back for the rest, in
    #: the revisions that know this; None for never.
    stream_s: float | None = None
    #: What the server tells models about itself.
    instructions: str | None = None


class McpServer:
    """The view's side of one hub."""

    def __init__(
        self,
        hub: Plexus,
        options: McpOptions | None = None,
        *,
        secret: bytes,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.hub = hub
        self.options = options or McpOptions()
        self.catalogue = Catalogue(hub, self.options.names, self.result_chars)
        #: What request states are signed with.
        self.secret = secret
        self.monotonic = monotonic
        self.wall = wall
        #: What every result of a revision ends with, before its closing brace.
        self._suffixes = {name: self._suffix(row) for name, row in REVISIONS.items()}
        #: Who subscribes to how many resources, all sessions together.
        self.subscriptions = FairPool(
            "all_subscriptions",
            hub.limits.all_subscriptions,
            "resource subscriptions",
            "Unsubscribe from a resource first.",
        )
        self._tools: dict[str, MethodSpec | None] = {}
        self._has_output_schema: dict[str, bool] = {}

    def on_change(self, change: Change) -> None:
        """Drop what was kept of a hub that has changed. The program subscribes this to the hub."""
        self.catalogue.on_change(change)
        if change.kind == "methods":
            self._tools.clear()
            self._has_output_schema.clear()

    def find_tool(self, name: str) -> MethodSpec | None:
        """The method behind a tool, in whatever spelling; None if there is no such tool."""
        try:
            return self._tools[name]
        except KeyError:
            spec = self.find_method(name, "method")
            if len(self._tools) < MAX_CACHED_NAMES and len(name) <= MAX_CACHED_NAME_CHARS:
                self._tools[name] = spec
            return spec

    def result_chars(self, spec: MethodSpec) -> int:
        """Return how many characters of text a result of this method may have."""
        return spec.max_result_chars or self.options.result_chars

    def new_reducer(self, revision: Revision, spec: MethodSpec) -> Reducer:
        """Return a new reducer for a call of this method."""
        return Reducer(revision, self.result_chars(spec), self.hub.limits.answer_bytes)

    def has_output_schema(self, spec: MethodSpec) -> bool:
        """Whether a method returns an object whose properties are known."""
        known = self._has_output_schema.get(spec.name)
        if known is None:
            known = output_schema(spec) is not None
            self._has_output_schema[spec.name] = known
        return known

    def structured_content(self, revision: Revision, spec: MethodSpec, terminal: Terminal) -> bytes:
        """Return the part of a result that holds the value as data, for methods that return an
        object whose properties are known."""
        if spec.kind != "plain" or not revision.structured or not isinstance(terminal, Result):
            return b""
        if not self.has_output_schema(spec):
            return b""
        return b',"structuredContent":' + wire.encode(terminal.result)

    def find_method(self, name: str, role: str) -> MethodSpec | None:
        """The method of this role that is called so outside."""
        spec = self.hub.find_method(self.options.names.method_of(name))
        return spec if spec is not None and spec.role == role and spec.listed else None

    def find_prompt(self, name: str) -> tuple[MethodSpec, dict[str, Any]] | None:
        """The method that makes a prompt, and what the name says of its arguments; None if there
        is no such prompt."""
        try:
            return self.hub.find_prompt(name)
        except NotFound:
            spec = self.find_method(name, "prompt")
            return None if spec is None else (spec, {})

    def info(self, revision: Revision) -> dict[str, Any]:
        """Return the name, version and description of the server."""
        info = {"name": self.hub.name, "version": self.hub.version}
        if revision.titles:
            info["title"] = self.hub.name.capitalize()
        if revision.server_description:
            info["description"] = "Tools that stream."
        return info

    def _suffix(self, revision: Revision) -> bytes:
        if revision.handshake:
            return b""
        info = wire.encode(self.info(revision))
        return b',"_meta":{"io.modelcontextprotocol/serverInfo":%b}' % info

    def result(self, revision: Revision, body: bytes, kind: bytes = b"complete") -> bytes:
        """A result around the inside of an object; `kind` says whether more is to come."""
        if revision.handshake:
            return b"{%b}" % body
        comma = b"," if body else b""
        return b'{%b%b"resultType":"%b"%b}' % (body, comma, kind, self._suffixes[revision.name])

    def cacheable(self, revision: Revision, body: bytes, ttl_ms: int = LIST_TTL_MS) -> bytes:
        """A result that a client may keep for a while, where the revision says for how long."""
        if revision.caching:
            body += b',"ttlMs":%d,"cacheScope":"private"' % ttl_ms
        return self.result(revision, body)

    def page(
        self, revision: Revision, params: dict[str, Any], name: bytes, entries: Entries
    ) -> bytes:
        """Return the page of a list that a request asks for; raises ProtocolError."""
        page, cursor = page_of(entries.keys, cursor_key(params), self.options.page_size)
        body = b"%b:[%b]" % (name, b",".join(entries.encoded[page]))
        if cursor is not None:
            body += b',"nextCursor":' + wire.encode(cursor)
        return self.cacheable(revision, body)

    def capabilities(self, revision: Revision) -> dict[str, Any]:
        """What a client of this revision may ask for."""
        capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "logging": {},
        }
        if revision.completions:
            capabilities["completions"] = {}
        if revision.tasks == "core":
            capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        if revision.tasks == "extension":
            capabilities["extensions"] = {"io.modelcontextprotocol/tasks": {}}
        return capabilities
