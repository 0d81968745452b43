"""What a measurement is: rounds taken in turn, their medians, and the ratio between sides.

Two sides that are compared take turns within one run, and the ratio is the median of the ratios
of neighbouring rounds, so that a machine that becomes slower half-way changes both alike.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

__all__ = (
    "FULL",
    "QUICK",
    "Effort",
    "Figure",
    "Summary",
    "Target",
    "compare",
    "interleave",
    "percentile",
    "single",
    "summarise",
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How much is done for each measure."""

    start_rounds: int
    stream_rounds: int
    stream_events: int
    call_rounds: int
    single_calls: int
    pipelined_calls: int
    memory_rounds: int
    growth_rounds: int
    memory_events: int
    stall_s: float
    cancel_rounds: int


FULL = Effort(
    start_rounds=21,
    stream_rounds=11,
    stream_events=100_000,
    call_rounds=15,
    single_calls=500,
    pipelined_calls=5_000,
    memory_rounds=5,
    growth_rounds=3,
    memory_events=1_000_000,
    stall_s=1.0,
    cancel_rounds=30,
)
#: Enough to see that everything works; too little to be quoted.
QUICK = Effort(
    start_rounds=3,
    stream_rounds=3,
    stream_events=10_000,
    call_rounds=3,
    single_calls=100,
    pipelined_calls=500,
    memory_rounds=1,
    growth_rounds=1,
    memory_events=50_000,
    stall_s=0.2,
    cancel_rounds=3,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """The median of some rounds, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What the figure should stay at or under: its ratio to the limit, or itself."""

    of: Literal["ratio", "value"]
    at_most: float


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    name: str
    unit: str
    ours: Summary
    limit: Summary | None
    ratio: Summary | None
    target: Target | None
    note: str

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        if self.target is None:
            return None
        value = self.ours if self.target.of == "value" else self.ratio
        return value is not None and value.median <= self.target.at_most

    def as_json(self) -> dict[str, Any]:
        """The figure as plain values."""
        return dataclasses.asdict(self) | {"reached": self.reached}


def summarise(values: Sequence[float]) -> Summary:
    """The median and the quartiles of these rounds."""
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = high = values[0]
    return Summary(statistics.median(values), low, high, len(values))


def percentile(values: Sequence[float], per_cent: float) -> float:
    """The value that so many per cent of these do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * per_cent / 100), len(ordered) - 1)]


def interleave(
    ours: Callable[[], T], limit: Callable[[], T], rounds: int
) -> tuple[list[T], list[T]]:
    """Take both sides in turn, after one round each that does not count.

    The side that begins changes with each round, so that neither always follows the other.
    """
    ours(), limit()
    taken: tuple[list[T], list[T]] = ([], [])
    for number in range(rounds):
        if number % 2:
            second = limit()
            first = ours()
        else:
            first = ours()
            second = limit()
        taken[0].append(first)
        taken[1].append(second)
    return taken


def compare(
    name: str,
    unit: str,
    ours: Sequence[float],
    limit: Sequence[float],
    target: Target | None = None,
    note: str = "",
) -> Figure:
    """A figure beside its limit, from rounds that were taken in pairs."""
    ratios = [mine / best for mine, best in zip(ours, limit, strict=True)]
    return Figure(name, unit, summarise(ours), summarise(limit), summarise(ratios), target, note)


def single(
    name: str,
    unit: str,
    ours: Sequence[float],
    target: Target | None = None,
    note: str = "",
    limit: Sequence[float] | None = None,
) -> Figure:
    """A figure for which a ratio says nothing; the limit, if there is one, is only shown."""
    best = None if limit is None else summarise(limit)
    return Figure(name, unit, summarise(ours), best, None, target, note)
