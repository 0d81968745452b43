"""A result of the benchmark, which the documents quote: its figures by name, as typed values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Summary
from bench.servers import ROOT

__all__ = ("LATEST", "Recorded", "Result")

LATEST = ROOT / "bench" / "results" / "latest.json"


class Recorded(NamedTuple):
    """A figure of a run."""

    name: str
    unit: str
    #: The measure that made it; `python -m bench --only MEASURE` repeats it.
    measure: str
    ours: Summary
    limit: Summary | None
    ratio: Summary | None
    #: The targets: "ratio", "value" or a peer, with the upper bound.
    targets: tuple[tuple[str, float], ...]
    #: The installed peers by name, as multiples of the limit.
    peers: Mapping[str, Summary]
    reached: bool | None

    @property
    def command(self) -> str:
        """The command that repeats the measure."""
        return f"python -m bench --only {self.measure}"


class Result(NamedTuple):
    """A run of the benchmark."""

    figures: Mapping[str, Recorded]
    environment: Mapping[str, Any]
    command: str
    seconds: float

    @classmethod
    def read(cls, file: Path = LATEST) -> Result:
        """Read a result that `python -m bench --json FILE` has written."""
        content = json.loads(file.read_bytes())
        figures = {each["name"]: _recorded(each) for each in content["figures"]}
        return cls(figures, content["environment"], content["command"], content["seconds"])


def _recorded(content: Mapping[str, Any]) -> Recorded:
    return Recorded(
        content["name"],
        content["unit"],
        content["measure"],
        Summary(**content["ours"]),
        Summary(**content["limit"]) if content["limit"] else None,
        Summary(**content["ratio"]) if content["ratio"] else None,
        tuple((each["of"], each["at_most"]) for each in content["targets"]),
        {
            name: Summary(**peer["ratio"])
            for name, peer in content["peers"].items()
            if peer is not None
        },
        content["reached"],
    )
