"""State shared by all connections of one server: options, catalogue and secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

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
from mcp_view.tool_sets import STANDARD_TOOLS, ToolSet
from plexus.errors import NotFound
from plexus.events import ContentResult, Result, Terminal
from plexus.registry.activation_tree import NAME_LENGTH
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.runtime.changes import Change
from plexus.runtime.hub import Plexus
from plexus.runtime.shares import FairPool

__all__ = ("McpOptions", "McpServer")

#: How long a client may cache a list. Subscribers are notified earlier.
LIST_TTL_MS = 60_000
#: The key of the server's name and version in the `_meta` of results.
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
#: Maximum number and length of cached tool names. Unknown names are cached too, and a client may
#: send any name up to the size of a message.
MAX_CACHED_NAMES = 10_000
MAX_CACHED_NAME_CHARS = 2 * NAME_LENGTH


class McpOptions(NamedTuple):
    """Options of the MCP view."""

    names: Names = SPELLINGS["dot"]
    #: Maximum progress notifications per second and call; 0 for one per event.
    progress_rate: float = 20.0
    #: Whether to send progress to clients that sent no token.
    progress_always: bool = False
    #: Seconds of silence after which the client of a run gets a heartbeat.
    heartbeat_s: float = 15.0
    #: Maximum characters of text in a result; longer text keeps its head and tail. Claude Code
    #: moves results above 50,000 characters to a file and shows the model 2 KB of it.
    result_chars: int = 48_000
    #: Entries per page of a list. Some hosts read only the first page.
    page_size: int = 1000
    #: Seconds after which a response stream is closed so that the client reconnects for the rest,
    #: in revisions that support it; None to keep it open.
    stream_s: float | None = None
    #: Instructions for models, sent by `initialize` and `server/discover`.
    instructions: str | None = None
    #: The tools that are listed for a client that chooses none.
    tools: ToolSet = STANDARD_TOOLS
    #: Whether `plexus.call` also calls methods that delete, overwrite or run commands.
    call_all: bool = False


class McpServer:
    """The MCP server for one hub."""

    def __init__(
        self,
        hub: Plexus,
        options: McpOptions | None = None,
        *,
        secret: bytes | Callable[[], bytes],
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.hub = hub
        self.options = options or McpOptions()
        self.catalogue = Catalogue(hub, self.options.names, self.result_chars)
        self._secret = secret
        self.monotonic = monotonic
        self.wall = wall
        #: The end of every result of a revision, before the closing brace.
        self._suffixes = {name: self._suffix(row) for name, row in REVISIONS.items()}
        #: Resource subscriptions of all sessions, shared fairly between principals.
        self.subscriptions = FairPool(
            "all_subscriptions",
            hub.limits.all_subscriptions,
            "resource subscriptions",
            "Unsubscribe from a resource first.",
        )
        self._tools: dict[str, MethodSpec | None] = {}
        self._has_output_schema: dict[str, bool] = {}

    @property
    def secret(self) -> bytes:
        """Signs request states. A function that provides it is called at the first use."""
        if not isinstance(self._secret, bytes):
            self._secret = self._secret()
        return self._secret

    def on_change(self, change: Change) -> None:
        """Invalidate the caches after a change of the hub. The program subscribes this method."""
        self.catalogue.on_change(change)
        if change.kind == "methods":
            self._tools.clear()
            self._has_output_schema.clear()

    def find_tool(self, name: str) -> MethodSpec | None:
        """Return the method of a tool, in any spelling; None if the tool does not exist."""
        try:
            return self._tools[name]
        except KeyError:
            spec = self.find_method(name, "method")
            if len(self._tools) < MAX_CACHED_NAMES and len(name) <= MAX_CACHED_NAME_CHARS:
                self._tools[name] = spec
            return spec

    def result_chars(self, spec: MethodSpec) -> int:
        """Return the maximum characters of text in a result of this method."""
        return spec.max_result_chars or self.options.result_chars

    def new_reducer(self, revision: Revision, spec: MethodSpec) -> Reducer:
        """Return a new reducer for a call of this method."""
        return Reducer(revision, self.result_chars(spec), self.hub.limits.answer_bytes)

    def has_output_schema(self, spec: MethodSpec) -> bool:
        """Whether a method returns an object with named properties."""
        known = self._has_output_schema.get(spec.name)
        if known is None:
            known = output_schema(spec) is not None
            self._has_output_schema[spec.name] = known
        return known

    def structured_content(self, revision: Revision, spec: MethodSpec, terminal: Terminal) -> bytes:
        """Return the `structuredContent` field of a result; empty without an output schema.

        The value of another server's result is part of it with and without a schema.
        """
        if isinstance(terminal, ContentResult):
            if terminal.value is None or not revision.structured:
                return b""
            return b',"structuredContent":' + wire.encode(terminal.value)
        if spec.kind != "plain" or not revision.structured or not isinstance(terminal, Result):
            return b""
        if not self.has_output_schema(spec):
            return b""
        return b',"structuredContent":' + wire.encode(terminal.result)

    def find_method(self, name: str, role: str) -> MethodSpec | None:
        """Return the listed method of this role with this external name; None if there is none."""
        hub = self.hub
        # The name as it is comes second: an alias of a tool may have dashes.
        spec = hub.find_method(self.options.names.method_of(name)) or hub.find_method(name)
        return spec if spec is not None and spec.role == role and spec.listed else None

    def find_prompt(self, name: str) -> tuple[MethodSpec, dict[str, Any]] | None:
        """Return the method of a prompt and the arguments fixed by its name, or None."""
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
        return b',"_meta":{"%b":%b}' % (SERVER_INFO.encode(), info)

    def result(
        self,
        revision: Revision,
        body: bytes,
        kind: bytes = b"complete",
        meta: dict[str, Any] | None = None,
    ) -> bytes:
        """Encode a result with these fields. `kind` is its `resultType`, `meta` its `_meta`."""
        if revision.handshake:
            if meta:
                body += b'%b"_meta":%b' % (b"," if body else b"", wire.encode(meta))
            return b"{%b}" % body
        comma = b"," if body else b""
        if meta:
            whole = wire.encode(meta | {SERVER_INFO: self.info(revision)})
            return b'{%b%b"resultType":"%b","_meta":%b}' % (body, comma, kind, whole)
        return b'{%b%b"resultType":"%b"%b}' % (body, comma, kind, self._suffixes[revision.name])

    def cacheable(self, revision: Revision, body: bytes, ttl_ms: int = LIST_TTL_MS) -> bytes:
        """Encode a result with its time to live, in revisions that support caching."""
        if revision.caching:
            body += b',"ttlMs":%d,"cacheScope":"private"' % ttl_ms
        return self.result(revision, body)

    def page(
        self, revision: Revision, params: dict[str, Any], name: bytes, entries: Entries
    ) -> bytes:
        """Return the page of a list after the request's cursor. Raises ProtocolError."""
        size = self.options.page_size
        page, cursor = page_of(entries.keys, cursor_key(params), size)
        # A client must not keep a list that lacks the methods of a server that is being listed.
        ttl_ms = 0 if self.hub.pending else LIST_TTL_MS
        # A list of a thousand tools that is ready takes 0.6 of the time of one that is joined.
        result = entries.pages.get((page.start, ttl_ms))
        if result is None:
            body = b"%b:[%b]" % (name, b",".join(entries.encoded[page]))
            if cursor is not None:
                body += b',"nextCursor":' + wire.encode(cursor)
            result = self.cacheable(revision, body, ttl_ms)
            if page.start % size == 0:
                entries.pages[page.start, ttl_ms] = result
        return result

    def capabilities(self, revision: Revision) -> dict[str, Any]:
        """Return the server capabilities in this revision."""
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
