"""Search for methods by words: an inverted index over names, titles, descriptions and parameters.

Ranking is BM25 with a weight for each field, so that a word in a name counts more than one in a
description. The index is built once for a set of methods; a query reads only the methods that
contain one of its words.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from plexus.registry.schema import parameters_schema
from plexus.registry.signature import MethodSpec

__all__ = ("MethodIndex", "SearchText", "search_text", "words_of")

#: How often a word counts, by the field that contains it.
WEIGHTS: Final = {"name": 6, "title": 4, "summary": 2, "description": 1, "parameters": 1}
#: The constants of BM25: how soon repetition stops to count, and how much length counts.
K1: Final = 1.2
B: Final = 0.5
#: What a word is worth that only begins like a word of the query, and the other way round.
PREFIX: Final = 0.5
#: The shortest beginning of a word that is compared.
PREFIX_CHARS: Final = 3
#: How many words of a query are used.
QUERY_WORDS: Final = 32

_WORD = re.compile(r"[a-z]+|[0-9]+|[^\W\d_a-z]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Words that are in nearly every description and in most questions.
_STOP: Final = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can do for from how i in is it its me my of on or our that the "
        "this to what when which with you your",
    )
)


class SearchText(NamedTuple):
    """What is known of one method, by field."""

    name: str
    title: str
    summary: str
    description: str
    parameters: str


def search_text(spec: MethodSpec) -> SearchText:
    """Return what a method is found by. Activations that were not used yet are not imported."""
    properties = parameters_schema(spec).get("properties", {})
    parameters = [f"{name} {each.get('description', '')}" for name, each in properties.items()]
    title, rest = spec.title or "", spec.description
    return SearchText(spec.name, title, spec.summary, rest, " ".join(parameters))


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without plural endings and common words."""
    words = _WORD.findall(_CAMEL.sub(" ", text).lower())
    return [_stem(word) for word in words if word not in _STOP]


def _stem(word: str) -> str:
    """Reduce a word so that "files", "searching" and "deleted" find "file", "search", "delete"."""
    for ending, least in (("ies", 3), ("ing", 4), ("ed", 4), ("es", 4), ("s", 3), ("e", 4)):
        if word.endswith(ending) and len(word) - len(ending) >= least - (ending == "e"):
            return word[: -len(ending)] + ("i" if ending == "ies" else "")
    return word[:-1] + "i" if word.endswith("y") and len(word) > PREFIX_CHARS else word


class MethodIndex:
    """Methods by their words."""

    def __init__(self, texts: Iterable[SearchText]) -> None:
        self._names: list[str] = []
        self._lengths: list[float] = []
        #: For each word the methods that contain it, with its weighted count.
        self._entries: dict[str, list[tuple[int, float]]] = defaultdict(list)
        #: The words that begin with the same characters.
        self._beginnings: dict[str, list[str]] = defaultdict(list)
        for text in texts:
            counts: Counter[str] = Counter()
            for field, value in zip(WEIGHTS, text, strict=True):
                for word in words_of(value):
                    counts[word] += WEIGHTS[field]
            number = len(self._names)
            self._names.append(text.name)
            self._lengths.append(sum(counts.values()))
            for word, count in counts.items():
                if word not in self._entries:
                    self._beginnings[word[:PREFIX_CHARS]].append(word)
                self._entries[word].append((number, count))
        self._mean = sum(self._lengths) / len(self._lengths) if self._lengths else 1.0

    def search(self, query: str, limit: int) -> list[str]:
        """Return the names of the methods that fit a query best, the best first."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words_of(query)[:QUERY_WORDS]):
            best: dict[int, float] = {}
            for known, worth in self._similar(word):
                entries = self._entries[known]
                rarity = math.log(1 + (len(self._names) + 0.5) / (len(entries) + 0.5))
                for number, count in entries:
                    length = 1 - B + B * self._lengths[number] / self._mean
                    score = worth * rarity * count * (K1 + 1) / (count + K1 * length)
                    best[number] = max(best.get(number, 0.0), score)
            for number, score in best.items():
                scores[number] += score
        ranked = sorted(scores, key=lambda number: (-scores[number], self._names[number]))
        return [self._names[number] for number in ranked[:limit]]

    def _similar(self, word: str) -> list[tuple[str, float]]:
        """Return the indexed words that match a word, with what a match is worth."""
        found = [(word, 1.0)] if word in self._entries else []
        if len(word) < PREFIX_CHARS:
            return found
        return found + [
            (known, PREFIX)
            for known in self._beginnings.get(word[:PREFIX_CHARS], ())
            if known != word and (known.startswith(word) or word.startswith(known))
        ]
