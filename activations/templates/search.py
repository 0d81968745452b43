"""Search of templates by words, with a relevance that can be recomputed.

Each word of the query is compared with the words of a template. It scores the weight of the field
times the similarity of the two words: 1 if they are equal, 0.75 if one begins with the other, and
0.5 times the similarity of their letters if they are only similar. The relevance is the mean of the
best scores of the words of the query, so it is from 0 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from activations.templates.errors import SYNONYMS
from activations.templates.model import Template

__all__ = ("MAX_RESULTS", "Hit", "search_templates")

MAX_RESULTS: Final = 20
#: Words of a query that are compared.
MAX_WORDS: Final = 10
#: Similarity of letters below which two words are different.
MIN_SIMILARITY: Final = 0.5
#: Minimum letters of a word that another may begin with.
MIN_PREFIX: Final = 3
#: Minimum letters of two words that are compared by their letters.
MIN_SIMILAR: Final = 4
_WORD: Final = re.compile(r"[a-z0-9+]+")


class Hit(NamedTuple):
    """A template that was found."""

    template: Template
    relevance: float
    #: The words of the query that it has, as written.
    matched: list[str]


def search_templates(query: str, templates: Iterable[Template]) -> list[Hit]:
    """Return the templates that fit a query, best first."""
    words = list(dict.fromkeys(_WORD.findall(query.lower())))[:MAX_WORDS]
    hits = []
    for template in templates:
        scores = [_score(word, _weights(template)) for word in words]
        if any(scores):
            matched = [word for word, score in zip(words, scores, strict=True) if score]
            hits.append(Hit(template, round(sum(scores) / len(scores), 3), matched))
    return sorted(hits, key=lambda hit: (-hit.relevance, hit.template.uri))[:MAX_RESULTS]


def _weights(template: Template) -> dict[str, float]:
    """Return the words of a template with the weights of their fields."""
    fields: Sequence[tuple[float, str]] = (
        (1.0, template.category),
        (1.0, template.toolchain),
        (1.0, template.file_name),
        (0.9, template.variant),
        (0.9, " ".join(template.tags)),
        (0.8, template.name),
        (0.5, template.path),
        (0.5, template.description),
    )
    weights: dict[str, float] = {}
    for weight, text in fields:
        for word in _words_of(text):
            weights[word] = max(weights.get(word, 0.0), weight)
    for word, toolchain in SYNONYMS.items():
        if toolchain == template.toolchain:
            weights.setdefault(word, 0.9)
    return weights


def _words_of(text: str) -> Iterator[str]:
    lowered = text.lower()
    yield lowered.strip(". ")
    yield from _WORD.findall(lowered)


def _score(word: str, weights: dict[str, float]) -> float:
    best = weights.get(word, 0.0)
    pairs = _pairs(word)
    for other, weight in weights.items():
        if weight <= best:
            continue
        shorter = min(len(word), len(other))
        if shorter >= MIN_PREFIX and (other.startswith(word) or word.startswith(other)):
            best = max(best, 0.75 * weight)
            continue
        if shorter < MIN_SIMILAR:
            continue
        own = _pairs(other)
        similarity = 2 * len(pairs & own) / (len(pairs) + len(own))
        if similarity >= MIN_SIMILARITY:
            best = max(best, 0.5 * similarity * weight)
    return best


@lru_cache(maxsize=4096)
def _pairs(word: str) -> frozenset[str]:
    return frozenset(map("".join, pairwise(f"^{word[:64]}$")))
