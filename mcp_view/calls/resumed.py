"""A tool call that another server has started, continued here for the same request.

The client has received part of what the run has sent. The run is read from its first item, because
the result contains all of them, and notifications begin after the last item that was received.
"""

from __future__ import annotations

from mcp_view.calls.call import RUNNING, Call
from mcp_view.calls.tool import ToolCall
from mcp_view.reducer import Reducer
from mcp_view.replies import Reply
from mcp_view.session import Caller, Peer
from plexus.events import Event, QuestionAsked
from plexus.rpc import wire
from plexus.rpc.effects import CancelRun
from plexus.runtime.log import Batch
from plexus.runtime.run import Run

__all__ = ("ResumedCall",)


class ResumedCall(ToolCall):
    """The rest of a tool call."""

    def __init__(
        self,
        peer: Peer,
        request_id: wire.Id,
        caller: Caller,
        seen: int,
        token: str | int | None,
    ) -> None:
        """Continue a request after the item `seen`. `token` is its progress token."""
        # The method is known once the run is.
        Call.__init__(self, peer, request_id, caller)
        self.seen = seen
        self.progress_token = token

    def on_started(self, run: Run) -> list[Reply]:
        """Store the run and its method. Raises UnknownMethod if this server does not have it."""
        self._spec = self.peer.server.hub.resolve(run.method)
        if self.progress_token is not None:
            self.report_progress(self.progress_token)
        return super().on_started(run)

    def cancel(self) -> list[Reply]:
        """Cancel the run too: this server is not its owner, so leaving it would not."""
        cancels: list[Reply] = []
        if self.state is RUNNING:
            cancels.append(CancelRun(self.run.id, "cancelled by the client"))
        return [*cancels, *super().cancel()]

    def _notify(self, reducer: Reducer, batch: Batch) -> list[Reply]:
        if self.seen >= batch.first:
            self._skip(batch.events[: self.seen + 1 - batch.first])
        return super()._notify(reducer, batch)

    def _skip(self, events: list[Event]) -> None:
        """Account for items that the client has received: progress increases, questions are open.

        Each question has the id that the other server sent it with.
        """
        server = self.peer.server
        if self._progress is not None:
            running_s = server.monotonic() - self.run.started_at
            self._progress.skip(events, round(running_s / server.options.heartbeat_s) + 1)
        session, run = self.peer.session, self.run.id
        asked: dict[wire.Id, QuestionAsked] = {
            session.request_id(run, event.request): event
            for event in events
            if isinstance(event, QuestionAsked) and event.request in (self.run.questions or ())
        }
        self.client_requests = {**self.client_requests, **asked}
