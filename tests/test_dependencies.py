"""The bounds of dependencies are correct, and CI tests the lower ones."""

from __future__ import annotations

import re
from pathlib import Path

import lowest
import pytest

ROOT = Path(__file__).parents[1]
#: Packages that we subclass or whose internals we use; an untested release may break us.
CAPPED = ("httptools", "pydantic", "uvicorn", "websockets")


def test_every_dependency_has_one_lower_bound() -> None:
    found = lowest.constraints()
    assert len(found) == len({line.partition("==")[0] for line in found})
    assert len(found) >= 25


@pytest.mark.parametrize(
    "wrong", ["click", "click<9", "click==8.3.3", "click>=8,>=9", "click~=8.3"]
)
def test_a_dependency_without_a_plain_lower_bound_is_an_error(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowest, "requirements", lambda: [wrong])
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest.constraints()


def test_two_lower_bounds_of_one_dependency_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowest, "requirements", lambda: ["rich>=13", "rich>=14"])
    with pytest.raises(ValueError, match="rich has two lower bounds: 13 and 14"):
        lowest.constraints()


@pytest.mark.parametrize("name", CAPPED)
def test_what_we_build_on_closely_has_an_upper_bound(name: str) -> None:
    (found,) = [one for one in lowest.requirements() if one.startswith(f"{name}>=")]
    assert re.fullmatch(rf"{name}>=[\d.]+,<[\d.]+", found)


def test_ci_runs_the_smoke_tests_with_the_lowest_versions() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^make( --?\S+)*( \w+)* lowest\b", script, re.M)
    assert "-m tests.lowest" in (ROOT / "Makefile").read_text()


def test_the_smoke_tests_use_every_extra_that_is_installed_for_them() -> None:
    text = (ROOT / "tests" / "test_smoke.py").read_text()
    used = {"oauth": "SUBSTRATE_OAUTH_ISSUER", "otel": "OTEL_EXPORTER", "postgres": "ENGINES"}
    assert set(used) == set(lowest.EXTRAS)
    assert all(word in text for word in used.values())
