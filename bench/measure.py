"""Measurements: rounds taken in turn, their medians, and the ratios between sides.

All sides of a comparison take turns within one run. A ratio is the median of the ratios of
neighbouring rounds, so a machine that slows down during the run affects all sides equally.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = (
    "ASGI",
    "FULL",
    "LIMIT",
    "OURS",
    "QUICK",
    "Effort",
    "Figure",
    "Peer",
    "Summary",
    "Target",
    "compare",
    "compare_all",
    "interleave",
    "percentile",
    "single",
    "summarise",
    "take_turns",
)

#: Names of the two sides of every comparison.
OURS = "ours"
LIMIT = "limit"
#: Name of the contender without our code: bare ASGI on uvicorn.
ASGI = "asgi"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """Amount of work for each measure."""

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
    mcp_start_rounds: int
    mcp_rounds: int
    mcp_lists: int
    mcp_events: int
    mcp_posts: int
    mcp_streams: int
    mcp_memory_rounds: int
    ticks: int
    #: Share of the work that peers do, because they are one or two orders of magnitude slower. The
    #: time of one call or event is compared.
    peer_share: float
    arbor_rounds: int
    arbor_commits: int
    arbor_depth: int
    arbor_nodes: int
    chat_rounds: int
    chat_messages: int
    recorded_rounds: int
    recorded_events: int
    stop_rounds: int
    idle_s: float
    analysis_rounds: int
    analysed_files: int
    history_commits: int


FULL = Effort(
    start_rounds=21,
    stream_rounds=7,
    stream_events=100_000,
    call_rounds=9,
    single_calls=500,
    pipelined_calls=5_000,
    memory_rounds=5,
    growth_rounds=3,
    memory_events=1_000_000,
    stall_s=1.0,
    cancel_rounds=30,
    mcp_start_rounds=5,
    mcp_rounds=5,
    mcp_lists=5,
    mcp_events=10_000,
    mcp_posts=3_000,
    mcp_streams=400,
    mcp_memory_rounds=3,
    ticks=200,
    peer_share=0.1,
    arbor_rounds=11,
    arbor_commits=500,
    arbor_depth=10_000,
    arbor_nodes=100_000,
    chat_rounds=51,
    chat_messages=10_000,
    recorded_rounds=21,
    recorded_events=500,
    stop_rounds=15,
    idle_s=20.0,
    analysis_rounds=3,
    analysed_files=2_000,
    history_commits=100_000,
)
#: Enough to check that everything works, too little to quote.
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
    mcp_start_rounds=1,
    mcp_rounds=2,
    mcp_lists=1,
    mcp_events=1_000,
    mcp_posts=640,
    mcp_streams=100,
    mcp_memory_rounds=1,
    ticks=20,
    peer_share=0.2,
    arbor_rounds=3,
    arbor_commits=64,
    arbor_depth=1_000,
    arbor_nodes=5_000,
    chat_rounds=3,
    chat_messages=500,
    recorded_rounds=3,
    recorded_events=20,
    stop_rounds=2,
    idle_s=1.0,
    analysis_rounds=1,
    analysed_files=60,
    history_commits=500,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Median and quartiles of some rounds."""

    median: float
    low: float
    high: float
    rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """Result of a program on another framework."""

    value: Summary
    #: Its value as a multiple of the limit's.
    ratio: Summary
    #: Our value as a multiple of its value.
    ours: Summary


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Upper bound for a figure."""

    #: `ratio` is the ratio to the limit, `value` the figure itself, and the name of a peer the
    #: ratio to that peer.
    of: str
    at_most: float


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A row of the result."""

    name: str
    unit: str
    ours: Summary
    limit: Summary | None
    ratio: Summary | None
    targets: tuple[Target, ...]
    note: str
    #: Peers by name; None if a peer is not installed.
    peers: dict[str, Peer | None] = dataclasses.field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether all targets are reached; None if no target can be evaluated."""
        values = [(target, self._judged(target)) for target in self.targets]
        verdicts = [value.median <= target.at_most for target, value in values if value]
        return all(verdicts) if verdicts else None

    def _judged(self, target: Target) -> Summary | None:
        if target.of == "value":
            return self.ours
        if target.of == "ratio":
            return self.ratio
        peer = self.peers.get(target.of)
        return None if peer is None else peer.ours

    def as_json(self) -> dict[str, Any]:
        """Return the figure as plain values."""
        return dataclasses.asdict(self) | {"reached": self.reached}


def summarise(values: Sequence[float]) -> Summary:
    """Return the median and the quartiles of some rounds."""
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = high = values[0]
    return Summary(statistics.median(values), low, high, len(values))


def percentile(values: Sequence[float], per_cent: float) -> float:
    """Return a percentile of the values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * per_cent / 100), len(ordered) - 1)]


def take_turns(
    sides: Mapping[str, Callable[[], T]], rounds: int, *, warm: bool = True
) -> dict[str, list[T]]:
    """Run all sides in turn, after an unrecorded warm-up round if `warm`.

    The first side changes with each round, so that no side always follows the same other side.
    """
    names = list(sides)
    if warm:
        for name in names:
            sides[name]()
    taken: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(sides[name]())
    return taken


def interleave(
    ours: Callable[[], T], limit: Callable[[], T], rounds: int
) -> tuple[list[T], list[T]]:
    """Take turns between the two sides of a comparison."""
    taken = take_turns({OURS: ours, LIMIT: limit}, rounds)
    return taken[OURS], taken[LIMIT]


def compare(
    name: str,
    unit: str,
    ours: Sequence[float],
    limit: Sequence[float],
    target: Target | None = None,
    note: str = "",
) -> Figure:
    """Return a figure relative to its limit, from paired rounds."""
    targets = () if target is None else (target,)
    return compare_all(name, unit, {OURS: ours, LIMIT: limit}, targets, note)


def compare_all(
    name: str,
    unit: str,
    taken: Mapping[str, Sequence[float] | None],
    targets: tuple[Target, ...] = (),
    note: str = "",
) -> Figure:
    """Return a figure relative to its limit and its peers, from rounds taken in turn.

    The rounds of a peer are None if it is not installed.
    """
    ours, limit = taken[OURS], taken[LIMIT]
    assert ours is not None
    assert limit is not None
    peers = {
        peer: None
        if values is None
        else Peer(summarise(values), _ratio(values, limit), _ratio(ours, values))
        for peer, values in taken.items()
        if peer not in (OURS, LIMIT)
    }
    ratio = _ratio(ours, limit)
    return Figure(name, unit, summarise(ours), summarise(limit), ratio, targets, note, peers)


def single(
    name: str,
    unit: str,
    ours: Sequence[float],
    target: Target | None = None,
    note: str = "",
    limit: Sequence[float] | None = None,
) -> Figure:
    """Return a figure without a ratio. The limit, if any, is only shown."""
    best = None if limit is None else summarise(limit)
    targets = () if target is None else (target,)
    return Figure(name, unit, summarise(ours), best, None, targets, note)


def _ratio(values: Sequence[float], base: Sequence[float]) -> Summary:
    return summarise([value / best for value, best in zip(values, base, strict=True)])
