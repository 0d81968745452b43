"""The method table: the handler of each method, and the revisions and states that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from mcp_view import session, subscriptions
from mcp_view.calls import prompt, resource, task, tool
from mcp_view.replies import Reply
from mcp_view.session import Peer
from mcp_view.tables.revisions import REVISIONS
from plexus.rpc import wire

__all__ = ("METHODS", "Method")

#: It is given the client, the request, and who that is from; None before `initialize`.
Handler: TypeAlias = Callable[[Peer, wire.Request, Any], list[Reply]]

#: Places in the order of revisions.
_ORDER: Final = {name: row.order for name, row in REVISIONS.items()}
_OLDEST: Final = _ORDER["2024-11-05"]
_LAST_HANDSHAKE: Final = _ORDER["2025-11-25"]
_STATELESS: Final = _ORDER["2026-07-28"]


class Method(NamedTuple):
    """One row."""

    handle: Handler
    #: The first and the last revision that have it.
    first: int = _OLDEST
    last: int = _STATELESS
    #: Whether it is answered before `initialize`.
    before_initialize: bool = False


METHODS: Final[dict[str, Method]] = {
    "ping": Method(session.ping, last=_LAST_HANDSHAKE, before_initialize=True),
    "server/discover": Method(session.discover, first=_STATELESS),
    # Not in the specification; the Janix validator asks for it in the handshake revisions.
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
