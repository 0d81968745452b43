"""The `health` activation: status, versions, activations, runs and limits of the server."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from plexus import Activation, Context, Event, method
from plexus.registry.activation_tree import Node
from plexus.registry.selection import OFF
from plexus.runtime.changes import Notice
from plexus.runtime.hub import Plexus
from plexus.runtime.load_history import DAY_S

__all__ = ("Health",)

#: Timeout of the health check of an activation.
PROBE_S = 5.0
#: How long the checks of activations are shared with later calls. Some read a disk in a thread, and
#: 64 clients that call again and again would start one after the other: with this, such a call
#: takes 0.7 of the CPU time.
SHARED_S = 0.05


@dataclasses.dataclass(frozen=True)
class Probe:
    """The health of one activation."""

    namespace: str
    version: str
    ok: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class SkippedPlugin:
    """A plugin that was not loaded."""

    source: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Report:
    """The state of the server at one moment."""

    status: Literal["healthy", "degraded"]
    uptime_s: float
    versions: dict[str, str]
    activations: list[Probe]
    runs: dict[str, int]
    limits: dict[str, Any]
    #: Notices for the operator, such as files of the project folder that were skipped.
    notices: list[Notice]
    #: Plugins that were not loaded, with the reasons.
    skipped: list[SkippedPlugin]
    #: The process and its run store: `pid`, `project`, `address` and `store`, as far as known.
    server: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The load of the server over time.

    A sample has `at_ms`, `cpu` (fraction of one core), `rss_bytes`, `runs_active`, and
    `calls_per_s` and `events_per_s` since the sample before it.
    """

    samples: list[dict[str, float]]


class Status(Event):
    """The state of the server at one moment."""

    status: Literal["healthy", "degraded"]
    uptime_s: float
    versions: dict[str, str]
    activations: list[Probe]
    runs: dict[str, int]
    limits: dict[str, Any]
    notices: list[Notice]
    skipped: list[SkippedPlugin]
    server: dict[str, Any]

    def as_text(self) -> str:
        return self.as_line() + "\n"

    def as_line(self) -> str:
        running = self.runs.get("running", 0)
        return f"{self.status}, up {self.uptime_s:.0f} s, {running} running"


class Health(Activation):
    """Health of the server."""

    namespace = "health"
    version = "1.0.0"

    def __init__(self, started: float | None = None) -> None:
        """Set the start time of the server on the monotonic clock; defaults to now."""
        self._started = time.monotonic() if started is None else started
        self._checking: asyncio.Task[list[Probe]] | None = None
        #: The activations of the last check, and when it ended.
        self._checked: Sequence[Node] = ()
        self._checked_at = 0.0

    @method(title="Check server health", read_only=True, open_world=False, control=True)
    async def check(self, *, ctx: Context) -> Report:
        """Report server health: status, uptime, versions, activations, runs, limits and notices."""
        return await self._report(ctx)

    @method(
        title="Watch server health",
        deadline_s=None,
        read_only=True,
        open_world=False,
        audience="client",
    )
    async def watch(self, interval: float = 5.0, *, ctx: Context) -> AsyncIterator[Status]:
        """Stream server health reports at an interval until cancelled.

        Args:
            interval: Seconds between reports, at least 0.1.
        """
        with ctx.plexus.load_history.sampling():
            while True:
                yield Status(**vars(await self._report(ctx)))
                await asyncio.sleep(max(interval, 0.1))

    @method(
        title="Get the load of the server over time",
        read_only=True,
        open_world=False,
        control=True,
        audience="client",
    )
    async def history(
        self, since_s: Annotated[float, Ge(0), Le(DAY_S)] = 3600.0, *, ctx: Context
    ) -> LoadReport:
        """Return samples of the load: every 10 seconds for an hour, every 5 minutes for a day.

        Samples are taken while the server serves HTTP, and while a client watches its health.

        Args:
            since_s: Age of the oldest sample in seconds, up to 86400.
        """
        samples = ctx.plexus.load_history.since(since_s)
        return LoadReport([each._asdict() for each in samples])

    async def close(self) -> None:
        """Stop a check in progress."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])

    async def _probes(self, nodes: Sequence[Node]) -> list[Probe]:
        """Return the health of each activation. Calls within `SHARED_S` share one check.

        Some checks read a disk or a database; many load balancers must not multiply that.
        """
        checking = self._checking
        if checking is None or (checking.done() and not self._is_fresh(nodes)):
            checking = self._checking = asyncio.create_task(self._check(nodes))
        # A caller that is cancelled does not end the check of the others.
        return list(await asyncio.shield(checking))

    def _is_fresh(self, nodes: Sequence[Node]) -> bool:
        """Return whether the last check was of these activations, a moment ago."""
        return time.monotonic() - self._checked_at < SHARED_S and nodes == self._checked

    async def _check(self, nodes: Sequence[Node]) -> list[Probe]:
        probes = await _check_all(nodes)
        self._checked, self._checked_at = nodes, time.monotonic()
        return probes

    async def _report(self, ctx: Context) -> Report:
        probes = await self._probes(list(ctx.plexus.nodes()))
        probes += [
            Probe(namespace, ctx.plexus.version, reason == OFF, f"switched off: {reason}")
            for namespace, reason in ctx.plexus.switched_off.items()
        ]
        return Report(
            status="healthy" if all(probe.ok for probe in probes) else "degraded",
            uptime_s=round(time.monotonic() - self._started, 3),
            versions=_versions(ctx.plexus.version),
            activations=probes,
            runs=ctx.plexus.runs.counts() | _threads(ctx.plexus),
            limits=ctx.plexus.limits.as_dict(),
            notices=list(ctx.plexus.notices),
            skipped=[SkippedPlugin(*each) for each in ctx.plexus.skipped.items()],
            server=ctx.plexus.describe_server(),
        )


def _threads(hub: Plexus) -> dict[str, int]:
    """Count the worker threads of plain functions, and those whose calls were abandoned."""
    counts = hub.threads.counts()
    return {"worker_threads": counts.busy, "abandoned_threads": counts.abandoned}


async def _check_all(nodes: Sequence[Node]) -> list[Probe]:
    """Return the health of each activation, checked concurrently.

    Activations without a health check need no task: load balancers call this frequently.
    """
    probes = {node.path: Probe(node.path, node.version, True, "ok") for node in nodes}
    checked = await asyncio.gather(
        *(_probe(node) for node in nodes if "check_health" in node.hooks)
    )
    return list((probes | {probe.namespace: probe for probe in checked}).values())


async def _probe(node: Node) -> Probe:
    try:
        async with asyncio.timeout(PROBE_S):
            detail, ok = await node.activation.check_health(), True
    except TimeoutError:
        detail, ok = f"health check timed out after {PROBE_S:g} s", False
    # Any exception of a health check is its result.
    except Exception as error:  # noqa: BLE001
        detail, ok = str(error) or type(error).__name__, False
    return Probe(node.path, node.version, ok, detail)


def _versions(ours: str) -> dict[str, str]:
    import apsw  # not at module level: a start that does not use storage must not import it

    return {
        "substrate": ours,
        "python": platform.python_version(),
        # The library in apsw, which stores use; Python has its own copy.
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
    }
