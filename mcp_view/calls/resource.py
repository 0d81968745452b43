"""Resources: what there is, reading one, and being told when one changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_view.calls.call import BufferedCall, trace_of
from mcp_view.cursors import cursor_after, cursor_key
from mcp_view.session import Caller, Subscriptions
from mcp_view.subscriptions import check_uri
from mcp_view.tables.errors import ProtocolError, protocol_error
from plexus.errors import Busy, NotFound
from plexus.events import Event, Resource, Result, Terminal
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import Effect, StartCall

if TYPE_CHECKING:
    from mcp_view.protocol import McpConnection

__all__ = (
    "Listing",
    "Reading",
    "list_resources",
    "list_templates",
    "read_resource",
    "subscribe",
    "unsubscribe",
)


def list_templates(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`resources/templates/list`."""
    templates = view.server.catalogue.templates(caller.revision, view.principal)
    return view.answer_page(request, caller, batched, b'"resourceTemplates"', templates)


def list_resources(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`resources/list`: activations may have to look up what they have, so this is a run."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    size = view.server.options.page_size
    wanted: dict[str, Any] = {"limit": size + 1}
    after = cursor_key(params)
    if after is not None:
        wanted["after"] = after
    call = Listing(request.id, caller, batched)
    return view.start(call, [StartCall(call, "plexus.resources", wanted, trace=trace_of(params))])


class Listing(BufferedCall):
    """A page of resources on its way."""

    def result(self, view: McpConnection, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """The page, and the cursor of the next if one more came than fits."""
        self.check(terminal)
        assert isinstance(terminal, Result), "a plain method ends with its value"
        revision = self.caller.revision
        size = view.server.options.page_size
        found = terminal.result
        page = [_entry(entry, titles=revision.titles) for entry in found[:size]]
        body = b'"resources":' + wire.encode(page)
        if len(found) > size:
            body += b',"nextCursor":' + wire.encode(cursor_after(found[size - 1]["uri"]))
        return view.server.cacheable(revision, body, 0)


def _entry(entry: dict[str, Any], *, titles: bool) -> dict[str, Any]:
    names = {"mime_type": "mimeType"}
    return {names.get(key, key): value for key, value in entry.items() if titles or key != "title"}


def read_resource(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`resources/read`."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    uri = _uri(view, params)
    try:
        spec, arguments = view.server.hub.find_resource(uri)
    except NotFound as error:
        raise ProtocolError(
            caller.revision.missing_resource, f"Resource not found: {uri[:512]}", error.data
        ) from None
    assert spec.resource is not None, "it was found by its address"
    call = Reading(request.id, caller, batched, uri, spec.resource.mime_type or "text/plain")
    return view.start(call, call.begin(view, spec.name, arguments, params))


class Reading(BufferedCall):
    """A resource on its way."""

    def __init__(
        self,
        request_id: wire.Id,
        caller: Caller,
        batched: BatchReply | None,
        uri: str,
        mime_type: str,
    ) -> None:
        super().__init__(request_id, caller, batched)
        self._uri = uri
        self._mime_type = mime_type

    def result(self, view: McpConnection, events: list[Event], terminal: Terminal) -> bytes:
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
        return view.server.cacheable(self.caller.revision, body, 0)

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


def subscribe(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`resources/subscribe`: notify the client when this resource changes."""
    uri = _uri(view, request.params)  # type: ignore[arg-type]  # the view has checked
    limit = view.server.hub.limits.subscriptions
    subscribed = view.session.subscribed
    if subscribed is None:
        subscribed = Subscriptions(view.server.subscriptions, view.principal.name)
        view.session.subscribed = subscribed
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
    return view.answer(request.id, view.server.result(caller.revision, b""), batched)


def unsubscribe(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`resources/unsubscribe`."""
    uri = _uri(view, request.params)  # type: ignore[arg-type]  # the view has checked
    if view.session.subscribed is not None:
        view.session.subscribed.discard(uri)
    return view.answer(request.id, view.server.result(caller.revision, b""), batched)


def _uri(view: McpConnection, params: dict[str, Any]) -> str:
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise ProtocolError(wire.INVALID_PARAMS, "uri must be text")
    check_uri(uri, view.server.hub.limits.uri_chars)
    return uri
