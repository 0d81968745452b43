"""Problems are located by line, in the current version of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexus.errors import PluginError, RegistrationError
from substrate.devtools.source_location import (
    SourceLocation,
    location_of_class,
    location_of_error,
    location_of_function,
    outline,
)

SOURCE = """\
class Outer:
    class Inner:
        async def work(
            self,
            first: int,
            *,
            second: str,
        ) -> None: ...

def bare(x): return x
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    return path


def test_an_outline_has_classes_functions_and_arguments(file: Path) -> None:
    assert outline(file) == {
        "Outer": 1,
        "Outer.Inner": 2,
        "Outer.Inner.work": 3,
        "Outer.Inner.work.self": 4,
        "Outer.Inner.work.first": 5,
        "Outer.Inner.work.second": 7,
        "bare": 10,
        "bare.x": 10,
    }


@pytest.mark.parametrize("source", ["class", "\0", None])
def test_a_file_that_cannot_be_read_has_no_outline(source: str | None, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    if source is not None:
        path.write_text(source)
    assert outline(path) == {}


class Here:
    """A class of this file."""

    def method(self, argument: int) -> int:
        return argument


def test_imported_code_is_located_in_its_source() -> None:
    lines = Path(__file__).read_text().splitlines()
    assert location_of_class(Here) == SourceLocation(Path(__file__), lines.index("class Here:") + 1)
    expected = SourceLocation(
        Path(__file__), lines.index("    def method(self, argument: int) -> int:") + 1
    )
    assert location_of_function(Here().method) == expected
    assert location_of_function(Here.method, "argument") == expected


def test_code_without_a_file_has_no_location() -> None:
    scope: dict[str, type] = {}
    exec("class Made:\n    def f(self): pass\n", scope)
    assert location_of_class(scope["Made"]) is None
    assert location_of_class(int) is None
    assert location_of_function(len) is None


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Outer: needs a docstring", 1),
        ("Outer.unknown: needs a return type", 1),
        ("bare: argument 'x': needs a type hint", 10),
        ("nothing that is known here", None),
        ("Nobody.at_all: is missing", None),
    ],
)
def test_registration_errors_are_located_by_their_subject(
    message: str, line: int | None, file: Path
) -> None:
    found = location_of_error(RegistrationError(message), [file])
    assert found == (None if line is None else SourceLocation(file, line))


def test_an_error_is_located_at_its_cause_and_not_where_it_was_reported(
    file: Path,
) -> None:
    file.write_text("\n\ndef fail():\n    raise ValueError('no')\n")
    scope: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    try:
        scope["fail"]()  # type: ignore[operator]  # it is the function above
    except ValueError as error:
        reported = PluginError("ValueError: no")
        reported.__cause__ = error
    assert location_of_error(reported, [file]) == SourceLocation(file, 4)
    assert location_of_error(reported, []) is None


def test_a_location_is_formatted_as_editors_accept_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(SourceLocation(file, 7)) == f"{file}:7"
    monkeypatch.chdir(file.parent)
    assert str(SourceLocation(file, 7)) == "source.py:7"
