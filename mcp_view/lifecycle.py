"""The beginning of a connection, and what is asked of the server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_view.session import DEFAULT_LEVEL, Caller, level_of
from mcp_view.tables.errors import ProtocolError
from mcp_view.tables.revisions import LATEST_HANDSHAKE, REVISIONS, STATELESS, SUPPORTED
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import Effect, WatchChanges

if TYPE_CHECKING:
    from mcp_view.protocol import McpConnection

__all__ = ("describe_server", "discover", "initialize", "ping", "set_level")


def initialize(view: McpConnection, request: wire.Request) -> list[Effect]:
    """`initialize`: agree on a revision. An unknown one is answered with our newest."""
    session = view.session
    if session.caller is not None:
        raise ProtocolError(wire.INVALID_REQUEST, "Server is already initialized")
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    wanted = params.get("protocolVersion")
    if not isinstance(wanted, str):
        raise ProtocolError(wire.INVALID_PARAMS, "initialize needs a protocolVersion")
    capabilities = params.get("capabilities")
    if capabilities is None:
        capabilities = {}
    if not isinstance(capabilities, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "capabilities must be an object")
    revision = REVISIONS.get(wanted, LATEST_HANDSHAKE)
    if not revision.handshake:
        revision = LATEST_HANDSHAKE
    session.caller = Caller(revision, capabilities, DEFAULT_LEVEL)
    server = view.server
    result: dict[str, Any] = {
        "protocolVersion": revision.name,
        "capabilities": server.capabilities(revision),
        "serverInfo": server.info(revision),
    }
    if server.options.instructions:
        result["instructions"] = server.options.instructions
    watching: list[Effect] = [WatchChanges()] if view.announces else []
    return watching + view.answer(request.id, wire.encode(result), None)


def discover(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`server/discover`: what there is, for clients that shake no hands."""
    server = view.server
    body = b'"supportedVersions":%b,"capabilities":%b' % (
        wire.encode(list(SUPPORTED)),
        wire.encode(server.capabilities(STATELESS)),
    )
    if server.options.instructions:
        body += b',"instructions":' + wire.encode(server.options.instructions)
    return view.answer(request.id, server.cacheable(caller.revision, body), batched)


def describe_server(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`server/info`: name, version, revision and capabilities."""
    server, revision = view.server, caller.revision
    about = server.info(revision) | {
        "protocolVersion": revision.name,
        "capabilities": server.capabilities(revision),
    }
    return view.answer(request.id, wire.encode(about), batched)


def ping(
    view: McpConnection, request: wire.Request, _: Caller | None, batched: BatchReply | None
) -> list[Effect]:
    """`ping`, which is answered in every state."""
    return view.answer(request.id, b"{}", batched)


def set_level(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`logging/setLevel`: which log messages the client wants."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    caller.level = level_of(params.get("level"))
    return view.answer(request.id, view.server.result(caller.revision, b""), batched)
