"""Source, test helpers and the main documents are written in plain technical English.

The tables list the phrases that are not used, what to write instead, and the exceptions with their
reasons. Phrases are searched for in docstrings, comments, string literals and defined names, never
in the code itself; text between backticks counts as code.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reference import described

ROOT = Path(__file__).parents[1]
SOURCE = ("plexus", "activations", "mcp_view", "native_rpc", "substrate", "bench", "examples")
#: Documents that are generated from texts which are checked in the source.
GENERATED = ("docs/events.md", "docs/reference.md")
DOCUMENTS = tuple(
    sorted(
        path.relative_to(ROOT).as_posix()
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "examples/README.md")
        if path.relative_to(ROOT).as_posix() not in GENERATED
    )
)

#: Phrases that are not used, as regular expressions over whole words, and what to write instead.
PHRASES = {
    # Subjects: name the thing that acts.
    r"whom?ever": "the caller, the client, any client that",
    r"whom": "which, that",
    r"some(?:body|one)": "a client, a user, a process",
    r"no(?:body| one)": "no client, no caller, no process",
    r"any(?:body|one)": "any client, any user",
    r"every(?:body|one)": "every client, all users",
    r"he|his|him|himself": "it, its, the client, the user",
    # Communication: notify, report, send, configure.
    r"(?:is|are|was|were|be|been|being|gets?) told": "is notified, receives, is configured",
    r"told (?:of|about|so)": "notified of",
    r"tell(?:s|ing)? of": "report, describe, notify of",
    r"(?:say|says|saying) so": "report it, state it",
    r"said": "sent, reported, requested, stated",
    # Limits and time.
    r"so many": "a maximum number of, this many",
    r"for ever": "indefinitely, without a limit",
    # Lifetime.
    r"let(?:s|ting)? go": "release, unregister, close",
    r"let(?:s|ting)? (?:it|them|this|that|everything|all) go": "release, unregister, close",
    r"go(?:es|ing)? on": "continue",
    r"went on": "continued",
    # Other.
    r"in the place of": "instead of",
    r"for want of": "without, because of a missing",
    r"(?:has|have|had) no say": "does not decide",
    r"what (?:is|was) there": "what exists, what is available",
    r"nothing of (?:it|that|this|them)": "none of it",
}
#: Further phrases that are not used in prose; names of tests may contain them.
PROSE_PHRASES = {
    r"at once": "immediately; together, concurrently, in one batch",
    r"of (?:its|their) own": "own, separate",
    r"by (?:itself|themselves)": "automatically, alone",
    r"beside": "next to, in addition to",
    r"anew": "again",
}
#: Where one of these phrases is right: the file, the phrase and the reason.
PHRASE_EXCEPTIONS = {
    ("activations/chat/providers/echo.py", "said"): "the answer of the echo model",
}
#: Files with docstrings that do not follow PEP 257, and the reason.
DOCSTRING_EXCEPTIONS = {
    "activations/chat/claudecode.py": "tool texts that are specified word for word",
}
#: Modules and packages whose name ends in "ing" although modules are not named by gerunds.
GERUND_EXCEPTIONS = {
    "logging": "the standard library's name for it",
    "testing": "the usual name of a package's test support",
    "tracing": "the usual term of telemetry",
    "framing": "the usual term for delimiting messages in a stream",
}
#: Verbs that a tool's title begins with.
TITLE_VERBS = re.compile(
    "Add|Analyze|Answer|Append|Approve|Archive|Ask|Call|Cancel|Change|Check|Claim|Close|Comment|Complete|Configure|"
    "Continue|Copy|Create|Delete|Describe|Draw|Edit|End|Evaluate|Execute|Export|Find|Follow|Fork|Format|"
    "Generate|Get|Import|Interrupt|Keep|Link|List|Mention|Move|Open|Permit|Read|Regenerate|Register|Release|Remove|"
    "Rename|Render|Replace|Report|Request|Restart|Resume|Revert|Review|Run|Save|Search|Select|Send|Set|Show|"
    "Start|Stop|Stream|Suggest|Switch|Unsubscribe|Update|Validate|Watch|Write"
)
MAX_DESCRIPTION_SENTENCES = 3
MAX_PARAMETER_SENTENCES = 2

Table = dict[str, str]
ALL_PHRASES: Table = PHRASES | PROSE_PHRASES
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_DOCUMENTED = ast.Module | ast.ClassDef | _FUNCTIONS


@dataclasses.dataclass(frozen=True)
class Text:
    """A piece of text of a file, and the line on which it begins."""

    line: int
    text: str


@cache
def pattern_of(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern with one group for each phrase, in order; a phrase may be wrapped."""
    alternatives = "|".join(f"({phrase})" for phrase in phrases).replace(" ", r"\s+")
    return re.compile(rf"(?<![\w.-])(?:{alternatives})(?![\w-])", re.IGNORECASE)


