"""Every argument has an effect, wrong ones are refused, and what is not installed is named."""

from __future__ import annotations

import os
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from project_kit import analyst, commit, write
from test_complexity import BRANCHES, workers_of

from activations.analysis import environment, scan
from activations.analysis.activation import Analysis
from activations.analysis.worker_process import WorkerProcess
from activations.templates import Templates

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CALLS: dict[str, dict[str, Any]] = {
    "analyze_complexity": {"project_path": ".", "toolchain": "auto"},
    "analyze_code_churn": {"project_path": "."},
    "analyze_deep_context": {},
    "diagnose": {"paths": [__file__]},
}


@pytest.mark.parametrize("method", CALLS)
async def test_without_the_extra_an_error_names_what_to_install(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "vulture" else name)
    async with analyst() as hub:
        error = await hub.error(method, **CALLS[method])
    assert error.code == "extra_missing"
    assert "pip install 'plexus-substrate[analysis]'" in error.message
    assert error.data == {"extra": "analysis", "missing": ["vulture"]}


async def test_the_health_names_the_analysers_or_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activation = Analysis()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(environment, "find_spec", lambda _: None)
            missing = await activation.check_health()
        healthy = await activation.check_health()
    finally:
        await activation.close()
    for name in ("lizard 1.", "complexipy 8.", "grimp 3.", "tree-sitter 0.25", "vulture 2."):
        assert name in healthy
    assert missing.startswith("not installed: ")


async def test_a_health_check_looks_once_for_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def find_spec(name: str) -> str:
        asked.append(name)
        return name

    monkeypatch.setattr(environment, "find_spec", find_spec)
    activation = Analysis()
    try:
        first, second = [await activation.check_health() for _ in range(2)]
    finally:
        await activation.close()
    assert first == second
    assert sorted(asked) == sorted(environment.ANALYSERS.values())


@pytest.mark.parametrize("method", ["analyze_complexity", "analyze_deep_context"])
async def test_what_is_no_folder_is_refused(method: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    more = {"toolchain": "auto"} if method == "analyze_complexity" else {}
    async with analyst() as hub:
        for path, words in (
            (tmp_path / "none", "does not exist"),
            (tmp_path / "file", "is not a folder"),
            (tmp_path / "loop", "does not exist"),
            ("a\0b", "cannot be opened"),
            ("~no-such-user/x", "cannot be opened"),
        ):
            error = await hub.error(method, project_path=str(path), **more)
            assert error.code == "invalid_params"
            assert words in error.message, path


async def test_the_number_of_workers_is_that_of_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a_py=BRANCHES)
    started: list[str] = []

    class Counted(WorkerProcess):
        @classmethod
        async def open(cls, *args: Any) -> WorkerProcess:
            started.append("worker")
            return await WorkerProcess.open(*args)

    monkeypatch.setattr(scan, "WorkerProcess", Counted)
    counts = []
    async with analyst() as hub:
        for parallel in (1, 3):
            started.clear()
            await hub.report(
                "analyze_deep_context",
                project_path=str(tmp_path),
                include_analyses=["complexity"],
                parallel=parallel,
            )
            counts.append(len(started))
    assert counts == [2, 4]  # one more lists the files


async def test_a_forced_refresh_measures_again(tmp_path: Path) -> None:
    write(tmp_path, a_py=f"{BRANCHES}# {tmp_path}\n")  # measured by no other test
    cached = []
    async with analyst() as hub:
        for strategy in ("normal", "normal", "force-refresh", "offline"):
            events = await hub.events(
                "analyze_deep_context", project_path=str(tmp_path), cache_strategy=strategy
            )
            cached += [each.cached for each in events if each.type == "file"]  # type: ignore[attr-defined]  # by type
    assert cached == [False, True, False, True]


async def test_the_period_is_that_of_the_churn_in_a_deep_context(tmp_path: Path) -> None:
    write(tmp_path, a_py=BRANCHES)
    commit(tmp_path, when="2020-01-01T00:00:00Z")
    commits = []
    async with analyst() as hub:
        for days in (30, 36_500):
            report = await hub.report(
                "analyze_deep_context", project_path=str(tmp_path), period_days=days
            )
            commits.append(report["analyses"]["churn_analysis"]["summary"]["commits"])
    assert commits == [0, 1]


async def test_more_commits_of_a_file_move_it_to_the_first_hotspot(tmp_path: Path) -> None:
    write(tmp_path, a_py=BRANCHES, b_py=BRANCHES.replace("f(", "g("))
    commit(tmp_path)
    first = []
    async with analyst() as hub:
        for name in ("a", "b", "b"):
            with (tmp_path / f"{name}.py").open("a") as file:
                file.write("# a change\n")
            commit(tmp_path)
            report = await hub.report("analyze_deep_context", project_path=str(tmp_path))
            first.append(report["hotspots"][0]["location"]["file"])
            ranking = report["analyses"]["defect_probability"]["ranking"]
            assert ranking[0]["file"] == first[-1]
    assert (first[0], first[-1]) == ("a.py", "b.py")


async def test_a_project_from_templates_has_no_drift_until_it_is_changed(tmp_path: Path) -> None:
    async with analyst(Templates()) as hub:
        made = hub.hub.call(
            "templates.scaffold_project",
            {
                "toolchain": "python-uv",
                "templates": ["makefile", "gitignore"],
                "parameters": {"project_name": "my-project"},
                "target": str(tmp_path),
                "write": True,
            },
        )
        async with aclosing(made.run.batches(0, owner=True)) as batches:
            async for _ in batches:
                pass
        before = await hub.report("analyze_deep_context", project_path=str(tmp_path))
        (tmp_path / "Makefile").write_text("all:\n")
        after = await hub.report("analyze_deep_context", project_path=str(tmp_path))
    assert (before["template_provenance"]["drifted"], before["template_provenance"]["total"]) == (
        0,
        2,
    )
    states = {each["file"]: each["state"] for each in after["template_provenance"]["files"]}
    assert states == {".gitignore": "unchanged", "Makefile": "changed"}
    assert {each["template_state"] for each in after["template_provenance"]["files"]} == {
        "unchanged"
    }


async def test_a_worker_that_is_killed_costs_at_most_one_file(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"m{number}.py").write_text(BRANCHES * 100 + f"# {number}\n")
    killed = False
    async with analyst() as hub:
        made = hub.hub.call(
            "analysis.analyze_complexity", {"project_path": str(tmp_path), "toolchain": "python"}
        )
        events = []
        async with aclosing(made.run.batches(0, owner=True)) as batches:
            async for batch in batches:
                events += batch.events
                if not killed and any(each.type == "file" for each in events):
                    killed = True
                    os.kill(workers_of(tmp_path)[0], signal.SIGKILL)
    *_, report, end = events
    assert end.type == "complete", end
    files = report.value["metadata"]["files"]  # type: ignore[attr-defined]  # of `Data`
    assert files["seen"] == 100
    assert files["measured"] >= 99
    assert all("the analyser was lost" in reason for reason in files["skipped"])
