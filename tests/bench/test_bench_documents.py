"""docs/performance.md and docs/scaling.md are made from the committed result of the benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import capacity, performance
from bench.__main__ import MEASURES
from bench.documents import DOCUMENTS
from bench.result import LATEST, Result, updated

PERFORMANCE, SCALING = DOCUMENTS
RESULT = Result.read()


def changed(tmp_path: Path, change: dict[str, Any], **figures: float) -> Result:
    """Return the committed result with other values."""
    content = json.loads(LATEST.read_bytes()) | change
    for figure in content["figures"]:
        if figure["name"] in figures:
            figure["ours"] |= dict.fromkeys(("median", "low", "high"), figures[figure["name"]])
    file = tmp_path / "result.json"
    file.write_text(json.dumps(content))
    return Result.read(file)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_shows_the_committed_result(document: Path) -> None:
    wanted = DOCUMENTS[document](RESULT)
    assert document.read_text() == wanted, "run `python -m bench.documents`"


def test_the_committed_result_is_of_a_full_run_of_a_current_program() -> None:
    content = json.loads(LATEST.read_bytes())
    assert content["quick"] is False
    assert content["environment"]["manifest_is_current"] is True
    assert content["environment"]["load_1_min"] > 0
    assert str(Path.home()) not in LATEST.read_text()


def test_every_row_has_its_command_and_its_measured_figure() -> None:
    rows = re.findall(r"^\| (.+?) \|.*\| `(\w+)` \|$", PERFORMANCE.read_text(), re.M)
    shown = {name for name in performance.ROWS if name in RESULT.figures}
    assert [work for work, _ in rows] == [
        work for name, work in performance.ROWS.items() if name in shown
    ]
    assert {measure for _, measure in rows} <= MEASURES.keys()
    for name in shown:
        assert name.startswith(RESULT.figures[name].measure)


def test_a_goal_that_is_not_reached_states_what_stands_in_its_way(tmp_path: Path) -> None:
    assert performance.OBSTACLES.keys() <= performance.ROWS.keys()
    slow = dict.fromkeys(performance.ROWS, 1e9)
    text = performance.render(changed(tmp_path, {}, **slow))
    for row in performance.missed(RESULT):
        assert f"- {performance.ROWS[row.name]}: " in PERFORMANCE.read_text()
    assert performance.OBSTACLES["mcp_memory_streams"] in text
    assert "health.check` over HTTP, 64 in flight: 1,000,000,000 us/call" in text


def test_a_row_that_was_not_measured_is_absent_with_its_reason(tmp_path: Path) -> None:
    content = json.loads(LATEST.read_bytes())
    left = [each for each in content["figures"] if each["measure"] != "health_check"]
    failed = {"health_check": "the server exited"}
    text = performance.render(changed(tmp_path, {"figures": left, "failed": failed}))
    work = performance.ROWS["health_check"]
    assert f"- {work}: the measure failed: the server exited." in text
    assert not re.search(rf"^\| {re.escape(work)} \|", text, re.M)


def test_one_measure_of_a_result_can_be_replaced() -> None:
    old = {
        "measures": ["a", "b"],
        "quick": False,
        "seconds": 60.0,
        "environment": {"load_1_min": 1.0, "load_1_min_after": 9.0, "commit": "old"},
        "failed": {"b": "it broke"},
        "figures": [{"measure": "a", "name": "a 1"}],
    }
    new = {
        "measures": ["b"],
        "quick": False,
        "seconds": 5.0,
        "environment": {"load_1_min": 2.0, "load_1_min_after": 3.0, "commit": "new"},
        "failed": {},
        "figures": [{"measure": "b", "name": "b 1"}],
    }
    both = updated(old, new)
    assert both["command"] == "python -m bench --only a b"
    assert [figure["name"] for figure in both["figures"]] == ["a 1", "b 1"]
    assert both["failed"] == {}
    assert both["seconds"] == 65.0
    assert both["environment"] == {"load_1_min": 2.0, "load_1_min_after": 9.0, "commit": "new"}


def test_the_capacity_is_computed_from_the_figures() -> None:
    model = capacity.Model.of(RESULT)._replace(
        call_us=100.0, database_us=50.0, commit_us=200.0, commits_per_s=20.0
    )
    assert model.calls_per_core == 10_000
    assert model.calls_per_database == 20_000
    assert model.replicas_per_database == 4  # each uses half of its core
    assert model.notified(1) == 0
    assert model.notified(11) == pytest.approx(0.04)
    assert model.calls(1) == 5_000
    assert model.calls(11) == pytest.approx(11 * 0.46 * 10_000)
    assert model.replicas_per_notification == pytest.approx(26)


def test_the_scaling_document_states_the_figures_of_the_result() -> None:
    text = SCALING.read_text()
    for name in capacity.NEEDED:
        assert name in RESULT.figures
    costs = dict(re.findall(r"^\| \*([\w ]+)\* \| .* \| ([\d,.]+) .*\|$", text, re.M))
    one = RESULT.figures["replicas cpu"].limit
    assert one is not None
    assert costs["call"] == f"{one.median:.0f}"
    assert costs["stream"] == f"{RESULT.figures['mcp_memory_streams'].ours.median:.1f}"
    assert f"| recorded calls | 1,000,000 / *call* {one.median:.0f} |" in text


def test_the_first_bottleneck_is_the_one_with_the_fewest_replicas() -> None:
    numbered = re.findall(
        r"^\d\. \*\*[\w ]+\*\*, at ([\d,.]+) (?:busy )?replicas", SCALING.read_text(), re.M
    )
    assert len(numbered) >= 2
    values = [float(number.replace(",", "")) for number in numbered]
    assert values == sorted(values)
