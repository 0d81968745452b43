"""Clients: their sessions, and the requests that establish them.

A client identifies itself once in a handshake, or with every request. A `Session` is the state
that a handshake negotiates and that outlives a request. A `Caller` is the revision and capabilities
of the client that sent a request: with a handshake those of the session, without a handshake those
in the request itself. A `Peer` is the client of one connection, as handlers see it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from mcp_view.errors import UNSUPPORTED_REVISION, ProtocolError
from mcp_view.meta_keys import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    TASKS_EXTENSION,
)
from mcp_view.replies import Answer, Reply
from mcp_view.revisions import LATEST_HANDSHAKE, REVISIONS, STATELESS, SUPPORTED, Revision
from mcp_view.server import McpServer
from mcp_view.tool_sets import ToolSet
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.rpc.effects import WatchChanges

__all__ = (
    "LEVELS",
    "Caller",
    "Peer",
    "ResourceSubscriptions",
    "Session",
    "describe_server",
    "discover",
    "initialize",
    "is_stateless",
    "ping",
    "set_level",
    "stateless_caller",
    "trace_context",
)

#: The keys of `_meta` for W3C trace context, named like its HTTP headers.
TRACE_KEYS: Final = ("traceparent", "tracestate")
#: Longer values are ignored. W3C requires 512 characters to be propagated.
TRACE_CHARS: Final = 1024

#: Maximum characters of the name and version of a client.
CLIENT_CHARS: Final = 100

#: Log levels in order of severity.
LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
#: A level above all others: no log message is sent.
SILENT: Final = len(LEVELS)
#: The level of a client that has set none.
DEFAULT_LEVEL: Final = LEVELS.index("info")

#: The kinds of questions that are a form for the client.
_FORMS: Final = frozenset({"confirm", "prompt", "select", "select_many", "form"})


class Caller:
    """The client that sent a request: its revision, capabilities, log level and name."""

    __slots__ = ("capabilities", "client", "level", "question_kinds", "revision")

    def __init__(
        self,
        revision: Revision,
        capabilities: dict[str, Any],
        level: int,
        client: str | None = None,
    ) -> None:
        self.revision = revision
        #: Its name and version, as in "claude-code/2.1"; None if it has not sent a name.
        self.client = client
        self.capabilities = capabilities
        #: The minimum severity of log messages sent to the client.
        self.level = level
        #: The kinds of questions that the client supports.
        self.question_kinds = _supported_questions(revision, capabilities)

    @property
    def supports_tasks(self) -> bool:
        """Whether the client has declared the tasks extension."""
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def _client_name(info: Any) -> str | None:
    """Return the name and version in a `clientInfo`; None if it has no name."""
    if info.__class__ is not dict:
        return None
    name, version = info.get("name"), info.get("version")
    if name.__class__ is not str:
        return None
    version = version[:CLIENT_CHARS] if version.__class__ is str else ""
    return _printable_client(name[:CLIENT_CHARS], version)


@lru_cache(maxsize=64)  # a client without a handshake sends them with every request
def _printable_client(name: str, version: str) -> str | None:
    parts = ("".join(filter(str.isprintable, part)).strip() for part in (name, version))
    return "/".join(filter(None, parts))[:CLIENT_CHARS] or None


def _supported_questions(revision: Revision, capabilities: dict[str, Any]) -> frozenset[str]:
    kinds: frozenset[str] = frozenset()
    elicitation = capabilities.get("elicitation")
    if isinstance(elicitation, dict) and revision.elicitation:
        # A client that names no mode supports forms, the older mode.
        if "form" in elicitation or "url" not in elicitation:
            kinds |= _FORMS
        if "url" in elicitation and "url" in revision.elicitation:
            kinds |= {"visit"}
    if isinstance(capabilities.get("sampling"), dict):
        kinds |= {"sample"}
    if isinstance(capabilities.get("roots"), dict):
        kinds |= {"roots"}
    return kinds


class ResourceSubscriptions:
    """The resource subscriptions of one client, counted in the share of its principal."""

    __slots__ = ("_pool", "_principal", "_uris", "_watched")

    def __init__(self, server: McpServer, principal: Principal) -> None:
        self._pool = server.subscriptions
        self._watched = server.hub.watched_resources
        self._principal = principal
        self._uris: set[str] = set()

    def __contains__(self, uri: object) -> bool:
        return uri in self._uris

    def __len__(self) -> int:
        return len(self._uris)

    @property
    def uris(self) -> frozenset[str]:
        """The subscribed URIs."""
        return frozenset(self._uris)

    def add(self, uri: str) -> None:
        """Add a subscription. Raises Busy if the share of the principal is exhausted."""
        name = self._principal.name
        if not self._pool.acquire(name):
            raise self._pool.refusal(name)
        self._uris.add(uri)
        self._watched.add(uri, self._principal)

    def discard(self, uri: str) -> None:
        """Remove a subscription, if it exists."""
        if uri in self._uris:
            self._uris.remove(uri)
            self._pool.release(self._principal.name)
            self._watched.remove(uri, self._principal)

    def clear(self) -> None:
        """Remove all subscriptions."""
        for uri in list(self._uris):
            self.discard(uri)


class Session:
    """The state that one handshake has negotiated, shared by all streams of the client."""

    __slots__ = (
        "_last_request_id",
        "caller",
        "client_info",
        "initialized",
        "names_page",
        "outlives_connection",
        "shared",
        "subscribed",
        "tools",
    )

    def __init__(self, tools: ToolSet | None = None) -> None:
        #: The tools that the client chose to see; None for the choice of the server.
        self.tools = tools
        #: Whether the client has yet to learn where runs can be watched.
        self.names_page = True
        #: None before `initialize`.
        self.caller: Caller | None = None
        #: The name and version of the client, as it sent them.
        self.client_info: Any = None
        #: Whether several servers answer the client: then requests to it are named by what they
        #: ask, so that any server can accept the response.
        self.shared = False
        #: Whether the client has confirmed the handshake.
        self.initialized = False
        #: Whether the session continues after a connection of the client is closed.
        self.outlives_connection = False
        #: The resource subscriptions of the client; None before the first.
        self.subscribed: ResourceSubscriptions | None = None
        self._last_request_id = 0

    @property
    def revision(self) -> Revision | None:
        """The negotiated revision; None before `initialize`."""
        return None if self.caller is None else self.caller.revision

    def close(self) -> None:
        """Release the subscriptions of the session."""
        if self.subscribed is not None:
            self.subscribed.clear()

    def request_id(self, run: int, question: str) -> int | str:
        """Return an id for the request that asks a question of a run, unique in this session."""
        if self.shared:
            return f"{run}.{question}"
        self._last_request_id += 1
        return self._last_request_id


class Peer(NamedTuple):
    """The client of one connection."""

    server: McpServer
    session: Session
    principal: Principal
    #: Whether notifications and requests can be sent, not only answers.
    streaming: bool
    #: Whether the session's change notifications are sent on this connection.
    change_notifications: bool

    def question_kinds(self, caller: Caller) -> frozenset[str]:
        """Return the kinds of questions that this connection can send to the client."""
        if self.streaming or not caller.revision.handshake:
            return caller.question_kinds
        return frozenset()


def is_stateless(message: wire.Message) -> bool:
    """Whether a message names its own revision."""
    if message.__class__ is not wire.Request and message.__class__ is not wire.Notification:
        return False
    params = message.params
    if params.__class__ is not dict:
        return False
    meta = params.get("_meta")
    return meta.__class__ is dict and PROTOCOL_VERSION in meta and message.method != "initialize"


def stateless_caller(params: dict[str, Any]) -> Caller:
    """Return the caller that a request names. Raises ProtocolError if it is incomplete."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or not isinstance(meta.get(PROTOCOL_VERSION), str):
        raise ProtocolError(wire.INVALID_PARAMS, f"_meta must contain {PROTOCOL_VERSION}.")
    named = meta[PROTOCOL_VERSION]
    revision = REVISIONS.get(named)
    if revision is None or revision.handshake:
        raise ProtocolError(
            UNSUPPORTED_REVISION,
            f"Unsupported protocol version: {named}",
            {"supported": list(SUPPORTED), "requested": named},
        )
    capabilities = meta.get(CLIENT_CAPABILITIES)
    if not isinstance(capabilities, dict):
        raise ProtocolError(wire.INVALID_PARAMS, f"_meta must contain {CLIENT_CAPABILITIES}.")
    level = SILENT if LOG_LEVEL not in meta else _level_of(meta[LOG_LEVEL])
    return Caller(STATELESS, capabilities, level, _client_name(meta.get(CLIENT_INFO)))


