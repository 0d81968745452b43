"""Diagnostics: real checkers in a project, what is reported, and when it is checked again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from editor_hub import Editor, install, open_editor, watching

from activations.analysis import environment
from activations.analysis.activation import Analysis
from activations.ide import Ide
from activations.ide.checkers import CHECKERS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

UNUSED = "import os\n"
CLEAN = "x = 1\n"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hub_calls.WAIT_S", 60.0)
    monkeypatch.setattr("activations.ide.methods.editor.DIAGNOSTICS_S", 60.0)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
async def editor(work: Path) -> AsyncIterator[Editor]:
    async with open_editor(work) as opened:
        yield opened


async def diagnostics(editor: Editor, path: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await editor.value("diagnostics", path=path)
    return found


def summary(file: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """Return source, code, severity and line of what was found."""
    return [
        (each["source"], each["code"], each["severity"], each["range"]["start"]["line"])
        for each in file["diagnostics"]
    ]


async def test_ruff_and_mypy_of_the_project_report_with_positions_of_utf16(
    editor: Editor, work: Path
) -> None:
    install(work, "ruff", "mypy")
    (work / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n[tool.ruff]\n")
    (work / "a.py").write_text(
        'import os\n\ny: int = "\N{SNOWMAN}"; z = "\N{GRINNING FACE}" + nope\n'
    )
    [file] = await diagnostics(editor, "a.py")
    assert file["note"] is None
    assert file["file_path"] == str(work / "a.py")
    assert ("ruff", "F401", "Warning", 0) in summary(file)
    assert ("ruff", "F821", "Error", 2) in summary(file)
    assert ("mypy", "assignment", "Error", 2) in summary(file)
    nope = next(each for each in file["diagnostics"] if each["code"] == "F821")
    line = (work / "a.py").read_text().splitlines()[2]
    units = len(line[: line.index("nope")].encode("utf-16-le")) // 2
    assert nope["range"]["start"] == {"line": 2, "character": units}
    assert nope["range"]["end"] == {"line": 2, "character": units + 4}


async def test_a_checker_that_the_project_does_not_configure_is_not_used(
    editor: Editor, work: Path
) -> None:
    install(work, "ruff", "mypy")
    (work / "a.py").write_text('x: int = ""\n')
    [file] = await diagnostics(editor, "a.py")
    assert file["diagnostics"] == []
    assert file["note"] is None  # ruff has checked it


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("a.py", "Not checked: none of ruff, mypy is installed and configured here."),
        ("a.ts", "Not checked: none of tsc, eslint is installed and configured here."),
        ("a.txt", "There is no checker for plaintext files."),
        ("missing.txt", "There is no checker for plaintext files."),
    ],
)
async def test_a_file_that_nothing_checks_has_a_note(
    editor: Editor, work: Path, name: str, note: str
) -> None:
    if name != "missing.txt":
        (work / name).write_text(UNUSED)
    [file] = await diagnostics(editor, name)
    assert (file["diagnostics"], file["note"]) == ([], note)
    assert (await editor.value("status"))["checkers"] == []


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("echo broken >&2; exit 7", "ruff failed: broken"),
        ("echo '[{\"nothing\": 1}]'", "ruff has written something unexpected."),
        ("echo 'no JSON'", "ruff has written no JSON"),
        ("head -c 5000000 /dev/zero", "The output of ruff exceeds 4,194,304 bytes."),
        ("kill -9 $$", "ruff failed: exit code -9"),
    ],
    ids=["exit code", "other JSON", "no JSON", "flood", "killed"],
)
async def test_a_broken_checker_is_named_and_harms_nothing(
    editor: Editor, work: Path, program: str, note: str
) -> None:
    place = work / ".venv" / "bin" / "ruff"
    place.parent.mkdir(parents=True)
    place.write_text(f"#!/bin/sh\n{program}\n")
    place.chmod(0o755)
    (work / "a.py").write_text(CLEAN)
    [file] = await diagnostics(editor, "a.py")
    assert file["diagnostics"] == []
    assert file["note"] == note


async def test_a_checker_that_hangs_is_killed_at_its_deadline(
    editor: Editor, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activations.ide.checks.CHECK_S", 0.3)
    place = work / ".venv" / "bin" / "ruff"
    place.parent.mkdir(parents=True)
    place.write_text(f"#!/bin/sh\necho $$ > {work}/pid\nsleep 600\n")
    place.chmod(0o755)
    (work / "a.py").write_text(CLEAN)
    [file] = await diagnostics(editor, "a.py")
    assert file["note"] == "ruff took longer than 0.3 s."
    with pytest.raises(ProcessLookupError):
        os.kill(int((work / "pid").read_text()), 0)


async def test_a_client_does_not_wait_longer_than_its_limit(
    editor: Editor, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activations.ide.methods.editor.DIAGNOSTICS_S", 0.05)
    place = work / ".venv" / "bin" / "ruff"
    place.parent.mkdir(parents=True)
    place.write_text("#!/bin/sh\nsleep 600\n")
    place.chmod(0o755)
    (work / "a.py").write_text(CLEAN)
    [file] = await diagnostics(editor, "a.py")
    assert file["note"] == "The check takes longer; its result is not known yet."


async def test_a_result_is_reused_until_an_open_file_changes(editor: Editor, work: Path) -> None:
    runs = work.parent / "runs"
    place = work / ".venv" / "bin" / "ruff"
    place.parent.mkdir(parents=True)
    place.write_text(f"#!/bin/sh\necho run >> {runs}\necho '[]'\n")
    place.chmod(0o755)
    for name in ("a.py", "b.py"):
        (work / name).write_text(CLEAN)
    await diagnostics(editor, "a.py")
    await diagnostics(editor, "a.py")
    assert runs.read_text().count("run") == 1
    (work / "a.py").write_text("x = 22\n")
    await diagnostics(editor, "a.py")
    assert runs.read_text().count("run") == 2
    await editor.value("open_document", path="b.py")
    await diagnostics(editor, "b.py")
    await diagnostics(editor, "a.py")
    before = runs.read_text().count("run")
    (work / "b.py").write_text("x = 333\n")  # what is in b may cause an error in a
    await diagnostics(editor, "a.py")
    assert runs.read_text().count("run") == before + 1


async def test_diagnostics_are_a_stream_that_follows_saves_and_other_programs(
    editor: Editor, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activations.ide.methods.base.DISK_CHECK_S", 0.05)
    install(work, "ruff")
    (work / "a.py").write_text(CLEAN)
    async with watching(editor) as watch:
        await editor.value("open_document", path="a.py")
        assert (await watch.next("file_diagnostics", checking=False)).diagnostics == []
        edited = await editor.value("edit_document", path="a.py", text=UNUSED, version=1)
        await editor.value("save_document", path="a.py", version=edited["version"])
        await watch.next("file_diagnostics", checking=True)
        found = (await watch.next("file_diagnostics", checking=False)).diagnostics
        assert [each["code"] for each in found] == ["F401"]
        (work / "a.py").write_text(CLEAN)  # another program, such as an agent
        document = await watch.next("document", version=3)
        assert document.dirty is False
        assert (await watch.next("file_diagnostics", checking=False)).diagnostics == []


async def test_diagnostics_of_all_open_files_and_by_both_forms_of_a_uri(
    editor: Editor, work: Path
) -> None:
    install(work, "ruff")
    for name in ("a b#c?.py", "100%25.py"):
        (work / name).write_text(UNUSED)
        await editor.value("open_document", path=name)
    files = await diagnostics(editor)
    # Claude Code compares URIs with `file://` before the path as it is.
    assert [each["uri"] for each in files] == [
        f"file://{work}/a b#c?.py",
        f"file://{work}/100%25.py",
    ]
    for uri in (f"file://{work}/a b#c?.py", (work / "a b#c?.py").as_uri()):
        [file] = await diagnostics(editor, uri)
        assert (file["path"], file["uri"]) == ("a b#c?.py", uri)
    [file] = await diagnostics(editor, f"file://{work}/100%25.py")
    assert file["path"] == "100%25.py"
    for wrong in ("http://example.org/a.py", "file://host/a.py", "file:///etc/passwd"):
        assert (await editor.error("diagnostics", path=wrong)).code == "invalid_params"


async def test_findings_of_analysis_are_diagnostics(work: Path) -> None:
    branches = "".join(f"    if x == {number}:\n        x += 1\n" for number in range(20))
    (work / "a.py").write_text(f"def f(x):\n{branches}    return x  # TODO: simplify\n")
    async with open_editor(work, Analysis()) as editor:
        assert (await editor.value("status"))["checkers"] == ["analysis"]
        [file] = await diagnostics(editor, "a.py")
        assert file["note"] is None
        found = summary(file)
        assert ("analysis", "cyclomatic-complexity", "Warning", 0) in found
        assert any(code == "satd" and line == 41 for _, code, _, line in found), found
    async with open_editor(work, Analysis(), checkers=("ruff",)) as editor:
        [file] = await diagnostics(editor, "a.py")
        assert file["diagnostics"] == []
        assert (await editor.value("status"))["checkers"] == []


async def test_without_the_extra_of_analysis_there_are_no_findings_and_no_error(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a.py").write_text(CLEAN)
    monkeypatch.setattr(environment, "ANALYSERS", {"nothing": "no_such_module"})
    async with open_editor(work, Analysis()) as editor:
        [file] = await diagnostics(editor, "a.py")
        note = "Not checked: none of ruff, mypy is installed and configured here."
        assert (file["diagnostics"], file["note"]) == ([], note)
        assert (await editor.value("status"))["checkers"] == []


def test_an_unknown_checker_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known are ruff, mypy, tsc, eslint, analysis"):
        Ide(checkers=("pylint",))
    assert [each.name for each in CHECKERS] == ["ruff", "mypy", "tsc", "eslint"]
