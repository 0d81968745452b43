"""`/metrics`: what the server does, in numbers, for Prometheus.

A run costs one listener that adds to a few numbers; everything else is done when somebody asks,
and off the loop. The library that knows the text format is imported then too. The label `method`
is bounded by what is registered, for a run has a method that exists.
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

if TYPE_CHECKING:  # imported when somebody asks
    from prometheus_client import Metric

__all__ = ("Metrics",)

#: Bounds of durations in seconds: from a call that is answered at once to one that runs for as
#: long as it may.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0)
OUTCOMES: Final = ("complete", "error", "cancelled")

#: A number that is looked up when somebody asks; None if it is not known.
Gauge = Callable[[], float | None]


class MethodNumbers:
    """What the runs of one method came to."""

    __slots__ = ("buckets", "bytes", "events", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        #: How many took so long and no longer, and at the end how many took longer than all.
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.events = 0
        self.bytes = 0


class Numbers(NamedTuple):
    """Everything that is told, as it was at one moment."""

    version: str
    methods: dict[str, MethodNumbers]
    in_flight: int
    abandoned: int
    refused: dict[str, int]
    gauges: dict[str, tuple[str, float]]


class Metrics:
    """Counts the runs of a hub, and answers `GET /metrics`."""

    def __init__(self, hub: Plexus, refusals: Refusals) -> None:
        self._hub = hub
        #: Those that are counted here too.
        self.refusals = refusals
        self._methods: dict[str, MethodNumbers] = {}
        self._gauges: dict[str, tuple[str, Gauge]] = {}
        self.add_gauge("store_bytes", "Size of the file that trees are kept in.", self._store)
        hub.runs.on_end(self._ended)

    def add_gauge(self, name: str, description: str, gauge: Gauge) -> None:
        """Tell this number too."""
        self._gauges[name] = description, gauge

    def _ended(self, run: Run) -> None:
        numbers = self._methods.get(run.method)
        if numbers is None:
            numbers = self._methods[run.method] = MethodNumbers()
        assert run.terminal is not None, "it has ended"
        assert run.ended_at is not None, "it has ended"
        seconds = run.ended_at - run.started_at
        log = run.log
        numbers.outcomes[run.terminal.type] += 1
        numbers.buckets[bisect_left(BUCKETS, seconds)] += 1
        numbers.seconds += seconds
        numbers.events += log.last
        numbers.bytes += log.total

    def _store(self) -> float | None:
        loaded = (node.activation for node in self._hub.nodes() if node.is_loaded)
        stores = (each for each in loaded if isinstance(each, Arbor))
        return next((arbor.size() for arbor in stores), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - a GET has no body
        """Answer with all numbers as they are now."""
        if scope["method"] not in ("GET", "HEAD"):
            await send_wrong_method(send, "GET")
            return
        accept = header(scope, b"accept").decode("latin-1")
        body, content_type = await asyncio.to_thread(_exposed, self._numbers(), accept)
        await send_bytes(send, 200, body, content_type.encode())

    def _numbers(self) -> Numbers:
        runs = self._hub.runs
        looked_up = {name: (words, look()) for name, (words, look) in self._gauges.items()}
        return Numbers(
            version=self._hub.version,
            methods={name: _copy(numbers) for name, numbers in self._methods.items()},
            in_flight=len(runs.running()),
            abandoned=runs.counts()["abandoned"],
            refused=dict(self.refusals.counts),
            gauges={
                name: (words, value)
                for name, (words, value) in looked_up.items()
                if value is not None
            },
        )


def _copy(numbers: MethodNumbers) -> MethodNumbers:
    copied = MethodNumbers()
    copied.outcomes = numbers.outcomes.copy()
    copied.buckets = numbers.buckets.copy()
    copied.seconds = numbers.seconds
    copied.events = numbers.events
    copied.bytes = numbers.bytes
    return copied


# --- in another thread ------------------------------------------------------------------------


def _exposed(numbers: Numbers, accept: str) -> tuple[bytes, str]:
    """The numbers in the format that the client takes, and that format's name."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collected(_families(numbers)))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collected:
    """What was collected already, in the form that the library asks for it."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _families(numbers: Numbers) -> Iterator[Metric]:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    def counter(name: str, words: str, labels: list[str], samples: Iterable[Any]) -> Metric:
        family = CounterMetricFamily(f"substrate_{name}", words, labels=labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    methods = sorted(numbers.methods.items())
    yield InfoMetricFamily("substrate", "This server.", value={"version": numbers.version})
    yield counter(
        "runs",
        "Runs that have ended.",
        ["method", "outcome"],
        (([name, how], count) for name, each in methods for how, count in each.outcomes.items()),
    )
    events = (([name], each.events) for name, each in methods)
    yield counter("run_events", "Events of runs, terminals included.", ["method"], events)
    sizes = (([name], each.bytes) for name, each in methods)
    yield counter("run_bytes", "Bytes of those events.", ["method"], sizes)
    durations = HistogramMetricFamily(
        "substrate_run_duration_seconds", "How long runs took.", labels=["method"]
    )
    for name, each in methods:
        bounds = [*map(str, BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(each.buckets), strict=True))
        durations.add_metric([name], buckets, each.seconds)
    yield durations
    yield GaugeMetricFamily("substrate_runs_in_flight", "Runs under way.", numbers.in_flight)
    yield CounterMetricFamily(
        "substrate_runs_abandoned", "Runs that ignored being cancelled.", numbers.abandoned
    )
    refused = (([reason], count) for reason, count in sorted(numbers.refused.items()))
    yield counter("refused", "Requests and calls that were refused.", ["reason"], refused)
    for name, (words, value) in numbers.gauges.items():
        yield GaugeMetricFamily(f"substrate_{name}", words, value)
