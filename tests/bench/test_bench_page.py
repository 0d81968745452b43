"""The measures of the page run in a browser. No times are asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import page
from bench.measure import QUICK, Effort, Figure

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path(page.CHROMIUM).exists(), reason="Chromium is not installed"),
]


@pytest.mark.parametrize(
    ("measure", "names"),
    [
        (page.start_up, ["page_paint", "page_ready", "page_bytes"]),
        (page.events, ["page_events", "page_events_frame"]),
        (page.lines, ["page_lines"]),
        (page.runs, ["page_runs"]),
        (page.busy_run, ["page_heap"]),
    ],
)
def test_the_page_is_measured_against_its_targets(
    measure: Callable[[Effort], list[Figure]], names: list[str]
) -> None:
    figures = measure(QUICK)

    assert [figure.name for figure in figures] == names
    assert all(figure.targets and figure.ours.rounds == 1 for figure in figures)
