"""Every limit has tests at the limit, past it, and after it is freed."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from limit_table import DOCUMENT, filled

from substrate.cli.commands.config import limit_rows
from substrate.server.limits import ServerLimits

NAMES = list(ServerLimits.__struct_fields__)
#: The cases that tests of a limit must cover, declared with `@pytest.mark.limit(name, *parts)`.
PARTS = {"at", "past", "after"}


def marks() -> Iterator[tuple[str, list[str]]]:
    """Yield the limit and the cases that each test in this folder declares."""
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.limit":
                    assert node.name.startswith("test_"), node.name
                    name, *parts = [ast.literal_eval(argument) for argument in mark.args]
                    yield name, parts


SHOWN: dict[str, set[str]] = defaultdict(set)
for limit, parts in marks():
    SHOWN[limit] |= set(parts)


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_tested_at_it_past_it_and_after_a_release(name: str) -> None:
    assert SHOWN[name] == PARTS


def test_only_limits_that_exist_are_tested() -> None:
    assert set(SHOWN) <= set(NAMES)


def test_the_table_in_the_documents_matches_the_limits() -> None:
    text = DOCUMENT.read_text()
    assert text == filled(text), "run `python -m tests.limits.limit_table`"


def test_every_limit_has_a_reason_and_a_consequence() -> None:
    rows = limit_rows(ServerLimits())
    assert [row.limit for row in rows] == NAMES
    assert all(row.reason and row.past for row in rows)
    assert {row.unit for row in rows} == {"", "s", "bytes", "a second"}
