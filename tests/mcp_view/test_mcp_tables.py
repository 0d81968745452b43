"""The tables of methods and revisions: every method has a handler, and no other module compares
revisions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mcp_peer import HANDSHAKES, REVISIONS, STATELESS

import mcp_view
from mcp_view import revisions
from mcp_view.errors import CODES, code_of
from mcp_view.methods import METHODS
from substrate.server.mcp.responder import STATUSES, http_status

PACKAGE = Path(mcp_view.__file__).parent
#: The modules that may compare revisions.
TABLES = {"revisions.py", "methods.py"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in TABLES)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_handler_and_a_span_of_revisions(name: str) -> None:
    row = METHODS[name]
    assert callable(row.handle)
    orders = [revision.order for revision in revisions.REVISIONS.values()]
    assert row.first <= row.last
    assert {row.first, row.last} <= set(orders)


def test_the_rows_of_the_revision_table_are_in_order() -> None:
    assert tuple(revisions.REVISIONS) == REVISIONS
    assert [row.order for row in revisions.REVISIONS.values()] == list(range(len(REVISIONS)))
    assert all(name == row.name for name, row in revisions.REVISIONS.items())
    assert revisions.HANDSHAKES == HANDSHAKES
    assert revisions.LATEST_HANDSHAKE.name == HANDSHAKES[-1]
    assert revisions.STATELESS.name == STATELESS
    assert tuple(reversed(REVISIONS)) == revisions.SUPPORTED


def test_only_the_older_revision_has_batches() -> None:
    assert [row.name for row in revisions.REVISIONS.values() if row.batches] == ["2025-03-26"]


def faults_in(source: str) -> list[str]:
    """Return the comparisons of revisions by order, by name or by row."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                text = ast.unparse(side)
                ordered = isinstance(side, ast.Attribute) and side.attr == "order"
                named = any(name in text for name in REVISIONS) or text.endswith("revision.name")
                row = text in ("LATEST_HANDSHAKE", "STATELESS")
                if ordered or named or row:
                    found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and node.value in REVISIONS:
            found.append(f"the name {node.value!r}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_other_module_compares_revisions(path: Path) -> None:
    assert faults_in(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "if revision.order >= 2: pass",
        "x = revision.name == '2025-06-18'",
        "x = '2025-06-18' in names",
        "x = caller.revision.name != other",
        "x = revision is STATELESS",
        "NEWEST = '2026-07-28'",
    ],
)
def test_the_search_finds_what_is_planted(source: str) -> None:
    assert faults_in(source)


def test_error_codes_become_the_numbers_of_the_revision() -> None:
    old, new = revisions.REVISIONS["2025-11-25"], revisions.STATELESS
    assert code_of("not_found", old) == -32002
    assert code_of("not_found", new) == -32602
    assert code_of("unsupported", old) == -32603
    assert code_of("unsupported", new) == -32021
    assert code_of("anything else", new) == -32603
    # The stateless revision forbids these numbers.
    assert not {-32002, -32042} & {code_of(word, new) for word in (*CODES, "not_found")}
    assert http_status(-32601) == 404
    assert http_status(-32603) == 200
    assert http_status(code_of("denied", new)) == 403
    assert set(STATUSES.values()) == {400, 403, 404}
