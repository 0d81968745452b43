"""Run of the official conformance suites: `python -m tests.conformance.legs`.

A leg is one run of one suite against a separate server, because some scenarios change the list of
tools and others require it to stay the same. No failure is expected, and a warning counts as one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from .node import LATEST, PACKAGES, STABLE, NotInstalled, installed, node
from .serving import serving

__all__ = (
    "LEGS",
    "REVISIONS",
    "Leg",
    "Outcome",
    "leg_of",
    "read_outcome",
    "run_leg",
    "run_legs",
    "scenarios_of",
)

SUITE = "@modelcontextprotocol/conformance"
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
#: The revisions with a requirement set.
REQUIREMENTS = ("2025-11-25", "2026-07-28")
#: Timeout of a leg, and how many run concurrently: they wait for most of their time.
LEG_S = 150.0
CONCURRENT_LEGS = 6

Check = Mapping[str, Any]


class Leg(NamedTuple):
    """One run of one suite."""

    #: Where the suite is installed.
    folder: str
    options: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name of the leg for people."""
        return f"{PACKAGES[self.folder][SUITE]} {' '.join(self.options)}"


def leg_of(revision: str) -> Leg:
    """Return the leg that runs every scenario of a revision.

    A requirement set includes all that `--spec-version` runs, and the extensions.
    """
    if revision in REQUIREMENTS:
        return Leg(LATEST, ("--requirements", revision))
    return Leg(LATEST, ("--suite", "all", "--spec-version", revision))


#: The longest legs first, so that they do not end last.
LEGS = (
    Leg(LATEST, ("--suite", "all")),
    *(leg_of(each) for each in reversed(REVISIONS)),
    Leg(STABLE, ("--suite", "all")),
)


class Outcome(NamedTuple):
    """The result of a leg."""

    leg: Leg
    #: The checks of each scenario; none at all for a scenario that left no record.
    scenarios: Mapping[str, tuple[Check, ...]]
    seconds: float
    #: The output of the suite, reported if no scenario was run.
    printed: str

    @property
    def faults(self) -> list[str]:
        """Every check that failed or warned, and every scenario that left no record."""
        found = []
        for scenario, checks in self.scenarios.items():
            if not checks:
                found.append(f"{scenario}: no record")
            for check in checks:
                if check["status"] in ("FAILURE", "WARNING"):
                    text = check.get("errorMessage") or check["description"]
                    found.append(f"{scenario}: {check['status'].lower()}: {check['id']}: {text}")
        if not self.scenarios:
            found.append(f"no scenario was run:\n{self.printed[-2000:]}")
        return found

    @property
    def line(self) -> str:
        """The leg in one line."""
        counts = Counter(check["status"] for checks in self.scenarios.values() for check in checks)
        faulty = {fault.partition(":")[0] for fault in self.faults}
        passed = sum(scenario not in faulty for scenario in self.scenarios)
        return (
            f"{self.leg.title:<53} {passed:>2}/{len(self.scenarios):<2} scenarios"
            f" {counts['SUCCESS']:>4} passed {counts['FAILURE']:>3} failed"
            f" {counts['WARNING']:>2} warnings {counts['SKIPPED']:>2} skipped"
            f" {self.seconds:>5.1f} s"
        )


def run_leg(leg: Leg, url: str) -> Outcome:
    """Run a leg against a running server. Raises NotInstalled."""
    suite = installed(leg.folder) / "node_modules" / SUITE / "dist" / "index.js"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(node()), str(suite), "server", "--url", url, *leg.options, "-o", folder]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LEG_S,
                check=False,
            )
            printed = done.stdout
        except subprocess.TimeoutExpired as late:
            printed = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
        return Outcome(leg, read_outcome(printed, Path(folder)), time.monotonic() - began, printed)


def scenarios_of(role: str) -> dict[str, tuple[str, ...]]:
    """Return the scenarios for `client` or `server` with their revisions. Raises NotInstalled.

    Those of extensions have no revision.
    """
    suite = installed(LATEST) / "node_modules" / SUITE / "dist" / "index.js"
    command = [str(node()), str(suite), "list", f"--{role}"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=LEG_S, check=True)
    found = re.findall(r"^ +- (\S+) \[(.*)\]$", listed.stdout, re.M)
    return {
        name: tuple(each for each in named.split(",") if each in REVISIONS) for name, named in found
    }


def read_outcome(printed: str, folder: Path) -> dict[str, tuple[Check, ...]]:
    """Return the recorded checks of every scenario that the suite announced."""
    scenarios: dict[str, tuple[Check, ...]] = dict.fromkeys(
        re.findall(r"^=== Running scenario: (\S+) ===$", printed, re.M), ()
    )
    for record in sorted(folder.glob("server-*/checks.json")):
        # The rest of the folder's name is the time.
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", record.parent.name)
        scenarios[name.removeprefix("server-")] = tuple(json.loads(record.read_text()))
    return scenarios


def run_legs(legs: Iterable[Leg] = LEGS) -> Iterator[Outcome]:
    """Run legs concurrently, and yield each when it is done. Raises NotInstalled."""
    for folder in PACKAGES:
        installed(folder)

    def alone(leg: Leg) -> Outcome:
        with serving() as url:
            return run_leg(leg, url)

    with ThreadPoolExecutor(CONCURRENT_LEGS) as pool:
        for future in as_completed([pool.submit(alone, leg) for leg in legs]):
            yield future.result()


def main() -> int:
    """Run every leg, or those whose title contains the argument, and print the outcomes."""
    wanted = " ".join(sys.argv[1:])
    failed = False
    try:
        for outcome in run_legs(leg for leg in LEGS if wanted in leg.title):
            print(outcome.line, flush=True)  # noqa: T201
            for fault in outcome.faults:
                failed = True
                print(f"    {fault}", flush=True)  # noqa: T201
    except NotInstalled as error:
        sys.exit(str(error))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