def _level_of(name: Any) -> int:
    """Return the index of a log level. Raises ProtocolError if it is unknown."""
    if name not in LEVELS:
        raise ProtocolError(
            wire.INVALID_PARAMS, f"level must be one of {', '.join(LEVELS)}.", {"level": name}
        )
    return LEVELS.index(name)


def trace_context(params: dict[str, Any]) -> dict[str, str] | None:
    """Return the W3C trace context in a request's `_meta`; None if there is none."""
    meta = params.get("_meta")
    if meta.__class__ is not dict or "traceparent" not in meta:
        return None
    found = {key: meta.get(key) for key in TRACE_KEYS}
    return {
        key: value
        for key, value in found.items()
        if value.__class__ is str and len(value) <= TRACE_CHARS
    }


# --- requests ---------------------------------------------------------------------------------


def initialize(peer: Peer, _: wire.Id, params: dict[str, Any], __: None) -> list[Reply]:
    """Handle `initialize`: negotiate a revision. For an unknown one, offer the newest."""
    session = peer.session
    if session.caller is not None:
        raise ProtocolError(wire.INVALID_REQUEST, "Server is already initialized")
    requested = params.get("protocolVersion")
    if not isinstance(requested, str):
        raise ProtocolError(wire.INVALID_PARAMS, "initialize requires a protocolVersion.")
    capabilities = params.get("capabilities")
    if capabilities is None:
        capabilities = {}
    if not isinstance(capabilities, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "capabilities must be an object.")
    revision = REVISIONS.get(requested, LATEST_HANDSHAKE)
    if not revision.handshake:
        revision = LATEST_HANDSHAKE
    client = _client_name(params.get("clientInfo"))
    session.caller = Caller(revision, capabilities, DEFAULT_LEVEL, client)
    session.client_info = params.get("clientInfo")
    server = peer.server
    result: dict[str, Any] = {
        "protocolVersion": revision.name,
        "capabilities": server.capabilities(revision),
        "serverInfo": server.info(revision),
    }
    if server.options.instructions:
        result["instructions"] = server.options.instructions
    answer = Answer(wire.encode(result))
    return [WatchChanges(), answer] if peer.change_notifications else [answer]


def discover(peer: Peer, _: wire.Id, __: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `server/discover`: revisions and capabilities, without a handshake."""
    server = peer.server
    body = b'"supportedVersions":%b,"capabilities":%b' % (
        wire.encode(list(SUPPORTED)),
        wire.encode(server.capabilities(STATELESS)),
    )
    if server.options.instructions:
        body += b',"instructions":' + wire.encode(server.options.instructions)
    return [Answer(server.cacheable(caller.revision, body))]


def describe_server(peer: Peer, _: wire.Id, __: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `server/info`: name, version, revision and capabilities."""
    server, revision = peer.server, caller.revision
    about = server.info(revision) | {
        "protocolVersion": revision.name,
        "capabilities": server.capabilities(revision),
    }
    return [Answer(wire.encode(about))]


def ping(*_: object) -> list[Reply]:
    """Handle `ping`, which is allowed in every state."""
    return [Answer(b"{}")]


def set_level(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `logging/setLevel`: set the minimum severity of log messages."""
    caller.level = _level_of(params.get("level"))
    return [Answer(peer.server.result(caller.revision, b""))]
