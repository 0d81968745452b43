"""What a measurement is: rounds taken in turn, their medians, and the ratio between sides.

All that are compared take turns within one run, and a ratio is the median of the ratios of
neighbouring rounds, so that a machine that becomes slower half-way changes all alike.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = (
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

#: The names of the two sides that every comparison has.
OURS = "ours"
LIMIT = "limit"

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
    mcp_start_rounds: int
    mcp_rounds: int
    mcp_lists: int
    mcp_events: int
    mcp_posts: int
    mcp_streams: int
    mcp_memory_rounds: int
    #: Peers are slower by one or two orders; they do this part of the work, and what one call
    #: or event takes is compared.
    peer_share: float
    arbor_rounds: int
    arbor_commits: int
    arbor_depth: int
    arbor_nodes: int
    chat_rounds: int
    chat_messages: int


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
    mcp_start_rounds=9,
    mcp_rounds=9,
    mcp_lists=5,
    mcp_events=10_000,
    mcp_posts=3_000,
    mcp_streams=1_000,
    mcp_memory_rounds=3,
    peer_share=0.1,
    arbor_rounds=11,
    arbor_commits=500,
    arbor_depth=10_000,
    arbor_nodes=100_000,
    chat_rounds=51,
    chat_messages=10_000,
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
    mcp_start_rounds=1,
    mcp_rounds=2,
    mcp_lists=1,
    mcp_events=1_000,
    mcp_posts=640,
    mcp_streams=100,
    mcp_memory_rounds=1,
    peer_share=0.2,
    arbor_rounds=3,
    arbor_commits=64,
    arbor_depth=1_000,
    arbor_nodes=5_000,
    chat_rounds=3,
    chat_messages=500,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """The median of some rounds, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """Somebody else's program beside ours."""

    value: Summary
    #: Its value as a multiple of the limit's.
    ratio: Summary
    #: Our value as a multiple of its value.
    ours: Summary


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What the figure should stay at or under."""

    #: `ratio` is that to the limit, `value` the figure itself, and the name of a peer the ratio
    #: to that peer.
    of: str
    at_most: float


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    name: str
    unit: str
    ours: Summary
    limit: Summary | None
    ratio: Summary | None
    targets: tuple[Target, ...]
    note: str
    #: By name; None is a peer that is not installed.
    peers: dict[str, Peer | None] = dataclasses.field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether all targets are reached; None if there is none that can be judged."""
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


def take_turns(
    sides: Mapping[str, Callable[[], T]], rounds: int, *, warm: bool = True
) -> dict[str, list[T]]:
    """Take all sides in turn, after one round that does not count, unless nothing is to be warmed.

    The side that begins changes with each round, so that none always follows the same other.
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
    """Take turns where there are only the two."""
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
    """A figure beside its limit, from rounds that were taken in pairs."""
    targets = () if target is None else (target,)
    return compare_all(name, unit, {OURS: ours, LIMIT: limit}, targets, note)


def compare_all(
    name: str,
    unit: str,
    taken: Mapping[str, Sequence[float] | None],
    targets: tuple[Target, ...] = (),
    note: str = "",
) -> Figure:
    """A figure beside its limit and beside peers, from rounds in which all took their turns.

    A peer whose rounds are None is not installed.
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
    """A figure for which a ratio says nothing; the limit, if there is one, is only shown."""
    best = None if limit is None else summarise(limit)
    targets = () if target is None else (target,)
    return Figure(name, unit, summarise(ours), best, None, targets, note)


def _ratio(values: Sequence[float], base: Sequence[float]) -> Summary:
    return summarise([value / best for value, best in zip(values, base, strict=True)])
