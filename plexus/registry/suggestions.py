"""Near matches for a misspelled name, at a cost that a hostile name cannot raise.

Two names are compared by the pairs of letters they share (the Dice coefficient). That is linear
in their length, where the edit distances of `difflib` are quadratic: a batch of a hundred unknown
methods must not block the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

__all__ = ("nearest",)

#: A longer name is no misspelling of anything: names of methods have at most 64 characters.
LONGEST = 128
#: How alike two names must be: 1 is the same letters, 0 nothing in common.
ALIKE = 0.5


def nearest(name: str, candidates: Iterable[str], most: int = 3) -> list[str]:
    """Return the candidates that look most like a name, best first."""
    if len(name) > LONGEST:
        return []
    wanted = _pairs_of(name)
    scored = []
    for candidate in candidates:
        pairs = _pairs(candidate)
        score = 2 * len(wanted & pairs) / (len(wanted) + len(pairs))
        if score >= ALIKE:
            scored.append((-score, candidate))
    return [candidate for _, candidate in sorted(scored)[:most]]


def _pairs_of(name: str) -> frozenset[str]:
    # The marks at both ends give a name of one letter pairs too, and weight to the first letter.
    marked = f"^{name.lower()}$"
    return frozenset(map("".join, pairwise(marked)))


#: Candidates are names that exist here, so they are few; what clients send is not kept.
_pairs = lru_cache(maxsize=4096)(_pairs_of)
