"""The method table: the handler of each method, and the revisions and states that allow it.

An unknown method, a method that the client's revision does not have, and a method that needs a
handshake first are three errors of one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from mcp_view import session, subscriptions
from mcp_view.calls import prompt, resource, task, tool
from mcp_view.errors import NOT_INITIALIZED, ProtocolError
from mcp_view.replies import Reply
from mcp_view.revisions import REVISIONS
from mcp_view.session import Caller, Peer, is_stateless, stateless_caller
from plexus.rpc import wire

__all__ = ("INITIALIZE", "METHODS", "Method", "find_method")

#: Receives the client, the id and params of a request, and its caller, which is None before
#: `initialize`.
Handler: TypeAlias = Callable[[Peer, wire.Id, dict[str, Any], Any], list[Reply]]

#: Positions in the order of revisions.
_ORDER: Final = {name: row.order for name, row in REVISIONS.items()}
_OLDEST: Final = _ORDER["2024-11-05"]
_LAST_HANDSHAKE: Final = _ORDER["2025-11-25"]
_STATELESS: Final = _ORDER["2026-07-28"]


class Method(NamedTuple):
    """One row of the table."""

    handle: Handler
    #: The first and last revision that define the method.
    first: int = _OLDEST
    last: int = _STATELESS
    #: Whether it is allowed before `initialize`.
    before_initialize: bool = False


METHODS: Final[dict[str, Method]] = {
    "ping": Method(session.ping, last=_LAST_HANDSHAKE, before_initialize=True),
    "server/discover": Method(session.discover, first=_STATELESS),
    # Not in the specification. The Janix validator calls it in the handshake revisions.
    "server/info": Method(session.describe_server, last=_LAST_HANDSHAKE),
    "logging/setLevel": Method(session.set_level, last=_LAST_HANDSHAKE),
    "tools/list": Method(tool.list_tools),
    "tools/call": Method(tool.call_tool),
    "resources/list": Method(resource.list_resources),
    "resources/templates/list": Method(resource.list_templates),
    "resources/read": Method(resource.read_resource),
    "resources/subscribe": Method(subscriptions.subscribe, last=_LAST_HANDSHAKE),
    "resources/unsubscribe": Method(subscriptions.unsubscribe, last=_LAST_HANDSHAKE),
    "prompts/list": Method(prompt.list_prompts),
    "prompts/get": Method(prompt.get_prompt),
    "completion/complete": Method(prompt.complete),
    "subscriptions/listen": Method(subscriptions.listen, first=_STATELESS),
    "tasks/get": Method(task.get_task, first=_LAST_HANDSHAKE),
    "tasks/cancel": Method(task.cancel_task, first=_LAST_HANDSHAKE),
    "tasks/result": Method(tool.task_result, first=_LAST_HANDSHAKE, last=_LAST_HANDSHAKE),
    "tasks/list": Method(task.list_tasks, first=_LAST_HANDSHAKE, last=_LAST_HANDSHAKE),
    "tasks/update": Method(task.update_task, first=_STATELESS),
}
#: Not a row of the table, because a client has no revision before it.
INITIALIZE: Final = Method(session.initialize, before_initialize=True)


def find_method(
    peer: Peer,
    request: wire.Request,
    methods: Mapping[str, Method] = METHODS,
    *,
    stateless: bool,
) -> tuple[Method, dict[str, Any], Caller | None]:
    """Return the method, params and caller of a request; the caller is None before `initialize`.

    `methods` is the table of the connection. `stateless`: every request must name its revision.
    Raises ProtocolError.
    """
    request_id, name, given = request
    params: Any = {} if given is None else given
    method = methods.get(name)
    if method is None and name != "initialize":
        raise _unknown(peer, request, stateless=stateless)
    if request_id is None:
        raise ProtocolError(wire.INVALID_REQUEST, "The request id must be a string or an integer.")
    if params.__class__ is not dict:
        raise ProtocolError(wire.INVALID_PARAMS, "params must be an object.")
    if stateless or ("_meta" in params and is_stateless(request)):
        caller: Caller | None = stateless_caller(params)
    elif method is None:
        return INITIALIZE, params, None
    else:
        caller = peer.session.caller
    if caller is None:
        if method is not None and method.before_initialize:
            return method, params, None
        raise ProtocolError(NOT_INITIALIZED, "Server not initialized")
    if method is None or not method.first <= caller.revision.order <= method.last:
        raise ProtocolError(wire.METHOD_NOT_FOUND, f"Method not found: {name[:128]}")
    return method, params, caller


def _unknown(peer: Peer, request: wire.Request, *, stateless: bool) -> ProtocolError:
    """Return the error for a method that MCP does not define."""
    if stateless or is_stateless(request):
        # Report missing `_meta` fields before an unknown method.
        stateless_caller(request.params if isinstance(request.params, dict) else {})
    elif peer.session.caller is None and "/" in request.method:
        return ProtocolError(NOT_INITIALIZED, "Server not initialized")
    return ProtocolError(wire.METHOD_NOT_FOUND, f"Method not found: {request.method[:128]}")
