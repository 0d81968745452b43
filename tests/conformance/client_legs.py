"""Run of the client scenarios of the official suite: `python -m tests.conformance.client_legs`.

The suite starts `client_program` for every scenario, and is the server of it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .legs import REVISIONS, SUITE, Check, Leg, Outcome, leg_of
from .node import LATEST, REPOSITORY, NotInstalled, installed, node

__all__ = ("CLIENT_LEGS", "UNDECLARED", "run_client_leg", "run_client_legs")

CLIENT_LEGS = (
    Leg(LATEST, ("--suite", "all")),
    *(leg_of(each) for each in reversed(REVISIONS)),
)
#: Scenarios of extensions that the client does not declare. They fail, or skip all of their checks.
UNDECLARED = {
    "auth/dpop": "DPoP: tokens that are bound to a key of the client",
    "auth/dpop-nonce": "DPoP",
    "auth/wif-jwt-bearer": "workload identity: an assertion of the platform instead of a secret",
    "sep-2640-client-no-prefetch": "skills",
    "sep-2640-client-verify-digest": "skills",
    "sep-2640-client-verify-size": "skills",
    "sep-2640-client-verify-frontmatter": "skills",
}
#: The program that the suite starts.
PROGRAM = "tests.conformance.client_program"
#: Timeout of a leg. The suite starts all clients of a leg together.
LEG_S = 280.0
SCENARIO_MS = 120_000


def run_client_leg(leg: Leg) -> Outcome:
    """Run a leg. Raises NotInstalled."""
    suite = installed(leg.folder) / "node_modules" / SUITE / "dist" / "index.js"
    program = f"{shlex.quote(sys.executable)} -m {PROGRAM}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(node()), str(suite), "client", "--command", program, *leg.options]
        command += ["--timeout", str(SCENARIO_MS), "-o", folder]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LEG_S,
                check=False,
            )
            printed = done.stdout
        except subprocess.TimeoutExpired as late:
            printed = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
        scenarios = read_client_outcome(printed, Path(folder))
        return Outcome(leg, scenarios, time.monotonic() - began, printed)


def read_client_outcome(printed: str, folder: Path) -> dict[str, tuple[Check, ...]]:
    """Return the recorded checks of every scenario that the suite announced."""
    scenarios: dict[str, tuple[Check, ...]] = dict.fromkeys(
        re.findall(r"^Starting scenario: (\S+)$", printed, re.M), ()
    )
    for record in sorted(folder.rglob("checks.json")):
        name = str(record.parent.relative_to(folder))
        # The rest of the folder's name is the time.
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", name)
        scenarios[name] = tuple(json.loads(record.read_text()))
    return scenarios


def faults_of(outcome: Outcome) -> list[str]:
    """Return the faults of scenarios whose extension is declared."""
    return [each for each in outcome.faults if each.partition(": ")[0] not in UNDECLARED]


def run_client_legs() -> Iterator[Outcome]:
    """Run the legs, one after the other: each starts many processes. Raises NotInstalled."""
    for leg in CLIENT_LEGS:
        yield run_client_leg(leg)


def main() -> int:
    """Run every leg, and print the outcomes."""
    failed = False
    try:
        for outcome in run_client_legs():
            print(outcome.line, flush=True)  # noqa: T201
            for fault in outcome.faults:
                scenario = fault.partition(": ")[0]
                known = UNDECLARED.get(scenario)
                failed = failed or known is None
                note = "" if known is None else f" (not declared: {known})"
                print(f"    {fault}{note}", flush=True)  # noqa: T201
    except NotInstalled as error:
        sys.exit(str(error))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
