"""Changes of the hub as notifications: to a whole session, or to a stream that listens.

With a handshake a session is told of every change, and of those resources it subscribed to.
Without one a client opens a stream for what it names, and every message there bears its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcp_view.session import Caller, Session
from mcp_view.tables.errors import ProtocolError
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import Effect, WatchChanges
from plexus.runtime.hub import Change

if TYPE_CHECKING:
    from mcp_view.protocol import McpConnection

__all__ = ("Listening", "check_uri", "listen", "session_notice")

LIST_CHANGED: Final = {
    "methods": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
RESOURCE_UPDATED: Final = "notifications/resources/updated"
#: What a client listens for, in the words of the hub.
FILTERS: Final = {
    "toolsListChanged": "methods",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"


def session_notice(session: Session, change: Change) -> bytes | None:
    """What a session is told of this change; None for nothing."""
    if change.uri is None:
        return wire.encode_notification(LIST_CHANGED[change.kind], None)
    if session.subscribed is None or change.uri not in session.subscribed:
        return None
    return wire.encode_notification(RESOURCE_UPDATED, {"uri": change.uri})


class Listening:
    """One stream that listens."""

    __slots__ = ("_kinds", "_meta", "_uris", "caller", "id")

    def __init__(
        self, request_id: wire.Id, caller: Caller, kinds: frozenset[str], uris: frozenset[str]
    ) -> None:
        self.id = request_id
        self.caller = caller
        self._kinds = kinds
        self._uris = uris
        self._meta = {SUBSCRIPTION_ID: request_id}

    def notice(self, change: Change) -> bytes | None:
        """What the stream says of this change; None for nothing."""
        if change.uri is None:
            if change.kind not in self._kinds:
                return None
            return wire.encode_notification(LIST_CHANGED[change.kind], {"_meta": self._meta})
        if change.uri not in self._uris:
            return None
        params = {"uri": change.uri, "_meta": self._meta}
        return wire.encode_notification(RESOURCE_UPDATED, params)

    def acknowledgement(self) -> bytes:
        """The first message of the stream: what will be told."""
        honoured: dict[str, Any] = {
            name: True for name, kind in FILTERS.items() if kind in self._kinds
        }
        if self._uris:
            honoured["resourceSubscriptions"] = sorted(self._uris)
        return wire.encode_notification(
            "notifications/subscriptions/acknowledged",
            {"notifications": honoured, "_meta": self._meta},
        )

    def farewell(self, server_info: dict[str, Any]) -> bytes:
        """The result that ends the stream."""
        meta = self._meta | {"io.modelcontextprotocol/serverInfo": server_info}
        return wire.encode({"resultType": "complete", "_meta": meta})


def listen(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`subscriptions/listen`."""
    assert batched is None, "revisions that listen have no batches"
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    wanted = params.get("notifications")
    if not isinstance(wanted, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "subscriptions/listen needs notifications")
    uris = wanted.get("resourceSubscriptions", [])
    limit = view.server.hub.limits.subscriptions
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        raise ProtocolError(wire.INVALID_PARAMS, "resourceSubscriptions must be a list of uris")
    if len(uris) > limit:
        raise ProtocolError(
            wire.INVALID_PARAMS, f"at most {limit} resources may be named", {"limit": limit}
        )
    for uri in uris:
        check_uri(uri, view.server.hub.limits.uri_chars)
    kinds = frozenset(kind for name, kind in FILTERS.items() if wanted.get(name) is True)
    listening = Listening(request.id, caller, kinds, frozenset(uris))
    view.hold(listening)
    return [WatchChanges(), *view.sending([listening.acknowledgement()])]


def check_uri(uri: str, limit: int) -> None:
    """Raise ProtocolError for an address that is too long to match, keep or repeat."""
    if len(uri) > limit:
        reason = f"a uri may have at most {limit} characters"
        raise ProtocolError(wire.INVALID_PARAMS, reason, {"limit": limit})
