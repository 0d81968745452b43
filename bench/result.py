"""A result of the benchmark, which the documents quote: its figures by name, as typed values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Summary
from bench.servers import ROOT

__all__ = ("LATEST", "Recorded", "Result", "command_of", "updated")

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
    #: The load average of the minute in which the measure ended.
    load: float

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
    #: The measures that failed, with their errors.
    failed: Mapping[str, str]

    @classmethod
    def read(cls, file: Path = LATEST) -> Result:
        """Read a result that `python -m bench --json FILE` has written."""
        content = json.loads(file.read_bytes())
        figures = {each["name"]: _recorded(each) for each in content["figures"]}
        return cls(
            figures,
            content["environment"],
            content["command"],
            content["seconds"],
            content["failed"],
        )


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
        content["load_1_min"],
    )


def command_of(quick: bool, measures: Sequence[str]) -> str:
    """Return the command that runs these measures."""
    parts = ["python", "-m", "bench", *(["--quick"] if quick else []), "--only", *measures]
    return shlex.join(parts)


def updated(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the measures of a newer one, and its other measures as they are.

    The environment is that of the newer run, with the load of the older one if that was higher.
    """
    again = set(new["measures"])
    measures = list(dict.fromkeys((*old["measures"], *new["measures"])))
    before, after = old["environment"], new["environment"]
    loads = {name: max(before[name], after[name]) for name in ("load_1_min", "load_1_min_after")}
    return {
        **new,
        "command": command_of(new["quick"], measures),
        "measures": measures,
        "seconds": round(old["seconds"] + new["seconds"], 1),
        "environment": {**after, **loads},
        "failed": {
            **{name: text for name, text in old["failed"].items() if name not in again},
            **new["failed"],
        },
        "figures": [
            *(each for each in old["figures"] if each["measure"] not in again),
            *new["figures"],
        ],
    }
