"""Patterns choose methods, namespaces, and parts of namespaces."""

from __future__ import annotations

import pytest

from plexus.registry.selection import ALL, Selection, check_patterns, matches, unmatched


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("bash", "bash.execute", True),
        ("bash.execute", "bash.execute", True),
        ("bash.*", "bash.execute", True),
        ("arbor.tree_*", "arbor.tree_get", True),
        ("arbor.tree_*", "arbor.node_get", False),
        ("solar", "solar.earth.info", True),
        ("solar.earth", "solar.earth.info", True),
        ("bash", "bashful.execute", False),
        ("bash.exec", "bash.execute", False),
        ("*", "bash.execute", True),
    ],
)
def test_a_pattern_matches_a_method_a_namespace_or_what_its_wildcards_allow(
    pattern: str, name: str, expected: bool
) -> None:
    assert matches(name, (pattern,)) is expected


def test_without_patterns_everything_is_offered() -> None:
    assert ALL.allows("bash.execute")
    assert ALL.allows_some("bash")


def test_only_offers_what_matches_and_the_server_itself() -> None:
    chosen = Selection(only=("count", "arbor.tree_*"))
    assert chosen.allows("count.up")
    assert chosen.allows("arbor.tree_get")
    assert chosen.allows("plexus.runs")
    assert not chosen.allows("arbor.node_get")
    assert not chosen.allows("bash.execute")
    assert chosen.allows_some("arbor")
    assert not chosen.allows_some("bash")


def test_without_takes_away_and_wins_over_only() -> None:
    chosen = Selection(only=("arbor",), without=("arbor.tree_delete", "chat"))
    assert chosen.allows("arbor.tree_get")
    assert not chosen.allows("arbor.tree_delete")
    assert chosen.allows_some("arbor")
    assert not Selection(without=("chat",)).allows_some("chat")
    assert not Selection(without=("chat.*",)).allows_some("chat")
    assert Selection(without=("chat.send",)).allows_some("chat")


def test_the_server_itself_cannot_be_switched_off() -> None:
    assert Selection(without=("plexus", "*")).allows("plexus.cancel")


def test_a_pattern_that_matches_nothing_is_reported() -> None:
    assert unmatched(("bash", "arbr.*"), ["bash.execute", "arbor.tree_get"]) == ["arbr.*"]


@pytest.mark.parametrize("pattern", ["", "Bash", "bash execute", "a" * 200, "bash;rm"])
def test_a_text_that_is_no_pattern_is_refused_with_an_example(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern; write a method"):
        check_patterns([pattern])
