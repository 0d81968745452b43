"""The methods of the namespace `plexus` for recorded runs: list, search, inspect, pin and delete.

They reach only the caller's own runs; a run of another principal is not found. Changing a run needs
the scope of its method, as stopping it does. A hub without a run store raises Unsupported.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from annotated_types import Ge, Le, MaxLen

from plexus.activation import method
from plexus.context import Context
from plexus.errors import Denied, InvalidParams, Unsupported
from plexus.events import Event, outcome_of
from plexus.principal import READ, Principal
from plexus.registry.lazy import resolve
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.log import wall_ms
from plexus.runtime.run import Run
from plexus.runtime.runs import unknown_run

if TYPE_CHECKING:  # only a process that reads the run store imports it
    from plexus.runtime.run_record import RunQuery, RunRecord
    from plexus.runtime.stored_run import StoredRuns

__all__ = ("HistoryMethods", "RunsFound", "parse_time", "recorded_arguments")

#: Seconds of the units of a duration.
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smhdw])")
#: Created only in a process that reads the run store.
RUN_QUERY: Final = "plexus.runtime.run_record:RunQuery"
#: Maximum number of runs that one call deletes.
MAX_DELETED: Final = 1000


class RunsFound(Event):
    """Runs that a search has found, as in `plexus.runs`."""

    runs: list[dict[str, Any]]
    #: Where the search stopped at its limits: continue with it as `before`. None otherwise.
    stopped_at: int | None = None

    def as_text(self) -> str:
        return "".join(f"{run['run']} {run['method']} {run['state']}\n" for run in self.runs)


def parse_time(value: str | int, now_ms: int | None = None) -> int:
    """Return a time in milliseconds since the epoch.

    `value` is such a time, a duration before now (`30m`, `3h`, `2d`), or an ISO date, which is in
    the local time zone unless it contains one. Raises InvalidParams.
    """
    if isinstance(value, int):
        return value
    text = value.strip()
    if text.isdecimal() and text.isascii():
        return int(text[:18])
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now - round(float(duration[1]) * UNITS[duration[2]] * 1000)
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidParams(
            f"{value!r} is not a time. Write a duration such as 30m, 3h or 2d, a date such as "
            "2026-05-01 or 2026-05-01T14:30, or milliseconds since the epoch."
        ) from error


class HistoryMethods:
    """Part of the activation `plexus`."""

    _hub: Plexus

    @method(title="List recorded runs", read_only=True, open_world=False, control=True)
    async def history(
        self,
        since: str | None = None,
        until: str | None = None,
        method: str | None = None,
        state: str | None = None,
        search: str | None = None,
        before: int | None = None,
        limit: Annotated[int, Ge(1), Le(1000)] = 50,
        all_projects: bool = False,
        parent: int | None = None,
        client: str | None = None,
        agent_session: str | None = None,
        *,
        ctx: Context,
    ) -> list[dict[str, Any]]:
        """List your recorded runs, newest first: finished ones and those in progress.

        Args:
            since: Earliest start: "30m", "3h" or "2d" before now, an ISO date, or milliseconds.
            until: Latest start.
            method: Patterns of methods, such as "bash.*,chat.send".
            state: A state, such as running, or an outcome: succeeded, failed, cancelled.
            search: Words of the output or the arguments, or any text in quotes.
            before: Only runs older than this one.
            limit: Maximum number of runs, 1 to 1000.
            all_projects: Include other project folders.
            parent: Only runs that this run has called.
            client: Part of the client's name, such as "claude".
            agent_session: Only runs of this agent session.
        """
        stored = self._stored()
        query = _query(since, until, method, state, search, before, limit, all_projects)
        query = query._replace(parent=parent, client=client, agent_session=agent_session)
        if search is None:
            return await stored.query(ctx.principal, query)
        listed = []
        async with aclosing(stored.search(ctx.principal, query)) as parts:
            async for found in parts:
                listed += [record.describe() for record in found.runs]
                if found.stopped_at is not None:
                    await ctx.warning(
                        "The search has reached its limits and stopped early. Continue with "
                        f"before={found.stopped_at}."
                    )
        return listed

    @method(
        title="Search recorded runs",
        listed=False,
        deadline_s=None,
        read_only=True,
        open_world=False,
    )
    async def find_runs(
        self,
        search: str,
        since: str | None = None,
        until: str | None = None,
        method: str | None = None,
        state: str | None = None,
        before: int | None = None,
        limit: Annotated[int, Ge(1), Le(1000)] = 50,
        all_projects: bool = False,
        parent: int | None = None,
        client: str | None = None,
        agent_session: str | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[RunsFound]:
        """Stream your recorded runs that have a text, newest first, as they are found.

        The parameters are those of `plexus.history`. The last event has `stopped_at` if the search
        reached its limits.

        Args:
            search: Words, or any other text, or a text in quotes.
            since: Only runs that started at this time or later.
            until: Only runs that started before this time.
            method: Only methods that match this pattern.
            state: Only runs in this state or with this outcome.
            before: Only runs that are older than this one.
            limit: Maximum number of runs, 1 to 1000.
            all_projects: Include the runs of other project folders.
            parent: Only runs that this run has called.
            client: Only runs of clients whose name contains this text.
            agent_session: Only runs of this session of an agent.
        """
        stored = self._stored()
        query = _query(since, until, method, state, search, before, limit, all_projects)
        query = query._replace(parent=parent, client=client, agent_session=agent_session)
        async with aclosing(stored.search(ctx.principal, query)) as parts:
            async for found in parts:
                yield RunsFound([record.describe() for record in found.runs], found.stopped_at)

    @method(title="Get run counts", listed=False, read_only=True, open_world=False, control=True)
    async def run_counts(self, since: str | None = None, *, ctx: Context) -> dict[str, int]:
        """Count your runs of this project: `running`, `asking`, `failed` and `total`.

        Runs that are not recorded are counted as long as they are in memory.

        Args:
            since: Earliest start, as in `plexus.history`; all runs without it.
        """
        since_ms = 0 if since is None else parse_time(since)
        runs = self._hub.runs
        if runs.stored is not None and runs.is_recorded:
            return await runs.stored.counts(ctx.principal, since_ms)
        return _counts(runs.list_for(ctx.principal, system=False), since_ms)

    @method(title="Describe a run", read_only=True, open_world=False, control=True)
    async def inspect(self, run: int, *, ctx: Context) -> dict[str, Any]:
        """Return everything that is known about one of your runs, except its output.

        The arguments are as recorded, without secrets. `watchers` are the clients of this process
        that follow the run now.

        Args:
            run: Number of the run.
        """
        stored = self._hub.runs.stored
        record = None if stored is None else await stored.details(run)
        if record is None:
            known = await self._hub.runs.fetch(run, ctx.principal)
            return known.describe() | _watchers(known)
        if record.principal != ctx.principal.name:
            raise unknown_run(run)
        return _details(record) | _watchers(self._hub.runs.peek(run, ctx.principal))

    @method(title="Keep a run", idempotent=True, open_world=False, scope=READ, control=True)
    async def pin(self, run: int, pinned: bool = True, *, ctx: Context) -> bool:
        """Keep one of your recorded runs until it is unpinned. Returns whether it is pinned.

        Args:
            run: Number of the run.
            pinned: False to unpin it, so that it is deleted when its retention has ended.
        """
        await self._record_to_change(run, ctx.principal)
        await self._stored().pin(run, pinned)
        return pinned

    @method(
        title="Delete recorded runs",
        destructive=True,
        idempotent=True,
        open_world=False,
        scope=READ,
        control=True,
    )
    async def delete(self, runs: Annotated[list[int], MaxLen(MAX_DELETED)], *, ctx: Context) -> int:
        """Delete some of your finished runs for good. Returns how many were deleted.

        Their output is removed from the search index and from the files as well.

        Args:
            runs: Numbers of the runs, up to 1000.
        """
        for run in runs:
            await self._record_to_change(run, ctx.principal)
        return await self._stored().delete(runs)

    @method(
        title="Delete expired runs",
        destructive=True,
        idempotent=True,
        open_world=False,
        scope=READ,
        control=True,
    )
    async def prune(self) -> int:
        """Delete all runs whose retention has ended, which also happens automatically.

        Pinned runs stay. Returns how many were deleted.
        """
        return await self._stored().prune()

    def _stored(self) -> StoredRuns:
        stored = self._hub.runs.stored
        if stored is None:
            raise Unsupported("This hub has no run store. Serve the activation with substrate.")
        return stored

    async def _record_to_change(self, run: int, principal: Principal) -> RunRecord:
        """Return the record of a run. Raises NotFound and Denied as `find_run_to_control` does."""
        record = await self._stored().details(run)
        if record is None or record.principal != principal.name:
            raise unknown_run(run)
        if not principal.may(record.scope):
            raise Denied(
                f"{record.method} needs the scope {record.scope!r}, which {principal.name} does "
                "not have",
                data={"scope": record.scope},
            )
        return record


def _query(
    since: str | int | None,
    until: str | int | None,
    method: str | None,
    state: str | None,
    search: str | None,
    before: int | None,
    limit: int,
    all_projects: bool,
) -> RunQuery:
    """Return the query of these parameters. Raises InvalidParams."""
    query: RunQuery = resolve(RUN_QUERY)(
        None if since is None else parse_time(since),
        None if until is None else parse_time(until),
        tuple(pattern.strip() for pattern in (method or "").split(",") if pattern.strip()),
        state,
        search,
        all_projects,
        before,
        limit,
    )
    return query


def _counts(runs: Sequence[Run], since_ms: int) -> dict[str, int]:
    """Count runs in memory that started since a time, as the run store does."""
    states = Counter(run.state for run in runs if wall_ms(run.started_at) >= since_ms)
    failed = sum(
        run.terminal is not None
        and outcome_of(run.terminal)["outcome"] == "failed"
        and wall_ms(run.started_at) >= since_ms
        for run in runs
    )
    running = states["running"] + states["cancelling"]
    asking = states["asking"]
    return {"running": running, "asking": asking, "failed": failed, "total": states.total()}


def recorded_arguments(text: str) -> Any:
    """Return arguments that are recorded as JSON; None if they are not recorded."""
    if not text:
        return None
    try:
        return wire.decode_trusted(text.encode())
    except ValueError:
        return text


def _watchers(run: Run | None) -> dict[str, Any]:
    return {"watchers": sorted(run.watchers.values())} if run is not None and run.watchers else {}


def _details(record: RunRecord) -> dict[str, Any]:
    details = record.describe() | {
        "arguments": recorded_arguments(record.arguments),
        "principal": record.principal,
        "scope": record.scope,
        "recorded": record.recorded,
        "epoch": record.epoch,
        "ended_ms": record.ended_ms,
        "retention_s": record.retention_s,
        "pinned": record.pinned,
        "resource": f"run://{record.run}",
    }
    return {name: value for name, value in details.items() if value is not None}
