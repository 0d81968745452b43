"""What the run store knows about a run, and which runs a query selects. Plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NamedTuple

__all__ = ("ENDED_STATES", "FoundRuns", "RunQuery", "RunRecord")

#: The states of a run that has ended.
ENDED_STATES: Final = frozenset({"complete", "error", "cancelled"})


@dataclasses.dataclass(slots=True)
class RunRecord:
    """What the run store knows about a run, except its items."""

    run: int
    method: str
    #: The scope that is needed to control the run.
    scope: str
    principal: str
    state: str
    started_ms: int
    last_seq: int
    epoch: int = 0
    ended_ms: int | None = None
    #: `succeeded`, `failed` or `cancelled`; None while the run is in progress.
    outcome: str | None = None
    exit_code: int | None = None
    #: The arguments as redacted JSON, and one line about them; empty if they are not recorded.
    arguments: str = ""
    summary: str = ""
    parent: int | None = None
    project: str = ""
    #: The name and version of the client, and the session of the agent that it belongs to.
    client: str = ""
    agent_session: str = ""
    #: Size of the items in bytes.
    size: int = 0
    #: Until when the run is stored, in milliseconds since the epoch; None while it is in progress.
    kept_until: int | None = None
    pinned: bool = False
    #: Guaranteed retention of a task, in seconds.
    retention_s: float | None = None
    #: What is recorded: `all` or `metadata`.
    recorded: str = "all"
    #: The process that executes the run.
    process: dict[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return its entry in `plexus.runs`."""
        described: dict[str, Any] = {
            "run": self.run,
            "method": self.method,
            "state": self.state,
            "started_ms": self.started_ms,
            "last_seq": self.last_seq,
        }
        if self.ended_ms is not None:
            described["duration_ms"] = self.ended_ms - self.started_ms
        optional = {
            "parent": self.parent,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "summary": self.summary or None,
            "client": self.client or None,
            "agent_session": self.agent_session or None,
            "project": self.project or None,
            "bytes": self.size or None,
            "kept_until": self.kept_until,
            "pinned": self.pinned or None,
            "process": self.process,
        }
        return described | {name: value for name, value in optional.items() if value is not None}


class RunQuery(NamedTuple):
    """Which recorded runs to return, newest first."""

    #: Only runs that started at or after, and before these times, in milliseconds since the epoch.
    since_ms: int | None = None
    until_ms: int | None = None
    #: Only runs of methods that match one of these patterns; any method without one.
    methods: tuple[str, ...] = ()
    #: A state or an outcome; None for all.
    state: str | None = None
    #: Only runs whose output, arguments or summary have this text: words, or any text in quotes.
    text: str | None = None
    #: Whether runs of other projects are included.
    all_projects: bool = False
    #: Only runs before this one, the last of the previous page.
    before: int | None = None
    limit: int = 50
    #: Only runs that this run has called.
    parent: int | None = None
    #: Only runs of clients whose name contains this text, in upper or lower case.
    client: str | None = None
    #: Only runs of this session of an agent.
    agent_session: str | None = None


class FoundRuns(NamedTuple):
    """Some of the runs that a search has found."""

    runs: list[RunRecord]
    #: Where a search stopped at its bounds: pass it as `before` to continue. None otherwise.
    stopped_at: int | None = None
