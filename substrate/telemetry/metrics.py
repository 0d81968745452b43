"""`/metrics`: counters and gauges of the server in the Prometheus format.

A run costs one callback that updates a few counters. Everything else happens at a scrape, in a
worker thread; the Prometheus library is imported at the first one. The label `method` is bounded by
the registered methods, because every run has one of them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.types import Receive, Scope, Send

from activations.arbor import Arbor
from plexus.runtime.hub import Plexus
from plexus.runtime.run import Run
from substrate.server.asgi import header, send_bytes, send_wrong_method
from substrate.telemetry.refusals import Refusals

if TYPE_CHECKING:  # imported at run time by the first scrape
    from prometheus_client import Metric

__all__ = ("Metrics",)

#: Upper bounds of the duration histogram in seconds, from an immediate answer to the longest run.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0)
OUTCOMES: Final = ("complete", "error", "cancelled")

#: Returns a value at each scrape; None if it is unknown.
Gauge = Callable[[], float | None]


class MethodCounters:
    """Counters of the runs of one method."""

    __slots__ = ("buckets", "bytes", "events", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        #: Runs per bucket of the histogram. The last one counts runs above all bounds.
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.events = 0
        self.bytes = 0


class Snapshot(NamedTuple):
    """A consistent copy of all values for one scrape."""

    version: str
    methods: dict[str, MethodCounters]
    in_flight: int
    abandoned: int
    refused: dict[str, int]
    gauges: dict[str, tuple[str, float]]


class Metrics:
    """Counts the runs of a hub, and answers `GET /metrics`."""

    def __init__(self, hub: Plexus, refusals: Refusals) -> None:
        self._hub = hub
        #: The refusals that are exported as well.
        self.refusals = refusals
        self._methods: dict[str, MethodCounters] = {}
        self._gauges: dict[str, tuple[str, Gauge]] = {}
        self.add_gauge("store_bytes", "Size of the database file of trees.", self._store_bytes)
        hub.runs.on_end(self._on_end)

    def add_gauge(self, name: str, description: str, gauge: Gauge) -> None:
        """Export another value."""
        self._gauges[name] = description, gauge

    def _on_end(self, run: Run) -> None:
        counters = self._methods.get(run.method)
        if counters is None:
            counters = self._methods[run.method] = MethodCounters()
        assert run.terminal is not None, "the run has ended"
        assert run.ended_at is not None, "the run has ended"
        seconds = run.ended_at - run.started_at
        log = run.log
        counters.outcomes[run.terminal.type] += 1
        counters.buckets[bisect_left(BUCKETS, seconds)] += 1
        counters.seconds += seconds
        counters.events += log.last
        counters.bytes += log.total

    def _store_bytes(self) -> float | None:
        loaded = (node.activation for node in self._hub.nodes() if node.is_loaded)
        stores = (each for each in loaded if isinstance(each, Arbor))
        return next((arbor.size() for arbor in stores), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - a GET has no body
        """Send the current values."""
        if scope["method"] not in ("GET", "HEAD"):
            await send_wrong_method(send, "GET")
            return
        accept = header(scope, b"accept").decode("latin-1")
        body, content_type = await asyncio.to_thread(_render, self._snapshot(), accept)
        await send_bytes(send, 200, body, content_type.encode())

    def _snapshot(self) -> Snapshot:
        runs = self._hub.runs
        values = {name: (description, read()) for name, (description, read) in self._gauges.items()}
        return Snapshot(
            version=self._hub.version,
            methods={name: _copy(counters) for name, counters in self._methods.items()},
            in_flight=len(runs.running()),
            abandoned=runs.counts()["abandoned"],
            refused=dict(self.refusals.counts),
            gauges={
                name: (description, value)
                for name, (description, value) in values.items()
                if value is not None
            },
        )


def _copy(counters: MethodCounters) -> MethodCounters:
    copied = MethodCounters()
    copied.outcomes = counters.outcomes.copy()
    copied.buckets = counters.buckets.copy()
    copied.seconds = counters.seconds
    copied.events = counters.events
    copied.bytes = counters.bytes
    return copied


# --- in another thread ------------------------------------------------------------------------


def _render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """Return the values in the format that the client accepts, and its content type."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_StaticCollector(_families(snapshot)))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _StaticCollector:
    """A collector of metrics that were created in advance."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _families(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    def counter(name: str, description: str, labels: list[str], samples: Iterable[Any]) -> Metric:
        family = CounterMetricFamily(f"substrate_{name}", description, labels=labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    methods = sorted(snapshot.methods.items())
    yield InfoMetricFamily("substrate", "This server.", value={"version": snapshot.version})
    yield counter(
        "runs",
        "Runs that have ended.",
        ["method", "outcome"],
        (([name, how], count) for name, each in methods for how, count in each.outcomes.items()),
    )
    events = (([name], each.events) for name, each in methods)
    yield counter("run_events", "Events of runs, including terminals.", ["method"], events)
    sizes = (([name], each.bytes) for name, each in methods)
    yield counter("run_bytes", "Encoded bytes of the events of runs.", ["method"], sizes)
    durations = HistogramMetricFamily(
        "substrate_run_duration_seconds", "Duration of runs.", labels=["method"]
    )
    for name, each in methods:
        bounds = [*map(str, BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(each.buckets), strict=True))
        durations.add_metric([name], buckets, each.seconds)
    yield durations
    yield GaugeMetricFamily("substrate_runs_in_flight", "Runs in progress.", snapshot.in_flight)
    yield CounterMetricFamily(
        "substrate_runs_abandoned", "Runs that ignored their cancellation.", snapshot.abandoned
    )
    refused = (([reason], count) for reason, count in sorted(snapshot.refused.items()))
    yield counter("refused", "Refused requests and calls.", ["reason"], refused)
    for name, (description, value) in snapshot.gauges.items():
        yield GaugeMetricFamily(f"substrate_{name}", description, value)
