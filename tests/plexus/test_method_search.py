"""Methods are found by words, the best match first."""

from __future__ import annotations

import random

import pytest

from plexus.registry.method_search import MethodIndex, SearchText, words_of

METHODS = [
    SearchText("bash.execute", "Run a command", "Run a shell command.", "", "command timeout_s"),
    SearchText("plexus.runs", "List runs", "List your runs, newest first.", "", "state limit"),
    SearchText("plexus.cancel", "Stop a run", "Stop a run of yours.", "", "run reason"),
    SearchText("arbor.tree_delete", "Delete a tree", "Delete a tree.", "", "tree"),
    SearchText("arbor.search", "Search nodes", "Find nodes by words of their text.", "", "query"),
    SearchText("tasks.createTask", "Create a task", "Add a task to the list.", "", "description"),
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("run a shell command", "bash.execute"),
        ("stop the run", "plexus.cancel"),
        ("deleting trees", "arbor.tree_delete"),
        ("find text in nodes", "arbor.search"),
        ("bash.execute", "bash.execute"),
        ("create task", "tasks.createTask"),
        ("cancelled", "plexus.cancel"),
    ],
)
def test_the_method_that_a_person_means_comes_first(query: str, expected: str) -> None:
    assert MethodIndex(METHODS).search(query, 3)[0] == expected


@pytest.mark.parametrize("query", ["", "   ", "the of and", "zzzz", "☃", "\x00"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert MethodIndex(METHODS).search(query, 3) == []


def test_no_more_than_the_limit_is_returned_and_ties_are_in_the_order_of_names() -> None:
    same = [SearchText(f"a.m{number}", "", "same words", "", "") for number in (3, 1, 2)]
    assert MethodIndex(same).search("same", 2) == ["a.m1", "a.m2"]
    assert MethodIndex([]).search("same", 2) == []


def test_words_are_split_at_dots_underscores_and_capitals() -> None:
    assert words_of("arbor.tree_getSkeleton") == words_of("arbor tree get skeleton")


def test_a_very_long_query_is_bounded() -> None:
    query = "zebra " * 10_000 + "bash"
    assert MethodIndex(METHODS).search(query, 3) == []


def test_a_large_index_finds_a_rare_word() -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefgh", k=6)) for _ in range(500)]
    texts = [
        SearchText(f"n{i // 50}.m{i}", "", " ".join(chance.choices(words, k=12)), "", "")
        for i in range(5000)
    ]
    texts[4321] = texts[4321]._replace(summary="convert a photograph to black and white")
    assert MethodIndex(texts).search("black and white photographs", 5)[0] == texts[4321].name
