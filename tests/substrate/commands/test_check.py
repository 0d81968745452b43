"""`substrate check`: each rule finds its problem, with its line, and reports nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from command_line import lines, run, terminal, without_colours
from project_folders import trust_always

ROOT = Path(__file__).parents[3]

CLEAN = textwrap.dedent('''\
    from collections.abc import AsyncIterator
    from pathlib import Path
    import os
    from plexus import Activation, Content, Event, method

    class Step(Event):
        """A step."""
        number: int

        def as_text(self) -> str:
            return str(self.number)

    class Tidy(Activation):
        """Is in order."""
        namespace = "tidy"
        version = "1.0.0"

        @method(read_only=True)
        async def look(self, where: str) -> AsyncIterator[Step | Content]:
            """Look somewhere.

            Args:
                where: The place.
            """
            yield Step(number=1)

        @method(destructive=True, scope="tidy.write")
        async def put(self, what: str) -> None:
            """Put something.

            Args:
                what: The thing.
            """
            Path(what).write_text("")
''')

#: The change, the expected finding (level, rule, line), and a part of its message or advice.
PLANTED: dict[str, tuple[str, str, tuple[str, str, int], str]] = {
    "a long name": (
        "async def look",
        "async def look" + "_at_it" * 8,
        ("error", "name-length", 19),
        "73 characters",
    ),
    "two underscores": (
        "async def look",
        "async def look__at",
        ("error", "name-underscores", 19),
        "single",
    ),
    "an underscore at the end": (
        "async def look",
        "async def look_",
        ("error", "name-underscores", 19),
        "single",
    ),
    "a long description": (
        "Look somewhere.",
        "Look. " * 400,
        ("error", "description-length", 19),
        "2048",
    ),
    "no description": (
        '"""Look somewhere.\n',
        '"""\n',
        ("error", "description-missing", 19),
        "begin the docstring",
    ),
    "no docstring": (
        '"""Look somewhere.\n\n        Args:\n            where: The place.\n        """',
        "pass",
        ("warning", "docstring-missing", 19),
        "add a docstring",
    ),
    "an activation without a docstring": (
        '"""Is in order."""',
        "",
        ("warning", "docstring-missing", 13),
        "give the class a docstring",
    ),
    "an undocumented parameter": (
        "\n        Args:\n            where: The place.\n",
        "\n",
        ("warning", "parameter-undocumented", 19),
        "add `where: ...`",
    ),
    "an event without text": (
        "def as_text",
        "def in_words",
        ("warning", "event-without-text", 6),
        "as_text",
    ),
    "no hints": (
        "@method(read_only=True)",
        "@method",
        ("warning", "hints-missing", 19),
        "read_only=True",
    ),
    "no scope": (
        ', scope="tidy.write"',
        "",
        ("warning", "scope-missing", 28),
        'scope="tidy.write"',
    ),
    "the read scope": (
        '"tidy.write"',
        '"read"',
        ("error", "write-marked-read", 28),
        "give it another scope",
    ),
    "a contradiction": (
        "destructive=True",
        "destructive=True, read_only=True",
        ("error", "write-marked-read", 28),
        "remove one of",
    ),
    "a write that is marked read": (
        "yield Step",
        "Path(where).unlink(); yield Step",
        ("warning", "write-marked-read", 25),
        "unlink()",
    ),
    "a file opened to write": (
        "yield Step",
        'open(where, mode="a"); yield Step',
        ("warning", "write-marked-read", 25),
        "open()",
    ),
    "a path opened to write": (
        "yield Step",
        'Path(where).open("w"); yield Step',
        ("warning", "write-marked-read", 25),
        "open()",
    ),
    "a name that suggests a change": (
        "async def look",
        "async def delete_all",
        ("warning", "write-marked-read", 19),
        "'delete'",
    ),
    "no schema": ("where: str", "where: type(os)", ("error", "load", 19), "has no schema"),
    "a namespace that is taken": (
        '"tidy"',
        '"health"',
        ("warning", "namespace-taken", 13),
        "built-in",
    ),
    "what cannot be registered": ("what: str", "**what: str", ("error", "load", 28), "**kwargs"),
    "what cannot be imported": (
        "import os",
        "import os, missing_module",
        ("error", "load", 3),
        "missing_module",
    ),
    "what is no Python": ("import os", "import", ("error", "load", 3), "SyntaxError"),
}