def phrases_in(texts: Iterable[Text], path: str, table: Table = ALL_PHRASES) -> Iterator[str]:
    """Report each phrase of the table in these texts, with its place and its replacement."""
    for each in texts:
        # Code keeps its length and its line breaks, so that lines can be counted.
        prose = _CODE.sub(lambda code: re.sub(r"[^\n]", "\0", code[0]), each.text)
        for found in pattern_of(tuple(table)).finditer(prose):
            phrase = " ".join(found[0].lower().split())
            if (path, phrase) not in PHRASE_EXCEPTIONS:
                line = each.line + each.text.count("\n", 0, found.start())
                instead = list(table.values())[(found.lastindex or 1) - 1]
                yield f"{path}:{line}: {phrase!r}: write {instead}"


def texts_of(source: str) -> Iterator[Text]:
    """Return the docstrings, comments, string literals and defined names of a Python file."""
    yield from comments_of(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            one_line = node.lineno == node.end_lineno
            yield Text(node.lineno, node.value.replace("\n", " ") if one_line else node.value)
        yield from defined_names(node)


def comments_of(source: str) -> Iterator[Text]:
    """Return the comments of a Python file, a block of them as one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield Text(first, "\n".join(block))
            block = []
        first = line if not block else first
        last = line
        block.append(token.string.lstrip("#: "))
    if block:
        yield Text(first, "\n".join(block))


def defined_names(node: ast.AST) -> Iterator[Text]:
    """Return the names that a node defines, in words: `is_told` and `IsTold` are "is told"."""
    names: list[str] = []
    if isinstance(node, ast.ClassDef | _FUNCTIONS):
        names = [node.name]
    elif isinstance(node, ast.arg):
        names = [node.arg]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names = [node.id]
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        names = [node.attr]
    for name in names:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
        yield Text(getattr(node, "lineno", 0), words.strip())


def test_names_of(source: str) -> Iterator[Text]:
    """Return the names of the test functions and classes of a test module, in words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _FUNCTIONS | ast.ClassDef) and node.name.lower().startswith("test"):
            yield from defined_names(node)


test_names_of.__test__ = False  # type: ignore[attr-defined]


