"""Every client scenario of the official suite passes, but those of extensions that are named."""

from __future__ import annotations

import functools

import pytest

from . import client_legs
from .client_legs import CLIENT_LEGS, UNDECLARED, faults_of, run_client_leg
from .legs import Leg, Outcome, leg_of, scenarios_of
from .node import LATEST, NotInstalled, installed

#: npm may have to install the suite first, and the suite starts many processes at once.
pytestmark = pytest.mark.timeout(900)
#: How many scenarios a leg has: a suite that runs fewer has passed nothing.
COUNTS = {
    "--suite all": 48,
    "--requirements 2026-07-28": 39,
    "--requirements 2025-11-25": 25,
    "--suite all --spec-version 2025-06-18": 5,
    "--suite all --spec-version 2025-03-26": 2,
}


@pytest.fixture(scope="module")
def suite() -> None:
    try:
        installed(LATEST)
    except NotInstalled as error:
        pytest.skip(str(error))


@functools.cache
def outcome_of(leg: Leg) -> Outcome:
    """Run a leg once for all tests."""
    return run_client_leg(leg)


@pytest.mark.parametrize("leg", CLIENT_LEGS, ids=lambda leg: leg.title)
def test_a_client_leg_fails_only_what_is_not_declared(leg: Leg, suite: None) -> None:  # noqa: ARG001
    outcome = outcome_of(leg)
    assert faults_of(outcome) == [], outcome.line
    assert len(outcome.scenarios) == COUNTS[" ".join(leg.options)], outcome.line
    # A scenario that passes meanwhile belongs to an extension that is supported after all.
    passed = {
        name
        for name, checks in outcome.scenarios.items()
        if all(check["status"] in ("SUCCESS", "INFO") for check in checks)
    }
    assert passed.isdisjoint(UNDECLARED)


def test_the_legs_run_every_scenario_at_every_revision_that_has_it(suite: None) -> None:  # noqa: ARG001
    listed = scenarios_of("client")
    assert listed.keys() == outcome_of(CLIENT_LEGS[0]).scenarios.keys()
    for name, revisions in listed.items():
        for revision in revisions:
            assert name in outcome_of(leg_of(revision)).scenarios


def test_a_client_that_does_nothing_fails(suite: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr(client_legs, "PROGRAM", "tests.conformance.nothing")
    outcome = run_client_leg(Leg(LATEST, ("--suite", "all", "--spec-version", "2025-06-18")))
    assert len(outcome.scenarios) == 5
    assert {fault.partition(": ")[0] for fault in faults_of(outcome)} == set(outcome.scenarios)
