"""The method table: what each method is handled by, in which revisions, and in which state.

A handler is named and imported when it is first needed: a client that only calls tools does not
pay for prompts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, TypeAlias

from mcp_view.revisions import REVISIONS
from plexus.rpc.effects import Effect

__all__ = ("METHODS", "Method")

#: It is given the view, the request, who it is from, and the batch it is part of.
Handler: TypeAlias = Callable[..., list[Effect]]

#: Places in the order of revisions.
_ORDER: Final = {name: row.order for name, row in REVISIONS.items()}
_OLDEST: Final = _ORDER["2024-11-05"]
_LAST_HANDSHAKE: Final = _ORDER["2025-11-25"]
_STATELESS: Final = _ORDER["2026-07-28"]


class Method:
    """One row."""

    __slots__ = ("_found", "first", "handler", "last", "unready")

    def __init__(
        self,
        handler: str,
        first: int = _OLDEST,
        last: int = _STATELESS,
        *,
        unready: bool = False,
    ) -> None:
        #: The handler as `module:function`, inside this package.
        self.handler = handler
        #: The first and the last revision that have it.
        self.first = first
        self.last = last
        #: Whether it is answered before `initialize`.
        self.unready = unready
        self._found: Handler | None = None

    def handle(self) -> Handler:
        """The handler itself."""
        if self._found is None:
            module, _, name = self.handler.partition(":")
            found: Handler = getattr(importlib.import_module(f"mcp_view.{module}"), name)
            self._found = found
        return self._found


METHODS: Final[dict[str, Method]] = {
    "ping": Method("lifecycle:ping", last=_LAST_HANDSHAKE, unready=True),
    "server/discover": Method("lifecycle:discover", first=_STATELESS),
    # Not in the specification; the Janix validator asks for it in the handshake revisions.
    "server/info": Method("lifecycle:describe_server", last=_LAST_HANDSHAKE),
    "logging/setLevel": Method("lifecycle:set_level", last=_LAST_HANDSHAKE),
    "tools/list": Method("tools:list_tools"),
    "tools/call": Method("tools:call_tool"),
    "resources/list": Method("resources:list_resources"),
    "resources/templates/list": Method("resources:list_templates"),
    "resources/read": Method("resources:read_resource"),
    "resources/subscribe": Method("resources:subscribe", last=_LAST_HANDSHAKE),
    "resources/unsubscribe": Method("resources:unsubscribe", last=_LAST_HANDSHAKE),
    "prompts/list": Method("prompts:list_prompts"),
    "prompts/get": Method("prompts:get_prompt"),
    "completion/complete": Method("prompts:complete"),
    "subscriptions/listen": Method("listening:listen", first=_STATELESS),
    "tasks/get": Method("tasks:get_task", first=_LAST_HANDSHAKE),
    "tasks/cancel": Method("tasks:cancel_task", first=_LAST_HANDSHAKE),
    "tasks/result": Method("tools:task_result", first=_LAST_HANDSHAKE, last=_LAST_HANDSHAKE),
    "tasks/list": Method("tasks:list_tasks", first=_LAST_HANDSHAKE, last=_LAST_HANDSHAKE),
    "tasks/update": Method("tasks:update_task", first=_STATELESS),
}