def findings(folder: Path, source: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the findings for a file with this source."""
    (folder / "tidy.py").write_text(source)
    done = run("check", "--json", *arguments, "tidy.py", cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, lines(done.stdout)


#: A script whose methods are functions.
FUNCTIONS = textwrap.dedent('''\
    """Is in order."""

    import os

    from plexus import Activation

    tidy = Activation("tidy")


    @tidy.method(read_only=True)
    async def look(where: str):
        """Look somewhere.

        Args:
            where: The place.
        """
        yield f"{where}\\n"


    if __name__ == "__main__":
        tidy.serve()
''')


@pytest.mark.parametrize(
    ("old", "new", "rule", "line"),
    [
        ('"""Look somewhere.\n', '"""\n', "description-missing", 11),
        ("where: The place.", "", "parameter-undocumented", 11),
        ('"""Is in order."""', "", "docstring-missing", 11),
        ("def look", "def look__at", "name-underscores", 11),
        ("yield", "os.remove(where); yield", "write-marked-read", 17),
        ("read_only=True", "", "hints-missing", 11),
        ("where: str", "where: type(os)", "load", 11),
        ("(where: str)", "(**where: str)", "load", 11),
        ('"tidy")', '"tidy", scope="other")', None, 0),
        ("read_only=True", "destructive=True", "scope-missing", 11),
    ],
)
def test_functions_are_checked_like_methods_of_a_class(
    old: str, new: str, rule: str | None, line: int, tmp_path: Path
) -> None:
    assert old in FUNCTIONS
    _, found = findings(tmp_path, FUNCTIONS.replace(old, new, 1))
    expected = [] if rule is None else [(rule, line)]
    assert [(each["rule"], each["line"]) for each in found] == expected, found
    for each in found:
        assert each["rule"] != "load" or each["message"].startswith("tidy.look: argument 'where'")


def test_the_scope_of_an_activation_applies_to_its_functions(tmp_path: Path) -> None:
    source = FUNCTIONS.replace("read_only", "destructive").replace(
        '"tidy")', '"tidy", scope="tidy.write")'
    )
    assert findings(tmp_path, source, "--strict") == (0, [])


def test_a_function_without_a_docstring_is_found(tmp_path: Path) -> None:
    begin, end = FUNCTIONS.index('    """Look'), FUNCTIONS.index("    yield")
    code, found = findings(tmp_path, FUNCTIONS[:begin] + FUNCTIONS[end:])
    assert code == 0
    assert [(each["rule"], each["line"]) for each in found] == [("docstring-missing", 11)]


def test_correct_activations_have_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, CLEAN, "--strict") == (0, [])


@pytest.mark.parametrize("kind", PLANTED)
def test_every_planted_defect_is_found_with_its_line(kind: str, tmp_path: Path) -> None:
    old, new, (level, rule, line), part = PLANTED[kind]
    assert old in CLEAN
    code, found = findings(tmp_path, CLEAN.replace(old, new, 1))
    [match] = [each for each in found if each["rule"] == rule and each["line"] == line]
    assert Path(match["file"]).name == "tidy.py"
    assert match["level"] == level
    assert part in match["message"] + match["advice"]
    assert code == (1 if level == "error" else 0)
    assert {each["rule"] for each in found} == {rule}


@pytest.mark.parametrize(
    "body",
    [
        "open(where); yield Step(number=1)",
        'where.replace("a", "b"); yield Step(number=1)',
        'Path(where).open("rb"); yield Step(number=1)',
        "yield Step(number=len(Path(where).read_text()))",
    ],
)
def test_reading_is_not_mistaken_for_writing(body: str, tmp_path: Path) -> None:
    assert findings(tmp_path, CLEAN.replace("yield Step(number=1)", body))[1] == []


def test_a_description_at_the_limit_is_accepted(tmp_path: Path) -> None:
    assert findings(tmp_path, CLEAN.replace("Look somewhere.", "x" * 2048))[1] == []
    assert findings(tmp_path, CLEAN.replace("Look somewhere.", "x" * 2049))[0] == 1


def test_the_name_of_the_server_counts(tmp_path: Path) -> None:
    source = CLEAN.replace("async def look", "async def " + "x" * 40)
    assert findings(tmp_path, source, "--server", "tools")[0] == 0
    code, found = findings(tmp_path, source, "--server", "a_server_of_mine")
    assert code == 1
    assert "mcp__a_server_of_mine__tidy.xxx" in found[0]["message"]


def test_names_that_clients_cannot_distinguish_are_found(tmp_path: Path) -> None:
    other = CLEAN.replace("Tidy", "Other").replace('"tidy"', '"tidy_look"')
    source = CLEAN.replace("async def look", "async def look_up") + other.replace(
        "async def look", "async def up"
    )
    code, found = findings(tmp_path, source)
    assert code == 1
    [clash] = [each for each in found if each["rule"] == "name-collision"]
    assert "tidy.look_up" in clash["message"]
    assert clash["subject"] == "tidy_look.up"


