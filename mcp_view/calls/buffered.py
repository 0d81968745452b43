"""Calls that are answered when their run has ended, and lists that a run provides."""

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
    """A call whose answer is built from all events of the run."""

    def __init__(self, peer: Peer, request_id: wire.Id, caller: Caller) -> None:
        super().__init__(peer, request_id, caller)
        self._events: list[Event] = []
        self._size = 0

    def on_items(self, batch: Batch) -> list[Reply]:
        """Buffer the events until the run has ended, up to the maximum size of an answer."""
        self._events += batch.events
        self._size += batch.size
        limit = self.peer.server.hub.limits.answer_bytes
        if self._size > limit:
            reason = f"The result exceeds the maximum of {limit} bytes."
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
        """Return the encoded result. Raises ProtocolError if the run has failed."""
        raise NotImplementedError

    def raise_if_failed(self, terminal: Terminal) -> None:
        """Raise ProtocolError if the run has failed or was cancelled."""
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
    """A request for a page of a list that activations provide at run time."""

    def __init__(
        self,
        peer: Peer,
        request_id: wire.Id,
        caller: Caller,
        name: str,
        key: str,
        entry: Callable[[dict[str, Any], Revision], dict[str, Any]],
    ) -> None:
        """Create a call for the list `name`, sorted by the field `key`.

        `entry` converts an entry of the hub to an entry of the protocol.
        """
        super().__init__(peer, request_id, caller)
        self._name = name
        self._key = key
        self._entry = entry

    def start_page(self, params: dict[str, Any]) -> list[Reply]:
        """Start a run that lists the page after the request's cursor. Raises ProtocolError.

        The run lists one more entry than the page size, which shows whether another page follows.
        """
        arguments: dict[str, Any] = {"limit": self.peer.server.options.page_size + 1}
        after = cursor_key(params)
        if after is not None:
            arguments["after"] = after
        name, trace = f"plexus.{self._name}", trace_context(params)
        return [StartCall(self, name, arguments, trace=trace, client=self.caller.client)]

    def result(self, events: list[Event], terminal: Terminal) -> bytes:  # noqa: ARG002 - the base has it
        """Return the page, and the cursor of the next page if there is one."""
        self.raise_if_failed(terminal)
        assert isinstance(terminal, Result), "a plain method ends with a result"
        server, revision = self.peer.server, self.caller.revision
        size = server.options.page_size
        found = terminal.result
        page: dict[str, Any] = {self._name: [self._entry(each, revision) for each in found[:size]]}
        if len(found) > size:
            page["nextCursor"] = cursor_after(found[size - 1][self._key])
        return server.cacheable(revision, wire.encode(page)[1:-1], 0)
