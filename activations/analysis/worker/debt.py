"""Comments in which authors admit technical debt, by their keyword."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

__all__ = ("SEVERITIES", "find_debt")

#: Keywords by severity.
SEVERITIES: Final = {
    "critical": ("SECURITY", "CRITICAL", "URGENT", "BLOCKER"),
    "high": ("FIXME", "BUG", "BROKEN", "HACK"),
    "medium": ("TODO", "REFACTOR", "CLEANUP", "IMPROVE"),
    "low": ("NOTE", "IDEA", "CONSIDER", "MAYBE"),
}
_BY_KEYWORD: Final = {word: level for level, words in SEVERITIES.items() for word in words}
#: A keyword in capitals that begins a comment or a sentence of it, or that has a colon or a name.
KEYWORD: Final = re.compile(
    r"(?:^[\s#/*!;-]*|[.!?]\s+)\b(" + "|".join(_BY_KEYWORD) + r")\b(?=[\s:(\[!,.-]|$)"
    r"|\b(" + "|".join(_BY_KEYWORD) + r")(?=\s*[:(])"
)
#: Categories by words in the text; otherwise it is about the implementation.
CATEGORIES: Final = (
    ("testing", re.compile(r"\b(tests?|tested|testing|coverage|mock)\b", re.IGNORECASE)),
    ("documentation", re.compile(r"\b(docs?|document\w*|docstring|readme)\b", re.IGNORECASE)),
    ("performance", re.compile(r"\b(slow|fast\w*|perf\w*|optimi[sz]\w*|cache\w*)\b", re.I)),
    ("design", re.compile(r"\b(refactor\w*|hack|clean ?up|design|split|duplicat\w*)\b", re.I)),
)
TEXT_CHARACTERS: Final = 200


def find_debt(comment: str, line: int) -> Iterator[dict[str, Any]]:
    """Yield the debts of a comment that begins at a line."""
    for number, text in enumerate(comment.splitlines()):
        for match in KEYWORD.finditer(text):
            keyword = match[1] or match[2]
            shown = text[match.start(1 if match[1] else 2) :].rstrip("*/ ").strip()
            yield {
                "line": line + number,
                "keyword": keyword,
                "severity": _BY_KEYWORD[keyword],
                "category": _category(shown),
                "text": shown[:TEXT_CHARACTERS],
            }


def _category(text: str) -> str:
    return next((name for name, words in CATEGORIES if words.search(text)), "implementation")