def test_two_files_that_have_the_same_methods_are_found(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(CLEAN)
    done = run("check", "--json", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    [clash] = lines(done.stdout)
    assert clash["rule"] == "name-collision"
    assert clash["file"].endswith("b.py")


def test_too_many_tools_are_found(tmp_path: Path) -> None:
    method = textwrap.indent(
        '\n@method(read_only=True)\nasync def m{0}(self) -> int:\n    """M."""\n    return 1\n',
        "    ",
    )
    enough = CLEAN + "".join(method.format(number) for number in range(38))
    assert findings(tmp_path, enough) == (0, [])
    code, found = findings(tmp_path, enough + method.format("_more"))
    assert code == 0
    assert [each["rule"] for each in found] == ["too-many-tools"]
    assert 'audience="client"' in found[0]["advice"]
    for option in ("listed=False", 'audience="client"'):
        hidden = enough + method.format("_more").replace("True", f"True, {option}")
        assert findings(tmp_path, hidden) == (0, [])


def test_warnings_fail_only_with_strict(tmp_path: Path) -> None:
    source = CLEAN.replace("def as_text", "def in_words")
    assert findings(tmp_path, source)[0] == 0
    assert findings(tmp_path, source, "--strict")[0] == 1


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import nothing_like_this")
    (tmp_path / "b.py").write_text(CLEAN.replace("def as_text", "def in_words"))
    found = lines(run("check", "--json", ".", cwd=tmp_path).stdout)
    assert {each["rule"] for each in found} == {"load", "event-without-text"}


def test_children_are_checked_too(tmp_path: Path) -> None:
    parent = CLEAN[CLEAN.index("class Tidy") : CLEAN.index("    @method")]
    parent = parent.replace("Tidy", "Parent").replace("tidy", "parent") + "    children = (Tidy,)\n"
    code, found = findings(tmp_path, CLEAN.replace("async def look", "async def look__at") + parent)
    assert code == 1
    assert found[0]["subject"] == "parent.tidy.look__at"


def test_readable_findings_have_place_level_subject_rule_and_advice(tmp_path: Path) -> None:
    (tmp_path / "tidy.py").write_text(CLEAN.replace("def as_text", "def in_words"))
    done = run("check", "tidy.py", cwd=tmp_path)
    first, advice, last = done.stdout.splitlines()
    assert first.startswith("tidy.py:6: warning: Step: ")
    assert first.endswith("[event-without-text]")
    assert "as_text" in advice
    assert last == "2 methods: 1 warning"
    with terminal("check", "tidy.py", cwd=tmp_path) as screen:
        code, shown = screen.end()
    assert code == 0
    assert without_colours(shown) == done.stdout


def test_output_printed_by_a_plugin_is_not_among_the_findings(tmp_path: Path) -> None:
    code, found = findings(tmp_path, CLEAN + "\nprint('hello')\n")
    assert (code, found) == (0, [])


@pytest.mark.parametrize("source", ["tidy", "tidy:Tidy", ".", "tidy.py", None])
def test_a_source_is_a_module_a_class_a_folder_or_a_file(
    source: str | None, tmp_path: Path
) -> None:
    (trust_always(tmp_path) / "activations.d").mkdir()
    for file in (tmp_path / "tidy.py", tmp_path / "activations.d" / "tidy.py"):
        file.write_text(CLEAN)
    done = run("check", *([source] if source else []), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 methods: no problems\n")


def test_a_package_is_checked_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "neat").mkdir()
    (tmp_path / "neat" / "__init__.py").write_text("from neat.inner import Tidy\n" + CLEAN)
    (tmp_path / "neat" / "inner.py").write_text(CLEAN)
    done = run("check", "neat", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 methods: no problems\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "substrate new NAME"),
        (("no_such.py",), "neither a file nor a folder"),
        (("empty",), "contains no Python file"),
        (("broken",), "pyproject.toml cannot be read"),
    ],
)
def test_without_activations_the_next_step_is_printed(
    arguments: tuple[str, ...], part: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyproject.toml").write_text("[project")
    done = run("check", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr


def test_a_missing_module_is_an_error(tmp_path: Path) -> None:
    done = run("check", "no_such_module", cwd=tmp_path)
    assert done.returncode == 1
    assert "no module 'no_such_module'" in done.stdout


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_examples_have_no_findings(example: str, tmp_path: Path) -> None:
    done = run("check", "--strict", str(ROOT / "examples" / example), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
