"""Calls that are answered from all events of their run, and pages of lists that need a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp_view.calls.call import Call
from mcp_view.catalogue import cursor_after, cursor_key
from mcp_view.elicitation import missing_capability
from mcp_view.errors import ProtocolError, protocol_error
from mcp_view.replies import Reply
from mcp_view.revisions import Revision
from mcp_view.session import Caller, Peer, trace_context
from plexus.errors import PlexusError
from plexus.events import Cancelled, ErrorEvent, Event, Result, Terminal
from plexus.rpc import wire
from plexus.rpc.effects import LeaveCall, StartCall
from plexus.runtime.log import Batch

__all__ = ("BufferedCall", "ListCall")


class BufferedCall(Call):
    """A call whose answer is made from all events at once."""

    def __init__(self, peer: Peer, request_id: wire.Id, caller: Caller) -> None:
        super().__init__(peer, request_id, caller)
        self._events: list[Event] = []
        self._size = 0

    def on_items(self, batch: Batch) -> list[Reply]:
        """Keep the events until the run has ended, as long as they fit into an answer."""
        self._events += batch.events
        self._size += batch.size
        limit = self.peer.server.hub.limits.answer_bytes
        if self._size > limit:
            reason = f"the answer is over the limit of {limit} bytes"
            error = ProtocolError(wire.INTERNAL_ERROR, reason, {"limit": limit})
            return [LeaveCall(self, cancel=reason), *self.refuse(error)]
        if batch.terminal is None:
            return self.ask(batch.events) if self.run.questions else []
        self._events.pop()
        try:
            result = self.result(self._events, batch.terminal)
        except ProtocolError as error:
            return [*self.withdraw_requests(), *self.refuse(error)]
        return [*self.withdraw_requests(), *self.answer(result)]

    def result(self, events: list[Event], terminal: Terminal) -> bytes:
        """Return the answer; raises ProtocolError if there is none."""
        raise NotImplementedError

    def raise_if_failed(self, terminal: Terminal) -> None:
        """Raise the error of a run that has failed."""
        revision = self.caller.revision
        missing = missing_capability(terminal, revision)
        if missing is not None:
            raise missing
        if isinstance(terminal, ErrorEvent):
            error = PlexusError(terminal.message, code=terminal.code, data=terminal.data)
            raise protocol_error(error, revision)
        if isinstance(terminal, Cancelled):
            raise ProtocolError(wire.INTERNAL_ERROR, terminal.as_text())


class ListCall(BufferedCall):
    """A request for a page of a list that activations have to look up."""

    def __init__(
        self,
        peer: Peer,
        request_id: wire.Id,
        caller: Caller,
        name: str,
        key: str,
        entry: Callable[[dict[str, Any], Revision], dict[str, Any]],
    ) -> None:
        """`name` is that of the list, `key` the field that it is sorted by, and `entry` makes an
        entry of what the hub has."""
        super().__init__(peer, request_id, caller)
        self._name = name
        self._key = key
        self._entry = entry

    def start_page(self, params: dict[str, Any]) -> list[Reply]:
        """Look up one entry more than a page has, after the request's cursor; raises
        ProtocolError."""
        arguments: dict[str, Any] = {"limit": self.peer.server.options.page_size + 1}
        after = cursor_key(params)
        if after is not None:
            arguments["after"] = after
        return [StartCall(self, f"plexus.{self._name}", arguments, trace=trace_context(params))]

    def result(self, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """The page, and the cursor of the next if one more came than fits."""
        self.raise_if_failed(terminal)
        assert isinstance(terminal, Result), "a plain method ends with its value"
        server, revision = self.peer.server, self.caller.revision
        size = server.options.page_size
        found = terminal.result
        page: dict[str, Any] = {self._name: [self._entry(each, revision) for each in found[:size]]}
        if len(found) > size:
            page["nextCursor"] = cursor_after(found[size - 1][self._key])
        return server.cacheable(revision, wire.encode(page)[1:-1], 0)
