"""Checkers and formatters of JavaScript and TypeScript: the real programs in a project."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conformance.node import NotInstalled, compiler, linter, node
from editor_hub import Editor, open_editor

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

SMILE = "\N{GRINNING FACE}"


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    """Return the commands of the programs; npm may have to fetch them first."""
    try:
        node_ = node()
        files = {"tsc": compiler()[0], "eslint": linter("eslint"), "prettier": linter("prettier")}
    except NotInstalled as error:
        pytest.skip(str(error))
    return {name: f"'{node_}' '{path}'" for name, path in files.items()}


@pytest.fixture
async def editor(
    programs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Editor]:
    monkeypatch.setattr("hub_calls.WAIT_S", 90.0)
    monkeypatch.setattr("activations.ide.methods.editor.DIAGNOSTICS_S", 60.0)
    place = tmp_path / "node_modules" / ".bin"
    place.mkdir(parents=True)
    for name, command in programs.items():
        (place / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (place / name).chmod(0o755)
    async with open_editor(tmp_path) as opened:
        yield opened


async def found(editor: Editor, path: str) -> list[dict[str, Any]]:
    [file] = await editor.value("diagnostics", path=path)
    assert file["note"] is None, file
    diagnostics: list[dict[str, Any]] = file["diagnostics"]
    return diagnostics


async def test_the_compiler_and_the_linter_report_what_the_project_configures(
    editor: Editor,
) -> None:
    work = editor.folder
    (work / "tsconfig.json").write_text('{"compilerOptions": {"strict": true, "types": []}}')
    (work / "eslint.config.mjs").write_text(
        'export default [{rules: {"no-unused-vars": "warn", "no-undef": "error"}}];\n'
    )
    (work / "a.ts").write_text(f'const x: number = "{SMILE}"; const s = "{SMILE}"; nope;\n')
    (work / "b.ts").write_text("const other: string = 1;\n")
    [file] = await editor.value("diagnostics", path="a.ts")
    assert file["note"].startswith("eslint: File ignored because no matching configuration")
    [first, second] = file["diagnostics"]  # not those of b.ts
    assert (first["source"], first["code"], first["severity"]) == ("tsc", "TS2322", "Error")
    assert (second["code"], second["range"]["start"]) == ("TS2304", {"line": 0, "character": 40})
    (work / "c.js").write_text(f'const s = "{SMILE}"; nope();\n')
    [undefined, unused] = await found(editor, "c.js")
    assert (undefined["source"], undefined["code"]) == ("eslint", "no-undef")
    assert undefined["severity"] == "Error"
    start = {"line": 0, "character": 16}
    assert undefined["range"] == {"start": start, "end": {"line": 0, "character": 20}}
    assert (unused["code"], unused["severity"]) == ("no-unused-vars", "Warning")
    (work / "d.js").write_text("const = 1;\n")
    [broken] = await found(editor, "d.js")
    assert (broken["severity"], broken["code"]) == ("Error", None)


async def test_a_broken_configuration_is_reported_and_no_empty_list(editor: Editor) -> None:
    (editor.folder / "eslint.config.mjs").write_text("throw new Error('wrong configuration')\n")
    (editor.folder / "a.js").write_text("x\n")
    [file] = await editor.value("diagnostics", path="a.js")
    assert file["note"].startswith("eslint failed: ")


async def test_prettier_formats_by_the_type_of_the_file(editor: Editor) -> None:
    for name, text, formatted in (
        ("a.ts", "const  x:number=1", "const x: number = 1;\n"),
        ("a.json", '{"a":1 ,"b":2}', '{ "a": 1, "b": 2 }\n'),
        ("a.css", "a{color:red}", "a {\n  color: red;\n}\n"),
    ):
        (editor.folder / name).write_text(text)
        assert (await editor.value("reformat_file", path=name))["changed"] is True
        assert (editor.folder / name).read_text() == formatted
    (editor.folder / "a.ts").write_text("const = =\n")
    error = await editor.error("reformat_file", path="a.ts")
    assert error.code == "format"
    assert (editor.folder / "a.ts").read_text() == "const = =\n"
