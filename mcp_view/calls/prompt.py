"""Prompts: list, get, and completion of arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcp_view.calls.buffered import BufferedCall, ListCall
from mcp_view.errors import ProtocolError
from mcp_view.reducer import content_block, supported_block
from mcp_view.replies import Answer, Reply
from mcp_view.revisions import Revision
from mcp_view.session import Caller, Peer, trace_context
from plexus.errors import PlexusError
from plexus.events import Content, ContentResult, Event, Message, Result, Terminal
from plexus.rpc import wire
from plexus.rpc.effects import StartCall

__all__ = ("Complete", "GetPrompt", "complete", "get_prompt", "list_prompts")


def list_prompts(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `prompts/list`: by a run if activations provide prompts at run time."""
    server = peer.server
    if not server.hub.has_dynamic_prompts():
        prompts = server.catalogue.prompts(caller.revision, peer.principal)
        return [Answer(server.page(caller.revision, params, b'"prompts"', prompts))]
    call = ListCall(peer, request_id, caller, "prompts", "name", server.catalogue.prompt_entry)
    return call.start_page(params)


def get_prompt(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `prompts/get`."""
    name = params.get("name")
    found = peer.server.find_prompt(name) if isinstance(name, str) else None
    if found is None:
        named = name[:128] if isinstance(name, str) else "the name must be a string"
        raise ProtocolError(wire.INVALID_PARAMS, f"Unknown prompt: {named}")
    spec, known = found
    arguments = params.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "arguments must be an object.")
    _refuse_known(known, arguments)
    call = GetPrompt(peer, request_id, caller, spec.description)
    return call.start(spec, arguments | known, params)


class GetPrompt(BufferedCall):
    """A request for a prompt."""

    def __init__(
        self,
        peer: Peer,
        request_id: wire.Id,
        caller: Caller,
        description: str,
    ) -> None:
        super().__init__(peer, request_id, caller)
        self._description = description

    def result(self, events: list[Event], terminal: Terminal) -> bytes:
        """Return the messages that were yielded or returned. A text becomes one message."""
        self.raise_if_failed(terminal)
        revision = self.caller.revision
        if isinstance(terminal, ContentResult):  # as another server sent them
            sent = [_supported(message, revision) for message in terminal.content]
            body = wire.encode({"description": self._description, "messages": sent})
            return self.peer.server.result(revision, body[1:-1])
        messages: list[Any] = [event for event in events if isinstance(event, Message)]
        value = terminal.result if isinstance(terminal, Result) else None
        if isinstance(value, str):
            messages = [Message("user", Content(value))]
        elif value is not None:
            messages = value
        body = wire.encode(
            {
                "description": self._description,
                "messages": [
                    {"role": message.role, "content": content_block(message.content, revision)}
                    for message in messages
                ],
            }
        )
        return self.peer.server.result(revision, body[1:-1])


def _supported(message: dict[str, Any], revision: Revision) -> dict[str, Any]:
    """Return a message that another server sent, in a form that this revision supports."""
    content = message.get("content")
    if not isinstance(content, dict):
        return message
    return message | {"content": supported_block(content, revision)}


def complete(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    """Handle `completion/complete` for an argument of a prompt or of a resource template."""
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
        reason = "completion/complete requires ref, argument.name and argument.value."
        raise ProtocolError(wire.INVALID_PARAMS, reason)
    method, known = _completed_method(peer, reference)
    _refuse_known(known, [argument["name"]])
    arguments = {
        "method": method,
        "argument": argument["name"],
        "value": argument["value"],
        "given": given | known,
    }
    call = Complete(peer, request_id, caller)
    trace = trace_context(params)
    return [StartCall(call, "plexus.complete", arguments, trace=trace, client=caller.client)]


def _completed_method(peer: Peer, reference: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the method whose argument is completed, and the arguments fixed by its name."""
    kind = reference.get("type")
    if kind == "ref/prompt":
        name = reference.get("name")
        found = peer.server.find_prompt(name) if isinstance(name, str) else None
    elif kind == "ref/resource":
        uri = reference.get("uri")
        specs = peer.server.hub.methods()
        found = next(
            ((each, {}) for each in specs if each.resource and each.resource.uri == uri), None
        )
    else:
        raise ProtocolError(wire.INVALID_PARAMS, "ref.type must be ref/prompt or ref/resource.")
    if found is None or not peer.principal.may(found[0].scope):
        raise ProtocolError(wire.INVALID_PARAMS, "Unknown prompt or resource template.")
    spec, known = found
    return spec.name, known


def _refuse_known(known: dict[str, Any], given: Iterable[str]) -> None:
    """Raise ProtocolError if an argument is fixed by the prompt's name."""
    for argument in given:
        if argument in known:
            reason = f"Argument {argument!r} is fixed by the prompt's name. Leave it out."
            raise ProtocolError(wire.INVALID_PARAMS, reason)


class Complete(BufferedCall):
    """A request for completions of an argument."""

    def on_refused(self, error: PlexusError) -> list[Reply]:
        """Answer that the argument does not exist, as an error of the client."""
        return self.refuse(ProtocolError(wire.INVALID_PARAMS, error.message))

    def result(self, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """Return the completions."""
        self.raise_if_failed(terminal)
        assert isinstance(terminal, Result), "a plain method ends with a result"
        found = terminal.result
        completion = {
            "values": found["values"],
            "total": found["total"],
            "hasMore": found["has_more"],
        }
        body = b'"completion":' + wire.encode(completion)
        return self.peer.server.result(self.caller.revision, body)
