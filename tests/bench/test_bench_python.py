"""The measures of Python sessions run against real sessions."""

from __future__ import annotations

import dataclasses

import pytest

from bench import measure, python_sessions

SMALL = dataclasses.replace(measure.QUICK, single_calls=3, call_rounds=1)


def test_a_call_is_measured_without_the_execution_of_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_sessions, "STARTS", 2)

    start, call, lines = python_sessions.sessions(SMALL)

    assert start.ours.median > call.ours.median > 0
    assert lines.ours.median > 0
    assert start.targets
    assert call.targets