def docstring_faults(source: str, path: str) -> Iterator[str]:
    """Report docstrings whose first line is not a sentence on one line (PEP 257)."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, _DOCUMENTED) or not ast.get_docstring(node, clean=False):
            continue
        line = node.body[0].lineno
        first, *rest = (ast.get_docstring(node) or "").split("\n")
        if rest and rest[0].strip():
            yield f"{path}:{line}: the first sentence of the docstring runs over one line"
        elif not first.rstrip('"').endswith((".", "?", "!", ":")):
            yield f"{path}:{line}: the first line of the docstring has no full stop"


def sentences_in(text: str) -> int:
    """Count the sentences of a text, without its code."""
    prose = re.sub(r"\b(?:e\.g|i\.e|etc|vs)\.", "", _CODE.sub("x", text))
    return len([part for part in re.split(r"[.!?](?:\s+|$)", prose) if part.strip()])


def tool_faults(method: dict[str, Any]) -> Iterator[str]:
    """Report what is wrong with the texts of a method that clients and models read."""
    name = method["name"]
    if sentences_in(method["description"]) > MAX_DESCRIPTION_SENTENCES:
        yield f"{name}: the description has over {MAX_DESCRIPTION_SENTENCES} sentences"
    if not method["description"].strip():
        yield f"{name}: has no description"
    for parameter, schema in method["params"].get("properties", {}).items():
        text = schema.get("description", "")
        if not text.strip():
            yield f"{name}: parameter {parameter} has no description"
        elif sentences_in(text) > MAX_PARAMETER_SENTENCES:
            yield f"{name}: parameter {parameter} has over {MAX_PARAMETER_SENTENCES} sentences"
    title = method.get("title")
    if title is None:
        return
    if title.endswith("."):
        yield f"{name}: the title {title!r} ends with a full stop"
    is_tool = method.get("role") is None
    if is_tool and not TITLE_VERBS.fullmatch(title.split()[0]):
        yield f"{name}: the title {title!r} does not begin with a verb of the table"
    elif not title[0].isupper():
        yield f"{name}: the title {title!r} does not begin in upper case"


# --- ours ----------------------------------------------------------------------------------------

THIS_FILE = "tests/test_language.py"


def python_files(*folders: str) -> list[str]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


SOURCE_FILES = python_files(*SOURCE)
TEST_FILES = [path for path in python_files("tests") if path != THIS_FILE]
HELPER_FILES = [path for path in TEST_FILES if not Path(path).name.startswith("test_")]


def collect(paths: list[str], check: Callable[[str, str], Iterator[str]]) -> list[str]:
    """Return what a check reports for these files, one fault a line."""
    return [fault for path in paths for fault in check((ROOT / path).read_text(), path)]


def test_source_is_in_plain_words() -> None:
    found = collect(SOURCE_FILES, lambda source, path: phrases_in(texts_of(source), path))
    assert found == [], "\n".join(found)


def test_test_helpers_are_in_plain_words() -> None:
    found = collect(HELPER_FILES, lambda source, path: phrases_in(texts_of(source), path))
    assert found == [], "\n".join(found)


def test_names_of_tests_are_in_plain_words() -> None:
    def check(source: str, path: str) -> Iterator[str]:
        return phrases_in(test_names_of(source), path, PHRASES)

    found = collect(TEST_FILES, check)
    assert found == [], "\n".join(found)


def test_documents_are_in_plain_words() -> None:
    def check(text: str, path: str) -> Iterator[str]:
        return phrases_in([Text(1, text)], path)

    found = collect(list(DOCUMENTS), check)
    assert found == [], "\n".join(found)


def test_docstrings_begin_with_one_sentence_on_one_line() -> None:
    files = [path for path in [*SOURCE_FILES, *HELPER_FILES] if path not in DOCSTRING_EXCEPTIONS]
    found = collect(files, docstring_faults)
    assert found == [], "\n".join(found)


def test_modules_are_not_named_by_gerunds() -> None:
    names = {part for path in SOURCE_FILES for part in Path(path).with_suffix("").parts}
    gerunds = {name for name in names if name.endswith("ing")}
    assert gerunds <= set(GERUND_EXCEPTIONS)


def test_tool_texts_are_short_and_complete(tmp_path: Path) -> None:
    methods = [method for each in described(tmp_path) for method in each["methods"]]
    found = [fault for method in methods for fault in tool_faults(method)]
    assert found == [], "\n".join(found)


def test_every_exception_is_still_needed() -> None:
    for path, phrase in PHRASE_EXCEPTIONS:
        words = " ".join((ROOT / path).read_text().lower().split())
        assert phrase in words, f"{path} no longer contains {phrase!r}"
    names = {part for path in SOURCE_FILES for part in Path(path).with_suffix("").parts}
    assert set(GERUND_EXCEPTIONS) <= names


# --- the checker ---------------------------------------------------------------------------------

PLANTED = {
    "a docstring": '"""Notify whoever waits."""',
    "a comment": "x = 1  # nobody waits",
    "a comment over two lines": "# the owner is\n# told",
    "a docstring over two lines": 'def f():\n    """The owner is\n    told.\n    """',
    "a literal": "raise ValueError('at most so many items')",
    "a part of a formatted literal": "x = f'{count} are let go'",
    "a function": "def lets_go(): ...",
    "a class": "class IsTold: ...",
    "a parameter": "def f(said): ...",
    "a variable": "said = 1",
    "an attribute": "self.so_many = 1",
    "upper case": "SAID = 1",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_the_checker_finds_what_is_planted(kind: str) -> None:
    (fault,) = phrases_in(texts_of(PLANTED[kind]), "x.py")
    assert re.match(r"x\.py:\d+: '.*': write \w", fault)


@pytest.mark.parametrize(
    "source",
    [
        '"""Notify the caller, see `whoever`."""',
        "x = self.said",
        "from x import nobody",
        "x = 'the host'",
        "history, there = 1, 2",
    ],
)
def test_the_checker_accepts_plain_words_and_code(source: str) -> None:
    assert list(phrases_in(texts_of(source), "x.py")) == []


def test_the_checker_reports_the_line_of_a_phrase() -> None:
    source = '"""First line.\n\nThe `code\n` is told.\n"""\n'
    (fault,) = phrases_in(texts_of(source), "x.py")
    assert fault.startswith("x.py:4: ")


@pytest.mark.parametrize(
    ("docstring", "faults"),
    [
        ("Return it.", 0),
        ("Return it", 1),
        ("Return it if\n    asked.", 1),
        ("Return it.\n\n    Raises NotFound", 0),
    ],
)
def test_the_checker_reads_first_lines(docstring: str, faults: int) -> None:
    source = f'def f():\n    """{docstring}"""\n'
    assert len(list(docstring_faults(source, "x.py"))) == faults


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Run a command. Returns its output.", 2),
        ("Run `a. b. c` and 3.11, e.g. this one.", 1),
        ("Run it", 1),
        ("One. Two! Three? Four.", 4),
    ],
)
def test_the_checker_counts_sentences(text: str, count: int) -> None:
    assert sentences_in(text) == count


def test_the_checker_reads_tool_texts() -> None:
    good = {"name": "a.b", "title": "List things", "description": "List things.", "params": {}}
    parameters = {"properties": {"x": {"description": "One. Two. Three."}, "y": {}}}
    assert list(tool_faults(good)) == []
    assert len(list(tool_faults(good | {"description": "One. Two. Three. Four."}))) == 1
    assert len(list(tool_faults(good | {"params": parameters}))) == 2
    assert len(list(tool_faults(good | {"title": "What waits"}))) == 1
    assert len(list(tool_faults(good | {"title": "List things."}))) == 1
    assert list(tool_faults(good | {"title": "Transcript", "role": "resource"})) == []
