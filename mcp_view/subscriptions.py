"""Notifications of hub changes: to a session, or to a stream of `subscriptions/listen`.

With a handshake, a session gets every change of a list, and changes of the resources it has
subscribed to. Without a handshake, a client opens a stream for the lists and resources it names,
and every message of that stream contains the id of its request.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_view.errors import ProtocolError, protocol_error
from mcp_view.meta_keys import SERVER_INFO, SUBSCRIPTION_ID
from mcp_view.replies import Answer, Listen, Reply
from mcp_view.revisions import Revision
from mcp_view.session import Caller, Peer, ResourceSubscriptions, Session
from plexus.errors import Busy, NotFound
from plexus.rpc import wire
from plexus.rpc.effects import WatchChanges
from plexus.runtime.changes import Change

__all__ = (
    "Listener",
    "is_visible",
    "listen",
    "read_uri",
    "session_notification",
    "subscribe",
    "unsubscribe",
)

LIST_CHANGED: Final = {
    "methods": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
RESOURCE_UPDATED: Final = "notifications/resources/updated"
#: The kind of hub change for each filter of `subscriptions/listen`.
FILTERS: Final = {
    "toolsListChanged": "methods",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}


def session_notification(session: Session, change: Change) -> bytes | None:
    """Return the notification of a change for a session; None if it has not subscribed."""
    if change.uri is None:
        return wire.encode_notification(LIST_CHANGED[change.kind], None)
    if session.subscribed is None or change.uri not in session.subscribed:
        return None
    return wire.encode_notification(RESOURCE_UPDATED, {"uri": change.uri})


def is_visible(change: Change, peer: Peer) -> bool:
    """Whether the changed list or resource is visible to this client."""
    principal = peer.principal
    if change.principal is not None and change.principal != principal.name:
        return False
    if change.uri is None or principal.scopes is None:
        return True
    try:
        spec, _ = peer.server.hub.find_resource(change.uri)
    except NotFound:
        return False
    return principal.may(spec.scope)


class Listener:
    """One open `subscriptions/listen` request."""

    __slots__ = ("_kinds", "_meta", "_uris", "id", "revision")

    def __init__(
        self, request_id: wire.Id, revision: Revision, kinds: frozenset[str], uris: frozenset[str]
    ) -> None:
        self.id = request_id
        self.revision = revision
        self._kinds = kinds
        self._uris = uris
        self._meta = {SUBSCRIPTION_ID: request_id}

    def watch(self, peer: Peer) -> None:
        """Count its resources among those that clients wait for."""
        for uri in self._uris:
            peer.server.hub.watched_resources.add(uri, peer.principal)

    def unwatch(self, peer: Peer) -> None:
        """End what `watch` began."""
        for uri in self._uris:
            peer.server.hub.watched_resources.remove(uri, peer.principal)

    def notification(self, change: Change) -> bytes | None:
        """Return the notification of a change; None if the client has not subscribed."""
        if change.uri is None:
            if change.kind not in self._kinds:
                return None
            return wire.encode_notification(LIST_CHANGED[change.kind], {"_meta": self._meta})
        if change.uri not in self._uris:
            return None
        params = {"uri": change.uri, "_meta": self._meta}
        return wire.encode_notification(RESOURCE_UPDATED, params)

    def acknowledgement(self) -> bytes:
        """Return the first message of the stream: the accepted subscriptions."""
        honoured: dict[str, Any] = {
            name: True for name, kind in FILTERS.items() if kind in self._kinds
        }
        if self._uris:
            honoured["resourceSubscriptions"] = sorted(self._uris)
        return wire.encode_notification(
            "notifications/subscriptions/acknowledged",
            {"notifications": honoured, "_meta": self._meta},
        )

    def closing_result(self, server_info: dict[str, Any]) -> bytes:
        """Return the result that closes the stream."""
        meta = self._meta | {SERVER_INFO: server_info}
        return wire.encode({"resultType": "complete", "_meta": meta})


# --- requests ---------------------------------------------------------------------------------


def listen(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `subscriptions/listen`."""
    requested = params.get("notifications")
    if not isinstance(requested, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "subscriptions/listen requires notifications.")
    uris = requested.get("resourceSubscriptions", [])
    limit = peer.server.hub.limits.subscriptions
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        raise ProtocolError(wire.INVALID_PARAMS, "resourceSubscriptions must be a list of URIs.")
    if len(uris) > limit:
        reason = f"resourceSubscriptions has {len(uris)} entries. The maximum is {limit}."
        raise ProtocolError(wire.INVALID_PARAMS, reason, {"limit": limit})
    for uri in uris:
        _check_uri(uri, peer)
    kinds = frozenset(kind for name, kind in FILTERS.items() if requested.get(name) is True)
    return [WatchChanges(), Listen(caller.revision, kinds, frozenset(uris))]


def subscribe(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `resources/subscribe`: notify the client when the resource changes."""
    uri = read_uri(peer, params)
    server, session = peer.server, peer.session
    limit = server.hub.limits.subscriptions
    subscribed = session.subscribed
    if subscribed is None:
        subscribed = ResourceSubscriptions(server, peer.principal)
        session.subscribed = subscribed
    if uri not in subscribed:
        if len(subscribed) >= limit:
            raise ProtocolError(
                wire.INVALID_PARAMS,
                f"This client has limits.subscriptions = {limit} subscriptions. Unsubscribe from "
                "a resource first.",
                {"limit": limit},
            )
        try:
            subscribed.add(uri)
        except Busy as error:
            raise protocol_error(error, caller.revision) from None
    return [Answer(server.result(caller.revision, b""))]


def unsubscribe(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `resources/unsubscribe`."""
    uri = read_uri(peer, params)
    if peer.session.subscribed is not None:
        peer.session.subscribed.discard(uri)
    return [Answer(peer.server.result(caller.revision, b""))]


def read_uri(peer: Peer, params: dict[str, Any]) -> str:
    """Return the `uri` of a request. Raises ProtocolError."""
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise ProtocolError(wire.INVALID_PARAMS, "uri must be a string.")
    _check_uri(uri, peer)
    return uri


def _check_uri(uri: str, peer: Peer) -> None:
    """Raise ProtocolError for a URI that is too long to match, store or repeat."""
    limit = peer.server.hub.limits.uri_chars
    if len(uri) > limit:
        reason = f"The uri has {len(uri)} characters. The maximum is {limit}."
        raise ProtocolError(wire.INVALID_PARAMS, reason, {"limit": limit})
