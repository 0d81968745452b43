"""Every leg of the official conformance suites passes, without a failure and without a warning."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .legs import LEGS, Leg, Outcome, leg_of, read_outcome, run_leg, run_legs, scenarios_of
from .node import LATEST, PACKAGES, NotInstalled, installed

#: npm may have to install the suites first, and the first test runs all legs.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def suites() -> None:
    try:
        for folder in PACKAGES:
            installed(folder)
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def outcomes(suites: None) -> dict[Leg, Outcome]:  # noqa: ARG001
    return {outcome.leg: outcome for outcome in run_legs()}


@pytest.mark.parametrize("leg", LEGS, ids=lambda leg: leg.title)
def test_a_leg_has_no_failure_and_no_warning(leg: Leg, outcomes: dict[Leg, Outcome]) -> None:
    outcome = outcomes[leg]
    assert outcome.faults == [], outcome.line


def test_the_legs_run_every_scenario_at_every_revision_that_has_it(
    outcomes: dict[Leg, Outcome],
) -> None:
    listed = scenarios_of("server")
    assert listed.keys() == outcomes[LEGS[0]].scenarios.keys()
    for name, revisions in listed.items():
        for revision in revisions:
            assert name in outcomes[leg_of(revision)].scenarios


# --- the harness itself --------------------------------------------------------------------------


@pytest.fixture
def empty_server() -> Iterator[str]:
    """A server that answers every request with 404."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_error(404)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            thread.join(10)


def test_a_server_without_anything_fails_every_scenario(
    suites: None,  # noqa: ARG001
    empty_server: str,
) -> None:
    outcome = run_leg(Leg(LATEST, ("--suite", "all", "--spec-version", "2025-06-18")), empty_server)
    assert len(outcome.scenarios) > 20
    assert {fault.partition(":")[0] for fault in outcome.faults} == set(outcome.scenarios)
    assert f" 0/{len(outcome.scenarios)} scenarios" in outcome.line


def test_a_suite_that_does_not_start_is_a_fault(suites: None, empty_server: str) -> None:  # noqa: ARG001
    outcome = run_leg(Leg(LATEST, ("--suite", "none-such")), empty_server)
    assert outcome.scenarios == {}
    assert "Unknown suite: none-such" in outcome.faults[0]


def recorded(folder: Path, scenario: str, *statuses: str) -> None:
    place = folder / f"server-{scenario}-2026-01-02T03-04-05-678Z"
    place.mkdir()
    checks = [{"id": "some-check", "description": "It works", "status": each} for each in statuses]
    (place / "checks.json").write_text(json.dumps(checks))


def test_warnings_and_missing_records_are_faults(tmp_path: Path) -> None:
    recorded(tmp_path, "ping", "SUCCESS", "INFO", "SKIPPED")
    recorded(tmp_path, "tools-list", "SUCCESS", "WARNING")
    printed = "".join(f"\n=== Running scenario: {n} ===\n" for n in ("ping", "tools-list", "gone"))
    outcome = Outcome(LEGS[0], read_outcome(printed, tmp_path), 1.25, printed)
    assert outcome.faults == [
        "tools-list: warning: some-check: It works",
        "gone: no record",
    ]
    line = " ".join(outcome.line.split())
    assert line.endswith("1/3 scenarios 2 passed 0 failed 1 warnings 1 skipped 1.2 s")
