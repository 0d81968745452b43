"""Resources: their lists, and reading one."""

from __future__ import annotations

from typing import Any

from mcp_view.calls.call import BufferedCall, trace_of
from mcp_view.cursors import cursor_after, cursor_key
from mcp_view.replies import Answer, Reply
from mcp_view.session import Caller, Peer
from mcp_view.subscriptions import read_uri
from mcp_view.tables.errors import ProtocolError, protocol_error
from plexus.errors import NotFound
from plexus.events import Event, Resource, Result, Terminal
from plexus.rpc import wire
from plexus.rpc.effects import StartCall

__all__ = ("ListResources", "ReadResource", "list_resources", "list_templates", "read_resource")


def list_templates(peer: Peer, request: wire.Request, caller: Caller) -> list[Reply]:
    """`resources/templates/list`."""
    server = peer.server
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    templates = server.catalogue.templates(caller.revision, peer.principal)
    return [Answer(server.page(caller.revision, params, b'"resourceTemplates"', templates))]


def list_resources(peer: Peer, request: wire.Request, caller: Caller) -> list[Reply]:
    """`resources/list`: activations may have to look up what they have, so this is a run."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    size = peer.server.options.page_size
    wanted: dict[str, Any] = {"limit": size + 1}
    after = cursor_key(params)
    if after is not None:
        wanted["after"] = after
    call = ListResources(peer, request.id, caller)
    return [StartCall(call, "plexus.resources", wanted, trace=trace_of(params))]


class ListResources(BufferedCall):
    """A request for a page of resources."""

    def result(self, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """The page, and the cursor of the next if one more came than fits."""
        self.check(terminal)
        assert isinstance(terminal, Result), "a plain method ends with its value"
        revision = self.caller.revision
        size = self.peer.server.options.page_size
        found = terminal.result
        page = [_entry(entry, titles=revision.titles) for entry in found[:size]]
        body = b'"resources":' + wire.encode(page)
        if len(found) > size:
            body += b',"nextCursor":' + wire.encode(cursor_after(found[size - 1]["uri"]))
        return self.peer.server.cacheable(revision, body, 0)


def _entry(entry: dict[str, Any], *, titles: bool) -> dict[str, Any]:
    names = {"mime_type": "mimeType"}
    return {names.get(key, key): value for key, value in entry.items() if titles or key != "title"}


def read_resource(peer: Peer, request: wire.Request, caller: Caller) -> list[Reply]:
    """`resources/read`."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    uri = read_uri(peer, params)
    try:
        spec, arguments = peer.server.hub.find_resource(uri)
    except NotFound as error:
        raise ProtocolError(
            caller.revision.missing_resource, f"Resource not found: {uri[:512]}", error.data
        ) from None
    assert spec.resource is not None, "it was found by its address"
    call = ReadResource(peer, request.id, caller, uri, spec.resource.mime_type or "text/plain")
    return call.begin(spec, arguments, params)


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
        """The contents: a text, or resources that say themselves what they are."""
        if terminal.failed and getattr(terminal, "code", "") == "not_found":
            error = NotFound(terminal.as_text(), data={"uri": self._uri})
            raise protocol_error(error, self.caller.revision)
        self.check(terminal)
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
