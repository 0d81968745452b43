"""Resources: list, list of templates, and read."""

from __future__ import annotations

from typing import Any

from mcp_view.calls.buffered import BufferedCall, ListCall
from mcp_view.errors import ProtocolError, protocol_error
from mcp_view.replies import Answer, Reply
from mcp_view.revisions import Revision
from mcp_view.session import Caller, Peer
from mcp_view.subscriptions import read_uri
from plexus.errors import NotFound
from plexus.events import ContentResult, Event, Resource, Result, Terminal
from plexus.rpc import wire

__all__ = ("ReadResource", "list_resources", "list_templates", "read_resource")


def list_templates(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    """Handle `resources/templates/list`."""
    server = peer.server
    templates = server.catalogue.templates(caller.revision, peer.principal)
    return [Answer(server.page(caller.revision, params, b'"resourceTemplates"', templates))]


def list_resources(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `resources/list` by a run, because activations may provide resources at run time."""
    call = ListCall(peer, request_id, caller, "resources", "uri", _entry)
    return call.start_page(params)


def _entry(entry: dict[str, Any], revision: Revision) -> dict[str, Any]:
    names = {"mime_type": "mimeType"}
    return {
        names.get(key, key): value
        for key, value in entry.items()
        if revision.titles or key != "title"
    }


def read_resource(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `resources/read`."""
    uri = read_uri(peer, params)
    try:
        spec, arguments = peer.server.hub.find_resource(uri)
    except NotFound as error:
        raise ProtocolError(
            caller.revision.missing_resource, f"Resource not found: {uri[:512]}", error.data
        ) from None
    assert spec.resource is not None, "it was found by its URI"
    call = ReadResource(peer, request_id, caller, uri, spec.resource.mime_type or "text/plain")
    return call.start(spec, arguments, params)


class ReadResource(BufferedCall):
    """A request for the contents of a resource."""

    def __init__(
        self,
        peer: Peer,
        request_id: wire.Id,
        caller: Caller,
        uri: str,
        mime_type: str,
    ) -> None:
        super().__init__(peer, request_id, caller)
        self._uri = uri
        self._mime_type = mime_type

    def result(self, events: list[Event], terminal: Terminal) -> bytes:
        """Return the contents: a text, or resources with their own type."""
        if terminal.failed and getattr(terminal, "code", "") == "not_found":
            error = NotFound(terminal.as_text(), data={"uri": self._uri})
            raise protocol_error(error, self.caller.revision)
        self.raise_if_failed(terminal)
        if isinstance(terminal, ContentResult):  # as another server sent them
            body = b'"contents":' + wire.encode(terminal.content)
            return self.peer.server.cacheable(self.caller.revision, body, 0)
        found: list[Any] = [event for event in events if isinstance(event, Resource)]
        value = terminal.result if isinstance(terminal, Result) else None
        if value is not None:
            found = value if isinstance(value, list) else [value]
        contents = [self._contents(each) for each in found]
        body = b'"contents":' + wire.encode(contents)
        return self.peer.server.cacheable(self.caller.revision, body, 0)

    def _contents(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Resource):
            return {"uri": self._uri, "mimeType": self._mime_type, "text": str(value)}
        contents: dict[str, Any] = {
            "uri": value.uri,
            "mimeType": value.mime_type or self._mime_type,
        }
        if value.blob is not None:
            return contents | {"blob": value.blob}
        return contents | {"text": value.content or ""}
