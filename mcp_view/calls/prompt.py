"""Prompts: what there is, making one, and completing arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mcp_view.calls.call import BufferedCall, trace_of
from mcp_view.cursors import cursor_after, cursor_key
from mcp_view.reducer import block_of
from mcp_view.session import Caller
from mcp_view.tables.errors import ProtocolError
from plexus.errors import PlexusError
from plexus.events import Content, Event, Message, Result, Terminal
from plexus.rpc import wire
from plexus.rpc.batch_reply import BatchReply
from plexus.rpc.effects import Effect, StartCall

if TYPE_CHECKING:
    from mcp_view.protocol import McpConnection

__all__ = ("Completing", "Getting", "Listing", "complete", "get_prompt", "list_prompts")


def list_prompts(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`prompts/list`: a run if activations have to look up what they have."""
    server = view.server
    if not server.hub.prompts_vary():
        prompts = server.catalogue.prompts(caller.revision, view.principal)
        return view.answer_page(request, caller, batched, b'"prompts"', prompts)
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    wanted: dict[str, Any] = {"limit": server.options.page_size + 1}
    after = cursor_key(params)
    if after is not None:
        wanted["after"] = after
    call = Listing(request.id, caller, batched)
    return view.start(call, [StartCall(call, "plexus.prompts", wanted, trace=trace_of(params))])


class Listing(BufferedCall):
    """A page of prompts on its way."""

    def result(self, view: McpConnection, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """The page, and the cursor of the next if one more came than fits."""
        self.check(terminal)
        assert isinstance(terminal, Result), "a plain method ends with its value"
        server, revision = view.server, self.caller.revision
        size = server.options.page_size
        found = terminal.result
        page = [server.catalogue.prompt_entry(entry, revision) for entry in found[:size]]
        body = b'"prompts":' + wire.encode(page)
        if len(found) > size:
            body += b',"nextCursor":' + wire.encode(cursor_after(found[size - 1]["name"]))
        return server.cacheable(revision, body, 0)


def get_prompt(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`prompts/get`."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    name = params.get("name")
    found = view.server.prompt(name) if isinstance(name, str) else None
    if found is None:
        named = name[:128] if isinstance(name, str) else "its name must be text"
        raise ProtocolError(wire.INVALID_PARAMS, f"Unknown prompt: {named}")
    spec, known = found
    arguments = params.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "arguments must be an object")
    _refuse_known(known, arguments)
    call = Getting(request.id, caller, batched, spec.description)
    return view.start(call, call.begin(view, spec.name, arguments | known, params))


class Getting(BufferedCall):
    """A prompt on its way."""

    def __init__(
        self,
        request_id: wire.Id,
        caller: Caller,
        batched: BatchReply | None,
        description: str,
    ) -> None:
        super().__init__(request_id, caller, batched)
        self._description = description

    def result(self, view: McpConnection, events: list[Event], terminal: Terminal) -> bytes:
        """The messages: those that were yielded, those that were returned, or one of a text."""
        self.check(terminal)
        messages: list[Any] = [event for event in events if isinstance(event, Message)]
        value = terminal.result if isinstance(terminal, Result) else None
        if isinstance(value, str):
            messages = [Message("user", Content(value))]
        elif value is not None:
            messages = value
        revision = self.caller.revision
        body = wire.encode(
            {
                "description": self._description,
                "messages": [
                    {"role": message.role, "content": block_of(message.content, revision)}
                    for message in messages
                ],
            }
        )
        return view.server.result(revision, body[1:-1])


def complete(
    view: McpConnection, request: wire.Request, caller: Caller, batched: BatchReply | None
) -> list[Effect]:
    """`completion/complete`: for an argument of a prompt or of a resource template."""
    params: dict[str, Any] = request.params  # type: ignore[assignment]  # the view has checked
    reference, argument = params.get("ref"), params.get("argument")
    context = params.get("context", {})
    given = context.get("arguments", {}) if isinstance(context, dict) else None
    if not (
        isinstance(reference, dict)
        and isinstance(argument, dict)
        and isinstance(argument.get("name"), str)
        and isinstance(argument.get("value"), str)
        and isinstance(given, dict)
    ):
        raise ProtocolError(wire.INVALID_PARAMS, "completion/complete needs a ref and an argument")
    method, known = _completed_method(view, reference)
    _refuse_known(known, [argument["name"]])
    wanted = {
        "method": method,
        "argument": argument["name"],
        "value": argument["value"],
        "given": given | known,
    }
    call = Completing(request.id, caller, batched)
    return view.start(call, [StartCall(call, "plexus.complete", wanted, trace=trace_of(params))])


def _completed_method(view: McpConnection, reference: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method whose argument is completed, and those arguments that its name says already."""
    kind = reference.get("type")
    if kind == "ref/prompt":
        name = reference.get("name")
        found = view.server.prompt(name) if isinstance(name, str) else None
    elif kind == "ref/resource":
        uri = reference.get("uri")
        specs = view.server.hub.methods()
        found = next(
            ((each, {}) for each in specs if each.resource and each.resource.uri == uri), None
        )
    else:
        raise ProtocolError(wire.INVALID_PARAMS, "ref must be a prompt or a resource")
    if found is None or not view.principal.may(found[0].scope):
        raise ProtocolError(wire.INVALID_PARAMS, "there is nothing of that name to complete")
    spec, known = found
    return spec.name, known


def _refuse_known(known: dict[str, Any], given: Iterable[str]) -> None:
    """Raise ProtocolError if an argument is given that the prompt's name says already."""
    for argument in given:
        if argument in known:
            raise ProtocolError(wire.INVALID_PARAMS, f"{argument!r} is part of the prompt's name")


class Completing(BufferedCall):
    """Suggestions on their way."""

    def on_refused(self, view: McpConnection, error: PlexusError) -> list[Effect]:
        """An argument that does not exist is the client's mistake."""
        return view.refuse_call(self, ProtocolError(wire.INVALID_PARAMS, error.message))

    def result(self, view: McpConnection, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """The values."""
        self.check(terminal)
        assert isinstance(terminal, Result), "a plain method ends with its value"
        found = terminal.result
        completion = {
            "values": found["values"],
            "total": found["total"],
            "hasMore": found["has_more"],
        }
        body = b'"completion":' + wire.encode(completion)
        return view.server.result(self.caller.revision, body)
